"""cooperative-sticky: as sticky, but what moves is revoked in one rebalance and given in the next."""

from __future__ import annotations

import struct

from hypothesis import given as drawn
from hypothesis import settings

from muster.assignors import CooperativeStickyAssignor, MemberAssignment, MemberSubscription, StickyAssignor
from muster.assignors.base import RebalanceProtocol
from muster.model import TopicPartition
from tests.support.groups import check_complete, cost, given, groups, least_cost, member, partitions


@settings(deadline=None, max_examples=200)
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


def test_a_partition_that_moves_is_given_to_nobody_at_first():
    members = {"a": member("t", "t:0-3"), "b": member("t")}
    assert given(CooperativeStickyAssignor().assign({"t": 4}, members)) == {"a": partitions("t:0-1"), "b": []}


def test_what_an_absent_member_had_is_given_at_once():
    members = {"a": member("t", "t:0"), "b": member("t", "t:1")}
    assert given(CooperativeStickyAssignor().assign({"t": 4}, members)) == {
        "a": partitions("t:0,2"),
        "b": partitions("t:1,3"),
    }


def test_what_two_members_claim_in_one_generation_is_revoked_from_both():
    members = {"a": member("t", "t:0-2"), "b": member("t", "t:2-3")}
    assert given(CooperativeStickyAssignor().assign({"t": 4}, members)) == {
        "a": partitions("t:0-1"),
        "b": partitions("t:3"),
    }


def test_what_two_members_claim_is_revoked_even_where_one_of_them_could_keep_it():
    members = {"a": member("t", "t:0-1"), "b": member("t", "t:1-2")}
    assert given(CooperativeStickyAssignor().assign({"t": 4}, members)) == {
        "a": partitions("t:0"),
        "b": partitions("t:2-3"),
    }


def test_the_claim_of_the_higher_generation_stays_where_it_is():
    members = {"a": member("t", "t:0-1", 4), "b": member("t", "t:1-2", 5)}
    assert given(CooperativeStickyAssignor().assign({"t": 3}, members))["b"] == partitions("t:1-2")


def test_what_a_member_no_longer_wants_is_revoked_before_it_is_given_on():
    members = {"a": member("u", "t:0 u:0"), "b": member("t")}
    assert given(CooperativeStickyAssignor().assign({"t": 1, "u": 1}, members)) == {"a": partitions("u:0"), "b": []}


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
