"""Fits of known curves: those that grow worse than n log n are reported, and no others."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from benchmarks.growth import Point, growth

SIZES = (1, 10, 100, 1_000, 10_000)


@pytest.mark.parametrize(
    ("cost", "exponent", "too_fast"),
    [
        (lambda n: 5.0, 0.0, False),
        (lambda n: 5.0 + math.sqrt(n), 0.5, False),
        (lambda n: 100.0 + n, 1.0, False),
        (lambda n: 3.0 + n * math.log(n), 1.15, False),
        (lambda n: 50.0 + n**1.4, 1.4, True),
        (lambda n: 100.0 + n * n, 2.0, True),
    ],
    ids=["constant", "root", "linear", "n log n", "n to 1.4", "quadratic"],
)
def test_a_known_curve(cost: Callable[[int], float], exponent: float, too_fast: bool) -> None:
    found = growth([Point(size, cost(size)) for size in SIZES])

    assert found.exponent == pytest.approx(exponent, abs=0.05)
    assert found.too_fast is too_fast


def test_what_is_fixed_is_not_mistaken_for_slow_growth() -> None:
    found = growth([Point(10, 1e6 + 10), Point(1_000, 1e6 + 1_000), Point(10_000, 1e6 + 10_000)])

    assert (round(found.exponent, 2), found.each) == (1.0, 1.0)


def test_what_is_only_noise_does_not_grow() -> None:
    found = growth([Point(1, 5.0), Point(1_000, 5.9), Point(10_000, 5.5)], noise=1.0)

    assert (found.exponent, found.too_fast) == (0.0, False)


def test_a_square_that_begins_late_is_seen() -> None:
    found = growth([Point(size, 1e4 + size + size * size / 1e4) for size in (*SIZES, 100_000, 1_000_000)])

    assert found.too_fast
