"""Raw records as entries: the same as `decode_record` returns record by record, whatever the bytes are."""

from __future__ import annotations

from collections import Counter
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError
from muster.history.entries.decode import decode
from muster.history.tables import ENTRIES, RAW
from muster.protocol import codec
from muster.protocol.group_records import OffsetCommitRecord, UnknownRecord, decode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from muster.protocol.record_kinds import CLASSES, kind_name
from tests.support.message_strategies import message
from tests.support.scale import examples

Record = tuple[bytes | None, bytes | None]
HOW = (False, True, None)

_settings = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))


def raw(records: list[Record], *, partition: int = 3) -> pa.Table:
    rows = [
        {
            "partition": partition,
            "offset": 10 * at,
            "timestamp_ms": 7 * at,
            "leader_epoch": 1,
            "key": key,
            "value": value,
            "is_transactional": HOW[at % 3],
        }
        for at, (key, value) in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, schema=RAW)


def one_by_one(records: list[Record]) -> tuple[list[dict[str, Any]], dict[tuple[str, int], int]]:
    """What `decode` should return, using the codec alone."""
    entries, counts = [], Counter[tuple[str, int]]()
    for at, (key, value) in enumerate(records):
        kind = "no kind" if key is None or len(key) < 2 else kind_name(int.from_bytes(key[:2], "big", signed=True))
        version = -1 if value is None else int.from_bytes(value[:2], "big", signed=True)
        try:
            record = decode_record(key, value)
        except ProtocolError:
            counts[kind, -2] += 1
            continue
        broken = value is not None and (len(value) < 2 or version < 0)
        counts[kind, -2 if broken else version] += 1
        if isinstance(record, UnknownRecord):
            continue
        place = {"log_partition": 3, "log_offset": 10 * at, "timestamp_ms": 7 * at, "leader_epoch": 1}
        entry = dict.fromkeys(ENTRIES.names) | place | {"kind": int.from_bytes((key or b"")[:2], "big")}
        if isinstance(record, OffsetCommitRecord):
            said = record.value
            entry |= {"group": record.key.group, "topic": record.key.topic, "partition": record.key.partition}
            entry |= {"offset": -1, "commit_ms": -1, "expire_ms": -1, "is_transactional": HOW[at % 3]}
            if said is not None:
                times = {"commit_ms": said.commit_timestamp, "expire_ms": said.expire_timestamp}
                entry |= {"offset": said.offset, "metadata": said.metadata} | times
        else:
            group = getattr(record.key, "group_id", None) or getattr(record.key, "group", "")
            entry |= {"group": group, "key": key, "value": value}
        entries.append(entry)
    return entries, dict(counts)


def assert_same(records: list[Record]) -> None:
    found = decode(raw(records))
    entries, counts = one_by_one(records)
    assert found.counts == counts
    assert found.entries.schema == ENTRIES
    assert found.entries.to_pylist() == entries
    found.entries.validate(full=True)


# ---------------------------------------------------------------------------------------------------- generated records

NAMES = st.sampled_from(["g", "group-1", "größe", "", "x" * 300]) | st.text(max_size=6)
METADATA = st.sampled_from(["", "", "m", "é" * 63, "x" * 126, "x" * 127, "x" * 200, "{}"]) | st.text(max_size=140)
TIMES = st.integers(-1, 2**63 - 1)


@st.composite
def commits(draw: Any) -> Record:
    kind, version = draw(st.sampled_from([0, 1, 1, 1])), draw(st.sampled_from([0, 1, 2, 3, 4, 4, 4]))
    key = pack(">h", kind) + codec.encode(
        OffsetCommitKey(draw(NAMES), draw(NAMES), draw(st.integers(-1, 2**31 - 1))), 0
    )
    if draw(st.integers(0, 9)) == 0:
        return key, None
    topic_id = draw(st.sampled_from([bytes(16), b"0123456789abcdef"]))
    said = OffsetCommitValue(draw(TIMES), draw(st.integers(-1, 9)), draw(METADATA), draw(TIMES), draw(TIMES), topic_id)
    return key, pack(">h", version) + codec.encode(said, version)


@st.composite
def others(draw: Any) -> Record:
    kind = draw(st.sampled_from([2, 2, *CLASSES]))
    key_class, value_class = (GroupMetadataKey, GroupMetadataValue) if kind == 2 else CLASSES[kind][1:]
    key = pack(">h", kind) + codec.encode(draw(message(key_class.__name__, 0)), 0)
    version = draw(st.integers(0, value_class.MAX_VERSION))
    value = draw(st.none() | message(value_class.__name__, version))
    return key, None if value is None else pack(">h", version) + codec.encode(value, version)


@st.composite
def spoiled(draw: Any, records: st.SearchStrategy[Record]) -> Record:
    """A damaged record: cut short, longer, one byte changed, or of a kind or version that does not exist yet."""
    parts: list[Any] = list(draw(records))
    place = draw(st.sampled_from([0, 1]))
    data = bytearray(parts[place] or b"\0\4")
    match draw(st.integers(0, 5)):
        case 0:
            del data[draw(st.integers(0, len(data))) :]
        case 1:
            data += draw(st.binary(max_size=4))
        case 2 if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 2, 16, 127, 128, 255]))
        case 3:
            data[:2] = pack(">h", draw(st.sampled_from([-2, -1, 0, 1, 2, 5, 9, 18, 24, 99])))
        case 4 if data and data[-1] == 0:
            data[-1:] = draw(st.sampled_from([b"\1\0\x10" + bytes(15), b"\1\1\x10" + bytes(16), b"\1\5\1x", b"\2\0"]))
        case _:
            at = draw(st.integers(0, len(data)))
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
    parts[place] = None if draw(st.integers(0, 19)) == 0 else bytes(data)
    return parts[0], parts[1]


