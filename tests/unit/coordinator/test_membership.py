"""Heartbeats, sync, leaving, sessions, and what is restored after a restart."""

import pytest

from muster.coordinator.groups.effects import EventCause, ExpiryKind, MemberExpired, MemberLeft, RebalanceStarted
from muster.coordinator.groups.group import GroupState
from muster.errors import ErrorCode
from muster.protocol import codec
from muster.protocol.group_records import GroupMetadataRecord, encode_record
from muster.protocol.messages import GroupMetadataValue, MemberIdentity
from tests.support.group_harness import GroupHarness

# ------------------------------------------------------------------------------------------------ heartbeat and session


@pytest.mark.parametrize(
    ("generation", "error"),
    [(0, ErrorCode.ILLEGAL_GENERATION), (1, ErrorCode.NONE), (2, ErrorCode.ILLEGAL_GENERATION)],
)
def test_a_heartbeat_names_its_generation(group, generation, error):
    assert group.stable_with("a").heartbeat("a", generation) == error


def test_heartbeats_of_nobody(group):
    group.ids["x"] = "x"
    assert group.heartbeat("x") == ErrorCode.UNKNOWN_MEMBER_ID
    group.stable_with("a")
    assert group.heartbeat("x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat("a", instance="never seen") == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_heartbeats_in_time_stays(group):
    """H1."""
    group.stable_with("a", "b")
    for _ in range(10):
        group.tick(9_999)
        assert group.heartbeat("a") == group.heartbeat("b") == ErrorCode.NONE


def test_who_is_silent_is_removed_and_the_rest_rebalances(group):
    """H1, H5: its partitions are assigned to the others."""
    group.stable_with("a", "b").tick(9_999)
    group.heartbeat("a")
    group.tick(1)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.heartbeat("b") == ErrorCode.UNKNOWN_MEMBER_ID
    (expired,) = group.events_of(MemberExpired)
    assert (expired.member_id, expired.kind, expired.timeout_ms) == (group.ids["b"], ExpiryKind.SESSION, 10_000)
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.MEMBER_EXPIRED
    assert group.join("a").joined("a") == (2, "a", ["a"])


def test_a_group_whose_members_all_fell_silent_is_empty(group):
    group.stable_with("a", "b").tick(10_000)
    assert group.state is GroupState.EMPTY
    assert group.generation == 2
    assert group.replayed().groups["g"].state is GroupState.EMPTY


def test_who_waits_for_others_need_not_heartbeat(group):
    """H1: a member waiting in join or sync is kept alive."""
    group.stable_with("a", "b").join("a")
    for _ in range(5):
        group.tick(9_000)
        group.heartbeat("b")
    group.join("b").sync("b")
    for _ in range(5):
        group.tick(9_000)
        group.heartbeat("a")
    assert group.waits("b")
    assert group.sync_leader().share("b") == b"b"


@pytest.mark.parametrize("is_rebalancing", [False, True])
def test_a_commit_is_a_sign_of_life_if_it_is_not_refused(group, is_rebalancing):
    """H1: in a stable group, and from a member that commits before it gives up its partitions."""
    group.stable_with("a", "b", "c")
    if is_rebalancing:
        group.join("a")
        assert group.state is GroupState.PREPARING_REBALANCE
    for _ in range(5):
        group.tick(5_000)
        assert group.commit("b", {("t", 0): 1}) == [ErrorCode.NONE]
        if group.events_of(MemberExpired) == []:
            assert group.commit("c", {("t", 0): 1}, generation=7) == [ErrorCode.ILLEGAL_GENERATION]
        group.heartbeat("a")
    (expired,) = group.events_of(MemberExpired)
    assert (expired.member_id, expired.kind) == (group.ids["c"], ExpiryKind.SESSION)


def test_who_was_answered_must_heartbeat_again(group):
    """Its deadline passed without effect while it waited, in a join and in a sync, so it is set again."""
    group.stable_with("a", "b").join("a")
    for _ in range(2):
        group.tick(9_000)
        group.heartbeat("b")
    group.join("b").tick(9_999)
    assert group.heartbeat("a") == group.heartbeat("b") == ErrorCode.NONE
    group.sync("b")
    for _ in range(2):
        group.tick(9_000)
        group.heartbeat("a")
    group.sync_leader().tick(9_999)
    assert group.heartbeat("a") == ErrorCode.NONE
    group.tick(1)
    assert group.heartbeat("b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_whose_wait_ends_when_another_expires_does_not_expire_with_it(group):
    """Both deadlines are due at once. The first expiry completes the join, which answers the second member: it is no
    longer waiting then, but its session has only begun."""
    group.stable_with("a", "b").join("b", protocols={"range": b"\0\0changed"}).tick(10_000)
    assert group.joined("b") == (2, "b", ["b"])
    assert group.members == ["b"]


def test_who_was_silent_first_is_removed_first(group):
    """Even if the coordinator checks late."""
    group.join("a", session_timeout_ms=12_000).join("b", session_timeout_ms=11_000).join("c").tick(9000).sync_all()
    group.now += 60_000
    events = group.shard.on_deadline(group.now).events
    expired = [event.member_id for event in events if isinstance(event, MemberExpired)]
    assert expired == [group.ids[name] for name in ("c", "b", "a")]


def test_a_new_member_that_never_syncs_expires(group):
    group.join("a").tick(3_000).tick(9_999)
    assert group.members == ["a"]
    group.tick(1)
    assert group.state is GroupState.EMPTY


def test_a_new_member_that_heartbeats_while_it_waits_is_bound_to_it(group):
    """It knows its id (KIP-394), so it can, and having begun it must continue, as in Kafka."""
    group.stable_with("a", session_timeout_ms=1_800_000).join("b").tick(20_000)
    assert group.heartbeat("b") == ErrorCode.REBALANCE_IN_PROGRESS
    group.tick(10_000)
    assert group.error("b") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_does_not_wait_forever(group):
    """Its client may have given up long ago and joined again with another id, not knowing its first one."""
    long = {"rebalance_timeout_ms": 1_000_000, "session_timeout_ms": 1_000_000}
    group.stable_with("a", **long).join("b", **long).tick(299_999)
    assert group.waits("b")
    group.tick(1)
    assert group.error("b") == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.events_of(MemberExpired)[-1].kind is ExpiryKind.NEW


# ----------------------------------------------------------------------------------------------------------------- sync


def test_who_comes_after_the_leader_is_answered_at_once(group):
    group.join("a").join("b").tick(6000).sync_leader()
    assert group.state is GroupState.STABLE
    assert group.sync("b").share("b") == b"b"
    assert group.reply("b").protocol_type == "consumer"
    assert group.reply("b").protocol_name == "range"


def test_who_gets_nothing_is_idle(group):
    """H7: more members than partitions."""
    group.join("a").join("b").tick(6000).sync("b").sync("a", {"a": b"all there is"})
    assert group.share("b") == b""


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "never seen"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"version": 5}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"version": 5, "protocol_type": "consumer"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"version": 5, "protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.NONE),
    ],
)
def test_sync_guards(group, fields, error):
    """KIP-559: members say which protocol they believe in, and since version 5 they must."""
    group.join("a").tick(3000)
    assert group.sync("a", {}, **fields).error("a") == error


