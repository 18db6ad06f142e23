"""The rows of the lag: when which offset was committed, log starts, counts, and when offsets expire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.history.lag.rows import CommitSeries, Committed, ExpiryState, expires_ms, expiry_state, lag_rows
from muster.history.model import Commits, Generation, GroupKind, LagSample, Limits, Member, Place

ORDERS = ("orders", 0)
DAY_MS = 86_400_000


def commits(*rows: tuple[int, int, int], names: list[tuple[str, int]] | None = None) -> Commits:
    """Rows of (index of the partition, offset, time); an offset of -1 is a tombstone."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    tombstone = columns[:, 1] == -1
    return Commits(
        names=names or [ORDERS, ("orders", 1)],
        log_offset=np.arange(len(rows), dtype=np.int64),
        timestamp_ms=columns[:, 2].copy(),
        partition=columns[:, 0].copy(),
        offset=columns[:, 1].copy(),
        commit_ms=np.where(tombstone, -1, columns[:, 2]),
        leader_epoch=np.zeros(len(rows), dtype=np.int64),
        how=np.zeros(len(rows), dtype=np.int64),
    )


def sample(at_ms: int, start: int, end: int, partition: int = 0, **fields: int) -> LagSample:
    return LagSample(at_ms, "g", "orders", partition, start, end, **fields)


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [(99, None), (100, Committed(5, 100)), (199, Committed(5, 100)), (200, Committed(9, 200)), (500, None)],
    ids=["before the first", "at the first", "between", "at the second", "after the tombstone"],
)
def test_what_was_committed_at_a_time(at_ms: int, expected: Committed | None) -> None:
    series = CommitSeries(commits((0, 5, 100), (1, 70, 150), (0, 9, 200), (0, -1, 400)))
    assert series.at(ORDERS, at_ms) == expected


def test_the_log_s_order_counts_where_clocks_step_back() -> None:
    series = CommitSeries(commits((0, 3, 100), (0, 5, 300), (0, 9, 200), (0, 11, 400)))
    assert series.at(ORDERS, 250) == Committed(3, 100)  # the last one came after 300, whatever its clock says
    assert series.at(ORDERS, 300) == Committed(9, 200)
    assert series.latest() == {ORDERS: Committed(11, 400)}


def test_earlier_commits_count_until_there_are_later_ones() -> None:
    earlier = {ORDERS: Committed(3, 50), ("orders", 1): Committed(4, 60), ("former", 0): Committed(1, 1)}
    series = CommitSeries(commits((0, 5, 100), (1, -1, 120)), earlier)
    assert series.at(ORDERS, 99) == Committed(3, 50)
    assert series.at(("former", 0), 99) == Committed(1, 1)
    assert series.latest() == {ORDERS: Committed(5, 100), ("former", 0): Committed(1, 1)}


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 50), st.integers(0, 1000)), max_size=30), st.integers(0, 30)
)
def test_a_series_may_be_cut_anywhere(rows: list[tuple[int, int, int]], cut: int) -> None:
    whole = CommitSeries(commits(*rows))
    first = CommitSeries(commits(*rows[:cut]))
    assert CommitSeries(commits(*rows[cut:]), first.latest()).latest() == whole.latest()


@pytest.mark.parametrize(
    ("committed", "look", "expected"),
    [
        (10, sample(900, 0, 25), (15, False, None, 0)),
        (10, sample(900, 0, 25, records=12, oldest_ms=400), (15, False, 500, 0)),
        (10, sample(900, 0, 25, records=15, oldest_ms=400), (15, True, 500, 0)),
        (10, sample(900, 0, 25, records=99, oldest_ms=400), (15, True, 500, 0)),
        (25, sample(900, 0, 25), (0, True, 0, 0)),
        (24, sample(900, 0, 25, records=0), (1, False, 0, 0)),  # the log ends with a transaction marker
        (10, sample(900, 20, 25), (15, False, None, 10)),
        (10, sample(900, 20, 25, records=5, oldest_ms=400), (15, False, 500, 10)),
        (10, sample(900, 40, 40), (30, False, 0, 30)),
        (30, sample(900, 0, 25), (-5, True, 0, 0)),
    ],
    ids=[
        "at most",
        "compacted",
        "counted",
        "counted when more was there",
        "none",
        "marker",
        "lost",
        "lost, counted",
        "all lost",
        "beyond the end",
    ],
)
def test_lag_of_a_partition(committed: int, look: LagSample, expected: tuple[int, bool, int | None, int]) -> None:
    (row,) = lag_rows(CommitSeries(commits((0, committed, 100))), [look], ExpiryState(), Limits())
    assert (row.lag_records, row.is_exact, row.lag_ms, row.lost_records) == expected


def test_a_partition_without_a_commit_has_no_lag() -> None:
    looks = [sample(900, 0, 9, partition=1), sample(50, 0, 9)]
    assert lag_rows(CommitSeries(commits((0, 5, 100))), looks, ExpiryState(), Limits()) == []


def generation(kind: GroupKind, *members: Member, protocol_type: str = "consumer") -> Generation:
    return Generation("g", 3, kind, 5_000, None, None, None, protocol_type, None, None, members, Place(0, 0, 5_000, 0))


READER = Member("m", "c", "/h", topics=("orders",))
BY_REGEX = Member("m", "c", "/h", topic_regex="ord.*")


@pytest.mark.parametrize(
    ("latest", "topic", "expected"),
    [
        (None, "orders", 9_000 + DAY_MS),
        (generation(GroupKind.CLASSIC), "orders", 5_000 + DAY_MS),
        (generation(GroupKind.CONSUMER), "orders", 9_000 + DAY_MS),
        (generation(GroupKind.CLASSIC, READER), "orders", None),
        (generation(GroupKind.CLASSIC, READER), "former", 9_000 + DAY_MS),
        (generation(GroupKind.CONSUMER, READER), "former", 9_000 + DAY_MS),
        (generation(GroupKind.CONSUMER, BY_REGEX), "former", None),
        (generation(GroupKind.CLASSIC, READER, protocol_type="connect"), "former", None),
    ],
    ids=[
        "no group record",
        "empty classic group: since it is empty",
        "empty KIP-848 group: since the commit",
        "subscribed",
        "a topic no longer subscribed to",
        "the same, KIP-848",
        "by expression",
        "another protocol",
    ],
)
def test_when_an_offset_expires(latest: Generation | None, topic: str, expected: int | None) -> None:
    limits = Limits(offsets_retention_ms=DAY_MS)
    assert expires_ms(topic, Committed(1, 9_000), expiry_state(latest), limits) == expected
