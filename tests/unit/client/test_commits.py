"""Commits: order, retries, the check of the generation, and how each error is handled."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.group.member_state import MemberState
from muster.client.core.sends import FailureKind
from muster.errors import CommitFailedError, ErrorCode, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from muster.model import OffsetAndMetadata
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.client_harness import (
    GROUP,
    ConsumerHarness,
    by_hand,
    code_of,
    fetch_committed,
    stable_member,
    topic_id,
    tp,
)


@pytest.fixture
def member():
    """A stable member without auto commit."""
    return stable_member()


# --- one commit ------------------------------------------------------------------------------------------------------


def test_a_commit_says_who_and_what(member):
    outcome: list[Any] = []
    offset = OffsetAndMetadata(5, 3, "noted")
    member.core.commit({tp("flights-2"): offset}, lambda error, _now: outcome.append(error))
    member.turn()
    request = member.accept_commit()
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == (GROUP, 1, "m1")
    partition = request.topics[0].partitions[0]
    assert (request.topics[0].topic_id, partition.partition_index) == (topic_id("flights"), 2)
    assert (partition.committed_offset, partition.committed_leader_epoch, partition.committed_metadata) == (
        5,
        3,
        "noted",
    )
    assert outcome == [None]


def test_a_topic_without_a_known_id_is_committed_by_name():
    consumer = by_hand()
    consumer.commit({"elsewhere-0": 1})
    assert [(t.name, t.topic_id) for t in consumer.sent(m.OffsetCommitRequest)[0].topics] == [("elsewhere", ZERO_UUID)]


def test_nothing_to_commit_is_done_at_once(member):
    assert member.commit({}) == [None]
    assert member.sent(m.OffsetCommitRequest) == []


def test_by_hand_there_is_no_generation():
    consumer = by_hand(group_instance_id="i1")
    outcome = consumer.commit({"flights-0": 1})
    request = consumer.accept_commit()
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (-1, "", None)
    assert outcome == [None]


def test_by_hand_a_group_with_members_refuses_and_nothing_is_reset():
    consumer = by_hand()
    outcome = consumer.commit({"flights-0": 1})
    consumer.accept_commit(ErrorCode.UNKNOWN_MEMBER_ID)
    assert isinstance(outcome[0], CommitFailedError)
    assert consumer.notes[-1].startswith("the coordinator")


# --- errors ----------------------------------------------------------------------------------------------------------

RETRIABLE = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
]


@pytest.mark.parametrize("code", RETRIABLE)
def test_what_may_heal_is_tried_again_until_time_is_out_and_a_single_try_is_one(member, code):
    [outcome, single] = [member.commit({"flights-0": 1}, until=until) for until in (member.now + 1_000, None)]
    member.accept_commit(code)
    assert outcome == []
    member.tick(130)
    member.accept_commit()
    assert outcome == [None]
    member.accept_commit(code)
    assert isinstance(single[0], KafkaError)
    assert single[0].retriable


def test_when_time_is_out_the_last_reason_is_reported(member):
    outcome = member.commit({"flights-0": 1}, until=member.now + 300)
    while member.sent(m.OffsetCommitRequest):
        member.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        member.tick(50)
        member.tick(50)
    member.tick(300)
    assert [code_of(error) for error in outcome] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


def test_without_any_answer_it_is_a_timeout(member):
    outcome = member.commit({"flights-0": 1}, until=member.now + 300)
    member.tick(300)
    assert isinstance(outcome[0], KafkaTimeoutError)
    member.accept_commit()  # too late
    assert len(outcome) == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_does_not_heal_is_reported(member, code):
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000)
    member.accept_commit(code)
    assert [error.code for error in outcome] == [code]
    assert not isinstance(outcome[0], CommitFailedError)


def test_an_answer_that_leaves_a_partition_out_is_not_a_success(member):
    outcome = member.commit({"flights-0": 1, "flights-1": 2}, until=member.now + 1_000)
    [request] = member.sent(m.OffsetCommitRequest)
    [topic] = request.topics
    parts = [m.OffsetCommitResponsePartition(0, 0)]
    answer = m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(topic.name, topic.topic_id, parts)])
    member.answer(m.OffsetCommitRequest, answer)
    assert code_of(outcome[0]) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "flights-1" in str(outcome[0])


def test_a_member_may_commit_what_it_was_not_assigned(member):
    """Like Kafka's own client: the group checks the generation, not who owns what (J7)."""
    outcome = member.commit({"other-7": 5})
    request = member.accept_commit()
    assert request.generation_id_or_member_epoch == 1
    assert [topic.name for topic in request.topics] == ["other"]
    assert outcome == [None]


