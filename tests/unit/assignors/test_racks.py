"""Racks (KIP-881): balance first, then rack, then previous owner. tests/oracle compares with Kafka's own results."""

from __future__ import annotations

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from muster.assignors import BUILTIN, MemberSubscription, get_assignor
from muster.assignors.previous import encode_previous_assignment
from tests.support.groups import check_complete, given, groups, loads, partitions

A, B, C = frozenset("a"), frozenset("b"), frozenset("c")
PLACES = st.frozensets(st.sampled_from("abc"), max_size=3)


@pytest.mark.parametrize("name", BUILTIN)
@settings(deadline=None)
@drawn(group=groups(equal=False), data=st.data())
def test_each_partition_goes_to_one_member_that_wants_it_and_racks_cost_no_balance(name, group, data):
    seats = {topic: data.draw(st.lists(PLACES, min_size=n, max_size=n)) for topic, n in group.topics.items()}
    if name == "cooperative-sticky":  # it would leave out partitions that move
        for member in group.members.values():
            member.owned_partitions = []
    plain = get_assignor(name).assign(group.topics, group.members)
    for member in group.members.values():
        member.rack_id = data.draw(st.sampled_from(["a", "b", "c", "", None]))
    found = get_assignor(name).assign_by_rack(group.topics, group.members, seats)
    check_complete(group.topics, group.members, found)
    if name == "range":  # each topic is balanced separately
        for topic in group.topics:
            shares = [[number for t, number in share.partitions if t == topic] for share in found.values()]
            wanted = [len(shares[at]) for at, m in enumerate(group.members.values()) if topic in m.topics]
            assert not wanted or max(wanted) - min(wanted) <= 1
    else:
        assert sorted(loads(found)) == sorted(loads(plain))


def members(*racks: str, topics: tuple[str, ...] = ("t",), **owned: str) -> dict[str, MemberSubscription]:
    return {
        f"m{number}": MemberSubscription(list(topics), rack_id=rack, user_data=_past(owned.get(f"m{number}")))
        for number, rack in enumerate(racks)
    }


def _past(owned: str | None) -> bytes:
    return b"" if owned is None else encode_previous_assignment(partitions(owned), 1)


@pytest.mark.parametrize("name", ["range", "sticky", "cooperative-sticky"])
def test_each_member_reads_in_its_own_rack_where_that_is_possible(name):
    found = get_assignor(name).assign_by_rack({"t": 4}, members("b", "a"), {"t": [A, A, B, B]})
    assert given(found) == {"m0": partitions("t:2-3"), "m1": partitions("t:0-1")}


@pytest.mark.parametrize("name", ["range", "sticky", "cooperative-sticky"])
def test_balance_comes_before_the_rack(name):
    found = get_assignor(name).assign_by_rack({"t": 4}, members("a", "b"), {"t": [A, A, A, B]})
    assert sorted(loads(found)) == [2, 2]
    assert partitions("t:3")[0] in found["m1"].partitions


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("seats", [[A | B] * 4, [C, C, C, A | C], [frozenset()] * 4])
def test_racks_that_make_no_difference_are_left_out_of_account(name, seats):
    """All partitions are in all racks, no member is in any of their racks, or no racks are known."""
    group = members("b", "b")
    assert get_assignor(name).assign_by_rack({"t": 4}, group, {"t": seats}) == get_assignor(name).assign(
        {"t": 4}, group
    )


def test_range_keeps_numbers_of_equally_large_topics_together_though_one_topic_could_be_nearer():
    seats = {"t": [A, B, A, B], "u": [A, A, B, B]}
    found = get_assignor("range").assign_by_rack({"t": 4, "u": 4}, members("a", "b", topics=("t", "u")), seats)
    assert given(found) == {"m0": partitions("t:0-1 u:0-1"), "m1": partitions("t:2-3 u:2-3")}


def test_sticky_moves_a_partition_that_is_no_longer_in_its_members_rack():
    group = members("a", "b", m0="t:0-1", m1="t:2-3")
    found = get_assignor("sticky").assign_by_rack({"t": 4}, group, {"t": [A, B, B, A]})
    assert given(found) == {"m0": partitions("t:0 t:3"), "m1": partitions("t:1-2")}


def test_sticky_keeps_what_is_near_though_another_order_would_be_as_good():
    group = members("a", "a", "b", m0="t:2", m1="t:0", m2="t:1")
    found = get_assignor("sticky").assign_by_rack({"t": 3}, group, {"t": [A, B, A]})
    assert given(found) == {"m0": partitions("t:2"), "m1": partitions("t:0"), "m2": partitions("t:1")}


def test_members_with_other_topics_keep_what_is_near():
    group = {
        "m0": MemberSubscription(["t", "u"], rack_id="a", user_data=_past("t:1 u:0")),
        "m1": MemberSubscription(["t"], rack_id="b", user_data=_past("t:0 t:2")),
    }
    found = get_assignor("sticky").assign_by_rack({"t": 3, "u": 1}, group, {"t": [A, B, B], "u": [A]})
    assert given(found) == {"m0": partitions("t:0 u:0"), "m1": partitions("t:1-2")}


def test_what_balance_has_moved_away_comes_near_again():
    """m0 alone wants u; t goes to it first, and then to another member: to the one in its rack."""
    group = {
        "m0": MemberSubscription(["t", "u"], rack_id="b"),
        "m1": MemberSubscription(["t"], rack_id="a"),
        "m2": MemberSubscription(["t"], rack_id="b"),
    }
    found = get_assignor("sticky").assign_by_rack({"t": 1, "u": 1}, group, {"t": [B], "u": [A]})
    assert given(found) == {"m0": partitions("u:0"), "m1": [], "m2": partitions("t:0")}
