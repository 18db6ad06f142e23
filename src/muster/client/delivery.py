"""The future that a `Producer` gives for each record."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any

from muster.model import RecordMetadata

_making = threading.Lock()
"""Held for an instant by whoever makes a DeliveryFuture's condition, or settles one that has none."""


class DeliveryFuture(Future[RecordMetadata]):
    """A `concurrent.futures.Future` whose condition and lists are made when somebody waits for it.

    Most are looked at when they are done, or never. Made at once, a dozen objects for each record under way cost more
    time than all else of `send`, much of it in the garbage collector.

    The race that `_making` decides: a thread calls `result` while the producer settles. If it made the condition
    first, the settling thread sees that and notifies; else it finds the future done.
    """

    def __init__(self) -> None:
        # Not super's: it makes what __getattr__ makes later.
        self._state = PENDING
        self._result: RecordMetadata | None = None
        self._exception: BaseException | None = None
        self._awaited = False

    def __getattr__(self, name: str) -> Any:
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(f"a future has no attribute {name!r}")
        with _making:
            if not self._awaited:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
                self._awaited = True
        return self.__dict__[name]

    def done(self) -> bool:
        """Whether it is settled or cancelled."""
        return self._state not in (PENDING, RUNNING)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; waits `timeout` seconds at most, for ever if None."""
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def set_result(self, result: RecordMetadata) -> None:
        """Settle it: for the producer alone."""
        with _making:
            if not self._awaited and self._state == PENDING:
                self._result = result
                self._state = FINISHED
                return
        super().set_result(result)
