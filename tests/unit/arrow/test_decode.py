"""Decoding to Arrow: the kernel, plain Python and the protocol's own reader agree, on valid bytes and on damaged
ones."""

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.arrow import COLUMNS, EXTRA, Decoder, Engine, arrow_schema, buffers, decode, plain, warm
from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Compression, decompress_into
from muster.protocol.records.record_batch import (
    HEADER_SIZE,
    BatchBuilder,
    Record,
    UnsupportedMagicError,
    iter_headers,
    read_header,
    read_records,
    set_times,
)
from tests.support.java_batches import BATCHES
from tests.support.scale import examples

ALL = (*COLUMNS, *EXTRA)
ENGINES = [Engine.NUMBA, Engine.PYTHON]
MAX_MS = (2**63 - 1) // 1000

payloads = st.none() | st.binary(max_size=200)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
headers = st.lists(st.tuples(names, payloads), max_size=3)
timestamps = st.integers(-1, 2**42) | st.sampled_from([MAX_MS, MAX_MS + 1, -MAX_MS, -MAX_MS - 1, 2**62])
records = st.lists(st.tuples(timestamps, payloads, payloads, headers, st.integers(1, 3)), min_size=1, max_size=12)
codecs = st.sampled_from(list(Compression))


def batch(records, base_offset=0, compression=Compression.NONE, **flags):
    """A batch whose records leave gaps: the last field of each is its distance from the one before."""
    builder = BatchBuilder()
    at = -1
    for timestamp, key, value, headers, distance in records:
        at += distance
        builder.append_at(at, timestamp, key, value, headers)
    return builder.build(base_offset=base_offset, compression=compression, **flags)


def simple(count, base_offset=0, **flags):
    return batch([(0, None, b"v%d" % (base_offset + i), [], 1) for i in range(count)], base_offset, **flags)


def expected(buffer, start=0, end=2**63 - 1):
    """The rows that the protocol's reader returns."""
    found = []
    for position, header in iter_headers(buffer):
        wanted = [record for record in read_records(buffer, position, header) if start <= record.offset < end]
        found += [row(record, header) for record in wanted]
    return found


def row(record: Record, header):
    possible = -MAX_MS <= record.timestamp <= MAX_MS
    return {
        "key": record.key,
        "value": record.value,
        "topic": "flights",
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000 if possible else None,
        "timestampType": header.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        "leaderEpoch": header.partition_leader_epoch if header.partition_leader_epoch >= 0 else None,
        "isTransactional": header.is_transactional,
    }


def table(buffer, engine, columns=ALL, **arguments):
    fetched = Decoder("flights", 3, columns, engine).decode(buffer, **arguments)
    found = pa.Table.from_batches(fetched.batches, arrow_schema(columns))
    found.validate(full=True)
    if "timestamp" in columns:
        at = columns.index("timestamp")
        found = found.set_column(at, "timestamp", found["timestamp"].cast(pa.int64()))
    return found.to_pylist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", ["none", "gzip", "snappy", "lz4", "zstd", "idempotent", "transactional", "append_time"]
)
def test_reads_what_java_wrote(name, engine):
    assert table(BATCHES[name], engine) == expected(BATCHES[name])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(records, codecs, st.booleans()), min_size=1, max_size=4), st.data())
def test_both_engines_read_what_the_protocol_reads(batches, data):
    buffer = bytearray()
    next_offset = data.draw(st.integers(0, 2**40))
    first = next_offset
    for content, codec, append_time in batches:
        epoch = data.draw(st.sampled_from([-1, 0, 3, 2**31 - 1]))
        built = batch(content, next_offset, codec, leader_epoch=epoch, transactional=data.draw(st.booleans()))
        if append_time:
            set_times(built, 0, read_header(built), 1_700_000_000_000, True)
        next_offset = read_header(built).next_offset
        buffer += built
    start = data.draw(st.integers(first, next_offset))
    end = data.draw(st.integers(start, next_offset + 1))
    for engine in ENGINES:
        assert table(buffer, engine) == expected(buffer)
        assert table(bytes(buffer), engine, start=start, end=end) == expected(buffer, start, end)


