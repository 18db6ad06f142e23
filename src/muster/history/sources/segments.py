"""Reads the log of one topic partition from a folder, walking over the record batches of its segment files.

The folder may be in use, copied while it was written, truncated by a crash, or damaged. Nothing in it is locked, mapped
or written: a segment that is truncated while it is read is read up to its end. What cannot be read is reported, and the
rest is read: a batch with a wrong CRC is skipped; after bytes that are not a batch the next batch is searched for.

Offsets committed in a transaction count once it is committed, as for Kafka's coordinator: records of aborted and of
open transactions are dropped. Only the markers show which these are, so the headers are walked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from muster.arrow import Decoder
from muster.errors import CorruptRecordError
from muster.history.rules.wording import count
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.protocol.records.control_records import is_abort_marker
from muster.protocol.records.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    UnsupportedMagicError,
    check_batch,
    next_header,
    unpack_header,
)

PIECE_BYTES = 4 << 20
_MAGIC_AT = 16
_END = 2**63 - 1
_FAR = 2**31
"""After damage a batch is only accepted if its offset is at most this far ahead."""


class BatchRun(NamedTuple):
    """Consecutive whole batches in a file, and the offsets wanted from them."""

    path: Path
    begin: int
    end: int
    first: int
    last: int


class _Aborted(NamedTuple):
    """A transaction that does not count: its producer, its first offset, and the offset of its marker."""

    producer_id: int
    first: int
    marker: int


class OpenedTransaction(NamedTuple):
    """An open transaction: its first offset, and the epoch and time of its producer's last batch."""

    first: int
    epoch: int
    last_ms: int


@dataclass(slots=True)
class LogPlan:
    """What to read from one log."""

    runs: list[BatchRun] = field(default_factory=list)
    aborted: list[_Aborted] = field(default_factory=list)
    next_offset: int = 0
    records: int = 0
    open: dict[int, OpenedTransaction] = field(default_factory=dict)
    """Producers with an open transaction."""
    last_ms: int = -1
    """The largest time of a batch."""


def plan_log(paths: Iterable[Path], warnings: ReaderWarnings) -> LogPlan:
    """Walk the headers of a log's segments, in order of offset, to read its records."""
    found = LogPlan()
    walk(paths, found, warnings)
    if found.open:
        first = min(each.first for each in found.open.values())
        warnings.add(f"left out: {count(len(found.open), 'open transaction')}, from offset {first} on")
    found.aborted += [_Aborted(producer_id, each.first, _END) for producer_id, each in found.open.items()]
    return found


def walk(paths: Iterable[Path], found: LogPlan, warnings: ReaderWarnings) -> None:
    """Add what the headers of a log's segments, in order of offset, show from `found.next_offset` on."""
    for path in paths:
        try:
            _walk(path, found, warnings)
        except OSError as error:
            warnings.add(f"{path} could not be read ({error.strerror or error}): its records are missing")


def read(plan: LogPlan, decoder: Decoder, warnings: ReaderWarnings) -> Iterator[pa.RecordBatch]:
    """The records of a plan, in order of offset."""
    for run in plan.runs:
        aborted = [(t.producer_id, t.first) for t in plan.aborted if t.first <= run.last and t.marker >= run.first]
        try:
            with run.path.open("rb") as file:
                file.seek(run.begin)
                data = file.read(run.end - run.begin)
        except OSError as error:
            warnings.add(f"{run.path} could not be read ({error.strerror or error}): its records are missing")
            continue
        if len(data) < run.end - run.begin:
            warnings.add(f"{run.path} became shorter while it was read")
        yield from _decode(data, run, aborted, decoder, warnings)


def _decode(
    data: bytes, run: BatchRun, aborted: list[tuple[int, int]], decoder: Decoder, warnings: ReaderWarnings
) -> Iterator[pa.RecordBatch]:
    try:
        yield from list(decoder.decode(data, run.first, _END, aborted).batches)
        return
    except CorruptRecordError:
        pass
    for begin, end in _sound(data, run.path, warnings):
        try:
            batch = memoryview(data)[begin:end]
            yield from list(decoder.decode(batch, run.first, _END, aborted).batches)
        except CorruptRecordError as error:
            warnings.add(f"{run.path}: a batch could not be decoded and was skipped: {error}")


def _sound(data: bytes, path: Path, warnings: ReaderWarnings) -> Iterator[tuple[int, int]]:
    """The positions of batches with a correct CRC."""
    position = 0
    while (header := next_header(data, position)) is not None:
        try:
            check_batch(data, position, header)
            yield position, position + header.size
        except CorruptRecordError as error:
            warnings.add(f"{path}: offsets {header.base_offset} to {header.last_offset} were skipped: {error}")
        position += header.size


# --- the walk --------------------------------------------------------------------------------------------------------


