"""Long work on the event loop, a slice at a time, so that other requests are served in between.

A piece of work is a generator that yields now and then. One runs after another, each for a few milliseconds in a turn
of the loop, so that at most one of them holds the objects of a very large request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

log = logging.getLogger("muster.broker")

SLICE_S = 0.003

Work = Generator[None, None, Any]


class SliceLoop(Protocol):
    """What slices need from an event loop."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Call in the next turn."""

    def time(self) -> float:
        """The time in seconds."""


class Slices:
    """The queue of work. `between` is called after each piece of work; `clock`, in seconds, measures a slice."""

    def __init__(
        self,
        loop: SliceLoop,
        between: Callable[[], None] = lambda: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._loop = loop
        self._between = between
        self._clock = clock or loop.time
        self._waiting: deque[tuple[Work, Callable[[], bool], Callable[[], None] | None]] = deque()
        self._due = self._stopped = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, work: Work, *, wanted: Callable[[], bool], over: Callable[[], None] | None = None) -> None:
        """Do the work when it comes first in the queue. If it is no longer `wanted` then, it is not begun. Work that
        has begun is finished, except after `stop`. `over` is called in every case, when the work has ended."""
        self._waiting.append((work, wanted, over))
        self._soon()
        if self._stopped:
            self._drop_all()

    def stop(self) -> None:
        """Drop all work, begun or not, and any that comes later: the logs that it works on are being closed."""
        self._stopped = True
        self._drop_all()

    def _drop_all(self) -> None:
        while self._waiting:
            work, _, over = self._waiting.popleft()
            work.close()
            del work
            if over is not None:
                over()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._due = False
        end = self._clock() + SLICE_S
        while self._waiting:
            work, wanted, over = self._waiting[0]
            if wanted():
                self._waiting[0] = (work, _always, over)
                if not self._advance(work, end):
                    break
            self._waiting.popleft()
            del work
            if over is not None:
                over()
            self._between()
        if self._waiting:
            self._soon()

    def _advance(self, work: Work, end: float) -> bool:
        """Continue the work until it is done (returns True) or the slice has ended."""
        try:
            while True:
                next(work)
                if self._clock() >= end:
                    return False
        except StopIteration:
            return True
        except Exception:
            log.exception("work in slices failed")
            return True


def _always() -> bool:
    return True
