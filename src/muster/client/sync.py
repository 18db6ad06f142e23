"""`Consumer`: the consumer for code that blocks.

It is an `AsyncConsumer` on a loop thread. A call is handed to that thread and waited for; heartbeats, fetches and
joins go on there whatever the caller does. The user's callbacks run in the caller's thread, inside the call, as in
Kafka's own client: the loop thread hands them back through the queue that the caller waits at. Records come over a
batch at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from muster.client.aio import (
    DEFAULT_CLOSE_TIMEOUT_MS,
    AsyncConsumer,
    CommitCallback,
    OffsetsToCommit,
    Records,
)
from muster.client.listener import RebalanceListener
from muster.client.loop import LoopThread
from muster.errors import ClosedError, IllegalStateError
from muster.model import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_Answer = asyncio.Future[None]
_UserCall = tuple[Callable[..., Any], tuple[Any, ...], _Answer]
_ToCaller = SimpleQueue[_UserCall | asyncio.Task[Any]]

_caller: ContextVar[_ToCaller] = ContextVar("muster_caller")
"""The queue at which the thread waits that made the call under way."""


class Consumer:
    """Reads records, alone or as a member of a group. `AsyncConsumer` says what each method does.

        with Consumer(bootstrap_servers="localhost:9092", group_id="delays") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    One thread uses it at a time, but for `close`, which ends another thread's call. After a fork the child makes a
    consumer of its own.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._consumer = AsyncConsumer(settings, **more)
        self._consumer._call_user = _call_in_caller
        self._thread = LoopThread("muster-consumer")
        self._kept: Records = {}
        self._kept_tables: dict[TopicPartition, pa.Table] = {}

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to turn. Every method that waits does this by itself."""
        self._run(self._consumer.start())

    def close(self, timeout_ms: int = DEFAULT_CLOSE_TIMEOUT_MS) -> None:
        """Commit if auto commit is on, tell the listener, leave the group, close the connections."""
        if self._consumer._closed:
            return
        try:
            self._run(self._consumer.close(timeout_ms))
        finally:
            self._thread.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Have the group assign partitions of topics, or of all topics whose whole name the pattern matches."""
        self._do(self._consumer.subscribe, topics, pattern=pattern, listener=listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions by hand, in place of those assigned by hand before."""
        self._do(self._consumer.assign, partitions)

    def unsubscribe(self) -> None:
        """Give up all partitions, by telling the listener, and leave the group."""
        self._run(self._consumer.unsubscribe())

    def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern those that match it now."""
        return self._do(self._consumer.subscription)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are this consumer's now."""
        return self._do(self._consumer.assignment)

    # --- reading -----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records, `timeout_ms` at most, and return up to `max_poll_records` of them, or none."""
        if self._kept:
            kept, self._kept = self._kept, {}
            return kept
        return self._run(self._consumer.poll(timeout_ms, max_records=max_records), self._keep)

    def poll_arrow(
        self, timeout_ms: int = 1_000, *, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """`poll` that makes no object for each record: all that has arrived, as one `pyarrow.Table` for each partition.

        `AsyncConsumer.poll_arrow` says what the columns are, and what has to be installed.
        """
        if self._kept_tables:
            kept, self._kept_tables = self._kept_tables, {}
            return kept
        return self._run(self._consumer.poll_arrow(timeout_ms, columns=columns), self._keep_tables)

    def _keep_tables(self, tables: dict[TopicPartition, pa.Table]) -> None:
        self._kept_tables = tables

    def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait unless asked to."""
        return self.poll(timeout_ms, max_records=max_records)

    def _keep(self, records: Records) -> None:
        """The caller was interrupted while these came over: the next poll returns them."""
        self._kept = records

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        buffer = self._consumer._buffer
        while not buffer:
            try:
                self._run(self._consumer._fill_buffer())
            except ClosedError:
                raise StopIteration from None
            buffer = self._consumer._buffer
        return buffer.popleft()

    # --- where to read -----------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Read on from an offset."""
        self._do(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read the oldest records there are; of all assigned partitions by default."""
        self._do(self._consumer.seek_to_beginning, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read what comes from now on; of all assigned partitions by default."""
        self._do(self._consumer.seek_to_end, partitions)

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits while it has to be looked up."""
        return self._run(self._consumer.position(partition, timeout_ms))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until they are resumed."""
        self._do(self._consumer.pause, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self._do(self._consumer.resume, partitions)

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return self._do(self._consumer.paused)

    def lag(self, partition: TopicPartition) -> int | None:
        """How many records are still to be read, None before the first fetch."""
        return self._do(self._consumer.lag, partition)

    # --- committing --------------------------------------------------------------------------------------------------

    def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets, by default where the user stands in all partitions."""
        self._run(self._consumer.commit(offsets, timeout_ms))

    def commit_async(self, offsets: OffsetsToCommit | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting, one try."""
        self._do(self._consumer.commit_async, offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for a partition of which nothing is."""
        return self._run(self._consumer.committed(partitions, timeout_ms))

    # --- asking ------------------------------------------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The oldest offsets that can be read."""
        return self._run(self._consumer.beginning_offsets(partitions, timeout_ms))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that the next records will get."""
        return self._run(self._consumer.end_offsets(partitions, timeout_ms))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offsets at or after timestamps (milliseconds since the epoch)."""
        return self._run(self._consumer.offsets_for_times(timestamps, timeout_ms))

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> list[PartitionInfo]:
        """The partitions of a topic, and where they are."""
        return self._run(self._consumer.partitions_for(topic, timeout_ms))

    def list_topics(self, timeout_ms: int | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that this client may see, with their partitions."""
        return self._run(self._consumer.list_topics(timeout_ms))

    # --- the group ---------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata:
        """Which member of which generation this consumer is now."""
        return self._do(self._consumer.group_metadata)

    def enforce_rebalance(self, reason: str = "rebalance enforced by user") -> None:
        """Have the group rebalanced at the next poll (KIP-568)."""
        self._do(self._consumer.enforce_rebalance, reason)

    # --- to the loop thread and back ---------------------------------------------------------------------------------

    def _do(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call something that does not wait, in the loop's thread."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T], keep: Callable[[T], None] = lambda _result: None) -> T:
        """Run a coroutine in the loop's thread; its calls to the user's code run here meanwhile.

        The race that `keep` is for: Ctrl-C ends the wait just as the coroutine returns records. They have left the
        core, so they must not be dropped.
        """
        to_caller: _ToCaller = SimpleQueue()
        context = copy_context()
        context.run(_caller.set, to_caller)
        began: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work, context=context)
            began.append(task)
            task.add_done_callback(to_caller.put)

        try:
            self._thread.call_soon(begin)
        except BaseException:
            work.close()
            raise
        try:
            result: T = _serve_until_done(to_caller, self._thread)
            return result
        except _Interrupted as interruption:
            self._thread.call_soon(lambda: began[0].cancel())
            while not isinstance(left := to_caller.get(), asyncio.Task):
                self._thread.call_soon(left[2].cancel)
            if not left.cancelled() and left.exception() is None:
                keep(left.result())
            raise interruption.cause from None


class _Interrupted(BaseException):
    """The wait was ended by something that is not the work's outcome."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def _serve_until_done(to_caller: _ToCaller, thread: LoopThread) -> Any:
    while True:
        try:
            found = to_caller.get()
        except BaseException as error:
            raise _Interrupted(error) from None
        if isinstance(found, asyncio.Task):
            if found.cancelled():
                raise ClosedError("the consumer was closed during the call")
            return found.result()
        function, arguments, answer = found
        try:
            result = function(*arguments)
            if asyncio.iscoroutine(result):
                result.close()
                raise IllegalStateError("a Consumer's callbacks are plain functions; AsyncConsumer takes coroutines")
        except Exception as error:
            thread.call_soon(_fail, answer, error)
        except BaseException as error:
            raise _Interrupted(error) from None
        else:
            thread.call_soon(_succeed, answer)


def _fail(answer: _Answer, error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: _Answer) -> None:
    if not answer.done():
        answer.set_result(None)


async def _call_in_caller(function: Callable[..., Any], *arguments: Any) -> None:
    answer: _Answer = asyncio.get_running_loop().create_future()
    _caller.get().put((function, arguments, answer))
    await answer
