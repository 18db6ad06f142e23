"""When all that is in memory is looked over for garbage in cycles: not while a large request is under way.

The objects of one request may be a million. They are in no cycles and go when the request is over; but as long as they
are there, looking over everything stops everybody for some 150 ms, and Python looks again with each quarter that comes
to them. So young objects are left to Python, and a look at all of them comes when `look` is called: between two large
requests, or when there is none.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

DUE = 40
"""Looks at middle-aged objects, of 7,700 new ones each, before one at all."""

REST = 200
"""How many times as long as a look took nothing is looked at again: it may take half a percent of the time."""

_NEVER = 2**31 - 1


class Garbage:
    """Decides for this process, from `take_over` on."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._again = float("-inf")

    def take_over(self) -> None:
        """What is there now stays, and is not looked at again; Python does not look over all by itself any more."""
        gc.freeze()
        gc.set_threshold(700, 10, _NEVER)

    def look(self) -> None:
        """Look over everything, if that is due."""
        begun = self._clock()
        if gc.get_count()[2] < DUE or begun < self._again:
            return
        gc.collect()
        ended = self._clock()
        self._again = ended + REST * (ended - begun)
