"""What the blocking consumers of schemes 1 and 2 share: an `AsyncAssignedReader` on a loop thread."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from muster.client.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS, OffsetsToCommit
from muster.client.blocking import BlockingReader
from muster.client.handout import Records
from muster.client.loop import LoopThread
from muster.errors import ClosedError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition
from muster.zookeeper.assigned_reader import AsyncAssignedReader


class AssignedReader(BlockingReader):
    """A consumer for code that blocks. It takes part in its group from the first call that waits until `close`, in a
    thread of its own. One thread uses it at a time, except for `close` and `wakeup`."""

    _consumer: AsyncAssignedReader

    def __init__(self, consumer: AsyncAssignedReader, thread_name: str) -> None:
        self._consumer = consumer
        super().__init__(LoopThread(thread_name, consumer._hang_up), consumer._take_back)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect. Every method that waits does this by itself."""
        self._run(self._consumer.start)

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, and leave the group. Records handed out to this thread are handled."""
        self._close(timeout_ms, handled=True)

    # --- reading -----------------------------------------------------------------------------------------------------

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._do(self._consumer.assignment)

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
        """Commit offsets, by default the caller's position in every partition."""
        self._run(self._consumer.commit, offsets, timeout_ms)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return self._run(self._consumer.committed, partitions)
