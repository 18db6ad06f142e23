"""Decodes the records of a batch to objects: runs of records that are alike (`record_runs`) are read many at a time,
all others by the one loop over single records.

`record_batch` says what a batch is, and has the functions for callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Protocol

from muster.errors import CorruptRecordError
from muster.protocol.records.record_runs import WORTH_IT, RecordRun, pieces
from muster.protocol.records.varints import read_varint, read_zigzag, signed

RecordHeaders = list[tuple[str, bytes | None]]

_FAR = -(1 << 40)
_HALF = [-1 if number == 1 else _FAR if number & 1 else (number & 0x7F) >> 1 for number in range(256)]
"""The size that the first byte of a length stands for, -1 for null. If the result is below -1, use `read_varint`."""
_UPPER = [high << 6 if high < 0x80 else _FAR for high in range(256)]
"""What a second byte adds to the size."""


class Header(Protocol):
    """The parts of a batch's header that its records are relative to."""

    @property
    def base_offset(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...


class Decoded(Protocol):
    """The decoded parts of a record. `headers` stays unset for a record without headers (see `headers_on_demand`)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


def decode_records(data: bytes, header: Header, records: Sequence[Decoded]) -> None:
    """Fill blank objects with the records of a batch. Raises IndexError if the data end too early."""

    def take_run(run: RecordRun, first: int) -> None:
        _fill(run, header, records[first : first + run.records])

    def one_by_one(position: int, first: int, stop: int) -> int:
        return _one_by_one(data, position, header, records[first:stop])

    count = len(records)
    if count >= WORTH_IT:
        pieces(data, count, take_run, one_by_one)
    elif (end := _one_by_one(data, 0, header, records)) != len(data):
        raise CorruptRecordError(f"{len(data) - end} bytes left after the last record")


def _fill(run: RecordRun, header: Header, records: Sequence[Decoded]) -> None:
    """Fill blank objects with the records of a run."""
    if header.timestamp_type:
        times: Iterable[int] = repeat(header.max_timestamp)
    elif isinstance(run.times, int):
        times = repeat(header.base_timestamp + run.times)
    else:
        times = map(header.base_timestamp.__add__, run.times)
    offset = header.base_offset + run.offset
    for record, (key, value), timestamp in zip(records, run.fields, times, strict=False):
        record.offset = offset
        record.timestamp = timestamp
        record.key = key
        record.value = value
        offset += 1
    if run.null_key:
        for record in records:
            record.key = None
    if run.null_value:
        for record in records:
            record.value = None


def _one_by_one(data: bytes, position: int, header: Header, records: Iterable[Decoded]) -> int:  # noqa: C901
    """Fill objects with the records from `position` on, and return the position after them."""
    # The hot loop for records that are not alike: it fills existing objects, and decodes numbers of one and two bytes
    # in place, because a call for each of them would take half as long again. Values that neighbours share, the time
    # and the next offset, are computed only once. A record without headers is given none: a list for each would be as
    # much work for Python's garbage collector as the record. A field that extends beyond the end is found by the number
    # that must follow it: that is an IndexError.
    half, upper = _HALF, _UPPER
    base_offset = header.base_offset
    fixed_timestamp = header.max_timestamp if header.timestamp_type else None
    offset, next_delta = base_offset - 1, 0  # the delta as a zigzag number, as it is encoded
    timestamp, time_delta = 0, -1
    for record in records:
        start = position
        number = data[position]
        if number < 0x80:
            size = half[number]
            position += 1
        else:
            size = half[number] + upper[data[position + 1]]
            position += 2
        if size < -1:
            size, position = read_varint(data, start)
        end_of_record = position + size
        number = data[position + 1]  # the byte before, the record's attributes, has no meaning yet
        position += 2
        if number >= 0x80:
            if (high := data[position]) < 0x80:
                number += (high - 1) << 7
                position += 1
            else:
                number, position = read_zigzag(data, position - 1)
        if number != time_delta:
            time_delta = number
            timestamp = header.base_timestamp + signed(number) if fixed_timestamp is None else fixed_timestamp
        record.timestamp = timestamp
        number = data[position]
        position += 1
        if number >= 0x80:
            if (high := data[position]) < 0x80:
                number += (high - 1) << 7
                position += 1
            else:
                number, position = read_zigzag(data, position - 1)
        if number == next_delta:
            offset += 1
        else:
            offset = base_offset + signed(number)
            next_delta = (offset - base_offset) << 1
        next_delta += 2
        record.offset = offset
        begin = position
        number = data[position]
        if number < 0x80:
            size = half[number]
            position += 1
        else:
            size = half[number] + upper[data[position + 1]]
            position += 2
        if size < -1:
            size, position = read_varint(data, begin)
        if size >= 0:
            end = position + size
            record.key = data[position:end]
            position = end
        elif size == -1:
            record.key = None
        else:
            raise CorruptRecordError(f"a field of {size} bytes")
        begin = position
        number = data[position]
        if number < 0x80:
            size = half[number]
            position += 1
        else:
            size = half[number] + upper[data[position + 1]]
            position += 2
        if size < -1:
            size, position = read_varint(data, begin)
        if size >= 0:
            end = position + size
            record.value = data[position:end]
            position = end
        elif size == -1:
            record.value = None
        else:
            raise CorruptRecordError(f"a field of {size} bytes")
        if data[position]:
            record.headers, position = _read_headers(data, position)
        else:
            position += 1
        if position != end_of_record:
            said, _ = read_varint(data, start)
            raise CorruptRecordError(f"the record at offset {offset} does not have the {said} bytes that it declares")
    return position


def _read_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    if (byte := data[position]) < 0x80 and not byte & 1:
        position += 1
        end = position + (byte >> 1)
    else:
        length, position = read_varint(data, position)
        if length < 0:
            if length == -1:
                return None, position
            raise CorruptRecordError(f"a field of {length} bytes")
        end = position + length
    if end > len(data):
        raise CorruptRecordError("a field extends beyond the end of its batch")
    return data[position:end], end


def _read_headers(data: bytes, position: int) -> tuple[RecordHeaders, int]:
    count, position = read_varint(data, position)
    if count < 0 or count * 2 > len(data) - position:
        raise CorruptRecordError(f"a record with {count} headers")
    headers: RecordHeaders = []
    for _ in range(count):
        key, position = _read_nullable(data, position)
        if key is None:
            raise CorruptRecordError("a record header without a key")
        value, position = _read_nullable(data, position)
        headers.append((key.decode("utf-8", "replace"), value))
    return headers, position
