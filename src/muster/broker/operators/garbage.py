"""When full garbage collections run: not during a large request.

One request may have a million objects. They form no cycles and are freed with the request. But while they exist, a full
collection stops all requests for about 150 ms, and Python starts one whenever the number of objects has grown by a
quarter. So young objects are left to Python, and full collections run between large requests (`collect_if_due`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

YOUNG = 7_000
"""New objects that trigger a collection of the youngest generation. With 700, Python's default, a rebalance of a
thousand members was interrupted eighty times, for a twentieth of its time."""

DUE = 4
"""Collections of the middle generation, of 77,000 new objects each, before a full one."""

REST = 200
"""After a full collection, the next one is due after this many times its duration: half a percent of the time."""

_NEVER = 2**31 - 1


class Garbage:
    """Controls full collections in this process, from `take_over` on."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._again = float("-inf")

    def take_over(self) -> None:
        """Freeze the existing objects, and stop Python's own full collections."""
        gc.freeze()
        gc.set_threshold(YOUNG, 10, _NEVER)

    def collect_if_due(self) -> None:
        """Run a full collection if one is due."""
        begun = self._clock()
        if gc.get_count()[2] < DUE or begun < self._again:
            return
        gc.collect()
        ended = self._clock()
        self._again = ended + REST * (ended - begun)
