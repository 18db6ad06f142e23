"""Message sets of magic 0 and 1, converted to record batches: golden bytes, aiokafka as the writer, damage."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from cramjam import lz4
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import BatchTooLargeError, Compression, compress
from muster.protocol.records.message_set import _xxh32, to_batches
from muster.protocol.records.record_batch import check_batch, iter_headers, read_tuples
from tests.support.message_sets import message
from tests.support.written import build_batch

GOLDEN = bytes.fromhex(
    "0000000000000005 00000017 07ef3f2f 00 00 00000001 6b 00000008 6d61676963203020"
    "0000000000000007 00000020 01d47be6 01 08 0000018bcfe56800 ffffffff 0000000a 6c6f6720617070656e64"
)
"""Offset 5, magic 0; offset 7, magic 1 with LogAppendTime and no key."""

NONE, GZIP, SNAPPY, LZ4 = range(4)
blob = st.none() | st.binary(max_size=40)
every_kind = pytest.mark.parametrize(
    ("magic", "codec"), [(0, NONE), (0, GZIP), (0, SNAPPY), (1, NONE), (1, GZIP), (1, SNAPPY), (1, LZ4)]
)
messages = st.lists(st.tuples(st.integers(0, 2**42), blob, blob), min_size=1, max_size=12)


def gzipped(data):
    return compress(Compression.GZIP, data)


def read(records):
    """The contents of the batches, each of them checked, as (offset, timestamp, key, value), and the error after
    them."""
    made, error = to_batches(records)
    found = []
    for position, header in iter_headers(made):
        check_batch(made, position, header)
        assert header.partition_leader_epoch == -1
        found += [(*record[:4], header.timestamp_type) for record in read_tuples(made, position, header)]
    return found, error


def size_of(records):
    return int.from_bytes(records[8:12], "big")


def written(magic, codec, records):
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, (timestamp, key, value) in enumerate(records):
        assert builder.append(offset, timestamp, key, value) is not None
    built = bytearray(builder.build())
    if codec and magic:  # a broker gives the wrapper the offset of the last message inside
        struct.pack_into(">q", built, 0, len(records) - 1)
    return bytes(built)


def test_a_set_of_both_magics_byte_for_byte():
    assert read(GOLDEN) == ([(5, -1, b"k", b"magic 0 ", 0), (7, 1_700_000_000_000, None, b"log append", 1)], None)


@every_kind
@given(records=messages)
def test_what_another_client_writes_is_read(magic, codec, records):
    found, error = read(written(magic, codec, records))
    times = [timestamp if magic else -1 for timestamp, _, _ in records]
    assert error is None
    assert [record[1:] for record in found] == [
        (time, key, value, 0) for time, (_, key, value) in zip(times, records, strict=True)
    ]
    assert [record[0] for record in found] == list(range(len(records)))


@every_kind
@given(data=st.data())
def test_a_flipped_bit_is_an_error_at_its_message_and_never_another_record(magic, codec, data):
    good = written(magic, codec, [(7, b"k", b"value"), (8, None, b"another")])
    whole = read(good)[0]
    second = 12 + size_of(good)
    # No CRC covers an offset. With another magic it is mistaken for a batch, which its reader refuses.
    other = {16, *range(second, second + 8), second + 16}
    at = data.draw(st.integers(12, len(good) - 1).filter(lambda place: place not in other))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    found, error = read(bytes(bad))
    assert found == whole[: len(found)]
    assert error is not None or len(found) < len(whole)


def test_offsets_in_a_wrapper_of_magic_1_count_back_from_its_own():
    inner = message(0, b"a", magic=1, timestamp=3) + message(2, b"b", magic=1, timestamp=4)
    wrapper = message(102, gzipped(inner), magic=1, attributes=GZIP, timestamp=4)
    assert read(wrapper) == ([(100, 3, None, b"a", 0), (102, 4, None, b"b", 0)], None)


def test_a_wrapper_with_the_brokers_time_gives_it_to_all_inside():
    inner = message(0, b"a", magic=1, timestamp=3) + message(1, b"b", magic=1, timestamp=4)
    wrapper = message(9, gzipped(inner), magic=1, attributes=GZIP | 8, timestamp=99)
    assert read(wrapper) == ([(8, 99, None, b"a", 1), (9, 99, None, b"b", 1)], None)


def test_the_brokers_time_of_each_message_inside_a_wrapper_is_its_own():
    times = [3, 3, 4, 3]
    inner = b"".join(message(at, b"v", magic=1, timestamp=time, attributes=8) for at, time in enumerate(times))
    wrapper = message(9, gzipped(inner), magic=1, attributes=GZIP, timestamp=5)
    assert read(wrapper) == ([(6 + at, time, None, b"v", 1) for at, time in enumerate(times)], None)


def test_offsets_in_a_wrapper_of_magic_0_are_absolute():
    wrapper = message(31, gzipped(message(30, b"a") + message(31, b"b")), attributes=GZIP)
    assert read(wrapper) == ([(30, -1, None, b"a", 0), (31, -1, None, b"b", 0)], None)


@pytest.mark.parametrize("gap", [2**31 - 1, 2**31, 2**40])
def test_offsets_of_one_wrapper_may_be_far_apart(gap):
    offsets = [7, 7 + gap, 8 + gap, 8 + 2 * gap]
    wrapper = message(offsets[-1], gzipped(b"".join(message(at, b"v") for at in offsets)), attributes=GZIP)
    found, error = read(wrapper)
    assert ([offset for offset, *_ in found], error) == (offsets, None)


def test_lz4_of_magic_0_has_a_wrong_checksum_of_its_header():
    frame = bytearray(bytes(lz4.compress(message(0, b"a"))))
    end = 6 + (8 if frame[4] & 8 else 0)
    assert frame[end] == _xxh32(bytes(frame[4:end])) >> 8 & 0xFF  # cramjam's checksum is correct
    frame[end] = _xxh32(bytes(frame[:end])) >> 8 & 0xFF if end < 16 else frame[end] ^ 0xFF
    assert read(message(0, bytes(frame), attributes=LZ4)) == ([(0, -1, None, b"a", 0)], None)


def test_a_last_message_that_is_cut_off_is_left_out():
    for size in range(len(GOLDEN) - 1, 35, -1):
        found, error = read(GOLDEN[:size])
        assert (len(found), error) == (1, None)
    assert read(GOLDEN[:34]) == ([], None)


def test_batches_after_sets_stay_as_they_are():
    batch = bytes(build_batch([(5, b"k", b"v", [])], base_offset=8, leader_epoch=3))
    made, error = to_batches(GOLDEN + batch)
    assert error is None
    assert made.endswith(batch)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (message(8, None, attributes=GZIP), "has no value"),
        (message(8, gzipped(b""), attributes=GZIP), "is empty"),
        (message(8, b"not gzip", attributes=GZIP), "gzip"),
        (message(8, b"x", attributes=4), "unknown compression type 4"),
        (message(8, gzipped(message(8, b"v")[:-1]), attributes=GZIP), "ends within a message"),
        (message(8, gzipped(message(8, b"v", magic=1)), attributes=GZIP), "another magic"),
        (message(8, gzipped(message(8, gzipped(message(8, b"v")), attributes=GZIP)), attributes=GZIP), "compressed"),
        (message(7, b"v"), "offset 7, after one with 7"),
        (message(9, gzipped(message(8, b"v") + message(8, b"v")), attributes=GZIP), "offset 8, after one with 8"),
        (message(7, gzipped(message(0, b"", magic=1) + message(9, b"", magic=1)), magic=1, attributes=1), "offset -2"),
        (struct.pack(">qi", 8, 13) + bytes(13), "13 bytes"),
        (struct.pack(">qi", 8, -5) + bytes(20), "-5 bytes"),
        (message(8, b"v")[:-1] + b"w", "crc"),
        (message(8, None)[:22] + struct.pack(">i", 5) + message(8, None)[26:], "crc"),
    ],
)
def test_what_makes_no_sense_ends_the_set_there(broken, why):
    found, error = read(GOLDEN + broken + GOLDEN)
    assert len(found) == 2
    assert isinstance(error, CorruptRecordError)
    assert why in str(error)


@pytest.mark.parametrize("length", [-2, 9, 2**31 - 1])
def test_a_field_is_as_long_as_it_can_be(length):
    body = struct.pack(">bbi", 0, 0, length) + struct.pack(">i", -1)
    broken = struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body
    assert f"a field of {length} bytes" in str(read(broken)[1])


def test_bytes_after_the_value_are_refused():
    body = message(0, b"v")[16:] + b"more"
    broken = struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body
    assert "after its value" in str(read(broken)[1])


def test_what_decompresses_to_more_than_is_allowed_is_refused():
    made, error = to_batches(message(0, gzipped(message(0, bytes(100_000))), attributes=GZIP), max_size=50_000)
    assert made == b""
    assert isinstance(error, BatchTooLargeError)
