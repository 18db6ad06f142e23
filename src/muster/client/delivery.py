"""The outcome of a record: the future that a `Producer` returns for it, and its receipt if it has a callback."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import TYPE_CHECKING, Any

from muster.client.net import forks
from muster.errors import MusterError
from muster.model import RecordMetadata

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
OnDelivery = Callable[[RecordMetadata | None, MusterError | None], None]
"""Called once for each record: with its place in the log, or with the error."""

_Future = Future[RecordMetadata] | asyncio.Future[RecordMetadata]

_lock = threading.Lock()
"""Held briefly while a DeliveryFuture creates its condition, or is settled without one."""


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent process may have held the old lock


os.register_at_fork(after_in_child=_in_child)


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` whose condition and lists are created only when needed.

    Most futures are read once they are done, or never. Creating a dozen objects for each record would cost
    more time than the rest of `send`, much of it in the garbage collector.

    `result` and `exception` do not use the condition: an interrupt in the middle of `Condition.__enter__` leaves it
    locked, and the thread that settles the future would wait for it forever. They wait for a lock of their own, which
    that thread releases. The race that `_lock` decides: either the waiting thread has added its lock before the
    future is settled, or it finds it settled.

    In a forked child no thread will settle the futures of the parent's producer: there such a future fails with
    IllegalStateError as soon as it is read.
    """

    _state = PENDING
    _result: RecordMetadata | None = None
    _exception: BaseException | None = None
    seen = False
    """Whether the caller has asked for the outcome, or waits for it."""
    _locks: list[Any] | None = None
    _made: threading.Condition | None = None

    def __init__(self) -> None:
        # Without super().__init__, which creates what `_condition` creates later. The class holds all other defaults.
        self._forks = forks.count

    def _get_condition(self) -> threading.Condition:
        """The condition, created here: every other method of a future uses it first."""
        self.seen = True
        with _lock:
            self._check_fork()
            if self._made is None:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._made = threading.Condition()
            return self._made

    if not TYPE_CHECKING:
        _condition = property(_get_condition)

    def _check_fork(self) -> None:
        if self._forks == forks.count:
            return
        self._forks = forks.count
        self._made = None  # a thread of the parent may have held it
        if self._state in (PENDING, RUNNING):
            self._exception = forks.orphaned("future")
            self._state = FINISHED

    def done(self) -> bool:
        """Whether the future is settled or cancelled."""
        self._check_fork()
        return self._state not in (PENDING, RUNNING)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record was written; waits at most `timeout` seconds, forever if None."""
        self._wait(timeout)
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why the record was not written, None if it was; waits like `result`."""
        self._wait(timeout)
        return super().exception(0)

    def cancel(self) -> bool:
        """Ignore the outcome from now on. The record is still sent."""
        try:
            return super().cancel()
        finally:
            self._release()

    def set_result(self, result: RecordMetadata) -> None:
        """Settle the future; only the producer calls it."""
        with _lock:
            settled = self._made is None and self._state == PENDING
            if settled:
                self._result = result
                self._state = FINISHED
        try:
            if not settled:
                super().set_result(result)
        finally:  # a callback may have raised
            if self._locks is not None:
                self._release()

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle the future; only the producer calls it."""
        with _lock:
            settled = self._made is None and self._state == PENDING
            if settled:
                self._exception = exception
                self._state = FINISHED
        try:
            if not settled:
                super().set_exception(exception)
        finally:  # a callback may have raised
            if self._locks is not None:
                self._release()

    def _wait(self, timeout: float | None) -> None:
        self.seen = True
        if self.done():
            return
        lock = threading.Lock()
        lock.acquire()
        with _lock:
            if self.done():
                return
            self._locks = [*(self._locks or ()), lock]
        lock.acquire(timeout=-1 if timeout is None else max(0, timeout))

    def _release(self) -> None:
        with _lock:
            locks, self._locks = self._locks, None
        for lock in locks or ():
            lock.release()


class Receipt:
    """The future and the callback of one record; a record without a callback has its future as receipt."""

    __slots__ = ("future", "on_delivery")

    def __init__(self, future: _Future, on_delivery: OnDelivery) -> None:
        self.future = future
        self.on_delivery = on_delivery

    @property
    def notifies_caller(self) -> bool:
        """Whether the caller learns the outcome from it."""
        return True
