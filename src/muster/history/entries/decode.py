"""Decodes raw records of `__consumer_offsets` to the entries that the rules read, and counts records by kind.

Nearly all records are offset commits, and nearly all of those repeat an earlier key. So Arrow numbers the keys, each
distinct key is decoded once, and the values are read column by column: the offsets of all rows take one access to the
buffer. A value with an unusual layout (metadata of more than 126 bytes in version 4, an unknown tag, truncated bytes)
goes through `group_records.decode_record`. That function is also the reference: a test compares both paths record by
record. No record is dropped silently, and none stops the others: one that cannot be decoded, or whose kind or version
is unknown, is only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.history.entries import sound_generations
from muster.history.model import Counts
from muster.history.tables import ENTRIES, RAW, completed
from muster.protocol import codec
from muster.protocol.group_records import OffsetCommitRecord, UnknownRecord, decode_record
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue
from muster.protocol.primitives import Message
from muster.protocol.record_kinds import CLASSES, RecordKind, kind_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from muster.history.model import Int64s

    Flags: TypeAlias = NDArray[np.bool_]

_Counter: TypeAlias = "Counter[tuple[int, int]]"

TOMBSTONE, BROKEN = -1, -2
"""Instead of a version: the value is null; the record cannot be decoded."""

_NO_KIND = -1 << 16
_BATCH_ROWS = 1 << 18
"""Rows that are read at a time: intermediate results stay in the processor's cache."""
_HEADS = {0: (12, 8), 1: (12, 16), 2: (12, 8), 3: (16, 8), 4: (15, 8)}
"""For each version of a commit's value: the bytes before the metadata, and the bytes of the times after it."""
_CLASSES: dict[int, tuple[type[Message], type[Message]]] = {
    int(RecordKind.GROUP_METADATA): (GroupMetadataKey, GroupMetadataValue),
    **{kind: classes[1:] for kind, classes in CLASSES.items()},
}
"""The classes of key and value by kind, for records that are not commits."""
_OFFSET_KINDS = (RecordKind.LEGACY_OFFSET_COMMIT, RecordKind.OFFSET_COMMIT)
_EXPIRING, _COMPACT = 1, 4
_TOPIC_ID = 1, 0, 16
"""One tagged field, its tag, its size."""
_UNCHANGED_COLUMNS = {
    "log_partition": "partition",
    "log_offset": "offset",
    "timestamp_ms": "timestamp_ms",
    "leader_epoch": "leader_epoch",
}
"""Columns that entries take over unchanged."""


class DecodedLog(NamedTuple):
    """The contents of a stretch of the log: `entries` has the schema ENTRIES, in log order."""

    entries: pa.Table
    counts: Counts


def decode(raw: pa.Table | pa.RecordBatch) -> DecodedLog:
    """Decode rows of the schema RAW, in log order within each partition of the topic."""
    counts: _Counter = Counter()
    parts = [_decode_batch(batch, counts) for batch in _batches(raw)]
    named: Counts = {}
    for (kind, version), number in counts.items():
        place = ("no kind" if kind == _NO_KIND else kind_name(kind)), version
        named[place] = named.get(place, 0) + number
    return DecodedLog(pa.Table.from_batches(parts, ENTRIES), named)


