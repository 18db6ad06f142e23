"""Passes records from the threads that call a `Producer` to the thread that sends them.

Theory. A caller puts its record into the inbox, and the sending thread empties the inbox as a whole, so that many
records are passed at the cost of one. A record is accepted by the single step that appends it to the inbox; from then
on its outcome will be reported. The thread is woken before that step, and the lock is held until after it. So an
interrupt may make the thread look into an empty inbox, but never leaves a record unseen. For the same reason this file
uses no Condition and no Event: their methods are written in Python, and an interrupt in them can leave their lock
locked forever. A waiting caller waits for its own lock, which the sending thread releases.

The end comes once, in the sending thread, whether `close` was called, the interpreter ends, or the producer was
dropped. Records that are not acknowledged in time are given up, and their failure is reported.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from muster.client.config import ProducerConfig
from muster.client.core.produce.accumulator import OutgoingRecord
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.transactions import ProducerTransactions, TransactionCall
from muster.client.net import forks
from muster.client.net.loop import LoopThread
from muster.client.producer.producer_engine import UNCLOSED_MS, ProducerEngine
from muster.client.serde import Serializers
from muster.errors import ClosedError, IllegalStateError, KafkaTimeoutError
from muster.model import GroupMetadata, PartitionInfo

log = logging.getLogger("muster.client.producer")

_MAX_INBOX = 1_000
"""How many records a caller may be ahead of the background thread. Python's garbage collector would traverse more of
them again and again: without a bound, sending took twice as long."""

INBOX_WAIT_MS = 1
"""How long the sending thread leaves records in the inbox, as part of their linger time."""

_open: set[Outbox] = set()
"""The outboxes that have been started and have not ended."""


class Outbox:
    """Accepts records from any thread and sends them in its own thread, which starts with the first record."""

    def __init__(
        self,
        config: ProducerConfig,
        serializers: Serializers,
        partitioner: Partitioner | None,
    ) -> None:
        self.engine = ProducerEngine(config, serializers, partitioner, self._on_reported, in_callers_loop=False)
        self._config = config
        self._thread = LoopThread("muster-producer")
        self._lock = threading.Lock()
        self._inbox: list[OutgoingRecord] = []
        self._inbox_bytes = 0
        self._inbox_since = 0
        """When the first record in the inbox arrived."""
        self._moving_bytes = 0
        """Bytes that have left the inbox but are not in the core yet."""
        self._hurried = False
        self._waiters: list[Any] = []
        """The locks of callers waiting for room."""
        self._forks = forks.count
        self._started = False
        self._closing = False
        self._unattended = False
        """Whether no caller is left to see failures: then the sending thread logs them."""
        self._ended = False
        self._end_waiters: list[Any] = []
        # The sending thread's state:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of accepted records without an outcome, by `record_size`."""
        return self._inbox_bytes + self._moving_bytes + self.engine.core.buffered_bytes

    @property
    def is_here(self) -> bool:
        """Whether the outbox belongs to this process, not to its parent."""
        return self._forks == forks.count

    @property
    def needs_closing(self) -> bool:
        """Whether the outbox was started in this process and was not asked to end."""
        return self._started and not self._closing and self.is_here

    # --- for callers -------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise ClosedError or, in a child of the process that it was started in, IllegalStateError."""
        if not self.is_here:
            if self._started:
                raise forks.orphaned("producer")
            self._forks = forks.count
        if self._closing:
            raise ClosedError("the producer is closed")

    def start(self) -> None:
        """Start the sending thread, if that has not happened yet."""
        self.check_usable()
        with self._lock:
            self._start()

    def put(self, record: OutgoingRecord) -> None:
        """Accept a record, waiting at most `max_block_ms` for room."""
        self.check_usable()
        deadline: float | None = None
        while (waiter := self._try_to_put(record)) is not None:
            if deadline is None:
                deadline = time.monotonic() + self._config.max_block_ms / 1000
            if not waiter.acquire(timeout=max(0, deadline - time.monotonic())):
                with self._lock:
                    self._waiters = [other for other in self._waiters if other is not waiter]
                block_ms = self._config.max_block_ms
                raise KafkaTimeoutError(f"buffer_memory stayed full for max_block_ms ({block_ms})")

    def flush(self, timeout_ms: int | None) -> None:
        """Wait until every record accepted so far is settled."""
        self.check_usable()
        if self._started:
            self._thread.call(self._flush, timeout_ms)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self.start()
        self._thread.call(self._begin_transaction)

    def complete(self, start: Callable[[ProducerTransactions], TransactionCall], timeout_ms: int | None) -> None:
        """Carry out a call of the producer's transactions, with all records accepted so far."""
        self.start()
        self._thread.call(self._complete, start, timeout_ms)

    def send_offsets(self, offsets: Mapping[Any, Any], group_metadata: GroupMetadata, timeout_ms: int | None) -> None:
        """Commit offsets in the transaction."""
        self.start()
        self._thread.call(self._send_offsets, offsets, group_metadata, timeout_ms)

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        """The partitions of a topic."""
        self.start()
        return self._thread.call(self._partitions_for, topic)

    def close(self, timeout_ms: int | None) -> None:
        """Flush for at most `timeout_ms`, give up the rest, and end the thread. An interrupt ends the wait
        immediately."""
        if self._thread.is_current():
            raise IllegalStateError("close, called from a callback of the same producer, would wait for itself")
        if self._started and not self.is_here:
            return
        try:
            self.begin_to_close(timeout_ms)
            self.wait_until_ended()
            self._thread.close()
        except BaseException:
            self._unattended = True
            self.begin_to_close(0)
            raise

    def begin_to_close_unattended(self) -> None:
        """Request the end of a producer that was not closed."""
        self._unattended = True
        self.begin_to_close(UNCLOSED_MS)

    def begin_to_close(self, timeout_ms: int | None) -> None:
        """Request the end without waiting for it."""
        with self._lock:
            self._closing = True
            self._wake_waiters()
            started = self._started
        try:
            if started:
                self._thread.call_soon(self._end, timeout_ms)
        except (ClosedError, RuntimeError):
            started = False  # the thread has ended, and so everything is settled
        if not started:
            self._mark_ended()
            self._thread.close()

    def drop(self) -> None:
        """Request the end of a producer that was dropped. Takes no lock: the garbage collector may call it anywhere."""
        self._closing = self._unattended = True
        loop = self._loop
        if loop is None:
            # Its start was interrupted, or is about to happen: `_begin` then sees that this is the end.
            if not self._thread.call_if_serving(self._begin):
                self._thread.drop()
                self._mark_ended()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._end, UNCLOSED_MS)

    def wait_until_ended(self, timeout_s: float = -1) -> bool:
        """Wait until it has ended, forever with -1. Returns whether it has."""
        waiter = threading.Lock()
        waiter.acquire()
        self._end_waiters.append(waiter)
        if not self._ended:  # otherwise the ending thread may have missed it
            waiter.acquire(timeout=timeout_s)
        return self._ended

    # --- putting -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            self._started = True
            _open.add(self)
        if self._beginning is None:
            self._thread.call_soon(self._begin)

    def _try_to_put(self, record: OutgoingRecord) -> Any:
        """Accept a record if there is room; otherwise returns a lock that is released when there may be."""
        with self._lock:
            if self._closing:
                raise ClosedError("the producer is closed")
            is_full = self.buffered_bytes + record.size > self._config.buffer_memory
            if is_full or len(self._inbox) >= _MAX_INBOX:
                in_callback = self._thread.is_current()  # a callback would wait for its own thread
                if not in_callback:
                    return self._new_waiter(is_full)
                if is_full:
                    raise KafkaTimeoutError("buffer_memory is full, and a delivery callback cannot wait for room")
            self._wake_for(record)
            self._inbox.append(record)
            self._inbox_bytes += record.size
            return None

    def _new_waiter(self, is_full: bool) -> Any:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        self._thread.call_soon(self._make_room if is_full else self._drain)
        return waiter

    def _wake_for(self, record: OutgoingRecord) -> None:
        """Wake the sending thread to look into the inbox, unless it is about to.

        If each record woke it, the two threads would fight for the interpreter: three times the CPU. It looks slightly
        later, within the linger time, or as soon as a batch may be full.
        """
        if not self._inbox:
            self._start()
            self._inbox_since = self.engine.driver.now()
            self._thread.call_soon(self._drain_soon if self._config.linger_ms else self._drain)
        elif self._inbox_bytes + record.size >= self._config.batch_size and not self._hurried:
            self._thread.call_soon(self._drain)
            self._hurried = True

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    # --- in the sending thread ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._beginning is None:
            self._loop = asyncio.get_running_loop()
            self._beginning = self._loop.create_task(self.engine.start())
            if self._closing:
                self._end(UNCLOSED_MS)  # it was dropped before it started

    def _make_room(self) -> None:
        self.engine.core.room_wanted = True
        self._drain()
        self.engine.loop.wakeup()

    def _drain_soon(self) -> None:
        if self._drain_timer is None:
            self._drain_timer = asyncio.get_running_loop().call_later(INBOX_WAIT_MS / 1000, self._drain)

    def _drain(self) -> None:
        """Hand the records in the inbox over to the core."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        with self._lock:
            records, since = self._inbox, self._inbox_since
            self._moving_bytes = self._inbox_bytes
            self._inbox, self._inbox_bytes, self._hurried = [], 0, False
        for record in records:
            self.engine.take(record, since)
        with self._lock:
            self._moving_bytes = 0
            if records:  # without new room, the callers that wait for it would wake up in vain
                self._wake_waiters()

    def _on_reported(self) -> None:
        """Some records are settled: there may be room."""
        with self._lock:
            self.engine.core.room_wanted = False  # a caller that finds no room sets it again
            self._wake_waiters()

    async def _flush(self, timeout_ms: int | None) -> None:
        await self._begun()
        self._drain()
        await self.engine.flush(timeout_ms)

    async def _begin_transaction(self) -> None:
        await self._begun()
        self._drain()
        self.engine.transactions.begin()

    async def _complete(self, start: Callable[[ProducerTransactions], TransactionCall], timeout_ms: int | None) -> None:
        await self._begun()
        self._drain()
        await self.engine.complete(start, timeout_ms)

    async def _send_offsets(
        self, offsets: Mapping[Any, Any], group_metadata: GroupMetadata, timeout_ms: int | None
    ) -> None:
        await self._begun()
        await self.engine.send_offsets(offsets, group_metadata, timeout_ms)

    async def _partitions_for(self, topic: str) -> list[PartitionInfo]:
        await self._begun()
        return await self.engine.partitions_for(topic)

    async def _begun(self) -> None:
        self._begin()
        assert self._beginning is not None
        await asyncio.shield(self._beginning)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, timeout_ms: int | None) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._finish())
        if timeout_ms is not None:
            asyncio.get_running_loop().call_later(timeout_ms / 1000, self.engine.hurry)

    async def _finish(self) -> None:
        try:
            await self._begun()
            self._drain()
            await self.engine.close()
        finally:
            if self._unattended:
                self.engine.warn_of_unseen()
            self._mark_ended()
            self._thread.close()

    def _mark_ended(self) -> None:
        self._ended = True
        _open.discard(self)
        while self._end_waiters:
            self._end_waiters.pop().release()


def _at_exit() -> None:
    """The script ends without closing its producers: send what is left, for a while."""
    unclosed = [outbox for outbox in list(_open) if outbox.is_here]
    for outbox in unclosed:
        outbox.begin_to_close_unattended()
    deadline = time.monotonic() + UNCLOSED_MS / 1000 + 1
    for outbox in unclosed:
        if not outbox.wait_until_ended(max(0, deadline - time.monotonic())):
            log.warning("a producer is abandoned with unsent records: its thread does not respond")


atexit.register(_at_exit)
