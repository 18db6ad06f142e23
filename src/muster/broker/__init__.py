"""The broker: an asyncio shell around the log and the group coordinator.

It owns the sockets, the topics and the data folder, and has no rules of the group protocol. `broker.py` starts and
stops it, `net/` moves frames, `handlers/` has a module for each API or family of APIs.
"""
