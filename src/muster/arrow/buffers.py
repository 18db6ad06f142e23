"""Decoding with the kernel: lays out its input, allocates its output, makes Arrow arrays of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from muster.arrow.engine import Kernel
from muster.arrow.layout import (
    FLUSH_BYTES,
    KEY,
    LEADER_EPOCH_AT,
    MIN_RECORD_SIZE,
    NULL_TIMESTAMP,
    OK,
    REASONS,
    ROOM_BYTES,
    ROWS_AT,
    SEGMENT_COLUMNS,
    SPAN_COLUMNS,
    TRANSACTIONAL_AT,
    VALUE,
)
from muster.arrow.schema import HEADERS, IS_TRANSACTIONAL, LEADER_EPOCH, Array, arrow_schema
from muster.arrow.segments import EncodedBatch
from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Buffer, Compression, decompress_into
from muster.protocol.records.record_batch import HEADER_SIZE, BatchHeader, crc_of, record_bytes


class _Input(NamedTuple):
    """The input of one kernel call: bytes, and a row for each batch in them (see the kernel)."""

    data: npt.NDArray[np.uint8]
    segments: npt.NDArray[np.int64]
    records: int


def decode(
    kernel: Kernel, buffer: Buffer, segments: list[EncodedBatch], wanted: tuple[int, int], names: frozenset[str]
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Like `plain.decode`, with the kernel."""
    return _decode(kernel, _inputs(buffer, segments), wanted, names)


def decode_plain(
    kernel: Kernel, buffer: Buffer, wanted: tuple[int, int], names: frozenset[str], check_crcs: bool
) -> tuple[Iterator[tuple[int, dict[str, Array]]], int] | None:
    """Like `segments.scan` and `decode`, without an object for each batch, and the next offset. None if the buffer has
    anything but plain batches (see the kernel's `walk`), is damaged, or is too large for one piece."""
    view = memoryview(buffer).toreadonly()
    if not 0 < len(view) <= FLUSH_BYTES:
        return None
    data = np.frombuffer(view, np.uint8)
    most = len(view) // HEADER_SIZE
    segments, crcs = np.empty((most, SEGMENT_COLUMNS), np.int64), np.empty(most, np.int64)
    count, next_offset = kernel.walk(data, *wanted, segments, crcs)
    if count <= 0:
        return None
    segments = segments[:count]
    if check_crcs:
        for begin, end, crc in zip(
            segments[:, 0].tolist(), segments[:, 1].tolist(), crcs[:count].tolist(), strict=True
        ):
            if crc_of(view, begin - HEADER_SIZE, end) != crc:
                return None
    piece = _Input(data, segments, int(segments[:, 2].sum()))
    return _decode(kernel, [piece], wanted, names), next_offset


def _decode(
    kernel: Kernel, pieces: Iterable[_Input], wanted: tuple[int, int], names: frozenset[str]
) -> Iterator[tuple[int, dict[str, Array]]]:
    for piece in pieces:
        records = _Records(kernel, piece, wanted)
        if records.rows:
            yield records.rows, records.columns(names)


def _inputs(buffer: Buffer, segments: list[EncodedBatch]) -> Iterator[_Input]:
    """Cut the batches into pieces of at most about FLUSH_BYTES. Uncompressed batches are decoded in place."""
    whole = memoryview(buffer)
    for compressed, run in groupby(segments, lambda segment: segment.header.compression is not Compression.NONE):
        decoded = _unpacked if compressed else _in_place
        yield from decoded(whole, run)


def _in_place(whole: memoryview, run: Iterable[EncodedBatch]) -> Iterator[_Input]:
    rows: list[tuple[int, ...]] = []
    size = 0
    for position, header in run:
        rows.append(_row(position + HEADER_SIZE, position + header.size, header))
        size += header.size
        if size >= FLUSH_BYTES:
            yield _input(whole, rows)
            rows, size = [], 0
    if rows:
        yield _input(whole, rows)


_free_buffers: list[npt.NDArray[np.uint8]] = []
"""Memory into which batches are decompressed, for reuse: the system would have to allocate and clear new memory for
each piece."""


def _unpacked(whole: memoryview, run: Iterable[EncodedBatch]) -> Iterator[_Input]:
    """Decompress batches one after the other. The memory of a piece is reused for the next one."""
    try:
        room = _free_buffers.pop()
    except IndexError:  # a check beforehand would be enough only with a single thread
        room = np.empty(ROOM_BYTES, np.uint8)
    view = room.data
    rows: list[tuple[int, ...]] = []
    size = 0
    try:
        for position, header in run:
            packed = whole[position + HEADER_SIZE : position + header.size]
            count = decompress_into(header.compression, packed, view[size:])
            if count is None and rows:
                yield _input(view[:size], rows)
                rows, size = [], 0
                count = decompress_into(header.compression, packed, view)
            if count is None:  # too large, or damaged, which raises here
                alone = memoryview(record_bytes(whole, position, header))
                yield _input(alone, [_row(0, len(alone), header)])
                continue
            rows.append(_row(size, size + count, header))
            size += count
            if size >= FLUSH_BYTES:
                yield _input(view[:size], rows)
                rows, size = [], 0
        if rows:
            yield _input(view[:size], rows)
    finally:
        if not _free_buffers:
            _free_buffers.append(room)


