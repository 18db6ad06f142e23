"""Shards, each with its journal: loaded, served, and answered once durable. Knows nothing of groups."""
