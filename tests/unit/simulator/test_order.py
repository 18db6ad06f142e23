"""The order of a test run: no test is lost, files stay together, and each worker runs slow tests first and quick ones
last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.order import slow_first

FILES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12)


def collected(files: list[tuple[int, int]]) -> list[Any]:
    """Tests in files that take this many seconds and have this many tests; a mark without a number means one second."""
    marks = [None, SimpleNamespace(args=()), SimpleNamespace(args=(2,)), SimpleNamespace(args=(3,))]
    return [
        SimpleNamespace(
            path=number, name=(number, test), slow=slow, get_closest_marker=lambda _, slow=slow: marks[slow]
        )
        for number, (slow, count) in enumerate(files)
        for test in range(count)
    ]


@given(files=FILES, workers=st.integers(1, 5))
def test_every_test_runs_once_and_those_of_a_slow_file_one_after_the_other(
    files: list[tuple[int, int]], workers: int
) -> None:
    items = collected(files)
    ordered: list[Any] = list(slow_first(items, workers))
    assert sorted(item.name for item in ordered) == [item.name for item in items]
    places = [(item.path, at) for at, item in enumerate(ordered) if item.slow]
    for path in {path for path, _ in places}:
        mine = [at for found, at in places if found == path]
        assert mine == list(range(mine[0], mine[0] + len(mine)))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_worker_begins_with_its_share_of_the_slow_files(workers: int) -> None:
    items = collected([(int(number % 5 == 0), 3) for number in range(40)])
    ordered: list[Any] = list(slow_first(items, workers))
    share = len(items) // workers
    for worker in range(workers):
        mine = [item.slow for item in ordered[worker * share : (worker + 1) * share]]
        assert mine == sorted(mine, reverse=True)
        assert sum(mine) == 24 // workers


def test_files_that_share_a_session_of_spark_are_one_worker_s() -> None:
    items = collected([(1, 2), (2, 2), (3, 2), (1, 2)])
    for item in items[:2] + items[-2:]:
        item.fixturenames = ["spark"]
    ordered: list[Any] = list(slow_first(items, 2))
    assert [item.path for item in ordered] == [2, 2, 0, 0, 3, 3, 1, 1]


def test_the_longest_files_begin_side_by_side() -> None:
    items = collected([(seconds, 2) for seconds in (0, 1, 2, 0, 3, 1, 0, 3, 2, 0, 0, 0)])
    ordered: list[Any] = list(slow_first(items, 2))
    assert [item.slow for item in ordered] == [3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0] * 2
