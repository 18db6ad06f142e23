"""Sockets and the event loop: moves the bytes of the cores. Only this package waits."""
