"""A log of many gigabytes that takes almost no disk: whole segments with their indexes, and holes for most batches.

Every batch is in the indexes, as the broker would have written them, but only a few per segment are in the file: the
space between was never written, reads as zeros and takes no disk. A start after a clean shutdown reads the indexes and
the last batch of each segment, and a fetch reads the batch at its offset, so neither reads a hole.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster.log.producers.producer_state import PartitionProducers
from muster.log.segments.segment import segment_name
from tests.support.written import build_batch

RECORDS = 16
"""Records in each batch, of 1 KB each: a batch of the size that producers make by default."""

SEGMENT_BYTES = 1 << 30
WRITTEN_OF_EACH = 16
"""Batches of each segment that are in the file."""

_VALUE = bytes(number * 37 % 251 for number in range(1_000))


class SparseLog(NamedTuple):
    """The result: the last offsets of the batches in the file, by which an index finds these batches and not the ones
    before; the size of each batch; the end of the log."""

    offsets: list[int]
    batch_bytes: int
    active_from: int
    """The start of the last segment, which has no holes: a start after a crash reads all of it."""

    end_offset: int


def make(folder: Path, size: int, first_timestamp: int) -> SparseLog:
    """Fill the folder of a partition with segments of `size` bytes in all, and a last one of one batch."""
    batch_bytes = len(_batch(0, 0))
    in_segment = SEGMENT_BYTES // batch_bytes
    left, base, offsets = size // batch_bytes, 0, list[int]()
    while left > 0:
        count = min(left, in_segment)
        offsets += _segment(folder, base, count, batch_bytes, first_timestamp + base // RECORDS)
        base += count * RECORDS
        left -= count
        (folder / segment_name(base, ".snapshot")).write_bytes(PartitionProducers().encode())
    offsets += _segment(folder, base, 1, batch_bytes, first_timestamp + base // RECORDS)
    (folder / segment_name(base + RECORDS, ".snapshot")).write_bytes(PartitionProducers().encode())
    return SparseLog(offsets, batch_bytes, base, base + RECORDS)


def _batch(base_offset: int, timestamp: int) -> bytes:
    return bytes(build_batch([(timestamp, None, _VALUE, [])] * RECORDS, base_offset=base_offset))


def _segment(folder: Path, base: int, count: int, batch_bytes: int, timestamp: int) -> Iterator[int]:
    """Write a segment of this many batches, each a millisecond later than the one before."""
    written = sorted({count * part // WRITTEN_OF_EACH for part in range(WRITTEN_OF_EACH)} | {count - 1})
    with (folder / segment_name(base, ".log")).open("wb") as log:
        for number in written:
            log.seek(number * batch_bytes)
            log.write(_batch(base + number * RECORDS, timestamp + number))
    # An entry for each batch but the first: each is larger than log.index.interval.bytes.
    last_offsets = range(2 * RECORDS - 1, count * RECORDS, RECORDS)
    positions = range(batch_bytes, count * batch_bytes, batch_bytes)
    (folder / segment_name(base, ".index")).write_bytes(_big_endian(_interleaved(last_offsets, positions)))
    times = _interleaved(range(timestamp + 1, timestamp + count), last_offsets, high=True)
    (folder / segment_name(base, ".timeindex")).write_bytes(_big_endian(times))
    return (base + (number + 1) * RECORDS - 1 for number in written)


def _interleaved(first: range, second: range, *, high: bool = False) -> array[int]:
    """Pairs of numbers of 32 bits, the first of 64 if `high`."""
    width = 3 if high else 2
    entries = array("I", bytes(4 * width * len(first)))
    if high:
        entries[0::width] = array("I", (number >> 32 for number in first))
    entries[width - 2 :: width] = array("I", (number & 0xFFFFFFFF for number in first))
    entries[width - 1 :: width] = array("I", second)
    return entries


def _big_endian(entries: array[int]) -> bytes:
    if sys.byteorder == "little":
        entries.byteswap()
    return entries.tobytes()
