"""The fetcher against a broker that is a list of batches: order, positions, seeks, sessions, errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.config import ConsumerConfig
from muster.client.core.fetcher import HELD_BACK_WAIT_MS, Fetcher
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import CorruptRecordError, ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.record_batch import build_batch

TOPIC_ID = bytes(range(16))
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class OneBroker:
    """Answers metadata and fetches as a broker would, from batches in memory."""

    def __init__(self, batch_sizes: dict[TopicPartition, list[int]], *, max_batches: int = 1, **config: Any) -> None:
        self.config = ConsumerConfig.of(config)
        self.metadata = ClusterMetadata(self.config)
        self.subscription = SubscriptionState(self.config.auto_offset_reset)
        self.fetcher = Fetcher(self.config, self.subscription, self.metadata)
        self.logs = {p: self._log(sizes) for p, sizes in batch_sizes.items()}
        self.max_batches = max_batches
        self.session: dict[TopicPartition, m.FetchPartition] = {}
        self.session_epoch = 0
        self.requests: list[m.FetchRequest] = []
        self.now = 0
        self._learn()
        self.subscription.assign(batch_sizes)
        for partition in batch_sizes:
            self.subscription.seek(partition, 0)

    @staticmethod
    def _log(sizes: list[int]) -> list[tuple[int, int, bytes]]:
        log, offset = [], 0
        for size in sizes:
            records: list[Any] = [(offset + i, None, str(offset + i).encode(), []) for i in range(size)]
            log.append((offset, offset + size, bytes(build_batch(records, base_offset=offset))))
            offset += size
        return log

    def _learn(self) -> None:
        self.metadata.set_interest({p.topic for p in self.logs})
        [send] = self.metadata.poll(self.now)
        partitions = [m.MetadataResponsePartition(0, p.partition, 1, 0) for p in self.logs]
        topic = m.MetadataResponseTopic(0, "t", TOPIC_ID, partitions=partitions)
        send.on_reply(m.MetadataResponse(brokers=[m.MetadataResponseBroker(1, "h", 9092)], topics=[topic]), self.now)

    def poll(self) -> list[AnySend]:
        return self.fetcher.poll(self.now)

    def exchange(self) -> bool:
        """Deliver and answer what the fetcher sends. False if it sends nothing."""
        sends = self.poll()
        for send in sends:
            send.on_reply(self.answer(send.build(13)), self.now)
        return bool(sends)

    def answer(self, request: Any, errors: dict[TopicPartition, ErrorCode] | None = None) -> m.FetchResponse:
        self.requests.append(request)
        assert request.session_epoch in (0, self.session_epoch)
        if request.session_epoch == 0:
            self.session = {}
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                del self.session[TopicPartition("t", number)]
        for asked in request.topics:
            assert asked.topic_id == TOPIC_ID
            for part in asked.partitions:
                self.session[TopicPartition("t", part.partition)] = part
        self.session_epoch = request.session_epoch + 1
        data = [self._read(p, part.fetch_offset, (errors or {}).get(p)) for p, part in self.session.items()]
        return m.FetchResponse(session_id=77, responses=[m.FetchableTopicResponse("", TOPIC_ID, data)])

    def _read(self, partition: TopicPartition, offset: int, error: ErrorCode | None) -> m.PartitionData:
        end = self.logs[partition][-1][1]
        if error is None and offset > end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            return m.PartitionData(partition.partition, error)
        batches = [batch for _, after, batch in self.logs[partition] if after > offset][: self.max_batches]
        return m.PartitionData(partition.partition, 0, end, end, 0, records=b"".join(batches))

    def drain(self, max_records: int = 500) -> dict[TopicPartition, list[int]]:
        """Exchange and collect until nothing is left; the offsets handed out."""
        seen: dict[TopicPartition, list[int]] = {p: [] for p in self.logs}
        while any(state.position < self.logs[p][-1][1] for p, state in self.subscription.states()):
            self.exchange()
            for partition, records in self.fetcher.collect(max_records).items():
                assert len(records) <= max_records
                assert all(int(r.value or b"") == r.offset for r in records)
                seen[partition] += [record.offset for record in records]
        return seen


def test_records_come_in_order_and_positions_follow() -> None:
    broker = OneBroker({P0: [3, 1, 4], P1: [2]})
    assert broker.drain() == {P0: list(range(8)), P1: [0, 1]}
    assert broker.subscription.position(P0) == 8
    assert broker.fetcher.lag(P0) == 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    start=st.integers(0, 200),
    limit=st.integers(1, 11),
    batches=st.integers(1, 5),
    room=st.integers(1, 2_000),
)
def test_nothing_is_lost_or_repeated_whatever_the_sizes(
    sizes: list[int], start: int, limit: int, batches: int, room: int
) -> None:
    broker = OneBroker({P0: sizes, P1: sizes}, max_batches=batches, max_partition_fetch_bytes=room)
    start = min(start, sum(sizes))
    broker.subscription.seek(P0, start)
    assert broker.drain(limit) == {P0: list(range(start, sum(sizes))), P1: list(range(sum(sizes)))}


def test_a_limit_inside_a_batch_leaves_the_position_inside_it() -> None:
    broker = OneBroker({P0: [5]})
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(2)[P0]] == [0, 1]
    assert broker.subscription.position(P0) == 2
    assert [r.offset for r in broker.fetcher.collect(9)[P0]] == [2, 3, 4]


def test_the_answer_to_a_fetch_from_before_a_seek_is_dropped() -> None:
    broker = OneBroker({P0: [4, 4]})
    [old] = broker.poll()
    broker.subscription.seek(P0, 4)
    old.on_reply(broker.answer(old.build(13)), 0)
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [4, 5, 6, 7]


def test_the_answer_to_a_fetch_from_before_a_loss_is_dropped_though_the_partition_came_back() -> None:
    broker = OneBroker({P0: [4, 4]})
    broker.subscription.seek(P0, 4)
    [old] = broker.poll()
    broker.subscription.assign([])
    broker.subscription.assign([P0])
    broker.subscription.seek(P0, 0)
    old.on_reply(broker.answer(old.build(13)), 0)
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1, 2, 3]


def test_what_waits_is_dropped_by_a_seek_and_by_a_loss() -> None:
    broker = OneBroker({P0: [4], P1: [4]})
    broker.exchange()
    broker.subscription.seek(P0, 3)
    broker.subscription.assign([P0])
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


def test_paused_partitions_keep_what_was_fetched() -> None:
    broker = OneBroker({P0: [2, 2]})
    broker.exchange()
    broker.subscription.pause([P0])
    assert broker.fetcher.collect(500) == {}
    assert not broker.fetcher.has_records
    assert broker.poll() == []
    broker.subscription.resume([P0])
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]


def test_partitions_that_are_about_to_be_revoked_are_neither_fetched_nor_handed_out() -> None:
    broker = OneBroker({P0: [2]})
    broker.exchange()
    broker.subscription.mark_pending_revocation([P0])
    assert broker.poll() == []
    assert broker.fetcher.collect(500) == {}


def test_one_fetch_at_a_time_for_each_broker() -> None:
    broker = OneBroker({P0: [2], P1: [2]})
    assert len(broker.poll()) == 1
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(0) is None


def test_a_session_says_only_what_changed() -> None:
    broker = OneBroker({P0: [2, 2], P1: [2]})
    broker.exchange()
    broker.fetcher.collect(500)
    broker.exchange()
    broker.exchange()
    first, second, third = broker.requests
    assert (first.session_id, first.session_epoch, len(first.topics[0].partitions)) == (0, 0, 2)
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert [(p.partition, p.fetch_offset) for p in second.topics[0].partitions] == [(0, 2), (1, 2)]
    assert [(p.partition, p.fetch_offset) for p in third.topics[0].partitions] == [(0, 4)]
    broker.subscription.pause([P1])
    broker.exchange()
    assert broker.requests[-1].forgotten_topics_data == [m.ForgottenTopic("t", TOPIC_ID, [1])]


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_lost_session_is_opened_again(error: ErrorCode) -> None:
    broker = OneBroker({P0: [2]})
    broker.exchange()
    [send] = broker.poll()
    send.on_reply(m.FetchResponse(error_code=error), 0)
    broker.exchange()
    assert broker.requests[-1].session_epoch == 0
    assert len(broker.requests[-1].topics[0].partitions) == 1


def test_a_failure_backs_off_and_opens_the_session_again() -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), 0)
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(0) == broker.config.retry_backoff_ms
    broker.now = broker.config.retry_backoff_ms
    assert broker.drain() == {P0: [0, 1]}


def test_an_offset_out_of_range_is_reset_by_policy() -> None:
    broker = OneBroker({P0: [2]}, auto_offset_reset="earliest")
    broker.subscription.seek(P0, 9)
    broker.exchange()
    assert broker.subscription.needs_reset() == [P0]
    assert broker.fetcher.take_errors() == []


def test_an_offset_out_of_range_is_told_where_there_is_no_policy() -> None:
    broker = OneBroker({P0: [2]}, auto_offset_reset="none")
    broker.subscription.seek(P0, 9)
    broker.exchange()
    [error] = broker.fetcher.take_errors()
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert broker.poll() == []
    broker.subscription.seek(P0, 0)
    assert broker.drain() == {P0: [0, 1]}


def test_a_moved_leader_backs_off_and_asks_for_metadata() -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}), 0)
    assert broker.poll() == []
    assert broker.metadata.update_pending
    broker.now = broker.config.retry_backoff_ms
    assert len(broker.poll()) == 1


def test_a_damaged_batch_is_told_and_stops_only_its_partition() -> None:
    broker = OneBroker({P0: [2, 2], P1: [1]}, max_batches=2)
    first, last, batch = broker.logs[P0][1]
    broker.logs[P0][1] = (first, last, batch[:-1] + bytes([batch[-1] ^ 1]))
    broker.exchange()
    handed_out = broker.fetcher.collect(500)
    assert [r.offset for r in handed_out[P0]] == [0, 1]
    assert [r.offset for r in handed_out[P1]] == [0]
    [error] = broker.fetcher.take_errors()
    assert isinstance(error, CorruptRecordError)
    assert "offset 2" in str(error)
    broker.exchange()
    assert broker.subscription.position(P0) == 2


def test_aborted_and_control_batches_are_hidden_from_read_committed() -> None:
    broker = OneBroker({P0: [1]}, isolation_level="read_committed", max_batches=9)

    def batch(offset: int, producer_id: int, *, control: bool = False) -> tuple[int, int, bytes]:
        key, value = (b"\0\0\0\0", b"\0\0\0\0\0\0") if control else (None, str(offset).encode())
        built = build_batch(
            [(0, key, value, [])],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1 if control else 0,
            transactional=True,
            control=control,
        )
        return offset, offset + 1, bytes(built)

    broker.logs[P0] = [batch(0, 5), batch(1, 6), batch(2, 5, control=True), batch(3, 5), batch(4, 6, control=True)]
    [send] = broker.poll()
    response = broker.answer(send.build(13))
    response.responses[0].partitions[0].aborted_transactions = [m.AbortedTransaction(5, 0)]
    send.on_reply(response, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [1, 3]
    assert broker.subscription.position(P0) == 5


def test_raw_batches_move_the_position_as_records_do() -> None:
    broker = OneBroker({P0: [3, 2]}, max_batches=2)
    broker.exchange()
    [data] = broker.fetcher.collect_raw()[P0]
    assert (data.start_offset, data.end_offset) == (0, 5)
    assert broker.subscription.position(P0) == 5
    assert broker.fetcher.collect_raw() == {}


def test_topics_without_ids_are_fetched_by_name() -> None:
    broker = OneBroker({P0: [1]})
    broker.metadata.topics["t"].topic_id = bytes(16)
    [send] = broker.poll()
    assert send.newest_version == 12


def test_a_fetch_is_not_parked_for_long_while_another_partition_waits_for_the_user():
    broker = OneBroker({P0: [3, 3, 3], P1: [1]}, max_partition_fetch_bytes=1)
    broker.subscription.seek(P1, 1)
    broker.exchange()
    [send] = broker.poll()
    held_back = send.build(13)
    assert isinstance(held_back, m.FetchRequest)
    assert held_back.max_wait_ms == HELD_BACK_WAIT_MS
    assert broker.requests[0].max_wait_ms == broker.config.fetch_max_wait_ms
