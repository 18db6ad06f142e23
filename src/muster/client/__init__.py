"""Clients for Kafka: consumers, producers and admin, blocking and for asyncio. `muster` exports their names."""
