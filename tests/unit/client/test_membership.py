"""The classic member: J5, J7, J8, H3, H4, and how it takes each error of the group's requests."""

from __future__ import annotations

import re

import pytest

from muster.assignors import Assignor, MemberAssignment, RangeAssignor
from muster.client.core.group.member_state import MemberState, Step
from muster.client.core.group.requests import MAX_REASON_LENGTH
from muster.client.core.sends import Channel, FailureKind
from muster.errors import CommitFailedError, ErrorCode, KafkaError, MusterError
from muster.model import TopicPartition
from muster.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MetadataRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.subscription import Subscription, decode_subscription, encode_assignment
from tests.support.client_harness import ConsumerHarness, tp, tps

ALL = "flights-0 flights-1 flights-2 flights-3"


def manual(**settings):
    """A consumer without auto commit, so that only the group's requests are seen."""
    return ConsumerHarness(enable_auto_commit=False, **settings)


# --- joining ---------------------------------------------------------------------------------------------------------


def test_the_first_join_has_no_member_id_and_the_answer_gives_one():
    """J5."""
    consumer = manual()
    consumer.subscribe()
    assert consumer.join().member_id == ""
    consumer.refuse_join(ErrorCode.MEMBER_ID_REQUIRED, "m7")
    assert consumer.join().member_id == "m7"
    consumer.accept_join(member_id="m7", leader="m7")
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.finish_callback()
    assert consumer.join().member_id == "m7"


def test_a_join_says_who_and_what():
    consumer = manual(session_timeout_ms=9_000, max_poll_interval_ms=60_000, group_instance_id="i1", client_rack="r")
    consumer.subscribe("flights", "airports")
    join = consumer.join()
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (9_000, 60_000)
    assert (join.group_id, join.group_instance_id, join.protocol_type) == ("delays", "i1", "consumer")
    assert [protocol.name for protocol in join.protocols] == ["range"]
    assert decode_subscription(join.protocols[0].metadata) == Subscription(["airports", "flights"], rack_id="r")
    assert consumer.channel(JoinGroupRequest) is Channel.COORDINATOR
    send = next(send for send, request in consumer.pending if isinstance(request, JoinGroupRequest))
    assert send.timeout_ms == 65_000


def test_the_default_strategies_are_javas_and_make_an_eager_member():
    consumer = ConsumerHarness(partition_assignment_strategy=("range", "cooperative-sticky"), enable_auto_commit=False)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.finish_callback() == ("revoked", tps(ALL))
    assert [protocol.name for protocol in consumer.join().protocols] == ["range", "cooperative-sticky"]


def test_manual_assignment_never_joins():
    """J7."""
    consumer = manual()
    consumer.core.assign([tp("flights-1")])
    consumer.enter_poll()
    consumer.tick(60_000)
    assert consumer.sent(JoinGroupRequest) == []
    assert consumer.sent(HeartbeatRequest) == []
    assert consumer.member.state is MemberState.UNJOINED


def test_nothing_is_joined_before_the_user_polls():
    consumer = manual()
    consumer.core.subscribe(["flights"])
    consumer.tick(1_000)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.enter_poll()
    assert len(consumer.sent(JoinGroupRequest)) == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]
)
def test_some_errors_of_a_join_are_tried_again_at_once(code):
    consumer = manual()
    consumer.subscribe()
    consumer.refuse_join(code)
    assert consumer.join().reason == f"rebalance failed due to {code.name}"
    assert consumer.events == []


@pytest.mark.parametrize(
    ("code", "gives_up"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.NOT_COORDINATOR, True),
    ],
)
def test_some_errors_of_a_join_are_tried_again_after_a_backoff(code, gives_up):
    consumer = manual()
    consumer.subscribe()
    lookups = consumer.lookups
    consumer.refuse_join(code)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.tick(99)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.tick(1)
    assert len(consumer.sent(JoinGroupRequest)) == 1
    assert (consumer.lookups > lookups) is gives_up


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_other_errors_of_a_join_are_the_users_and_the_next_poll_tries_again(code):
    consumer = manual()
    consumer.subscribe()
    consumer.refuse_join(code)
    consumer.tick(60_000)
    assert consumer.sent(JoinGroupRequest) == []
    error = consumer.fatal()
    assert isinstance(error, KafkaError)
    assert error.code is code
    consumer.enter_poll()
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_a_group_of_another_type_is_refused():
    consumer = manual()
    consumer.subscribe()
    request = consumer.join()
    response = consumer_join_response(request, protocol_type="connect")
    consumer.answer(JoinGroupRequest, response)
    assert consumer.fatal().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def consumer_join_response(request, **fields):
    return JoinGroupResponse(generation_id=1, leader="x", member_id="m1", protocol_name="range", **fields)


def test_a_broken_connection_gives_the_coordinator_up_and_the_join_is_tried_again():
    consumer = manual()
    consumer.subscribe()
    consumer.coordinator = 2
    consumer.fail(JoinGroupRequest)
    consumer.tick(100)
    send = next(send for send, request in consumer.pending if isinstance(request, JoinGroupRequest))
    assert send.node_id == 2


