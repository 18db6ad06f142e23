"""The one place where the broker reads the time."""

from __future__ import annotations

from time import time_ns


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time_ns() // 1_000_000
