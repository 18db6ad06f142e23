"""ZooKeeper's counters and the formulas that they are compared with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.compare.rules.counters import ZooKeeperCounters, parse_mntr, read_counters
from muster.compare.rules.formulas import (
    TITLES,
    Range,
    Scheme,
    formula_texts,
    notifications_curve,
    reads_curve,
    reads_of_change,
    reads_range,
    requests_curve,
    start_notifications,
    start_reads_curve,
    start_rebalances,
    writes_curve,
    writes_range,
)
from muster.errors import MusterError

MNTR = {
    "cnt_updatelatency": 12.0,
    "cnt_readlatency": 900.0,  # with pings
    "cnt_consumers_read_per_namespace": 40.0,
    "sum_consumers_read_per_namespace": 9_999.0,
    "cnt_brokers_read_per_namespace": 2.0,
    "cnt_brokers_write_per_namespace": 77.0,
    "sum_node_children_watch_count": 5.0,
    "sum_node_changed_watch_count": 1.0,
    "sum_node_created_watch_count": 0.0,
    "sum_node_deleted_watch_count": 2.0,
    "packets_received": 1_000.0,
}


def test_counters_leave_pings_out() -> None:
    assert read_counters(MNTR) == ZooKeeperCounters(reads=42, writes=12, watches=8, packets=1_000)
    with pytest.raises(MusterError, match=r"3\.6"):
        read_counters({"packets_received": 5.0})


def test_the_answer_of_mntr_is_parsed() -> None:
    answer = "zk_version\t3.9.3\nzk_cnt_updatelatency\t7\nzk_avg_latency\t0.5\nno tab\n"
    assert parse_mntr(answer) == {"cnt_updatelatency": 7.0, "avg_latency": 0.5}


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    before = ZooKeeperCounters(40, 12, 8, 1_000)
    assert ZooKeeperCounters(41, 15, 8, 1_010).since(before) == ZooKeeperCounters(1, 3, 0, 10)
    assert ZooKeeperCounters(3, 2, 1, 20).since(before) == ZooKeeperCounters(3, 2, 1, 20)
    assert ZooKeeperCounters(1, 2, 3, 4) + ZooKeeperCounters(1, 1, 1, 1) == ZooKeeperCounters(2, 3, 4, 5)


@given(st.integers(1, 300))
def test_the_start_is_the_sum_of_its_changes(members: int) -> None:
    assert start_rebalances(members) == sum(range(members + 1))
    assert start_notifications(members) == sum(notifications_curve(Scheme.WATCHERS)(n) for n in range(1, members + 1))
    total = start_reads_curve(Scheme.WATCHERS, 8, 1)(members)
    assert total == sum(reads_of_change(n, 8, 1) for n in range(1, members + 1))


@pytest.mark.parametrize(
    ("members", "failed", "conflicts", "least", "most"),
    [
        (1, 0, 0, 8, 18),  # no offset exists yet
        (4, 0, 0, 44, 54),
        (5, 0, 0, 60, 70),
        (2, 1, 4, 18, 39),
        (3, 2, 3, 30, 59),
    ],
)
def test_reads_of_a_change(members: int, failed: int, conflicts: int, least: int, most: int) -> None:
    """The maximum is what a real ZooKeeper counted below a chroot, where all offsets existed."""
    allowed = reads_range(members, 8, 1, failed, conflicts)
    assert allowed == Range(least, most)
    assert [count in allowed for count in (least - 1, least, most, most + 1)] == [False, True, True, False]


@given(st.integers(1, 60), st.integers(1, 64), st.integers(0, 5), st.integers(0, 20))
def test_what_goes_wrong_costs_more(members: int, partitions: int, failed: int, conflicts: int) -> None:
    calm, reads = reads_range(members, partitions, 3, 0, 0), reads_range(members, partitions, 3, failed, conflicts)
    assert reads.most - calm.most == failed * (members + 7) + conflicts
    assert reads.least == calm.least
    writes = writes_range(members, partitions, failed, conflicts)
    assert writes.least <= 2 * partitions + 2 <= writes.most


def test_what_later_schemes_cost_does_not_grow() -> None:
    for members in (2, 1_000):
        assert reads_curve(Scheme.SERVER, 8, 3)(members) == reads_curve(Scheme.MEMBERS, 8, 3)(members) == 0
        assert [writes_curve(scheme, 8)(members) for scheme in (Scheme.SERVER, Scheme.MEMBERS)] == [1, 0]
    assert [requests_curve(scheme)(5) for scheme in (Scheme.WATCHERS, Scheme.SERVER, Scheme.MEMBERS)] == [0, 5, 11]
    assert reads_curve(Scheme.WATCHERS, 8, 3)(1_000) == 1_000_000 + 9_000 + 8


def test_every_scheme_has_words() -> None:
    for scheme in Scheme:
        assert scheme in TITLES
        assert formula_texts(scheme).keys() == {"reads", "writes", "notifications", "requests"}
    assert str(Range(3, 3)) == "3"
    assert str(Range(3, 4_000)) == "3 to 4,000"
