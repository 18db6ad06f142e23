"""A member of a consumer group: joining, sharing out, heartbeats, commits, and who coordinates it."""
