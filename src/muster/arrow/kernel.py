"""The numba kernel that turns encoded records into Arrow's buffers: no Python object for a record.

Importing this module compiles it, which takes seconds, or loads what was compiled earlier, in a fraction of one:
`muster.arrow.engine` imports it only for many records. One explicit signature: the input is always
a read-only array, so that there is no second specialisation.

The rules are those of `protocol.record_batch`; the tests compare the two record by record. What it refuses with
CorruptRecordError is reported here as a status. Varints are handled as uint64 throughout: numba would turn an int64 and
a uint64 into a float.

Two steps, because small functions over plain arrays are what numba compiles to fast code (with tuples of arrays between
the functions the same took three times as long): `parse` finds where each record's key, value and headers lie, then
`gather` copies one column, if it is wanted at all, into an array of exactly the size that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from muster.arrow.layout import (
    BAD_FIELD,
    BAD_HEADERS,
    BAD_VARINT,
    CUT_OFF,
    FARTHEST_OFFSET,
    HEADERS_AT,
    KEY,
    LEADER_EPOCH_AT,
    LEFT_OVER,
    MAX_MS,
    MIN_RECORD_SIZE,
    NOT_PLAIN,
    NULL_TIMESTAMP,
    OK,
    ROWS_AT,
    TRANSACTIONAL_AT,
    VALUE,
    WRONG_LENGTH,
)
from muster.protocol.records.record_batch import HEADER_SIZE, LOG_OVERHEAD, TIMESTAMP_TYPE_FLAG

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., Any])

_LENGTH, _TIME, _OFFSET, _KEY_SIZE, _VALUE_SIZE = range(5)
_NUMBERS = 5
"""The numbers of a record, in their order; the key's bytes follow the fourth, the value's the fifth."""

_types = numba.types
_data = _types.Array(_types.uint8, 1, "C", readonly=True)
_int32s, _int64s, _uint8s = _types.int32[::1], _types.int64[::1], _types.uint8[::1]
_table = _types.int64[:, ::1]


def _jit(signature: Any = None) -> Callable[[F], F]:
    def compile_it(function: F) -> F:
        compiled: F = numba.njit(signature, cache=True)(function) if signature else numba.njit(cache=True)(function)
        return compiled

    return compile_it


@_jit()
def _read_varint(data: Bytes, position: int, limit: int) -> tuple[int, int]:
    """The value and the position after it; a negative position is minus the status."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while position < limit:
        byte = np.uint64(data[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if shift == np.uint64(63) and byte > np.uint64(1):
                return 0, -BAD_VARINT
            return int(np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))), position
        shift += np.uint64(7)
        if shift > np.uint64(63):
            return 0, -BAD_VARINT
    return 0, -CUT_OFF


@_jit()
def _read_length(data: Bytes, position: int, limit: int) -> tuple[int, int]:
    """The length of a field, -1 for null, checked against what is left."""
    length, position = _read_varint(data, position, limit)
    if position < 0:
        return 0, position
    if length < -1 or length > limit - position:
        return 0, -BAD_FIELD
    return length, position


@_jit()
def _skip_headers(data: Bytes, position: int, limit: int) -> int:
    """Check a record's headers. The position after them, or minus a status."""
    count, position = _read_varint(data, position, limit)
    if position < 0:
        return position
    if count < 0 or count > (limit - position) // 2:
        return -BAD_HEADERS
    for _ in range(count):
        length, position = _read_length(data, position, limit)
        if position < 0 or length < 0:
            return position if position < 0 else -BAD_HEADERS
        length, position = _read_length(data, position + length, limit)
        if position < 0:
            return position
        position += max(length, 0)
    return position


@_jit()
def _microseconds(base: int, delta: int) -> int:
    """The timestamp base + delta (milliseconds) in microseconds, or the value that marks one out of range."""
    total = base + delta
    overflown = (delta > 0 and total < base) or (delta < 0 and total > base)
    if overflown or total > MAX_MS or total < -MAX_MS:
        return NULL_TIMESTAMP
    return total * 1000


