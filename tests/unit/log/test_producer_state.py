"""What a partition remembers about idempotent producers: a table, and a life with restarts; nothing is written
twice."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.errors import ErrorCode
from muster.log import LogConfig, LogError, LogStore
from muster.log.producers.producer_state import PartitionProducers
from muster.model import TopicPartition
from muster.protocol.records.record_batch import BatchHeader, read_header, set_producer
from tests.support.logs import NOW, batch, read_all, read_headers
from tests.support.scale import examples

TP = TopicPartition("topic", 0)
LAST = 2**31 - 1
OLD, GAP = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def header(
    sequence: int, count: int = 2, epoch: int = 1, *, offset: int = 0, control: bool = False, time: int = NOW
) -> BatchHeader:
    """A batch of producer 7."""
    records = [(b"k", b"v")] * count
    options = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence, "base_offset": offset}
    return read_header(batch(*records, timestamp=time, control=control, **options))


def state(*written: BatchHeader) -> PartitionProducers:
    """What is remembered after these batches."""
    found = PartitionProducers()
    for one in written:
        found.note(one)
    return found


def reported(found: PartitionProducers, sent: BatchHeader) -> object:
    """The offset of the batch that it repeats, None if it is written, or the error code of its refusal."""
    try:
        duplicate = found.check(sent)
    except LogError as error:
        return error.code
    return None if duplicate is None else duplicate.first_offset


SIX = [header(2 * at, offset=100 + 2 * at) for at in range(6)]
AROUND = [header(LAST - 2, 2, offset=10), header(LAST, 3, offset=12), header(2, 1, offset=15)]
ANEW = [*SIX, header(0, 3, epoch=2, offset=112)]
FENCED = [*SIX, header(-1, 1, epoch=2, offset=112, control=True)]
WITHOUT = [header(0, epoch=-1, offset=10)]
MARKED = [*SIX, header(-1, 1, offset=112, control=True)]

TABLE = [
    ("the next", SIX, header(12), None),
    ("the last again", SIX, SIX[5], 110),
    ("the second of six again", SIX, SIX[1], 102),
    ("the first of six again: five are known", SIX, SIX[0], GAP),
    ("a gap", SIX, header(13), GAP),
    ("the first half of one", SIX, header(10, 1), GAP),
    ("one that begins as another, and is longer", SIX, header(10, 3), GAP),
    ("one that ends as another, and is shorter", SIX, header(11, 1), GAP),
    ("of an epoch before", SIX, header(12, epoch=0), OLD),
    ("the last again, of an epoch before", SIX, header(10, epoch=0), OLD),
    ("a new epoch", SIX, header(0, epoch=2), None),
    ("an epoch far ahead", SIX, header(0, epoch=9), None),
    ("a new epoch that does not begin", SIX, header(12, epoch=2), GAP),
    ("across the largest, again", AROUND, AROUND[1], 12),
    ("behind the largest", AROUND, header(3), None),
    ("behind the largest, and the smallest is next", [header(LAST, 1)], header(0), None),
    ("behind the largest, and none of them is skipped", [header(LAST, 1)], header(1), GAP),
    ("sequences do not begin again before the largest", [header(LAST - 2, 2)], header(0), GAP),
    ("numbers of the new epoch are none of the old", ANEW, header(0, 2, epoch=2), GAP),
    ("the first of the new epoch, again", ANEW, ANEW[-1], 112),
    ("the next of the new epoch", ANEW, header(3, epoch=2), None),
    ("late, with the old numbers", ANEW, header(12), OLD),
    ("behind a marker", MARKED, header(12), None),
    ("again, behind a marker", MARKED, SIX[5], 110),
    ("fenced by a marker", FENCED, header(12), OLD),
    ("the next epoch after a marker raised it", FENCED, header(0, epoch=2), None),
    ("the next epoch does not continue the old numbers", FENCED, header(12, epoch=2), GAP),
    ("of a producer that is not known", [], header(41), None),
    ("of a producer that is not known, without an epoch", [], header(41, epoch=-1), None),
    ("of a producer that is not known, below an epoch", [], header(0, epoch=-2), OLD),
    ("without an epoch: the next", WITHOUT, header(2, epoch=-1), None),
    ("without an epoch: a gap", WITHOUT, header(5, epoch=-1), None),
    ("without an epoch: the last again", WITHOUT, header(0, epoch=-1), 10),
    ("without an epoch: below it", WITHOUT, header(2, epoch=-2), OLD),
    ("without an epoch: the first epoch", WITHOUT, header(0, epoch=0), None),
    ("without an epoch: the first epoch, at any sequence", WITHOUT, header(7, epoch=0), None),
    ("no epoch any more", SIX, header(12, epoch=-1), OLD),
]


@pytest.mark.parametrize(("written", "sent", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_becomes_of_a_batch(written, sent, expected):
    assert reported(state(*written), sent) == expected


@pytest.mark.parametrize(("written", "sent", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_becomes_of_a_batch_after_a_snapshot(written, sent, expected):
    assert reported(PartitionProducers.decode(state(*written).encode()), sent) == expected


def test_a_producer_is_forgotten_by_its_last_batch():
    found = state(header(0), header(2, time=NOW + 1_000))
    found.expire(NOW + 10_999, 10_000)
    assert reported(found, header(4)) is None
    assert reported(found, header(5)) is GAP
    found = PartitionProducers.decode(found.encode())
    found.expire(NOW + 10_999, 10_000)
    assert reported(found, header(5)) is GAP
    found.expire(NOW + 11_000, 10_000)
    assert reported(found, header(5)) is None
    assert not found.producers


# --- a life ----------------------------------------------------------------------------------------------------------

ACTS = st.lists(
    st.sampled_from(("send", "send", "send", "repeat", "repeat", "bump", "stop", "crash", "flush")), max_size=40
)


def open_store(folder: Path) -> LogStore:
    """Segments hold about three batches."""
    return LogStore.open(folder, now=NOW, configs=lambda _: LogConfig(segment_bytes=300), partitions=[TP])


@example(["send", "stop", "send", "crash", "repeat"] * 8, 0, Random(1))
@example(["send"] * 5 + ["flush", "send", "crash"] + ["repeat"] * 9, 0, Random(1))
@example(["send"] * 7 + ["stop"] + ["repeat"] * 9, LAST - 5, Random(1))
@settings(max_examples=examples(25))
@given(acts=ACTS, begin=st.sampled_from((0, LAST - 5)), choose=st.randoms(use_true_random=False))
def test_the_last_five_batches_are_known_again_whatever_happened_since(acts, begin, choose):
    """Even after a stop or a crash: with one copy of each partition, a producer repeats the batches that were in
    flight."""
    with TemporaryDirectory() as name:
        store = open_store(Path(name))
        log = store.create(TP)
        sent: deque[tuple[bytes, int]] = deque(maxlen=5)
        epoch, sequence, values = 0, begin, 0
        for act in acts:
            if act == "send":
                count = choose.randint(1, 3)
                data = batch(*((b"k", b"%d" % (values + at)) for at in range(count)))
                set_producer(data, 0, 7, epoch, sequence)
                sent.append((bytes(data), values))
                assert log.append(data, now=NOW).base_offset == values
                sequence, values = (sequence + count) & LAST, values + count
            elif act == "repeat" and sent:
                data, offset = choose.choice(sent)
                found = log.append(bytearray(data), now=NOW)
                assert (found.duplicate, found.base_offset) == (True, offset)
            elif act == "bump":
                epoch, sequence = epoch + 1, 0
                sent.clear()
            elif act == "flush":
                store.flush()
            elif act in ("stop", "crash"):
                store.close(clean=act == "stop")
                store = open_store(Path(name))
                log = store.logs[TP]
        assert [(at, int(value or b"")) for at, _, value in read_all(log)] == [(at, at) for at in range(values)]
        assert {one.producer_id for one in read_headers(log)} <= {7}
        store.close()
