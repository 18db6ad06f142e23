"""Records of one shape, found and read many at a time.

Theory. Most producers send records that are alike: keys and values of one length each, without headers. Encoded, each
of them is then as long as the one before, and the lengths of the record and of its fields have the same positions and
bytes. So one record is read number by number, and the others are compared with it, a byte of all of them at a time:
`data[place::stride]` is one call. Equal bytes at equal places mean what they meant in the first record. Only two
numbers may differ: the offset, which has to go up by one (a table has its bytes), and the time, which has to have the
same number of bytes. A run ends before the first record that differs in any other way; such records, and all damaged
ones, are left to the loop in `record_decode`.

The batches of one producer are alike, too. A shape is cached under the first bytes of its records, and tried on the
next batch before a shape is derived from a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from muster.errors import CorruptRecordError
from muster.protocol.records.varints import read_varint, signed

WORTH_IT = 4
"""Fewer records are not read as a run."""

_STEP, _STEP_AFTER_RUN = 64, 8
"""How many records are read one by one before the next search for a run; doubled after each unsuccessful search."""

_SHORT, _GROWTH = 512, 16
"""The records among which the first run is searched for, and the factor from one run's records to the next search."""

_BLOCK = 1 << 13
"""This many relative offsets have all their bytes after the second in common."""
_FIRSTS = bytes(range(0, 128, 2))
"""The byte of the relative offsets from 0 to 63."""
_LOWS = bytes(range(128, 256, 2)) * (_BLOCK >> 6)
"""The first byte of larger ones, from any multiple of `_BLOCK` on."""
_HIGHS = b"".join(bytes((high,)) * 64 for high in range(128))
"""The second byte, where it is the last."""
_MIDDLES = b"".join(bytes((high | 128,)) * 64 for high in range(128))
"""The second byte, where more follow."""

_TABLES = ((), (_FIRSTS,), (_LOWS, _HIGHS), (_LOWS, _MIDDLES))
"""The tables for the first bytes of an offset, by its number of bytes."""

_CONTINUES = bytes(128) + bytes((1,)) * 128
"""Whether a byte is followed by another one of the same number."""
_SIGNED = tuple(map(signed, range(128)))
"""The numbers of one byte."""

_WIDEST_TIME = 5
"""In bytes. Times with longer deltas are months apart."""

_MANY_SHAPES = 256

_WIDEST_LENGTH = 5
"""A record length of more bytes than this is invalid."""


class _RunShape(NamedTuple):
    """What the records of a run have in common. Places are counted from a record's first byte."""

    stride: int
    """The bytes from one record to the next."""
    fixed: tuple[tuple[int, bytes], ...]
    """The places of bytes that are the same in all of them, and these bytes."""
    time: int
    """Where the timestamp delta begins."""
    offset: int
    """Where the offset delta begins."""
    key: int
    """Where the key's length begins."""
    layout: Struct
    """Reads key and value."""
    null_key: bool
    null_value: bool


class RecordRun(NamedTuple):
    """Records of one shape."""

    records: int
    """Their number."""
    end: int
    """The position after the last."""
    offset: int
    """The offset of the first, relative to the batch's."""
    times: int | list[int]
    """The timestamp of all of them, or of each, relative to the batch's."""
    fields: Iterator[tuple[bytes, bytes]]
    """Key and value of each, b"" for null."""
    null_key: bool
    null_value: bool


_LAYOUT = _RunShape._fields.index("layout")
"""The index of `layout`: the fields before it determine the others."""

_shapes: dict[tuple[int, int], _RunShape] = {}
"""The shapes seen, by the first two bytes of their records."""


def pieces(
    data: bytes, count: int, take_run: Callable[[RecordRun, int], None], one_by_one: Callable[[int, int, int], int]
) -> None:
    """Go through the records of a batch: each run goes to `take_run`, with the index of its first record. All others
    go to `one_by_one`, which gets a position, the index of the record there and that of the record to stop before, and
    returns the position after them.

    While searches find nothing, they become less and less frequent, and each begins with few records: the cost of a
    search grows with the number of records searched, even if the run ends early.

    Raises:
        CorruptRecordError: bytes left after the last record.
    """
    position, done, step, most = 0, 0, _STEP, _SHORT
    if count < WORTH_IT:  # no run can be found in a batch this small
        position, done = one_by_one(0, 0, count), count
    while done < count:
        run = find_run(data, position, min(count - done, most))
        if run is not None:
            take_run(run, done)
            position, done, step = run.end, done + run.records, _STEP_AFTER_RUN
            most = max(_SHORT, run.records * _GROWTH)
        else:
            stop = min(done + step, count)
            position = one_by_one(position, done, stop)
            done, step, most = stop, step * 2, _SHORT
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes left after the last record")


