"""Record batches: against bytes from Kafka's own Java, against two other Python implementations, and against damage."""

import copy
import pickle
import struct
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchBuilder,
    Record,
    UnsupportedMagicError,
    check_batch,
    iter_headers,
    read_header,
    read_records,
    read_tuples,
    set_times,
)
from muster.protocol.records.varints import read_varint, varint
from tests.support.java_batches import BATCHES, RECORDS
from tests.support.memory_log import assign_offset
from tests.support.scale import examples
from tests.support.written import build_batch

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

CODECS = list(Compression)
WITHOUT_PACKAGES = [Compression.NONE, Compression.GZIP]  # what kafka-python can do with Python alone
LOG_APPEND_TIME_OF_JAVA = read_header(BATCHES["append_time"]).max_timestamp

payloads = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), payloads), max_size=3)
timestamps = st.integers(0, 2**42)
fields = st.tuples(timestamps, payloads, payloads, headers)


def tuples_of(batch):
    header = read_header(batch)
    check_batch(batch, 0, header)
    return read_tuples(batch, 0, header)


def patched(batch, position, value, *, fix_crc=True):
    """`batch` with some bytes replaced and a matching CRC, so that only the other checks can find the damage."""
    damaged = bytearray(batch)
    damaged[position : position + len(value)] = value
    if fix_crc:
        struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
    return damaged


# ------------------------------------------------------------------------------------------------- Kafka's own bytes


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd", "idempotent", "transactional"])
def test_reads_what_java_wrote(name):
    base = read_header(BATCHES[name]).base_offset
    assert tuples_of(BATCHES[name]) == [(base + at, *record) for at, record in enumerate(RECORDS)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("none", {"leader_epoch": 7}),
        ("idempotent", {"producer_id": 4242, "producer_epoch": 3, "base_sequence": 2147483646}),
        ("transactional", {"producer_id": 4242, "producer_epoch": 3, "base_sequence": 0, "transactional": True}),
        ("lz4", {"leader_epoch": 7, "base_offset": 5, "compression": Compression.LZ4}),
    ],
)
def test_builds_what_java_builds_byte_for_byte(name, arguments):
    assert build_batch(RECORDS, **arguments).hex() == BATCHES[name].hex()


def test_header_of_an_idempotent_batch_and_its_sequence_that_wraps():
    header = read_header(BATCHES["idempotent"])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4242, 3, 2147483646)
    assert header.last_sequence == 1
    assert header.has_producer_id
    assert not header.is_transactional
    assert read_header(BATCHES["none"]).last_sequence == -1


def test_flags_of_transactional_and_control_batches():
    assert read_header(BATCHES["transactional"]).is_transactional
    control = read_header(BATCHES["control"])
    assert control.is_control
    assert control.is_transactional
    [record] = read_records(BATCHES["control"])
    assert (record.offset, record.key) == (33, struct.pack(">hh", 0, 1))


def test_log_append_time_overrides_the_records_own_times():
    header = read_header(BATCHES["append_time"])
    assert header.timestamp_type == 1
    assert [record.timestamp for record in read_records(BATCHES["append_time"])] == [LOG_APPEND_TIME_OF_JAVA] * 4


def test_setting_the_log_append_time_gives_javas_bytes():
    batch = build_batch(RECORDS, base_offset=9)
    set_times(batch, 0, read_header(batch), LOG_APPEND_TIME_OF_JAVA, True)
    assert batch.hex() == BATCHES["append_time"].hex()


def test_setting_the_times_clears_what_is_not_known_and_keeps_the_rest():
    batch = patched(build_batch(RECORDS, transactional=True, control=True), 21, b"\x7f\xf8")
    for append, attributes in ((True, 0x78), (False, 0x70)):
        set_times(batch, 0, read_header(batch), 12_345, append)
        header = read_header(batch)
        check_batch(batch, 0, header)
        assert (header.attributes, header.max_timestamp) == (attributes, 12_345)