def test_rebalance_in_progress_makes_the_member_join(member):
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000)
    member.accept_commit(ErrorCode.REBALANCE_IN_PROGRESS)
    assert isinstance(outcome[0], CommitFailedError)
    assert outcome[0].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert member.finish_callback()[0] == "revoked"
    assert len(member.sent(m.JoinGroupRequest)) == 1


@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "m1")]
)
def test_an_expelled_member_gets_an_error_and_starts_over(member, code, member_id):
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000)
    member.accept_commit(code)
    assert isinstance(outcome[0], CommitFailedError)
    assert outcome[0].code is code
    assert member.finish_callback()[0] == "lost"
    assert member.join().member_id == member_id


def test_an_error_about_an_older_generation_only_says_to_poll(member):
    """The commit is in flight; the member begins to rejoin; the old generation's commit is refused."""
    outcome = member.commit({"flights-0": 1}, until=member.now + 60_000)
    member.core.enforce_rebalance("")
    member.turn()
    member.finish_callback()
    member.let_in("flights-0", 2)
    member.finish_callback()
    member.core.enforce_rebalance("")
    member.turn()
    member.finish_callback()
    assert member.member.state is MemberState.PREPARING_REBALANCE
    member.accept_commit(ErrorCode.ILLEGAL_GENERATION)
    assert outcome[0].code is ErrorCode.REBALANCE_IN_PROGRESS
    assert member.member.generation.generation_id == 2


def test_a_member_that_is_joining_does_not_even_ask():
    consumer = ConsumerHarness(enable_auto_commit=False)
    consumer.subscribe()
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 1_000)
    assert code_of(outcome[0]) is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumer.sent(m.OffsetCommitRequest) == []


def test_a_member_that_was_expelled_does_not_even_ask():
    consumer = stable_member(max_poll_interval_ms=1_000)
    consumer.leave_poll()
    consumer.tick(1_000)
    outcome = consumer.commit({"flights-0": 1})
    assert isinstance(outcome[0], CommitFailedError)
    assert outcome[0].code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_broken_connection_is_tried_again_elsewhere(member):
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000)
    member.coordinator = 2
    member.fail(m.OffsetCommitRequest)
    member.tick(130)
    assert next(send.node_id for send, r in member.pending if isinstance(r, m.OffsetCommitRequest)) == 2
    member.accept_commit()
    assert outcome == [None]


def test_a_version_that_is_not_spoken_is_reported(member):
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000)
    member.fail(m.OffsetCommitRequest, FailureKind.UNSUPPORTED_VERSION)
    assert isinstance(outcome[0], UnsupportedVersionError)


# --- order -----------------------------------------------------------------------------------------------------------


def test_single_tries_follow_each_other_and_report_in_order(member):
    done: list[Any] = []
    for offset in (1, 2, 3):
        member.core.commit(
            {tp("flights-0"): OffsetAndMetadata(offset)}, lambda error, _now, offset=offset: done.append(offset)
        )
    member.turn()
    assert len(member.sent(m.OffsetCommitRequest)) == 3
    for _ in range(3):
        member.accept_commit()
    assert done == [1, 2, 3]


def test_a_failure_that_is_known_at_once_is_still_reported_in_order(member):
    done: list[Any] = []
    member.core.commit({tp("flights-0"): OffsetAndMetadata(1)}, lambda error, _now: done.append(("first", error)))
    member.turn()
    fence = {tp("flights-0"): 999}
    member.core.commit(
        {tp("flights-0"): OffsetAndMetadata(2)}, lambda error, _now: done.append(("second", error)), fence=fence
    )
    member.turn()
    assert done == []
    member.accept_commit()
    assert [name for name, _ in done] == ["first", "second"]


def test_nothing_is_sent_after_a_commit_that_may_be_tried_again(member):
    """Otherwise its retry would undo what the later one has advanced."""
    first = member.commit({"flights-0": 1}, until=member.now + 1_000)
    second = member.commit({"flights-0": 2})
    member.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert member.sent(m.OffsetCommitRequest) == []
    member.tick(130)
    assert member.accept_commit().topics[0].partitions[0].committed_offset == 1
    assert (first, second) == ([None], [])
    assert member.accept_commit().topics[0].partitions[0].committed_offset == 2
    assert second == [None]


