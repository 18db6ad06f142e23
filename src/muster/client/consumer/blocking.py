"""What the blocking consumers share: calls to a loop thread, and records that an interrupt kept from the caller."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from muster.client.consumer.async_consumer import DEFAULT_CLOSE_TIMEOUT_MS, OffsetsToCommit
from muster.client.consumer.handout import Records
from muster.client.net import forks
from muster.client.net.loop import LoopCall, LoopThread
from muster.errors import ClosedError, IllegalStateError
from muster.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


class AsyncReader(Protocol):
    """The asyncio consumer that does the work."""

    async def start(self) -> None: ...

    async def _close(self, timeout_ms: int, *, handled: bool) -> bool:
        """Returns whether it is closed now: False if a callback called by `close` calls this."""
        ...

    async def poll(self, timeout_ms: int = 1_000, *, max_records: int | None = None) -> Records:
        """Wait for records for at most `timeout_ms`, and return up to `max_poll_records` of them, or none."""
        ...

    async def poll_arrow(
        self, timeout_ms: int = 1_000, *, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """`poll` without an object for each record: everything that has arrived, as a `pyarrow.Table` for each
        partition.

        `AsyncConsumer.poll_arrow` describes the columns and what must be installed.
        """
        ...

    def wakeup(self) -> None: ...

    def assignment(self) -> set[TopicPartition]:
        """The partitions currently assigned to this consumer."""
        ...

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Continue reading at an offset."""

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Start reading at the oldest record, by default in all assigned partitions."""

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read only new records, by default in all assigned partitions."""

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record; waits if it has to be looked up."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        ...

    async def commit(self, offsets: OffsetsToCommit | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets, by default the caller's position in every partition."""


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingReader, P], T]:
    """A coroutine method of the asyncio consumer, made blocking."""

    @wraps(method)
    def call(self: BlockingReader, /, *args: P.args, **more: P.kwargs) -> T:
        own: Callable[P, Coroutine[Any, Any, T]] = getattr(self._consumer, method.__name__)
        return self._run(own, *args, **more)

    return call


def in_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[BlockingReader, P], T]:
    """A plain method of the asyncio consumer, called in the loop's thread."""

    @wraps(method)
    def call(self: BlockingReader, /, *args: P.args, **more: P.kwargs) -> T:
        own: Callable[P, T] = getattr(self._consumer, method.__name__)
        return self._do(own, *args, **more)

    return call


def _hands_out(
    method: Callable[Concatenate[AsyncReader, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingReader, P], T]:
    """`blocking` for a method that hands out records."""

    @wraps(method)
    def call(self: BlockingReader, /, *args: P.args, **more: P.kwargs) -> T:
        own: Callable[P, Coroutine[Any, Any, T]] = getattr(self._consumer, method.__name__)
        return self._read(own, *args, **more)

    return call


class BlockingReader(forks.NotPicklable):
    """A blocking consumer: an asyncio consumer does the work in a loop thread.

    A poll may be interrupted (Ctrl-C) after its records have left the core. Then the next poll hands them out: before
    anything else happens in the loop's thread, `_settle` takes back what the caller did not get.
    """

    _consumer: AsyncReader

    def __init__(self, thread: LoopThread, take_back: Callable[[], None]) -> None:
        self._thread = thread
        self._take_back = take_back
        """Hand out again the records that the caller did not get."""
        self._last_read: LoopCall[Any] = _finished()
        """The last call that hands out records. The loop's thread writes it."""
        self._reader_thread: int | None = None
        """The thread that made this call."""

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop thread. Every method that waits does this too."""
        self._run(self._consumer.start)

    def _close(self, timeout_ms: int, *, handled: bool) -> None:
        closed = True
        try:
            if not self._thread.forked and not self._thread.closed:
                here = self._reader_thread in (None, threading.get_ident())
                closed = self._run(self._consumer._close, timeout_ms, handled=handled and here)
        except ClosedError:
            if not self._thread.closed:
                raise
            # Another thread's close stopped the loop after this thread saw it running: nothing is left to do.
        finally:
            if closed:
                self._thread.close()  # even if it was called before: an interrupt may have kept it from finishing

    def __enter__(self) -> Self:
        self._run(self._consumer.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(DEFAULT_CLOSE_TIMEOUT_MS, handled=kind is None)

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is not None and thread.is_open:
            text = f"a {type(self).__name__} was dropped without close()"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
            thread.drop()

    # --- reading -----------------------------------------------------------------------------------------------------

    poll = _hands_out(AsyncReader.poll)
    poll_arrow = _hands_out(AsyncReader.poll_arrow)

    def getmany(self, *, timeout_ms: int = 0, max_records: int | None = None) -> Records:
        """`poll` that does not wait by default."""
        return self.poll(timeout_ms, max_records=max_records)

    def wakeup(self) -> None:
        """Make the current poll raise a WakeupError, or else the next one. It may be called from any thread and from
        a signal handler."""
        with suppress(ClosedError):
            self._thread.call_soon(self._consumer.wakeup)

    def __iter__(self) -> Self:
        return self

    # --- where to read, and committing -------------------------------------------------------------------------------

    assignment = in_loop(AsyncReader.assignment)
    seek = in_loop(AsyncReader.seek)
    seek_to_beginning = in_loop(AsyncReader.seek_to_beginning)
    seek_to_end = in_loop(AsyncReader.seek_to_end)
    position = blocking(AsyncReader.position)
    pause = in_loop(AsyncReader.pause)
    resume = in_loop(AsyncReader.resume)
    paused = in_loop(AsyncReader.paused)
    commit = blocking(AsyncReader.commit)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _do(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a plain function in the loop's thread."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._run(call)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        """Run a coroutine function in the loop's thread."""
        work: Callable[[], Coroutine[Any, Any, T]] = partial(function, *arguments, **named)
        return self._thread.perform(LoopCall(lambda: self._after_hands_out(work)))

    def _read(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **named: Any) -> T:
        """Run, in the loop's thread, a coroutine function that hands out records: one call at a time."""
        work: Callable[[], Coroutine[Any, Any, T]] = partial(function, *arguments, **named)
        reader = threading.get_ident()
        call: LoopCall[T] = LoopCall(lambda: self._read_in_turn(call, work, reader))
        return self._thread.perform(call)

    async def _after_hands_out(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._settle()
        return await work()

    async def _read_in_turn(self, call: LoopCall[T], work: Callable[[], Coroutine[Any, Any, T]], reader: int) -> T:
        await self._settle()
        if not self._last_read.returned:
            raise IllegalStateError("another thread's poll of this consumer is in progress")
        self._last_read, self._reader_thread = call, reader
        return await work()

    async def _settle(self) -> None:
        """If the last call that hands out records was interrupted, end it and take back its records."""
        last = self._last_read
        if not last.abandoned:
            return
        while last.task is not None and not last.ended:
            last.task.cancel()
            await asyncio.wait([last.task])
        if self._last_read is last:
            self._last_read = _finished()
            if last.succeeded:
                self._take_back()


def _finished() -> LoopCall[Any]:
    """The placeholder before the first call: a finished call."""
    call: LoopCall[Any] = LoopCall(_nothing)
    call.returned = True
    return call


async def _nothing() -> None: ...