def test_reasons_are_cut_to_what_a_broker_takes():
    """KIP-800."""
    consumer = manual()
    consumer.stable()
    consumer.core.enforce_rebalance("x" * 1_000)
    consumer.turn()
    consumer.finish_callback()
    assert consumer.join().reason == "x" * MAX_REASON_LENGTH


# --- leading and syncing ---------------------------------------------------------------------------------------------


def test_the_leader_assigns_and_the_follower_sends_nothing():
    """J3, J4."""
    leader = manual()
    leader.subscribe()
    leader.accept_join(others={"m2": Subscription(["flights"])})
    assert leader.shares() == {"m1": tps("flights-0 flights-1"), "m2": tps("flights-2 flights-3")}
    follower = manual()
    follower.subscribe()
    follower.accept_join(leader="m2")
    assert follower.sent(SyncGroupRequest)[0].assignments == []
    assert follower.sent(SyncGroupRequest)[0].protocol_name == "range"


def test_the_leader_fetches_metadata_of_topics_that_only_others_subscribe_to():
    consumer = manual()
    consumer.topics["airports"] = 2
    consumer.subscribe()
    consumer.auto.discard(MetadataRequest)
    consumer.accept_join(others={"m2": Subscription(["airports"])})
    assert consumer.member.step is Step.LEADING
    request = consumer.sent(MetadataRequest)[0]
    assert [topic.name for topic in request.topics] == ["airports", "flights"]
    consumer.answer(MetadataRequest, consumer.metadata_response(request))
    assert consumer.shares() == {"m1": tps(ALL), "m2": tps("airports-0 airports-1")}


def test_a_topic_that_does_not_exist_holds_no_leader_up():
    consumer = manual()
    consumer.subscribe("flights", "nowhere")
    consumer.accept_join()
    assert consumer.shares() == {"m1": tps(ALL)}
    assert any("assigned to nobody: nowhere" in note for note in consumer.notes)


def test_a_returning_static_leader_skips_the_assignment():
    """KIP-814."""
    consumer = manual(group_instance_id="i1")
    consumer.subscribe()
    consumer.accept_join(skip_assignment=True)
    assert consumer.sent(SyncGroupRequest)[0].assignments == []
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    consumer.topics["flights"] = 6  # it is leader all the same, and watches
    consumer.tick(consumer.config.metadata_max_age_ms)
    assert consumer.callback()[0] == "revoked"


def test_an_assignor_that_raises_is_the_users_error():
    class Broken(Assignor):
        name = "broken"

        def assign(self, partitions_per_topic, members):
            raise LookupError("no idea")

    consumer = manual(partition_assignment_strategy=(Broken(),))
    consumer.subscribe()
    consumer.accept_join()
    error = consumer.fatal()
    assert "broken raised LookupError: no idea" in str(error)


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"m1": None},
        {"m1": MemberAssignment([TopicPartition("flights", -1)])},
        {"m1": MemberAssignment([TopicPartition("\ud800", 0)])},
        {"m1": MemberAssignment(tps(ALL), "no bytes")},  # type: ignore[arg-type]
    ],
)
def test_an_assignor_that_makes_no_assignment_is_the_users_error_and_tried_again_later(result):
    class Broken(Assignor):
        name = "broken"

        def assign(self, partitions_per_topic, members):
            return result

    consumer = manual(partition_assignment_strategy=(Broken(),))
    consumer.subscribe()
    waits = []
    for _ in range(3):
        consumer.accept_join()
        assert isinstance(consumer.fatal(), MusterError)
        assert consumer.sent(SyncGroupRequest) == []
        consumer.enter_poll()
        failed_at = consumer.now
        while not consumer.sent(JoinGroupRequest):
            consumer.tick(10)
        waits.append(consumer.now - failed_at)
    assert 80 <= waits[0] < waits[1] < waits[2]
    result = {"m1": MemberAssignment(tps(ALL))}
    consumer.accept_join()
    consumer.accept_sync(ALL)
    assert consumer.callback() == ("assigned", tps(ALL))


def test_an_assignor_whose_data_cannot_be_had_is_the_users_error():
    class Shy(RangeAssignor):
        name = "shy"

        def subscription_user_data(self, topics):
            raise LookupError("no data")

    consumer = manual(partition_assignment_strategy=(Shy(),))
    consumer.subscribe()
    assert "assignor shy raised LookupError: no data" in str(consumer.fatal())
    assert consumer.core.member_state is MemberState.UNJOINED


@pytest.mark.parametrize("listening", [True, False])
def test_an_assignor_that_fails_to_hear_of_its_assignment_does_not_stop_it(listening):
    """As with Kafka's own client: the assignment stands, and poll raises once."""

    class Deaf(RangeAssignor):
        name = "deaf"

        def on_assignment(self, assignment, generation_id):
            raise RuntimeError("one hiccup")

    consumer = manual(partition_assignment_strategy=(Deaf(),), listening=listening)
    consumer.subscribe()
    consumer.accept_join()
    consumer.accept_sync(ALL)
    assert "assignor deaf raised RuntimeError: one hiccup" in str(consumer.fatal())
    if listening:
        assert consumer.finish_callback() == ("assigned", tps(ALL))
    assert consumer.events == []
    assert consumer.core.subscription.assignment() == tps(ALL)
    assert consumer.core.member_state is MemberState.STABLE
    consumer.tick(1_000)
    assert consumer.sent(JoinGroupRequest) == []