def _batches(raw: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    table = completed(raw, RAW).combine_chunks()
    yield from (batch for batch in table.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows)


def _decode_batch(batch: pa.RecordBatch, counts: _Counter) -> pa.RecordBatch:
    keys = _Keys(batch.column("key"))
    is_commit = keys.is_commit[keys.codes]
    commits = _Commits(batch, np.flatnonzero(is_commit))
    _count_commits(keys.kind[keys.codes[commits.rows]], commits.version, counts)
    known = np.zeros(batch.num_rows, bool)
    known[commits.rows] = commits.known
    others = np.flatnonzero(~is_commit)
    known[others] = _count_others(batch, others, keys, counts)
    entries = _entries(batch, keys, is_commit, commits)
    return entries if known.all() else entries.filter(pa.array(known))


def _count_commits(kinds: Int64s, versions: Int64s, counts: _Counter) -> None:
    places, numbers = np.unique((kinds << 16) + (versions - BROKEN), return_counts=True)
    for place, number in zip(places.tolist(), numbers.tolist(), strict=True):
        counts[place >> 16, (place & 0xFFFF) + BROKEN] += number


def _count_others(batch: pa.RecordBatch, rows: Int64s, keys: _Keys, counts: _Counter) -> list[bool]:
    """Count the records that are not commits, or have a broken key; returns which of them are entries."""
    found, classes, codes = [], dict[int, type[Any]](), keys.codes[rows]
    columns = rows.tolist(), codes.tolist(), keys.kind[codes].tolist(), keys.has_group[codes].tolist()
    chosen = batch.column("value").take(_places(rows))
    values = zip(chosen.to_pylist(), _sound_generations(chosen, keys.kind[codes]), strict=True)
    for row, code, kind, has_group, (value, is_sound) in zip(*columns, values, strict=True):
        value_class = classes.get(code) or classes.setdefault(code, _value_class(kind, has_group, batch, row))
        version = BROKEN if value_class is ProtocolError else _version(value)
        is_known = value_class is not ProtocolError and value_class is not UnknownRecord
        if is_known and not is_sound and value is not None:
            try:
                codec.decode(value_class, version, value, 2)
            except UnsupportedVersionError:
                is_known = False
            except ProtocolError:
                is_known, version = False, BROKEN
        found.append(is_known)
        counts[kind, version] += 1
    return found


def _sound_generations(values: pa.Array[Any], kinds: Int64s) -> list[bool]:
    """Which of these values are known to be decodable ones of classic groups. Not all decodable values are found."""
    found = _flags(values.is_valid()) & (kinds == RecordKind.GROUP_METADATA)
    if found.any():
        data = _Bytes(values)
        found[found] = sound_generations.sound(data.read, data.data, data.start[found], data.end[found])
    return found.tolist()  # type: ignore[no-any-return]


def _value_class(kind: int, has_group: bool, batch: pa.RecordBatch, row: int) -> type[Any]:
    """The class of the value of a record that is not a commit: ProtocolError if the key is broken, and UnknownRecord if
    its kind is unknown."""
    if kind == _NO_KIND or kind in _OFFSET_KINDS:
        return ProtocolError
    classes = _CLASSES.get(kind)
    if classes is None:
        return UnknownRecord
    key_class, value_class = classes
    if has_group and len(key_class.__slots__) == 1:
        return value_class
    try:
        codec.decode(key_class, 0, batch.column("key")[row].as_py(), 2)
    except ProtocolError:
        return ProtocolError
    return value_class


def _version(value: bytes | None) -> int:
    if value is None:
        return TOMBSTONE
    return BROKEN if len(value) < 2 or value[0] > 127 else int.from_bytes(value[:2], "big")


def _entries(batch: pa.RecordBatch, keys: _Keys, is_commit: Flags, commits: _Commits) -> pa.RecordBatch:
    """All rows as entries; those that are not entries are filtered out afterwards."""
    codes = _places(keys.codes)
    columns = {name: batch.column(column) for name, column in _UNCHANGED_COLUMNS.items()}
    columns |= {name: column.take(codes) for name, column in keys.columns.items()}
    columns |= commits.columns(batch.num_rows)
    columns["is_transactional"] = batch.column("is_transactional")
    if is_commit.all():
        columns |= dict.fromkeys(("key", "value"), pa.nulls(batch.num_rows, pa.binary()))
    else:
        others, nothing = pa.array(~is_commit), pa.scalar(None, pa.binary())
        columns |= {name: pc.if_else(others, batch.column(name), nothing) for name in ("key", "value")}
        columns["is_transactional"] = pc.if_else(others, pa.scalar(None, pa.bool_()), columns["is_transactional"])
    return pa.RecordBatch.from_arrays([columns[name] for name in ENTRIES.names], schema=ENTRIES)


class _Bytes:
    """The rows of a binary column as one buffer, and where each begins and ends in it."""

    def __init__(self, column: pa.Array[Any]) -> None:
        offsets: Any
        data: Any
        _, offsets, data = column.buffers()
        found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        self.start, self.end = found[:-1], found[1:]
        self.data = np.frombuffer(data or b"", np.uint8)

    def read(self, kind: str, at: Int64s) -> Int64s:
        """Big-endian numbers at these positions, which must lie within the buffer."""
        width = np.dtype(kind).itemsize
        every: Any = np.ndarray(max(len(self.data) - width + 1, 0), kind, self.data, 0, (1,))
        return every[at].astype(np.int64)  # type: ignore[no-any-return]

    def texts(self, start: Int64s, size: Int64s) -> pa.Array[Any]:
        """The text at each of these positions; null if the bytes are not valid UTF-8."""
        offsets = np.concatenate(([0], np.cumsum(size)))
        every = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], size)
        parts: list[Any] = [offsets.astype(np.int32), self.data[every]]
        found = pa.Array.from_buffers(pa.binary(), len(size), [None, *map(pa.py_buffer, parts)])
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_text(each or b"") for each in found.to_pylist()], pa.string())


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class _Keys:
    """The distinct keys of a column, decoded. The last one is null."""

    def __init__(self, column: pa.Array[Any]) -> None:
        encoded = column.dictionary_encode()
        keys = _Bytes(encoded.dictionary)
        count = len(keys.start)
        self.codes = _numbers(encoded.indices.fill_null(count))
        self.kind = np.full(count + 1, _NO_KIND)
        has_kind = np.flatnonzero(keys.end - keys.start >= 2)
        self.kind[has_kind] = keys.read(">i2", keys.start[has_kind])
        rows, start, size = _strings(keys, has_kind, keys.start[has_kind] + 2)
        group, self.has_group = _spread(count + 1, rows, keys.texts(start, size))
        is_offset = self.has_group[rows] & np.isin(self.kind[rows], _OFFSET_KINDS)
        rows, start, size = _strings(keys, rows[is_offset], (start + size)[is_offset])
        whole = start + size + 4 <= keys.end[rows]
        rows, start, size = rows[whole], start[whole], size[whole]
        topic, self.is_commit = _spread(count + 1, rows, keys.texts(start, size))
        partition = np.zeros(count + 1, np.int32)
        partition[rows] = keys.read(">i4", start + size)
        self.columns = {
            "group": group,
            "kind": pa.array(np.maximum(self.kind, -1).astype(np.int16)),
            "topic": topic,
            "partition": pa.array(partition, mask=~self.is_commit),
        }