# --- the check of the generation
# -------------------------------------------------------------------------------------------------------


def test_a_partition_lost_and_regained_is_not_committed_for_its_former_ownership(member):
    partition = tp("flights-0")
    fence = {partition: member.core.ownership(partition)}
    member.tick(3_000)
    member.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    member.finish_callback()
    member.let_in("flights-0", 5, member_id="m2", leader="m2")
    member.finish_callback()
    outcome = member.commit({"flights-0": 1}, until=member.now + 1_000, fence=fence)
    assert isinstance(outcome[0], CommitFailedError)
    assert member.sent(m.OffsetCommitRequest) == []
    again = member.commit({"flights-0": 1}, fence={partition: member.core.ownership(partition)})
    member.accept_commit()
    assert again == [None]


def regain(member):
    """The member is expelled and joins again; its partitions come back to it."""
    member.tick(3_000)
    member.heartbeat(ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.finish_callback()[0] == "lost"
    member.let_in("flights-0 flights-1", 5, member_id="m2", leader="m2")
    assert member.finish_callback()[0] == "assigned"


def test_a_commit_that_waited_after_another_is_not_sent_under_a_later_generation(member):
    """The partitions were lost meanwhile: their new owner may be further ahead, and the broker would accept the
    commit."""
    first = member.commit({"flights-0": 1}, until=member.now + 60_000)
    second = member.commit({"flights-0": 2})
    regain(member)
    member.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # of the first generation: sent before all this
    member.tick(1_000)
    assert member.sent(m.OffsetCommitRequest) == []
    for [error] in (first, second):
        assert isinstance(error, CommitFailedError)
        assert error.code is ErrorCode.ILLEGAL_GENERATION
    assert member.commit({"flights-0": 3}) == []
    assert member.accept_commit().generation_id_or_member_epoch == 5


def test_a_commit_of_what_was_kept_is_tried_again_under_a_later_generation():
    member = stable_member(partition_assignment_strategy="cooperative-sticky")
    kept = member.commit({"flights-0": 1}, until=member.now + 60_000)
    strange = member.commit({"elsewhere-0": 1})
    member.member.request_rejoin("for the test")
    member.turn()
    member.let_in("flights-0 flights-1 flights-2 flights-3", 2)
    member.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    member.tick(1_000)
    assert member.accept_commit().generation_id_or_member_epoch == 2
    assert kept == [None]
    assert isinstance(strange[0], CommitFailedError)  # nobody knows whose that is by now


def test_a_commit_that_waited_is_not_sent_without_a_generation_once_the_member_has_left(member):
    """A group without members would accept it, although everything committed after it belonged to a generation."""
    member.commit({"flights-0": 1}, until=member.now + 60_000)
    second = member.commit({"flights-0": 2})
    member.core.unsubscribe(member.now, lambda: None, "for the test")
    member.turn()
    member.finish_callback()
    member.accept_commit(ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.sent(m.OffsetCommitRequest) == []
    assert isinstance(second[0], CommitFailedError)


# --- auto commit -----------------------------------------------------------------------------------------------------


def test_auto_commit_runs_at_its_interval_while_the_user_is_in_poll():
    consumer = stable_member(auto_commit_interval_ms=5_000, heartbeat_interval_ms=40_000, enable_auto_commit=True)
    consumer.tick(4_999)
    assert consumer.sent(m.OffsetCommitRequest) == []
    consumer.tick(1)
    assert len(consumer.accept_commit().topics[0].partitions) == 4
    consumer.tick(5_000)
    consumer.accept_commit()


def test_auto_commit_does_not_run_while_records_are_being_handled():
    consumer = stable_member(auto_commit_interval_ms=5_000, heartbeat_interval_ms=40_000, enable_auto_commit=True)
    consumer.leave_poll()
    consumer.tick(20_000)
    assert consumer.sent(m.OffsetCommitRequest) == []
    consumer.enter_poll()
    assert len(consumer.sent(m.OffsetCommitRequest)) == 1


def test_auto_commit_that_failed_is_tried_again_soon():
    consumer = stable_member(auto_commit_interval_ms=5_000, heartbeat_interval_ms=40_000, enable_auto_commit=True)
    consumer.tick(5_000)
    consumer.accept_commit(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    consumer.tick(100)
    assert len(consumer.sent(m.OffsetCommitRequest)) == 1


# --- no coordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [m.OffsetCommitRequest, m.OffsetFetchRequest])
def test_a_topic_id_that_is_no_longer_known_is_asked_for_again(member, kind):
    """The topic was deleted and created again with its name: without new metadata the old id would be sent forever."""
    member.auto.discard(m.OffsetFetchRequest)
    member.auto.discard(m.MetadataRequest)
    until = member.now + 5_000
    if kind is m.OffsetCommitRequest:
        outcome = member.commit({"flights-0": 1}, until=until)
        member.accept_commit(ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        outcome = fetch_committed(member, "flights-0", until=until)
        part = m.OffsetFetchResponsePartitions(0, -1, error_code=int(ErrorCode.UNKNOWN_TOPIC_ID))
        topics = [m.OffsetFetchResponseTopics("", topic_id("flights"), [part])]
        member.answer(kind, m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(GROUP, topics)]))
    member.tick(500)
    assert outcome == []
    [asked] = member.sent(m.MetadataRequest)
    assert [topic.name for topic in asked.topics or []] == ["flights"]
    assert len(member.sent(kind)) == 1


@pytest.mark.parametrize("how", ["unanswered", "refused"])
def test_an_async_commit_waits_for_one_lookup_and_no_longer(how):
    consumer = by_hand()
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.committed = {}
    lookup = consumer.core.group.lookup
    lookup.mark_dead("test", consumer.now)
    outcome = consumer.commit({"flights-0": 1})
    assert outcome == []
    refused = m.Coordinator(GROUP, error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    if how == "unanswered":
        consumer.fail(m.FindCoordinatorRequest, FailureKind.UNREACHABLE)
    else:
        consumer.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(coordinators=[refused]))
    assert outcome[0].code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_sync_commit_waits_for_as_long_as_it_may():
    consumer = by_hand()
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.core.group.lookup.mark_dead("test", consumer.now)
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 10_000)
    consumer.fail(m.FindCoordinatorRequest, FailureKind.UNREACHABLE)
    consumer.auto.add(m.FindCoordinatorRequest)
    consumer.tick(200)
    consumer.accept_commit()
    assert outcome == [None]


def test_a_lookup_that_is_not_allowed_is_reported_to_the_waiting_caller():
    consumer = by_hand()
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.core.group.lookup.mark_dead("test", consumer.now)
    outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 10_000)
    code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    consumer.answer(
        m.FindCoordinatorRequest, m.FindCoordinatorResponse(coordinators=[m.Coordinator(GROUP, error_code=code)])
    )
    assert outcome[0].code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert consumer.events == []


