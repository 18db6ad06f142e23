"""Positions are validated with each new leader (KIP-320): which request is sent when, and what the answers lead to."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.config import ConsumerConfig
from muster.client.core.consume.validation import PositionValidation
from muster.client.core.events import EventStream, Fatal, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.client.core.subscription_state import OffsetReset, PositionState, SubscriptionState
from muster.errors import ErrorCode, KafkaError, LogTruncationError, MusterError, UnsupportedVersionError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol import messages as m

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Readers:
    """A consumer of two partitions, led by node 1 in epoch 3."""

    def __init__(self, reset: str = "earliest") -> None:
        self.config = ConsumerConfig(auto_offset_reset=reset)
        self.metadata = ClusterMetadata(self.config)
        self.subscription = SubscriptionState(reset)
        self.events = EventStream()
        self.validation = PositionValidation(self.config, self.subscription, self.metadata, self.events)
        self.now = 0
        self.metadata.set_interest({"t"})
        self.leads(1, 3)
        self.subscription.assign([P0, P1])

    def take_errors(self) -> list[MusterError]:
        """The errors that the user gets, once."""
        return [event.error for event in self.events.take() if isinstance(event, Fatal)]

    def leads(self, node_id: int, epoch: int, topic_id: bytes = b"t" * 16) -> None:
        """The metadata names a leader."""
        self.metadata.request_update(self.now)
        self.now += self.config.retry_backoff_max_ms
        [send] = self.metadata.poll(self.now)
        partitions = [m.MetadataResponsePartition(0, number, node_id, epoch, [1, 2], [1, 2]) for number in (0, 1)]
        brokers = [m.MetadataResponseBroker(n, f"h{n}", 9092) for n in (1, 2)]
        topics = [m.MetadataResponseTopic(0, "t", topic_id, partitions=partitions)]
        send.on_reply(m.MetadataResponse(brokers=brokers, topics=topics), self.now)

    def poll(self) -> list[AnySend]:
        return self.validation.poll(self.now)

    def only(self) -> AnySend:
        [send] = self.poll()
        return send

    def state(self) -> PositionState:
        return self.subscription.state(P0).state

    def reply(self, send: AnySend, end: int = -1, epoch: int = -1, code: ErrorCode = ErrorCode.NONE) -> None:
        """The leader answers with the end of the epoch for each requested partition."""
        asked: Any = send.build(4)
        topics = [
            m.OffsetForLeaderTopicResult(
                topic.topic,
                [
                    m.OffsetForLeaderEpochResponseEpochEndOffset(int(code), part.partition, epoch, end)
                    for part in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
        send.on_reply(m.OffsetForLeaderEpochResponse(topics=topics), self.now)


@pytest.fixture
def readers() -> Readers:
    return Readers()


def read_up_to(readers: Readers, offset: int, epoch: int) -> None:
    """P0 was read from its leader, up to an offset that was written in this epoch."""
    readers.subscription.seek(P0, 0)
    assert readers.poll() == []
    state = readers.subscription.state(P0)
    state.position = state.fetch_position = offset
    state.leader_epoch = epoch


def test_what_has_no_epoch_cannot_be_validated(readers: Readers) -> None:
    readers.subscription.seek(P0, 5)
    assert readers.poll() == []
    readers.leads(2, 4)
    assert readers.poll() == []
    assert readers.state() is PositionState.FETCHING


def test_a_committed_offset_with_its_epoch_is_validated_before_anything_is_fetched(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    send = readers.only()
    assert send.node_id == 1
    request: Any = send.build(4)
    assert request.replica_id == -1
    assert request.topics == [m.OffsetForLeaderTopic("t", [m.OffsetForLeaderPartition(0, 3, 2)])]
    assert readers.subscription.position(P0) is None
    assert readers.poll() == []
    readers.reply(send, 10, 2)
    assert readers.subscription.position(P0) == 10
    assert (readers.poll(), readers.events) == ([], [])


def test_a_log_that_ends_at_the_position_was_not_cut_back() -> None:
    readers = Readers("none")
    readers.subscription.set_position(P0, 10, 2)
    readers.reply(readers.only(), 10, 2)
    assert (readers.subscription.position(P0), readers.take_errors()) == (10, [])


def test_a_new_leader_names_its_own_nearest_replica(readers: Readers) -> None:
    """The replica that the old leader named may no longer follow any leader."""
    read_up_to(readers, 10, 3)
    state = readers.subscription.state(P0)
    state.preferred_replica, state.preferred_until = 1, readers.now + 300_000
    readers.leads(2, 4)
    readers.poll()
    assert state.preferred_replica is None


def test_a_new_leader_is_asked_once(readers: Readers) -> None:
    read_up_to(readers, 10, 3)
    readers.leads(1, 3)  # nothing new
    assert readers.poll() == []
    epoch = readers.subscription.state(P0).epoch
    readers.leads(2, 4)
    send = readers.only()
    assert send.node_id == 2
    assert readers.subscription.state(P0).epoch > epoch  # what was fetched from the old leader is void
    assert readers.subscription.all_consumed() == {P0: OffsetAndMetadata(10, 3)}
    readers.reply(send, 12, 3)
    assert readers.state() is PositionState.FETCHING
    readers.leads(2, 5)
    readers.reply(readers.only(), 12, 3)
    assert readers.state() is PositionState.FETCHING


def test_metadata_that_is_older_than_the_position_is_asked_for_first(readers: Readers) -> None:
    """The committed offset has an epoch that this consumer does not know: the leader that it knows may be outdated."""
    readers.subscription.set_position(P0, 10, 5)
    assert readers.poll() == []
    assert readers.metadata.update_pending
    assert readers.state() is PositionState.AWAIT_VALIDATION
    assert readers.validation.next_deadline(readers.now) is None
    readers.leads(2, 5)
    send = readers.only()
    assert send.node_id == 2
    readers.reply(send, 10, 5)
    assert readers.subscription.position(P0) == 10


def test_a_topic_made_again_has_older_epochs_and_is_asked_all_the_same(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 5)
    assert readers.poll() == []
    readers.leads(1, 3)
    readers.reply(readers.only())
    assert readers.subscription.needs_reset() == [P0]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_topic_made_again_is_read_from_its_beginning(reset: str) -> None:
    """None of it has been read; the old position may lie within it, and would skip earlier records."""
    readers = Readers(reset)
    readers.subscription.seek(P0, 10)
    assert readers.poll() == []
    readers.leads(1, 3, bytes(16))  # a broker that reports no topic ids proves nothing
    assert readers.poll() == []
    assert readers.state() is PositionState.FETCHING
    readers.leads(1, 3)
    assert readers.poll() == []
    readers.leads(1, 3, b"u" * 16)
    assert readers.poll() == []
    assert readers.subscription.needs_reset() == [P0]
    assert readers.subscription.state(P0).reset is OffsetReset.EARLIEST
    readers.subscription.finish_reset(P0, OffsetReset.EARLIEST, 0)
    assert readers.poll() == []
    assert readers.subscription.position(P0) == 0


def test_without_a_policy_a_topic_made_again_is_the_users_affair() -> None:
    readers = Readers("none")
    readers.subscription.seek(P0, 10)
    assert readers.poll() == []
    readers.leads(1, 3, b"u" * 16)
    for _ in range(2):
        assert readers.poll() == []
        [error] = readers.take_errors()
        assert isinstance(error, LogTruncationError)
        assert readers.subscription.position(P0) is None
        assert readers.poll() == []
        assert readers.take_errors() == []
        readers.now += readers.config.retry_backoff_max_ms
    readers.subscription.seek(P0, 0)
    assert readers.poll() == []
    assert readers.subscription.position(P0) == 0


def test_without_a_leader_one_waits_for_the_next(readers: Readers) -> None:
    read_up_to(readers, 10, 3)
    readers.leads(-1, 4)
    assert readers.poll() == []
    readers.leads(2, 5)
    assert readers.only().node_id == 2


def test_a_log_that_was_cut_back_is_read_from_where_the_logs_part(readers: Readers) -> None:
    read_up_to(readers, 10, 3)
    readers.leads(2, 4)
    readers.reply(readers.only(), 7, 2)
    assert readers.state() is PositionState.FETCHING
    assert readers.subscription.all_consumed() == {P0: OffsetAndMetadata(7, 2)}
    assert readers.poll() == []  # the leader has just said so
    [note] = readers.events
    assert isinstance(note, Note)
    assert "t-0 was truncated at offset 7, but this consumer has read up to offset 10" in note.text


def test_a_log_that_knows_nothing_of_the_epoch_is_read_by_the_reset_policy(readers: Readers) -> None:
    read_up_to(readers, 10, 3)
    readers.leads(2, 4)
    readers.reply(readers.only())
    assert readers.subscription.needs_reset() == [P0]


@pytest.mark.parametrize(("end", "divergent"), [(7, OffsetAndMetadata(7, 2)), (-1, None)])
def test_without_a_policy_the_user_gets_an_error_until_it_seeks(end: int, divergent: OffsetAndMetadata | None) -> None:
    readers = Readers("none")
    read_up_to(readers, 10, 3)
    readers.leads(2, 4)
    for _ in range(2):
        readers.reply(readers.only(), end, 2 if divergent else -1)
        [error] = readers.take_errors()
        assert isinstance(error, LogTruncationError)
        assert error.divergent == divergent
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert readers.subscription.position(P0) is None
        assert readers.poll() == []
        deadline = readers.validation.next_deadline(readers.now)
        assert deadline is not None
        readers.now = deadline
    readers.subscription.seek(P0, 7)
    assert readers.poll() == []
    assert readers.subscription.position(P0) == 7


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_what_is_not_an_answer_is_asked_again_after_a_backoff(readers: Readers, code: ErrorCode) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.reply(readers.only(), code=code)
    assert readers.metadata.update_pending
    assert readers.poll() == []
    assert readers.validation.next_deadline(readers.now) == readers.now + readers.config.retry_backoff_ms
    readers.now += readers.config.retry_backoff_ms
    readers.reply(readers.only(), 10, 2)
    assert readers.state() is PositionState.FETCHING
    assert readers.take_errors() == []
    assert readers.validation.next_deadline(readers.now) is None


def test_an_answer_that_leaves_a_partition_out_is_none(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.only().on_reply(m.OffsetForLeaderEpochResponse(), readers.now)
    assert readers.state() is PositionState.AWAIT_VALIDATION
    readers.now += readers.config.retry_backoff_ms
    assert len(readers.poll()) == 1


def test_what_is_not_allowed_is_reported(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.reply(readers.only(), code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    [error] = readers.take_errors()
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_lost_connection_is_tried_again(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.only().on_reply(Failure(FailureKind.DISCONNECTED, "gone"), readers.now)
    assert readers.poll() == []
    readers.now += readers.config.retry_backoff_ms
    assert len(readers.poll()) == 1


def test_a_broker_that_cannot_be_asked_is_trusted(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    send = readers.only()
    with pytest.raises(UnsupportedVersionError):
        send.build(2)
    send.on_reply(Failure(FailureKind.UNSUPPORTED_VERSION, "too old"), readers.now)
    assert readers.subscription.position(P0) == 10
    assert readers.take_errors() == []


@pytest.mark.parametrize("meanwhile", ["seek", "lost", "leader"])
def test_an_answer_about_a_position_of_the_past_is_dropped(readers: Readers, meanwhile: str) -> None:
    readers.subscription.set_position(P0, 10, 2)
    old = readers.only()
    if meanwhile == "seek":
        readers.subscription.seek(P0, OffsetAndMetadata(20, 2))
    elif meanwhile == "lost":
        readers.subscription.assign([])
        readers.subscription.assign([P0])
        readers.subscription.seek(P0, OffsetAndMetadata(20, 2))
    else:
        readers.leads(2, 4)
    [new] = readers.poll()
    readers.reply(old, 3, 2)
    assert readers.state() is PositionState.AWAIT_VALIDATION
    assert readers.poll() == []  # the request about this position is still in flight
    readers.reply(new, 30, 2)
    assert readers.subscription.position(P0) == (10 if meanwhile == "leader" else 20)


def test_several_partitions_share_a_request(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.subscription.set_position(P1, 11, 2)
    readers.reply(readers.only(), 10, 2)
    assert readers.subscription.position(P0) == 10
    assert readers.subscription.position(P1) == 10  # cut back


def test_a_position_of_the_leaders_own_epoch_is_validated_at_once(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 3)
    readers.reply(readers.only(), 10, 3)
    assert readers.state() is PositionState.FETCHING
    assert not readers.metadata.update_pending


def test_a_leader_of_the_past_is_not_asked(readers: Readers) -> None:
    """The sequence: the records were written in a later epoch than the metadata knows, then the leader changes
    again."""
    read_up_to(readers, 10, 5)
    readers.leads(2, 4)
    assert readers.poll() == []
    assert readers.state() is PositionState.AWAIT_VALIDATION
    readers.leads(2, 5)
    assert readers.only().node_id == 2


def test_while_a_question_is_under_way_time_brings_nothing(readers: Readers) -> None:
    readers.subscription.set_position(P0, 10, 2)
    send = readers.only()
    assert readers.validation.next_deadline(readers.now) is None
    assert not readers.metadata.update_pending
    send.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), readers.now)
    assert readers.validation.next_deadline(readers.now) == readers.now + readers.config.retry_backoff_ms
    assert readers.metadata.update_pending


@pytest.mark.parametrize(("end", "epoch"), [(12, -1), (-1, 2)])
def test_half_an_answer_is_an_epoch_that_the_leader_does_not_know(readers: Readers, end: int, epoch: int) -> None:
    readers.subscription.set_position(P0, 10, 2)
    readers.reply(readers.only(), end, epoch)
    assert readers.subscription.needs_reset() == [P0]