def test_a_follower_is_told_where_the_group_chose_what_it_never_offered():
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join(leader="other", protocol="mystery")
    consumer.accept_sync(ALL)
    assert "'mystery', which was not offered" in str(consumer.fatal())


def test_a_users_assignor_is_asked_and_told():
    """J9."""
    told = []

    class Backwards(Assignor):
        name = "backwards"

        def subscription_user_data(self, topics):
            return b"me"

        def assign(self, partitions_per_topic, members):
            assert {member.user_data for member in members.values()} == {b"me"}
            partitions = [TopicPartition("flights", n) for n in range(partitions_per_topic["flights"])]
            return {member: MemberAssignment(partitions[::-1], b"you") for member in members}

        def on_assignment(self, assignment, generation_id):
            told.append((assignment, generation_id))

    consumer = manual(partition_assignment_strategy=(Backwards(),))
    consumer.subscribe()
    consumer.accept_join()
    share = consumer.sent(SyncGroupRequest)[0].assignments[0].assignment
    consumer.answer(SyncGroupRequest, SyncGroupResponse(assignment=share))
    assert told == [(MemberAssignment(tps(ALL), b"you"), 1)] or told[0][0].user_data == b"you"
    assert consumer.callback() == ("assigned", tps(ALL))


@pytest.mark.parametrize(
    ("code", "member_id"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
        (ErrorCode.ILLEGAL_GENERATION, "m1"),
        (ErrorCode.REBALANCE_IN_PROGRESS, "m1"),
    ],
)
def test_errors_of_a_sync_that_lead_straight_to_another_join(code, member_id):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.refuse_sync(code)
    assert consumer.join().member_id == member_id


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_sync_that_comes_to_the_wrong_coordinator_leads_to_another_join(code):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.coordinator = 2
    consumer.refuse_sync(code)
    consumer.tick(100)
    assert consumer.join().member_id == "m1"


