"""Transactions of one partition: what may be written, what is stable, which records a reader of committed records
gets."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from muster.errors import ErrorCode
from muster.log import FsyncPolicy, LogConfig, LogError, LogStore, MarkerResult, PartitionLog
from muster.log.producers.producer_state import PartitionProducers
from muster.log.producers.transactions import OngoingTransaction
from muster.log.segments.aborted_index import AbortedTxn
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.records.control_records import TxnMarker, end_marker, is_abort_marker, read_marker
from muster.protocol.records.record_batch import PREFIX, BatchHeader, read_header
from tests.support.logs import NOW, batch, held, read_all
from tests.support.power import Unsynced
from tests.support.transactions import begin, check_rebuilt, end, open_firsts, read_committed, sent

TP = TopicPartition("topic", 0)
HOUR = 3_600_000
OLD, GAP = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NOT_IN, FENCED = ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_COORDINATOR_FENCED

# --- the rules of appends: every state of a producer, and every batch ------------------------------------------------


def data(epoch: int, sequence: int, *, transactional: bool = True, offset: int = 0) -> BatchHeader:
    """A batch of two records of producer 7."""
    numbers = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence, "base_offset": offset}
    return read_header(batch((b"k", b"v"), (b"k", b"v"), transactional=transactional, **numbers))


def marked(state: PartitionProducers, epoch: int, offset: int, commit: bool = True, coordinator_epoch: int = 3) -> None:
    marker = TxnMarker(7, epoch, commit, coordinator_epoch)
    made = end_marker(marker, NOW)
    PREFIX.pack_into(made, 0, offset, len(made) - 12, 0)
    state.note(read_header(made), marker)


def unknown() -> PartitionProducers:
    return PartitionProducers()


def idempotent() -> PartitionProducers:
    """Epoch 1, sequences to 1, outside of a transaction."""
    state = PartitionProducers()
    state.note(data(1, 0, transactional=False, offset=100))
    return state


def begun() -> PartitionProducers:
    """Epoch 1, sequences to 1, a transaction is open."""
    state = PartitionProducers()
    state.note(data(1, 0, offset=100))
    return state


def ended() -> PartitionProducers:
    """The same after a marker with its epoch: from a client that supports no newer version."""
    state = begun()
    marked(state, 1, 102)
    return state


def bumped() -> PartitionProducers:
    """The same after a marker that raised the epoch to 2."""
    state = begun()
    marked(state, 2, 102)
    return state


STATES = {"unknown": unknown, "idempotent": idempotent, "begun": begun, "ended": ended, "bumped": bumped}

# For each state: batch (epoch, sequence, transactional) -> the outcome without a guard, with a guard, and with a guard
# of transaction version 2 (both given for this batch). None: it is written; a number: the offset that it repeats.
CELLS: dict[str, dict[tuple[int, int, bool], tuple[object, object, object]]] = {
    "unknown": {
        (1, 0, True): (NOT_IN, None, None),
        (1, 2, True): (NOT_IN, None, GAP),  # it began in a transaction that is forgotten; version 2 begins at 0
        (1, 0, False): (None, None, None),
        (1, 2, False): (None, None, GAP),
    },
    "idempotent": {
        (0, 0, True): (OLD, OLD, OLD),
        (0, 0, False): (OLD, OLD, OLD),
        (1, 0, True): (100, 100, 100),
        (1, 0, False): (100, 100, 100),
        (1, 2, True): (NOT_IN, None, None),
        (1, 2, False): (None, None, None),
        (1, 4, True): (NOT_IN, GAP, GAP),
        (1, 4, False): (GAP, GAP, GAP),
        (2, 0, True): (NOT_IN, None, None),
        (2, 2, True): (NOT_IN, GAP, GAP),
        (2, 0, False): (None, None, None),
    },
    "begun": {
        (0, 0, True): (OLD, OLD, OLD),
        (1, 0, True): (100, 100, 100),
        (1, 2, True): (None, None, None),  # it is open: no guard is needed
        (1, 4, True): (GAP, GAP, GAP),
        (1, 2, False): (NOT_IN, NOT_IN, NOT_IN),
        (1, 4, False): (GAP, GAP, GAP),  # the sequence is checked first
        (2, 0, True): (NOT_IN, None, None),  # another epoch: the transaction may have ended
        (2, 2, True): (NOT_IN, GAP, GAP),
        (2, 0, False): (NOT_IN, NOT_IN, NOT_IN),
    },
    "ended": {
        (0, 0, True): (OLD, OLD, OLD),
        (1, 0, True): (100, 100, 100),  # a late repeat: it was written
        (1, 2, True): (NOT_IN, None, None),
        (1, 4, True): (NOT_IN, GAP, GAP),
        (1, 2, False): (None, None, None),
        (2, 0, True): (NOT_IN, None, None),
    },
    "bumped": {
        (1, 0, True): (OLD, OLD, OLD),
        (1, 2, True): (OLD, OLD, OLD),
        (2, 0, True): (NOT_IN, None, None),
        (2, 2, True): (NOT_IN, GAP, GAP),
        (2, 0, False): (None, None, None),
        (3, 0, True): (NOT_IN, None, None),
        (3, 2, True): (NOT_IN, GAP, GAP),
    },
}
ROWS = [(state, sent_as, expected) for state, row in CELLS.items() for sent_as, expected in row.items()]


def outcome(state: PartitionProducers, header: BatchHeader, guard: int | None, **options: bool) -> object:
    """The offset of the batch that it repeats, None if it is written, or the error code of its refusal."""
    try:
        duplicate = state.check(header, guard, **options)
    except LogError as error:
        return error.code
    return None if duplicate is None else duplicate.first_offset


@pytest.mark.parametrize(("state", "sent_as", "expected"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
@pytest.mark.parametrize("saved", [False, True], ids=["", "after a snapshot"])
def test_what_becomes_of_a_batch(state, sent_as, expected, saved):
    epoch, sequence, transactional = sent_as
    header = data(epoch, sequence, transactional=transactional)
    for tv2, wanted in ((None, expected[0]), (False, expected[1]), (True, expected[2])):
        found = STATES[state]()
        if saved:
            found = PartitionProducers.decode(found.encode())
        guard = None
        if tv2 is not None:
            guard = found.transactions.guard(7, epoch, sequence, tv2, NOW)
        assert outcome(found, header, guard) == wanted, f"tv2: {tv2}"


def test_no_guard_is_needed_where_nothing_is_verified():
    assert outcome(unknown(), data(1, 0), None, verifies=False) is None
    assert outcome(idempotent(), data(0, 0), None, verifies=False) is OLD
    assert outcome(begun(), data(1, 2, transactional=False), None, verifies=False) is NOT_IN


def test_of_a_coordinator_epoch_and_guard_are_checked_and_no_sequences():
    assert outcome(begun(), data(1, 0), None, of_client=False) is None, "it may repeat sequence 0"
    assert outcome(ended(), data(1, 0), None, of_client=False) is NOT_IN
    state = ended()
    assert outcome(state, data(1, 9), state.transactions.guard(7, 1, 0, False, NOW), of_client=False) is None
    assert outcome(state, data(0, 0), state.transactions.guard(7, 1, 0, False, NOW), of_client=False) is OLD


# --- guards ----------------------------------------------------------------------------------------------------------


def test_a_guard_is_asked_for_where_no_transaction_is_open():
    assert begun().begin_verification(7, 1, 2, False, NOW) is None
    assert begun().begin_verification(7, 2, 0, True, NOW) is not None
    for state in (unknown(), idempotent(), ended(), bumped()):
        assert state.begin_verification(7, 2, 0, True, NOW) is not None
    with pytest.raises(LogError) as refused:
        bumped().begin_verification(7, 1, 2, False, NOW)
    assert refused.value.code is OLD


def test_a_guard_is_given_once_and_used_up_by_the_batch():
    state = unknown()
    guard = state.begin_verification(7, 1, 0, False, NOW)
    assert state.begin_verification(7, 1, 0, False, NOW) == guard, "asked again before the answer"
    assert state.begin_verification(8, 1, 0, False, NOW) != guard
    assert outcome(state, data(1, 0), 100) is NOT_IN
    state.note(data(1, 0, offset=5))
    marked(state, 1, 7)
    assert outcome(state, data(1, 2), guard) is NOT_IN
    assert state.begin_verification(7, 1, 2, False, NOW) != guard


def test_an_answer_from_before_a_marker_opens_nothing():
    """The coordinator says yes, the transaction is aborted, the late batch arrives: the transaction would stay open
    forever."""
    state = unknown()
    guard = state.begin_verification(7, 1, 0, False, NOW)
    marked(state, 1, 0, commit=False)
    assert outcome(state, data(1, 0), guard) is NOT_IN


@pytest.mark.parametrize(("tv2", "marker_epoch", "stays"), [(True, 2, True), (True, 3, False), (False, 2, False)])
def test_the_marker_of_the_transaction_before_leaves_the_guard_of_a_new_epoch(tv2, marker_epoch, stays):
    """KAFKA-18575: the next transaction begins once the last one is decided, before its marker has arrived."""
    state = begun()
    guard = state.begin_verification(7, 2, 0, tv2, NOW)
    marked(state, marker_epoch, 102)
    assert outcome(state, data(3, 0), guard) is (None if stays else NOT_IN)


def test_a_later_sequence_waits_for_the_lowest_that_was_seen():
    state = ended()
    state.begin_verification(7, 1, 4, False, NOW)
    guard = state.begin_verification(7, 1, 2, False, NOW)
    assert state.begin_verification(7, 1, 6, False, NOW) == guard
    state.producers[7].batches.clear()
    state.producers[7].epoch = -1  # unknown: any sequence is accepted
    assert outcome(state, data(1, 4), guard) is GAP
    assert outcome(state, data(1, 2), guard) is None


def test_the_lowest_sequence_is_of_the_newest_epoch():
    state = unknown()
    state.begin_verification(7, 1, 4, False, NOW)
    guard = state.begin_verification(7, 2, 6, False, NOW)
    state.begin_verification(7, 1, 0, False, NOW)
    assert outcome(state, data(2, 6), guard) is None


def test_a_guard_is_forgotten_with_time():
    state = unknown()
    guard = state.begin_verification(7, 1, 0, False, NOW)
    state.expire(NOW + HOUR - 1, HOUR)
    assert outcome(state, data(1, 0), guard) is None
    state.expire(NOW + HOUR, HOUR)
    assert outcome(state, data(1, 0), guard) is NOT_IN


# --- markers ---------------------------------------------------------------------------------------------------------

MARKERS: dict[str, dict[int, tuple[object, object]]] = {
    # state: epoch of the marker -> with version 0 or 1, with version 2
    "unknown": {0: (None, None), 5: (None, None)},
    "idempotent": {0: (OLD, OLD), 1: (None, None), 2: (None, None)},
    "begun": {0: (OLD, OLD), 1: (None, OLD), 2: (None, None)},
    "ended": {0: (OLD, OLD), 1: (None, None), 2: (None, None)},
    "bumped": {1: (OLD, OLD), 2: (None, None), 3: (None, None)},
}
MARKER_ROWS = [(state, epoch, *said) for state, row in MARKERS.items() for epoch, said in row.items()]


def marker_code(state: PartitionProducers, epoch: int, coordinator_epoch: int, version: int) -> object:
    try:
        state.check_marker(TxnMarker(7, epoch, True, coordinator_epoch, version))
    except LogError as error:
        return error.code
    return None


@pytest.mark.parametrize(("state", "epoch", "old", "new"), MARKER_ROWS)
def test_which_markers_are_written(state, epoch, old, new):
    assert [marker_code(STATES[state](), epoch, 3, version) for version in (0, 1, 2)] == [old, old, new]


def test_a_coordinator_of_an_older_epoch_is_fenced():
    assert marker_code(ended(), 1, 2, 0) is FENCED
    assert marker_code(ended(), 1, 3, 0) is None
    assert marker_code(ended(), 0, 2, 0) is OLD, "the producer's epoch is looked at first"
    assert marker_code(begun(), 1, 0, 0) is None
    assert marker_code(PartitionProducers.decode(bumped().encode()), 3, 2, 2) is FENCED


def test_markers_say_what_kafka_says():
    """ControlRecordType and EndTxnMarker."""
    made = end_marker(TxnMarker(7, 2, True, 5), NOW)
    header = read_header(made)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (7, 2, NOW)
    assert made[61:] == bytes([32, 0, 0, 0, 8]) + b"\0\0\0\1" + bytes([12]) + b"\0\0\0\0\0\5" + b"\0"
    assert read_marker(made, 0, header) == TxnMarker(7, 2, True, 5)
    assert not is_abort_marker(made, 0, header)
    assert is_abort_marker(end_marker(TxnMarker(7, 2, False, 5), NOW), 0, header)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\2", b"\0\0\0\0\0\5"),
        (b"\0\0\0", b"\0\0\0\0\0\5"),
        (b"\0\0\0\1", b"\0\0\0"),
        (None, b""),
        (b"\0\0\0\0", None),
    ],
)
def test_what_is_not_a_marker_ends_nothing(key, value):
    made = batch((key, value), transactional=True, control=True, producer_id=7, producer_epoch=1)
    assert read_marker(made, 0, read_header(made)) is None


def test_a_control_batch_that_compaction_has_emptied_keeps_its_epoch():
    state = begun()
    header = read_header(batch((b"k", b"v"), control=True, producer_id=7, producer_epoch=4, base_offset=102))
    assert state.note(header) is None
    assert (state.producers[7].epoch, state.has_open(7, 4)) == (4, True)


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_snapshots_have_open_transactions_and_coordinator_epochs():
    state = bumped()
    for pid, offset in ((9, 300), (8, 200), (1, 250)):
        numbers = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0, "base_offset": offset}
        state.note(read_header(batch((b"k", b"v"), transactional=True, **numbers)))
        state.note(read_header(batch((b"k", b"v"), transactional=True, **numbers | {"base_sequence": 1})))
    found = PartitionProducers.decode(state.encode())
    assert found.producers == state.producers
    assert list(found.transactions.open.items()) == [(200, 8), (250, 1), (300, 9)]
    assert found.producers[7].coordinator_epoch == 3
    assert found.open_transactions()[0] == OngoingTransaction(8, 0, -1, 200, NOW)


def test_a_producer_with_an_open_transaction_is_not_forgotten():
    state = begun()
    state.expire(NOW + 100 * HOUR, HOUR)
    assert state.has_open(7, 1)
    marked(state, 1, 102)
    state.expire(NOW + HOUR - 1, HOUR)
    assert 7 in state.producers, "a marker counts as a sign of life"
    state.expire(NOW + HOUR, HOUR)
    assert not state.producers


# --- a log -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path):
    """Segments hold about three batches."""
    return held(PartitionLog(tmp_path / "topic-0", TP, LogConfig(segment_bytes=300), files=Unsynced()))


def put(log: PartitionLog, value: bytes = b"plain") -> int:
    return log.append(batch((b"k", value)), now=NOW).base_offset


def reopened(log: PartitionLog, *, clean: bool) -> PartitionLog:
    if clean:
        log.close()
    else:
        log.abandon()
    return held(PartitionLog.open(log.directory, TP, log.config, now=NOW, clean=clean, files=Unsynced()))


def aborted(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]] | None:
    return log.read(offset, max_bytes, isolation_level=READ_COMMITTED).aborted


def test_what_is_open_is_not_stable(log):
    assert (log.last_stable_offset, log.open_transactions()) == (0, [])
    put(log)
    assert log.last_stable_offset == 1
    assert begin(log, 7) == 1
    put(log)
    assert begin(log, 8) == 3
    assert log.last_stable_offset == 1
    assert [log.readable_end(level) for level in (READ_COMMITTED, READ_UNCOMMITTED)] == [1, 4]
    assert log.open_transactions() == [OngoingTransaction(7, 0, -1, 1, NOW), OngoingTransaction(8, 0, -1, 3, NOW)]
    assert end(log, 7, commit=True) == 4
    assert (log.last_stable_offset, open_firsts(log.open_transactions())) == (3, [(8, 3)])
    assert end(log, 8, commit=False) == 5
    assert (log.last_stable_offset, log.open_transactions()) == (6, [])
    check_rebuilt(log)


def test_a_reader_of_committed_records_sees_decided_ones_only(log):
    put(log, b"a")
    begin(log, 7, (b"k", b"b"))
    begin(log, 8, (b"k", b"c"))
    put(log, b"d")
    end(log, 8, commit=False)
    assert [value for _, _, value in read_committed(log)] == [b"a"]
    end(log, 7, commit=True)
    begin(log, 8, (b"k", b"e"))
    assert [value for _, _, value in read_committed(log)] == [b"a", b"b", b"d"]
    assert [row[2] for row in read_all(log) if row[1] == b"k"] == [b"a", b"b", b"c", b"d", b"e"]


def test_the_aborted_list_overlaps_with_what_is_read(log):
    log.config.segment_bytes = 1 << 20
    first = begin(log, 7)
    put(log)
    end(log, 7, commit=False)
    put(log)
    second = begin(log, 7)
    end(log, 7, commit=False)
    third = begin(log, 8)
    end(log, 8, commit=True)
    begin(log, 9)
    assert (first, second, third) == (0, 4, 6)
    assert aborted(log, 0) == [(7, 0), (7, 4)]
    assert aborted(log, 2) == [(7, 0), (7, 4)], "its marker is there"
    assert aborted(log, 3) == [(7, 4)]
    assert aborted(log, 6) == []
    assert aborted(log, 0, 1) == [(7, 0)]
    assert aborted(log, 8) == [], "nothing is read"
    assert log.read(0, 1 << 20).aborted is None


def test_a_transaction_may_have_its_marker_segments_later(log):
    begin(log, 7)
    for _ in range(12):
        put(log)
    begin(log, 8)
    end(log, 7, commit=False)
    put(log)
    end(log, 8, commit=False)
    assert len(log.segments) > 4
    assert [len(segment.aborted) for segment in log.segments[:-2]] == [0] * (len(log.segments) - 2)
    assert aborted(log, 0, 1) == [(7, 0)]
    assert aborted(log, 5, 1) == [(7, 0)]
    assert aborted(log, 13, 1) == [(7, 0), (8, 13)]
    assert read_committed(log) == [row for row in read_all(log) if row[2] == b"plain"]
    check_rebuilt(log)


def test_a_look_up_ends_where_no_later_marker_can_matter(log):
    """An entry of the index says how far the log was stable with it."""
    log.config.segment_bytes = 1 << 20
    begin(log, 7)
    begin(log, 8)
    end(log, 8, commit=False)
    end(log, 7, commit=False)
    entries = list(log.segments[0].aborted)
    assert entries == [AbortedTxn(8, 1, 2, 0), AbortedTxn(7, 0, 3, 4)]
    assert aborted(log, 0, 1) == [(7, 0)]
    found: list[AbortedTxn] = []
    assert log.segments[0].aborted.collect(0, 1, found)
    assert log.segments[0].aborted.collect(0, 4, [])
    assert not log.segments[0].aborted.collect(0, 5, [])


def test_with_syncs_a_decided_transaction_is_stable_when_its_marker_is_synced(tmp_path):
    log = held(PartitionLog(tmp_path / "topic-0", TP, LogConfig(), fsync=FsyncPolicy.ALWAYS, files=Unsynced()))
    put(log)
    begin(log, 7)
    log.flush()
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    end(log, 7, commit=False)
    put(log)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1), "a power cut may take the marker back"
    assert read_committed(log, 0) == [(0, b"k", b"plain")]
    log.flush()
    assert (log.high_watermark, log.last_stable_offset) == (4, 4)
    begin(log, 7)
    end(log, 7, commit=True)
    begin(log, 8)
    log.flush()
    end(log, 8, commit=True)
    assert log.last_stable_offset == 6, "of two decided ones, one is durable"
    check_rebuilt(log)


def test_the_last_stable_offset_is_not_before_the_log(log):
    begin(log, 7)
    for _ in range(5):
        put(log)
    log.delete_records(4)
    assert log.last_stable_offset == 4
    assert log.read(4, 1 << 20, isolation_level=READ_COMMITTED).data == b""
    log.enforce_retention(NOW)
    assert (log.segments[0].base_offset > 0, log.last_stable_offset) == (True, 4)
    again = reopened(log, clean=True)
    assert open_firsts(again.open_transactions()) == [(7, 0)]
    assert end(again, 7, commit=False) == 6
    assert again.last_stable_offset == 7
    assert aborted(again, 4) == [(7, 0)]


def test_times_are_looked_up_before_the_last_stable_offset(log):
    put(log)
    begin(log, 7)
    log.append(batch((b"k", b"v"), timestamp=NOW + 1), now=NOW)
    assert log.offset_for_timestamp(NOW + 1) == (2, NOW + 1)
    assert log.offset_for_timestamp(NOW + 1, READ_COMMITTED) is None
    assert log.max_timestamp(READ_COMMITTED) is None
    assert log.offset_for_timestamp(NOW, READ_COMMITTED) == (0, NOW)
    end(log, 7, commit=True)
    assert log.offset_for_timestamp(NOW + 1, READ_COMMITTED) == (2, NOW + 1)


class Refused(NamedTuple):
    """How a marker can be refused, and the state of the log then."""

    code: ErrorCode
    producer_epoch: int
    coordinator_epoch: int
    leader_epoch: int | None


@pytest.mark.parametrize(
    "case", [Refused(OLD, 0, 9, None), Refused(FENCED, 1, 1, None), Refused(ErrorCode.FENCED_LEADER_EPOCH, 1, 9, 4)]
)
def test_a_refused_marker_is_a_value_and_changes_nothing(log, case):
    log.leader_epoch = 5
    begin(log, 7, epoch=1)
    log.append_marker(TxnMarker(7, 1, True, 2), now=NOW)
    begin(log, 7, epoch=1)
    before = log.log_end_offset, log.producers.encode()
    marker = TxnMarker(7, case.producer_epoch, False, case.coordinator_epoch, 1)
    result = log.append_marker(marker, now=NOW, leader_epoch=case.leader_epoch)
    assert (result.error, result.base_offset, bool(result.message)) == (case.code, -1, True)
    assert (log.log_end_offset, log.producers.encode()) == before


def test_markers_of_a_closed_log_are_refused(log):
    log.abandon()
    result = log.append_marker(TxnMarker(7, 0, True, 0, 2), now=NOW)
    assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_marker_says_where_it_is(log):
    begin(log, 7)
    result = log.append_marker(TxnMarker(7, 1, True, 4, 2), now=NOW + 5)
    assert result == MarkerResult(ErrorCode.NONE, 1, len(log.read(1, 1 << 20).data))
    entry = log.producers.producers[7]
    assert (entry.epoch, entry.coordinator_epoch, entry.last_timestamp) == (1, 4, NOW + 5)
    assert not entry.batches, "the next sequence is 0"
    again = log.append_marker(TxnMarker(7, 1, True, 4, 2), now=NOW)
    assert (again.error, again.base_offset) == (ErrorCode.NONE, 2), "a repeat is written again"


def test_no_entry_is_made_for_what_was_committed_or_empty(log):
    begin(log, 7)
    end(log, 7, commit=True)
    end(log, 7, commit=False)
    end(log, 8, commit=False)
    assert [len(segment.aborted) for segment in log.segments] == [0] * len(log.segments)
    check_rebuilt(log)


def test_a_batch_needs_the_guard_of_the_log(log):
    with pytest.raises(LogError) as refused:
        log.append(sent(7, 0, 0), now=NOW)
    assert refused.value.code is NOT_IN
    guard = log.begin_verification(7, 0, 0, tv2=True, now=NOW)
    first = log.append(sent(7, 0, 0), now=NOW, guard=guard)
    assert log.producers.has_open(7, 0)
    assert log.begin_verification(7, 0, 1, tv2=True, now=NOW) is None
    assert log.append(sent(7, 0, 1), now=NOW).base_offset == first.base_offset + 1
    log.config.transaction_partition_verification_enable = False
    assert log.append(sent(8, 0, 0), now=NOW).base_offset == 2


def test_a_transactional_batch_without_a_producer_id_is_of_no_transaction(log):
    """As in Kafka, where the flag means nothing in that case."""
    log.append(batch((b"a", b"1"), transactional=True), now=NOW)
    assert log.open_transactions() == []
    assert log.last_stable_offset == log.high_watermark == 1
    check_rebuilt(log)


# --- the file of the index -------------------------------------------------------------------------------------------


def three_aborts(log: PartitionLog) -> list[AbortedTxn]:
    log.config.segment_bytes = 1 << 20
    for pid in (7, 8, 9):
        begin(log, pid)
        end(log, pid, commit=False)
    put(log)
    return list(log.segments[0].aborted)


def test_the_file_is_kafkas(log):
    begin(log, 7)
    begin(log, 8)
    end(log, 8, commit=False)
    end(log, 7, commit=False)
    log.close()
    [path] = log.directory.glob("*.txnindex")
    numbers = [(0, 8, 1, 2, 0), (0, 7, 0, 3, 4)]
    expected = b"".join(
        version.to_bytes(2, "big") + b"".join(number.to_bytes(8, "big") for number in rest)
        for version, *rest in numbers
    )
    assert (path.name, path.read_bytes()) == ("00000000000000000000.txnindex", expected)


def test_there_is_no_file_without_entries(log):
    begin(log, 7)
    end(log, 7, commit=True)
    for _ in range(9):
        put(log)
    log.flush()
    log.close()
    assert not list(log.directory.glob("*.txnindex"))


@pytest.mark.parametrize("clean", [True, False])
def test_the_index_is_there_after_a_start(log, clean):
    entries = three_aborts(log)
    again = reopened(log, clean=clean)
    assert list(again.segments[0].aborted) == entries
    check_rebuilt(again)


def entry(producer_id: int, first: int, last: int, stable: int, version: int = 0) -> bytes:
    return version.to_bytes(2, "big") + b"".join(
        number.to_bytes(8, "big", signed=True) for number in (producer_id, first, last, stable)
    )


DAMAGE = {
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "zeros at its end": lambda data: data[:-34] + bytes(34),
    "all zeros": lambda data: bytes(len(data)),
    "another version": lambda data: b"\0\1" + data[2:],
    "not in order": lambda data: data[34:68] + data[:34] + data[68:],
    "one twice": lambda data: data[:34] + data,
    "a marker after the segment": lambda data: data + entry(7, 6, 7, 8),
    "a marker before its batches": lambda data: entry(7, 1, 1, 2) + data[34:],
    "a producer below 0": lambda data: entry(-1, 0, 1, 2) + data[34:],
    "an offset below 0": lambda data: entry(7, -1, 1, 2) + data[34:],
    "stable after its marker": lambda data: entry(7, 0, 1, 3) + data[34:],
    "stable nowhere": lambda data: entry(7, 0, 1, -1) + data[34:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_built_again(log, damage):
    entries = three_aborts(log)
    log.close()
    [path] = log.directory.glob("*.txnindex")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    again = held(PartitionLog.open(log.directory, TP, log.config, now=NOW, clean=True, files=Unsynced()))
    assert list(again.segments[0].aborted) == entries
    check_rebuilt(again)


def test_an_index_in_the_middle_is_built_from_the_snapshot_before_it(log):
    """The transaction begins before the segment whose index is damaged, and the newest snapshot is after it."""
    begin(log, 7)
    while len(log.segments) < 3:
        put(log)
    end(log, 7, commit=False)
    while len(log.segments) < 6:
        put(log)
    begin(log, 8)
    log.flush()
    [segment] = [segment for segment in log.segments if segment.aborted]
    entries = list(segment.aborted)
    assert segment.base_offset > 0
    log.close()
    segment.aborted.path.write_bytes(b"?")
    again = held(PartitionLog.open(log.directory, TP, log.config, now=NOW, clean=True, files=Unsynced()))
    assert segment.aborted.path.stat().st_size == 34, "it is saved before the log is open"
    assert [entry for one in again.segments for entry in one.aborted] == entries
    check_rebuilt(again)


def test_an_index_goes_with_its_segment(log):
    for _ in range(8):
        begin(log, 7)
        end(log, 7, commit=False)
    log.flush()
    assert len(list(log.directory.glob("*.txnindex"))) == len(log.segments) - 1
    log.delete_records(log.segments[2].base_offset)
    log.enforce_retention(NOW)
    left = sorted(int(path.name[:20]) for path in log.directory.glob("*.txnindex"))
    assert left == [segment.base_offset for segment in log.segments[:-1]]


def test_a_marker_that_a_cut_took_is_not_in_the_index(log):
    log.config.segment_bytes = 1 << 20
    begin(log, 7)
    size = log.segments[0].size
    end(log, 7, commit=False)
    log.close()
    with log.segments[0].path.open("r+b") as file:
        file.truncate(size)
    again = held(PartitionLog.open(log.directory, TP, log.config, now=NOW, clean=False, files=Unsynced()))
    assert (again.log_end_offset, again.last_stable_offset) == (1, 0)
    assert not list(log.directory.glob("*.txnindex")), "it would come back beside another marker"
    end(again, 7, commit=True)
    assert aborted(again, 0) == []


def test_an_index_without_a_segment_is_removed(tmp_path):
    store = LogStore.open(tmp_path, now=NOW)
    put(store.create(TP))
    store.close()
    stray = tmp_path / str(TP) / f"{77:020d}.txnindex"
    stray.write_bytes(bytes(34))
    store = LogStore.open(tmp_path, now=NOW)
    assert not stray.exists()
    store.close()
