"""Shards, each with its journal: loaded, served, answered once durable. Independent of groups."""
