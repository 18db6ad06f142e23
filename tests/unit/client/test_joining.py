"""Joining a group: J5, how a member handles each error of a join, what makes it rejoin, late answers."""

from __future__ import annotations

import re

import pytest

from muster.client.core.checks import MAX_REASON_LENGTH
from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.client.core.sends import Channel
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.subscription import Subscription, decode_subscription
from tests.support.client_harness import ALL, joining, leave, manual, stable_member, tp, tps

# --- joining ---------------------------------------------------------------------------------------------------------


def test_the_first_join_has_no_member_id_and_the_answer_gives_one():
    """J5."""
    consumer = joining()
    assert consumer.join().member_id == ""
    consumer.refuse_join(ErrorCode.MEMBER_ID_REQUIRED, "m7")
    assert consumer.join().member_id == "m7"
    consumer.let_in(ALL, member_id="m7", leader="m7")
    consumer.finish_callback()
    consumer.rebalance()
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
    assert consumer.channel(m.JoinGroupRequest) is Channel.COORDINATOR
    send = next(send for send, request in consumer.pending if isinstance(request, m.JoinGroupRequest))
    assert send.timeout_ms == 65_000


def test_the_default_strategies_are_javas_and_make_an_eager_member():
    consumer = stable_member(partition_assignment_strategy=("range", "cooperative-sticky"), enable_auto_commit=False)
    consumer.rebalance()
    assert consumer.finish_callback() == ("revoked", tps(ALL))
    assert [protocol.name for protocol in consumer.join().protocols] == ["range", "cooperative-sticky"]


def test_manual_assignment_never_joins():
    """J7."""
    consumer = manual()
    consumer.core.assign([tp("flights-1")])
    consumer.enter_poll()
    consumer.tick(60_000)
    assert consumer.sent(m.JoinGroupRequest) == []
    assert consumer.sent(m.HeartbeatRequest) == []
    assert consumer.member.state is MemberState.UNJOINED


def test_nothing_is_joined_before_the_user_polls():
    consumer = manual()
    consumer.core.subscribe(["flights"])
    consumer.tick(1_000)
    assert consumer.sent(m.JoinGroupRequest) == []
    consumer.enter_poll()
    assert len(consumer.sent(m.JoinGroupRequest)) == 1


AT_ONCE, LATER, ELSEWHERE, THE_USERS = "at once", "later", "at another coordinator", "when the user polls again"


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, AT_ONCE),
        (ErrorCode.ILLEGAL_GENERATION, AT_ONCE),
        (ErrorCode.REBALANCE_IN_PROGRESS, AT_ONCE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, LATER),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ELSEWHERE),
        (ErrorCode.NOT_COORDINATOR, ELSEWHERE),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, THE_USERS),
        (ErrorCode.INVALID_SESSION_TIMEOUT, THE_USERS),
        (ErrorCode.INVALID_GROUP_ID, THE_USERS),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, THE_USERS),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, THE_USERS),
        (ErrorCode.FENCED_INSTANCE_ID, THE_USERS),
        (ErrorCode.UNKNOWN_SERVER_ERROR, THE_USERS),
    ],
)
def test_when_a_join_that_was_refused_is_tried_again(code, again):
    consumer = joining()
    lookups = consumer.lookups
    consumer.refuse_join(code)
    if again == AT_ONCE:
        assert consumer.join().reason == f"rebalance failed due to {code.name}"
        assert consumer.events == []
        return
    consumer.tick(60_000 if again == THE_USERS else 99)
    assert consumer.sent(m.JoinGroupRequest) == []
    if again == THE_USERS:
        error = consumer.fatal()
        assert isinstance(error, KafkaError)
        assert error.code is code
        consumer.enter_poll()
    else:
        consumer.tick(1)
        assert (consumer.lookups > lookups) is (again == ELSEWHERE)
    assert len(consumer.sent(m.JoinGroupRequest)) == 1


def test_a_group_of_another_type_is_refused():
    consumer = joining()
    request = consumer.join()
    response = consumer_join_response(request, protocol_type="connect")
    consumer.answer(m.JoinGroupRequest, response)
    assert consumer.fatal().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def consumer_join_response(request, **fields):
    return m.JoinGroupResponse(generation_id=1, leader="x", member_id="m1", protocol_name="range", **fields)


