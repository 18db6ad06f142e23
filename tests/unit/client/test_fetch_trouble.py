"""The fetcher when brokers refuse, move or fail, and when a batch is damaged."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest

from muster.client.core.sends import Failure, FailureKind
from muster.errors import CorruptRecordError, ErrorCode, KafkaError, MusterError
from muster.model import Node, TopicPartition
from muster.protocol import messages as m
from tests.support.one_broker import P0, P1, OneBroker, flipped


def test_a_failure_that_does_not_heal_is_reported_once() -> None:
    broker = OneBroker({P0: [2]})
    for kind, reported in (FailureKind.DISCONNECTED, 0), (FailureKind.UNSUPPORTED_VERSION, 1):
        [send] = broker.poll()
        send.on_reply(Failure(kind, "no"), broker.now)
        assert len(broker.events.take()) == reported
        assert broker.events.take() == []
        broker.now += broker.config.retry_backoff_ms


def test_a_partition_without_a_leader_has_the_metadata_asked() -> None:
    broker = OneBroker({P0: [2], P1: [2]})
    broker.metadata.topics["t"].partitions[0].leader_id = -1
    assert not broker.metadata.update_pending
    [send] = broker.poll()
    request: Any = send.build(13)
    assert [asked.partition for asked in request.topics[0].partitions] == [1]
    assert broker.metadata.update_pending


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


def test_a_failure_closes_the_session_as_nobody_knows_what_the_broker_took_in() -> None:
    """The unanswered request contained a new position for a partition."""
    broker = OneBroker.fetched({P0: [2, 2], P1: [2]})
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
    assert broker.events.take() == []


def test_an_offset_out_of_range_is_reported_where_there_is_no_policy() -> None:
    broker = OneBroker({P0: [2]}, auto_offset_reset="none")
    broker.subscription.seek(P0, 9)
    for _ in range(2):
        broker.exchange()
        # Nothing is requested while the answer waits for the user, so that nothing piles up.
        assert not broker.exchange()
        with pytest.raises(KafkaError, match="no longer has offset 9") as caught:
            broker.fetcher.collect(500)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert broker.fetcher.collect(500) == {}
        broker.now += broker.config.retry_backoff_ms
    broker.subscription.seek(P0, 0)
    assert broker.drain() == {P0: [0, 1]}


def test_what_was_fetched_before_an_offset_out_of_range_is_handed_out_before_the_reset() -> None:
    broker = OneBroker.fetched({P0: [2, 2]}, auto_offset_reset="latest")
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.OFFSET_OUT_OF_RANGE}), 0)
    assert broker.poll() == []  # the user may be slow to come back: the broker is not asked as fast as it answers
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]
    assert broker.subscription.needs_reset() == []
    broker.now = broker.config.retry_backoff_ms
    [send] = broker.poll()
    send.on_reply(broker.answer(send.build(13), {P0: ErrorCode.OFFSET_OUT_OF_RANGE}), 0)
    assert broker.subscription.needs_reset() == [P0]


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE])
def test_an_error_that_does_not_heal_is_reported_for_each_answer_that_says_it(code: ErrorCode) -> None:
    """The partition is requested again once the error was raised and the backoff is over, whichever is later."""
    broker = OneBroker({P0: [2]})
    for raised_first in (True, False):
        [send] = broker.poll()
        send.on_reply(broker.answer(send.build(13), {P0: code}), broker.now)
        due = broker.now + broker.config.retry_backoff_max_ms
        if not raised_first:
            broker.now = due
            assert broker.poll() == []
        with pytest.raises(KafkaError, match="t-0") as caught:
            broker.fetcher.collect(500)
        assert caught.value.code is code
        assert broker.fetcher.collect(500) == {}
        if raised_first:
            assert broker.poll() == []
            assert broker.fetcher.next_deadline(broker.now) == due
            broker.now = due
    assert broker.drain() == {P0: [0, 1]}


def test_the_leader_that_an_answer_names_is_asked_next() -> None:
    """KIP-951: neither metadata nor a backoff has to be waited for."""
    broker = OneBroker({P0: [2]})
    [send] = broker.poll()
    answer = broker.answer(send.build(13), {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    answer.responses[0].partitions[0].current_leader = m.FetchResponseLeaderIdAndEpoch(2, 1)
    answer.node_endpoints = [m.FetchResponseNodeEndpoint(2, "other", 9092)]
    send.on_reply(answer, 0)
    [send] = broker.poll()
    assert send.node_id == 2
    assert broker.metadata.brokers[2] == Node(2, "other", 9092)


def test_a_limit_inside_a_batch_leaves_its_partition_the_next_turn() -> None:
    broker = OneBroker.fetched({P0: [4], P1: [4]})
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


def test_a_damaged_batch_is_reported_at_each_turn_and_stops_only_its_partition() -> None:
    broker = OneBroker({P0: [2, 2, 2], P1: [1, 1, 1, 1]}, max_partition_fetch_bytes=1)
    flipped(broker, P0, 1)
    seen: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    reported = 0
    for _ in range(12):
        broker.exchange()
        try:
            for partition, records in broker.fetcher.collect(1).items():
                seen[partition] += [record.offset for record in records]
        except CorruptRecordError:
            reported += 1
    assert seen == {P0: [0, 1], P1: [0, 1, 2, 3]}
    assert reported == 6
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
def test_nothing_after_the_damage_is_handed_out_though_a_fetch_from_there_is_under_way(at: int) -> None:
    broker = OneBroker.fetched({P0: [2, 1, 3]})
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


def test_damage_is_not_reported_for_a_partition_that_is_paused_or_given_up() -> None:
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


@pytest.mark.parametrize("broken", [0, 1])
def test_a_damaged_message_of_before_kafka_0_11_is_reported_as_damage(broken: int) -> None:
    """The message before it is handed out; it is not mistaken for a message that does not fit in a response."""
    one = "00000000 00 00 00000000 00000001 76"
    messages = [bytearray.fromhex(f"00000000000000{at:02x} 0000000f {one}") for at in (0, 1)]
    for message in messages:
        struct.pack_into(">I", message, 12, crc32(message[16:]))
    messages[broken][-1] ^= 1
    broker = OneBroker({P0: [2]})
    broker.logs[P0] = [(0, 2, bytes(messages[0] + messages[1]))]
    broker.exchange()
    if broken:
        assert [record.value for record in broker.fetcher.collect(500)[P0]] == [b"v"]
        broker.exchange()
    with pytest.raises(CorruptRecordError, match=f"t-0 is damaged at offset {broken}"):
        broker.fetcher.collect(500)
