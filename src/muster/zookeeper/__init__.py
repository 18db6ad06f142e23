"""Kafka's coordination through ZooKeeper: the first two generations of consumer groups, and their stores.

`base/operations.py` has the operations of rules on ZooKeeper; `session/session.py` carries them out, over
`session/kazoo_link.py`, the only file that uses kazoo. The consumers are loaded when first used: rules, tests and the
consumers of scheme 2 need no kazoo.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.zookeeper.consumers.async_server_assigned_consumer import AsyncServerAssignedConsumer
    from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
    from muster.zookeeper.consumers.server_assigned_consumer import ServerAssignedConsumer
    from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
    from muster.zookeeper.watchers.asks import RebalanceFailedError

_WHERE = {
    "AsyncServerAssignedConsumer": "consumers.async_server_assigned_consumer",
    "AsyncWatcherConsumer": "consumers.async_watcher_consumer",
    "RebalanceFailedError": "watchers.asks",
    "ServerAssignedConsumer": "consumers.server_assigned_consumer",
    "WatcherConsumer": "consumers.watcher_consumer",
}

__all__ = [
    "AsyncServerAssignedConsumer",
    "AsyncWatcherConsumer",
    "RebalanceFailedError",
    "ServerAssignedConsumer",
    "WatcherConsumer",
]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            text = f"{name} needs kazoo, which is not installed: pip install 'muster-kafka[zookeeper]'"
            raise ModuleNotFoundError(text, name="kazoo") from None
