"""Records read many at a time: always the same as the loop over single records reads, even if they are damaged."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.errors import CorruptRecordError
from muster.protocol.records import record_runs
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import BatchBuilder, Record, read_header, read_records, record_bytes
from muster.protocol.records.record_decode import _one_by_one, decode_records
from muster.protocol.records.record_runs import WORTH_IT, find_run
from muster.protocol.records.varints import varint

BASE = 1_700_000_000_000

fields = st.none() | st.sampled_from([b"", b"k", b"12345678", b"v" * 63, b"v" * 64, b"v" * 100, b"v" * 8_200])
headers = st.sampled_from([(), (), (), (("name", b"value"),), (("", None),)])
alike = st.tuples(
    st.integers(1, 90),  # how many in a row
    fields,
    fields,
    headers,
    st.sampled_from([1, 1, 1, 2, 3]),  # from one offset to the next
    st.sampled_from([0, 0, 1, 7, 200, 20_000, -3]),  # and from one time to the next
)
batches = st.lists(alike, min_size=1, max_size=5)
starts = st.sampled_from([0, 1, 60, 8_100, 8_191, 8_192, (1 << 20) - 40])


def batch_of(parts, start=0, time=BASE, **more):
    builder = BatchBuilder(BASE)
    offset = start
    for count, key, value, names, step, later in parts:
        for _ in range(count):
            builder.append_at(offset, time, key, value, names)
            offset, time = offset + step, time + later
    return builder.build(base_offset=5, **more)


def reported(decode, data, header):
    """What a decoder returns for records: all their fields, or its error."""
    records = [Record.__new__(Record) for _ in range(header.record_count)]
    try:
        decode(data, header, records)
    except (CorruptRecordError, IndexError) as error:
        return type(error), str(error)
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def singly(data, header, records):
    position = _one_by_one(data, 0, header, records)
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes left after the last record")


@given(batches, starts, st.sampled_from([None, BASE + 99]), st.sampled_from(list(Compression)))
@settings(deadline=None)
def test_runs_are_what_single_records_are(parts, start, append_time, codec):
    batch = batch_of(parts, start, log_append_time=append_time, compression=codec)
    header = read_header(batch)
    data = record_bytes(batch, 0, header)
    assert reported(decode_records, data, header) == reported(singly, data, header)


@given(batches, st.data())
@settings(deadline=None)
def test_damage_is_reported_as_by_the_loop_over_single_records(parts, choice):
    batch = batch_of(parts)
    header = read_header(batch)
    damaged = bytearray(record_bytes(batch, 0, header))
    for _ in range(choice.draw(st.integers(1, 3))):
        damaged[choice.draw(st.integers(0, len(damaged) - 1))] = choice.draw(st.integers(0, 255))
    data = bytes(damaged[: choice.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))])
    assert reported(decode_records, data, header) == reported(singly, data, header)


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, b"", b"\0", b"12345678"])
@pytest.mark.parametrize("value", [None, b"", b"v" * 9, b"v" * 100])
@pytest.mark.parametrize("late", [0, 100])
def test_every_flipped_bit_is_reported_as_by_the_loop_over_single_records(key, value, late):
    batch = batch_of([(6, key, value, (), 1, 1), (5, key, value, (), 1, 9)], time=BASE + late)
    header = read_header(batch)
    good = record_bytes(batch, 0, header)
    assert find_run(good, 0, header.record_count) is not None
    for place in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[place] ^= 1 << bit
            assert reported(decode_records, bytes(data), header) == reported(singly, bytes(data), header)


@pytest.mark.parametrize(
    ("parts", "start", "counts"),
    [
        ([(200, b"k", b"v", (), 1, 0)], 0, [64, 136]),
        ([(200, None, b"v", (), 1, 0)], 8_100, [92, 108]),
        ([(200, b"k", None, (), 1, 0)], (1 << 20) - 40, [40, 160]),
        ([(50, b"k", b"v", (), 1, 0), (50, b"kk", b"v", (), 1, 0)], 100, [50, 50]),
        ([(50, b"k", b"v", (), 1, 2)], 100, [32, 18]),
        ([(50, b"k", b"v", (), 1, 7_000)], 100, []),
        ([(20, b"k", b"v", (), 1, 0), (20, b"k", b"v", (), 2, 0)], 0, [21]),
        ([(5, b"k", b"v", (), 1, 0), (1, b"k", b"v", (), 8_193, 0), (7, b"k", b"v", (), 1, 0)], 20_000, [6, 7]),
        ([(50, b"k", b"v", (("n", b""),), 1, 0)], 0, []),
        ([(WORTH_IT - 1, b"k", b"v", (), 1, 0)], 0, []),
    ],
)
def test_how_far_runs_go(parts, start, counts):
    batch = batch_of(parts, start)
    header = read_header(batch)
    data = record_bytes(batch, 0, header)
    position, left, found = 0, header.record_count, []
    while (run := find_run(data, position, left)) is not None:
        position, left = run.end, left - run.records
        found.append(run.records)
    assert found == counts


@pytest.mark.parametrize("count", [WORTH_IT - 1, WORTH_IT, 64, 65, 99, 101])
def test_another_count_than_there_are_records_is_reported_as_by_the_loop(count):
    batch = batch_of([(100, b"k", b"v", (), 1, 0)])
    header = read_header(batch)._replace(record_count=count)
    data = record_bytes(batch, 0, header)
    said = reported(decode_records, data, header)
    assert said == reported(singly, data, header)
    assert said[0] in (CorruptRecordError, IndexError)


@example([b"k", b"kk"])
@given(st.lists(st.binary(max_size=3), min_size=1, max_size=4))
def test_a_shape_that_was_met_does_for_the_next_batch_and_no_other(keys):
    # Records that begin with the same bytes and have the same length, but are divided differently.
    for key in keys:
        batch = batch_of([(70, key, b"v" * (10 - len(key)), (), 1, 0)])
        assert {(r.key, r.value) for r in read_records(batch)} == {(key, b"v" * (10 - len(key)))}


def test_shapes_are_not_kept_without_end(monkeypatch):
    kept: dict[object, object] = {}
    monkeypatch.setattr(record_runs, "_shapes", kept)
    for size in range(600):
        read_records(batch_of([(WORTH_IT, None, bytes(size), (), 1, 0)]))
        assert 0 < len(kept) <= 256


def test_numbers_that_are_longer_than_they_need_be():
    # No client writes them; they are read anyway.
    records = []
    for offset in range(10):
        body = b"\0" + b"\x82\x80\0" + varint(offset)[:-1] + bytes((varint(offset)[-1] | 0x80, 0)) + b"\x02k\x02v\0"
        records.append(bytes((varint(len(body))[0] | 0x80, 0)) + body)
    header = read_header(batch_of([(10, b"k", b"v", (), 1, 0)]))
    data = b"".join(records)
    assert find_run(data, 0, 10) is not None
    assert [offset for offset, *_ in reported(decode_records, data, header)] == list(range(5, 15))
    assert reported(decode_records, data, header) == reported(singly, data, header)