@pytest.mark.parametrize(("producer_id", "has"), [(-1, False), (0, True), (7, True)])
def test_producer_ids_begin_at_0(producer_id, has):
    assert read_header(build_batch(RECORDS, producer_id=producer_id)).has_producer_id is has


def test_old_message_sets_are_refused_by_name():
    with pytest.raises(UnsupportedMagicError, match="magic 1"):
        read_header(BATCHES["magic1"])
    with pytest.raises(UnsupportedMagicError, match="magic 1"):
        list(iter_headers(BATCHES["magic1"]))
    with pytest.raises(UnsupportedMagicError, match="unknown magic 3"):
        read_header(patched(BATCHES["none"], 16, b"\x03"))


# ------------------------------------------------------------------------------------------------- other clients


def kafka_python_reads(batch):
    found = MemoryRecords(bytes(batch)).next_batch()
    assert found.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found]


def aiokafka_reads(batch):
    found = _DefaultRecordBatchPy(bytes(batch))
    assert found.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in found]


def kafka_python_writes(records, codec):
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for timestamp, key, value, record_headers in records:
        builder.append(timestamp=timestamp, key=key, value=value, headers=record_headers)
    builder.close()
    return bytes(builder.buffer())


def aiokafka_writes(records, codec):
    builder = _DefaultRecordBatchBuilderPy(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for at, (timestamp, key, value, record_headers) in enumerate(records):
        builder.append(at, timestamp, key, value, record_headers)
    return bytes(builder.build())


READERS = [(kafka_python_reads, c) for c in WITHOUT_PACKAGES] + [(aiokafka_reads, c) for c in CODECS]
WRITERS = [(kafka_python_writes, c) for c in WITHOUT_PACKAGES] + [(aiokafka_writes, c) for c in CODECS]
SAMPLE = [(1_600_000_000_000 + i, b"key %d" % (i % 7), b"value %d " % i * 20, [("n", b"%d" % i)]) for i in range(3_000)]


@pytest.mark.parametrize(("read", "codec"), READERS)
@pytest.mark.parametrize("records", [RECORDS, SAMPLE], ids=["few", "many"])
def test_others_read_what_we_write(codec, read, records):
    batch = build_batch(records, compression=codec)
    assert read(batch) == [(at, *record) for at, record in enumerate(records)]


@pytest.mark.parametrize(("write", "codec"), WRITERS)
@pytest.mark.parametrize("records", [RECORDS, SAMPLE], ids=["few", "many"])
def test_we_read_what_others_write(codec, write, records):
    assert tuples_of(write(records, codec)) == [(at, *record) for at, record in enumerate(records)]


# ------------------------------------------------------------------------------------------------- round trips


@given(
    records=st.lists(fields, min_size=1, max_size=20), codec=st.sampled_from(CODECS), base_offset=st.integers(0, 2**62)
)
def test_round_trip(records, codec, base_offset):
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.record_count == len(records)
    assert header.max_timestamp == max(record[0] for record in records)
    assert header.compression is codec
    assert tuples_of(batch) == [(base_offset + at, *record) for at, record in enumerate(records)]


@given(records=st.lists(fields, min_size=1, max_size=20))
def test_size_of_the_builder_is_exact(records):
    builder = BatchBuilder()
    for at, record in enumerate(records):
        assert builder.append(*record) == at
        assert builder.count == at + 1
    assert builder.size == len(builder.build())


@given(value=st.integers(-(2**63), 2**63 - 1), junk=st.binary(max_size=3))
def test_varint_round_trip(value, junk):
    encoded = varint(value)
    assert read_varint(junk + encoded + b"\xff", len(junk)) == (value, len(junk) + len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-(2**63), "ffffffffffffffffff01")],
)
def test_varints_as_protobuf_has_them(value, encoded):
    assert varint(value).hex() == encoded


@pytest.mark.parametrize("number", range(4_080, 4_100))
def test_lengths_beyond_those_whose_numbers_are_at_hand(number):
    records: list[Any] = [(0, None, bytes(number), []), (0, bytes(number), b"", []), (0, None, bytes(number - 7), [])]
    batch = build_batch(records)
    assert [found[1:] for found in tuples_of(batch)] == records


