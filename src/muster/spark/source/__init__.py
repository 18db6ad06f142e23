"""The streaming source: a query as a member of a consumer group."""
