"""What the consumers of schemes 1 and 2 share: a member of a group gets partitions, and an `AsyncConsumer` reads them.

The inner consumer has no group. The member assigns its partitions manually, so records are read by the same core as in
every consumer. Subclasses implement the member and its connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from warnings import warn

from muster.client.consumer.async_consumer import (
    DEFAULT_CLOSE_TIMEOUT_MS,
    AsyncConsumer,
    OffsetsToCommit,
    has_ended_well,
)
from muster.client.consumer.handout import Records
from muster.client.consumer.listener import RebalanceListener
from muster.client.consumer.pump import call_here
from muster.client.core.checks import check_timeout
from muster.client.net import forks
from muster.clock import monotonic_ms
from muster.errors import ClosedError, IllegalStateError, MusterError, WakeupError
from muster.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_listener_of: ContextVar[AsyncAssignedReader | None] = ContextVar("muster_listener_of", default=None)
"""The consumer whose listener is running."""


class AsyncAssignedReader(forks.NotPicklable):
    """A consumer for asyncio that reads the partitions of a group's member."""

    def __init__(self) -> None:
        self._reader: AsyncConsumer | None = None
        self._news = asyncio.Event()
        """Set when there is news for a poll: a new reader, an error, the close."""
        self._errors: deque[Exception] = deque()
        self._defect: MusterError | None = None
        """The error that ended this consumer."""
        self._listener: RebalanceListener | None = None
        self._listening: asyncio.Task[None] | None = None
        """The running call of the listener."""
        self._call_user: Callable[..., Awaitable[None]] = call_here
        self._from_listener = asyncio.Lock()
        """Held during calls that the listener makes."""
        self._is_held = False
        """Whether the listener is being notified of new partitions. No records are returned then: it may seek."""
        self._last_task: asyncio.Task[Any] | None = None
        """The task that got the last records."""
        self._woken = False
        self._polling = False
        self._closing = False
        self._gone = asyncio.Event()
        """Set once it is closed."""
        self._is_last_handled = False
        """At the close: whether the last records count as processed."""
        self._forks = forks.count

    # --- for subclasses ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start working in the running event loop."""
        raise NotImplementedError

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        raise NotImplementedError

    @property
    def _has_begun(self) -> bool:
        """Whether there is something to close."""
        raise NotImplementedError

    @property
    def _is_subscribed(self) -> bool:
        raise NotImplementedError

    def _seen(self) -> None:
        """The user has seen an error: the member may try again."""
        raise NotImplementedError

    async def _end(self, timeout_ms: int) -> None:
        """Commit if auto commit is on, leave the group, and close the connections, including the reader's."""
        raise NotImplementedError

    async def _drop(self) -> None:
        """Close the connections of the member."""
        raise NotImplementedError

    # --- life --------------------------------------------------------------------------------------------------------

    async def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Stop fetching, commit if auto commit is on, and leave the group.

        As with `AsyncConsumer`, the last records then count as processed, unless the task that has them is still
        running or has failed.
        """
        await self._close(check_timeout(timeout_ms), handled=has_ended_well(self._last_task))

    async def _close(self, timeout_ms: int, *, handled: bool) -> bool:
        """Close. Returns False if the listener calls it during the close: the consumer is not closed yet."""
        if self._has_begun and self._forks != forks.count:
            return True
        if self._closing:
            if not self._is_in_listener:
                await self._gone.wait()
            return self._gone.is_set()
        self._closing, self._is_last_handled = True, handled
        self._wake_poll()
        try:
            await self._end(timeout_ms)
            if self._listening is not None and not self._is_in_listener:
                await asyncio.wait([self._listening])
        finally:
            self._gone.set()
        return True

    async def _hang_up(self) -> None:
        """End a consumer that was dropped, or whose close was interrupted, without a commit."""
        if not self._closing:
            self._closing = True
            await self._drop()
        if self._reader is not None:
            await self._reader._close_abruptly()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(DEFAULT_CLOSE_TIMEOUT_MS, handled=kind is None and has_ended_well(self._last_task))

    def __del__(self) -> None:
        if hasattr(self, "_forks") and self._has_begun and not self._closing and self._forks == forks.count:
            warn(f"an {type(self).__name__} was dropped without close()", ResourceWarning, stacklevel=2)

    def _check_open(self) -> None:
        if self._closing and not (self._is_in_listener and not self._gone.is_set()):
            raise ClosedError("the consumer is closed")
        if self._forks != forks.count:
            if self._has_begun:
                raise forks.orphaned("consumer")
            self._forks = forks.count

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait at most `timeout_ms` for records, and return up to `max_poll_records` of them, or none.

        When it is called again, the records of the last call count as processed.

        Raises:
            RebalanceFailedError: in scheme 1, another owner did not release its partitions in any of the attempts.
                Polling again starts over.
            WakeupError: `wakeup` was called.
            KafkaError: reading failed, see `AsyncConsumer.poll`; or the group cannot be joined.
        """
        deadline = monotonic_ms() + check_timeout(timeout_ms)

        async def read(reader: AsyncConsumer, left_ms: int) -> Records:
            return await reader.poll(left_ms, max_records=max_records)

        return await self._read(read, deadline) or {}

    async def poll_arrow(
        self, timeout_ms: int = 1_000, *, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """Like `poll`, but returns Arrow tables: see `AsyncConsumer.poll_arrow`."""
        deadline = monotonic_ms() + check_timeout(timeout_ms)

        async def read(reader: AsyncConsumer, left_ms: int) -> dict[TopicPartition, pa.Table]:
            return await reader.poll_arrow(left_ms, columns=columns)

        return await self._read(read, deadline) or {}

    async def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """Like `poll`, but by default it does not wait."""
        return await self.poll(timeout_ms, max_records=max_records)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self._next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def _next(self) -> ConsumerRecord:
        """The next record, however long it takes. Raises ClosedError at the end."""

        async def read(reader: AsyncConsumer, left_ms: int) -> ConsumerRecord:
            return await anext(reader)

        while True:
            record: ConsumerRecord | None = await self._read(read, None)
            if record is not None:
                return record

    def _take_back(self) -> None:
        """The caller was interrupted before it got the last records: return them again."""
        if self._reader is not None:
            self._reader._handout.take_back()

    async def _read(self, read: Callable[[AsyncConsumer, int], Any], deadline: int | None) -> Any:
        """Call `read` within the remaining time; None if there is no reader by then."""
        if not self._is_subscribed:
            raise IllegalStateError("subscribe() before poll()")
        if self._is_in_listener:
            raise IllegalStateError("a listener that polls would wait for itself")
        if self._polling:
            raise IllegalStateError("another poll of this consumer is under way")
        self._polling = True
        try:
            await self.start()
            self._last_task = asyncio.current_task()
            while True:
                self._raise_pending()
                self._news.clear()
                left_ms = 60_000 if deadline is None else max(0, deadline - monotonic_ms())
                if self._reader is not None and not self._is_held:
                    with suppress(WakeupError):
                        return await read(self._reader, left_ms)
                elif not await self._wait_for_news(left_ms) and deadline is not None:
                    return None
        finally:
            self._polling = False

    async def _wait_for_news(self, within_ms: int) -> bool:
        try:
            async with asyncio.timeout(within_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _raise_pending(self) -> None:
        if self._closing:
            raise ClosedError("the consumer is closed")
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup() was called")
        if self._errors:
            self._seen()
            raise self._errors.popleft()
        if self._defect is not None:
            raise self._defect

    def wakeup(self) -> None:
        """Make the current poll, or if none is running the next one, raise a WakeupError. No records are lost."""
        self._woken = True
        self._wake_poll()

    def _wake_poll(self) -> None:
        self._news.set()
        if self._reader is not None and self._polling:
            self._reader.wakeup()

    def _fail(self, error: Exception) -> None:
        """Make the next poll raise an error."""
        self._errors.append(error)
        self._wake_poll()

    # --- the listener ------------------------------------------------------------------------------------------------

    @property
    def _is_in_listener(self) -> bool:
        """Whether the running call was made by the listener."""
        return self._listening is not None and _listener_of.get() is self

    async def _notify_listener(self, method: str, partitions: Iterable[TopicPartition]) -> None:
        """Call a method of the listener, and wait until it has returned. The next poll raises its exception."""
        if self._listener is None or self._listening is not None:
            return  # a second call: the listener is closing the consumer
        call = self._call_listener(getattr(self._listener, method), sorted(partitions))
        self._listening = asyncio.get_running_loop().create_task(call)
        await asyncio.wait([self._listening])  # if a close cancels this, the listener continues
        async with self._from_listener:
            pass

    async def _call_listener(self, method: Callable[..., Any], partitions: list[TopicPartition]) -> None:
        _listener_of.set(self)
        try:
            await self._call_user(method, partitions)
        except Exception as error:
            self._fail(error)
        finally:
            self._listening = None

    # --- where to read -----------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read from an offset, until the next rebalance. Raises IllegalStateError if the partition is not assigned."""
        self._assigned_reader(partition).seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the oldest record; by default in all assigned partitions."""
        for partition in self.assignment() if partitions is None else list(partitions):
            self._assigned_reader(partition).seek_to_beginning([partition])

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read only records written from now on; by default in all assigned partitions."""
        for partition in self.assignment() if partitions is None else list(partitions):
            self._assigned_reader(partition).seek_to_end([partition])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume` or the next rebalance. They stay assigned."""
        for partition in partitions:
            self._assigned_reader(partition).pause([partition])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        for partition in partitions:
            self._assigned_reader(partition).resume([partition])

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return set() if self._reader is None else self._reader.paused()

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits if it must be looked up first."""
        await self.start()
        while True:
            # The reader is woken for `poll` when there is news; that must not interrupt the next query.
            with suppress(WakeupError):
                return await self._assigned_reader(partition).position(partition, timeout_ms)

    def _assigned_reader(self, partition: TopicPartition) -> AsyncConsumer:
        self._check_open()
        if self._reader is None or partition not in self.assignment():
            raise IllegalStateError(f"{partition} is not assigned to this consumer")
        return self._reader

    # --- committing --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets, by default the caller's position in every partition."""
        raise NotImplementedError

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        raise NotImplementedError

    def _to_commit(self, offsets: OffsetsToCommit | None) -> dict[TopicPartition, int]:
        if offsets is None:
            return self._positions(handed_out=True)
        positions = {
            TopicPartition(*partition): place if isinstance(place, int) else place.offset
            for partition, place in offsets.items()
        }
        self._note_committed(positions)
        return positions

    def _positions(self, *, handed_out: bool = False) -> dict[TopicPartition, int]:
        """The positions after the records that the caller has processed, in the partitions that are read now."""
        if self._reader is None:
            return {}
        read = self.assignment()
        handled = self._reader.handled(handed_out=handed_out)
        return {partition: offset for partition, offset in handled.items() if partition in read}

    def _note_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The caller is committing these offsets, or has: a later auto commit must not reset them."""
        if self._reader is not None:
            self._reader._handout.handled_up_to({p: OffsetAndMetadata(offset) for p, offset in offsets.items()})

    def _positions_at_stop(self) -> dict[TopicPartition, int]:
        """`_positions` when fetching stops for good, or for a rebalance."""
        return self._positions(handed_out=self._closing and self._is_last_handled)

    def _read_from(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Read these partitions and no others, from these offsets; None: `auto_offset_reset` says from where."""
        assert self._reader is not None
        self._reader.assign(partitions)
        for partition, offset in partitions.items():
            if offset is not None:
                self._reader.seek(partition, offset)
