"""A producer's core in an event loop, with what every face needs: accepting records, flushing, transactions, a topic's
partitions."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.checks import check_offsets, check_timeout, check_topic
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import Outgoing
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.producer import ProducerCore
from muster.client.core.produce.transactions import ProducerTransactions, TransactionCall
from muster.client.net.driver import CoreLoop, Driver
from muster.errors import ClosedError, ConfigError, IllegalArgumentError, KafkaTimeoutError, MusterError
from muster.model import GroupMetadata, PartitionInfo

log = logging.getLogger("muster.client.producer")


class ProducerLoop:
    """A core and its driver. Belongs to the event loop; a face handles the outcomes (`_report_outcomes`)."""

    def __init__(self, config: ProducerConfig, partitioner: Partitioner | None = None) -> None:
        self.config = config
        self.metadata = ClusterMetadata(config, on_demand=True, seed=random.getrandbits(31))
        self.core = ProducerCore(config, self.metadata, partitioner, seed=random.getrandbits(31))
        self.driver = Driver(config, self.metadata)
        self.loop = CoreLoop(self.driver, [self.metadata, self.core], lambda now: self._on_turn())
        self._is_hurried = False

    def _report_outcomes(self) -> None:
        """Take the core's events; called after each round."""
        raise NotImplementedError

    def _on_turn(self) -> None:
        coordination = self.core.coordination
        if coordination is not None and coordination.events:
            for event in coordination.events.take():
                self.loop.attend(event, log)
        self._report_outcomes()

    def _ends_flush(self) -> bool:
        """Whether a flush ends although records are not settled."""
        return self._is_hurried

    def append(self, record: Outgoing, now: int) -> bool:
        """Pass a record or an encoded batch to the core. Returns whether the core has work now. Raises the error that
        ended the producer."""
        if self.core.fatal is not None:
            raise self.core.fatal
        if self.loop.error is not None:
            raise MusterError(f"the producer failed: {self.loop.error!r}") from self.loop.error
        needs_poll = self.core.append(record, now)
        if needs_poll:
            self.loop.wakeup()
        return needs_poll

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record accepted so far is settled.

        Raises:
            KafkaTimeoutError: it took longer than `timeout_ms`.
            ClosedError: the producer was closed without waiting for it.
        """
        done = self.core.begin_flush()
        try:
            if not await self.loop.wait_for(lambda: done() or self._ends_flush(), timeout_ms):
                raise KafkaTimeoutError(f"not all records were acknowledged within {timeout_ms} ms")
            if not done():
                raise ClosedError("the producer was closed before all records were acknowledged")
        finally:
            self.core.end_flush()

    # --- transactions ------------------------------------------------------------------------------------------------

    @property
    def transactions(self) -> ProducerTransactions:
        """The producer's transactions.

        Raises:
            ConfigError: it has none.
        """
        if self.core.transactions is None:
            raise ConfigError("transactional_id is not set: transactions need it")
        return self.core.transactions

    async def complete(self, start: Callable[[ProducerTransactions], TransactionCall], timeout_ms: int | None) -> None:
        """Start a call, or join one that is running, and wait for it to finish; None is `max_block_ms`.

        Raises:
            KafkaTimeoutError: the call has not finished in time. It continues; calling again waits for it.
            MusterError: it failed.
        """
        limit = self.config.max_block_ms if timeout_ms is None else check_timeout(timeout_ms)
        call = start(self.transactions)
        if not await self.loop.wait_for(lambda: call.done or self._is_hurried, limit):
            coordination = self.core.coordination
            why = call.refusal or (coordination and coordination.trouble) or self.metadata.last_error
            advice = "abort to give up" if call.refusal else "call it again to wait longer"
            raise KafkaTimeoutError(f"{call.name} did not end within {limit} ms{f': {why}' if why else ''}; {advice}")
        if not call.done:
            raise ClosedError(f"the producer was closed during {call.name}")
        call.result()

    async def send_offsets(
        self, offsets: Mapping[Any, Any], group_metadata: GroupMetadata, timeout_ms: int | None
    ) -> None:
        """Commit offsets in the transaction."""
        if not isinstance(group_metadata, GroupMetadata):
            raise IllegalArgumentError(f"{group_metadata!r} is not what consumer.group_metadata() returns")
        checked = check_offsets(offsets)
        await self.complete(lambda current: current.send_offsets(checked, group_metadata), timeout_ms)

    async def end_transactions(self) -> None:
        """Abort an open transaction, and wait for the last one to end, until `hurry` is called."""
        current = self.core.transactions
        if current is not None:
            if current.is_open:
                current.abort()
            await self.loop.wait_for(lambda: not current.is_ending or self._is_hurried)

    # --- topics ------------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic; waits at most `max_block_ms` for the topic."""
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
        self._is_hurried = True
        self.loop.wakeup()