@pytest.mark.parametrize(
    "code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_other_errors_of_a_sync_are_the_users(code):
    consumer = manual()
    consumer.subscribe()
    consumer.accept_join()
    consumer.refuse_sync(code)
    assert consumer.fatal().code is code


def test_an_assignment_of_a_topic_no_longer_subscribed_to_leads_to_another_join():
    consumer = manual()
    consumer.topics["airports"] = 1
    consumer.subscribe()
    consumer.accept_join()
    consumer.core.subscribe(["airports"])
    consumer.accept_sync(ALL)
    consumer.finish_callback()  # revoked, of nothing: the share was not taken
    assert consumer.join().reason == "received assignment does not match the current subscription"
    assert consumer.core.subscription.assignment() == []


# --- the listener, and needsJoinPrepare ------------------------------------------------------------------------------


def test_an_eager_rebalance_revokes_all_before_the_join_and_assigns_after():
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.callback() == ("revoked", tps(ALL))
    assert consumer.core.subscription.assignment() == tps(ALL)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.finish_callback()
    assert consumer.core.subscription.assignment() == []
    assert consumer.join().reason == "group is already rebalancing"
    consumer.accept_join(2, others={"m2": Subscription(["flights"])})
    consumer.accept_sync("flights-0 flights-1")
    assert consumer.finish_callback() == ("assigned", tps("flights-0 flights-1"))


def test_the_preparation_runs_once_however_often_the_join_is_tried():
    """J8."""
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.finish_callback()[0] == "revoked"
    for _ in range(3):
        consumer.refuse_join(ErrorCode.REBALANCE_IN_PROGRESS)
        assert consumer.events == []
    for _ in range(3):
        consumer.refuse_join(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        consumer.tick(100)
        assert consumer.events == []
    consumer.accept_join(2)
    consumer.accept_sync(ALL)
    assert consumer.finish_callback()[0] == "assigned"
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.callback()[0] == "revoked"


def test_heartbeats_go_on_while_the_listener_thinks():
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    for _ in range(5):
        consumer.tick(3_000)
        consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.callback()[0] == "revoked"
    assert consumer.member.state is MemberState.STABLE


def test_a_rebalance_waits_for_the_user_to_come_back():
    """What was handed out may still be worked on: it is given up when the user polls again."""
    consumer = manual()
    consumer.stable()
    consumer.leave_poll()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.tick(1_000)
    assert consumer.events == []
    consumer.enter_poll()
    assert consumer.callback()[0] == "revoked"


def test_without_a_listener_the_rebalance_runs_by_itself():
    consumer = manual(listening=False)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(consumer.sent(JoinGroupRequest)) == 1
    assert consumer.events == []


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_of_a_member_that_was_thrown_out_are_lost(code, strategy):
    consumer = manual(partition_assignment_strategy=strategy)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(code)
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert consumer.core.subscription.assignment() == []
    assert consumer.join().member_id == ("m1" if code is ErrorCode.ILLEGAL_GENERATION else "")


def test_a_generation_reset_while_the_listener_runs_makes_the_rest_lost():
    """revoked is being handled; the heartbeat says unknown member; what is left must be called lost, not revoked."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.topics["airports"] = 1
    consumer.subscribe("flights", "airports")
    consumer.accept_join()
    consumer.accept_sync("airports-0 flights-0")
    consumer.finish_callback()
    consumer.core.subscribe(["flights"])
    consumer.turn()
    assert consumer.callback() == ("revoked", tps("airports-0"))
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    consumer.finish_callback()
    assert consumer.finish_callback() == ("lost", tps("flights-0"))
    assert decode_subscription(consumer.join().protocols[0].metadata).owned_partitions == []


# --- cooperative -----------------------------------------------------------------------------------------------------


def test_a_cooperative_rebalance_keeps_what_stays_and_joins_again_after_giving_up():
    """KIP-429."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.events == []  # nothing is revoked before the join
    said = decode_subscription(consumer.join().protocols[0].metadata)
    assert (said.owned_partitions, said.generation_id) == (tps(ALL), 1)
    consumer.accept_join(2, others={"m2": Subscription(["flights"])})
    assert consumer.shares()["m2"] == []
    kept = consumer.shares()["m1"]
    consumer.accept_sync(kept)
    kind, revoked = consumer.callback()
    assert kind == "revoked"
    assert sorted(revoked + kept) == tps(ALL)
    assert sorted(consumer.core.subscription.assignment()) == tps(ALL)
    consumer.finish_callback()
    assert consumer.finish_callback() == ("assigned", [])
    assert sorted(consumer.core.subscription.assignment()) == kept
    assert consumer.join().reason == "need to revoke partitions and re-join"
    assert decode_subscription(consumer.join().protocols[0].metadata).generation_id == 2


def test_ownership_has_a_number_of_its_own_each_time():
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.stable("flights-0 flights-1")
    first = {p: consumer.core.ownership(p) for p in tps(ALL)}
    assert first[tp("flights-2")] is None
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_join(2)
    consumer.accept_sync("flights-0 flights-2")
    consumer.finish_callback()
    consumer.finish_callback()
    assert consumer.core.ownership(tp("flights-0")) == first[tp("flights-0")]
    assert consumer.core.ownership(tp("flights-1")) is None
    consumer.accept_join(3)
    consumer.accept_sync("flights-0 flights-1 flights-2")
    consumer.finish_callback()
    again = consumer.core.ownership(tp("flights-1"))
    assert again is not None
    assert again != first[tp("flights-1")]


def test_a_share_from_a_generation_that_ended_while_giving_up_is_not_taken():
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.stable("flights-0 flights-1")
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_join(2)
    consumer.accept_sync("flights-0 flights-2")
    assert consumer.callback() == ("revoked", tps("flights-1"))
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    consumer.finish_callback()
    assert consumer.finish_callback() == ("lost", tps("flights-0"))
    assert consumer.core.subscription.assignment() == []


def test_the_spark_member_answers_a_revocation_when_it_is_done():
    """A core without fetcher, always in poll: no position is looked up, heartbeats go on, the token ends the wait."""
    consumer = manual(fetch=False, partition_assignment_strategy="cooperative-sticky")
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_join(2, others={"m2": Subscription(["flights"])})
    consumer.accept_sync("flights-0 flights-1")
    for _ in range(20):
        consumer.tick(3_000)
        consumer.heartbeat()
    fence = {tp("flights-3"): consumer.core.ownership(tp("flights-3"))}
    outcome = consumer.commit({"flights-3": 7}, until=consumer.now + 1_000, fence=fence)
    assert consumer.accept_commit().generation_id_or_member_epoch == 2
    assert outcome == [None]
    assert consumer.finish_callback() == ("revoked", tps("flights-2 flights-3"))


# --- what makes a member join again ----------------------------------------------------------------------------------


def test_the_leader_rebalances_when_a_topic_grows():
    consumer = manual(metadata_max_age_ms=10_000, listening=False, heartbeat_interval_ms=40_000)
    consumer.stable()
    consumer.topics["flights"] = 5
    consumer.tick(10_000)
    assert consumer.join().reason.startswith("cached metadata has changed: flights")


def test_a_follower_does_not_mind():
    consumer = manual(metadata_max_age_ms=10_000, listening=False, heartbeat_interval_ms=40_000)
    consumer.subscribe()
    consumer.accept_join(leader="m2")
    consumer.accept_sync(ALL)
    consumer.topics["flights"] = 5
    consumer.tick(30_000)
    assert consumer.sent(JoinGroupRequest) == []


def test_a_topic_that_comes_into_being_is_seen_by_the_leader():
    consumer = manual(listening=False)
    consumer.subscribe("flights", "airports")
    consumer.accept_join()
    consumer.accept_sync(ALL)
    consumer.topics["airports"] = 1
    consumer.tick(2_000)
    assert "airports" in consumer.join().reason


def test_another_subscription_is_another_join():
    consumer = manual()
    consumer.topics["airports"] = 1
    consumer.stable()
    consumer.core.subscribe(["flights", "airports"])
    consumer.turn()
    consumer.finish_callback()
    assert consumer.join().reason == "subscription has changed"
    assert decode_subscription(consumer.join().protocols[0].metadata).topics == ["airports", "flights"]


def test_a_pattern_is_matched_with_fresh_metadata_before_the_join():
    consumer = manual(listening=False)
    consumer.topics |= {"flights-late": 1, "__consumer_offsets": 50, "airports": 1}
    consumer.core.subscribe_pattern(re.compile("flights.*|.*offsets"))
    consumer.enter_poll()
    said = decode_subscription(consumer.join().protocols[0].metadata)
    assert said.topics == ["flights", "flights-late"]


def test_a_new_topic_that_matches_is_another_join():
    consumer = manual(listening=False, metadata_max_age_ms=10_000, heartbeat_interval_ms=40_000)
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    consumer.accept_join()
    consumer.accept_sync(ALL)
    consumer.topics["flights-2014"] = 2
    consumer.tick(10_000)
    assert decode_subscription(consumer.join().protocols[0].metadata).topics == ["flights", "flights-2014"]


def test_a_member_by_pattern_follows_a_leader_that_knows_more_topics():
    consumer = manual(listening=False)
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    consumer.topics["flights-2014"] = 2
    consumer.accept_join(leader="m2")
    consumer.accept_sync([*tps(ALL), TopicPartition("flights-2014", 0)])
    assert TopicPartition("flights-2014", 0) in consumer.core.subscription.assignment()
    assert consumer.sent(JoinGroupRequest) == []


# --- heartbeats (H3, H4) ---------------------------------------------------------------------------------------------


def test_heartbeats_are_sent_when_due():
    consumer = manual()
    consumer.stable()
    consumer.tick(2_999)
    assert consumer.sent(HeartbeatRequest) == []
    consumer.tick(1)
    beat = consumer.sent(HeartbeatRequest)[0]
    assert (beat.generation_id, beat.member_id) == (1, "m1")
    consumer.heartbeat()
    consumer.tick(3_000)
    assert len(consumer.sent(HeartbeatRequest)) == 1


def test_a_failed_heartbeat_is_sent_again_soon():
    """H4."""
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_SERVER_ERROR)
    consumer.tick(130)
    assert len(consumer.sent(HeartbeatRequest)) == 1


def test_a_heartbeat_answered_rebalance_in_progress_counts_as_received():
    """H4: the session goes on for as long as the listener takes."""
    consumer = manual(session_timeout_ms=6_000)
    consumer.stable()
    for _ in range(10):
        consumer.tick(3_000)
        consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.disconnected == []


def test_a_session_without_an_answer_gives_the_coordinator_up():
    """H3: session timeout."""
    consumer = manual(session_timeout_ms=10_000)
    consumer.stable()
    lookups = consumer.lookups
    consumer.tick(9_999)
    assert consumer.lookups == lookups
    consumer.tick(1)
    assert consumer.lookups == lookups + 1
    assert consumer.disconnected == [1]
    assert consumer.member.state is MemberState.STABLE


def test_an_unknown_coordinator_is_looked_up_with_backoff():
    """H3 and J2."""
    consumer = manual()
    consumer.stable()
    consumer.auto.discard(FindCoordinatorRequest)
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.NOT_COORDINATOR)
    waits = []
    for _ in range(4):
        start = consumer.now
        while not consumer.sent(FindCoordinatorRequest):
            consumer.tick(1)
        waits.append(consumer.now - start)
        consumer.fail(FindCoordinatorRequest, FailureKind.UNREACHABLE)
    assert waits[0] == 0
    assert 80 <= waits[1] <= 120
    assert 160 <= waits[2] <= 240
    assert 320 <= waits[3] <= 480