@_jit()
def _big_endian(data: Bytes, position: int, size: int) -> int:
    """A signed number of a header."""
    value = np.uint64(0)
    for index in range(size):
        value = value << np.uint64(8) | np.uint64(data[position + index])
    shift = np.int64(64 - 8 * size)
    return int(np.int64(value << np.uint64(shift)) >> shift)


@_jit(_types.UniTuple(_types.int64, 2)(_data, _types.int64, _types.int64, _table, _int64s))
def walk(data: Bytes, start: int, end: int, segments: npt.NDArray[np.int64], crcs: Longs) -> tuple[int, int]:
    """Lay out `segments` for `parse`, with what each batch states as its CRC; return how many, and the offset after the
    last.

    It knows only plain batches, since most fetches have no others: uncompressed, not transactional, wholly in `[start,
    end)` except for the beginning of the first. For anything else, or a header that may be damaged, it gives up and
    returns -1. Then `segments.scan`, which has all the rules, is used.
    """
    position, count, next_offset = 0, 0, start
    while data.size - position > HEADER_SIZE:
        length = _big_endian(data, position + 8, 4)
        behind = position + LOG_OVERHEAD + length
        if length >= 0 and behind > data.size:
            return count, next_offset  # cut off: the next fetch has all of it
        base_offset, last_delta = _big_endian(data, position, 8), _big_endian(data, position + 23, 4)
        begin, records = position + HEADER_SIZE, _big_endian(data, position + 57, 4)
        attributes = _big_endian(data, position + 21, 2)
        if base_offset < 0 or base_offset > FARTHEST_OFFSET or last_delta < 0 or data[position + 16] != 2 or length < 0:
            return -1, start
        if attributes & NOT_PLAIN or records <= 0 or records * MIN_RECORD_SIZE > behind - begin:
            return -1, start
        if base_offset + last_delta < start or base_offset + last_delta >= end - 1:
            return -1, start
        next_offset = max(next_offset, base_offset + last_delta + 1)
        segments[count, 0] = begin
        segments[count, 1] = behind
        segments[count, 2] = records
        segments[count, 3] = base_offset
        segments[count, 4] = _big_endian(data, position + 27, 8)
        segments[count, 5] = attributes & TIMESTAMP_TYPE_FLAG != 0
        segments[count, 6] = _big_endian(data, position + 35, 8)
        segments[count, LEADER_EPOCH_AT] = _big_endian(data, position + 12, 4)
        segments[count, TRANSACTIONAL_AT] = 0
        crcs[count] = _big_endian(data, position + 17, 4) & 0xFFFFFFFF
        position = behind
        count += 1
    if position != data.size:
        return -1, start
    return count, next_offset


