"""What range and roundrobin guarantee; tests/oracle compares them with Kafka's own results."""

from __future__ import annotations

import pytest
from hypothesis import given as drawn
from hypothesis import settings

from muster.assignors import BUILTIN, MemberSubscription, RangeAssignor, RoundRobinAssignor, get_assignor
from tests.support.groups import check_complete, given, groups, loads, partitions


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@settings(deadline=None)
@drawn(group=groups(equal=False))
def test_each_partition_goes_to_one_member_that_wants_it(name, group):
    check_complete(group.topics, group.members, get_assignor(name).assign(group.topics, group.members))


@settings(deadline=None)
@drawn(group=groups(equal=True))
def test_roundrobin_is_balanced_within_one_for_equal_subscriptions(group):
    found = loads(RoundRobinAssignor().assign(group.topics, group.members))
    assert max(found) - min(found) <= 1


def test_range_gives_the_same_numbers_of_equally_large_topics_to_a_member():
    members = {name: MemberSubscription(["orders", "payments"]) for name in ("a", "b", "c")}
    assert given(RangeAssignor().assign({"orders": 5, "payments": 5}, members)) == {
        "a": partitions("orders:0-1 payments:0-1"),
        "b": partitions("orders:2-3 payments:2-3"),
        "c": partitions("orders:4 payments:4"),
    }


@pytest.mark.parametrize("name", BUILTIN)
def test_a_topic_without_partitions_changes_nothing_for_the_others(name):
    members = {"a": MemberSubscription(["empty", "t"]), "b": MemberSubscription(["t"])}
    found = get_assignor(name).assign({"empty": 0, "t": 3}, members)
    assert found == get_assignor(name).assign({"t": 3}, members)


def test_static_members_come_first_in_the_order_of_their_instance_ids():
    members = {
        "a": MemberSubscription(["t"]),
        "b": MemberSubscription(["t"], group_instance_id="second"),
        "c": MemberSubscription(["t"], group_instance_id="first"),
    }
    expected = {"c": partitions("t:0"), "b": partitions("t:1"), "a": partitions("t:2")}
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        assert given(assignor.assign({"t": 3}, members)) == expected


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize(
    ("topics", "wanted"),
    [({}, [["t"]]), ({"t": 0}, [["t"]]), ({"t": 3}, [[], []]), ({"t": 3}, []), ({"other": 3}, [["t"], ["t"]])],
    ids=["no metadata", "no partitions", "no subscriptions", "no members", "another topic"],
)
def test_nothing_to_share_out_is_an_empty_share_for_everybody(name, topics, wanted):
    members = {f"m{number}": MemberSubscription(topics) for number, topics in enumerate(wanted)}
    assert given(get_assignor(name).assign(topics, members)) == {name: [] for name in members}


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_topic_named_twice_counts_once(name):
    members = {"a": MemberSubscription(["t", "t"]), "b": MemberSubscription(["t"])}
    assert loads(get_assignor(name).assign({"t": 4}, members)) == [2, 2]