def _strings(keys: _Bytes, rows: Int64s, at: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The rows that have a whole string at this position, where its text begins, and its size."""
    here = at + 2 <= keys.end[rows]
    rows, at = rows[here], at[here] + 2
    size = keys.read(">i2", at - 2)
    here = (size >= 0) & (at + size <= keys.end[rows])
    return rows[here], at[here], size[here]


def _spread(count: int, rows: Int64s, texts: pa.Array[Any]) -> tuple[pa.Array[Any], Flags]:
    """A column of `count` rows, with these texts in these rows and null in the others; and which rows have text."""
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(rows))
    without = np.ones(count, bool)
    without[rows] = ~_flags(texts.is_valid())
    return texts.take(_places(places, without)), ~without


class _Commits:
    """The values of the rows that are commits."""

    def __init__(self, batch: pa.RecordBatch, rows: Int64s) -> None:
        self._batch = batch
        self.rows = rows
        count = len(rows)
        self.version = np.full(count, BROKEN)
        self.known = np.zeros(count, bool)
        self._numbers = {name: np.full(count, -1) for name in ("offset", "commit_ms", "expire_ms")}
        self._texts: list[pa.Array[Any]] = [pa.array([""])]
        self._text = np.zeros(count, np.int64)
        """For each row the index of its metadata in all texts."""
        column = batch.column("value")
        values, has_value = _Bytes(column), _flags(column.is_valid())[rows]
        self.version[~has_value] = TOMBSTONE
        self.known[~has_value] = True
        self._has_metadata = has_value
        start, end = values.start[rows], values.end[rows]
        usual = np.flatnonzero(has_value & (end - start >= 2))
        versions = values.read(">i2", start[usual])
        for version in _HEADS:
            if len(those := usual[versions == version]):
                self._read(version, values, those, start[those], end[those])
        for place in np.flatnonzero(~self.known).tolist():
            self._read_one(place)

    def _read(self, version: int, values: _Bytes, places: Int64s, start: Int64s, end: Int64s) -> None:
        """Read the values of one version. `places` are rows of `self`."""
        head, times = _HEADS[version]
        long_enough = end - start >= head
        places, start, end = places[long_enough], start[long_enough], end[long_enough]
        if version == _COMPACT:
            size = values.data[start + head - 1].astype(np.int64) - 1
            usual = (size >= 0) & (size < 127) & (start + head + size + times + 1 <= end)
        else:
            size = values.read(">i2", start + head - 2)
            usual = (size >= 0) & (start + head + size + times <= end)
        if version == _COMPACT:
            usual[usual] = _has_usual_tags(values, (start + head + size + times)[usual], end[usual])
        places, text, size = places[usual], start[usual] + head, size[usual]
        self.version[places] = version
        self.known[places] = True
        self._numbers["offset"][places] = values.read(">i8", start[usual] + 2)
        self._numbers["commit_ms"][places] = values.read(">i8", text + size)
        if version == _EXPIRING:
            self._numbers["expire_ms"][places] = values.read(">i8", text + size + 8)
        has_text = size > 0
        if has_text.any():
            self._add_texts(places[has_text], values.texts(text[has_text], size[has_text]))

    def _add_texts(self, places: Int64s, texts: pa.Array[Any]) -> None:
        self._text[places] = sum(map(len, self._texts)) + np.arange(len(texts))
        self._texts.append(texts)
        self.known[places] &= _flags(texts.is_valid())

    def _read_one(self, place: int) -> None:
        """Read a value that has an unusual layout or is broken."""
        row = int(self.rows[place])
        key, value = (self._batch.column(name)[row].as_py() for name in ("key", "value"))
        self.version[place] = _version(value)
        try:
            record = decode_record(key, value)
        except ProtocolError:
            self.version[place] = BROKEN
            return
        if isinstance(record, OffsetCommitRecord) and record.value is not None:
            self.known[place] = True
            self._add_texts(np.array([place]), pa.array([record.value.metadata]))
            self._numbers["offset"][place] = record.value.offset
            self._numbers["commit_ms"][place] = record.value.commit_timestamp
            self._numbers["expire_ms"][place] = record.value.expire_timestamp

    def columns(self, count: int) -> dict[str, pa.Array[Any]]:
        """As columns of `count` rows, with null in rows that are not commits."""
        found = {name: pa.array(column) for name, column in self._numbers.items()}
        texts = _places(self._text, ~self._has_metadata)
        if count != len(self.rows):
            within = np.full(count, -1)
            within[self.rows] = np.arange(len(self.rows))
            places = _places(within, within < 0)
            found = {name: column.take(places) for name, column in found.items()}
            texts = texts.take(places)
        return found | {"metadata": pa.concat_arrays(self._texts).take(texts)}


def _has_usual_tags(values: _Bytes, at: Int64s, end: Int64s) -> Flags:
    """Whether there are no tagged fields here, or only the topic id."""
    found: Flags = values.data[at] == 0
    others = np.flatnonzero(~found)
    others = others[at[others] + len(_TOPIC_ID) + 16 <= end[others]]
    for place, byte in enumerate(_TOPIC_ID):
        others = others[values.data[at[others] + place] == byte]
    found[others] = True
    return found


def _places(numbers: Int64s, without: Flags | None = None) -> Any:
    """Indices for Arrow's `take`, which returns null for those in `without`."""
    return pa.array(numbers, mask=without)


def _numbers(column: pa.Array[Any]) -> Int64s:
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _flags(column: pa.Array[Any]) -> Flags:
    return column.to_numpy(zero_copy_only=False)
