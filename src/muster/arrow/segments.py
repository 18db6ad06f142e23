"""Finds the fetched batches that hold wanted records: checks, the range asked for, transactions.

A fetch may begin before the offset asked for (its batch is sent whole) and may end in the middle of a batch. Batches
outside the range, control batches and, for read_committed, those of aborted transactions are skipped. The next offset
to fetch is always after the last complete batch: compaction and transactions leave gaps, so the end of a range is found
by offsets, never by counting records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.protocol.records.aborted import AbortedTransactions
from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import BatchHeader, check_batch, iter_headers


class EncodedBatch(NamedTuple):
    """One batch to decode: where it is and what its header says."""

    position: int
    header: BatchHeader


class Scan(NamedTuple):
    """The batches to decode, and where the next fetch has to begin."""

    segments: list[EncodedBatch]
    next_offset: int


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
        CorruptRecordError: a batch's header or CRC is wrong.
    """
    transactions = None if aborted is None else AbortedTransactions(aborted)
    segments: list[EncodedBatch] = []
    next_offset = start
    for position, header in iter_headers(buffer):
        if header.base_offset >= end:
            next_offset = max(next_offset, header.next_offset)
            break
        if check_crcs:  # before trusting anything that the CRC covers: a damaged last offset would hide records
            check_batch(buffer, position, header)
        behind = header.next_offset
        next_offset = max(next_offset, behind)
        if behind <= start:
            continue
        if transactions is not None and transactions.drops(buffer, position, header):
            continue
        if header.record_count and not header.is_control:
            segments.append(EncodedBatch(position, header))
        if behind >= end:
            break
    return Scan(segments, next_offset)
