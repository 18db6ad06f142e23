"""Answers that arrive too late, and errors that come while something else is in progress."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from muster.assignors import MemberAssignment, MemberSubscription, RangeAssignor
from muster.client.config import ConsumerConfig
from muster.client.core.consumer import ConsumerCore
from muster.client.core.events import Fatal
from muster.client.core.group.commit_first import CommitFirst, OnCommitted
from muster.client.core.group.member_state import MemberState
from muster.client.core.sends import Failure, FailureKind
from muster.errors import CommitFailedError, ErrorCode, KafkaError
from muster.model import OffsetAndMetadata
from muster.protocol import messages as m
from muster.protocol.subscription import Subscription, decode_subscription
from tests.support.client_harness import GROUP, ConsumerHarness, stable_member, topic_id, tp, tps

ALL = "flights-0 flights-1 flights-2 flights-3"
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}


# --- of a coordinator that was given up ------------------------------------------------------------------------------

NO_LONGER = int(ErrorCode.NOT_COORDINATOR)
REFUSALS = {
    m.OffsetCommitRequest: m.OffsetCommitResponse(
        topics=[m.OffsetCommitResponseTopic("", topic_id("flights"), [m.OffsetCommitResponsePartition(0, NO_LONGER)])]
    ),
    m.OffsetFetchRequest: m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, [], NO_LONGER)]),
    m.HeartbeatRequest: m.HeartbeatResponse(error_code=NO_LONGER),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("how", ["refused", "unanswered"])
def test_what_is_left_of_a_former_coordinator_does_not_give_up_the_new_one(kind: Any, how: str) -> None:
    """Several requests to it are in flight. The first answer makes the member give it up; the others add nothing
    new."""
    consumer = stable_member()
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.commit({"flights-0": 1})
    consumer.core.fetch_committed(tps("flights-0"), lambda _found, _now: None, until=consumer.now + 60_000)
    consumer.tick(3_000)
    consumer.coordinator = 2
    consumer.fail(m.HeartbeatRequest if kind is m.OffsetCommitRequest else m.OffsetCommitRequest)
    consumer.tick(200)
    lookup = consumer.core.group.lookup
    assert lookup.node_id == 2
    consumer.answer(kind, REFUSALS[kind] if how == "refused" else Failure(FailureKind.DISCONNECTED, "gone"))
    assert (lookup.node_id, consumer.lookups) == (2, 2)


def test_a_join_that_is_parked_at_a_coordinator_that_was_given_up_is_not_waited_for() -> None:
    """Its connection is closed for that reason, which says nothing about the new coordinator."""
    consumer = stable_member()
    consumer.commit({"flights-0": 1})
    consumer.rebalance()
    consumer.finish_callback()
    consumer.coordinator = 2
    consumer.accept_commit(ErrorCode.NOT_COORDINATOR)
    consumer.tick(200)
    assert len(consumer.sent(m.JoinGroupRequest)) == 2
    consumer.fail(m.JoinGroupRequest)
    assert (consumer.core.group.lookup.node_id, consumer.lookups) == (2, 2)
    assert len(consumer.sent(m.JoinGroupRequest)) == 1


def test_a_commit_that_timed_out_at_the_coordinator_has_it_looked_up_again() -> None:
    """Like Kafka's own client: it could not write, so it may no longer be the coordinator."""
    consumer = stable_member()
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 60_000)
    consumer.coordinator = 2
    consumer.accept_commit(ErrorCode.REQUEST_TIMED_OUT)
    consumer.tick(200)
    assert next(send.node_id for send, found in consumer.pending if isinstance(found, m.OffsetCommitRequest)) == 2
    consumer.accept_commit()
    assert outcome == [None]


# --- of a rebalance that was given up --------------------------------------------------------------------------------


def test_a_share_out_of_a_rebalance_that_was_given_up_is_not_taken() -> None:
    """The coordinator moves while the member waits for its assignment; it joins at the new one; then the old assignment
    comes."""
    consumer = stable_member()
    consumer.commit({"flights-0": 1})
    consumer.rebalance()
    consumer.finish_callback()
    consumer.accept_join(2)
    consumer.accept_commit(ErrorCode.NOT_COORDINATOR)
    consumer.tick(200)
    consumer.accept_join(3, others={"m2": Subscription(["flights"])})
    assert len(consumer.sent(m.SyncGroupRequest)) == 2
    consumer.accept_sync(ALL)
    assert consumer.core.subscription.assignment() == []
    consumer.accept_sync("flights-0 flights-1")
    assert consumer.finish_callback() == ("assigned", tps("flights-0 flights-1"))


