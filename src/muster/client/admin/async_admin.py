"""`AsyncAdmin`: topics, groups, offsets, transactions and settings of a cluster, for asyncio.

A call for several items (topics, groups, partitions) raises `AdminError` if any of them failed, with the first error
and all outcomes. With `raise_errors=False` it returns the outcome of each: a value, or the KafkaError that the broker
returned for it. An error of the whole call is always raised. After a retriable error (a coordinator is loading, a
leader has moved) the call is repeated for up to `default_api_timeout_ms`; then the error is the item's outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from muster.client.admin.calls import BrokerCalls
from muster.client.admin.cluster import ClusterPart
from muster.client.admin.groups import GroupsPart
from muster.client.admin.partitions import PartitionsPart
from muster.client.admin.topics import TopicsPart
from muster.client.admin.transactions import TransactionsPart
from muster.client.config import AdminConfig
from muster.client.net import forks

if TYPE_CHECKING:
    from muster.client.typed_settings import AdminKeywords


class AsyncAdmin(TopicsPart, PartitionsPart, GroupsPart, TransactionsPart, ClusterPart, forks.NotPicklable):
    """Administers a cluster, from asyncio. Settings are those of `AdminConfig`.

    async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topics([NewTopic("flights", num_partitions=8)])
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Unpack[AdminKeywords]) -> None:
        self._config = AdminConfig.of(settings, **more)
        self._calls = BrokerCalls(self._config)

    async def start(self) -> None:
        """Bind to the running event loop. Every call does this too."""
        await self._calls.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
