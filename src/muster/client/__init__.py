"""Clients for Kafka clusters: consumers, producers, admin; blocking, and for asyncio. Their public names: `muster`."""