def test_a_commit_before_a_rebalance_that_is_over_does_not_count_for_the_next_one() -> None:
    core = ConsumerCore(ConsumerConfig(group_id=GROUP))
    first = CommitFirst(core.config, core.subscription, core.metadata, core.events, 0)
    asked: list[OnCommitted] = []
    went_on: list[str] = []
    first.commit = lambda on_done, _now: asked.append(on_done)
    first.begin(lambda _now: went_on.append("former"), 0)
    first.poll(0)
    assert first.drop()
    first.begin(lambda _now: went_on.append("present"), 10)
    first.poll(10)
    asked[0](None, 20)
    assert (went_on, first.waiting) == ([], True)
    asked[1](None, 30)
    assert (went_on, first.waiting) == (["present"], False)


def test_the_commits_before_a_rebalance_are_as_patient_as_if_there_had_been_none_before() -> None:
    consumer = stable_member(enable_auto_commit=True, auto_commit_interval_ms=10**9)
    for generation in (2, 3):
        consumer.rebalance()
        consumer.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        before = consumer.now
        while not consumer.sent(m.OffsetCommitRequest):
            consumer.tick(10)
        assert consumer.now - before <= 130
        for _ in range(4):
            consumer.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            consumer.tick(1_200)
            for _ in consumer.sent(m.HeartbeatRequest):
                consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
        consumer.accept_commit()
        consumer.finish_callback()
        consumer.let_in(ALL, generation)
        consumer.finish_callback()


def test_whether_a_topic_is_gone_is_looked_up_and_not_waited_for() -> None:
    """H6. The coordinator knows of the deletion before this member's metadata is old enough to be refreshed."""
    consumer = stable_member(enable_auto_commit=True, auto_commit_interval_ms=10**9, metadata_max_age_ms=10**7)
    del consumer.topics["flights"]
    consumer.rebalance()
    for _ in range(3):
        if consumer.sent(m.OffsetCommitRequest):
            consumer.accept_commit(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        consumer.tick(300)
    assert consumer.callback()[0] == "revoked"


# --- topics ----------------------------------------------------------------------------------------------------------


def topics_of_the_join(consumer: ConsumerHarness) -> list[str]:
    return decode_subscription(consumer.join().protocols[0].metadata).topics


def test_no_group_is_joined_by_a_pattern_that_was_not_matched_yet() -> None:
    consumer = ConsumerHarness(enable_auto_commit=False, listening=False)
    consumer.auto.discard(m.MetadataRequest)
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    assert consumer.sent(m.JoinGroupRequest) == []
    [request] = consumer.sent(m.MetadataRequest)
    consumer.answer(m.MetadataRequest, consumer.metadata_response(request))
    assert topics_of_the_join(consumer) == ["flights"]


def test_each_join_by_a_pattern_asks_for_metadata_before() -> None:
    """All members discover a new topic in one rebalance, not one after the other."""
    consumer = ConsumerHarness(enable_auto_commit=False, listening=False, metadata_max_age_ms=10**7)
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    for generation in (1, 2, 3):
        consumer.let_in("flights-0", generation)
        consumer.topics[f"flights-{generation}"] = 1
        consumer.rebalance()
        consumer.turn()
        assert topics_of_the_join(consumer) == sorted(consumer.topics)


def test_another_pattern_is_another_subscription_at_once() -> None:
    consumer = ConsumerHarness(enable_auto_commit=False, listening=False, metadata_max_age_ms=10**7)
    consumer.topics["airports"] = 1
    consumer.core.subscribe_pattern(re.compile("flights.*"))
    consumer.enter_poll()
    consumer.let_in(ALL)
    consumer.core.subscribe_pattern(re.compile("air.*"))
    consumer.tick(500)
    assert topics_of_the_join(consumer) == ["airports"]


def test_a_leader_minds_the_topics_that_its_assignor_has_added() -> None:
    class Generous(RangeAssignor):
        name = "generous"

        def assign(
            self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
        ) -> dict[str, MemberAssignment]:
            return {member_id: MemberAssignment(tps("flights-0 extra-0")) for member_id in members}

    consumer = ConsumerHarness(enable_auto_commit=False, partition_assignment_strategy=(Generous(),))
    consumer.topics["extra"] = 1
    consumer.subscribe()
    consumer.accept_join(others={"m2": Subscription(["flights"])})
    assert consumer.core.metadata.interest == frozenset({"flights", "extra"})


# --- of a generation that is over ------------------------------------------------------------------------------------


def test_a_commit_of_the_generation_that_is_being_left_says_that_the_member_is_out() -> None:
    """The member is rejoining, and its generation is the one used for the commit: it is no longer known."""
    consumer = stable_member()
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 60_000)
    consumer.rebalance()
    consumer.finish_callback()
    assert consumer.member.state is MemberState.PREPARING_REBALANCE
    consumer.accept_commit(ErrorCode.UNKNOWN_MEMBER_ID)
    [error] = outcome
    assert isinstance(error, CommitFailedError)
    assert error.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert consumer.member.generation.was_reset