@_jit(_types.UniTuple(_types.int64, 3)(_data, _table, _types.int64, _types.int64, _int64s, _int64s, _int32s, _table))
def parse(  # noqa: C901
    data: Bytes,
    segments: npt.NDArray[np.int64],
    start: int,
    end: int,
    offsets: Longs,
    timestamps: Longs,
    types: Ints,
    spans: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Find the records with an offset in `[start, end)`: how many, the status, the segment that failed.

    A row of `segments` is: position, limit, record count, base offset, base timestamp, whether the batch has
    LogAppendTime, max timestamp, the leader's epoch, whether it is transactional; and the number of its rows, which is
    written here. A row of `spans` becomes: position and length of the key, of the value, position of the headers. Times
    are in microseconds.
    """
    # One function: with a call for each number and each record it took ten times as long, 170 ns per record.
    row = 0
    for index in range(segments.shape[0]):
        position, limit, count, base_offset, base_timestamp, append_time, max_timestamp, _, _, _ = segments[index]
        before = row
        for _ in range(count):
            stop = time_delta = offset_delta = 0
            for part in range(_NUMBERS):
                value = shift = np.uint64(0)
                byte = np.uint64(0x80)
                while byte >= np.uint64(0x80):
                    if position >= limit:
                        return row, CUT_OFF, index
                    byte = np.uint64(data[position])
                    if shift == np.uint64(63) and byte > np.uint64(1):
                        return row, BAD_VARINT, index
                    value |= (byte & np.uint64(0x7F)) << shift
                    shift += np.uint64(7)
                    position += 1
                number = int(np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)))
                if part == _LENGTH:
                    stop = position + number
                    position += 1  # passing over the attributes
                elif part == _TIME:
                    time_delta = number
                elif part == _OFFSET:
                    offset_delta = number
                else:
                    if number < -1 or number > limit - position:
                        return row, BAD_FIELD, index
                    field = KEY if part == _KEY_SIZE else VALUE
                    spans[row, field] = position
                    spans[row, field + 1] = number
                    position += max(number, 0)
            spans[row, HEADERS_AT] = position
            has_none = position < limit and data[position] == 0
            position = position + 1 if has_none else _skip_headers(data, position, limit)
            if position < 0:
                return row, -position, index
            if position != stop:
                return row, WRONG_LENGTH, index
            offset = base_offset + offset_delta
            if start <= offset < end and (offset_delta <= 0 or offset >= base_offset):
                offsets[row] = offset
                types[row] = append_time
                timestamps[row] = (
                    _microseconds(max_timestamp, 0) if append_time else _microseconds(base_timestamp, time_delta)
                )
                row += 1
        if position != limit:
            return row, LEFT_OVER, index
        segments[index, ROWS_AT] = row - before
    return row, OK, -1


@_jit()
def _copy(data: Bytes, position: int, length: int, out: Bytes, at: int) -> None:
    # Unsigned indices: for signed ones numba checks whether each counts from the end.
    source, target = np.uint64(position), np.uint64(at)
    for index in range(np.uint64(length)):
        out[target + index] = data[source + index]


@_jit(_types.int64(_table, _types.int64, _types.int64, _int32s, _uint8s))
def measure(spans: npt.NDArray[np.int64], field: int, rows: int, starts: Ints, valid: Bytes) -> int:
    """Compute where each row's bytes of a field begin, and which rows have one; return the total size."""
    total = 0
    starts[0] = 0
    for row in range(rows):
        length = spans[row, field + 1]
        valid[row] = length >= 0
        total += max(length, 0)
        starts[row + 1] = total
    return total


@_jit(_types.void(_data, _table, _types.int64, _types.int64, _int32s, _uint8s))
def gather(data: Bytes, spans: npt.NDArray[np.int64], field: int, rows: int, starts: Ints, out: Bytes) -> None:
    """Copy a field's bytes to the positions that `measure` computed."""
    for row in range(rows):
        _copy(data, spans[row, field], spans[row, field + 1], out, starts[row])


@_jit(_types.int64(_data, _table, _types.int64, _int32s, _uint8s))
def count_headers(data: Bytes, spans: npt.NDArray[np.int64], rows: int, starts: Ints, valid: Bytes) -> int:
    """Compute where each record's list of headers begins, and which have any; return the total number."""
    total = 0
    starts[0] = 0
    for row in range(rows):
        count, _ = _read_varint(data, spans[row, HEADERS_AT], data.size)
        valid[row] = count > 0
        total += count
        starts[row + 1] = total
    return total


@_jit(_types.void(_data, _table, _types.int64, _table))
def find_headers(data: Bytes, spans: npt.NDArray[np.int64], rows: int, found: npt.NDArray[np.int64]) -> None:
    """Where the headers' keys and values lie, as spans, for `measure` and `gather`."""
    at = 0
    for row in range(rows):
        count, position = _read_varint(data, spans[row, HEADERS_AT], data.size)
        for _ in range(count):
            for field in (KEY, VALUE):
                length, position = _read_varint(data, position, data.size)
                found[at, field] = position
                found[at, field + 1] = length
                position += max(length, 0)
            at += 1
