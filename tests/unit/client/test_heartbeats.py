"""Heartbeats, sessions, and a user that does not poll (H3, H4)."""

from __future__ import annotations

import pytest

from muster.client.core.group.member_state import MemberState, RebalanceStep
from muster.client.core.sends import FailureKind
from muster.errors import CommitFailedError, ErrorCode
from muster.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.subscription import decode_subscription, encode_assignment
from tests.support.client_harness import ALL, joining, stable_member, tps


def test_heartbeats_are_sent_when_due():
    consumer = stable_member()
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
    consumer = stable_member()
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_SERVER_ERROR)
    consumer.tick(130)
    assert len(consumer.sent(HeartbeatRequest)) == 1


def test_a_heartbeat_answered_rebalance_in_progress_counts_as_received():
    """H4: the session is kept alive for as long as the listener takes."""
    consumer = stable_member(session_timeout_ms=6_000)
    for _ in range(10):
        consumer.rebalance()
    assert consumer.disconnected == []


def test_a_session_without_an_answer_gives_the_coordinator_up():
    """H3: session timeout."""
    consumer = stable_member(session_timeout_ms=10_000)
    lookups = consumer.lookups
    consumer.tick(9_999)
    assert consumer.lookups == lookups
    consumer.tick(1)
    assert consumer.lookups == lookups + 1
    assert consumer.disconnected == [1]
    assert consumer.member.state is MemberState.STABLE


def test_an_unknown_coordinator_is_looked_up_with_backoff():
    """H3 and J2."""
    consumer = stable_member()
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
    consumer = stable_member(max_poll_interval_ms=10_000)
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


def away_with_assigned_unreported():
    """The assignment has arrived while the user handles records, so its listener does not know it yet."""
    consumer = joining(max_poll_interval_ms=10_000)
    consumer.accept_join()
    consumer.leave_poll()
    send, _ = consumer.pending.pop()
    send.on_reply(SyncGroupResponse(assignment=encode_assignment(tps(ALL))), consumer.now)
    assert consumer.core.subscription.assignment() == tps(ALL)
    return consumer


def test_a_user_that_stayed_away_too_long_is_not_notified_of_what_it_was_assigned_meanwhile():
    consumer = away_with_assigned_unreported()
    consumer.now += 10_000
    consumer.core.poll(consumer.now)
    assert consumer.core.subscription.assignment() == []
    consumer.enter_poll()
    assert consumer.events == []
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_a_user_that_stayed_away_while_partitions_were_to_be_released_comes_back_and_joins():
    """The release waits for the user's next poll, to commit first; the user stays away too long."""
    strategy = "cooperative-sticky"
    consumer = stable_member(
        max_poll_interval_ms=10_000, partition_assignment_strategy=strategy, enable_auto_commit=True
    )
    consumer.leave_poll()
    consumer.rebalance()
    consumer.enter_poll()
    consumer.leave_poll()
    consumer.accept_commit()
    consumer.let_in("flights-0", 2)
    assert consumer.member.step is RebalanceStep.RELEASING
    consumer.tick(11_000)
    assert len(consumer.sent(LeaveGroupRequest)) == 1
    consumer.enter_poll()
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert consumer.join().member_id == ""


def test_whoever_leaves_is_not_notified_of_what_it_was_assigned_and_does_not_know_of():
    consumer = away_with_assigned_unreported()
    consumer.core.unsubscribe(consumer.now, lambda: None, "bye")
    consumer.turn()
    assert consumer.events == []
    assert len(consumer.sent(LeaveGroupRequest)) == 1


def test_a_user_in_poll_does_not_stay_away():
    consumer = stable_member(max_poll_interval_ms=10_000)
    for _ in range(10):
        consumer.tick(3_000)
        consumer.heartbeat()
    assert consumer.sent(LeaveGroupRequest) == []


def test_a_listener_that_takes_too_long_is_a_user_that_stays_away():
    consumer = stable_member(max_poll_interval_ms=10_000)
    consumer.rebalance()
    consumer.tick(10_000)
    assert len(consumer.sent(LeaveGroupRequest)) == 1


def test_a_fenced_static_member_gets_an_error_and_rejoins_only_when_polled():
    consumer = stable_member(group_instance_id="i1")
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.FENCED_INSTANCE_ID)
    assert consumer.fatal().code is ErrorCode.FENCED_INSTANCE_ID
    consumer.tick(10_000)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.enter_poll()
    assert consumer.finish_callback()[0] == "lost"
    assert len(consumer.sent(JoinGroupRequest)) == 1


def come_back_to(generation, **settings):
    """A member of generation 1 with partitions of its own, which rejoins and gets into another generation."""
    consumer = stable_member(partition_assignment_strategy="cooperative-sticky", **settings)
    consumer.member.request_rejoin("for the test")
    consumer.turn()
    consumer.accept_join(generation, leader="m2")
    return consumer


def test_a_static_member_that_the_group_has_skipped_has_lost_what_it_owns():
    """Its membership is kept while its join is delayed, and its partitions are given to others at once (KIP-345)."""
    consumer = come_back_to(3, group_instance_id="i1")
    assert consumer.sent(SyncGroupRequest) == []
    outcome = consumer.commit({"flights-0": 1})
    assert isinstance(outcome[0], CommitFailedError)
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert decode_subscription(consumer.join().protocols[0].metadata).owned_partitions == []
    consumer.let_in("flights-0", 4, leader="m2")
    assert consumer.finish_callback() == ("assigned", tps("flights-0"))


@pytest.mark.parametrize(("generation", "settings"), [(2, {"group_instance_id": "i1"}), (3, {})])
def test_a_member_that_the_group_has_waited_for_keeps_what_it_owns(generation, settings):
    """It has joined the very next generation; a dynamic member that is still known was never skipped."""
    consumer = come_back_to(generation, **settings)
    assert consumer.events == []
    assert len(consumer.sent(SyncGroupRequest)) == 1


def test_an_error_about_an_older_generation_is_ignored():
    consumer = stable_member()
    consumer.tick(3_000)
    consumer.core.enforce_rebalance("why not")
    consumer.turn()
    consumer.finish_callback()
    consumer.let_in(ALL, 2)
    consumer.finish_callback()
    consumer.heartbeat(ErrorCode.ILLEGAL_GENERATION)
    assert consumer.member.state is MemberState.STABLE
    assert consumer.events == []


def test_heartbeats_begin_with_the_answer_to_the_join_and_rebalance_in_progress_means_nothing_there():
    consumer = joining()
    consumer.tick(10_000)
    assert consumer.sent(HeartbeatRequest) == []
    consumer.accept_join()
    consumer.rebalance()
    consumer.accept_sync(ALL)
    consumer.finish_callback()
    assert consumer.sent(JoinGroupRequest) == []
