"""Where logs begin and end: what is requested, which answers count, which positions are lost and which leaders are
waited for."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.config import ConsumerConfig
from muster.client.core.consume.offsets import OffsetLookup, OffsetQuery
from muster.client.core.metadata import ClusterMetadata
from muster.errors import ErrorCode, KafkaError
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED
from muster.protocol.messages import MetadataResponse, MetadataResponseBroker
from muster.spark.offsets import INITIAL, to_json
from muster.spark.source.bounds import (
    DOUBT_EVERY_MS,
    DOUBT_TRIES,
    HELD_UP_MS,
    HELD_UP_WARNING_MS,
    STARTS_EVERY_MS,
    Lookup,
    PartitionBounds,
)
from muster.spark.source.claims import QueryClaims

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
AS_CONFIGURED = -1


class Leaders(OffsetLookup):
    """The requests, answered when the test says so."""

    def __init__(self):
        self.queries: list[OffsetQuery] = []

    def query(self, timestamps, isolation_level=None):
        level = AS_CONFIGURED if isolation_level is None else isolation_level
        self.queries.append(OffsetQuery(dict(timestamps), level))
        return self.queries[-1]

    def asked(self, when, level=AS_CONFIGURED):
        """The partitions that wait for an answer to a request of this kind."""
        queries = [query for query in self.queries if query.isolation_level == level]
        return sorted(p for query in queries for p, asked in query.open.items() if asked == when)

    def answer(self, partition, offset, when=LATEST_TIMESTAMP, level=AS_CONFIGURED):
        for query in self.queries:
            if query.open.get(partition) == when and query.isolation_level == level:
                del query.open[partition]
                query.results[partition] = None if offset is None else OffsetAndTimestamp(offset, -1)
                return
        raise AssertionError(f"nobody asks about {partition}")


class Case:
    """Claims with positions, and their bounds, at a time that the test moves."""

    def __init__(self, positions, fails_on_loss=False):
        self.now = 1_000_000
        self.claims = QueryClaims(name="q", notes_first=False, fails_on_loss=fails_on_loss)
        self.claims.begin_from(to_json(INITIAL))
        self.leaders = Leaders()
        self.metadata = ClusterMetadata(ConsumerConfig())
        self.bounds = PartitionBounds(self.leaders, self.claims, self.metadata)
        for partition, position in positions.items():
            self.own(partition, position)

    def own(self, partition, position):
        self.claims.assigned([partition])
        self.claims.committed(partition, position)

    def poll(self, after_ms=0):
        self.now += after_ms
        self.bounds.poll(self.now)

    def want(self, after_ms=0):
        self.now += after_ms
        self.bounds.want(self.now)
        self.poll()

    def bounded(self, start, end, *partitions, after_ms=0):
        """All of them are requested, and answered."""
        for partition in partitions:
            self.leaders.answer(partition, end)
            if partition in self.leaders.asked(EARLIEST_TIMESTAMP):
                self.leaders.answer(partition, start, EARLIEST_TIMESTAMP)
        self.poll(after_ms)

    def look_again(self, partition, *ends):
        for end in ends:
            if partition not in self.leaders.asked(LATEST_TIMESTAMP, READ_UNCOMMITTED):
                self.poll(DOUBT_EVERY_MS)
            self.leaders.answer(partition, end, level=READ_UNCOMMITTED)
            self.poll()


# --- one kind of request ---------------------------------------------------------------------------------------------


def lookup(*partitions):
    claims = QueryClaims(name="q")
    claims.assigned(partitions)
    leaders = Leaders()
    return claims, leaders, Lookup(leaders, claims)


def test_what_is_being_asked_about_is_not_asked_again():
    _, leaders, asking = lookup(P0, P1)
    asking.ask({P0: LATEST_TIMESTAMP}, 10)
    asking.ask({P0: LATEST_TIMESTAMP, P1: LATEST_TIMESTAMP}, 20)
    asking.ask({P0: LATEST_TIMESTAMP}, 30)
    assert [list(query.open) for query in leaders.queries] == [[P0], [P1]]
    assert (asking.oldest(), asking.under_way(P0), asking.under_way(P2)) == (10, True, False)


def test_an_answer_counts_only_while_the_partition_is_held_as_it_was_asked_about():
    claims, leaders, asking = lookup(P0, P1)
    asking.ask({P0: LATEST_TIMESTAMP, P1: LATEST_TIMESTAMP}, 10)
    claims.revoked([P0, P1])
    claims.assigned([P0])
    leaders.answer(P0, 7)
    leaders.answer(P1, 7)
    assert asking.take() == {}
    assert asking.oldest() is None


def test_what_is_lost_is_no_longer_asked_about():
    claims, leaders, asking = lookup(P0, P1)
    asking.ask({P0: LATEST_TIMESTAMP, P1: LATEST_TIMESTAMP}, 10)
    claims.revoked([P0])
    assert asking.take() == {}
    assert (leaders.asked(LATEST_TIMESTAMP), asking.under_way(P0), asking.under_way(P1)) == ([P1], False, True)


def test_an_error_ends_the_question_and_is_kept():
    _, leaders, asking = lookup(P0)
    asking.ask({P0: LATEST_TIMESTAMP}, 10)
    leaders.queries[0].error = refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
    assert (asking.take(), asking.error, asking.under_way(P0)) == ({}, refused, False)


def test_an_answer_without_an_offset_is_none():
    _, leaders, asking = lookup(P0)
    asking.ask({P0: LATEST_TIMESTAMP}, 10)
    leaders.answer(P0, None)
    assert (asking.take(), asking.under_way(P0)) == ({}, False)


# --- what is requested, and how fresh the answers are
# -------------------------------------------------------------------------------


def test_nothing_is_asked_before_spark_asks():
    case = Case({P0: 3})
    case.poll()
    case.poll(60_000)
    assert case.leaders.queries == []
    case.want()
    assert case.leaders.asked(LATEST_TIMESTAMP) == case.leaders.asked(EARLIEST_TIMESTAMP) == [P0]
    case.poll(50)
    assert len(case.leaders.queries) == 2


def test_ends_are_fresh_when_both_ends_are_heard_since_a_time():
    case = Case({P0: 3, P1: 3})
    case.want()
    since = case.now
    assert case.bounds.missing(since) == [P0, P1]
    case.leaders.answer(P0, 9)
    case.poll(1)
    assert case.bounds.missing(since) == [P0, P1]  # the beginning of P0 is not known
    case.leaders.answer(P0, 0, EARLIEST_TIMESTAMP)
    case.poll(1)
    assert case.bounds.missing(since) == [P1]
    assert case.bounds.missing(since + 1) == [P0, P1]
    assert not case.bounds.fresh(since, case.now)
    case.bounded(0, 5, P1)
    assert case.bounds.fresh(since, case.now)
    assert case.bounds.offsets() == {P0: 9, P1: 5}


def test_an_end_of_a_former_ownership_says_nothing():
    case = Case({P0: 3})
    case.want()
    case.bounded(0, 9, P0)
    case.claims.revoked([P0])
    case.own(P0, 5)
    assert case.bounds.offsets() == {}
    assert case.bounds.missing(0) == [P0]
    case.poll()
    assert case.leaders.asked(LATEST_TIMESTAMP) == case.leaders.asked(EARLIEST_TIMESTAMP) == [P0]


def test_ends_are_asked_for_again_at_each_wish_and_beginnings_now_and_then():
    case = Case({P0: 3})
    case.want()
    case.bounded(0, 9, P0)
    case.want(1)
    assert (case.leaders.asked(LATEST_TIMESTAMP), case.leaders.asked(EARLIEST_TIMESTAMP)) == ([P0], [])
    case.bounded(0, 9, P0)
    case.want(STARTS_EVERY_MS - 1)
    assert case.leaders.asked(EARLIEST_TIMESTAMP) == []
    case.bounded(0, 9, P0)
    case.want(1)
    assert case.leaders.asked(EARLIEST_TIMESTAMP) == [P0]


@pytest.mark.parametrize("when", [LATEST_TIMESTAMP, EARLIEST_TIMESTAMP])
def test_what_gives_no_answer_for_long_is_not_waited_for(when):
    case = Case({P0: 3, P1: 3})
    case.want()
    since = case.now
    case.bounded(0, 9, P0)
    other = EARLIEST_TIMESTAMP if when == LATEST_TIMESTAMP else LATEST_TIMESTAMP
    case.leaders.answer(P1, 0, other)
    case.poll(HELD_UP_MS - 1)
    assert (case.bounds.held_up(case.now), case.bounds.fresh(since, case.now)) == (set(), False)
    assert case.bounds.next_deadline(case.now) == case.now + 1
    case.poll(1)
    assert (case.bounds.held_up(case.now), case.bounds.fresh(since, case.now)) == ({P1}, True)
    assert not case.bounds.fresh(case.now, case.now)  # P0 is waited for, because it answers


def test_what_is_delayed_is_reported_once_and_again_when_it_is_back():
    case = Case({P0: 3, P1: 3})
    for _ in range(2):
        case.want()
        case.bounded(0, 9, P0)
        case.poll(HELD_UP_WARNING_MS - 1)
        assert case.bounds.notes == []
        assert case.bounds.next_deadline(case.now) == case.now + 1
        for _ in range(3):
            case.poll(1)
        (note,) = case.bounds.notes
        assert note.level == logging.WARNING
        assert note.text.startswith("t-1 has no leader. Its records wait")
        case.bounds.notes.clear()
        case.bounded(0, 9, P1)
        case.poll(1)
        assert [(note.level, note.text) for note in case.bounds.notes] == [(logging.INFO, "t-1 can be read again")]
        case.bounds.notes.clear()


def test_a_refusal_of_any_question_is_an_error():
    for number in range(2):
        case = Case({P0: 3})
        case.want()
        case.leaders.queries[number].error = refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
        case.poll()
        assert case.bounds.error is refused


# --- positions that mean nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "start", "end", "continues_at", "reported"),
    [
        (5, 0, 9, 5, ""),
        (5, 5, 5, 5, ""),
        (9, 0, 9, 9, ""),
        (5, 6, 9, 6, "offsets 5 to 5 of t-0 are gone: its log begins at 6 now"),
        (5, 8, 8, 8, "offsets 5 to 7 of t-0 are gone: its log begins at 8 now"),
        (10, 0, 9, 0, "t-0 ends at offset 9, but reading is at 10"),
        (10, 2, 2, 2, "t-0 ends at offset 2, but reading is at 10"),
    ],
)
def test_where_reading_continues(position, start, end, continues_at, reported):
    case = Case({P0: position})
    case.want()
    case.bounded(start, end, P0, after_ms=1)
    if case.bounds.in_doubt:
        case.poll()
        case.leaders.answer(P0, start, EARLIEST_TIMESTAMP)
        case.look_again(P0, *[end] * DOUBT_TRIES)
    assert case.claims.positions() == {P0: continues_at}
    losses = case.claims.take_losses()
    assert len(losses) == bool(reported)
    assert all(loss.startswith(reported) for loss in losses)


def doubtful(position=10, end=9):
    case = Case({P0: position})
    case.want()
    case.bounded(0, end, P0, after_ms=1)
    assert case.bounds.in_doubt == [P0]
    case.poll()
    return case


def test_the_topic_of_a_doubtful_position_is_looked_up_as_well():
    case = Case({P0: 10})
    (request,) = case.metadata.poll(case.now)
    request.on_reply(MetadataResponse(brokers=[MetadataResponseBroker(1, "node1", 9092)]), case.now)
    case.want()
    case.bounded(0, 10, P0)
    assert not case.metadata.update_pending
    case.want(1)
    case.bounded(0, 9, P0)
    assert case.metadata.update_pending  # it may be another topic by now


def test_an_end_before_the_position_is_looked_at_as_often_as_it_takes():
    case = doubtful()
    case.leaders.answer(P0, 0, EARLIEST_TIMESTAMP)
    for look in range(DOUBT_TRIES):
        assert case.bounds.in_doubt == [P0]
        assert case.leaders.asked(LATEST_TIMESTAMP, READ_UNCOMMITTED) == [P0]
        case.leaders.answer(P0, 9, level=READ_UNCOMMITTED)
        case.poll()
        if look < DOUBT_TRIES - 1:
            assert case.bounds.next_deadline(case.now) == case.now + DOUBT_EVERY_MS
            case.poll(DOUBT_EVERY_MS - 1)
            assert case.leaders.asked(LATEST_TIMESTAMP, READ_UNCOMMITTED) == []
            case.poll(1)
    assert case.bounds.in_doubt == []
    assert len(case.claims.take_losses()) == 1


def test_a_loss_continues_at_a_beginning_that_was_looked_up_after_the_doubt():
    case = doubtful()
    case.look_again(P0, *[9] * (DOUBT_TRIES + 1))
    assert case.bounds.in_doubt == [P0]  # the log may have been replaced by now: its beginning is requested again
    case.leaders.answer(P0, 4, EARLIEST_TIMESTAMP)
    case.look_again(P0, 9)
    assert case.claims.positions() == {P0: 4}


def test_a_last_stable_offset_before_the_position_is_neither_a_loss_nor_a_lasting_doubt():
    case = doubtful()
    case.look_again(P0, 10)  # the high watermark
    assert case.bounds.in_doubt == []
    for _ in range(3):
        case.poll(10)
        assert case.bounds.in_doubt == []
    case.want(1)
    case.bounded(0, 9, P0)
    assert case.bounds.in_doubt == [P0]  # new answer, new doubt
    assert case.claims.take_losses() == []
    case.look_again(P0, 9, 11)
    assert (case.bounds.in_doubt, case.claims.positions()) == ([], {P0: 10})


def test_a_doubt_ends_with_the_ownership():
    case = doubtful()
    case.claims.revoked([P0])
    case.own(P0, 9)
    case.poll(DOUBT_EVERY_MS)
    assert case.bounds.in_doubt == []
    case.poll(DOUBT_EVERY_MS)
    assert case.claims.take_losses() == []
    case.claims.revoked([P0])
    case.poll()
    assert case.bounds.next_deadline(case.now) is None


def test_nothing_is_judged_while_a_batch_is_under_way():
    case = Case({P0: 3})
    case.want()
    case.bounded(0, 9, P0)
    end = case.claims.latest(to_json(INITIAL), case.bounds.offsets())
    case.claims.planned(end)
    case.want(STARTS_EVERY_MS + 1)
    assert case.leaders.asked(EARLIEST_TIMESTAMP) == [P0]
    case.bounded(5, 9, P0)
    assert (case.claims.positions(), case.claims.take_losses()) == ({P0: 3}, [])
    case.claims.finished(end)
    case.poll()
    assert (case.claims.positions(), case.claims.take_losses()) == ({P0: 9}, [])


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 20), max_size=5))
def test_reading_continues_within_the_log_or_where_it_was(position, start, size, looks):
    """Whatever the leader says and however often it changes its mind: no loss before the full number of checks, no
    position outside the log without a doubt, and never one that no answer contained."""
    case = Case({P0: position})
    end = start + size
    case.want()
    case.bounded(start, end, P0)
    for look in looks:
        if not case.bounds.in_doubt:
            break
        case.poll()
        if P0 in case.leaders.asked(EARLIEST_TIMESTAMP):
            case.leaders.answer(P0, start, EARLIEST_TIMESTAMP)
        case.look_again(P0, look)
    (now,) = case.claims.positions().values()
    assert now in (position, start)
    if start <= position <= end:
        assert now == position
    if position < start:
        assert now == start
    if position > end:
        short = next((n for n, look in enumerate(looks) if look >= position), len(looks))
        assert (now == start) == (short >= DOUBT_TRIES) or position == start
        assert bool(case.bounds.in_doubt) == (now != start and short == len(looks))