def recoded(good, payload):
    """The batch with another batch's records and a matching CRC: only the records themselves can reveal the damage."""
    damaged = bytearray(good[:HEADER_SIZE]) + payload
    struct.pack_into(">i", damaged, 8, len(damaged) - 12)
    struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
    return bytes(damaged)


def outcome(decode):
    try:
        return decode()
    except CorruptRecordError:
        return CorruptRecordError


@settings(max_examples=examples(400), deadline=None)
@given(records, st.data())
def test_damaged_records_are_refused_by_all_or_read_alike(content, data):
    good = batch(content)
    payload = bytearray(good[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    damaged = recoded(good, payload)
    read = outcome(lambda: expected(damaged))
    assert outcome(lambda: table(damaged, Engine.PYTHON)) == read
    assert outcome(lambda: table(damaged, Engine.NUMBA)) == read


LONG = b"\xff" * 9


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x0c\x00\x00\x00\x01\x01\x00\x00", "bytes left after|belong to no"),
        (b"\x0e\x00\x00\x00\x01\x01\x00", "length|declares"),
        (b"\x0c\x00\x00\x00\x01\x05\x00", "field"),
        (b"\x0c\x00\x00\x00\x01\x40\x00", "field"),
        (b"\x0c\x00\x00\x00\x01" + LONG + b"\x01\x00", "field"),
        (b"\x0c\x00\x00" + LONG + b"\x02\x01\x01\x00", "varint"),
        (b"\x0c\x00\x00" + LONG + b"\xff\x01\x01\x01\x00", "varint"),
        (b"\x0c\x00\x00\x00\x01\x01\x80", "cut off"),
        (b"\x0c\x00\x00\x00\x01\x01\x40", "headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", "header"),
        (b"\x0c\x00\x00\x00\x01", "fit"),
    ],
)
def test_a_broken_record_is_refused_with_its_reason(payload, says, engine):
    with pytest.raises(CorruptRecordError, match=says):
        table(recoded(batch([(0, None, None, [], 1)]), payload), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flipped_bit_is_found_by_the_crc(engine):
    damaged = bytearray(simple(3))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="crc"):
        table(damaged, engine)


def test_crcs_are_left_alone_where_that_is_asked_for():
    damaged = bytearray(simple(3))
    struct.pack_into(">I", damaged, 17, 0)
    assert len(table(damaged, Engine.PYTHON, check_crcs=False)) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_come_as_asked_for(engine):
    assert table(simple(2), engine, ("value", "offset")) == [
        {"value": b"v0", "offset": 0},
        {"value": b"v1", "offset": 1},
    ]
    assert table(simple(1), engine, ("offset",)) == [{"offset": 0}]


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match="no column 'valu'"):
        Decoder("t", 0, ("valu",))


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch():
    whole = simple(3)
    fetched = Decoder("t", 0).decode(whole + simple(3, 3)[:-1])
    assert (fetched.next_offset, sum(found.num_rows for found in fetched.batches)) == (3, 3)
    assert Decoder("t", 0).decode(whole[:-1], start=7).next_offset == 7


def test_the_next_offset_passes_gaps_and_batches_without_records():
    cleaned = BatchBuilder().build(base_offset=10, last_offset_delta=5)
    gaps = batch([(0, None, b"a", [], 1), (0, None, b"b", [], 4)], base_offset=16)
    fetched = Decoder("t", 0).decode(cleaned + gaps, start=10, end=100)
    assert [found["offset"].to_pylist() for found in fetched.batches] == [[16, 20]]
    assert fetched.next_offset == 21


def test_nothing_after_the_range_is_looked_at():
    broken = bytearray(simple(3, 3))
    broken[-1] ^= 1
    assert len(table(simple(3) + broken, Engine.PYTHON, start=1, end=3)) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_old_message_formats_are_refused(engine):
    old = bytearray(simple(1))
    old[16] = 1
    with pytest.raises(UnsupportedMagicError):
        table(old, engine)


def marker(kind, producer_id, base_offset):
    content: list[tuple[int, bytes, bytes, list[tuple[str, bytes]], int]] = [
        (0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [], 1)
    ]
    return batch(content, base_offset, producer_id=producer_id, producer_epoch=0, transactional=True, control=True)


