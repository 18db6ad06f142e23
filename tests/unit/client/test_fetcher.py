"""The fetcher against a broker that is a list of batches: order, positions, seeks, sessions, errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.core.consume.fetcher import HELD_BACK_WAIT_MS
from muster.client.core.subscription_state import OffsetReset
from muster.errors import ErrorCode
from muster.model import ConsumerRecord, Node, OffsetAndMetadata
from muster.protocol import messages as m
from muster.protocol.records.record_batch import read_header, set_times
from tests.support.one_broker import P0, P1, TOPIC_ID, OneBroker
from tests.support.scale import examples
from tests.support.written import build_batch


@settings(max_examples=examples(60), deadline=None)
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


def test_a_record_has_all_that_its_batch_says_of_it() -> None:
    broker = OneBroker({P0: [1]}, max_batches=2)
    batch = build_batch([(5, b"k", None, []), (6, None, b"v", [("h", None)])], base_offset=1, leader_epoch=7)
    set_times(batch, 0, read_header(batch), 99, True)
    broker.logs[P0].append((1, 3, bytes(batch)))
    broker.subscription.seek(P0, 1)
    broker.exchange()
    assert broker.fetcher.collect(500)[P0] == [
        ConsumerRecord("t", 0, 1, 99, 1, b"k", None, [], 7),
        ConsumerRecord("t", 0, 2, 99, 1, None, b"v", [("h", None)], 7),
    ]


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
    broker = OneBroker.fetched({P0: [4], P1: [4]})
    broker.subscription.seek(P0, 3)
    broker.subscription.assign([P0])
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


def test_what_waits_is_dropped_by_a_loss_though_the_partition_came_back() -> None:
    broker = OneBroker.fetched({P0: [4, 4]})
    broker.subscription.assign([])
    broker.subscription.assign([P0])
    broker.subscription.seek(P0, 4)
    assert broker.fetcher.collect(500) == {}
    broker.exchange()
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [4, 5, 6, 7]


def test_paused_partitions_keep_what_was_fetched() -> None:
    broker = OneBroker.fetched({P0: [2, 2]})
    broker.subscription.pause([P0])
    assert broker.fetcher.collect(500) == {}
    assert not broker.fetcher.has_records
    assert broker.poll() == []
    broker.subscription.resume([P0])
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [0, 1]


def test_partitions_that_are_about_to_be_revoked_are_neither_fetched_nor_handed_out() -> None:
    broker = OneBroker.fetched({P0: [2]})
    broker.subscription.mark_pending_revocation([P0])
    assert broker.poll() == []
    assert broker.fetcher.collect(500) == {}


def test_one_fetch_at_a_time_for_each_broker() -> None:
    broker = OneBroker({P0: [2], P1: [2]})
    assert len(broker.poll()) == 1
    assert broker.poll() == []
    assert broker.fetcher.next_deadline(0) is None


def test_a_session_says_only_what_changed() -> None:
    broker = OneBroker.fetched({P0: [2, 2], P1: [2]})
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
    broker = OneBroker.fetched({P0: [2]})
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


@pytest.mark.parametrize(("room", "fetched"), [(0, False), (1, True)])
def test_no_more_than_max_partition_fetch_bytes_waits_where_more_is_fetched(room: int, fetched: bool) -> None:
    size = len(OneBroker({P0: [3]}).logs[P0][0][2])
    broker = OneBroker.fetched({P0: [3, 3]}, max_partition_fetch_bytes=size + room)
    assert bool(broker.poll()) is fetched


def test_two_answers_for_the_same_place_count_once() -> None:
    """The leader moves while a fetch is in flight, and the new leader is asked for the same offset; both answer."""
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
    # Kafka's brokers list them in the order of their ends.
    response.responses[0].partitions[0].aborted_transactions = [m.AbortedTransaction(6, 1), m.AbortedTransaction(5, 0)]
    send.on_reply(response, 0)
    assert [r.offset for r in broker.fetcher.collect(500)[P0]] == [3]


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
    broker = OneBroker.fetched({P0: [2]})
    assert broker.fetcher.has_records
    broker.subscription.seek(P0, 1)
    assert not broker.fetcher.has_records
