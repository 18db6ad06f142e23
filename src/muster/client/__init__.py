"""Clients: consumers, producers, admin."""