def test_a_member_whose_user_stays_away_leaves_by_its_own_act():
    """H3: poll interval exceeded."""
    consumer = manual(max_poll_interval_ms=10_000)
    consumer.stable()
    consumer.leave_poll()
    for _ in range(3):
        consumer.tick(3_000)
        consumer.heartbeat()
    assert consumer.sent(LeaveGroupRequest) == []
    consumer.tick(1_000)
    leave = consumer.sent(LeaveGroupRequest)[0]
    assert [(m.member_id, m.reason) for m in leave.members] == [("m1", "consumer poll timeout has expired.")]
    assert any("max_poll_interval_ms (10000 ms)" in note for note in consumer.notes)
    consumer.tick(30_000)
    assert consumer.sent(JoinGroupRequest) == []  # it is the user's turn
    consumer.enter_poll()
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert consumer.join().member_id == ""


def away_with_assigned_untold():
    """The share has come while the user handles records, so that its listener does not know yet."""
    consumer = manual(max_poll_interval_ms=10_000)
    consumer.subscribe()
    consumer.accept_join()
    consumer.leave_poll()
    send, _ = consumer.pending.pop()
    send.on_reply(SyncGroupResponse(assignment=encode_assignment(tps(ALL))), consumer.now)
    assert consumer.core.subscription.assignment() == tps(ALL)
    return consumer