def test_a_static_member_that_has_joined_again_is_not_fenced_by_a_commit_of_before() -> None:
    """The commit is from the previous generation; only one of this generation proves that another instance took
    over."""
    consumer = stable_member(group_instance_id="i1")
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 60_000)
    consumer.rebalance()
    consumer.finish_callback()
    consumer.let_in(ALL, 2)
    consumer.finish_callback()
    consumer.accept_commit(ErrorCode.FENCED_INSTANCE_ID)
    assert isinstance(outcome[0], CommitFailedError)
    assert consumer.member.generation.generation_id == 2


def test_what_was_to_be_released_is_lost_when_the_member_is_thrown_out_meanwhile() -> None:
    """While the commit before the release is in flight, the group forgets the member, so others may already own
    everything."""
    consumer = stable_member(enable_auto_commit=True, auto_commit_interval_ms=10**9, **COOPERATIVE)
    consumer.rebalance()
    consumer.accept_commit()
    consumer.let_in("flights-0 flights-1", 2)
    consumer.tick(3_000)
    consumer.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    consumer.accept_commit(ErrorCode.UNKNOWN_MEMBER_ID)
    assert consumer.finish_callback() == ("lost", tps("flights-2 flights-3"))
    assert consumer.finish_callback() == ("lost", tps("flights-0 flights-1"))


def test_a_heartbeat_of_before_says_nothing_about_the_rebalance_that_has_come_since() -> None:
    """It was in flight while the member joined. The answer reports a rebalance that the member has already joined."""
    consumer = stable_member()
    consumer.tick(3_000)
    consumer.core.enforce_rebalance("why not")
    consumer.turn()
    consumer.finish_callback()
    consumer.let_in(ALL, 2)
    consumer.finish_callback()
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert (consumer.events, consumer.sent(m.JoinGroupRequest)) == ([], [])


def test_a_partition_that_was_to_be_given_up_and_is_kept_after_all_is_read_on() -> None:
    """The user drops a topic and takes it up again while its offsets are being committed before the join."""
    consumer = ConsumerHarness(**{"auto_commit_interval_ms": 10**9} | COOPERATIVE)
    consumer.topics["delays"] = 1
    consumer.subscribe("flights", "delays")
    consumer.let_in("flights-0 delays-0")
    consumer.finish_callback()
    consumer.subscribe("flights")
    assert consumer.core.subscription.state(tp("delays-0")).pending_revocation
    consumer.core.subscribe(["flights", "delays"])
    consumer.accept_commit()
    assert consumer.events == []
    assert [state.pending_revocation for _, state in consumer.core.subscription.states()] == [False, False]


# --- while the user is away, or leaves -------------------------------------------------------------------------------


def test_what_is_to_be_released_is_neither_handed_out_nor_committed_before_the_user_comes_back() -> None:
    """The assignment comes while the user handles records: the position is past them, but they are not handled yet."""
    consumer = stable_member(enable_auto_commit=True, auto_commit_interval_ms=10**9, **COOPERATIVE)
    consumer.rebalance()
    consumer.accept_commit()
    consumer.leave_poll()
    consumer.let_in("flights-0 flights-1", 2)
    consumer.tick(500)
    assert consumer.sent(m.OffsetCommitRequest) == []
    pending = {partition for partition, state in consumer.core.subscription.states() if state.pending_revocation}
    assert pending == {*tps("flights-2 flights-3")}
    consumer.enter_poll()
    consumer.accept_commit()
    assert consumer.callback() == ("revoked", tps("flights-2 flights-3"))


def test_a_member_that_leaves_does_not_join_while_its_listener_runs() -> None:
    consumer = stable_member()
    consumer.leave_poll()
    consumer.rebalance()
    left: list[bool] = []
    consumer.core.unsubscribe(consumer.now, lambda: left.append(True), "enough")
    consumer.enter_poll()
    consumer.tick(1_000)
    assert consumer.sent(m.JoinGroupRequest) == []
    assert consumer.finish_callback() == ("revoked", tps(ALL))
    assert consumer.sent(m.JoinGroupRequest) == []
    consumer.accept_leave()
    assert left == [True]


def test_each_call_of_the_listener_has_the_time_of_a_poll() -> None:
    """Two consecutive calls, for the released and for the new partitions, do not add up to one long absence."""
    consumer = stable_member(
        max_poll_interval_ms=10_000, heartbeat_interval_ms=1_000, session_timeout_ms=60_000, **COOPERATIVE
    )
    consumer.tick(1_000)
    consumer.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.let_in("flights-0", 2)
    for kind in ("revoked", "assigned"):
        consumer.tick(7_000)
        assert consumer.finish_callback()[0] == kind
    assert consumer.member.generation.generation_id == 2


