"""The clock of the broker's timeouts: monotonic, and not counting the time for which the process was stopped.

Records carry the wall-clock time (`muster.clock.wall_clock_ms`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns

TICK_S = 0.5
"""The longest interval between readings of the clock while the process runs."""

_STALL_NS = 1_500_000_000
_TICK_NS = int(TICK_S * 1e9)


class SteadyClock:
    """Milliseconds since the epoch, read once at the start and advanced by a monotonic clock.

    Sessions are measured with it, so no member expires because the wall clock was set. Time during which the process
    was stopped (SIGSTOP, a paused or swapping machine) is left out: it shows as two readings more than 1.5 seconds
    apart. Heartbeats wait unread during that time, and must not expire members.
    """

    __slots__ = ("_last_ns", "_offset_ns", "_read_ns", "stalled_ms")

    def __init__(self, read_ns: Callable[[], int] = monotonic_ns) -> None:
        self._read_ns = read_ns
        self._last_ns = read_ns()
        self._offset_ns = time_ns() - self._last_ns
        self.stalled_ms = 0
        """Milliseconds left out so far."""

    def __call__(self) -> int:
        now = self._read_ns()
        if now - self._last_ns > _STALL_NS:
            stalled = now - self._last_ns - _TICK_NS
            self._offset_ns -= stalled
            self.stalled_ms += stalled // 1_000_000
        self._last_ns = now
        return (now + self._offset_ns) // 1_000_000

    def skip(self, ms: int) -> None:
        """Skip that much time: for tests."""
        self._offset_ns += ms * 1_000_000

    def begin(self) -> None:
        """Count the time so far in full: nothing was being measured yet, so nothing read the clock."""
        self._last_ns = self._read_ns()
