"""Static members (KIP-345): a client that restarts counts as the same member because of its `group.instance.id`."""

import pytest

from muster.coordinator.groups.effects import EventCause, MemberFenced, RebalanceStarted
from muster.coordinator.groups.group import GroupState
from muster.errors import ErrorCode
from muster.protocol.messages import MemberIdentity
from tests.support.group_harness import DEFAULT_PROTOCOLS, GroupHarness

SUBSCRIPTION = DEFAULT_PROTOCOLS["range"]


@pytest.fixture
def statics(group: GroupHarness) -> GroupHarness:
    """A stable group of a leader `a` and a member `b`, both static."""
    return group.join("a", instance="ia").join("b", instance="ib").tick(6000).sync_all()


def test_static_members_join_at_once(group):
    assert group.join_once("a", instance="ia").waits("a")


def test_a_static_member_that_comes_back_takes_its_share_without_a_rebalance(statics):
    statics.join("b2", member_id="", instance="ib")
    assert statics.state is GroupState.STABLE
    assert statics.joined("b2") == (1, "a", [])
    assert statics.sync("b2").share("b2") == b"b"
    assert statics.events_of(MemberFenced)[-1].new_member_id == statics.ids["b2"]
    assert len(statics.events_of(RebalanceStarted)) == 1


def test_the_takeover_is_a_sign_of_life(statics):
    statics.tick(9_000).join("b2", member_id="", instance="ib").tick(9_999)
    assert statics.heartbeat("b2") != ErrorCode.UNKNOWN_MEMBER_ID


def test_the_takeover_is_kept(statics):
    statics.join("a2", member_id="", instance="ia").restart()
    assert statics.members == ["a2", "b"]
    statics.join("b2", member_id="", instance="ib").restart()
    assert statics.heartbeat("b2", instance="ib") == ErrorCode.NONE
    assert statics.heartbeat("b", instance="ib") == ErrorCode.FENCED_INSTANCE_ID


def test_a_takeover_with_which_the_group_is_too_large_for_its_store_is_refused(statics):
    """Its new subscription is larger, and the record contains all of it."""
    most = sum(map(len, DEFAULT_PROTOCOLS.values())) * 2
    statics.config.record_fits = lambda record: sum(len(m.subscription) for m in record.value.members) < most
    records = len(statics.log)
    large = {name: metadata + bytes(most) for name, metadata in DEFAULT_PROTOCOLS.items()}
    statics.join("b2", member_id="", instance="ib", protocols=large)
    assert statics.error("b2") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert statics.events_of(RebalanceStarted)[-1].cause is EventCause.TOO_LARGE
    assert (statics.state, len(statics.log)) == (GroupState.EMPTY, records + 1)


def test_whoever_had_the_instance_id_before_is_fenced(statics):
    statics.join("b2", member_id="", instance="ib")
    assert statics.heartbeat("b", instance="ib") == ErrorCode.FENCED_INSTANCE_ID
    assert statics.sync("b", group_instance_id="ib").error("b") == ErrorCode.FENCED_INSTANCE_ID
    assert statics.join("b", instance="ib").error("b") == ErrorCode.FENCED_INSTANCE_ID
    assert statics.leave_many(MemberIdentity(statics.ids["b"], "ib")).left() == [0, ErrorCode.FENCED_INSTANCE_ID]
    assert statics.commit("b", {("t", 0): 5}, instance="ib") == [ErrorCode.FENCED_INSTANCE_ID]
    assert statics.commit("b", {("t", 0): 5}, instance="other") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert statics.committed("t", 0) == -1


def test_a_static_member_that_dies_after_a_long_sync_is_missed(statics):
    """While its SyncGroup waits nothing expires; once it must rejoin, it has exactly its session timeout."""
    statics.join("a", instance="ia").join("b", instance="ib").sync("b")
    for _ in range(4):
        statics.tick(4_000).heartbeat("a", instance="ia")
    statics.leave("a")
    assert statics.error("b") == ErrorCode.REBALANCE_IN_PROGRESS
    assert statics.tick(9_999).members == ["b"]
    statics.tick(1)
    assert (statics.members, statics.state) == ([], GroupState.EMPTY)


