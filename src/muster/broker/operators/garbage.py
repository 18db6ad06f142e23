"""When the garbage collector looks at all objects: not while a large request is under way.

One request may have a million objects. They are in no cycles and go when the request is over. But while they exist, a
full collection stops all requests for some 150 ms, and Python starts one whenever the objects have grown by a quarter.
So young objects are left to Python, and a full collection runs when `look` is called: between two large requests, or
when there is none.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

YOUNG = 7_000
"""New objects before those that are still there are looked at. With 700, Python's own number, a rebalance of a thousand
members was interrupted eighty times, which took a twentieth of its time."""

DUE = 4
"""Collections of the middle generation, of 77,000 new objects each, before a full one."""

REST = 200
"""After a full collection the next one waits this many times as long as it took: half a percent of the time."""

_NEVER = 2**31 - 1


class Garbage:
    """Decides about full collections for this process, from `take_over` on."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._again = float("-inf")

    def take_over(self) -> None:
        """Freeze the objects that exist now, and keep Python from full collections of its own."""
        gc.freeze()
        gc.set_threshold(YOUNG, 10, _NEVER)

    def look(self) -> None:
        """Run a full collection if one is due."""
        begun = self._clock()
        if gc.get_count()[2] < DUE or begun < self._again:
            return
        gc.collect()
        ended = self._clock()
        self._again = ended + REST * (ended - begun)
