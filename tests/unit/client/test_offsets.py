"""Looking up offsets: resets that are retried until they succeed, lookups that are answered or given up."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.sends import FailureKind
from muster.client.core.subscription_state import OffsetReset, PositionState
from muster.errors import ErrorCode, IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.model import OffsetAndTimestamp
from muster.protocol import messages as m
from muster.protocol.api import EARLIEST_TIMESTAMP
from tests.support.client_harness import ConsumerHarness, tp

ZERO = tp("flights-0")


def alone(**settings: Any) -> ConsumerHarness:
    """A consumer without a group whose ListOffsets wait for the test."""
    consumer = ConsumerHarness(group_id=None, **settings)
    consumer.auto.discard(m.ListOffsetsRequest)
    return consumer


def resetting(**settings: Any) -> ConsumerHarness:
    """A consumer that has just requested the beginning or end of its partition."""
    consumer = alone(**settings)
    consumer.core.assign([ZERO])
    consumer.enter_poll()
    return consumer


def tell(consumer: ConsumerHarness, offset: int = -1, code: ErrorCode = ErrorCode.NONE, timestamp: int = -1) -> None:
    """Answer the oldest ListOffsets."""
    part = m.ListOffsetsPartitionResponse(0, int(code), timestamp, offset, 3)
    consumer.answer(m.ListOffsetsRequest, m.ListOffsetsResponse(topics=[m.ListOffsetsTopicResponse("flights", [part])]))


def test_a_reset_is_the_leaders_own_word() -> None:
    consumer = resetting()
    tell(consumer, 7)
    [(offset, epoch, _)] = consumer.core.consumed().values()
    assert (offset, epoch) == (7, -1)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NONE,  # without an offset
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_reset_continues_until_there_is_an_offset(code: ErrorCode) -> None:
    consumer = resetting()
    for _ in range(3):
        tell(consumer, code=code)
        assert consumer.core.consumed() == {}
        assert consumer.sent(m.ListOffsetsRequest) == []
        consumer.tick(consumer.config.retry_backoff_ms)
    tell(consumer, 7)
    assert consumer.core.subscription.position(ZERO) == 7
    assert consumer.events == []


def test_a_reset_that_is_not_allowed_is_reported_once_while_nobody_looks() -> None:
    consumer = alone()
    consumer.core.assign([ZERO])
    consumer.core.enter_poll(consumer.now)
    consumer.core.leave_poll()
    consumer.turn()
    for _ in range(5):
        tell(consumer, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        consumer.tick(consumer.config.retry_backoff_max_ms)
    error = consumer.fatal()
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert consumer.core.subscription.state(ZERO).state is PositionState.AWAIT_RESET


def test_a_question_is_answered_though_a_rebalance_has_set_another_interest() -> None:
    consumer = alone()
    consumer.core.assign([ZERO])
    consumer.topics["other"] = 1
    query = consumer.core.offsets.query({tp("other-0"): EARLIEST_TIMESTAMP})
    consumer.core.metadata.set_interest({"flights"})
    consumer.tick(1_000)
    assert "other" in [request.topics[0].name for request in consumer.sent(m.ListOffsetsRequest)]
    assert not query.done


@pytest.mark.parametrize(
    ("code", "result"),
    [(ErrorCode.NONE, OffsetAndTimestamp(5, 1_000, 3)), (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, None)],
)
def test_a_question_by_time_has_an_answer_or_none(code: ErrorCode, result: OffsetAndTimestamp | None) -> None:
    consumer = alone()
    query = consumer.core.offsets.query({ZERO: 900})
    consumer.tick(200)
    tell(consumer, 5 if code is ErrorCode.NONE else -1, code, 1_000)
    assert query.done
    assert query.error is None
    assert query.results == {ZERO: result}


def test_a_question_that_cannot_be_asked_says_why() -> None:
    consumer = alone()
    for kind, error in (
        (FailureKind.UNSUPPORTED_VERSION, UnsupportedVersionError),
        (FailureKind.UNENCODABLE, IllegalArgumentError),
    ):
        query = consumer.core.offsets.query({ZERO: 900})
        consumer.tick(200)
        consumer.fail(m.ListOffsetsRequest, kind)
        assert isinstance(query.error, error)


@pytest.mark.parametrize("how", ["refused", "unanswered"])
def test_a_question_that_may_be_answered_elsewhere_is_asked_again_when_the_leader_is_known(how: str) -> None:
    consumer = alone()
    query = consumer.core.offsets.query({ZERO: 5})
    consumer.tick(200)
    consumer.auto.discard(m.MetadataRequest)
    if how == "refused":
        tell(consumer, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    else:
        consumer.fail(m.ListOffsetsRequest)
    assert consumer.sent(m.ListOffsetsRequest) == []
    consumer.tick(200)
    assert len(consumer.sent(m.MetadataRequest)) == 1
    tell(consumer, 7, timestamp=6)
    assert query.results == {ZERO: OffsetAndTimestamp(7, 6, 3)}


def test_a_question_about_a_partition_without_a_leader_does_not_keep_the_core_busy() -> None:
    consumer = alone()
    consumer.core.offsets.query({tp("nowhere-0"): 5})
    consumer.turn()
    deadline = consumer.core.offsets.next_deadline(consumer.now)
    assert deadline == consumer.now + consumer.config.retry_backoff_ms


@pytest.mark.parametrize(("level", "number"), [("read_uncommitted", 0), ("read_committed", 1)])
def test_a_reset_to_the_end_is_to_the_end_of_what_may_be_read(level: str, number: int) -> None:
    consumer = resetting(isolation_level=level)
    assert [request.isolation_level for request in consumer.sent(m.ListOffsetsRequest)] == [number]


def test_the_answer_to_another_reset_than_the_user_wants_now_is_dropped() -> None:
    """The sequence: the end is requested; the user seeks to the beginning; the answer to the old request arrives."""
    consumer = resetting()
    consumer.core.subscription.request_reset(ZERO, OffsetReset.EARLIEST)
    tell(consumer, 7)
    assert consumer.core.subscription.position(ZERO) is None
    [request] = consumer.sent(m.ListOffsetsRequest)
    assert request.topics[0].partitions[0].timestamp == EARLIEST_TIMESTAMP
    tell(consumer, 2)
    assert consumer.core.subscription.position(ZERO) == 2


def test_where_no_record_is_as_young_there_is_no_offset() -> None:
    consumer = alone()
    query = consumer.core.offsets.query({ZERO: 900})
    consumer.tick(200)
    tell(consumer, -1)
    assert query.done
    assert query.results == {ZERO: None}


def test_a_question_that_was_refused_does_not_keep_the_core_busy() -> None:
    consumer = alone()
    query = consumer.core.offsets.query({ZERO: 5})
    consumer.tick(200)
    tell(consumer, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(query.error, KafkaError)
    assert consumer.core.offsets.next_deadline(consumer.now) is None


def test_a_leader_is_asked_under_its_epoch() -> None:
    """A leader that was replaced then refuses, instead of reporting its own end offset."""
    consumer = resetting()
    assert consumer.core.metadata.update_leader(ZERO, 2, 6, None)
    tell(consumer, code=ErrorCode.FENCED_LEADER_EPOCH)
    consumer.core.metadata.update_leader(ZERO, 2, 6, None)
    consumer.auto.discard(m.MetadataRequest)
    consumer.tick(consumer.config.retry_backoff_ms)
    [request] = consumer.sent(m.ListOffsetsRequest)
    assert request.topics[0].partitions[0].current_leader_epoch == 6


def test_a_reset_without_a_leader_does_not_keep_the_core_busy() -> None:
    consumer = alone()
    consumer.core.assign([tp("nowhere-0")])
    consumer.enter_poll()
    assert consumer.core.offsets.next_deadline(consumer.now) is None
