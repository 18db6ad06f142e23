"""Connections: sockets, frames, and the rules of one connection (connection_core.py), which are pure."""
