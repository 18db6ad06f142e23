"""The broker: an asyncio shell around the log and the group coordinator.

It owns the sockets, the topics and the data folder, and holds no rule of the group protocol. `broker.py` starts and
stops it, `server.py` moves frames, `handlers/` has one module for each API or family of them.
"""
