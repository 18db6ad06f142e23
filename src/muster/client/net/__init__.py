"""Sockets and the loop: moves the bytes of the cores, the only room that waits."""