def test_a_user_that_stayed_away_too_long_is_not_told_of_what_it_was_assigned_meanwhile():
    consumer = away_with_assigned_untold()
    consumer.now += 10_000
    consumer.core.poll(consumer.now)
    assert consumer.core.subscription.assignment() == []
    consumer.enter_poll()
    assert consumer.events == []
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_a_user_that_stayed_away_while_partitions_were_to_be_released_comes_back_and_joins():
    """The release waits for the user's next poll, to commit first; the user stays away too long."""
    strategy = "cooperative-sticky"
    consumer = ConsumerHarness(max_poll_interval_ms=10_000, partition_assignment_strategy=strategy)
    consumer.stable()
    consumer.leave_poll()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.enter_poll()
    consumer.leave_poll()
    consumer.accept_commit()
    consumer.accept_join(2)
    consumer.accept_sync("flights-0")
    assert consumer.member.step is Step.RELEASING
    consumer.tick(11_000)
    assert len(consumer.sent(LeaveGroupRequest)) == 1
    consumer.enter_poll()
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert consumer.join().member_id == ""


def test_whoever_leaves_is_not_told_of_what_it_was_assigned_and_does_not_know_of():
    consumer = away_with_assigned_untold()
    consumer.core.unsubscribe(consumer.now, lambda: None, "bye")
    consumer.turn()
    assert consumer.events == []
    assert len(consumer.sent(LeaveGroupRequest)) == 1


def test_a_user_in_poll_does_not_stay_away():
    consumer = manual(max_poll_interval_ms=10_000)
    consumer.stable()
    for _ in range(10):
        consumer.tick(3_000)
        consumer.heartbeat()
    assert consumer.sent(LeaveGroupRequest) == []


def test_a_listener_that_takes_too_long_is_a_user_that_stays_away():
    consumer = manual(max_poll_interval_ms=10_000)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.tick(10_000)
    assert len(consumer.sent(LeaveGroupRequest)) == 1


def test_a_fenced_static_member_is_told_and_takes_part_again_only_when_polled():
    consumer = manual(group_instance_id="i1")
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    assert consumer.fatal().code is ErrorCode.FENCED_INSTANCE_ID
    consumer.tick(10_000)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.enter_poll()
    assert consumer.finish_callback()[0] == "lost"
    assert len(consumer.sent(JoinGroupRequest)) == 1


