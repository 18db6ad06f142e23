"""`test_any_history.py` with a coordinator that assigns: topics, leaders and the setting change, too."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import RebalanceStarted
from muster.coordinator.groups.group import GroupState
from muster.coordinator.groups.server_assignment import COORDINATOR_LEADS, STRATEGIES, ServerAssignment
from muster.protocol.subscription import Subscription, decode_assignment, encode_subscription
from tests.support.assigned_group import AssignedGroup
from tests.support.group_harness import FakeTopics, GroupHarness
from tests.support.scale import examples
from tests.unit.coordinator.test_any_history import AnyHistory

TOPICS = ("t", "u", "v")


class AnyAssignedHistory(AnyHistory):
    """Whatever happens, a stable group is assigned the partitions that its members can read, each exactly once."""

    def new_harness(self, config: GroupConfig) -> GroupHarness:
        config.server_assigned_groups = "g"
        return AssignedGroup(config)

    @rule(topic=st.sampled_from(TOPICS[:2]), count=st.integers(0, 5))
    def a_topic_has_other_partitions(self, topic: str, count: int) -> None:
        self.harness.topics.partitions[topic] = count
        self.the_groups_notice(topic)

    @rule(partitions=st.sets(st.tuples(st.sampled_from(TOPICS[:2]), st.integers(0, 4)), max_size=3))
    def others_have_no_leader(self, partitions: set[tuple[str, int]]) -> None:
        self.harness.topics.leaderless = partitions
        self.the_groups_notice()

    def the_groups_notice(self, *names: str) -> None:
        assert isinstance(self.harness, AssignedGroup)
        self.harness.topics_changed(*names)

    @rule()
    def the_setting_is_changed(self) -> None:
        config = self.harness.config
        config.server_assigned_groups = None if config.server_assigned_groups else "g"
        self.the_coordinator_restarts()

    @rule()
    def nothing_changes_over_a_restart(self) -> None:
        """A stable group continues as it is."""
        group, events = self.group(), len(self.harness.events)
        was_stable = group is not None and group.state is GroupState.STABLE and group.assigner is not None
        self.the_coordinator_restarts()
        news = self.harness.events[events:]
        assert not (was_stable and any(isinstance(event, RebalanceStarted) for event in news)), news

    # ------------------------------------------------------------------------------------------------------- invariants

    def is_led(self, group: ClassicGroup) -> bool:
        if group.assigner is None or group.state is not GroupState.STABLE:
            return group.leader_id is None if not group.members else True
        return group.leader_id == COORDINATOR_LEADS

    @invariant()
    def no_share_has_two_owners(self) -> None:
        group = self.group()
        if group is None or group.assigner is None or group.state is not GroupState.STABLE:
            return
        found = []
        for member in group.members.values():
            share = decode_assignment(member.assignment).partitions
            assert {partition.topic for partition in share} <= set(TOPICS)
            found += [(partition.topic, partition.partition) for partition in share]
        topics = self.harness.topics
        readable = [
            (topic, number) for topic in group.subscribed_topics or () for number in topics.led_partitions(topic)
        ]
        assert sorted(found) == sorted(readable)

    @invariant()
    def no_request_finds_it_between_join_and_shares(self) -> None:
        group = self.group()
        assert group is None or group.assigner is None or group.state is not GroupState.COMPLETING_REBALANCE


AnyAssignedHistory.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAnyAssignedHistory = AnyAssignedHistory.TestCase


@given(
    strategy=st.sampled_from(sorted(STRATEGIES)),
    counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6)),
    leaderless=st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 5))),
    members=st.lists(st.tuples(st.none() | st.sampled_from("xyz"), st.sets(st.sampled_from(TOPICS))), max_size=6),
)
def test_what_can_be_read_has_one_reader_each(
    strategy: str, counts: dict[str, int], leaderless: set[tuple[str, int]], members: list[tuple[str | None, set[str]]]
) -> None:
    topics = FakeTopics()
    topics.partitions, topics.leaderless = counts, leaderless
    assignment = ServerAssignment(topics)
    asked = [
        (f"m{number}", instance, encode_subscription(Subscription(sorted(wanted)), 0))
        for number, (instance, wanted) in enumerate(members)
    ]
    shares = assignment.assign(strategy, asked)
    assert shares == assignment.assign(strategy, asked[::-1])
    assert set(shares) == {member_id for member_id, _, _ in asked}
    owned = [
        (partition.topic, partition.partition)
        for share in shares.values()
        for partition in decode_assignment(share).partitions
    ]
    wanted = {topic for _, each in members for topic in each}
    assert sorted(owned) == sorted((topic, number) for topic in wanted for number in topics.led_partitions(topic))
    for (_, mine), (member_id, _, _) in zip(members, asked, strict=True):
        assert {partition.topic for partition in decode_assignment(shares[member_id]).partitions} <= mine
    assert assignment.rebalance_cause(wanted, shares.values()) is None