def test_a_broken_connection_gives_the_coordinator_up_and_the_join_is_tried_again():
    consumer = joining()
    consumer.coordinator = 2
    consumer.fail(m.JoinGroupRequest)
    consumer.tick(100)
    send = next(send for send, request in consumer.pending if isinstance(request, m.JoinGroupRequest))
    assert send.node_id == 2


def test_reasons_are_cut_to_what_a_broker_takes():
    """KIP-800."""
    consumer = stable_member()
    consumer.core.enforce_rebalance("x" * 1_000)
    consumer.turn()
    consumer.finish_callback()
    assert consumer.join().reason == "x" * MAX_REASON_LENGTH


# --- what makes a member join again ----------------------------------------------------------------------------------


def test_the_leader_rebalances_when_a_topic_grows():
    consumer = stable_member(metadata_max_age_ms=10_000, listening=False, heartbeat_interval_ms=40_000)
    consumer.topics["flights"] = 5
    consumer.tick(10_000)
    assert consumer.join().reason.startswith("cached metadata has changed: flights")


def test_a_follower_does_not_mind():
    consumer = joining(metadata_max_age_ms=10_000, listening=False, heartbeat_interval_ms=40_000)
    consumer.let_in(ALL, leader="m2")
    consumer.topics["flights"] = 5
    consumer.tick(30_000)
    assert consumer.sent(m.JoinGroupRequest) == []


def test_a_topic_that_comes_into_being_is_seen_by_the_leader():
    consumer = manual(listening=False)
    consumer.subscribe("flights", "airports")
    consumer.let_in(ALL)
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
    consumer.let_in(ALL)
    consumer.topics["flights-2014"] = 2
    consumer.tick(10_000)
    assert decode_subscription(consumer.join().protocols[0].metadata).topics == ["flights", "flights-2014"]


def test_a_member_by_pattern_follows_a_leader_that_knows_more_topics():
    consumer = manual(listening=False)
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    consumer.topics["flights-2014"] = 2
    consumer.let_in([*tps(ALL), TopicPartition("flights-2014", 0)], leader="m2")
    assert TopicPartition("flights-2014", 0) in consumer.core.subscription.assignment()
    assert consumer.sent(m.JoinGroupRequest) == []


# --- late answers ----------------------------------------------------------------------------------------------------


def test_the_answer_to_a_join_that_was_given_up_is_dropped():
    """A commit in flight gets NOT_COORDINATOR while the join is parked: the join is void."""
    consumer = stable_member()
    consumer.commit({"flights-0": 1})
    consumer.rebalance()
    consumer.finish_callback()
    consumer.coordinator = 2
    consumer.accept_commit(ErrorCode.NOT_COORDINATOR)
    assert consumer.disconnected == [1]
    consumer.accept_join(2)
    assert consumer.sent(m.SyncGroupRequest) == []
    consumer.tick(100)
    assert len(consumer.sent(m.JoinGroupRequest)) == 1


@pytest.mark.parametrize("how", ["answered", "failed"])
def test_a_join_of_a_former_subscription_means_nothing_to_the_one_that_waits(how):
    """The user unsubscribes during a rebalance and subscribes again: two joins wait, and the older one is answered."""
    consumer = stable_member()
    consumer.rebalance()
    consumer.finish_callback()
    leave(consumer)
    consumer.subscribe()
    assert len(consumer.sent(m.JoinGroupRequest)) == 2
    lookups = consumer.lookups
    if how == "answered":
        consumer.accept_join(2)
    else:
        consumer.fail(m.JoinGroupRequest)
    assert len(consumer.sent(m.JoinGroupRequest)) == 1
    assert consumer.sent(m.SyncGroupRequest) == []
    assert consumer.lookups == lookups
    consumer.let_in(ALL, 3, member_id="m9", leader="m9")
    assert consumer.finish_callback() == ("assigned", tps(ALL))
    assert consumer.member.generation.member_id == "m9"


def test_tokens_of_the_past_mean_nothing():
    consumer = joining()
    consumer.core.callback_done(99, consumer.now)
    consumer.let_in(ALL)
    consumer.core.callback_done(0, consumer.now)
    assert consumer.member.step is RebalanceStep.ASSIGNING


def test_errors_are_musters():
    consumer = joining()
    consumer.answer(m.JoinGroupRequest, consumer_join_response(consumer.join(), protocol_type="consumer"))
    consumer.answer(m.SyncGroupRequest, sync_response(b"\0"))
    assert isinstance(consumer.fatal(), MusterError)


def sync_response(assignment):
    return m.SyncGroupResponse(assignment=assignment)