class _File:
    """A file's bytes, up to its size when it was opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size = self._file.seek(0, 2)
        self._data = b""
        self._start = 0

    def at(self, position: int, size: int) -> tuple[bytes, int]:
        """Bytes, and the index of `position` in them; at least `size` follow, if the file has them."""
        if not self._start <= position or position + size > self._start + len(self._data):
            self._file.seek(position)
            self._data = self._file.read(max(size, PIECE_BYTES))
            self._start = position
        return self._data, position - self._start

    def close(self) -> None:
        self._file.close()


def _walk(path: Path, found: LogPlan, warnings: ReaderWarnings) -> None:
    file = _File(path)
    try:
        position: int | None = 0
        run: BatchRun | None = None
        while position is not None:
            header = _header(file, position)
            if header is None:
                _end(run, found)
                run = None
                position = _after_damage(path, file, position, found.next_offset, warnings)
                continue
            run = _take(path, file, position, header, run, found)
            position += header.size
        _end(run, found)
    finally:
        file.close()


def _header(file: _File, position: int) -> BatchHeader | None:
    """The header of the whole batch at a position, if there is one."""
    try:
        header = unpack_header(*file.at(position, HEADER_SIZE))
    except CorruptRecordError:
        return None
    return header if _makes_sense(header) and position + header.size <= file.size else None


def _makes_sense(header: BatchHeader) -> bool:
    return (
        header.batch_length >= HEADER_SIZE - LOG_OVERHEAD
        and header.record_count >= 0
        and header.last_offset_delta >= 0
        and 0 <= header.base_offset < _END - _FAR
    )


def _take(
    path: Path, file: _File, position: int, header: BatchHeader, run: BatchRun | None, found: LogPlan
) -> BatchRun | None:
    """Add a batch to the run, or begin another one. A batch that an earlier segment already had is skipped."""
    if header.last_offset < found.next_offset:
        _end(run, found)
        return None
    if header.has_producer_id and (header.is_transactional or header.is_control):
        _note_transaction(file, position, header, found)
    first = max(header.base_offset, found.next_offset)
    if run is not None and position + header.size - run.begin > PIECE_BYTES:
        _end(run, found)
        run = None
    found.next_offset = header.next_offset
    found.last_ms = max(found.last_ms, header.max_timestamp)
    found.records += 0 if header.is_control else header.record_count
    end = position + header.size
    if run is None:
        return BatchRun(path, position, end, first, header.last_offset)
    return run._replace(end=end, last=header.last_offset)


def _end(run: BatchRun | None, found: LogPlan) -> None:
    if run is not None:
        found.runs.append(run)


def _note_transaction(file: _File, position: int, header: BatchHeader, found: LogPlan) -> None:
    opened = found.open.get(header.producer_id)
    if not header.is_control:
        first = header.base_offset if opened is None else opened.first
        found.open[header.producer_id] = OpenedTransaction(first, header.producer_epoch, header.max_timestamp)
        return
    found.open.pop(header.producer_id, None)
    try:
        aborts = is_abort_marker(*file.at(position, header.size), header)
    except CorruptRecordError:
        aborts = True  # nothing shows that it was committed
    if aborts and opened is not None:
        found.aborted.append(_Aborted(header.producer_id, opened.first, header.base_offset))


# --- damage ----------------------------------------------------------------------------------------------------------


def _after_damage(path: Path, file: _File, position: int, expected: int, warnings: ReaderWarnings) -> int | None:
    """The start of the next batch after bytes that are not a batch; None if there is none. Reports what is skipped."""
    left = file.size - position
    if left <= 0:
        return None
    if _is_older(*file.at(position, min(left, PIECE_BYTES))):
        warnings.add(f"{path} has message sets from before Kafka 0.11, which are not read")
        return None
    found = _find_batch(file, position, expected)
    if found is not None:
        warnings.add(f"{path}: skipped {found - position} bytes at position {position}, which are not a record batch")
        return found
    data, at = file.at(position, min(left, PIECE_BYTES))
    if left > PIECE_BYTES or any(memoryview(data)[at:]):  # zeros are preallocated space
        warnings.add(
            f"{path} ends with {left} bytes that are not a whole batch (from offset {expected} on): "
            "a crash, or a copy of a file that was being written"
        )
    return None


def _is_older(data: bytes, at: int) -> bool:
    try:
        unpack_header(data, at)
    except UnsupportedMagicError:
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        return data[at + _MAGIC_AT] in (0, 1) and 14 <= length <= len(data) - at
    except CorruptRecordError:
        pass
    return False


def _find_batch(file: _File, position: int, expected: int) -> int | None:
    """The position of the first whole batch with a correct CRC from there on."""
    while position + HEADER_SIZE <= file.size:
        data, at = file.at(position, min(PIECE_BYTES, file.size - position))
        for begin in _candidates(data, at):
            header = unpack_header(data, begin)
            place = position + begin - at
            near = expected <= header.base_offset < expected + _FAR
            if near and _makes_sense(header) and place + header.size <= file.size and _is_whole(file, place, header):
                return place
        position += max(1, len(data) - at - HEADER_SIZE + 1)
    return None


def _candidates(data: bytes, at: int) -> Iterator[int]:
    magic = data.find(MAGIC, at + _MAGIC_AT)
    while 0 <= magic <= len(data) - HEADER_SIZE + _MAGIC_AT:
        yield magic - _MAGIC_AT
        magic = data.find(MAGIC, magic + 1)


def _is_whole(file: _File, place: int, header: BatchHeader) -> bool:
    try:
        check_batch(*file.at(place, header.size), header)
    except CorruptRecordError:
        return False
    return True
