"""Leaving a group, whatever is in progress."""

from __future__ import annotations

from muster.client.core.group.member_state import MemberState
from muster.client.core.sends import Channel
from muster.protocol.messages import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.support.client_harness import ALL, leave, manual, stable_member, tps


def test_a_dynamic_member_leaves_with_a_reason():
    consumer = stable_member()
    left = leave(consumer)
    assert consumer.finish_callback() == ("revoked", tps(ALL))
    assert left == []
    request = consumer.sent(LeaveGroupRequest)[0]
    assert [(m.member_id, m.reason) for m in request.members] == [("m1", "the consumer is being closed")]
    consumer.accept_leave()
    assert left == [True]
    assert consumer.core.subscription.assignment() == []


def test_an_old_broker_gets_the_leave_group_without_a_reason():
    consumer = manual()
    consumer.versions[LeaveGroupRequest] = 2
    consumer.stable()
    leave(consumer)
    consumer.finish_callback()
    assert consumer.sent(LeaveGroupRequest)[0].member_id == "m1"


def test_a_static_member_does_not_leave():
    """KIP-345."""
    consumer = stable_member(group_instance_id="i1")
    left = leave(consumer)
    assert consumer.finish_callback()[0] == "revoked"
    assert left == [True]
    assert consumer.sent(LeaveGroupRequest) == []


def test_leaving_during_a_join_goes_by_another_connection():
    """The broker reads nothing after a parked join."""
    consumer = stable_member()
    consumer.rebalance()
    consumer.finish_callback()
    assert len(consumer.sent(JoinGroupRequest)) == 1
    leave(consumer)
    assert consumer.channel(LeaveGroupRequest) is Channel.DATA
    assert consumer.disconnected == [1]
    consumer.accept_join(2)  # too late: nobody waits for it
    assert consumer.sent(SyncGroupRequest) == []
    assert consumer.member.state is MemberState.UNJOINED


def test_leaving_during_a_cooperative_rebalance_loses_what_is_owned():
    consumer = stable_member(partition_assignment_strategy="cooperative-sticky")
    consumer.rebalance()
    leave(consumer)
    assert consumer.finish_callback() == ("lost", tps(ALL))


def test_leaving_during_a_join_reaches_the_coordinator_though_a_heartbeat_fails_with_its_connection():
    """The parked join's connection used to be closed only when the LeaveGroup request was built: the heartbeat on it
    failed, the coordinator was given up, and there was nobody left to notify, so the group waited for the member's
    session to expire."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.auto.discard(HeartbeatRequest)
    consumer.stable()
    consumer.tick(3_000)
    consumer.member.request_rejoin("for the test")
    consumer.tick(0)
    assert len(consumer.sent(HeartbeatRequest)) == len(consumer.sent(JoinGroupRequest)) == 1
    leave(consumer)
    if consumer.disconnected:  # the driver does this at once
        consumer.fail(HeartbeatRequest)
    consumer.finish_callback()
    assert len(consumer.sent(LeaveGroupRequest)) == 1
    assert consumer.disconnected == [1]


def test_after_leaving_one_can_join_again():
    consumer = stable_member()
    leave(consumer)
    consumer.finish_callback()
    consumer.accept_leave()
    consumer.subscribe()
    assert consumer.join().member_id == ""
