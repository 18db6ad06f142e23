"""Walking through records finds the same as decoding them, in runs and one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.errors import CorruptRecordError
from muster.log.batches.record_walk import (
    MAX_ERRORS,
    BadRecord,
    RecordLengthError,
    RecordRules,
    find_by_timestamp,
    walk,
)
from muster.protocol.records import record_runs
from muster.protocol.records.record_batch import HEADER_SIZE, BatchBuilder, read_header, read_tuples
from muster.protocol.records.varints import varint
from tests.support.written import build_batch

NOW = 1_700_000_000_000
ANY = RecordRules(False, -(1 << 63), (1 << 63) - 1)

alike = st.tuples(
    st.integers(1, 300), st.none() | st.integers(0, 20), st.none() | st.integers(0, 200), st.integers(0, 3000)
)
"""Number, bytes of key and value, and milliseconds between two: the properties that make records alike."""

odd = st.tuples(
    st.integers(-5000, 5000),
    st.none() | st.binary(max_size=70),
    st.none() | st.binary(max_size=70),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
)
pieces = st.lists(st.one_of(alike, odd), min_size=1, max_size=6)


def build(given_pieces: list[Any], base: int = NOW) -> bytes:
    records = []
    time = base
    for piece in given_pieces:
        if len(piece) == 4 and isinstance(piece[3], list):
            delta, key, value, headers = piece
            records.append((time + delta, key, value, headers))
        else:
            count, key_size, value_size, step = piece
            for _ in range(count):
                time += step
                key = None if key_size is None else b"k" * key_size
                records.append((time, key, None if value_size is None else b"v" * value_size, []))
    return bytes(build_batch(records))


@settings(deadline=None)
@given(pieces)
@example([(2000, 1, 1, 1)])
@example([(500, 1, 1, 100)])
@example([(9000, 1, 1, 0)])
@example([(300, None, 3, 7)])
@example([(300, 3, 3, 7), (-1, b"kkk", b"vvv", []), (300, 3, 3, 7)])
def test_a_batch_that_is_as_it_says(given_pieces):
    batch = build(given_pieces)
    header = read_header(batch)
    found = walk(batch[HEADER_SIZE:], header, ANY)
    decoded = read_tuples(batch)
    assert found.max_timestamp == max(time for _, time, *_ in decoded) == header.max_timestamp
    assert (found.in_sequence, found.bad, found.bad_count) == (True, [], 0)
    bounds = RecordRules(True, NOW, NOW + 4000)
    bad = [
        BadRecord(at, at, None if key is None else time)
        for at, (_, time, key, *_) in enumerate(decoded)
        if key is None or not bounds.earliest <= time <= bounds.latest
    ]
    found = walk(batch[HEADER_SIZE:], header, bounds)
    assert (found.bad, found.bad_count) == (bad[:MAX_ERRORS], len(bad))


@settings(deadline=None)
@given(pieces, st.data())
def test_a_broken_batch_is_refused_if_it_cannot_be_read(given_pieces, data):
    batch = bytearray(build(given_pieces))
    for _ in range(data.draw(st.integers(1, 2))):
        batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    header = read_header(batch)
    try:
        decoded = read_tuples(batch, 0, header)
    except CorruptRecordError:
        with pytest.raises(CorruptRecordError):
            walk(bytes(batch[HEADER_SIZE:]), header, ANY)
        return
    try:
        found = walk(bytes(batch[HEADER_SIZE:]), header, ANY)
    except CorruptRecordError:
        return  # Kafka's limits for numbers are narrower in places
    assert found.in_sequence == ([offset for offset, *_ in decoded] == list(range(len(decoded))))
    if all(-(1 << 63) <= time < 1 << 63 for _, time, *_ in decoded):
        assert found.max_timestamp == max(time for _, time, *_ in decoded)


def verdict(data: bytes | memoryview, header: Any) -> Any:
    try:
        return walk(data, header, ANY)
    except CorruptRecordError as error:
        return type(error)


def singly(data: bytes, header: Any) -> Any:
    """What the walk finds record by record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_runs, "WORTH_IT", 1 << 40)
        return verdict(data, header)


@pytest.mark.parametrize("rules", [RecordRules(False, NOW + 90, NOW + 1000), RecordRules(False, NOW, NOW + 90)])
@pytest.mark.parametrize("first", [64, 91, 119])
def test_each_time_in_a_run_is_held_against_the_bounds(rules, first):
    times = [NOW + first, *[NOW + 70 + number % 40 for number in range(100)], NOW + 90]
    builder = BatchBuilder(NOW)
    for time in times:
        builder.append(time, b"k", b"v")
    batch = builder.build()
    bad = [BadRecord(at, at, time) for at, time in enumerate(times) if not rules.earliest <= time <= rules.latest]
    assert walk(bytes(batch[HEADER_SIZE:]), read_header(batch), rules) == (max(times), True, bad, len(bad))


steps = st.lists(st.sampled_from([0, 0, 0, 1, 40, 9000, -1]), min_size=1, max_size=20)
"""Milliseconds between two records, repeated: runs with one time, and with times of one, two and three bytes."""