def test_a_good_share_makes_a_failing_assignor_be_asked_soon_again() -> None:
    consumer = stable_member(retry_backoff_max_ms=10_000)
    failures = consumer.member._assignor_failures
    for _ in range(5):
        failures.next_wait_ms()
    consumer.rebalance()
    consumer.finish_callback()
    consumer.let_in(ALL, 2)
    assert failures.next_wait_ms() <= 120


# --- backoffs --------------------------------------------------------------------------------------------------------


def test_an_answered_heartbeat_makes_the_next_failure_a_first_one() -> None:
    consumer = stable_member(session_timeout_ms=120_000)
    for _ in range(2):
        waits = []
        for _ in range(4):
            while not consumer.sent(m.HeartbeatRequest):
                consumer.tick(10)
            before = consumer.now
            consumer.heartbeat(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            while not consumer.sent(m.HeartbeatRequest):
                consumer.tick(10)
            waits.append(consumer.now - before)
        assert waits[0] <= 130
        assert waits[-1] >= 400
        consumer.heartbeat()


def test_a_good_answer_of_the_coordinator_makes_the_next_failure_a_first_one() -> None:
    consumer = stable_member()
    for _ in range(2):
        waits = []
        for _ in range(5):
            while not consumer.sent(m.HeartbeatRequest):
                consumer.tick(10)
            before, lookups = consumer.now, consumer.lookups
            consumer.fail(m.HeartbeatRequest, FailureKind.UNREACHABLE)
            while consumer.lookups == lookups:
                consumer.tick(10)
            waits.append(consumer.now - before)
        assert waits[0] == 0  # it may just have moved
        assert waits[1] <= 130
        assert waits[-1] >= 400
        while not consumer.sent(m.HeartbeatRequest):
            consumer.tick(10)
        consumer.heartbeat()


def test_the_interval_of_auto_commits_begins_with_the_assignment() -> None:
    """The assigned partitions were just committed, by their former owner or by the commit before the rebalance."""
    consumer = stable_member(enable_auto_commit=True, auto_commit_interval_ms=5_000)
    consumer.rebalance()
    consumer.accept_commit()
    consumer.finish_callback()
    consumer.let_in(ALL, 2)
    consumer.finish_callback()
    consumer.tick(4_900)
    assert consumer.sent(m.OffsetCommitRequest) == []
    consumer.tick(100)
    assert len(consumer.sent(m.OffsetCommitRequest)) == 1


# --- without a coordinator -------------------------------------------------------------------------------------------


def test_whoever_may_not_use_its_group_gets_an_error_though_it_assigned_by_hand() -> None:
    """It waits for the committed offsets of a group that it may not see: the user has not asked for them, but gets the
    error."""
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.auto.discard(m.FindCoordinatorRequest)
    refused = m.FindCoordinatorResponse(
        coordinators=[m.Coordinator(GROUP, error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))]
    )
    consumer.core.assign(tps("flights-0"))
    for _ in range(2):  # once at each poll
        consumer.enter_poll()
        consumer.tick(5_000)
        consumer.answer(m.FindCoordinatorRequest, refused)
        consumer.tick(5_000)
        error = consumer.fatal()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert consumer.events == []


def test_errors_do_not_pile_up_while_the_user_is_away() -> None:
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.core.subscribe(["flights"])
    consumer.core.enter_poll(0)
    refused = m.Coordinator(GROUP, error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    asked = 0
    for now in range(0, 20_000, 100):
        for request in consumer.core.poll(now):
            asked += 1
            request.on_reply(m.FindCoordinatorResponse(coordinators=[refused]), now)
    assert asked > 3
    assert len([event for event in consumer.core.events if isinstance(event, Fatal)]) == 1


def test_what_two_partitions_say_alike_is_reported_once() -> None:
    consumer = ConsumerHarness(group_id=None)
    partitions = tps("flights-0 flights-1")
    consumer.core.assign(partitions)
    for partition in partitions:
        consumer.core.subscription.seek(partition, OffsetAndMetadata(5, 0))
    consumer.enter_poll()
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [m.OffsetForLeaderEpochResponseEpochEndOffset(code, number) for number in (0, 1)]
    topics = [m.OffsetForLeaderTopicResult("flights", refused)]
    consumer.answer(m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse(topics=topics))
    assert "cannot be read" in str(consumer.fatal())
    assert consumer.events == []


def test_committed_offsets_are_not_asked_for_again_at_once() -> None:
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.auto.discard(m.OffsetFetchRequest)
    consumer.core.assign([tp("flights-0")])
    consumer.enter_poll()
    loading = m.OffsetFetchResponseGroup(GROUP, [], int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    consumer.answer(m.OffsetFetchRequest, m.OffsetFetchResponse(groups=[loading]))
    assert consumer.sent(m.OffsetFetchRequest) == []
    consumer.tick(130)
    assert len(consumer.sent(m.OffsetFetchRequest)) == 1