@_settings
@given(st.lists(commits() | others() | spoiled(commits()) | spoiled(others()), max_size=12))
def test_records_of_all_kinds_are_what_the_codec_reads(records: list[Record]) -> None:
    assert_same(records)


@_settings
@given(st.lists(st.tuples(st.none() | st.binary(max_size=24), st.none() | st.binary(max_size=24)), max_size=8))
def test_any_bytes(records: list[Record]) -> None:
    assert_same([(key and b"\0" + key, value and b"\0" + value) for key, value in records])


# --------------------------------------------------------------------------------------------------------- single cases

KEY = bytes.fromhex("0001" + "000167" + "000174" + "00000002")
VALUE = bytes.fromhex("0004" + "0000000000000009" + "00000003" + "026e" + "0000000000000064" + "00")


@pytest.mark.parametrize(
    ("key", "value", "counted"),
    [
        (KEY, VALUE, ("OffsetCommit", 4)),
        (b"\0\0" + KEY[2:], VALUE, ("LegacyOffsetCommit", 4)),
        (KEY, None, ("OffsetCommit", -1)),
        (KEY, b"\0\5" + VALUE[2:], ("OffsetCommit", 5)),
        (KEY, b"\xff\xff" + VALUE[2:], ("OffsetCommit", -2)),
        (KEY, VALUE[:-1], ("OffsetCommit", -2)),
        (KEY, b"\0", ("OffsetCommit", -2)),
        (KEY, VALUE.replace(b"n", b"\xff"), ("OffsetCommit", -2)),
        (KEY[:-1], VALUE, ("OffsetCommit", -2)),
        (KEY.replace(b"t", b"\xff"), VALUE, ("OffsetCommit", -2)),
        (KEY.replace(b"g", b"\xff"), None, ("OffsetCommit", -2)),
        (b"\0\x2a" + KEY[2:], VALUE, ("kind 42", 4)),
        (b"\0\x2a", None, ("kind 42", -1)),
        (b"\0\x03\0\1g", b"\0\0\0\0\0\7\0", ("ConsumerGroupMetadata", 0)),
        (b"\0\x03\0\1g", b"\0\0\0\0\0\7", ("ConsumerGroupMetadata", -2)),
        (b"\0", VALUE, ("no kind", -2)),
        (None, VALUE, ("no kind", -2)),
    ],
)
def test_what_is_counted(key: bytes | None, value: bytes | None, counted: tuple[str, int]) -> None:
    """Next to valid records, which are not affected by it."""
    found = decode(raw([(KEY, VALUE), (key, value), (KEY, VALUE)]))
    assert found.counts == Counter([("OffsetCommit", 4), ("OffsetCommit", 4), counted])
    assert found.entries.column("log_offset").to_pylist()[:: len(found.entries) - 1] == [0, 20]
    assert_same([(KEY, VALUE), (key, value), (KEY, VALUE)])


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 129, 16_383])
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_metadata_around_a_length_of_two_bytes(size: int, version: int) -> None:
    """The time ends with a byte 0, which looks like the end of a value if it is read at the wrong offset."""
    said = OffsetCommitValue(5, 3, "x" * size, 256, 512)
    assert_same([(KEY, pack(">h", version) + codec.encode(said, version))])


def test_an_empty_stretch() -> None:
    for table in (raw([]), raw([]).to_batches(), RAW.empty_table()):
        if isinstance(table, pa.Table):
            assert decode(table).entries.equals(ENTRIES.empty_table())
    assert decode(raw([])).counts == {}


def test_slices_and_pieces_are_read_as_the_whole() -> None:
    """Arrow's slices share their buffers: what is before and after a slice is not read."""
    records: list[Record] = [(KEY[:-1] + bytes([at % 7]), VALUE[:3] + bytes([at]) + VALUE[4:]) for at in range(40)]
    records[5], records[20] = (b"\0\2\0\1g", None), (None, None)
    whole = raw(records)
    expected = decode(whole).entries
    assert decode(whole.slice(13, 9)).entries.equals(decode(raw(records)).entries.slice(13, 8).combine_chunks())
    pieces = pa.concat_tables([whole.slice(0, 13), whole.slice(13, 1), whole.slice(14)])
    assert decode(pieces).entries.equals(expected)
    assert decode(whole.slice(13, 9).to_batches()[0]).entries.num_rows == 8


def test_columns_of_other_widths_and_more_columns_than_asked_for() -> None:
    table = raw([(KEY, VALUE)])
    wide = table.set_column(4, "key", table.column("key").cast(pa.large_binary())).append_column("x", pa.array([1]))
    assert decode(wide.select(["x", *reversed(RAW.names)])).entries.equals(decode(table).entries)


def test_raw_rows_of_an_earlier_version_are_decoded():
    """They lack the column that says whether a record was written in a transaction."""
    key = pack(">h", 1) + codec.encode(OffsetCommitKey("g", "t", 0), 0)
    value = pack(">h", 3) + codec.encode(OffsetCommitValue(7), 3)
    whole = raw([(key, None), (key, value)])
    (_, found) = decode(whole.drop_columns(["is_transactional"])).entries.to_pylist()
    assert (found["offset"], found["is_transactional"]) == (7, None)
