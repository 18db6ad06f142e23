"""What is committed before partitions are given up."""

from __future__ import annotations

import pytest

from muster.errors import ErrorCode
from muster.protocol.messages import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest
from muster.protocol.subscription import Subscription
from tests.support.client_harness import ConsumerHarness, stable_member, tp, tps


def test_an_eager_member_commits_before_it_gives_up():
    consumer = stable_member(auto_commit_interval_ms=10**9, enable_auto_commit=True)
    consumer.core.subscription.seek(tp("flights-1"), 5)
    consumer.rebalance()
    assert consumer.events == []
    assert consumer.core.subscription.state(tp("flights-1")).pending_revocation
    request = consumer.accept_commit()
    assert {p.partition_index: p.committed_offset for p in request.topics[0].partitions}[1] == 5
    assert consumer.finish_callback()[0] == "revoked"
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_that_commit_is_tried_again_until_the_rebalance_is_out_of_time():
    consumer = stable_member(auto_commit_interval_ms=10**9, max_poll_interval_ms=6_000, enable_auto_commit=True)
    consumer.rebalance()
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
    """If request_timeout_ms is longer than the rebalance may take."""
    consumer = stable_member(auto_commit_interval_ms=10**9, max_poll_interval_ms=6_000, enable_auto_commit=True)
    consumer.rebalance()
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
    consumer.accept_commit()  # too late to matter
    assert len(consumer.sent(JoinGroupRequest)) == 1


def test_a_commit_that_cannot_be_does_not_hold_the_join_up():
    consumer = stable_member(auto_commit_interval_ms=10**9, enable_auto_commit=True)
    consumer.rebalance()
    consumer.accept_commit(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert consumer.callback()[0] == "revoked"


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_offsets_of_a_topic_that_was_deleted_do_not_hold_the_join_up(code):
    """H6: the leader sees that partitions are gone. Their offsets can never be committed; the others have been."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, metadata_max_age_ms=10_000, heartbeat_interval_ms=40_000)
    consumer.topics["airports"] = 1
    consumer.subscribe("flights", "airports")
    consumer.let_in(tps("airports-0 flights-0"))
    consumer.finish_callback()
    del consumer.topics["airports"]
    consumer.tick(10_000)
    consumer.accept_commit(code)
    assert consumer.finish_callback() == ("revoked", tps("airports-0 flights-0"))
    assert "airports" in (consumer.join().reason or "")


def test_a_topic_that_only_the_coordinator_does_not_know_is_waited_for():
    """A broker that has just started may not know of all topics yet: that heals."""
    consumer = stable_member(auto_commit_interval_ms=10**9, enable_auto_commit=True)
    consumer.rebalance()
    consumer.accept_commit(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert consumer.sent(JoinGroupRequest) == []
    consumer.tick(200)
    consumer.accept_commit()
    assert consumer.callback()[0] == "revoked"


@pytest.mark.parametrize(
    ("owned", "gone"),
    [
        ("airports-0 airports-1", "airports-1 no longer exists"),
        ("airports-0 airports-1 airports-2", "airports-1, airports-2 no longer exist"),
    ],
)
def test_a_rebalance_that_waits_for_a_commit_says_so_once(owned, gone):
    """Like Java's client, it waits for `max_poll_interval_ms`, because the topic was created again with fewer
    partitions. That is five minutes by default."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, metadata_max_age_ms=500, heartbeat_interval_ms=40_000)
    consumer.topics["airports"] = 3
    consumer.subscribe("flights", "airports")
    consumer.let_in(tps(owned))
    consumer.finish_callback()
    consumer.topics["airports"] = 1
    began, reported = consumer.now, []
    for _ in range(60):
        consumer.tick(500)
        if consumer.sent(OffsetCommitRequest):
            consumer.accept_commit(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        reported += [(consumer.now - began, note) for note in consumer.notes if "the rebalance waits" in note]
        consumer.notes.clear()
    [(waited_ms, text)] = reported
    assert waited_ms >= 5_000
    assert f"; {gone}: the topic was recreated with fewer partitions; " in text
    assert "max_poll_interval_ms (300000)" in text
    assert consumer.sent(JoinGroupRequest) == []


def test_a_cooperative_member_commits_what_it_releases():
    consumer = stable_member(
        auto_commit_interval_ms=10**9, partition_assignment_strategy="cooperative-sticky", enable_auto_commit=True
    )
    consumer.rebalance()
    consumer.accept_commit()
    consumer.core.subscription.seek(tp("flights-3"), 9)  # it continues reading while the others join
    consumer.let_in("flights-0 flights-1", 2, others={"m2": Subscription(["flights"])})
    assert consumer.events == []
    request = consumer.accept_commit()
    assert request.generation_id_or_member_epoch == 2
    assert {p.partition_index: p.committed_offset for p in request.topics[0].partitions}[3] == 9
    assert consumer.callback() == ("revoked", tps("flights-2 flights-3"))


def test_a_cooperative_member_hands_nothing_out_of_what_it_gives_up_while_that_is_being_committed():
    """It subscribes to less. The next owner would handle records again that were handed out after the commit."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, partition_assignment_strategy="cooperative-sticky")
    consumer.topics["delays"] = 1
    consumer.subscribe("flights", "delays")
    consumer.let_in("flights-0 delays-0")
    consumer.finish_callback()
    consumer.subscribe("flights")
    assert consumer.sent(OffsetCommitRequest)
    pending = {partition: state.pending_revocation for partition, state in consumer.core.subscription.states()}
    assert pending == {tp("flights-0"): False, tp("delays-0"): True}
    consumer.accept_commit()
    assert consumer.callback() == ("revoked", tps("delays-0"))


def test_what_is_given_up_by_subscribing_again_during_that_commit_is_committed_too():
    """The user changes the subscription while the commit for the last change is in flight, and has been handed records
    since."""
    consumer = ConsumerHarness(auto_commit_interval_ms=10**9, partition_assignment_strategy="cooperative-sticky")
    consumer.topics["delays"] = 1
    consumer.subscribe("flights", "delays")
    consumer.let_in("flights-0 delays-0")
    consumer.finish_callback()
    consumer.subscribe("flights")
    assert len(consumer.sent(OffsetCommitRequest)) == 1
    consumer.core.subscription.seek(tp("flights-0"), 9)
    consumer.core.subscribe(["delays"])
    consumer.accept_commit()
    assert consumer.events == []
    request = consumer.accept_commit()
    assert {p.committed_offset for topic in request.topics for p in topic.partitions} >= {9}
    assert consumer.callback() == ("revoked", tps("flights-0"))


def test_a_reset_member_does_not_commit():
    consumer = stable_member(auto_commit_interval_ms=10**9, enable_auto_commit=True)
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert consumer.sent(OffsetCommitRequest) == []
    assert consumer.callback()[0] == "lost"
