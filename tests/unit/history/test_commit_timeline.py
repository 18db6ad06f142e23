"""The committed offsets of groups over time: the thinned-out timeline agrees with all commits at each step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.history.lag import over_time as past
from muster.history.lag.over_time import (
    MINUTE_MS,
    CommitTimeline,
    committed_at,
    committed_partitions,
    lag_over_time,
    plan_lookups,
)
from muster.history.lag.rows import CommitSeries
from muster.history.model import Commits
from tests.support.scale import examples

PLACES = [("t", 0), ("t", 1), ("u", 0)]
START_MS = 28_333_333 * MINUTE_MS

Commit = tuple[int, int, int]
"""Partition, offset (-1: deleted), time."""


def commits_of(some: list[Commit]) -> Commits:
    partition, offset, time_ms = (np.array(column, np.int64) for column in zip(*some, strict=True))
    nothing = np.zeros(len(some), np.int64)
    return Commits(PLACES, nothing, time_ms, partition, offset, np.where(offset < 0, -1, time_ms), nothing, nothing)


def thinned(some: list[Commit], cuts: list[int], since_ms: int = 0) -> CommitTimeline:
    found = CommitTimeline(since_ms)
    bounds = [0, *sorted(cuts), len(some)]
    for begin, end in pairwise(bounds):
        if begin < end:
            found.add("g", commits_of(some[begin:end]))
    return found


COMMITS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(-1, 100),
        st.integers(0, 40 * MINUTE_MS).map(lambda ms: START_MS + ms) | st.integers(START_MS, START_MS + 10**9),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(150))
@given(COMMITS, st.lists(st.integers(0, 60), max_size=4))
def test_at_each_step_it_is_what_all_commits_say_wherever_the_log_is_cut(some, cuts):
    found, series = thinned(some, [cut for cut in cuts if cut <= len(some)]), CommitSeries(commits_of(some))
    until_ms = max(time for _, _, time in some) + 5 * MINUTE_MS
    times = found.times(until_ms)
    assert 1 <= len(times) <= past.STEPS + 2
    assert 0 <= until_ms - times[-1] < found.step_ms
    for place in PLACES:
        expected = [series.at(place, time) for time in times]
        kept = committed_at(found.commits["g"].get(place, []), times, found.step_ms)
        assert [each and (each.offset, each.commit_ms) for each in kept] == expected


def test_a_longer_history_has_longer_steps_and_no_more_of_them():
    some = [(0, number, START_MS + number * 10 * MINUTE_MS) for number in range(1_000)]
    found = thinned(some, [])
    assert found.step_ms == 128 * MINUTE_MS
    assert past.STEPS / 2 <= len(found.times(some[-1][2])) <= past.STEPS + 1
    assert len(found.commits["g"]["t", 0]) <= past.STEPS + 1


def test_what_was_before_is_kept_as_it_was_then():
    some = [(0, 7, START_MS), (0, 9, START_MS + 10**9)]
    found = thinned(some, [], START_MS + 10**9 - 3 * MINUTE_MS)
    assert found.step_ms == MINUTE_MS
    times = found.times(START_MS + 10**9)
    first, *_ = committed_at(found.commits["g"]["t", 0], times, MINUTE_MS)
    assert first is not None
    assert (first.offset, first.commit_ms) == (7, START_MS)
    assert len(times) == 3


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(past, "MOST_KEPT", 20)
    some = [(number % 3, number, START_MS + number * MINUTE_MS) for number in range(90)]
    found = thinned(some, [30, 60])
    assert sum(map(len, found.commits["g"].values())) <= 20
    assert found.commits["g"]["u", 0][-1].offset == 89


def test_the_lag_at_a_time_is_that_of_then_and_its_age_is_known_to_a_step():
    minutes = [START_MS - START_MS % MINUTE_MS + number * MINUTE_MS for number in range(6)]
    found = thinned([(0, 10, minutes[1] - 5), (0, 30, minutes[3] - 5)], [])
    times = found.times(minutes[4])
    assert times == minutes[1:5]
    rows = lag_over_time(found, times, {("t", 0): [10, 25, 30, None]})
    assert [(row.at_ms, row.committed_offset, row.lag_records, row.lag_ms, row.is_exact) for row in rows] == [
        (minutes[1], 10, 0, 0, True),
        (minutes[2], 10, 15, MINUTE_MS, False),
        (minutes[3], 30, 0, 0, True),
    ]


@pytest.mark.parametrize(("partitions", "expected"), [(10, (10, 60, 0)), (600, (600, 30, 0)), (1_500, (666, 30, 834))])
def test_no_more_is_asked_for_than_is_allowed(partitions: int, expected: tuple[Any, ...]):
    found = thinned([(0, 1, START_MS)], [])
    found.commits["g"] = {("t", number): [] for number in range(partitions)}
    times = found.times(START_MS + 59 * MINUTE_MS + 10)
    asked = plan_lookups(committed_partitions(found, {("t", partitions - 1): 5}), times)
    assert (len(asked.places), len(asked.times), asked.left_out) == expected
    assert asked.places[0] == ("t", partitions - 1)
    assert asked.times[-1] == times[-1]


def test_several_are_one():
    some = [(0, 1, START_MS), (1, 2, START_MS + 3 * MINUTE_MS)]
    whole, long = CommitTimeline(), [(0, number, START_MS + number * 10 * MINUTE_MS) for number in range(1_000)]
    for group, own in (("a", some), ("b", long)):
        part = CommitTimeline()
        part.add(group, commits_of(own))
        whole.merge(part)
    both = CommitTimeline()
    both.add("a", commits_of(some))
    both.add("b", commits_of(long))
    assert (whole.commits, whole.step_ms) == (both.commits, both.step_ms)
    assert whole.times(START_MS + 10**9) == both.times(START_MS + 10**9)


def test_steps_are_as_long_as_those_of_others():
    found = thinned([(0, 1, START_MS), (0, 2, START_MS + 3 * MINUTE_MS)], [])
    assert found.reach(START_MS + 3 * MINUTE_MS, 8 * MINUTE_MS) == 8 * MINUTE_MS
    assert [each.offset for each in found.commits["g"]["t", 0]] == [1, 2][-len(found.commits["g"]["t", 0]) :]
