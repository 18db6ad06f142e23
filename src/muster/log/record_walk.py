"""Checks the records of a batch without decoding them: are they all there and whole, have they keys, which times?

Every batch that a client sends is checked so before it is written, as in Kafka: a stored batch that cannot be read
would stop every consumer of its partition. The check must not cost much more than the write, so it works in two ways:

- Record by record, some 0.4 µs each.
- In runs. Records of one producer tend to be alike: the same size, with key and value at the same places. Then the
  first bytes of all records of a run lie at equal distances, and so do the second bytes, and all other bytes outside of
  key and value. One slice with that step extracts such a byte of all records, and comparing the slice costs next to
  nothing. After each record that was read singly a run is looked for, first of a few records, then of more and more;
  where there are no runs they are looked for less and less often.
"""

from __future__ import annotations

import sys
from array import array
from typing import Literal, NamedTuple

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import (
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    read_header,
    record_bytes,
)
from muster.protocol.records.varints import read_varint, read_zigzag

MAX_ERRORS = 1_000
"""How many bad records of a batch are named to its producer. Kafka names all, but a few bytes can mean millions."""

_SHORTEST_RUN = 16
_LONGEST_RUN = 1 << 15
_GROWTH = 64
"""How much longer a run is looked for behind one that was found: the look fails early where there is none."""

_MAX_WAIT = 4_096
_WIDER_OFFSETS = (64, 8_192, 1 << 20, 1 << 27)
"""The first offsets within a batch that need one more byte each."""

_INTEGERS: dict[int, tuple[Literal["B", "H", "I"], int]] = {1: ("B", 1), 2: ("H", 2), 3: ("I", 4), 4: ("I", 4)}
"""For the bytes of a varint: the type of an array that holds it, and that type's bytes."""

_MAX_VARINT = 5
_NULL = 1
"""The length -1 as it is encoded."""
_FLIP_HIGH_BIT = bytes(byte ^ 0x80 for byte in range(256))
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))
_BYTES = [bytes((byte,)) for byte in range(256)]
_INT64 = range(-(1 << 63), 1 << 63)


class RecordLengthError(CorruptRecordError):
    """A record's length that is not a valid number, for which Kafka has an error code of its own."""


class Rules(NamedTuple):
    """What each record must satisfy: whether it needs a key, and the bounds of its timestamp (ms, inclusive)."""

    needs_key: bool
    earliest: int
    latest: int


class BadRecord(NamedTuple):
    """A record that is whole but not allowed: because of its `timestamp` or, if that is None, for lack of a key."""

    at: int
    offset_delta: int
    timestamp: int | None


class Walk(NamedTuple):
    """The result. `bad` holds the first of `bad_count` records; `in_sequence`: offsets count up from the base."""

    max_timestamp: int
    in_sequence: bool
    bad: list[BadRecord]
    bad_count: int


def walk(data: bytes | memoryview, header: BatchHeader, rules: Rules) -> Walk:
    """Check all records of a batch; `data` is what follows its header, decompressed. Runs are taken out of a view
    without a copy of the rest; a view of which many records are in no run is copied.

    Raises:
        RecordLengthError: a record's length is not a valid number.
        CorruptRecordError: the records are not as many as the header says, or one of them is broken.
    """
    walker = _Walker(data, header.record_count, rules.needs_key)
    walker.walk()
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        first = last = header.max_timestamp
    else:
        first, last = header.base_timestamp + walker.earliest, header.base_timestamp + walker.latest
    if rules.earliest <= first and last <= rules.latest and not walker.lacks_key:
        return Walk(last, walker.in_sequence, [], 0)
    return _look_closely(data, header, rules, walker.in_sequence)


