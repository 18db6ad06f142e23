"""The four ways in which a rebalance can go, in the order in which the post on the coordinator describes them (C7,
figures 6-18 to 6-20).

Two things differ from the post. Its group begins as Stable with nobody in it, Kafka's as Empty, and an empty group
waits a while for more members (group.initial.rebalance.delay.ms) before its first rebalance ends. And in its figure
6-20 a follower that joins second is answered at once, against its own rule; here and in Kafka it waits.
"""

import pytest

from muster.coordinator.groups.effects import EventCause, RebalanceStarted
from muster.coordinator.groups.group import GroupState
from muster.errors import ErrorCode
from tests.support.group_harness import GroupHarness


@pytest.fixture
def four(group: GroupHarness) -> GroupHarness:
    """A stable group of four, the first of whom leads."""
    return group.stable_with("first", "second", "third", "fourth")


def causes(group: GroupHarness) -> list[EventCause]:
    return [event.cause for event in group.events_of(RebalanceStarted)]


def test_first_rebalance(group):
    """Figure 6-18, upper half: nobody has a member id yet."""
    # 1. The first consumer adds itself, becomes leader, and prepares the rebalance: it alone makes the delayed join.
    group.join("first")
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.waits("first")
    # 2. The second finds the rebalance prepared: it only adds itself. So does every later one.
    group.tick(1000).join("second").tick(1000).join("third")
    assert causes(group) == [EventCause.MEMBER_JOINED]
    # 3. All wait until the coordinator has collected everybody: then all are answered at once.
    assert all(group.waits(name) for name in ("first", "second", "third"))
    group.tick(4000)
    assert group.joined("first") == (1, "first", ["first", "second", "third"])
    assert group.joined("second") == (1, "first", [])
    assert group.joined("third") == (1, "first", [])


def test_second_rebalance_with_the_leader_first(four):
    """Figure 6-18, lower half: everybody has a member id."""
    # 1. The first consumer is the leader: in a stable group it prepares the rebalance.
    four.join("first")
    assert four.state is GroupState.PREPARING_REBALANCE
    assert causes(four)[1:] == [EventCause.LEADER_REJOINED]
    # 2. The second has an id too: it updates itself and waits, and so do the others.
    four.join("second").join("third")
    assert all(four.waits(name) for name in ("first", "second", "third"))
    # 3. When the last one has joined, all are answered.
    four.join("fourth")
    assert four.joined("first") == (2, "first", ["first", "second", "third", "fourth"])
    assert [four.joined(name) for name in ("second", "third", "fourth")] == [(2, "first", [])] * 3


def test_others_before_the_leader(four):
    """Figure 6-19: the leader is not the first to join."""
    # 1. and 2. The first two to join are not the leader and nothing about them changed: answered at once, lucky ones.
    four.join("second").join("third")
    assert four.joined("second") == four.joined("third") == (1, "first", [])
    assert causes(four)[1:] == []
    # 3. The third to join is the leader. Nobody has added or updated anything before: it prepares the rebalance.
    four.join("first")
    assert four.state is GroupState.PREPARING_REBALANCE
    # 4. The fourth is too late to be lucky, and waits with the leader.
    four.join("fourth")
    assert four.waits("first")
    assert four.waits("fourth")
    # The lucky ones learn of it from their next heartbeat, and join again.
    assert four.heartbeat("second", generation=1) == ErrorCode.REBALANCE_IN_PROGRESS
    four.join("second").join("third")
    assert four.joined("first") == (2, "first", ["first", "second", "third", "fourth"])
    assert four.joined("second") == (2, "first", [])


def test_a_new_member_first(four):
    """Figure 6-20: a consumer without a member id comes before everybody else."""
    # 1. The newcomer is neither leader nor known, but the first to add itself: it prepares the rebalance.
    four.join("newcomer")
    assert four.state is GroupState.PREPARING_REBALANCE
    assert causes(four)[1:] == [EventCause.MEMBER_JOINED]
    # 2., 3. and 4. All others find the rebalance prepared and wait, including the leader.
    for name in ("second", "first", "third"):
        four.join(name)
        assert four.waits(name)
    # 5. Although the newcomer started the rebalance, the old leader stays leader: it gets the members, the newcomer
    # does not.
    four.join("fourth")
    assert four.joined("first") == (2, "first", ["first", "second", "third", "fourth", "newcomer"])
    assert four.joined("newcomer") == (2, "first", [])


def test_the_leader_assigns_and_each_gets_its_share(group):
    """How all four end (J4): the leader sends the assignment, the others send none, each member gets its own."""
    group.join("first").join("second").tick(6000)
    group.sync("second")
    assert group.waits("second")
    group.sync("first", {"first": b"partitions 0, 1", "second": b"partitions 2, 3"})
    assert (group.share("first"), group.share("second")) == (b"partitions 0, 1", b"partitions 2, 3")
    assert group.state is GroupState.STABLE
