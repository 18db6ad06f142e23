"""Groups to which the coordinator assigns: who may join, what they get, and what triggers a new assignment."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import EventCause, GroupLoaded, JoinRefused, RebalanceCompleted, RebalanceStarted
from muster.coordinator.groups.group import GroupState
from muster.coordinator.groups.server_assignment import COORDINATOR_LEADS
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.subscription import decode_subscription
from tests.support.assigned_group import AssignedGroup, reads
from tests.support.group_harness import GroupHarness

T = [("t", 0), ("t", 1), ("t", 2), ("t", 3)]


@pytest.fixture
def group() -> AssignedGroup:
    return AssignedGroup()


def records_of(group: GroupHarness) -> list[Any]:
    return [record.value for record in group.records if isinstance(record, GroupMetadataRecord)]


def last_cause(group: GroupHarness) -> EventCause:
    return EventCause(group.events_of(RebalanceStarted)[-1].cause)


# ------------------------------------------------------------------------------------------------------------- joining


def test_the_answer_to_a_join_follows_one_record_with_members_and_shares(group: AssignedGroup):
    group.settle("a", "b")
    empty, stable = records_of(group)
    assert (empty.generation, empty.members) == (0, [])
    assert (stable.generation, stable.leader, stable.protocol) == (1, COORDINATOR_LEADS, "range")
    assert all(member.assignment for member in stable.members)
    assert group.state is GroupState.STABLE


def test_no_member_leads(group: AssignedGroup):
    group.settle("a", "b")
    for name in "ab":
        answer = group.joined_as(name)
        assert answer.leader == COORDINATOR_LEADS
        assert (answer.members, answer.skip_assignment, answer.protocol_name) == ([], False, "range")
    assert group.events_of(RebalanceCompleted)[-1].leader == COORDINATOR_LEADS


def test_shares_are_there_at_once_and_the_same_for_each_sync(group: AssignedGroup):
    group.settle("a", "b")
    assert group.shares() == group.shares() == {"a": T[:2], "b": T[2:]}


def test_what_a_sync_brings_changes_nothing(group: AssignedGroup):
    group.settle("a", "b").sync("a", {"a": b"mine", "b": b"yours"})
    assert group.shares() == {"a": T[:2], "b": T[2:]}


def test_a_member_that_never_syncs_is_removed(group: AssignedGroup):
    group.settle("a", "b").sync("a")
    for _ in range(12):
        group.tick(5_000)
        group.heartbeat("a")
        group.heartbeat("b")
    assert "b" not in group.members
    assert last_cause(group) is EventCause.MEMBER_DID_NOT_SYNC


@pytest.mark.parametrize(
    ("protocols", "share"),
    [
        ({"range": reads("t", "u")}, [("t", 0), ("t", 1), ("u", 0)]),
        ({"roundrobin": reads("t", "u")}, [("t", 0), ("t", 2), ("u", 0)]),
        ({"cooperative-sticky": reads("t"), "range": reads("t")}, [("t", 0), ("t", 1)]),
        ({"sticky": b"of its own", "roundrobin": reads("t")}, [("t", 0), ("t", 2)]),
    ],
)
def test_it_assigns_by_a_strategy_that_it_knows(group: AssignedGroup, protocols: Any, share: Any):
    group.settle("a", "b", protocols=protocols)
    assert group.shares()["a"] == share


def test_the_strategy_is_one_that_all_members_know(group: AssignedGroup):
    both = {"roundrobin": reads("t"), "range": reads("t")}
    group.join("a", protocols=both).settle("b")
    assert group.group.protocol_name == "range"


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"protocols": {"sticky": reads("t")}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "range and roundrobin"),
        ({"protocols": {"cooperative-sticky": reads("t")}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "cooperative"),
        ({"protocols": {"range": reads("t")}, "protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "co"),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "supports no strategy"),
        ({"protocols": {"roundrobin": reads("t")}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "other members"),
        ({"protocols": {"range": b""}}, ErrorCode.INVALID_REQUEST, "range cannot be decoded"),
        ({"protocols": {"range": b"\0\1\0\0\0\5x"}}, ErrorCode.INVALID_REQUEST, "range cannot be decoded"),
        ({"protocols": {"range": b"\xff\xff\0\0\0\0"}}, ErrorCode.INVALID_REQUEST, "version -1"),
    ],
)
def test_a_member_that_does_not_fit_is_refused_and_hurts_no_other(
    group: AssignedGroup, fields: Any, error: ErrorCode, reason: str
):
    group.settle("a")
    group.join("x", **fields)
    assert group.error("x") is error
    (refused,) = group.events_of(JoinRefused)
    assert refused.client_id == "client-x"
    assert reason in refused.reason
    assert (group.state, group.heartbeat("a"), group.members) == (GroupState.STABLE, ErrorCode.NONE, ["a"])


def test_a_known_member_that_comes_again_with_garbage_keeps_its_place(group: AssignedGroup):
    group.settle("a", "b").rejoin("b", protocols={"range": b"\0"})
    assert group.error("b") is ErrorCode.INVALID_REQUEST
    assert group.shares() == {"a": T[:2], "b": T[2:]}


def test_a_group_that_its_store_does_not_take_is_refused_at_its_join():
    """No answer may contain a generation that was never written."""

    def fits(record: GroupMetadataRecord) -> bool:
        return len(record.value.members if record.value else ()) < 3

    group = AssignedGroup(GroupConfig(server_assigned_groups="g", record_fits=fits)).settle("a", "b")
    group.join("c", protocols={"range": reads("t")}).rejoin("a", "b")
    assert [group.error(name) for name in "abc"] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 3
    assert (group.state, last_cause(group)) == (GroupState.EMPTY, EventCause.TOO_LARGE)
    group.ids.clear()
    group.tick(120_000).settle("a", "b")
    assert group.shares() == {"a": T[:2], "b": T[2:]}


def test_members_beyond_the_partitions_are_idle_and_take_over(group: AssignedGroup):
    names = ["a", "b", "c", "d", "e"]
    group.settle(*names)
    assert group.shares() == {"a": [T[0]], "b": [T[1]], "c": [T[2]], "d": [T[3]], "e": []}
    group.leave("b").rejoin("a", "c", "d", "e")
    assert group.shares() == {"a": [T[0]], "c": [T[1]], "d": [T[2]], "e": [T[3]]}


def test_topics_that_do_not_exist_yet_are_no_hindrance(group: AssignedGroup):
    group.settle("a", protocols={"range": reads("later")})
    assert group.shares() == {"a": []}


# ------------------------------------------------------------------------------------------------------------ in place


def test_a_member_that_comes_again_with_the_same_topics_gets_its_share_again(group: AssignedGroup):
    """Clients append the partitions that they own and their generation to the topics; here that makes no difference."""
    group.settle("a", "b", protocols={"range": reads("t", version=1)})
    owned = [TopicPartition("t", 0)]
    group.rejoin("a", protocols={"range": reads("t", version=3, owned_partitions=owned, generation_id=1)})
    assert group.joined_as("a").generation_id == 1
    assert group.heartbeat("b") is ErrorCode.NONE


def test_only_the_topics_of_a_subscription_are_kept(group: AssignedGroup):
    owned = [TopicPartition("t", 0)]
    metadata = reads("u", "t", version=3, owned_partitions=owned, generation_id=1, user_data=b"x" * 100, rack_id="r")
    group.settle("a", protocols={"range": metadata})
    (member,) = group.group.described().members
    found = decode_subscription(member.member_metadata)
    assert (found.topics, found.owned_partitions, found.user_data, found.rack_id) == (["t", "u"], [], b"", None)


def test_another_subscription_is_a_rebalance(group: AssignedGroup):
    group.settle("a", "b").rejoin("b", protocols={"range": reads("t", "u")})
    assert last_cause(group) is EventCause.SUBSCRIPTION_CHANGED
    assert group.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    group.rejoin("a")
    assert group.shares() == {"a": T[:2], "b": [*T[2:], ("u", 0), ("u", 1)]}


def test_a_static_member_that_comes_back_keeps_its_share_and_its_place(group: AssignedGroup):
    group.join("b", instance="one", protocols={"range": reads("t")}).settle("a", instance="two")
    before = group.shares()
    group.ids.pop("b")
    group.rejoin("b", instance="one")
    answer = group.joined_as("b")
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (1, COORDINATOR_LEADS, False)
    assert group.shares() == before == {"b": T[:2], "a": T[2:]}
    assert group.restart().shares() == before


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_member_that_comes_back_with_other_topics_is_a_rebalance(group: AssignedGroup, version: int):
    """In a classic group its leader would handle it (KIP-814); here no member does."""
    group.join("b", instance="one", protocols={"range": reads("t")}).settle("a")
    group.ids.pop("b")
    group.rejoin("b", instance="one", protocols={"range": reads("u")}, version=version)
    assert last_cause(group) is EventCause.STATIC_MEMBER_REPLACED
    group.rejoin("a")
    assert group.shares() == {"b": [("u", 0), ("u", 1)], "a": T}


def test_a_static_member_comes_back_after_a_restart_with_all_strategies_it_had(group: AssignedGroup):
    both = {"range": reads("t"), "roundrobin": reads("t")}
    group.settle("a", instance="one", protocols=both).restart()
    group.ids.pop("a")
    group.rejoin("a", instance="one", protocols=both)
    assert group.joined_as("a").generation_id == 1


def test_a_static_member_that_has_not_joined_keeps_partitions(group: AssignedGroup):
    group.session_timeout_ms = 200_000
    group.join("s", instance="one", protocols={"range": reads("t")}).settle("a")
    group.join("b", protocols={"range": reads("t")}).rejoin("a").tick(group.rebalance_timeout_ms)
    assert group.joined_as("a").generation_id == 2
    assert group.shares() == {"s": T[:2], "a": [T[2]], "b": [T[3]]}


def test_leaving_and_expiry_are_rebalances(group: AssignedGroup):
    group.settle("a", "b", "c").leave("c")
    assert last_cause(group) is EventCause.MEMBER_LEFT
    group.rejoin("a", "b")
    assert group.shares() == {"a": T[:2], "b": T[2:]}
    group.tick(9_000)
    group.heartbeat("a")
    group.tick(2_000)
    assert last_cause(group) is EventCause.MEMBER_EXPIRED
    group.rejoin("a")
    assert group.shares() == {"a": T}


def test_the_last_member_leaves_an_empty_group_that_the_next_one_finds(group: AssignedGroup):
    group.settle("a").leave("a")
    assert (group.state, group.group.leader_id) == (GroupState.EMPTY, None)
    group.settle("b")
    assert (group.joined_as("b").generation_id, group.shares()) == (3, {"b": T})


# -------------------------------------------------------------------------------------------------------------- topics


@pytest.mark.parametrize(
    ("before", "change", "cause", "reason", "share"),
    [
        ({}, {"t": 6}, EventCause.PARTITIONS_GAINED, "t-4, t-5", [*T, ("t", 4), ("t", 5)]),
        ({}, {"t": 0}, EventCause.TOPIC_DELETED, ": t", []),
        ({"t": 0}, {"t": 4}, EventCause.PARTITIONS_GAINED, "t-0, t-1, t-2 and 1 more", T),
    ],
)
def test_partitions_that_come_or_go_are_a_rebalance(
    group: AssignedGroup, before: Any, change: Any, cause: EventCause, reason: str, share: Any
):
    group.topics.partitions.update(before)
    group.settle("a")
    group.topics.partitions.update(change)
    group.topics_changed("t")
    assert last_cause(group) is cause
    assert group.events_of(RebalanceStarted)[-1].reason.endswith(reason)
    assert group.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    group.rejoin("a")
    assert group.shares() == {"a": share}


def test_partitions_without_a_leader_are_not_assigned_until_it_is_back(group: AssignedGroup):
    group.settle("a", "b")
    group.topics.leaderless = {("t", 0), ("t", 1), ("t", 3)}
    group.topics_changed()
    assert last_cause(group) is EventCause.LEADERS_LOST
    group.rejoin("a", "b")
    assert group.shares() == {"a": [("t", 2)], "b": []}
    group.topics.leaderless = {("t", 3)}
    group.topics_changed()
    assert last_cause(group) is EventCause.PARTITIONS_GAINED
    group.rejoin("a", "b")
    assert group.shares() == {"a": T[:2], "b": [("t", 2)]}


def test_what_makes_no_difference_is_not_a_rebalance(group: AssignedGroup):
    group.settle("a")
    started = len(group.events_of(RebalanceStarted))
    group.topics_changed("t").topics_changed()
    group.topics.partitions["u"] = 9  # nobody in the group reads it
    group.topics_changed("u").topics_changed()
    group.topics.partitions["t"] = 5
    group.topics_changed("u")  # the change is about another topic
    assert len(group.events_of(RebalanceStarted)) == started
    group.topics_changed("t", "u")
    assert len(group.events_of(RebalanceStarted)) == started + 1


def test_a_change_while_the_group_rebalances_is_part_of_that_rebalance(group: AssignedGroup):
    group.settle("a", "b")
    group.join("c", protocols={"range": reads("t")})
    group.topics.partitions["t"] = 6
    group.topics_changed("t").rejoin("a", "b")
    assert len(group.events_of(RebalanceStarted)) == 2
    assert sorted(each for share in group.shares().values() for each in share) == [*T, ("t", 4), ("t", 5)]


def test_other_groups_of_the_shard_are_left_alone(group: AssignedGroup):
    group.settle("a", protocols={"range": reads("t")})
    other = AssignedGroup(group.config)
    other.shard, other.topics, other.group_id, other._tickets = group.shard, group.topics, "g2", 1_000
    other.settle("x", protocols={"range": reads("u")})
    group.topics.partitions["t"] = 5
    group.topics_changed()
    assert group.state is GroupState.PREPARING_REBALANCE
    assert other.state is GroupState.STABLE


def test_a_classic_group_is_left_to_its_leader():
    group = GroupHarness(GroupConfig(server_assigned_groups="other")).stable_with("a", "b")
    group.topics.partitions["t"] = 9
    group._take(group.shard.topics_changed(None, group.now))
    assert (group.leader, group.state) == ("a", GroupState.STABLE)


# ------------------------------------------------------------------------------------------------------------- restart


def test_a_restart_keeps_generation_and_shares(group: AssignedGroup):
    group.settle("a", "b")
    before = group.shares()
    events = len(group.events)
    group.restart()
    assert group.events[events:] == [GroupLoaded("g", 1, 2, 0)]
    assert (group.generation, group.heartbeat("a"), group.shares()) == (1, ErrorCode.NONE, before)


def test_what_changed_while_no_coordinator_watched_is_found_at_the_restart(group: AssignedGroup):
    group.settle("a")
    group.topics.partitions["t"] = 5
    group.restart()
    assert last_cause(group) is EventCause.PARTITIONS_GAINED


def test_switched_on_over_a_restart(group: AssignedGroup):
    group.config.server_assigned_groups = None
    classic = AssignedGroup(group.config)
    classic.stable_with("a", "b", protocols={"range": reads("t")})
    classic.config.server_assigned_groups = "g"
    classic.restart()
    assert last_cause(classic) is EventCause.ASSIGNER_CHANGED
    assert classic.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    classic.rejoin("a", "b")
    assert classic.shares() == {"a": T[:2], "b": T[2:]}


def test_switched_on_for_a_group_with_a_strategy_that_the_coordinator_does_not_know(group: AssignedGroup):
    """Its record contains only that strategy. The members start over, and those that support another strategy are
    accepted."""
    group.config.server_assigned_groups = None
    classic = AssignedGroup(group.config)
    both = {"sticky": reads("t"), "range": reads("t")}
    classic.stable_with("a", "b", protocols=both)
    classic.config.server_assigned_groups = "g"
    classic.restart()
    assert (classic.state, last_cause(classic)) == (GroupState.EMPTY, EventCause.ASSIGNER_CHANGED)
    assert classic.heartbeat("a") is ErrorCode.UNKNOWN_MEMBER_ID
    classic.ids.clear()
    classic.settle("a", "b", protocols=both)
    assert classic.shares() == {"a": T[:2], "b": T[2:]}


def test_switched_on_while_a_static_member_with_unreadable_topics_is_away(group: AssignedGroup):
    group.config.server_assigned_groups = None
    classic = AssignedGroup(group.config)
    classic.session_timeout_ms = 200_000
    classic.join("s", instance="one", protocols={"range": b"?"}).join("a", protocols={"range": reads("t")})
    classic.tick(6_000).sync_all()
    classic.config.server_assigned_groups = "g"
    classic.restart().rejoin("a").tick(classic.rebalance_timeout_ms)
    assert classic.shares() == {"s": [], "a": T}


def test_switched_off_over_a_restart(group: AssignedGroup):
    group.settle("a", "b")
    group.config.server_assigned_groups = None
    group.restart()
    assert last_cause(group) is EventCause.ASSIGNER_CHANGED
    group.rejoin("a", "b")
    assert group.joined("a") == (2, "a", ["a", "b"])
    assert group.joined("b") == (2, "a", [])


def test_switched_off_for_an_empty_group(group: AssignedGroup):
    group.settle("a").leave("a")
    group.config.server_assigned_groups = None
    group.restart().ids.clear()
    assert group.stable_with("b").leader == "b"


# ------------------------------------------------------------------------------------------------------------ describe


def test_describe_and_list_show_it_as_any_group(group: AssignedGroup):
    group.settle("a", "b")
    described = group.shard.describe("g", 6)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert [bool(member.member_assignment) for member in described.members] == [True, True]
    (listed,) = group.shard.list_groups([], [])
    assert (listed.group_state, listed.group_type) == ("Stable", "classic")


def test_commits_of_members_are_checked_as_in_any_group(group: AssignedGroup):
    group.settle("a", "b")
    group.shares()
    assert group.commit("a", {("t", 0): 5}) == [ErrorCode.NONE]
    group.leave("b")
    assert group.commit("a", {("t", 0): 6}) == [ErrorCode.NONE]
    group.rejoin("a")
    assert group.commit("a", {("t", 0): 7}, generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    assert group.committed("t", 0) == 6