def test_more_records_than_there_are_numbers_at_hand():
    assert [found[0] for found in tuples_of(build_batch([(0, None, b"", [])] * 4_100))] == list(range(4_100))


def test_records_given_as_objects():
    records = [Record(99, *record) for record in RECORDS]
    assert build_batch(records) == build_batch(RECORDS)
    assert read_records(build_batch(records))[1] == Record(1, *RECORDS[1])


def test_a_record_without_headers_gets_a_list_of_its_own_when_it_is_looked_at():
    first, second = read_records(build_batch([(7, b"k", b"v", []), (7, b"k", b"v", [])]))
    assert repr(copy.copy(first)) == repr(first) == repr(Record(0, 7, b"k", b"v", []))
    assert pickle.loads(pickle.dumps(second)) == second == Record(1, 7, b"k", b"v", [])
    first.headers.append(("a", b"b"))
    assert (first.headers, second.headers) == ([("a", b"b")], [])
    with pytest.raises(AttributeError, match="'Record' object has no attribute 'topic'"):
        first.topic  # type: ignore[attr-defined]  # noqa: B018


def test_gaps_that_compaction_leaves():
    builder = BatchBuilder()
    builder.append_at(3, 10, b"a", b"1")
    builder.append_at(7, 11, b"b", b"2")
    with pytest.raises(ValueError, match="does not follow"):
        builder.append_at(7, 11, b"b", b"2")
    batch = builder.build(base_offset=100, last_offset_delta=9)
    assert [record.offset for record in read_records(batch)] == [103, 107]
    assert read_header(batch).next_offset == 110


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp():
    builder = BatchBuilder(base_timestamp=5_000)
    builder.append(1_000, b"a", None)
    batch = builder.build(delete_horizon=True)
    assert read_header(batch).delete_horizon_ms == 5_000
    assert read_header(build_batch(RECORDS)).delete_horizon_ms is None
    assert [record.timestamp for record in read_records(batch)] == [1_000]
    assert kafka_python_reads(batch) == [(0, 1_000, b"a", None, [])]


def test_an_empty_batch_needs_its_last_offset():
    with pytest.raises(ValueError, match="at least one"):
        BatchBuilder().build()
    batch = BatchBuilder().build(last_offset_delta=4, compression=Compression.ZSTD)
    assert len(batch) == HEADER_SIZE
    assert (tuples_of(batch), read_header(batch).next_offset) == ([], 5)


# ------------------------------------------------------------------------------------------------- places in the log


def test_assigning_an_offset_leaves_the_crc_alone():
    batch = bytearray(b"xxx") + build_batch(RECORDS)
    assign_offset(batch, 3, 2**40, 12)
    header = read_header(batch, 3)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 12)
    check_batch(batch, 3, header)
    assert read_records(batch, 3)[3].offset == 2**40 + 3


def test_iterating_stops_at_a_torn_last_batch():
    one, two = build_batch(RECORDS), build_batch(RECORDS, base_offset=4)
    whole = bytes(one + two)
    assert [position for position, _ in iter_headers(whole)] == [0, len(one)]
    for cut in range(len(one), len(whole)):
        assert [position for position, _ in iter_headers(whole[:cut])] == [0]


def test_iterating_raises_where_a_header_makes_no_sense():
    with pytest.raises(CorruptRecordError):
        list(iter_headers(build_batch(RECORDS) + bytes(100)))


# ------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_single_flipped_bit_after_the_crc_is_found(codec):
    batch = build_batch(RECORDS[:2], compression=codec)
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordError):
            check_batch(damaged, 0, read_header(damaged))


@pytest.mark.parametrize("cut", range(HEADER_SIZE))
def test_a_header_that_is_cut_off(cut):
    with pytest.raises(CorruptRecordError, match="cut off"):
        read_header(build_batch(RECORDS)[:cut])


