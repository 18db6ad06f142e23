"""Connections from this broker to the others of its cluster: requests in order, each answered or given up in time."""