def transactional(producer_id, base_offset):
    return simple(2, base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


ABORT, COMMIT = 0, 1
TRANSACTIONS = b"".join(
    [
        transactional(1, 0),
        transactional(2, 2),
        simple(2, 4),
        marker(ABORT, 1, 6),
        marker(COMMIT, 2, 7),
        transactional(1, 8),
        marker(COMMIT, 1, 10),
        transactional(1, 11),
        marker(ABORT, 1, 13),
    ]
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("aborted", "offsets"),
    [
        (None, [0, 1, 2, 3, 4, 5, 8, 9, 11, 12]),
        ([], [0, 1, 2, 3, 4, 5, 8, 9, 11, 12]),
        ([(1, 0), (1, 11)], [2, 3, 4, 5, 8, 9]),
        ([(1, 11), (1, 0)], [2, 3, 4, 5, 8, 9]),
        ([(1, 11)], [0, 1, 2, 3, 4, 5, 8, 9]),
    ],
)
def test_aborted_transactions_and_markers_are_skipped(aborted, offsets, engine):
    assert [found["offset"] for found in table(TRANSACTIONS, engine, aborted=aborted)] == offsets
    assert Decoder("t", 0).decode(TRANSACTIONS, aborted=aborted).next_offset == 14


@pytest.mark.parametrize("engine", ENGINES)
def test_a_header_name_that_is_not_text_is_repaired(engine):
    good = batch([(0, None, None, [("ab", b"x"), ("ok", None)], 1)])
    damaged = recoded(good, bytes(good[HEADER_SIZE:]).replace(b"ab", b"\xc3b"))
    assert table(damaged, engine, ("headers",)) == [
        {"headers": [{"key": "\ufffdb", "value": b"x"}, {"key": "ok", "value": None}]}
    ]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("engine", ENGINES)
def test_much_at_once_comes_in_pieces(monkeypatch, engine, codec):
    for module in (buffers, plain):
        monkeypatch.setattr(module, "FLUSH_BYTES", 20)
    monkeypatch.setattr(decode, "MAX_ROWS", 3)
    buffer = b"".join(simple(5, at, compression=codec) for at in (0, 5, 10))
    fetched = Decoder("flights", 3, ("topic", "offset", "value"), engine).decode(buffer)
    pieces = [
        (found["topic"].to_pylist(), found["offset"].to_pylist(), found["value"].to_pylist())
        for found in fetched.batches
    ]
    assert max(len(topics) for topics, _, _ in pieces) == 3
    assert [offset for _, offsets, _ in pieces for offset in offsets] == list(range(15))
    assert [value for _, _, values in pieces for value in values] == [b"v%d" % at for at in range(15)]
    assert {topic for topics, _, _ in pieces for topic in topics} == {"flights"}


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec], ids=lambda codec: codec.name)
def test_batches_are_decompressed_once_into_one_buffer(monkeypatch, codec):
    asked, real = [], decompress_into

    def counted(compression, data, target):
        asked.append(target.obj)
        return real(compression, data, target)

    monkeypatch.setattr(buffers, "decompress_into", counted)
    monkeypatch.setattr(buffers, "record_bytes", None)  # not called: it copies the bytes of each batch
    buffer = b"".join(simple(50, at, compression=codec) for at in range(0, 500, 50))
    for _ in range(2):
        batches = list(Decoder("t", 0, ("offset", "value"), Engine.NUMBA).decode(buffer).batches)
        assert [rows.num_rows for rows in batches] == [500]
    assert len(asked) == 20
    assert len({id(room) for room in asked}) == 1


def test_a_room_that_another_thread_takes_first_is_done_without(monkeypatch):
    class Taken(list):  # type: ignore[type-arg]
        """It looks as if it holds a buffer, but is empty when one is taken."""

        def __bool__(self):
            return True

    monkeypatch.setattr(buffers, "_free_buffers", Taken())
    assert len(table(simple(5, compression=Compression.LZ4), Engine.NUMBA)) == 5


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec], ids=lambda codec: codec.name)
def test_batches_that_find_no_room_are_decoded_all_the_same(monkeypatch, codec):
    monkeypatch.setattr(buffers, "ROOM_BYTES", 600)
    monkeypatch.setattr(buffers, "_free_buffers", [])
    parts = [simple(count, at, compression=codec) for at, count in ((0, 20), (20, 20), (40, 90), (130, 5))]
    found = Decoder("t", 0, ("offset", "value"), Engine.NUMBA).decode(b"".join(parts)).batches
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(135))
    assert [row["value"] for row in rows] == [b"v%d" % at for at in range(135)]