def test_a_batch_that_is_cut_off():
    batch = build_batch(RECORDS)
    header = read_header(batch)
    with pytest.raises(CorruptRecordError, match="truncated"):
        check_batch(batch[:-1], 0, header)
    with pytest.raises(CorruptRecordError, match="truncated"):
        read_records(batch[:-1])


@pytest.mark.parametrize(
    ("what", "position", "value"),
    [
        ("length", 8, struct.pack(">i", HEADER_SIZE - LOG_OVERHEAD - 1)),
        ("length", 8, struct.pack(">i", -5)),
        ("record count", 57, struct.pack(">i", -1)),
        ("last offset", 23, struct.pack(">i", -1)),
        ("base offset", 0, struct.pack(">q", -1)),
    ],
)
def test_headers_that_make_no_sense(what, position, value):
    with pytest.raises(CorruptRecordError, match="invalid batch header"):
        read_header(patched(build_batch(RECORDS), position, value))


def test_an_unknown_codec():
    with pytest.raises(CorruptRecordError, match="unknown compression type 6"):
        read_records(patched(build_batch(RECORDS), 21, b"\x00\x06"))


@pytest.mark.parametrize("count", [0, 3, 5, 2**31 - 1])
def test_a_wrong_number_of_records(count):
    with pytest.raises(CorruptRecordError):
        read_records(patched(build_batch(RECORDS), 57, struct.pack(">i", count)))


def record_of(body):
    """A batch of one record with this body (everything after its length)."""
    batch = bytearray(build_batch([(0, b"k", b"v", [])])[:HEADER_SIZE] + varint(len(body)) + body)
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    return batch


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\0\0\0\x02k\x02v\0", None),
        (b"\0\0\0\x05k\x02v\0", "field of -3"),
        (b"\0\0\0\x02k\x7ev\0", "extends beyond"),
        (b"\0\0\0\x02k\x02v\x01", "with -1 headers"),
        (b"\0\0\0\x02k\x02v\xfe\xff\x07", "headers"),
        (b"\0\0\0\x02k\x02v\x02\x01\x01", "header without a key"),
        (b"\0\0\0\x02k\x02v\0\0", "the 9 bytes"),
        (b"\0" + b"\xff" * 11 + b"\0\x02k\x02v\0", "varint of more than"),
        (b"\0" + b"\xff" * 9 + b"\x7f\0\x02k\x02v\0", "varint of more than 64"),
        (b"\0\0\0\x02k\x02v\x02\x02h\xff\xff", "cut off"),
    ],
)
def test_damaged_records(body, message):
    if message is None:
        assert read_tuples(record_of(body)) == [(0, 0, b"k", b"v", [])]
        return
    with pytest.raises(CorruptRecordError, match=message):
        read_records(record_of(body))


@given(codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=examples(300))
def test_damage_after_a_good_crc_is_an_error_or_other_records_never_a_crash(codec, data):
    batch = build_batch(RECORDS, compression=codec)
    position = data.draw(st.integers(21, len(batch) - 1))
    damaged = patched(batch, position, data.draw(st.binary(min_size=1, max_size=len(batch) - position)))
    try:
        header = read_header(damaged)
        check_batch(damaged, 0, header)
        records = read_records(damaged, 0, header, max_size=1 << 20)
    except CorruptRecordError:
        return
    assert len(records) == header.record_count


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused(garbage):
    with pytest.raises(CorruptRecordError):
        check_batch(garbage, 0, read_header(garbage))


def test_header_names_that_are_not_utf8_are_read_as_java_reads_them():
    batch = record_of(b"\0\0\0\x02k\x02v\x02\x02\xff\x01")
    assert read_records(batch)[0].headers == [("\ufffd", None)]


def test_a_memoryview_is_as_good_as_bytes():
    batch = build_batch(RECORDS, compression=Compression.SNAPPY)
    view = memoryview(b"..." + bytes(batch))
    check_batch(view, 3, read_header(view, 3))
    assert read_tuples(view, 3) == read_tuples(batch)
    assert SimpleNamespace(**read_header(view, 3)._asdict()).record_count == 4