def test_who_does_not_sync_in_time_is_dropped(group):
    group.join("a").join("b").tick(6000).sync_leader()
    for _ in range(6):
        group.tick(9_999)
        group.heartbeat("a")
        group.heartbeat("b")
    group.tick(6)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.members == ["a"]
    assert group.events_of(MemberExpired)[-1].kind is ExpiryKind.SYNC
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.MEMBER_DID_NOT_SYNC


def test_who_has_not_synced_is_dropped_though_its_session_is_longer(group):
    group.join("a", session_timeout_ms=1_000_000).join("b", session_timeout_ms=1_000_000).tick(6000).sync_leader()
    group.tick(59_999)
    assert group.state is GroupState.STABLE
    group.tick(1)
    assert group.members == ["a"]


def test_a_leader_alone_that_does_not_sync_is_dropped(group):
    """Nothing else is due for a long time: the deadline for its sync must be waited for on its own."""
    group.stable_with("a", session_timeout_ms=1_000_000).tick(100_000).join("a", session_timeout_ms=1_000_000)
    assert group.tick(59_999).members == ["a"]
    assert group.tick(1).members == []


def test_the_time_for_syncs_ends_with_the_sync_phase(group):
    """A member that was late for a generation that is over only has to be on time for the next one."""
    long = {"session_timeout_ms": 1_000_000}
    group.join("a", **long).join("b", **long).tick(6000).tick(50_000).join("c", **long).tick(59_999)
    assert group.members == ["a", "b", "c"]


