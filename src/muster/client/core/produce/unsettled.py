"""Counts the records that are not settled yet: a flush waits for them.

A record is settled when its acknowledgement or failure was passed to the face. Records are counted by the era in
which they came. A flush begins a new era, and ends when no record of an earlier era is left. So a flush searches no
queue, and cannot miss a record there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


class Unsettled:
    """How many unsettled records each era has."""

    __slots__ = ("_left", "era")

    def __init__(self) -> None:
        self.era = 0
        """The era of a record accepted now."""
        self._left: dict[int, int] = {}
        """Eras with records, the oldest first: records are added only to the newest."""

    def add(self, count: int = 1) -> None:
        """Count newly accepted records."""
        self._left[self.era] = self._left.get(self.era, 0) + count

    def settle(self, eras: Sequence[int]) -> None:
        """Count settled records; their eras are in the order in which they came."""
        counts = {eras[0]: len(eras)} if eras[0] == eras[-1] else Counter(eras)
        for era, count in counts.items():
            left = self._left[era] - count
            if left:
                self._left[era] = left
            else:
                del self._left[era]

    def begin_flush(self) -> Callable[[], bool]:
        """Begin a new era; returns whether all earlier records are already settled."""
        self.era += 1
        limit = self.era
        return lambda: next(iter(self._left), limit) >= limit
