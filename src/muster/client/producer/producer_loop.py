"""A producer's core in an event loop, with what every face needs: accepting records, flushing, a topic's partitions."""

from __future__ import annotations

import random

from muster.client.config import ProducerConfig
from muster.client.core.checks import check_topic
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import Outgoing
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.producer import ProducerCore
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ClosedError, KafkaTimeoutError, MusterError
from muster.model import PartitionInfo


class ProducerLoop:
    """A core and its driver. Belongs to the event loop; a face handles the outcomes (`_tell_all`)."""

    def __init__(self, config: ProducerConfig, partitioner: Partitioner | None = None) -> None:
        self.config = config
        self.metadata = ClusterMetadata(config, on_demand=True, seed=random.getrandbits(31))
        self.core = ProducerCore(config, self.metadata, partitioner, seed=random.getrandbits(31))
        self.driver = Driver(config, self.metadata)
        self.loop = CoreLoop(self.driver, [self.metadata, self.core], lambda now: self._tell_all())
        self._in_haste = False

    def _tell_all(self) -> None:
        """Take the core's events; called after each round."""
        raise NotImplementedError

    def append(self, record: Outgoing, now: int) -> bool:
        """Pass a record or an encoded batch to the core. Returns whether the core has work now. Raises the error that
        ended the producer."""
        if self.core.fatal is not None:
            raise self.core.fatal
        if self.loop.error is not None:
            raise MusterError(f"the producer failed: {self.loop.error!r}") from self.loop.error
        news = self.core.append(record, now)
        if news:
            self.loop.wakeup()
        return news

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record accepted so far is settled.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
            ClosedError: the producer was closed without waiting for it.
        """
        done = self.core.begin_flush()
        try:
            if not await self.loop.wait_for(lambda: done() or self._in_haste, timeout_ms):
                raise KafkaTimeoutError(f"not all records were acknowledged within {timeout_ms} ms")
            if not done():
                raise ClosedError("the producer was closed before all records were acknowledged")
        finally:
            self.core.end_flush()

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic, waiting for it for `max_block_ms`."""
        check_topic(topic)
        metadata = self.metadata
        metadata.resume()
        self.core.look_up(topic, self.driver.now())
        limit = self.config.max_block_ms
        known = await self.loop.wait_for(
            lambda: metadata.partition_count(topic) is not None or bool(metadata.refusal), limit
        )
        if metadata.refusal is not None:
            raise metadata.refusal
        if not known:
            why = self.metadata.last_error or self.metadata.topic_error(topic).name
            raise KafkaTimeoutError(f"topic {topic} was not found within max_block_ms ({limit}): {why}")
        return self.metadata.partition_infos(topic)

    def hurry(self) -> None:
        """Make a `close` in progress end without waiting."""
        self._in_haste = True
        self.loop.wakeup()