def come_back_to(generation, **settings):
    """A member of generation 1 with partitions of its own, which asks to join and is let into another."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky", **settings)
    consumer.stable()
    consumer.member.request_rejoin("for the test")
    consumer.turn()
    consumer.accept_join(generation, leader="m2")
    return consumer


def test_a_static_member_that_the_group_has_passed_over_has_lost_what_it_owns():
    """Its place is kept while its join is held up, and others are given its partitions at once (KIP-345)."""
    consumer = come_back_to(3, group_instance_id="i1")
    assert consumer.sent(SyncGroupRequest) == []
    outcome = consumer.commit({"flights-0": 1})
    assert isinstance(outcome[0], CommitFailedError)
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert decode_subscription(consumer.join().protocols[0].metadata).owned_partitions == []
    consumer.accept_join(4, leader="m2")
    consumer.accept_sync("flights-0")
    assert consumer.finish_callback() == ("assigned", tps("flights-0"))


@pytest.mark.parametrize(("generation", "settings"), [(2, {"group_instance_id": "i1"}), (3, {})])
def test_a_member_that_the_group_has_waited_for_keeps_what_it_owns(generation, settings):
    """The next generation is the one it has joined; a dynamic member that is still known was never passed over."""
    consumer = come_back_to(generation, **settings)
    assert consumer.events == []
    assert len(consumer.sent(SyncGroupRequest)) == 1


def test_an_error_about_an_older_generation_is_ignored():
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.core.enforce_rebalance("why not")
    consumer.turn()
    consumer.finish_callback()
    consumer.accept_join(2)
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    consumer.heartbeat(ErrorCode.ILLEGAL_GENERATION)
    assert consumer.member.state is MemberState.STABLE
    assert consumer.events == []


def test_heartbeats_begin_with_the_answer_to_the_join_and_rebalance_in_progress_means_nothing_there():
    consumer = manual()
    consumer.subscribe()
    consumer.tick(10_000)
    assert consumer.sent(HeartbeatRequest) == []
    consumer.accept_join()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    assert consumer.sent(JoinGroupRequest) == []


# --- leaving ---------------------------------------------------------------------------------------------------------


def leave(consumer):
    left = []
    consumer.core.unsubscribe(consumer.now, lambda: left.append(True), "the consumer is being closed")
    consumer.turn()
    return left


def test_a_dynamic_member_leaves_with_a_reason():
    consumer = manual()
    consumer.stable()
    left = leave(consumer)
    assert consumer.finish_callback() == ("revoked", tps(ALL))
    assert left == []
    request = consumer.sent(LeaveGroupRequest)[0]
    assert [(m.member_id, m.reason) for m in request.members] == [("m1", "the consumer is being closed")]
    consumer.accept_leave()
    assert left == [True]
    assert consumer.core.subscription.assignment() == []


def test_an_old_broker_is_told_without_a_reason():
    consumer = manual()
    consumer.versions[LeaveGroupRequest] = 2
    consumer.stable()
    leave(consumer)
    consumer.finish_callback()
    assert consumer.sent(LeaveGroupRequest)[0].member_id == "m1"


def test_a_static_member_does_not_leave():
    """KIP-345."""
    consumer = manual(group_instance_id="i1")
    consumer.stable()
    left = leave(consumer)
    assert consumer.finish_callback()[0] == "revoked"
    assert left == [True]
    assert consumer.sent(LeaveGroupRequest) == []


def test_leaving_amid_a_join_goes_by_another_connection():
    """The broker reads nothing behind a parked join."""
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.finish_callback()
    assert len(consumer.sent(JoinGroupRequest)) == 1
    leave(consumer)
    assert consumer.channel(LeaveGroupRequest) is Channel.DATA
    assert consumer.disconnected == [1]
    consumer.accept_join(2)  # too late: nobody listens
    assert consumer.sent(SyncGroupRequest) == []
    assert consumer.member.state is MemberState.UNJOINED


def test_leaving_amid_a_cooperative_rebalance_loses_what_is_owned():
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    leave(consumer)
    assert consumer.finish_callback() == ("lost", tps(ALL))


def test_leaving_amid_a_join_reaches_the_coordinator_though_a_heartbeat_fails_with_its_connection():
    """The connection of the parked join is closed only when the request to leave is made: the heartbeat on it fails,
    the coordinator is given up, and none was left to tell, so that the group waited out the member's session."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.auto.discard(HeartbeatRequest)
    consumer.stable()
    consumer.tick(3_000)
    consumer.member.request_rejoin("for the test")
    consumer.tick(0)
    assert len(consumer.sent(HeartbeatRequest)) == len(consumer.sent(JoinGroupRequest)) == 1
    leave(consumer)
    if consumer.disconnected:  # what the driver does at once
        consumer.fail(HeartbeatRequest)
    consumer.finish_callback()
    assert len(consumer.sent(LeaveGroupRequest)) == 1
    assert consumer.disconnected == [1]


def test_after_leaving_one_can_join_again():
    consumer = manual()
    consumer.stable()
    leave(consumer)
    consumer.finish_callback()
    consumer.accept_leave()
    consumer.subscribe()
    assert consumer.join().member_id == ""


# --- auto commit around a rebalance ----------------------------------------------------------------------------------


def test_an_eager_member_commits_before_it_gives_up():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9)
    consumer.stable()
    consumer.core.subscription.seek(tp("flights-1"), 5)
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert consumer.events == []
    assert consumer.core.subscription.state(tp("flights-1")).pending_revocation
    request = consumer.accept_commit()
    assert {p.partition_index: p.committed_offset for p in request.topics[0].partitions}[1] == 5
    assert consumer.finish_callback()[0] == "revoked"
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_that_commit_is_tried_again_until_the_rebalance_is_out_of_time():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, max_poll_interval_ms=6_000)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    start = consumer.now
    tries = 0
    while consumer.sent(OffsetCommitRequest) or consumer.now < start + 5_000:
        if consumer.sent(OffsetCommitRequest):
            consumer.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            tries += 1
        consumer.tick(50)
    assert tries > 3
    while not consumer.events:
        if consumer.sent(OffsetCommitRequest):
            consumer.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        consumer.tick(50)
    assert consumer.now - start == pytest.approx(6_000, abs=100)
    assert consumer.callback()[0] == "revoked"


def test_that_commit_is_waited_for_no_longer_though_it_is_not_answered():
    """Where request_timeout_ms is longer than the rebalance may take."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, max_poll_interval_ms=6_000)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(consumer.sent(OffsetCommitRequest)) == 1
    start = consumer.now
    while not consumer.events:
        consumer.tick(50)
        for _ in consumer.sent(HeartbeatRequest):
            consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
        assert consumer.now <= start + 6_100
    assert consumer.now - start == pytest.approx(6_000, abs=100)
    assert consumer.finish_callback()[0] == "revoked"
    assert len(consumer.sent(JoinGroupRequest)) == 1
    consumer.accept_commit()  # too late to mean anything
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_a_commit_that_cannot_be_does_not_hold_the_join_up():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_commit(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert consumer.callback()[0] == "revoked"


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_offsets_of_a_topic_that_was_deleted_do_not_hold_the_join_up(code):
    """H6: the leader sees that partitions are gone. Their offsets can never be committed; the others' have been."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, metadata_max_age_ms=10_000, heartbeat_interval_ms=40_000)
    consumer.topics["airports"] = 1
    consumer.subscribe("flights", "airports")
    consumer.accept_join()
    consumer.accept_sync(tps("airports-0 flights-0"))
    consumer.finish_callback()
    del consumer.topics["airports"]
    consumer.tick(10_000)
    consumer.accept_commit(code)
    assert consumer.finish_callback() == ("revoked", tps("airports-0 flights-0"))
    assert "airports" in (consumer.join().reason or "")


