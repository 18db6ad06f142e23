"""The one place where the broker reads the time.

Two clocks: what is written tells the time of day (`now_ms`), and what is measured is measured by a clock that nobody
sets (`SteadyClock`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time_ns() // 1_000_000


TICK_S = 0.5
"""How often the clock is read at least, while the process runs."""

_STALL_NS = 1_500_000_000
_TICK_NS = int(TICK_S * 1e9)


class SteadyClock:
    """Milliseconds since the epoch as they were at the start, and from then on by a clock that nobody sets, and only
    while the process runs.

    Sessions are measured with it. When the wall clock is set back or forth, no member is lost for it. And while the
    process is stopped (SIGSTOP, a machine that is paused or swaps), heartbeats wait unread: the time between two
    readings that lie further apart than the broker lets pass is left out, so that members are not expelled for a
    silence that was the broker's.
    """

    __slots__ = ("_last_ns", "_offset_ns", "_read_ns", "stalled_ms")

    def __init__(self, read_ns: Callable[[], int] = monotonic_ns) -> None:
        self._read_ns = read_ns
        self._last_ns = read_ns()
        self._offset_ns = time_ns() - self._last_ns
        self.stalled_ms = 0
        """Milliseconds that were left out up to now."""

    def __call__(self) -> int:
        now = self._read_ns()
        if now - self._last_ns > _STALL_NS:
            stalled = now - self._last_ns - _TICK_NS
            self._offset_ns -= stalled
            self.stalled_ms += stalled // 1_000_000
        self._last_ns = now
        return (now + self._offset_ns) // 1_000_000
