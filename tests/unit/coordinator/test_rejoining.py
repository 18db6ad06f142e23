"""Why a known member's JoinGroup starts a rebalance, as reported in the event: other topics, fewer partitions,
neither."""

from __future__ import annotations

import pytest

from muster.coordinator.groups.effects import EventCause, GroupLoaded, RebalanceStarted
from muster.model import TopicPartition
from muster.protocol.subscription import Subscription, encode_subscription
from tests.support.group_harness import GroupHarness


def reads(*topics: str, owns: tuple[int, ...] = ()) -> dict[str, bytes]:
    owned = [TopicPartition("t", number) for number in owns]
    return {"range": encode_subscription(Subscription(list(topics), owned))}


@pytest.fixture
def group() -> GroupHarness:
    """Two members that read `t`, both of which have partitions."""
    group = GroupHarness()
    group.join("a", protocols=reads("t", owns=(0, 1))).join("b", protocols=reads("t", owns=(2, 3)))
    return group.tick(3_000).tick(3_000).sync_leader()


def cause(group: GroupHarness) -> EventCause:
    started: RebalanceStarted = group.events_of(RebalanceStarted)[-1]
    return started.cause


@pytest.mark.parametrize(
    ("name", "protocols", "found"),
    [
        ("b", reads("t", "u", owns=(2, 3)), EventCause.SUBSCRIPTION_CHANGED),
        ("a", reads("u", owns=(0, 1)), EventCause.SUBSCRIPTION_CHANGED),
        ("b", reads("t", owns=(2,)), EventCause.PARTITIONS_REVOKED),
        ("a", reads("t", owns=()), EventCause.PARTITIONS_REVOKED),
        ("b", reads("t", owns=(2, 3, 1)), EventCause.MEMBER_REJOINED),
        ("a", reads("t", owns=(0, 1)), EventCause.LEADER_REJOINED),
        ("a", reads("t", owns=(0, 1, 2)), EventCause.LEADER_REJOINED),
        ("b", {"range": b"not a subscription"}, EventCause.MEMBER_REJOINED),
        ("b", {"range": reads("t", owns=(2, 3))["range"], "sticky": b""}, EventCause.MEMBER_REJOINED),
    ],
)
def test_what_differs_from_its_last_join_says_why(
    group: GroupHarness, name: str, protocols: dict[str, bytes], found: EventCause
) -> None:
    group.join(name, protocols=protocols)
    assert cause(group) is found


@pytest.mark.parametrize("change", [{"t": 6}, {"t": 0}])
def test_a_leader_whose_topics_have_other_partitions(group: GroupHarness, change: dict[str, int]) -> None:
    group.topics.partitions.update(change, u=7)
    group.join("a", protocols=reads("t", owns=(0, 1)))
    assert cause(group) is EventCause.PARTITIONS_CHANGED


def test_other_topics_than_its_own_do_not_count(group: GroupHarness) -> None:
    group.topics.partitions["u"] = 7
    group.join("a", protocols=reads("t", owns=(0, 1)))
    assert cause(group) is EventCause.LEADER_REJOINED


def test_they_are_counted_again_in_each_generation(group: GroupHarness) -> None:
    group.topics.partitions["t"] = 6
    group.join("a", protocols=reads("t", owns=(0, 1))).join("b", protocols=reads("t", owns=(2, 3))).sync_leader()
    group.join("a", protocols=reads("t", owns=(0, 1)))
    assert cause(group) is EventCause.LEADER_REJOINED


def test_a_coordinator_that_has_read_the_group_counts_from_then_on(group: GroupHarness) -> None:
    group.restart()
    assert group.events[-1] == GroupLoaded("g", 1, 2, 0)
    group.topics.partitions["t"] = 6
    group.join("a", protocols=reads("t", owns=(0, 1)))
    assert cause(group) is EventCause.PARTITIONS_CHANGED


def test_of_other_protocols_nothing_is_known() -> None:
    group = GroupHarness()
    group.join("a", protocol_type="connect", protocols={"range": b"x"}).tick(3_000).sync_leader()
    group.join("a", protocol_type="connect", protocols={"range": b"y"})
    assert cause(group) is EventCause.LEADER_REJOINED


def test_the_state_before_tells_first_members_from_others(group: GroupHarness) -> None:
    group.leave("a").leave("b").join("c")
    assert [each.state for each in group.events_of(RebalanceStarted)][-1] == "Empty"
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.MEMBER_JOINED
