"""The one place where the broker reads the time."""

from __future__ import annotations

from time import monotonic_ns, time_ns


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time_ns() // 1_000_000


class SteadyClock:
    """Milliseconds since the epoch as they were at the start, and from then on by a clock that nobody sets.

    Sessions are measured with it: when the wall clock is set back or forth, no member is lost for it.
    """

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time_ns() - monotonic_ns()

    def __call__(self) -> int:
        return (monotonic_ns() + self._offset_ns) // 1_000_000
