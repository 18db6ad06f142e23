"""Checks the records of a batch without decoding them: whether all are complete, their keys and their timestamps.

Every batch that a client sends is checked before it is written, as in Kafka: a stored batch that cannot be read would
stop every consumer of its partition. The check must not cost much more than the write: runs of similar records are
found as when decoding (`record_runs`); all others are checked one by one, at about 0.4 µs each.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import CorruptRecordError
from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import (
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    read_header,
    record_bytes,
)
from muster.protocol.records.record_runs import RecordRun, pieces
from muster.protocol.records.varints import read_varint, read_zigzag

MAX_ERRORS = 1_000
"""How many bad records of a batch are named to its producer. Kafka names all of them, but a few bytes can mean
millions."""

_MAX_VARINT = 5
_NULL = 1
"""The length -1 as it is encoded."""
_INT64 = range(-(1 << 63), 1 << 63)


class RecordLengthError(CorruptRecordError):
    """A record's length that is not a valid number, for which Kafka has an error code of its own."""


class RecordRules(NamedTuple):
    """What each record must satisfy: whether it needs a key, and the bounds of its timestamp (ms, inclusive)."""

    needs_key: bool
    earliest: int
    latest: int


class BadRecord(NamedTuple):
    """A record that is complete but not allowed: because of its `timestamp` or, if that is None, because it has no
    key."""

    at: int
    offset_delta: int
    timestamp: int | None


class Walk(NamedTuple):
    """The result. `bad` holds the first of `bad_count` records; `in_sequence`: offsets count up from the base."""

    max_timestamp: int
    in_sequence: bool
    bad: list[BadRecord]
    bad_count: int


def walk(data: bytes | memoryview, header: BatchHeader, rules: RecordRules) -> Walk:
    """Check all records of a batch; `data` is what follows its header, decompressed.

    Raises:
        RecordLengthError: a record's length is not a valid number.
        CorruptRecordError: the number of records differs from the header's, or a record is broken.
    """
    walker = _Walker(bytes(data), header.record_count, rules.needs_key)
    walker.walk()
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        first = last = header.max_timestamp
    else:
        first, last = header.base_timestamp + walker.earliest, header.base_timestamp + walker.latest
    if rules.earliest <= first and last <= rules.latest and not walker.lacks_key:
        return Walk(last, walker.in_sequence, [], 0)
    return _find_bad_records(data, header, rules, walker.in_sequence)


def _find_bad_records(data: Buffer, header: BatchHeader, rules: RecordRules, in_sequence: bool) -> Walk:
    """Find the bad records of a batch; all records are known to be complete, and some to be bad."""
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


def find_by_timestamp(batch: Buffer, timestamp: int, start_offset: int) -> tuple[int, int] | None:
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
        raise CorruptRecordError("a record reaches beyond the end of its batch") from None
    return None


class _Walker:
    """Walks through the records of a batch, and keeps their earliest and latest times, relative to the batch's base."""

    __slots__ = ("count", "data", "earliest", "in_sequence", "lacks_key", "latest", "needs_key")

    def __init__(self, data: bytes, count: int, needs_key: bool) -> None:
        self.data = data
        self.count = count
        self.needs_key = needs_key
        self.earliest = _INT64.stop
        self.latest = _INT64.start
        self.in_sequence = True
        self.lacks_key = False

    def walk(self) -> None:
        """Raises the same errors as the function `walk`."""
        try:
            pieces(self.data, self.count, self._take_run, self._singly)
        except IndexError:
            raise CorruptRecordError("a record reaches beyond the end of its batch") from None

    def _take_run(self, run: RecordRun, first: int) -> None:
        """Count a run, whose records are complete and whose offsets increase by one."""
        times = run.times
        least, most = (times, times) if isinstance(times, int) else (min(times), max(times))
        self.earliest = min(self.earliest, least)
        self.latest = max(self.latest, most)
        self.in_sequence = self.in_sequence and run.offset == first
        self.lacks_key = self.lacks_key or (run.null_key and self.needs_key)

    def _singly(self, position: int, first: int, stop: int) -> int:  # noqa: C901
        """Walk through the records from `first` to `stop`. Returns where the last one ends.

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
                raise CorruptRecordError(f"record {index} does not end where its length says")
        self.earliest, self.latest = earliest, latest
        return position

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
                raise CorruptRecordError("a record header reaches beyond the end")
        return position


def _small(data: Buffer, position: int) -> tuple[int, int]:
    """A number of 32 bits."""
    value, position = read_varint(data, position)
    if not -(1 << 31) <= value < 1 << 31:
        raise CorruptRecordError("a number of more than 32 bits")
    return value, position
