"""A coordinator's two clocks: the rules measure with a steady one, which is never set; records tell the time of day."""

from __future__ import annotations

NEVER = 2**63 - 1
"""A deadline that does not come."""

NO_TIMESTAMP = -1
"""A time that is not set."""

TOLERATED_MS = 100
"""Clocks that differ by less than this count as equal."""


def shift_between(steady: int, wall: int) -> int:
    """Milliseconds to add to a time of the steady clock to get the time of day."""
    return wall - steady if abs(wall - steady) >= TOLERATED_MS else 0
