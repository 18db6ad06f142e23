"""`BatchProducer`: writes encoded batches, for a caller that has many records at once.

It is a face of the same core as `Producer`: sequences, retries and the choice of a partition are the same. It does not
report individual records: the next call raises the first failure, which ends the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.produce.accumulator import OutgoingBatch
from muster.client.core.produce.transactions import ProducerTransactions, TransactionCall
from muster.client.net import forks
from muster.client.net.loop import LoopThread
from muster.client.producer.producer_loop import ProducerLoop
from muster.errors import ClosedError, MusterError
from muster.model import GroupMetadata, TopicPartition

_CLOSE_TIMEOUT_MS = 1_000


class NotWrittenError(MusterError):
    """Records were not written, or it is unknown whether they were. `reason` is the first failure."""

    def __init__(self, partition: TopicPartition, reason: MusterError) -> None:
        target = partition.topic if partition.partition < 0 else str(partition)
        super().__init__(f"records for {target} were not written: {reason}")
        self.reason = reason


class _Engine(ProducerLoop):
    """Counts written records and keeps the first failure."""

    def __init__(self, config: ProducerConfig) -> None:
        super().__init__(config)
        self.failure: NotWrittenError | None = None

    def _report_outcomes(self) -> None:
        for completion in self.core.take_events():
            if completion.error is not None and self.failure is None:
                reason = next(iter(completion.record_errors.values()), completion.error)
                self.failure = NotWrittenError(completion.partition, reason)

    def _ends_flush(self) -> bool:
        return self.failure is not None

    async def begin(self) -> None:
        """Begin a transaction."""
        self.transactions.begin()
        self.failure = None

    async def end(self, start: Callable[[ProducerTransactions], TransactionCall], timeout_ms: int | None) -> None:
        """Commit or abort; a failure ends with its transaction."""
        await self.complete(start, timeout_ms)
        self.failure = None

    def check(self) -> None:
        """Raise the first failure."""
        if self.failure is not None:
            raise self.failure from self.failure.reason

    async def put(self, batches: Sequence[OutgoingBatch]) -> None:
        """Accept batches, waiting for room as long as it takes: whatever occupies it is written, or given up
        after `delivery_timeout_ms`."""
        for batch in batches:
            if (error := self.core.check_size(batch.topic, batch.size)) is not None:
                raise NotWrittenError(TopicPartition(batch.topic, -1), error)
            await self._room(batch.size)
            self.check()
            self.append(batch, self.driver.now())

    async def _room(self, size: int) -> None:
        core = self.core
        if core.has_room(size):
            return
        core.room_wanted = True
        try:
            await self.loop.wait_for(lambda: self.failure is not None or core.has_room(size))
        finally:
            core.room_wanted = False

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything is written, or something failed."""
        try:
            await super().flush(timeout_ms)
        except ClosedError:
            self.check()
            raise
        self.check()


class BatchProducer(forks.NotPicklable):
    """Writes batches from one thread; its own thread sends them concurrently. Settings are those of `ProducerConfig`.

    `linger_ms` has no effect: each batch is sent as it comes. `max_block_ms` bounds the wait for a topic, but not the
    wait for room in `buffer_memory`. With a `transactional_id`, its transactions are those of `Producer`; after a
    failure, `abort_transaction` makes it usable again.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self._engine = _Engine(config)
        self._thread = LoopThread("muster-batches", self._engine.loop.close)
        self._started = False

    @property
    def usable(self) -> bool:
        """Whether the producer is open, has no failure, and is in the process that created it."""
        return self._engine.failure is None and not self._thread.closed and not self._thread.forked

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; waits at most `max_block_ms` for the topic.

        Raises:
            KafkaTimeoutError: no broker knew the topic in time.
        """
        known = self._engine.metadata.partition_count(topic)
        return known or len(self._call(self._engine.partitions_for, topic))

    def put(self, batches: Sequence[OutgoingBatch]) -> None:
        """Write batches, in this order for each partition. Returns when all have found room in `buffer_memory`.

        Raises:
            NotWrittenError: a batch, of this call or of an earlier one, was given up.
            MusterError: the producer cannot continue.
        """
        self._call(self._engine.put, batches)

    def flush(self) -> None:
        """Wait until everything is written. Raises as `put` does."""
        self._call(self._engine.flush)

    def init_transactions(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.init_transactions`."""
        self._call(self._engine.complete, ProducerTransactions.initialize, timeout_ms)

    def begin_transaction(self) -> None:
        """See `Producer.begin_transaction`."""
        self._call(self._engine.begin)

    def commit_transaction(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.commit_transaction`."""
        self._call(self._engine.end, ProducerTransactions.commit, timeout_ms)

    def abort_transaction(self, *, timeout_ms: int | None = None) -> None:
        """See `Producer.abort_transaction`."""
        self._call(self._engine.end, ProducerTransactions.abort, timeout_ms)

    def send_offsets_to_transaction(
        self, offsets: Mapping[Any, Any], group_metadata: GroupMetadata, *, timeout_ms: int | None = None
    ) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        self._call(self._engine.send_offsets, offsets, group_metadata, timeout_ms)

    def close(self) -> None:
        """Close without waiting for unwritten batches. Safe to call twice. An open transaction is left to its
        timeout."""
        self._thread.close(_CLOSE_TIMEOUT_MS)

    def _call(self, function: Any, *arguments: Any) -> Any:
        if not self._started:
            self._thread.call(self._engine.loop.start)
            self._started = True
        return self._thread.call(function, *arguments)