def test_a_topic_that_only_the_coordinator_does_not_know_is_waited_for():
    """A broker that has just started may not know of all topics yet: that heals."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_commit(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.tick(200)
    consumer.accept_commit()
    assert consumer.callback()[0] == "revoked"


def test_a_cooperative_member_commits_what_it_releases():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, partition_assignment_strategy="cooperative-sticky")
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.accept_commit()
    consumer.core.subscription.seek(tp("flights-3"), 9)  # it reads on while the others join
    consumer.accept_join(2, others={"m2": Subscription(["flights"])})
    consumer.accept_sync("flights-0 flights-1")
    assert consumer.events == []
    request = consumer.accept_commit()
    assert request.generation_id_or_member_epoch == 2
    assert {p.partition_index: p.committed_offset for p in request.topics[0].partitions}[3] == 9
    assert consumer.callback() == ("revoked", tps("flights-2 flights-3"))


def test_a_cooperative_member_hands_nothing_out_of_what_it_gives_up_while_that_is_being_committed():
    """It subscribes to less. Records handed out after the commit would be handled again by the next owner."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, partition_assignment_strategy="cooperative-sticky")
    consumer.topics["delays"] = 1
    consumer.subscribe("flights", "delays")
    consumer.accept_join()
    consumer.accept_sync("flights-0 delays-0")
    consumer.finish_callback()
    consumer.subscribe("flights")
    assert consumer.sent(OffsetCommitRequest)
    pending = {partition: state.pending_revocation for partition, state in consumer.core.subscription.states()}
    assert pending == {tp("flights-0"): False, tp("delays-0"): True}
    consumer.accept_commit()
    assert consumer.callback() == ("revoked", tps("delays-0"))


def test_a_reset_member_does_not_commit():
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9)
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert consumer.sent(OffsetCommitRequest) == []
    assert consumer.callback()[0] == "lost"


# --- late answers ----------------------------------------------------------------------------------------------------


def test_the_answer_to_a_join_that_was_given_up_is_dropped():
    """A commit that was under way says NOT_COORDINATOR while the join is parked: the join is void."""
    consumer = manual()
    consumer.stable()
    consumer.commit({"flights-0": 1})
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.finish_callback()
    consumer.coordinator = 2
    consumer.accept_commit(ErrorCode.NOT_COORDINATOR)
    assert consumer.disconnected == [1]
    consumer.accept_join(2)
    assert consumer.sent(SyncGroupRequest) == []
    consumer.tick(100)
    assert len(consumer.sent(JoinGroupRequest)) == 1


@pytest.mark.parametrize("how", ["answered", "failed"])
def test_a_join_of_a_former_subscription_means_nothing_to_the_one_that_waits(how):
    """The user unsubscribes amid a rebalance and subscribes again: two joins wait, and the older one comes back."""
    consumer = manual()
    consumer.stable()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.finish_callback()
    leave(consumer)
    consumer.subscribe()
    assert len(consumer.sent(JoinGroupRequest)) == 2
    lookups = consumer.lookups
    if how == "answered":
        consumer.accept_join(2)
    else:
        consumer.fail(JoinGroupRequest)
    assert len(consumer.sent(JoinGroupRequest)) == 1
    assert consumer.sent(SyncGroupRequest) == []
    assert consumer.lookups == lookups
    consumer.accept_join(3, member_id="m9", leader="m9")
    consumer.accept_sync(ALL)
    assert consumer.finish_callback() == ("assigned", tps(ALL))
    assert consumer.member.generation.member_id == "m9"


def test_tokens_of_the_past_mean_nothing():
    consumer = manual()
    consumer.subscribe()
    consumer.core.callback_done(99, consumer.now)
    consumer.accept_join()
    consumer.accept_sync(ALL)
    consumer.core.callback_done(0, consumer.now)
    assert consumer.member.step is Step.ASSIGNING


def test_positions_are_looked_up_only_when_the_listener_has_returned():
    consumer = manual()
    consumer.committed = {tp("flights-0"): 7}
    consumer.subscribe()
    consumer.accept_join()
    consumer.accept_sync("flights-0")
    assert consumer.core.subscription.position(tp("flights-0")) is None
    consumer.finish_callback()
    assert consumer.core.subscription.position(tp("flights-0")) == 7


def test_errors_are_musters():
    consumer = manual()
    consumer.subscribe()
    consumer.answer(JoinGroupRequest, consumer_join_response(consumer.join(), protocol_type="consumer"))
    consumer.answer(SyncGroupRequest, sync_response(b"\0"))
    assert isinstance(consumer.fatal(), MusterError)


def sync_response(assignment):
    return SyncGroupResponse(assignment=assignment)
