"""A client with blocking calls in the caller's own thread, without an event loop or a group: reads fixed ranges.

For processes that have nothing else to do while they wait: Spark's planners and executors, and the history of groups.
"""
