"""`WatcherConsumer`: a consumer of scheme 1 for code that blocks. It is an `AsyncWatcherConsumer` on a loop thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from muster.client.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS
from muster.client.blocking import BlockingReader
from muster.client.handout import Records
from muster.client.loop import LoopThread
from muster.errors import ClosedError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from muster.zookeeper.async_watcher_consumer import AsyncWatcherConsumer, OffsetsToCommit, Topics
from muster.zookeeper.watcher_states import WatcherState


class WatcherConsumer(BlockingReader):
    """Reads records as a member of a group that ZooKeeper coordinates. `AsyncWatcherConsumer` says what it promises,
    and what each method does.

        with WatcherConsumer(zookeeper_connect="localhost:2181", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    It takes part in the group from the first call that waits until `close`, in a thread of its own. One thread uses it
    at a time, except for `close` and `wakeup`.
    """

    _consumer: AsyncWatcherConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._consumer = AsyncWatcherConsumer(settings, **more)
        self.consumer_id = self._consumer.consumer_id
        super().__init__(LoopThread("muster-watcher", self._consumer._hang_up), self._consumer._take_back)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to ZooKeeper. Every method that waits does this by itself."""
        self._run(self._consumer.start)

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, and leave the group. Records handed out to this thread are handled."""
        self._close(timeout_ms, handled=True)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics | None = None,
        *,
        pattern: str | None = None,
        black_list: str | None = None,
        num_streams: int = 1,
    ) -> None:
        """Take part in the group, for topics, for all topics whose whole name a pattern matches, or for all others."""
        self._do(self._consumer.subscribe, topics, pattern=pattern, black_list=black_list, num_streams=num_streams)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._do(self._consumer.assignment)

    def streams(self) -> dict[str, set[TopicPartition]]:
        """The partitions of each stream that has some now."""
        return self._do(self._consumer.streams)

    @property
    def state(self) -> WatcherState:
        """Where it stands in its group."""
        return self._consumer.state

    # --- reading -----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records, `timeout_ms` at most, and return up to `max_poll_records` of them, or none."""
        return self._read(self._consumer.poll, timeout_ms, max_records=max_records)

    def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait unless asked to."""
        return self.poll(timeout_ms, max_records=max_records)

    def wakeup(self) -> None:
        """Have the poll under way raise a WakeupError, or else the next one. It may be called from any thread and from
        a signal handler."""
        with suppress(ClosedError):
            self._thread.call_soon(self._consumer.wakeup)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        try:
            return self._read(self._consumer._next)
        except ClosedError:
            raise StopIteration from None

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read on from an offset, until the next rebalance."""
        self._do(self._consumer.seek, partition, offset)

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits while it has to be looked up."""
        return self._run(self._consumer.position, partition, timeout_ms)

    # --- committing --------------------------------------------------------------------------------------------------

    def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Write offsets to ZooKeeper, by default the caller's position in every partition."""
        self._run(self._consumer.commit, offsets, timeout_ms)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return self._run(self._consumer.committed, partitions)
