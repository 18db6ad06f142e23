"""The fetcher against a broker that is a list of batches: order, positions, seeks, sessions, errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.config import ConsumerConfig
from muster.client.core.consume.fetcher import HELD_BACK_WAIT_MS, Fetcher
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.client.core.subscription_state import OffsetReset, SubscriptionState
from muster.errors import CorruptRecordError, ErrorCode, KafkaError, MusterError
from muster.model import Node, OffsetAndMetadata, TopicPartition
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


def test_the_answer_to_a_fetch_from_before_a_reset_is_dropped() -> None:
    broker = OneBroker({P0: [4, 4]})
    [old] = broker.poll()
    broker.subscription.request_reset(P0, OffsetReset.LATEST)
    old.on_reply(broker.answer(old.build(13)), 0)
    assert broker.fetcher.collect(500) == {}


@pytest.mark.parametrize("how", ["seek", "reset"])
def test_another_position_has_no_part_in_the_backoff_of_the_last_one(how: str) -> None:
    broker = OneBroker({P0: [4]})
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}), 0)
    assert broker.subscription.state(P0).retry_at > 0
    if how == "seek":
        broker.subscription.seek(P0, 2)
    else:
        broker.subscription.request_reset(P0, OffsetReset.EARLIEST)
    assert broker.subscription.state(P0).retry_at == 0


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


def test_what_waits_is_dropped_by_a_loss_though_the_partition_came_back() -> None:
    broker = OneBroker({P0: [4, 4]})
    broker.exchange()
    broker.subscription.assign([])
    broker.subscription.assign([P0])
    broker.subscription.seek(P0, 4)
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [4, 5, 6, 7]


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
    broker.exchange()  # at once
    assert len(broker.requests) == 2
    assert broker.requests[-1].session_epoch == 0
    assert len(broker.requests[-1].topics[0].partitions) == 1


@pytest.mark.parametrize("under_way", [False, True])
def test_sessions_are_closed_whether_or_not_a_fetch_is_under_way(under_way: bool) -> None:
    broker = OneBroker({P0: [2]})
    assert broker.fetcher.closing_sends() == []
    broker.exchange()
    if under_way:
        broker.poll()
    [send] = broker.fetcher.closing_sends()
    request: Any = send.build(13)
    assert (send.node_id, request.session_id, request.session_epoch) == (1, 77, -1)
    assert broker.fetcher.closing_sends() == []


def test_a_failure_that_does_not_heal_is_told_once() -> None:
    broker = OneBroker({P0: [2]})
    for kind, told in (FailureKind.DISCONNECTED, 0), (FailureKind.UNSUPPORTED_VERSION, 1):
        [send] = broker.poll()
        send.on_reply(Failure(kind, "no"), broker.now)
        assert len(broker.fetcher.take_errors()) == told
        assert broker.fetcher.take_errors() == []
        broker.now += broker.config.retry_backoff_ms


def test_a_partition_without_a_leader_has_the_metadata_asked() -> None:
    broker = OneBroker({P0: [2], P1: [2]})
    broker.metadata.topics["t"].partitions[0].leader_id = -1
    assert not broker.metadata.update_pending
    [send] = broker.poll()
    request: Any = send.build(13)
    assert [asked.partition for asked in request.topics[0].partitions] == [1]
    assert broker.metadata.update_pending


@pytest.mark.parametrize(("room", "fetched"), [(0, False), (1, True)])
def test_no_more_than_max_partition_fetch_bytes_waits_where_more_is_fetched(room: int, fetched: bool) -> None:
    size = len(OneBroker({P0: [3]}).logs[P0][0][2])
    broker = OneBroker({P0: [3, 3]}, max_partition_fetch_bytes=size + room)
    broker.exchange()
    assert bool(broker.poll()) is fetched


@pytest.mark.parametrize(
    "error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.REQUEST_TIMED_OUT]
)
def test_a_session_that_cannot_even_be_opened_is_not_spun_upon(error: ErrorCode) -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(m.FetchResponse(error_code=error), 0)
    assert broker.poll() == []
    broker.now = broker.config.retry_backoff_ms
    assert broker.drain() == {P0: [0, 1]}


def test_a_failure_backs_off_and_opens_the_session_again() -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(Failure(FailureKind.DISCONNECTED, "gone"), 0)
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(0) == broker.config.retry_backoff_ms
    broker.now = broker.config.retry_backoff_ms
    assert broker.drain() == {P0: [0, 1]}


def test_a_failure_closes_the_session_as_nobody_knows_what_the_broker_took_in() -> None:
    """The request that got no answer had said that a partition is at another place now."""
    broker = OneBroker({P0: [2, 2], P1: [2]})
    broker.exchange()
    broker.exchange()
    broker.subscription.seek(P0, 2)
    [send] = broker.poll()
    send.on_reply(Failure(FailureKind.TIMEOUT, "no answer"), 0)
    broker.now = broker.config.retry_backoff_ms
    [send] = broker.poll()
    request: Any = send.build(13)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert [(p.partition, p.fetch_offset) for p in request.topics[0].partitions] == [(0, 2), (1, 2)]


def test_a_session_whose_topics_have_other_ids_now_asks_for_metadata() -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    assert not broker.metadata.update_pending
    send.on_reply(m.FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR), 0)
    assert broker.metadata.update_pending


def test_an_offset_out_of_range_is_reset_by_policy() -> None:
    broker = OneBroker({P0: [2]}, auto_offset_reset="earliest")
    broker.subscription.seek(P0, 9)
    broker.exchange()
    assert broker.subscription.needs_reset() == [P0]
    assert broker.fetcher.take_errors() == []


def test_an_offset_out_of_range_is_told_where_there_is_no_policy() -> None:
    broker = OneBroker({P0: [2]}, auto_offset_reset="none")
    broker.subscription.seek(P0, 9)
    for _ in range(2):
        broker.exchange()
        assert not broker.exchange()  # nothing is asked while the answer waits for the user, so that nothing piles up
        with pytest.raises(KafkaError, match="no offset 9 any more") as caught:
            broker.fetcher.collect(500)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert broker.fetcher.collect(500) == {}
        broker.now += broker.config.retry_backoff_ms
    broker.subscription.seek(P0, 0)
    assert broker.drain() == {P0: [0, 1]}


def test_what_was_fetched_before_an_offset_out_of_range_is_handed_out_before_the_reset() -> None:
    broker = OneBroker({P0: [2, 2]}, auto_offset_reset="latest")
    broker.exchange()
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.OFFSET_OUT_OF_RANGE}), 0)
    assert broker.poll() == []  # the user may be long in coming: the broker is not asked as fast as it answers
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]
    assert broker.subscription.needs_reset() == []
    broker.now = broker.config.retry_backoff_ms
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.OFFSET_OUT_OF_RANGE}), 0)
    assert broker.subscription.needs_reset() == [P0]


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE])
def test_an_error_that_does_not_heal_is_told_for_each_answer_that_says_it(code: ErrorCode) -> None:
    broker = OneBroker({P0: [2]})
    for _ in range(2):
        [send] = broker.poll()
        send.on_reply(broker.answer(send.build(13), {P0: code}), broker.now)
        broker.now += broker.config.retry_backoff_max_ms
        assert broker.poll() == []
        with pytest.raises(KafkaError, match="t-0") as caught:
            broker.fetcher.collect(500)
        assert caught.value.code is code
        assert broker.fetcher.collect(500) == {}
    assert broker.drain() == {P0: [0, 1]}


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE])
def test_what_does_not_heal_is_asked_again_only_after_a_backoff(code: ErrorCode) -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: code}), 0)
    with pytest.raises(KafkaError):
        broker.fetcher.collect(500)
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(0) == broker.config.retry_backoff_max_ms


def test_the_leader_that_an_answer_names_is_asked_next() -> None:
    """KIP-951: no metadata has to be waited for."""
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    answer = broker.answer(send.build(13), {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    answer.responses[0].partitions[0].current_leader = m.FetchResponseLeaderIdAndEpoch(2, 1)
    answer.node_endpoints = [m.FetchResponseNodeEndpoint(2, "other", 9092)]
    send.on_reply(answer, 0)
    broker.now = broker.config.retry_backoff_ms
    [send] = broker.poll()
    assert send.node_id == 2
    assert broker.metadata.brokers[2] == Node(2, "other", 9092)


def test_a_limit_inside_a_batch_leaves_its_partition_the_next_turn() -> None:
    broker = OneBroker({P0: [4], P1: [4]})
    broker.exchange()
    taken = [{p: [r.offset for r in found] for p, found in broker.fetcher.collect(3).items()} for _ in range(3)]
    assert taken == [{P0: [0, 1, 2]}, {P0: [3], P1: [0, 1]}, {P1: [2, 3]}]


def test_a_moved_leader_backs_off_and_asks_for_metadata() -> None:
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}), 0)
    assert broker.poll() == []
    assert broker.metadata.update_pending
    broker.now = broker.config.retry_backoff_ms
    assert len(broker.poll()) == 1


def flipped(broker: OneBroker, partition: TopicPartition, index: int, at: int = -1) -> None:
    """Damage one batch of a log."""
    first, after, batch = broker.logs[partition][index]
    turned = bytearray(batch)
    turned[at] ^= 0xFF
    broker.logs[partition][index] = (first, after, bytes(turned))


def test_a_damaged_batch_is_told_at_each_turn_and_stops_only_its_partition() -> None:
    broker = OneBroker({P0: [2, 2, 2], P1: [1, 1, 1, 1]}, max_partition_fetch_bytes=1)
    flipped(broker, P0, 1)
    seen: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    told = 0
    for _ in range(12):
        broker.exchange()
        try:
            for partition, records in broker.fetcher.collect(1).items():
                seen[partition] += [record.offset for record in records]
        except CorruptRecordError:
            told += 1
    assert seen == {P0: [0, 1], P1: [0, 1, 2, 3]}
    assert told == 6
    assert broker.subscription.position(P0) == 2
    assert broker.subscription.all_consumed()[P0].offset == 2


def test_what_others_have_is_handed_out_before_the_error_is_raised() -> None:
    broker = OneBroker({P0: [2], P1: [2]})
    flipped(broker, P1, 0)
    broker.exchange()
    assert {p: len(records) for p, records in broker.fetcher.collect(500).items()} == {P0: 2}
    with pytest.raises(CorruptRecordError, match="t-1 is damaged at offset 0"):
        broker.fetcher.collect(500)


@pytest.mark.parametrize(
    "at", [pytest.param(17, id="crc"), pytest.param(16, id="magic"), pytest.param(8, id="length"), -1]
)
def test_nothing_behind_the_damage_is_handed_out_though_a_fetch_from_there_is_under_way(at: int) -> None:
    broker = OneBroker({P0: [2, 1, 3]})
    broker.exchange()
    flipped(broker, P0, 1, at)
    broker.exchange()
    under_way = broker.poll()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]
    for send in under_way:
        send.on_reply(broker.answer(send.build(13)), 0)
    for _ in range(3):
        assert broker.fetcher.has_records
        with pytest.raises(MusterError, match=r"seek\(\) past it"):
            broker.fetcher.collect(500)
        assert not broker.exchange()
        assert broker.subscription.position(P0) == 2
    broker.subscription.seek(P0, 3)
    assert broker.drain() == {P0: [3, 4, 5]}


def test_damage_is_not_told_of_a_partition_that_is_paused_or_given_up() -> None:
    broker = OneBroker({P0: [1]})
    flipped(broker, P0, 0)
    broker.exchange()
    broker.subscription.pause([P0])
    assert not broker.fetcher.has_records
    assert broker.fetcher.collect(500) == {}
    broker.subscription.resume([P0])
    with pytest.raises(CorruptRecordError):
        broker.fetcher.collect(500)
    broker.subscription.assign([])
    assert not broker.fetcher.has_records
    assert broker.fetcher.collect(500) == {}


def test_a_partition_that_is_lost_and_comes_back_is_read_again_though_it_was_damaged() -> None:
    broker = OneBroker({P0: [1]})
    good = list(broker.logs[P0])
    flipped(broker, P0, 0)
    broker.exchange()
    broker.logs[P0] = good
    broker.subscription.assign([])
    broker.subscription.assign([P0])
    broker.subscription.seek(P0, 0)
    assert broker.drain() == {P0: [0]}


def test_an_answer_that_goes_backwards_is_damage_and_no_endless_loop() -> None:
    broker = OneBroker({P0: [1, 1]})
    broker.subscription.seek(P0, 1)
    broker.logs[P0][1] = (1, 2, broker.logs[P0][0][2])
    broker.exchange()
    with pytest.raises(CorruptRecordError, match="t-0 is damaged at offset 1"):
        broker.fetcher.collect(500)
    assert not broker.exchange()


def test_two_answers_for_the_same_place_count_once() -> None:
    """The leader moves while it is asked, and the new one is asked for the same place; both answer."""
    broker = OneBroker({P0: [2, 2]})
    [old] = broker.poll()
    broker.metadata.update_leader(P0, 2, 1, Node(2, "h2", 9092))
    [new] = broker.poll()
    for send in (old, new):
        response = broker.answer(send.build(13))
        broker.session_epoch = 0
        send.on_reply(response, 0)
    [data] = broker.fetcher.collect_raw()[P0]
    assert (data.start_offset, data.end_offset) == (0, 2)


def test_the_position_has_the_epoch_of_the_batch_before_it_though_that_one_is_hidden() -> None:
    broker = OneBroker({P0: [1]}, isolation_level="read_committed", max_batches=2)
    marker = build_batch(
        [(0, b"\0\0\0\0", b"\0\0\0\0\0\0", [])],
        base_offset=1,
        producer_id=5,
        producer_epoch=0,
        base_sequence=-1,
        transactional=True,
        control=True,
        leader_epoch=7,
    )
    broker.logs[P0].append((1, 2, bytes(marker)))
    broker.exchange()
    broker.fetcher.collect(500)
    broker.fetcher.collect(500)
    assert broker.subscription.all_consumed() == {P0: OffsetAndMetadata(2, 7)}


ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def transactional(offset: int, producer_id: int, marker: bytes | None = None) -> tuple[int, int, bytes]:
    """A batch of a transaction with one record, or the marker that ends it."""
    key, value = (None, str(offset).encode()) if marker is None else (marker, b"\0\0\0\0\0\0")
    built = build_batch(
        [(0, key, value, [])],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if marker is None else -1,
        transactional=True,
        control=marker is not None,
    )
    return offset, offset + 1, bytes(built)


def test_only_an_abort_marker_ends_an_aborted_transaction() -> None:
    broker = OneBroker({P0: [1]}, isolation_level="read_committed", max_batches=9)
    broker.logs[P0] = [
        transactional(0, 5),
        transactional(1, 5, COMMIT),
        transactional(2, 5),
        transactional(3, 5, ABORT),
    ]
    broker.logs[P0].append(transactional(4, 5))
    [send] = broker.poll()
    response = broker.answer(send.build(13))
    response.responses[0].partitions[0].aborted_transactions = [m.AbortedTransaction(5, 0)]
    send.on_reply(response, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [4]


def test_aborted_and_control_batches_are_hidden_from_read_committed() -> None:
    broker = OneBroker({P0: [1]}, isolation_level="read_committed", max_batches=9)

    batch = transactional
    broker.logs[P0] = [batch(0, 5), batch(1, 6), batch(2, 5, ABORT), batch(3, 5), batch(4, 6, ABORT)]
    [send] = broker.poll()
    response = broker.answer(send.build(13))
    response.responses[0].partitions[0].aborted_transactions = [m.AbortedTransaction(5, 0)]
    send.on_reply(response, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [1, 3]
    assert broker.subscription.position(P0) == 5
    broker.subscription.seek(P0, 0)
    [send] = broker.poll()
    response = broker.answer(send.build(13))
    # Kafka's brokers name them by where they end.
    response.responses[0].partitions[0].aborted_transactions = [m.AbortedTransaction(6, 1), m.AbortedTransaction(5, 0)]
    send.on_reply(response, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


def test_raw_batches_move_the_position_as_records_do() -> None:
    broker = OneBroker({P0: [3, 2]}, max_batches=2)
    broker.exchange()
    [data] = broker.fetcher.collect_raw()[P0]
    assert (data.start_offset, data.end_offset) == (0, 5)
    assert broker.subscription.position(P0) == 5
    assert broker.fetcher.collect_raw() == {}


def test_raw_batches_that_were_begun_as_records_are_fetched_again() -> None:
    """Two fetches of one application: `poll`, then `poll_arrow`. What was handed out does not come once more."""
    broker = OneBroker({P0: [2, 2]}, max_batches=2)
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(2)[P0]] == [0, 1]
    assert broker.fetcher.collect_raw() == {}
    broker.exchange()
    assert [data.start_offset for data in broker.fetcher.collect_raw()[P0]] == [2]


def test_batches_in_front_of_the_position_are_passed_over() -> None:
    """A broker may begin its answer before the offset that was asked for."""
    broker = OneBroker({P0: [2, 2]})
    broker.subscription.seek(P0, 3)
    [send] = broker.poll()
    answer = broker.answer(send.build(13))
    answer.responses[0].partitions[0].records = b"".join(batch for *_, batch in broker.logs[P0])
    send.on_reply(answer, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


def test_a_batch_that_was_cut_comes_again_as_a_whole() -> None:
    broker = OneBroker({P0: [2, 20]})
    [send] = broker.poll()
    answer = broker.answer(send.build(13))
    answer.responses[0].partitions[0].records = b"".join(batch for *_, batch in broker.logs[P0])[:-1]
    send.on_reply(answer, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == list(range(2, 22))


def test_what_is_damaged_is_no_part_of_the_raw_batches_in_front_of_it() -> None:
    broker = OneBroker({P0: [2, 2]}, max_batches=2)
    flipped(broker, P0, 1, at=16)
    broker.exchange()
    [data] = broker.fetcher.collect_raw()[P0]
    assert (bytes(data.buffer), data.end_offset) == (broker.logs[P0][0][2], 2)
    with pytest.raises(CorruptRecordError, match="offset 2"):
        broker.fetcher.collect_raw()


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


def test_a_fetch_is_never_parked_for_longer_than_fetch_max_wait_ms():
    broker = OneBroker({P0: [3, 3], P1: [1]}, max_partition_fetch_bytes=1, fetch_max_wait_ms=5)
    broker.subscription.seek(P1, 1)
    broker.exchange()
    [send] = broker.poll()
    request: Any = send.build(13)
    assert request.max_wait_ms == 5


@pytest.mark.parametrize(("isolation", "lag"), [("read_uncommitted", 6), ("read_committed", 1)])
def test_the_lag_ends_where_reading_may_end(isolation: str, lag: int) -> None:
    broker = OneBroker({P0: [2, 2, 2, 2]}, isolation_level=isolation)
    [send] = broker.poll()
    response = broker.answer(send.build(13))
    response.responses[0].partitions[0].last_stable_offset = 3
    send.on_reply(response, 0)
    assert len(broker.fetcher.collect(500)[P0]) == 2
    assert broker.fetcher.lag(P0) == lag
    broker.subscription.seek(P0, 9)
    assert broker.fetcher.lag(P0) == 0


def test_there_is_nothing_to_hand_out_once_the_user_has_sought() -> None:
    broker = OneBroker({P0: [2]})
    broker.exchange()
    assert broker.fetcher.has_records
    broker.subscription.seek(P0, 1)
    assert not broker.fetcher.has_records


def test_raw_batches_that_are_refused_are_told_of_though_an_error_stands_behind_them() -> None:
    broker = OneBroker({P0: [2, 2]}, max_batches=2)
    flipped(broker, P0, 1, at=16)
    broker.exchange()
    assert broker.fetcher.collect_raw()[P0]
    broker.fetcher.refuse_raw(P0, 1, CorruptRecordError("its decoder found it"))
    with pytest.raises(CorruptRecordError, match="offset 1"):
        broker.fetcher.collect(500)
    assert broker.subscription.position(P0) == 1