def test_shares_of_a_generation_that_failed_are_gone(group):
    group.stable_with("a", "b").join("c").join("a").join("b")
    assert group.group.members[group.ids["b"]].assignment == b"b"
    group.join("d")
    assert [member.member_assignment for member in group.shard.describe("g", 5).members] == [b""] * 4


def test_a_leader_that_does_not_sync_is_dropped_and_the_others_start_over(group):
    group.join("a").join("b").tick(6000).sync("b")
    for _ in range(6):
        group.tick(9_999)
        group.heartbeat("a")
    group.tick(6)
    assert group.error("b") == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.join("b").joined("b") == (2, "b", ["b"])


def test_a_sync_that_is_sent_twice_is_answered_twice(group):
    group.join("a").join("b").tick(6000).sync("b")
    first = group.last_ticket["b"]
    group.sync("b")
    assert group.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.sync_leader().share("b") == b"b"


def test_a_newcomer_in_the_sync_phase_sends_all_back_to_join(group):
    group.join("a").join("b").tick(6000).sync("b").join("c")
    assert group.error("b") == ErrorCode.REBALANCE_IN_PROGRESS
    group.join("a").join("b")
    assert group.joined("a") == (2, "a", ["a", "b", "c"])


# ---------------------------------------------------------------------------------------------------------------- leave


def test_who_leaves_says_why(group):
    """KIP-800."""
    group.stable_with("a", "b").leave("b", reason="the consumer is being closed")
    assert group.left("b") == [0, 0]
    assert group.events_of(MemberLeft)[-1].reason == "the consumer is being closed"
    assert group.events_of(RebalanceStarted)[-1].cause is EventCause.MEMBER_LEFT
    assert group.join("a").joined("a") == (2, "a", ["a"])


def test_the_last_to_leave_empties_the_group(group):
    group.stable_with("a").leave("a")
    assert group.state is GroupState.EMPTY
    record = group.records[-1]
    assert isinstance(record, GroupMetadataRecord)
    assert record.value is not None
    assert (record.value.generation, record.value.members, record.value.leader) == (2, [], None)


def test_up_to_version_2_the_answer_is_about_one_member(group):
    group.stable_with("a")
    assert group.leave_many(MemberIdentity("x"), version=2).left() == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert group.leave("a", version=2).left("a") == [0]


def test_members_that_are_unknown_do_not_keep_others(group):
    group.stable_with("a", "b").leave_many(MemberIdentity("x"), MemberIdentity(group.ids["b"]))
    assert group.left() == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert group.state is GroupState.PREPARING_REBALANCE


def test_leaving_a_group_that_is_not_there(group):
    assert group.leave_many(MemberIdentity("x")).left() == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert group.leave_many(MemberIdentity("x"), version=1).left() == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert GroupHarness(group_id="").leave_many(MemberIdentity("x")).left() == [ErrorCode.INVALID_GROUP_ID]


def test_the_group_without_a_name_takes_commits_and_no_members():
    """A commit of a consumer that is in no group creates it (J7); members get INVALID_GROUP_ID, as from Kafka."""
    group = GroupHarness(group_id="")
    assert group.commit(None, {("t", 0): 7}) == [0]
    assert "" in group.shard.groups
    group.ids["reader"] = "m1"
    assert group.heartbeat("reader") == ErrorCode.INVALID_GROUP_ID
    assert group.sync("reader").error("reader") == ErrorCode.INVALID_GROUP_ID
    assert group.join("reader").error("reader") == ErrorCode.INVALID_GROUP_ID


def test_who_leaves_while_its_join_waits_is_answered(group):
    group.stable_with("a", "b").join("b", protocols={"range": b"\0\0changed"})
    waiting = group.last_ticket["b"]
    group.leave("b")
    assert group.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_leaves_while_its_sync_waits_is_answered(group):
    group.join("a").join("b").tick(6000).sync("b")
    waiting = group.last_ticket["b"]
    group.leave("b")
    assert group.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -------------------------------------------------------------------------------------------------------------- restart


def test_a_stable_group_continues_after_a_restart(group):
    group.stable_with("a", "b").tick(9_000).restart().tick(9_999)
    assert group.state is GroupState.STABLE
    assert group.heartbeat("a", 1) == group.heartbeat("b", 1) == ErrorCode.NONE
    assert group.sync("b").share("b") == b"b"
    assert group.join("b").joined("b") == (1, "a", [])


