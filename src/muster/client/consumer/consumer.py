"""`Consumer`: the blocking consumer.

It runs an `AsyncConsumer` in a loop thread. Each call is passed to that thread, and the caller waits for it.
Heartbeats, fetches and joins continue in the loop thread while the caller does other things. The user's callbacks run
in the caller's thread, inside the call, as in Kafka's own client. Records are passed over in batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from muster.client.consumer.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS, AsyncConsumer, OffsetsToCommit
from muster.client.consumer.blocking import BlockingReader
from muster.client.consumer.listener import RebalanceListener
from muster.client.consumer.pump import CommitCallback
from muster.client.core.checks import check_timeout
from muster.client.hooks import ConsumerHooks
from muster.client.metrics import Metrics
from muster.client.net.loop import LoopThread, in_caller
from muster.client.serde import GivenDeserializer
from muster.errors import ClosedError
from muster.model import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
)

if TYPE_CHECKING:
    from muster.client.typed_settings import ConsumerKeywords


class Consumer(BlockingReader):
    """Reads records, alone or as a member of a group. `AsyncConsumer` documents each method.

        with Consumer(bootstrap_servers="localhost:9092", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    One thread uses it at a time, except for `close` and `wakeup`, which end another thread's poll. After a fork the
    child process must create its own consumer.
    """

    _consumer: AsyncConsumer

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        /,
        *,
        key_deserializer: GivenDeserializer | None = None,
        value_deserializer: GivenDeserializer | None = None,
        hooks: Sequence[ConsumerHooks] = (),
        **more: Unpack[ConsumerKeywords],
    ) -> None:
        self._consumer = AsyncConsumer(
            settings,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            hooks=hooks,
            **more,
        )
        self._consumer._pump.call_user = in_caller
        self._consumer._has_farewell = True
        self._handout = self._consumer._handout
        thread = LoopThread("muster-consumer", self._consumer._hang_up)
        super().__init__(thread, self._handout.take_back)

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, call the listener, leave the group, close the connections.

        Calling `close` means that all records handed out are handled: they are committed. Records that iteration has
        not reached are not. If a thread other than the one that got the last records calls `close`, or an exception
        leaves `with`, these are not committed.
        """
        self._close(check_timeout(timeout_ms), handled=True)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics whose whole name matches the pattern; the group assigns the
        partitions."""
        self._do(self._consumer.subscribe, topics, pattern=pattern, listener=listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions manually; replaces an earlier manual assignment."""
        self._do(self._consumer.assign, partitions)

    def unsubscribe(self) -> None:
        """Give up all partitions, call the listener, and leave the group."""
        self._run(self._consumer.unsubscribe)

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern those that match it now."""
        return self._do(self._consumer.subscription)

    # --- reading -----------------------------------------------------------------------------------------------------

    def __next__(self) -> ConsumerRecord:
        if self._reading.returned and not self._thread.forked:
            record = self._handout.next()
            if record is not None:
                return record
        return self._next_of_more()

    def _next_of_more(self) -> ConsumerRecord:
        while True:
            try:
                self._read(self._consumer._fill)
            except ClosedError:
                raise StopIteration from None
            record = self._handout.next()
            if record is not None:
                return record

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many records are left to read; None before the first fetch."""
        return self._do(self._consumer.current_lag, partition)

    # --- committing --------------------------------------------------------------------------------------------------

    def commit_async(self, offsets: OffsetsToCommit | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting and without retries."""
        self._do(self._consumer.commit_async, offsets, callback)

    def store_offsets(self, offsets: OffsetsToCommit | ConsumerRecord) -> None:
        """Store offsets for the next commit, or the offset after a handled record: with
        `enable_auto_offset_store` off nothing else is committed."""
        self._consumer.store_offsets(offsets)  # called for each record: not in the loop's thread

    def handled(self, *, handed_out: bool = False) -> dict[TopicPartition, int]:
        """The positions after the records that the caller has handled, as a commit would write them."""
        return self._do(self._consumer.handled, handed_out=handed_out)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return self._run(self._consumer.committed, partitions, timeout_ms)

    # --- asking ------------------------------------------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The oldest offsets that can be read."""
        return self._run(self._consumer.beginning_offsets, partitions, timeout_ms)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets of the next records to be written."""
        return self._run(self._consumer.end_offsets, partitions, timeout_ms)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offsets at or after timestamps (milliseconds since the epoch)."""
        return self._run(self._consumer.offsets_for_times, timestamps, timeout_ms)

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, and where they are."""
        return self._run(self._consumer.partitions_for, topic, timeout_ms)

    def list_topics(self, timeout_ms: int | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions."""
        return self._run(self._consumer.list_topics, timeout_ms)

    def metrics(self) -> Metrics:
        """What this consumer has done, by Kafka's names (docs/reference/metrics.md)."""
        return self._do(self._consumer.metrics)

    # --- the group ---------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """This consumer's current member id and generation."""
        return self._do(self._consumer.group_metadata)

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Trigger a rebalance of the group at the next poll (KIP-568)."""
        self._do(self._consumer.enforce_rebalance, reason)
