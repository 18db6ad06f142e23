"""A consumer's queries to the cluster: committed offsets, the ends of partitions, offsets by time, topics.

Topics are described by requests of their own, not from the metadata that a consumer keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from muster.client.config import ConsumerConfig
from muster.client.consumer.pump import ConsumerPump, settle
from muster.client.core.consumer import ConsumerCore
from muster.client.core.metadata import metadata_request
from muster.client.core.refusals import should_retry_query
from muster.client.core.sends import LEAST_LOADED, Failure, Send
from muster.client.net import forks
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import IllegalStateError, KafkaError, KafkaTimeoutError, MusterError, error_code
from muster.model import Node, OffsetAndMetadata, OffsetAndTimestamp, PartitionInfo, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.messages import MetadataRequest, MetadataResponse


class ConsumerQueries(forks.NotPicklable):
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
        """The first offsets at or after timestamps (milliseconds since the epoch); None if there is none."""
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
        """The partitions of a topic with their leaders and replicas; asks the cluster each time."""
        await self.start()
        found = await _describe(self._driver, self._config, [topic], self._pump.until(timeout_ms))
        return found.get(topic, [])

    async def list_topics(self, timeout_ms: int | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions; asks the cluster each time."""
        await self.start()
        return await _describe(self._driver, self._config, None, self._pump.until(timeout_ms))


def _partition_infos(reply: MetadataResponse) -> dict[str, list[PartitionInfo]]:
    """The topics of a response, except those with an error."""
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in reply.brokers}
    return {
        topic.name: [
            PartitionInfo(
                topic.name,
                found.partition_index,
                nodes.get(found.leader_id),
                tuple(found.replica_nodes),
                tuple(found.isr_nodes),
            )
            for found in sorted(topic.partitions, key=lambda found: found.partition_index)
        ]
        for topic in reply.topics
        if topic.name is not None and not topic.error_code
    }


async def _describe(
    driver: Driver, config: ConsumerConfig, topics: list[str] | None, until: int
) -> dict[str, list[PartitionInfo]]:
    """The partitions of topics, or of all topics for None; retried until `until` while that may help.

    Raises:
        KafkaError: the topic does not exist, or this client is not authorized to see it.
        KafkaTimeoutError: there was no answer in time.
    """
    why = "no broker answered"
    while True:
        reply = await _ask(driver, config, topics, until)
        if isinstance(reply, Failure):
            why = str(reply.error())
        if isinstance(reply, MetadataResponse):
            codes = [error_code(topic.error_code) for topic in reply.topics if topic.error_code and topics]
            if not codes:
                return _partition_infos(reply)
            if not should_retry_query(codes[0]):
                raise KafkaError(codes[0], f"topic {topics}")
            why = f"{codes[0].name}: topic {topics}"
        if driver.now() + config.retry_backoff_ms >= until:
            raise KafkaTimeoutError(f"the cluster did not describe its topics in time: {why}")
        await asyncio.sleep(config.retry_backoff_ms / 1000)


async def _ask(
    driver: Driver, config: ConsumerConfig, topics: list[str] | None, until: int
) -> MetadataResponse | Failure | None:
    """One request; None if there is no answer in time."""
    outcome: asyncio.Future[MetadataResponse | Failure] = asyncio.get_running_loop().create_future()

    def on_reply(reply: MetadataResponse | Failure, now: int) -> None:
        if not outcome.done():
            outcome.set_result(reply)

    build = partial(metadata_request, topics, config.allow_auto_create_topics)
    driver.dispatch([Send(LEAST_LOADED, MetadataRequest, build, on_reply)])
    try:
        async with asyncio.timeout(max(0, until - driver.now()) / 1000):
            reply = await outcome
    except TimeoutError:
        return None
    if isinstance(reply, Failure) and not reply.retriable:
        raise reply.error()
    return reply
