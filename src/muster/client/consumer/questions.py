"""What a consumer's user asks the cluster: committed offsets, the ends of partitions, offsets by time, topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from muster.client.config import ConsumerConfig
from muster.client.consumer.described import describe
from muster.client.consumer.pump import ConsumerPump, settle
from muster.client.core.consumer import ConsumerCore
from muster.client.net import forks
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import IllegalStateError, KafkaTimeoutError, MusterError
from muster.model import OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class Questions(forks.StaysHere):
    """The part of an `AsyncConsumer` that only queries."""

    _config: ConsumerConfig
    _core: ConsumerCore
    _driver: Driver
    _loop: CoreLoop
    _pump: ConsumerPump

    async def start(self) -> None:
        """Start in the running event loop."""
        raise NotImplementedError

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        await self.start()
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._core.fetch_committed(partitions, partial(settle, outcome), until=self._pump.until(timeout_ms))
        self._loop.wakeup()
        found: dict[TopicPartition, OffsetAndMetadata | None] | MusterError = await self._pump.outcome(outcome)
        if isinstance(found, MusterError):
            raise found
        return found

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The oldest offsets that can be read."""
        found = await self._query(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), timeout_ms)
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets of the next records to be written; with read_committed, the start of the first open
        transaction."""
        found = await self._query(dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout_ms)
        return {partition: offset.offset for partition, offset in found.items() if offset is not None}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offsets at or after timestamps (milliseconds since the epoch); None where there is none."""
        if any(timestamp < 0 for timestamp in timestamps.values()):
            raise IllegalStateError(
                "a timestamp must be at least 0; use beginning_offsets and end_offsets for the ends"
            )
        return await self._query(dict(timestamps), timeout_ms)

    async def _query(
        self, timestamps: dict[TopicPartition, int], timeout_ms: int | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        await self.start()
        query = self._core.offsets.query(timestamps)
        try:
            if not await self._pump.wait_awake(lambda: query.done, self._pump.until(timeout_ms)):
                raise KafkaTimeoutError("the offsets could not be looked up in time")
        finally:
            self._core.offsets.cancel(query)
        if query.error is not None:
            raise query.error
        return query.results

    async def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, and where they are; asks the cluster each time."""
        await self.start()
        found = await describe(self._driver, self._config, [topic], self._pump.until(timeout_ms))
        return found.get(topic, [])

    async def list_topics(self, timeout_ms: int | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions; asks the cluster each time."""
        await self.start()
        return await describe(self._driver, self._config, None, self._pump.until(timeout_ms))
