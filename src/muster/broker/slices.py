"""Long work on the event loop, a slice at a time: whatever one request asks for, the others are served in between.

A piece of work is a generator that yields now and then. They run one after another, each for some milliseconds in a
turn of the loop, so that at most one holds the objects of a very large request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

log = logging.getLogger("muster.broker")

SLICE_S = 0.003

Work = Generator[None, None, Any]


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Call in the next turn."""

    def time(self) -> float:
        """Seconds."""


class Slices:
    """The work that is to be done. `between` is called after each piece of work; `clock` says how long a slice has
    lasted, in seconds."""

    def __init__(
        self,
        loop: Loop,
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
        """Do the work when its turn comes. If it is not `wanted` any more by then, it is not begun; one that was begun
        is done to its end, but for `stop`. `over` is called in each case, when nothing of it is left."""
        self._waiting.append((work, wanted, over))
        self._soon()
        if self._stopped:
            self._drop_all()

    def stop(self) -> None:
        """Drop what is left, also what was begun, and all that comes: nobody is to work on what is being closed."""
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
        """Go on with the work until it is done (True) or the slice is over."""
        try:
            while True:
                next(work)
                if self._clock() >= end:
                    return False
        except StopIteration:
            return True
        except Exception:
            log.exception("work could not be done")
            return True


def _always() -> bool:
    return True
