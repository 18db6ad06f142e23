"""The settings of consumers of ZooKeeper's groups, as keywords for type checkers.

`python -m tools.typed_settings` writes this file.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.client.typed_settings import ConsumerKeywords


class WatcherKeywords(ConsumerKeywords, total=False):
    """The settings of `WatcherConfig`."""

    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int
    consumer_id: str | None
    rebalance_max_retries: int
    rebalance_backoff_ms: int
    watch_brokers: bool


class ServerAssignedKeywords(ConsumerKeywords, total=False):
    """The settings of `ServerAssignedConfig`."""

    coordinator_servers: str | Iterable[str]
