"""sticky: balance first, then as few moves as that allows; and who the owner was if members disagree."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement, product

import pytest
from hypothesis import given as drawn
from hypothesis import settings

from muster.assignors import MemberAssignment, MemberSubscription, StickyAssignor
from muster.assignors.previous import encode_previous_assignment
from muster.model import TopicPartition
from tests.support.groups import (
    Group,
    check_complete,
    cost,
    given,
    groups,
    least_cost,
    loads,
    member,
    partitions,
    previous,
)
from tests.support.scale import examples


@settings(deadline=None, max_examples=examples(300))
@drawn(group=groups(equal=True))
def test_equal_subscriptions_are_balanced_within_one_with_the_fewest_moves(group):
    assigned = StickyAssignor().assign(group.topics, group.members)
    check_complete(group.topics, group.members, assigned)
    assert max(loads(assigned)) - min(loads(assigned)) <= 1
    assert cost(group, assigned) == least_cost(group)


@settings(deadline=None, max_examples=examples(300))
@drawn(group=groups(equal=False))
def test_mixed_subscriptions_are_as_balanced_as_can_be_with_the_fewest_moves(group):
    assigned = StickyAssignor().assign(group.topics, group.members)
    check_complete(group.topics, group.members, assigned)
    assert cost(group, assigned) == least_cost(group)


@settings(deadline=None)
@drawn(group=groups(equal=False, most_members=12, most_partitions=15))
def test_no_single_move_improves_the_balance(group):
    assigned = StickyAssignor().assign(group.topics, group.members)
    check_complete(group.topics, group.members, assigned)
    for giver, share in assigned.items():
        for topic in {row.topic for row in share.partitions}:
            for name, subscription in group.members.items():
                if name != giver and topic in subscription.topics:
                    assert len(assigned[name].partitions) >= len(share.partitions) - 1


@settings(deadline=None)
@drawn(group=groups(equal=False, most_members=12, most_partitions=15))
def test_what_was_assigned_stays_when_nothing_changes(group):
    first = StickyAssignor().assign(group.topics, group.members)
    again = {
        name: MemberSubscription(
            subscription.topics, user_data=encode_previous_assignment(first[name].partitions, generation_id=2)
        )
        for name, subscription in group.members.items()
    }
    assert given(StickyAssignor().assign(group.topics, again)) == given(first)


GROUPS = {
    "a member left": ({"t": 6}, {"a": ("t", "t:0,3"), "c": ("t", "t:2,5")}, {"a": "t:0,1,3", "c": "t:2,4,5"}),
    "a member joins": (
        {"t": 6},
        {"a": ("t", "t:0,2,4"), "b": ("t", "t:1,3,5"), "c": ("t", "")},
        {"a": "t:0,2", "b": "t:1,3", "c": "t:4-5"},
    ),
    "a claim is made twice": ({"t": 4}, {"a": ("t", "t:0 t:0 t:1 t:0"), "b": ("t", "")}, {"a": "t:0-1", "b": "t:2-3"}),
    "a topic and partitions are gone": (
        {"t": 4},
        {"a": ("t gone", "t:0-1,7 gone:0-2"), "b": ("t gone", "t:2")},
        {"a": "t:0-1", "b": "t:2-3"},
    ),
    "a topic is not wanted any more": (
        {"t": 2, "u": 2},
        {"a": ("u", "t:0-1"), "b": ("t u", "")},
        {"a": "u:0-1", "b": "t:0-1"},
    ),
}


@pytest.mark.parametrize(("topics", "members", "expected"), GROUPS.values(), ids=GROUPS)
def test_as_little_moves_as_can_be(topics, members, expected):
    assigned = StickyAssignor().assign(topics, {name: member(*each) for name, each in members.items()})
    assert given(assigned) == {name: partitions(rows) for name, rows in expected.items()}


def test_balance_that_no_single_move_can_reach_is_found():
    # a can only give to m, and m only to b: with loads of 3, 2 and 1 neither move helps alone, both together do.
    members = {"a": member("x", "x:0-2"), "m": member("x y", "y:0-1"), "b": member("y z", "z:0")}
    assert loads(StickyAssignor().assign({"x": 3, "y": 2, "z": 1}, members)) == [2, 2, 2]


def test_who_goes_empty_is_chosen_so_that_the_fewest_partitions_move():
    # Three partitions for four members: two partitions stay with their owners only if c, not a, ends up empty.
    members = {"a": member("x y", "x:0"), "b": member("x y", "y:0-1"), "c": member("x"), "d": member("y")}
    claims = {name: subscription.owned_partitions for name, subscription in members.items()}
    group = Group({"x": 1, "y": 2}, members, claims)
    assert cost(group, StickyAssignor().assign(group.topics, members)) == (3, -2) == least_cost(group)


@pytest.mark.parametrize(
    ("a", "b", "owner"),
    [((5, "t:0-1"), (4, "t:0-1"), "a"), ((4, "t:0-1"), (5, "t:0-1"), "b"), ((-1, "t:0-1"), (0, "t:0-1"), "b")],
    ids=["a knows more", "b knows more", "no generation is the oldest"],
)
def test_of_two_claims_the_higher_generation_counts(a, b, owner):
    members = {"a": member("t", a[1], a[0]), "b": member("t", b[1], b[0])}
    assigned = given(StickyAssignor().assign({"t": 4}, members))
    assert assigned[owner] == partitions("t:0-1")


def test_two_claims_of_one_generation_cancel_each_other():
    members = {"a": member("t", "t:0-3", 5), "b": member("t", "t:0-3", 5)}
    fresh = {"a": member("t"), "b": member("t")}
    assert StickyAssignor().assign({"t": 4}, members) == StickyAssignor().assign({"t": 4}, fresh)


def test_a_third_claim_of_a_higher_generation_still_counts():
    members = {"a": member("t", "t:3", 5), "b": member("t", "t:3", 5), "c": member("t", "t:3", 6)}
    assert partitions("t:3")[0] in given(StickyAssignor().assign({"t": 6}, members))["c"]


def test_a_member_that_lost_nothing_gives_way_where_that_saves_a_move():
    # m3 must get one. It must not be one that its owner has to take back from a member with just as many.
    every = "t0 t1 t2"
    members = {
        "m0": member(every, "t2:0", 1),
        "m1": member(every, "t1:1 t2:1-2", 1),
        "m2": member(every, "t0:0 t1:0", 1),
        "m3": member("t0 t1", "", 1),
    }
    found = given(StickyAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, members))
    held = {name: set(subscription.owned_partitions) for name, subscription in members.items()}
    assert sum(len(held[name] - set(found[name])) for name in members) == 1
    assert sorted(map(len, found.values())) == [1, 1, 2, 2]


def test_a_negative_partition_claims_none_of_the_topic_before():
    row = TopicPartition("t", -1)
    members = {"a": member("s t"), "b": MemberSubscription(["s", "t"], [], 5)}
    members["b"].user_data = encode_previous_assignment([row], 5)
    fresh = {"a": member("s t"), "b": member("s t")}
    assert StickyAssignor().assign({"s": 2, "t": 2}, members) == StickyAssignor().assign({"s": 2, "t": 2}, fresh)


def test_a_member_without_topics_is_left_out_of_the_balance():
    members = {"a": member(""), "b": member("t"), "c": member("t")}
    assert loads(StickyAssignor().assign({"t": 4}, members)) == [0, 2, 2]


def test_the_assignment_does_not_depend_on_the_order_of_the_members():
    members = {name: member(topics) for name, topics in (("a", "t u"), ("b", "t"), ("c", "u"), ("d", "t u"))}
    backwards = dict(reversed(members.items()))
    assert given(StickyAssignor().assign({"t": 5, "u": 4}, members)) == given(
        StickyAssignor().assign({"t": 5, "u": 4}, backwards)
    )


def test_a_member_tells_the_leader_what_it_got_and_when():
    assignor = StickyAssignor()
    assert assignor.subscription_user_data(["t"]) == b""
    assignor.on_assignment(MemberAssignment(partitions("t:1,3")), 7)
    assert previous(assignor.subscription_user_data(["t"]), topics=["t"]) == [(7, partitions("t:1,3"))]


@pytest.mark.parametrize(
    ("ids", "topics"),
    [
        ("ab", {"t": 5}),
        ("abc", {"t": 3, "u": 2}),
        pytest.param("abcd", {"t": 2, "u": 2}, marks=pytest.mark.slow),
        pytest.param("abc", {"t": 2, "u": 1, "v": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_of_every_small_group_the_assignment_is_the_best_there_is(ids, topics):
    rows = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    kinds = [names for n in range(1, len(topics) + 1) for names in combinations(topics, n)]
    # Members differ only in what they want and own, so testing one order of what they want covers all orders.
    for wanted in combinations_with_replacement(kinds, len(ids)):
        candidates = [[None, *(m for m, names in enumerate(wanted) if row.topic in names)] for row in rows]
        for owners in product(*candidates):
            claims = {
                name: [row for row, owner in zip(rows, owners, strict=True) if owner == m] for m, name in enumerate(ids)
            }
            members = {
                name: MemberSubscription(list(wanted[m]), user_data=encode_previous_assignment(claims[name], 1))
                for m, name in enumerate(ids)
            }
            group = Group(topics, members, claims)
            assert cost(group, StickyAssignor().assign(topics, members)) == least_cost(group), group