def test_a_commit_that_may_be_tried_again_waits_for_those_before_it(member):
    first = member.commit({"flights-0": 1})
    second = member.commit({"flights-0": 2}, until=member.now + 1_000)
    assert len(member.sent(m.OffsetCommitRequest)) == 1
    member.accept_commit()
    assert (first, second) == ([None], [])
    assert member.accept_commit().topics[0].partitions[0].committed_offset == 2
    assert second == [None]


def test_a_commit_that_is_accepted_says_that_its_coordinator_lives():
    """If it is lost again, it is looked up at once: it may just have moved."""
    consumer = by_hand()
    for _ in range(3):
        consumer.core.group.lookup.mark_dead("test", consumer.now)
        outcome = consumer.commit({"flights-0": 1}, until=consumer.now + 10_000)
        consumer.accept_commit()
        assert outcome == [None]


def test_what_waits_for_its_coordinator_does_not_keep_the_core_busy():
    consumer = by_hand()
    consumer.auto.discard(m.FindCoordinatorRequest)
    consumer.core.group.lookup.mark_dead("test", consumer.now)
    until = consumer.now + 10_000
    consumer.commit({"flights-0": 1}, until=until)
    assert consumer.core.group.commits.next_deadline(consumer.now) == until


def test_what_has_failed_already_gets_no_other_reason(member):
    errors: list[Any] = []
    for fence in None, {tp("flights-0"): 999}:
        offsets = {tp("flights-0"): OffsetAndMetadata(1)}
        member.core.commit(offsets, lambda error, _now: errors.append(error), fence=fence)
        member.turn()
    assert member.core.group.commits.fail_all(KafkaTimeoutError("no coordinator"), member.now)
    assert [type(error) for error in errors] == [KafkaTimeoutError, CommitFailedError]
