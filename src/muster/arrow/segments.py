"""Which of the fetched batches hold records for the reader: checks, the range asked for, transactions.

A fetch may begin before the offset asked for (its batch is sent whole) and may end in the middle of a batch. Batches
outside the range, control batches and, for read_committed, those of aborted transactions are passed over; the next
offset to fetch is behind the last whole batch, whatever was in it: compaction and transactions leave gaps, so the end
of a range is reached by offsets and never by counting records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from muster.protocol.compression import Buffer
from muster.protocol.record_batch import BatchHeader, check_batch, iter_headers, read_tuples

_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0


class Segment(NamedTuple):
    """One batch to decode: where it is and what its header says."""

    position: int
    header: BatchHeader


class Scan(NamedTuple):
    """The batches to decode, and where the next fetch has to begin."""

    segments: list[Segment]
    next_offset: int


class AbortedTransactions:
    """Which transactional batches of one fetch response were aborted (KIP-98).

    The response names the aborted transactions by producer and first offset. A producer's batches are void from there
    to its abort marker; it may abort again later, so the marker ends one entry and not the producer.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._open: set[int] = set()

    def drops(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch is to be passed over. Ask once for each batch, in order."""
        if not header.has_producer_id:
            return False
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.is_control:
            if _is_abort_marker(buffer, position, header):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def _is_abort_marker(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    records = read_tuples(buffer, position, header)
    key = records[0][2] if records else None
    return key is not None and len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT


def scan(
    buffer: Buffer,
    start: int,
    end: int,
    aborted: Sequence[tuple[int, int]] | None = None,
    check_crcs: bool = True,
) -> Scan:
    """The batches with records in `[start, end)`.

    `aborted` is the response's list of (producer id, first offset) for read_committed, None for read_uncommitted.

    Raises:
        CorruptRecordError: a batch's header or CRC is wrong; where that happened before, is not told apart.
    """
    transactions = None if aborted is None else AbortedTransactions(aborted)
    segments: list[Segment] = []
    next_offset = start
    for position, header in iter_headers(buffer):
        if header.base_offset >= end:
            next_offset = max(next_offset, header.next_offset)
            break
        if check_crcs:  # before anything that the CRC covers is believed: a damaged last offset would hide records
            check_batch(buffer, position, header)
        next_offset = max(next_offset, header.next_offset)
        if header.last_offset < start:
            continue
        if transactions is not None and transactions.drops(buffer, position, header):
            continue
        if header.record_count and not header.is_control:
            segments.append(Segment(position, header))
        if header.next_offset >= end:
            break
    return Scan(segments, next_offset)
