"""A coordinator's two clocks: the rules use a monotonic one; records carry the wall-clock time."""

from __future__ import annotations

NEVER = 2**63 - 1
"""A deadline that never comes."""

NO_TIMESTAMP = -1
"""A time that is not set."""

TOLERATED_MS = 100
"""Clocks that differ by less than this count as equal."""


def shift_between(steady: int, wall: int) -> int:
    """Milliseconds to add to a monotonic time to get the wall-clock time."""
    return wall - steady if abs(wall - steady) >= TOLERATED_MS else 0


def shift_time(time: int, by: int) -> int:
    """A time that is `by` ms later, within the range of an int64; an unset time stays unset."""
    return time if time == NO_TIMESTAMP else min(max(time + by, 0), NEVER)
