"""cooperative-sticky: like sticky, but a partition that moves is revoked in one rebalance and assigned in the next."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given as drawn
from hypothesis import settings

from muster.assignors import CooperativeStickyAssignor, MemberAssignment, MemberSubscription, StickyAssignor
from muster.assignors.base import RebalanceProtocol
from muster.model import TopicPartition
from tests.support.groups import check_complete, cost, given, groups, least_cost, member, partitions
from tests.support.scale import examples


@settings(deadline=None, max_examples=examples(200))
@drawn(group=groups(equal=False))
def test_two_rebalances_bring_the_best_assignment_and_no_partition_ever_has_two_owners(group):
    first = CooperativeStickyAssignor().assign(group.topics, group.members)
    owner = {row: name for name, rows in group.claims.items() for row in rows}
    for name, share in first.items():
        assert {owner.get(row, name) for row in share.partitions} <= {name}
    then = {
        name: MemberSubscription(subscription.topics, first[name].partitions, generation_id=2)
        for name, subscription in group.members.items()
    }
    second = CooperativeStickyAssignor().assign(group.topics, then)
    check_complete(group.topics, group.members, second)
    assert cost(group, second) == least_cost(group)
    for name, share in first.items():
        assert set(share.partitions) <= set(second[name].partitions)


GROUPS = {
    "what moves is given to nobody at first": ({"a": ("t", "t:0-3"), "b": ("t",)}, {"a": "t:0-1", "b": ""}),
    "what an absent member had is given at once": (
        {"a": ("t", "t:0"), "b": ("t", "t:1")},
        {"a": "t:0,2", "b": "t:1,3"},
    ),
    "what two claim is revoked from both": ({"a": ("t", "t:0-2"), "b": ("t", "t:2-3")}, {"a": "t:0-1", "b": "t:3"}),
    "and where one could keep it": ({"a": ("t", "t:0-1"), "b": ("t", "t:1-2")}, {"a": "t:0", "b": "t:2-3"}),
    "a higher generation keeps its claim": (
        {"a": ("t", "t:0-1", 4), "b": ("t", "t:1-3", 5)},
        {"a": "t:0", "b": "t:1-2"},
    ),
    "what is not wanted any more is given on later": ({"a": ("u", "t:0-3 u:0"), "b": ("t",)}, {"a": "u:0", "b": ""}),
}


@pytest.mark.parametrize(("members", "expected"), GROUPS.values(), ids=GROUPS)
def test_who_gets_what_of_four_partitions(members, expected):
    found = CooperativeStickyAssignor().assign(
        {"t": 4, "u": 1}, {name: member(*each) for name, each in members.items()}
    )
    assert given(found) == {name: partitions(rows) for name, rows in expected.items()}


def test_a_negative_partition_claims_none_of_the_topic_before():
    members = {"a": member("s t"), "b": MemberSubscription(["s", "t"], [TopicPartition("t", -1)], 5)}
    fresh = {"a": member("s t"), "b": member("s t")}
    assign = CooperativeStickyAssignor().assign
    assert assign({"s": 2, "t": 2}, members) == assign({"s": 2, "t": 2}, fresh)


def test_the_generation_in_the_user_data_counts_only_where_the_subscription_has_none():
    old, new = struct.pack(">i", 4), struct.pack(">i", 5)

    def owner(a: MemberSubscription, b: MemberSubscription) -> str:
        assigned = given(CooperativeStickyAssignor().assign({"t": 2}, {"a": a, "b": b}))
        return next(name for name, rows in assigned.items() if partitions("t:0")[0] in rows)

    row = partitions("t:0")
    assert owner(MemberSubscription(["t"], row, user_data=old), MemberSubscription(["t"], row, user_data=new)) == "b"
    assert owner(MemberSubscription(["t"], row, 6, user_data=old), MemberSubscription(["t"], row, 5)) == "a"
    assert owner(MemberSubscription(["t"], row, user_data=b"\0"), MemberSubscription(["t"], row, 0)) == "b"


def test_a_member_sends_its_generation_as_javas_does():
    assignor = CooperativeStickyAssignor()
    assert assignor.subscription_user_data(["t"]) == b"\xff\xff\xff\xff"
    assignor.on_assignment(MemberAssignment(partitions("t:0")), 9)
    assert assignor.subscription_user_data(["t"]) == b"\0\0\0\x09"


def test_it_can_also_work_in_an_eager_group():
    assert CooperativeStickyAssignor.protocols == (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE)
    assert StickyAssignor.protocols == (RebalanceProtocol.EAGER,)