def find_run(data: bytes, position: int, limit: int) -> RecordRun | None:
    """The run of at most `limit` records that begins at `position`; None if it is too short."""
    if limit < WORTH_IT:
        return None
    try:
        low, high = data[position], data[position + 1]
        stride = (low >> 1) + 1 if low < 0x80 else ((low & 0x7F) >> 1) + (high << 6) + 2
        if data[position + stride] != low:
            return None
        known = _shapes.get((low, high))
        if known is not None and (run := _run(data, position, limit, known)) is not None:
            return run
        shape = _shape(data, position)
        if shape is None or (known is not None and shape[:_LAYOUT] == known[:_LAYOUT]):
            return None
        if len(_shapes) >= _MANY_SHAPES:
            _shapes.clear()
        _shapes[low, high] = shape
        return _run(data, position, limit, shape)
    except (IndexError, CorruptRecordError):
        return None


def _run(data: bytes, position: int, limit: int, shape: _RunShape) -> RecordRun | None:
    """The run of records of this shape; None if it is too short."""
    stride = shape.stride
    count = min(limit, (len(data) - position) // stride)
    end = position + count * stride
    for place, byte in shape.fixed:
        column = data[position + place : end : stride]
        if column != byte * count:
            count -= len(column.lstrip(byte))
            end = position + count * stride
    if count < WORTH_IT:
        return None
    offset, count = _offsets(data, position, count, shape)
    if count < WORTH_IT:
        return None
    times, count = _times(data, position, count, shape)
    if count < WORTH_IT:
        return None
    end = position + count * stride
    fields = shape.layout.iter_unpack(memoryview(data)[position:end])
    return RecordRun(count, end, offset, times, fields, shape.null_key, shape.null_value)


def _offsets(data: bytes, position: int, count: int, shape: _RunShape) -> tuple[int, int]:
    """The offset of the first record, and how many records have offsets that go up by one, with the same number of
    bytes."""
    stride, begin, width = shape.stride, position + shape.offset, shape.key - shape.offset
    offset, after = read_varint(data, begin)
    if after - begin != width:
        return 0, 0
    first = offset % _BLOCK
    for place, table in enumerate(_TABLES[min(width, 3)], begin):
        column = data[place : position + count * stride : stride]
        expected = table[first : first + count]
        if column != expected:
            count = _common(column, expected)
    for place in range(begin + 2, after):
        column = data[place : position + count * stride : stride]
        count -= len(column.lstrip(column[:1]))
    return offset, count


def _common(column: bytes, expected: bytes) -> int:
    """The length of the common prefix."""
    size = min(len(column), len(expected))
    different = int.from_bytes(column[:size], "little") ^ int.from_bytes(expected[:size], "little")
    return ((different & -different).bit_length() - 1) >> 3 if different else size


def _times(data: bytes, position: int, count: int, shape: _RunShape) -> tuple[int | list[int], int]:
    """The timestamp delta of all records, or of each, and how many records have one of this length."""
    begin, width, end = position + shape.time, shape.offset - shape.time, position + count * shape.stride
    column = data[begin : end : shape.stride]
    if width == 1 and column.isascii() and column == column[:1] * count:
        return _SIGNED[data[begin]], count
    time, after = read_varint(data, begin)
    if after - begin != width:
        return 0, 0
    columns = [data[place : end : shape.stride] for place in range(begin, after)]
    alike = min([count - len(column.lstrip(column[:1])) for column in columns])
    if alike == count or width > _WIDEST_TIME:
        return time, alike
    for column in columns:
        wrong = column.translate(_CONTINUES).find(column is columns[-1], 0, count)
        count = wrong if wrong >= 0 else count
    if width == 1:
        return [_SIGNED[low] for low in columns[0][:count]], count
    numbers: Iterable[int] = columns.pop()[:count]
    for column in reversed(columns):
        numbers = [(high - 1 << 7) + low for high, low in zip(numbers, column, strict=False)]
    return [(number >> 1) ^ -(number & 1) for number in numbers], count


def _shape(data: bytes, position: int) -> _RunShape | None:
    """The shape of a record, if it has no headers, is valid, and another of its length follows."""
    size, body = read_varint(data, position)
    end = body + size
    if data[position:body] != data[end : end + body - position] or body - position > _WIDEST_LENGTH:
        return None
    time = body + 1  # skips the attributes
    _, offset = read_varint(data, time)
    _, key = read_varint(data, offset)
    key_size, key_begins = read_varint(data, key)
    key_ends = key_begins + max(key_size, 0)
    value_size, value_begins = read_varint(data, key_ends)
    value_ends = value_begins + max(value_size, 0)
    if data[value_ends] or value_ends + 1 != end or min(key_size, value_size) < -1:
        return None
    places = (*range(position, body), *range(key, key_begins), *range(key_ends, value_begins), value_ends)
    sizes = key_begins - position, key_ends - key_begins, value_begins - key_ends, value_ends - value_begins
    return _RunShape(
        end - position,
        tuple((place - position, data[place : place + 1]) for place in places),
        time - position,
        offset - position,
        key - position,
        Struct("{}x{}s{}x{}sx".format(*sizes)),
        key_size < 0,
        value_size < 0,
    )