def _row(begin: int, end: int, header: BatchHeader) -> tuple[int, ...]:
    if header.record_count * MIN_RECORD_SIZE > end - begin:
        raise CorruptRecordError(f"{header.record_count} records do not fit into {end - begin} bytes")
    times = (header.base_timestamp, header.timestamp_type, header.max_timestamp)
    of_batch = (header.partition_leader_epoch, header.is_transactional)
    return (begin, end, header.record_count, header.base_offset, *times, *of_batch, 0)


def _input(data: memoryview, rows: list[tuple[int, ...]]) -> _Input:
    segments = np.array(rows, np.int64)
    return _Input(np.frombuffer(data.toreadonly(), np.uint8), segments, int(segments[:, 2].sum()))


class _Records:
    """The records of one piece, found but not copied yet."""

    def __init__(self, kernel: Kernel, piece: _Input, wanted: tuple[int, int]) -> None:
        room = piece.records
        self._kernel = kernel
        self._data = piece.data
        self._segments = piece.segments
        self._offsets, self._timestamps = np.empty(room, np.int64), np.empty(room, np.int64)
        self._types = np.empty(room, np.int32)
        self._spans = np.empty((room + 1, SPAN_COLUMNS), np.int64)
        self.rows, status, failed = kernel.parse(
            piece.data, piece.segments, *wanted, self._offsets, self._timestamps, self._types, self._spans
        )
        if status != OK:
            base_offset = int(piece.segments[failed][3])
            raise CorruptRecordError(f"a record of the batch at offset {base_offset} {REASONS[status]}")

    def columns(self, names: frozenset[str]) -> dict[str, Array]:
        """The requested columns."""
        rows = self.rows
        makers: dict[str, Callable[[], Array]] = {
            "key": lambda: self._field(pa.binary(), self._spans, KEY, rows),
            "value": lambda: self._field(pa.binary(), self._spans, VALUE, rows),
            "offset": lambda: pa.array(self._offsets[:rows]),
            "timestamp": lambda: _timestamps(self._timestamps[:rows]),
            "timestampType": lambda: pa.array(self._types[:rows]),
            HEADERS: lambda: self._headers(rows),
            LEADER_EPOCH: self._epochs,
            IS_TRANSACTIONAL: lambda: pa.array(self._of_batches(TRANSACTIONAL_AT) != 0),
        }
        return {name: make() for name, make in makers.items() if name in names}

    def _field(self, column_type: pa.DataType, spans: npt.NDArray[np.int64], field: int, rows: int) -> Array:
        starts, valid = np.empty(rows + 1, np.int32), np.empty(rows, np.uint8)
        out = np.empty(self._kernel.measure(spans, field, rows, starts, valid), np.uint8)
        self._kernel.gather(self._data, spans, field, rows, starts, out)
        return pa.Array.from_buffers(column_type, rows, [_bitmap(valid), _buffer(starts), _buffer(out)])

    def _epochs(self) -> Array:
        epochs = self._of_batches(LEADER_EPOCH_AT).astype(np.int32)
        return pa.array(epochs, mask=epochs < 0)

    def _of_batches(self, column: int) -> npt.NDArray[np.int64]:
        """A column of the segments, for each record."""
        return np.repeat(self._segments[:, column], self._segments[:, ROWS_AT])

    def _headers(self, rows: int) -> Array:
        starts, valid = np.empty(rows + 1, np.int32), np.empty(rows, np.uint8)
        count = self._kernel.count_headers(self._data, self._spans, rows, starts, valid)
        spans = np.empty((count, SPAN_COLUMNS), np.int64)
        self._kernel.find_headers(self._data, self._spans, rows, spans)
        names = _repaired(self._field(pa.string(), spans, KEY, count))
        values = self._field(pa.binary(), spans, VALUE, count)
        list_type = arrow_schema([HEADERS]).field(0).type
        pairs = pa.StructArray.from_arrays([names, values], names=["key", "value"])
        return pa.Array.from_buffers(list_type, rows, [_bitmap(valid), _buffer(starts)], children=[pairs])


def _buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.data)


def _bitmap(valid: npt.NDArray[Any]) -> pa.Buffer | None:
    return None if valid.all() else _buffer(np.packbits(valid, bitorder="little"))


def _repaired(names: Array) -> Array:
    """The names of headers; if one is not valid UTF-8 (rare), decoded as by the other decoder."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(names), names.buffers()).to_pylist()
        return pa.array([str(name or b"", "utf-8", "replace") for name in raw], pa.string())
    return names


def _timestamps(microseconds: npt.NDArray[np.int64]) -> Array:
    possible = microseconds != NULL_TIMESTAMP
    room = [_bitmap(possible), _buffer(microseconds)]
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(microseconds), room)
