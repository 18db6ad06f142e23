"""The only definition of lag, with its table; and everything that reports a lag uses it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.administer.group_tables import offset_rows
from muster.client.core.admin.admin import GroupDescription
from muster.history.entries.chunks import no_commits
from muster.history.lag import first_unread, lag, lost_records, total
from muster.history.lag.groups import PartitionLag
from muster.history.lag.rows import CommitSeries, Committed, ExpiryState, lag_rows
from muster.history.model import LagSample, Limits
from muster.model import Node, OffsetAndMetadata, TopicPartition
from muster.spark.offsets import Claim
from muster.spark.progress.reports import report

PLACE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("committed", "log_end", "expected"),
    [(3, 10, 7), (10, 10, 0), (0, 10, 10), (12, 10, -2), (None, 10, None), (3, None, None), (None, None, None)],
)
def test_what_the_lag_is(committed: int | None, log_end: int | None, expected: int | None) -> None:
    assert lag(committed, log_end) == expected


@pytest.mark.parametrize(
    ("committed", "start", "end", "first", "lost"),
    [(5, 0, 9, 5, 0), (5, 5, 9, 5, 0), (5, 7, 9, 7, 2), (5, 9, 9, 9, 4), (12, 0, 9, 12, 0), (5, 0, 0, 5, 0)],
)
def test_what_can_still_be_read(committed: int, start: int, end: int, first: int, lost: int) -> None:
    assert first_unread(committed, start) == first
    assert lost_records(committed, start, end) == lost


OFFSET = st.integers(0, 2**40)


@given(st.none() | OFFSET, OFFSET, OFFSET)
def test_all_say_the_same(committed: int | None, start: int, length: int) -> None:
    """`muster lag`, `groups describe`, the table `lag` and the progress of a Spark query."""
    end = start + length
    group = GroupDescription("g", "Empty", "consumer", "", Node(1, "h", 1), [])
    positions = {} if committed is None else {PLACE: OffsetAndMetadata(committed)}
    described = offset_rows(group, positions, {PLACE: end})
    expected = lag(committed, end)
    assert PartitionLag("t", 0, committed, start, end).lag == expected
    assert [row.lag for row in described] == [expected for _ in positions]
    if committed is not None:
        series = CommitSeries(no_commits(), {("t", 0): Committed(committed, 0)})
        (row,) = lag_rows(series, [LagSample(0, "g", "t", 0, start, end)], ExpiryState(), Limits())
        progress = report({PLACE: Claim(committed, end)}, {})
        assert {row.lag_records, progress["lag"]["t"]["0"]} == {expected}
        assert progress["totalLag"] == max(0, end - committed)


def test_a_partition_beyond_its_log_hides_nothing_of_the_others() -> None:
    assert total([5, -1_000_000, 0, 7]) == 12
    assert total([]) == 0