def reported(monkeypatch, buffer, *, short, **arguments):
    """What the decoder returns with or without its fast path: rows and next offset, or the error; and if it was
    taken."""
    taken: list[bool] = []

    def decode_plain(*given):
        found = short_way(*given) if short else None
        taken.append(found is not None)
        return found

    short_way = buffers.decode_plain
    with monkeypatch.context() as patch:
        patch.setattr(buffers, "decode_plain", decode_plain)
        try:
            fetched = Decoder("flights", 3, ALL, Engine.AUTO).decode(buffer, **arguments)
            found = pa.Table.from_batches(fetched.batches, arrow_schema(ALL))
            rows = found.set_column(5, "timestamp", found["timestamp"].cast(pa.int64())).to_pylist()
        except CorruptRecordError as error:
            return str(error), any(taken)
    return (rows, fetched.next_offset), any(taken)


plain_batches = st.lists(st.tuples(records, st.booleans(), st.sampled_from([-1, 7])), min_size=1, max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(plain_batches, st.data())
def test_plain_batches_are_read_as_all_others_are(batches, data):
    assert warm()
    buffer, offset = bytearray(), data.draw(st.integers(0, 2**40))
    first = offset
    for content, append_time, producer_id in batches:
        epoch = data.draw(st.sampled_from([-1, 0, 3, 2**31 - 1]))
        built = batch(content, offset, producer_id=producer_id, leader_epoch=epoch)
        if append_time:
            set_times(built, 0, read_header(built), 1_700_000_000_000, True)
        offset = read_header(built).next_offset
        buffer += built
    whole = bytes(buffer)
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        at = data.draw(st.integers(0, HEADER_SIZE - 1) | st.integers(0, len(buffer) - 1))
        buffer[at] = data.draw(st.integers(0, 255))
    cut = bytes(buffer[: data.draw(st.just(len(buffer)) | st.integers(0, len(buffer)))])
    arguments = {
        "start": data.draw(st.integers(max(0, first - 1), offset)),
        "end": data.draw(st.just(2**63 - 1) | st.integers(first, offset + 2)),
        "aborted": data.draw(st.sampled_from([None, [], [(7, first)]])),
        "check_crcs": data.draw(st.booleans()),
    }
    with pytest.MonkeyPatch.context() as patch:
        short, taken = reported(patch, cut, short=True, **arguments)
        assert short == reported(patch, cut, short=False, **arguments)[0]
        if cut == whole and arguments["end"] == 2**63 - 1 and arguments["start"] <= first:
            assert taken


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True),
        ({"log_append_time": 5}, True),
        ({"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}, True),
        ({"compression": Compression.LZ4}, False),
        ({"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}, False),
        ({"control": True}, False),
    ],
)
def test_which_batches_are_plain(monkeypatch, changed, taken):
    assert warm()
    buffer = bytes(simple(3) + simple(3, 3, **changed))
    short = reported(monkeypatch, buffer, short=True)
    assert short[1] is taken
    assert short[0] == reported(monkeypatch, buffer, short=False)[0]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_plain_batches_is_reported_alike(monkeypatch, bit):
    assert warm()
    good = simple(2) + simple(2, 2)
    for check_crcs in (True, False):
        for place in range(len(good)):
            buffer = bytearray(good)
            buffer[place] ^= 1 << bit
            short = reported(monkeypatch, bytes(buffer), short=True, check_crcs=check_crcs)[0]
            assert short == reported(monkeypatch, bytes(buffer), short=False, check_crcs=check_crcs)[0]


@pytest.mark.parametrize("tail", [bytes(17), bytes(61), b"\xff" * 20, b"\0" * 12 + b"\2" * 10], ids=len)
def test_what_follows_plain_batches_is_reported_alike(monkeypatch, tail):
    assert warm()
    buffer = bytes(simple(2) + simple(2, 2)) + tail
    short, taken = reported(monkeypatch, buffer, short=True)
    assert isinstance(short, str)
    assert not taken
    assert short == reported(monkeypatch, buffer, short=False)[0]
