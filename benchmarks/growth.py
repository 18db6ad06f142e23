"""How a cost grows with its cause: fits over a handful of sizes, without measuring anything.

A cost is assumed to have a fixed part and one that grows. The fixed part is the cost of the smallest size. The exponent
is the slope of the rest over the logarithm of the size: 1 is linear, 2 is quadratic. n log n has an exponent slightly
above 1 over the same sizes; anything clearly above that is worse than n log n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple

DECADES = 2.0
"""Only the largest sizes, which span this many powers of ten, are used: below them the fixed part prevails."""

TOLERANCE = 0.15
"""Exponents differ by this much from run to run: over a power of ten that is a factor of 1.4."""


class Point(NamedTuple):
    """The cost of this many things, in any unit."""

    size: int
    cost: float


class Growth(NamedTuple):
    """The result: the cost grows as size ** exponent; n log n would grow as size ** allowed over these sizes."""

    exponent: float
    allowed: float
    each: float
    """What one more thing costs, between the smallest and the largest size."""

    @property
    def too_fast(self) -> bool:
        """Whether the cost grows worse than n log n."""
        return self.exponent > self.allowed + TOLERANCE


def growth(points: Sequence[Point], noise: float = 0.0) -> Growth:
    """How the cost grows from the smallest of at least two sizes to the largest.

    `noise` is an insignificant difference of costs. A cost that does not rise by more than that has the exponent 0.
    """
    ordered = sorted(points)
    (least, fixed), (most, cost) = ordered[0], ordered[-1]
    each = (cost - fixed) / (most - least)
    rising = [
        Point(size, cost - fixed) for size, cost in ordered[1:] if size * 10**DECADES >= most and cost - fixed > noise
    ]
    if len(rising) < 2:
        return Growth(0.0, 1.0, each)
    return Growth(_slope(rising), _slope([Point(size, size * math.log(size)) for size, _ in rising]), each)


def _slope(points: Sequence[Point]) -> float:
    return linear_regression(*zip(*((math.log(size), math.log(cost)) for size, cost in points), strict=True)).slope
