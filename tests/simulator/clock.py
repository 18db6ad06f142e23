"""Time as a number that only a test advances."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timer:
    """A callback that waits for its time."""

    __slots__ = ("_arguments", "_callback", "cancelled", "when")

    def __init__(self, when: int, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.when = when
        self.cancelled = False
        self._callback = callback
        self._arguments = arguments

    def cancel(self) -> None:
        """Cancel it. Does nothing if it has happened."""
        self.cancelled = True

    def fire(self) -> None:
        """Run it now."""
        self._callback(*self._arguments)


class VirtualClock:
    """Milliseconds that pass when `advance` or `run_until` says so, and callbacks that are due on the way.

    What is due at one moment is called in the order in which it was scheduled, so equal programs run equally. An
    exception from a callback ends the run; the clock then shows the moment of the callback.

    Args:
        start_ms: what `now` is at first.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.now = start_ms
        self._order = 0
        self._timers: list[tuple[int, int, Timer]] = []

    def call_at(self, when: int, callback: Callable[..., Any], *arguments: Any) -> Timer:
        """Call back at a time in milliseconds; as soon as possible if it has passed."""
        timer = Timer(max(when, self.now), callback, arguments)
        self._order += 1
        heappush(self._timers, (timer.when, self._order, timer))
        return timer

    def call_later(self, delay_ms: int, callback: Callable[..., Any], *arguments: Any) -> Timer:
        """Call back in this many milliseconds; 0 means after what is due now already."""
        return self.call_at(self.now + delay_ms, callback, *arguments)

    def next_due(self) -> int | None:
        """When the next callback is due; None if there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled:
            heappop(timers)
        return timers[0][0] if timers else None

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and call what becomes due, each at its moment."""
        self.run_until(lambda: False, milliseconds)

    def run_until(self, predicate: Callable[[], bool], within_ms: int) -> bool:
        """Let time pass until the predicate holds, checked after each callback; False if `within_ms` was not enough."""
        if predicate():
            return True
        end = self.now + within_ms
        while (due := self.next_due()) is not None and due <= end:
            self.now = due
            heappop(self._timers)[2].fire()
            if predicate():
                return True
        self.now = end
        return False
