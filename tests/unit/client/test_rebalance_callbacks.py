"""What the user's listener is called with during a rebalance, and when: needsJoinPrepare, eager and cooperative members
(J8)."""

from __future__ import annotations

import pytest

from muster.client.core.group.member_state import MemberState
from muster.errors import ErrorCode
from muster.protocol.messages import JoinGroupRequest
from muster.protocol.subscription import Subscription, decode_subscription
from tests.support.client_harness import ALL, manual, stable_member, tp, tps

# --- the listener, and needsJoinPrepare ------------------------------------------------------------------------------


def test_an_eager_rebalance_revokes_all_before_the_join_and_assigns_after():
    consumer = stable_member()
    consumer.rebalance()
    assert consumer.callback() == ("revoked", tps(ALL))
    assert consumer.core.subscription.assignment() == tps(ALL)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.finish_callback()
    assert consumer.core.subscription.assignment() == []
    assert consumer.join().reason == "group is already rebalancing"
    consumer.let_in("flights-0 flights-1", 2, others={"m2": Subscription(["flights"])})
    assert consumer.finish_callback() == ("assigned", tps("flights-0 flights-1"))


def test_the_preparation_runs_once_however_often_the_join_is_tried():
    """J8."""
    consumer = stable_member()
    consumer.rebalance()
    assert consumer.finish_callback()[0] == "revoked"
    for _ in range(3):
        consumer.refuse_join(ErrorCode.REBALANCE_IN_PROGRESS)
        assert consumer.events == []
    for _ in range(3):
        consumer.refuse_join(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        consumer.tick(100)
        assert consumer.events == []
    consumer.let_in(ALL, 2)
    assert consumer.finish_callback()[0] == "assigned"
    consumer.rebalance()
    assert consumer.callback()[0] == "revoked"


def test_heartbeats_go_on_while_the_listener_thinks():
    consumer = stable_member()
    consumer.rebalance()
    for _ in range(5):
        consumer.rebalance()
    assert consumer.callback()[0] == "revoked"
    assert consumer.member.state is MemberState.STABLE


def test_a_rebalance_waits_for_the_user_to_come_back():
    """The records that were handed out may still be in use: partitions are given up when the user polls again."""
    consumer = stable_member()
    consumer.leave_poll()
    consumer.rebalance()
    consumer.tick(1_000)
    assert consumer.events == []
    consumer.enter_poll()
    assert consumer.callback()[0] == "revoked"


def test_without_a_listener_the_rebalance_runs_by_itself():
    consumer = stable_member(listening=False)
    consumer.rebalance()
    assert len(consumer.sent(JoinGroupRequest)) == 1
    assert consumer.events == []


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_of_a_member_that_was_thrown_out_are_lost(code, strategy):
    consumer = stable_member(partition_assignment_strategy=strategy)
    consumer.tick(3_000)
    consumer.heartbeat(code)
    assert consumer.finish_callback() == ("lost", tps(ALL))
    assert consumer.core.subscription.assignment() == []
    assert consumer.join().member_id == ("m1" if code is ErrorCode.ILLEGAL_GENERATION else "")


def test_a_generation_reset_while_the_listener_runs_makes_the_rest_lost():
    """revoked is being handled; the heartbeat gets UNKNOWN_MEMBER_ID; the rest must be called lost, not revoked."""
    consumer = manual(partition_assignment_strategy="cooperative-sticky")
    consumer.topics["airports"] = 1
    consumer.subscribe("flights", "airports")
    consumer.let_in("airports-0 flights-0")
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
    consumer = stable_member(partition_assignment_strategy="cooperative-sticky")
    consumer.rebalance()
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
    consumer = stable_member("flights-0 flights-1", partition_assignment_strategy="cooperative-sticky")
    first = {p: consumer.core.ownership(p) for p in tps(ALL)}
    assert first[tp("flights-2")] is None
    consumer.rebalance()
    consumer.let_in("flights-0 flights-2", 2)
    consumer.finish_callback()
    consumer.finish_callback()
    assert consumer.core.ownership(tp("flights-0")) == first[tp("flights-0")]
    assert consumer.core.ownership(tp("flights-1")) is None
    consumer.let_in("flights-0 flights-1 flights-2", 3)
    consumer.finish_callback()
    again = consumer.core.ownership(tp("flights-1"))
    assert again is not None
    assert again != first[tp("flights-1")]


def test_a_share_from_a_generation_that_ended_while_giving_up_is_not_taken():
    consumer = stable_member("flights-0 flights-1", partition_assignment_strategy="cooperative-sticky")
    consumer.rebalance()
    consumer.let_in("flights-0 flights-2", 2)
    assert consumer.callback() == ("revoked", tps("flights-1"))
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    consumer.finish_callback()
    assert consumer.finish_callback() == ("lost", tps("flights-0"))
    assert consumer.core.subscription.assignment() == []


def test_the_spark_member_answers_a_revocation_when_it_is_done():
    """A core without a fetcher, always in poll: no position is looked up, heartbeats continue, the token ends the
    wait."""
    consumer = stable_member(fetch=False, partition_assignment_strategy="cooperative-sticky")
    consumer.rebalance()
    consumer.let_in("flights-0 flights-1", 2, others={"m2": Subscription(["flights"])})
    for _ in range(20):
        consumer.tick(3_000)
        consumer.heartbeat()
    fence = {tp("flights-3"): consumer.core.ownership(tp("flights-3"))}
    outcome = consumer.commit({"flights-3": 7}, until=consumer.now + 1_000, fence=fence)
    assert consumer.accept_commit().generation_id_or_member_epoch == 2
    assert outcome == [None]
    assert consumer.finish_callback() == ("revoked", tps("flights-2 flights-3"))


# --- late answers ----------------------------------------------------------------------------------------------------


def test_positions_are_looked_up_only_when_the_listener_has_returned():
    consumer = manual()
    consumer.committed = {tp("flights-0"): 7}
    consumer.subscribe()
    consumer.let_in("flights-0")
    assert consumer.core.subscription.position(tp("flights-0")) is None
    consumer.finish_callback()
    assert consumer.core.subscription.position(tp("flights-0")) == 7