def test_sessions_start_over_at_a_restart(group):
    group.stable_with("a", "b").tick(9_000).restart().tick(9_999)
    group.heartbeat("a")
    group.tick(1)
    assert group.events_of(MemberExpired)[-1].member_id == group.ids["b"]


def test_the_leader_is_remembered(group):
    """It need not be the longest-standing member: here `a` missed a rebalance, but is static and so still a member."""
    long = {"session_timeout_ms": 1_000_000}
    group.join("a", instance="ia", **long).join("b", **long).tick(6000).sync_all()
    group.join("b", protocols={"range": b"\0\0changed"}, **long).tick(60_000).sync_leader().sync("b").restart()
    assert (group.leader, group.members) == ("b", ["a", "b"])
    group.join("a", instance="ia", **long).join("b", protocols={"range": b"\0\0changed"}, **long)
    group.join("a", instance="ia", **long)
    assert group.joined("b") == (3, "b", ["a", "b"])


def test_a_rebalance_under_way_is_lost_with_the_process(group):
    """Its members rejoin: the generation is again the last one that was stable."""
    group.stable_with("a", "b").join("a").join("b")
    assert group.generation == 2
    group.restart()
    assert (group.state, group.generation) == (GroupState.STABLE, 1)
    assert group.heartbeat("a", 2) == ErrorCode.ILLEGAL_GENERATION
    group.join("a").join("b")
    assert group.joined("a") == (2, "a", ["a", "b"])


def test_a_group_that_never_was_stable_is_known_after_a_restart(group):
    group.join_once("a").restart()
    assert (group.state, group.generation) == (GroupState.EMPTY, 0)
    assert group.join_once("a").error("a") == ErrorCode.UNKNOWN_MEMBER_ID


def test_unload_answers_whoever_waits(group):
    group.stable_with("a", "b").join("a").join("c")
    answered = [reply.ticket for reply in group.shard.unload(ErrorCode.NOT_COORDINATOR).replies]
    assert answered == [group.last_ticket["a"], group.last_ticket["c"]]


# -------------------------------------------------------------------------------------------- describe, list and delete


def test_describe(group):
    group.stable_with("a")
    described = group.shard.describe("g", 5)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("client-a", "/127.0.0.1", b"a")
    assert member.member_metadata.endswith(b"t\xff\xff\xff\xff")
    described = group.join("b").shard.describe("g", 5)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in described.members] == [b"", b""]


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_is_not_there_is_described_as_dead(group, version, error):
    described = group.shard.describe("nothing", version)
    assert (described.group_state, described.error_code) == ("Dead", error)


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], True),
        (["Stable"], [], True),
        ([" stable "], [], True),
        (["Empty"], [], False),
        (["Empty", "STABLE"], ["classic"], True),
        ([], ["Consumer"], False),
        (["Stable"], ["Consumer"], False),
    ],
)
def test_list(group, states, types, found):
    listed = group.stable_with("a").shard.list_groups(states, types)
    assert [(g.group_id, g.group_state, g.group_type) for g in listed] == [("g", "Stable", "classic")] * found


def test_delete(group):
    assert group.delete() == ErrorCode.GROUP_ID_NOT_FOUND
    group.stable_with("a").commit("a", {("t", 0): 4, ("u", 1): 5})
    assert group.delete() == ErrorCode.NON_EMPTY_GROUP
    assert group.leave("a").delete() == ErrorCode.NONE
    assert group.shard.groups == group.replayed().groups == {}
    assert group.committed("t", 0) == -1


def test_a_member_of_the_oldest_record_waits_for_its_session_timeout(group):
    """Version 0 of the record has no rebalance timeout."""
    group.stable_with("a", session_timeout_ms=7_000, rebalance_timeout_ms=60_000)
    record = next(record for record in reversed(group.records) if isinstance(record, GroupMetadataRecord))
    assert record.value is not None
    record.value.members[0].rebalance_timeout = -1
    key, _ = encode_record(record)
    value = bytearray(b"\0\0")
    codec.encoder(GroupMetadataValue, 0)(record.value, value.extend)
    group.log = [(key, bytes(value))]
    group.restart()
    assert [m.rebalance_timeout_ms for m in group.group.members.values()] == [7_000]


def test_the_topics_of_members_of_another_protocol_are_not_known(group):
    """The metadata of Kafka Connect's members is something else, although it may look like a Subscription by chance."""
    group.join("a", protocol_type="connect").tick(3_000).sync_leader()
    assert group.state is GroupState.STABLE
    assert group.group.subscribed_topics is None