def test_a_leader_that_comes_back_does_not_assign_again(statics):
    """KIP-814: it gets the members, so that it can watch their topics, but skips the assignment."""
    statics.join("a2", member_id="", instance="ia")
    assert statics.joined("a2") == (1, "a2", ["a2", "b"])
    assert statics.reply("a2").skip_assignment


def test_an_older_leader_that_comes_back_does_not_learn_that_it_leads(statics):
    """Before version 9 it would compute an assignment; it gets the id of the previous leader."""
    old = statics.ids["a"]
    statics.join("a2", member_id="", instance="ia", version=8)
    assert (statics.reply("a2").leader, statics.reply("a2").members) == (old, [])


def test_coming_back_with_a_protocol_that_changes_the_choice_rebalances(group):
    both = {"range": SUBSCRIPTION, "sticky": SUBSCRIPTION}
    group.join("a", instance="ia", protocols=both).join("b", instance="ib", protocols=both).tick(6000).sync_all()
    group.join("b2", member_id="", instance="ib", protocols={"sticky": SUBSCRIPTION})
    assert group.waits("b2")
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.STATIC_MEMBER_REPLACED


def test_coming_back_in_the_sync_phase_rebalances(statics):
    """Otherwise the leader would assign to the old id, which is the one it knows."""
    statics.join("a", instance="ia").join("b", instance="ib").sync("b", group_instance_id="ib")
    waiting = statics.last_ticket["b"]
    statics.join("b2", member_id="", instance="ib")
    assert statics.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert statics.state is GroupState.PREPARING_REBALANCE


def test_coming_back_in_the_join_phase_fences_whoever_waits(statics):
    statics.join("b", instance="ib", protocols={"range": SUBSCRIPTION + b"more"})
    waiting = statics.last_ticket["b"]
    statics.join("b2", member_id="", instance="ib")
    assert statics.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    statics.join("a", instance="ia")
    assert statics.joined("a") == (2, "a", ["a", "b2"])


def test_static_members_are_not_dropped_by_the_rebalance_timeout(group):
    """Only their session ends their membership: a restart may take longer than a rebalance."""
    long = {"session_timeout_ms": 100_000}
    group.join("a", instance="ia", **long).join("b", instance="ib", **long).tick(6000).sync_all()
    group.join("a", instance="ia", **long).tick(60_000)
    assert group.joined("a") == (2, "a", ["a", "b"])


def test_a_rebalance_to_which_nobody_comes_is_put_off(group):
    """Static members are not removed by the rebalance, so one must join, or their sessions must expire, before it can
    end."""
    long = {"session_timeout_ms": 100_000}
    group.join("a", instance="ia", **long).join("b", instance="ib", **long).join("c").tick(6000).sync_all()
    group.leave("c").tick(65_000)
    assert (group.state, group.generation) == (GroupState.PREPARING_REBALANCE, 1)
    group.tick(35_000)
    assert (group.state, group.generation) == (GroupState.EMPTY, 2)


def test_operators_remove_static_members_by_their_instance_ids(statics):
    statics.leave_many(MemberIdentity("", "ib"), MemberIdentity("", "never seen"), MemberIdentity("", None))
    assert statics.left() == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert statics.members == ["a"]


def test_a_static_member_that_falls_silent_makes_room_for_its_name(statics):
    statics.tick(9_999)
    statics.heartbeat("a")
    statics.tick(1)
    assert statics.join("b2", member_id="", instance="ib").waits("b2")
    assert statics.join("a", instance="ia").joined("a") == (2, "a", ["a", "b2"])


def test_a_static_member_that_was_the_last_to_be_missed_ends_the_wait_when_it_comes_back(statics):
    """Restarted during a rebalance, with a new id: nobody waits for the rebalance timeout of the old id."""
    statics.join("c").join("a", instance="ia")
    assert statics.waits("a")
    statics.join("b2", member_id="", instance="ib")
    assert statics.joined("b2")[:2] == statics.joined("a")[:2] == statics.joined("c")[:2] == (2, "a")
