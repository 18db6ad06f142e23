"""The history of consumer groups, read from `__consumer_offsets`: generations, rebalances with their causes, lag."""