def _look_closely(data: Buffer, header: BatchHeader, rules: Rules, in_sequence: bool) -> Walk:
    """Find the bad records of a batch; all records are known to be whole, and some to be bad."""
    position, latest = 0, _INT64.start
    bad: list[BadRecord] = []
    bad_count = 0
    for index in range(header.record_count):
        size, position = read_varint(data, position)
        time_delta, offset = read_varint(data, position + 1)
        offset_delta, key = read_varint(data, offset)
        timestamp = header.max_timestamp
        if not header.timestamp_type:  # sums wrap around as in Java
            timestamp = (header.base_timestamp + time_delta - _INT64.start) % (1 << 64) + _INT64.start
        latest = max(latest, timestamp)
        keyless = rules.needs_key and read_varint(data, key)[0] < 0
        if keyless or not (timestamp == NO_TIMESTAMP or rules.earliest <= timestamp <= rules.latest):
            bad_count += 1
            if len(bad) < MAX_ERRORS:
                bad.append(BadRecord(index, offset_delta, None if keyless else timestamp))
        position += size
    return Walk(latest, in_sequence, bad, bad_count)


def first_of_time(batch: Buffer, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record of a batch from `start_offset` on that is not earlier than `timestamp`.

    Raises CorruptRecordError."""
    header = read_header(batch)
    data, position = record_bytes(batch, 0, header), 0
    try:
        for _ in range(header.record_count):
            size, position = read_varint(data, position)
            time, offset = read_varint(data, position + 1)
            time = header.max_timestamp if header.timestamp_type else header.base_timestamp + time
            if time >= timestamp:
                offset = header.base_offset + read_varint(data, offset)[0]
                if offset >= start_offset:
                    return offset, time
            if size < 0:
                raise CorruptRecordError("a record has a negative length")
            position += size
    except IndexError:
        raise CorruptRecordError("a record reaches behind the end of its batch") from None
    return None


class _Layout(NamedTuple):
    """Where the parts of a record lie, from its first byte on: its numbers, and the bytes that are equal in a run."""

    size: int
    time: range
    offset: range
    fixed: list[int]


class _Walker:
    """Goes through the records of a batch, and keeps the extremes of their times, relative to the batch's base."""

    __slots__ = ("count", "data", "earliest", "in_sequence", "lacks_key", "latest", "needs_key")

    def __init__(self, data: bytes | memoryview, count: int, needs_key: bool) -> None:
        self.data = data
        self.count = count
        self.needs_key = needs_key
        self.earliest = _INT64.stop
        self.latest = _INT64.start
        self.in_sequence = True
        self.lacks_key = False

    def walk(self) -> None:
        """Raises as the function `walk` does."""
        index = position = 0
        wait = 1
        try_at = 1 if self.count > _SHORTEST_RUN else self.count
        while index < self.count:
            stop = min(try_at, self.count)
            try:
                start, position = self._singly(index, stop, position)
            except IndexError:
                raise CorruptRecordError("a record reaches behind the end of its batch") from None
            index = stop
            if index == self.count:
                break
            length = self._run(start, index)
            position += length * (position - start)
            index += length
            wait = 1 if length else min(wait * 2, _MAX_WAIT)
            if wait > _SHORTEST_RUN and not isinstance(self.data, bytes):
                self.data = bytes(self.data)
            try_at = index + wait if self.count - index > _SHORTEST_RUN else self.count
        if position != len(self.data):
            raise CorruptRecordError(f"{len(self.data) - position} bytes are left behind the last record")

    # ---------------------------------------------------------------------------------------------- record by record

    def _singly(self, first: int, stop: int, position: int) -> tuple[int, int]:  # noqa: C901
        """Walk through the records from `first` to `stop`. Returns where the last one begins and ends.

        Every record that is not in a run comes through here, so numbers of one and two bytes are read in place."""
        data, needs_key, earliest, latest = self.data, self.needs_key, self.earliest, self.latest
        start, expected, time_delta = position, first << 1, -1
        for index in range(first, stop):
            start = position
            number = data[position]
            position += 1
            if number >= 0x80:
                if (high := data[position]) < 0x80:
                    number += (high - 1) << 7
                    position += 1
                else:
                    number, position = self._length(start)
            if number & 1:
                raise CorruptRecordError(f"record {index} has a negative length")
            end = position + (number >> 1)
            number = data[position + 1]  # the byte before, the record's attributes, has no meaning
            position += 2
            if number >= 0x80:
                if (high := data[position]) < 0x80:
                    number += (high - 1) << 7
                    position += 1
                else:
                    number, position = read_zigzag(data, position - 1)
            if number != time_delta:
                time_delta = number
                delta = (number >> 1) ^ -(number & 1)
                if delta > latest:
                    latest = delta
                if delta < earliest:
                    earliest = delta
            number = data[position]
            position += 1
            if number >= 0x80:
                if (high := data[position]) < 0x80:
                    number += (high - 1) << 7
                    position += 1
                else:
                    number, position = read_zigzag(data, position - 1)
            if number != expected:
                self.in_sequence = False
            expected += 2
            number = data[position]
            position += 1
            if number >= 0x80:
                if (high := data[position]) < 0x80:
                    number += (high - 1) << 7
                    position += 1
                else:
                    number, position = read_zigzag(data, position - 1)
            if not number & 1:
                position += number >> 1
            elif number != _NULL:
                raise CorruptRecordError(f"record {index} has a key of {-(number >> 1) - 1} bytes")
            elif needs_key:
                self.lacks_key = True
            number = data[position]
            position += 1
            if number >= 0x80:
                if (high := data[position]) < 0x80:
                    number += (high - 1) << 7
                    position += 1
                else:
                    number, position = read_zigzag(data, position - 1)
            if not number & 1:
                position += number >> 1
            elif number != _NULL:
                raise CorruptRecordError(f"record {index} has a value of {-(number >> 1) - 1} bytes")
            if data[position]:
                position = self._headers(position)
            else:
                position += 1
            if position != end:
                raise CorruptRecordError(f"record {index} does not have the length that it says")
        self.earliest, self.latest = earliest, latest
        return start, position

    def _length(self, position: int) -> tuple[int, int]:
        number, end = read_zigzag(self.data, position)
        if end - position > _MAX_VARINT:
            raise RecordLengthError(f"a record's length of {end - position} bytes")
        return number, end

    def _headers(self, position: int) -> int:
        data = self.data
        count, position = _small(data, position)
        if count < 0 or count > len(data) - position:
            raise CorruptRecordError(f"a record with {count} headers")
        for _ in range(count):
            size, position = _small(data, position)
            if size < 0:
                raise CorruptRecordError("a record header without a key")
            position += size
            size, position = _small(data, position)
            if size < -1:
                raise CorruptRecordError(f"a record header of {size} bytes")
            position += max(size, 0)
            if position > len(data):
                raise CorruptRecordError("a record header reaches behind the end")
        return position

    # ---------------------------------------------------------------------------------------------- in runs

    def _run(self, start: int, index: int) -> int:
        """How many records behind the one at `start` are like it; the first of them is number `index`. All are good."""
        wider = next((offset for offset in _WIDER_OFFSETS if offset >= index), index)
        most = min(self.count, wider) - index
        layout = self._layout(start) if most >= _SHORTEST_RUN else None
        if layout is None:
            return 0
        first = start + layout.size
        most = min(most, (len(self.data) - first) // layout.size)
        found, length = 0, _SHORTEST_RUN
        while found < most and most >= _SHORTEST_RUN:
            length = min(length, most - found, _LONGEST_RUN)
            if self._alike(start, first + found * layout.size, index + found, length, layout):
                found += length
                length *= _GROWTH
            elif length <= _SHORTEST_RUN:
                break
            else:
                length //= 8
        return found

    def _layout(self, start: int) -> _Layout | None:
        """The layout of a record that was found to be whole; None if records of its kind form no runs."""
        data = self.data
        size, body = read_varint(data, start)
        _, offset = read_varint(data, body + 1)
        _, key = read_varint(data, offset)
        key_size, key_end = read_varint(data, key)
        value = key_end + max(key_size, 0)
        value_size, value_end = read_varint(data, value)
        if data[value_end + max(value_size, 0)] or (key_size < 0 and self.needs_key):
            return None  # with headers, or not allowed
        fixed = [*range(start, body), *range(key, key_end), *range(value, value_end), body + size - 1]
        return _Layout(
            body + size - start,
            range(body + 1 - start, offset - start),
            range(offset - start, key - start),
            [position - start for position in fixed],
        )

    def _alike(self, start: int, first: int, index: int, count: int, layout: _Layout) -> bool:
        """Whether `count` records from position `first` on are like the one at `start`."""
        data, size = self.data, layout.size
        stop = first + (count - 1) * size + 1
        for at in layout.fixed:
            if data[first + at : stop + at : size] != _BYTES[data[start + at]] * count:
                return False
        # A slice of a view is compared where it lies; to copy it takes three times as long.
        width = len(layout.offset)
        if not self.in_sequence or any(
            data[first + at : stop + at : size] != _offsets(place, width, index, count)
            for place, at in enumerate(layout.offset)
        ):
            if not _are_numbers([bytes(data[first + at : stop + at : size]) for at in layout.offset]):
                return False
            self.in_sequence = False
        if all(data[first + at : stop + at : size] == _BYTES[data[start + at]] * count for at in layout.time):
            return True  # the time of the record at `start`, which was taken in
        columns = [bytes(data[first + at : stop + at : size]) for at in layout.time]
        return _are_numbers(columns) and self._take_times(columns, count)

    def _take_times(self, columns: list[bytes], count: int) -> bool:
        """Take in the timestamps of a run. Returns False if they have to be read one by one."""
        found = _INTEGERS.get(len(columns))
        if found is None or b"\1" in columns[0].translate(_LOWEST_BIT):  # so wide, or negative
            return False
        code, width = found
        if width == 1:
            largest = _largest(columns[0])
        else:
            joined = bytearray(count * width)
            for at, column in enumerate(columns):
                joined[at if sys.byteorder == "little" else width - 1 - at :: width] = column
            largest = max(array(code, bytes(joined)))
        self.latest = max(self.latest, read_varint(largest.to_bytes(width, "little"), 0)[0])
        self.earliest = min(self.earliest, 0)
        return True


def _are_numbers(columns: list[bytes]) -> bool:
    """Whether the columns, one for each byte of a varint, hold only numbers of exactly so many bytes."""
    *heads, last = columns
    return last.isascii() and all(head.translate(_FLIP_HIGH_BIT).isascii() for head in heads)


def _largest(column: bytes) -> int:
    """The largest byte. Times mostly rise, so the last one tends to be it."""
    largest = column[-1]
    while column := column.translate(None, _UP_TO[largest]):
        largest = column[-1]
    return largest


_UP_TO = [bytes(range(most + 1)) for most in range(256)]

_CYCLES = {more: bytes(n << 1 | more for n in range(64)) for more in (0, 0x80)}
"""First bytes of the varints of 64 offsets, the last bytes of theirs or not."""


def _offsets(place: int, width: int, index: int, count: int) -> bytes:
    """Byte number `place` of the varints of offsets from `index` on, `width` bytes each."""
    if width == 2:
        return _TWO_BYTES[place][index - _WIDER_OFFSETS[0] :][:count]
    return _column(place, width, index, count)


def _column(place: int, width: int, index: int, count: int) -> bytes:
    """What `_offsets` returns, made anew."""
    more = 0x80 if place < width - 1 else 0
    if not place:
        cycle = _CYCLES[more]
        return (cycle * (count // 64 + 2))[index % 64 :][:count]
    shift = 7 * place - 1  # so many bits of the offset count up before this byte changes
    end = index + count
    shared = range(index >> shift, (end - 1 >> shift) + 1)
    return b"".join(bytes([n & 0x7F | more]) * (min(n + 1 << shift, end) - max(n << shift, index)) for n in shared)


_TWO_BYTES = [_column(place, 2, _WIDER_OFFSETS[0], _WIDER_OFFSETS[1] - _WIDER_OFFSETS[0]) for place in range(2)]
"""The two bytes of all offsets that take two."""


def _small(data: Buffer, position: int) -> tuple[int, int]:
    """A number of 32 bits."""
    value, position = read_varint(data, position)
    if not -(1 << 31) <= value < 1 << 31:
        raise CorruptRecordError("a number of more than 32 bits")
    return value, position