@settings(deadline=None)
@given(st.integers(17, 400), st.integers(0, 3), st.integers(0, 130), steps, st.data())
@example(8400, 0, 1, [0], None)
@example(8400, 1, 1, [1], None)
@example(400, 0, 1, [1] * 10 + [-1] * 9, None)
def test_runs_are_judged_as_single_records(count, key_size, value_size, steps, data):
    time = NOW
    records: list[Any] = []
    for index in range(count):
        time += steps[index % len(steps)]
        records.append((time, b"k" * key_size, b"v" * value_size, []))
    batch = bytearray(build_batch(records))
    record = (len(batch) - HEADER_SIZE) // count
    for _ in range(data.draw(st.integers(0, 2)) if data is not None else 0):
        # Near the beginning of a record, where its numbers are.
        at = HEADER_SIZE + data.draw(st.integers(0, count - 1)) * record + data.draw(st.integers(0, 12))
        batch[min(at, len(batch) - 1)] ^= data.draw(st.sampled_from([1, 2, 4, 0x40, 0x80, 0xFF]))
    header = read_header(batch)
    expected = singly(bytes(batch[HEADER_SIZE:]), header)
    assert verdict(bytes(batch[HEADER_SIZE:]), header) == expected
    assert verdict(memoryview(batch)[HEADER_SIZE:], header) == expected


@pytest.mark.parametrize("at", [0, 1, 17, 63, 64, 65, 1000, 8191, 8192, 9999])
@pytest.mark.parametrize("where", [0, 1, 4, 6, 8])
def test_one_byte_among_many_records_that_are_alike(at, where):
    """Every byte that encodes a length, changed in one of ten thousand records."""
    builder = BatchBuilder()
    for _ in range(10_000):
        builder.append(NOW, b"k", b"v")
    batch = builder.build()
    data = bytearray(batch[HEADER_SIZE:])
    start = sum(9 + (n >= 64) + (n >= 8192) for n in range(at))
    position = start + where + (where > 2) * ((at >= 64) + (at >= 8192))
    data[position] ^= 0x04
    header = read_header(batch)
    if where == 1:  # the record's attributes mean nothing
        walk(bytes(data), header, ANY)
    else:
        with pytest.raises(CorruptRecordError):
            walk(bytes(data), header, ANY)


@pytest.mark.parametrize("at", [1, 30, 63, 64, 100, 8191, 8192])
@pytest.mark.parametrize("mask", [0x02, 0x40])
@pytest.mark.parametrize("form", [bytes, memoryview])
def test_one_offset_out_of_sequence_among_many_records_that_are_alike(at, mask, form):
    builder = BatchBuilder()
    for _ in range(8_300):
        builder.append(NOW, b"k", b"v")
    batch = builder.build()
    data = bytearray(batch[HEADER_SIZE:])
    offset = sum(9 + (n >= 64) + (n >= 8192) for n in range(at)) + 3
    data[offset] ^= mask
    found = walk(form(data), read_header(batch), ANY)
    assert found == (NOW, False, [], 0)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_offsets_that_count_up_from_another_than_the_first(count):
    builder = BatchBuilder()
    for offset in range(count):
        builder.append_at(7 + offset, NOW, b"k", b"v")
    batch = builder.build()
    assert walk(bytes(batch[HEADER_SIZE:]), read_header(batch), ANY) == (NOW, False, [], 0)


@pytest.mark.parametrize("at", [1, 30, 63, 64, 100, 8191, 8192])
@pytest.mark.parametrize("form", [bytes, memoryview])
@pytest.mark.parametrize("later", [0, 1])
def test_one_number_that_ends_elsewhere_among_many_that_are_alike(at, form, later):
    """In the offset and in the time: the bytes after it would be read as another number."""
    for place in (2, 3):
        builder = BatchBuilder(NOW)
        for number in range(8_300):
            builder.append(NOW + number % 50 * later, b"k", b"v")
        batch = builder.build()
        data = bytearray(batch[HEADER_SIZE:])
        data[sum(9 + (n >= 64) + (n >= 8192) for n in range(at)) + place] ^= 0x80
        with pytest.raises(CorruptRecordError):
            walk(form(data), read_header(batch), ANY)


@pytest.mark.parametrize("count", [1, 50])
def test_a_length_of_six_bytes_is_not_valid_however_many_records_have_it(count):
    records = []
    # The size of each: if its length were read as two bytes, the next record would begin there.
    for offset in range(count):
        record = b"\0\0" + varint(offset) + b"\x02k" + varint(342) + b"v" * 342 + b"\0"
        low, high = varint(len(record))
        records.append(bytes((low, high | 0x80, 0x80, 0x80, 0x80, 0)) + record)
    header = read_header(build([(count, 1, 1, 0)]))
    with pytest.raises(RecordLengthError):
        walk(b"".join(records), header, ANY)


@pytest.mark.parametrize("count", [9_999, 10_001])
def test_a_count_that_is_wrong(count):
    batch = build([(10_000, 1, 1, 0)])
    with pytest.raises(CorruptRecordError):
        walk(batch[HEADER_SIZE:], read_header(batch)._replace(record_count=count), ANY)


@settings(deadline=None)
@given(pieces, st.integers(-6000, 6000), st.integers(0, 10))
def test_the_first_record_of_a_time(given_pieces, delta, start):
    batch = build(given_pieces)
    matching = ((offset, time) for offset, time, *_ in read_tuples(batch) if time >= NOW + delta and offset >= start)
    assert find_by_timestamp(batch, NOW + delta, start) == next(matching, None)
