"""The two clocks of a process, in milliseconds; the broker's `SteadyClock` combines them.

The rules read neither: they are passed the time as `now`.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns


def wall_clock_ms() -> int:
    """Wall-clock time in milliseconds since the epoch: timestamps of records, lifetimes of tokens, what users see."""
    return time_ns() // 1_000_000


def monotonic_ms() -> int:
    """For deadlines and durations: setting the wall clock does not affect it."""
    return monotonic_ns() // 1_000_000
