"""Reading partitions: where to begin, fetching, what was fetched, and whether the log was truncated meanwhile."""
