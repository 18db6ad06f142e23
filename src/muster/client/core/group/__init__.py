"""A member of a consumer group: joining, the leader's assignment, heartbeats, commits, the coordinator's lookup."""
