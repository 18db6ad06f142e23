"""The index of aborted transactions whose markers are in one segment, for `read_committed`, in Kafka's format.

    .txnindex    int16 version 0, int64 producer id, int64 first offset, int64 last offset (the marker's),
                 int64 last stable offset. Entries are in the order of their last offsets. Without entries there is no
                 file.

Like the other indexes (index.py) it is kept in memory and written whole. But a missing file means that nothing was
aborted, so `Segment.save_indexes` makes it durable before the offset index, without which no index is trusted.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from muster.log.files import DISK, Files, put_whole
from muster.log.producers.transactions import CompletedTransaction
from muster.log.segments.index import read_file

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_FIELDS = 4


class AbortedTxn(NamedTuple):
    """An entry, with Kafka's names."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def entry_of(completed: CompletedTransaction) -> AbortedTxn:
    """The entry of a transaction that was aborted."""
    return AbortedTxn(*completed[:4])


class AbortedIndex:
    """The index of one segment."""

    __slots__ = ("_files", "_numbers", "path")

    def __init__(self, path: Path, files: Files = DISK) -> None:
        self.path = path
        self._files = files
        self._numbers = array("q")
        """The fields of all entries, one after another."""

    def __len__(self) -> int:
        return len(self._numbers) // _FIELDS

    def __iter__(self) -> Iterator[AbortedTxn]:
        return map(self._entry, range(len(self)))

    def _entry(self, at: int) -> AbortedTxn:
        return AbortedTxn(*self._numbers[at * _FIELDS : (at + 1) * _FIELDS])

    def append(self, entry: AbortedTxn) -> None:
        """Adds the entry of a marker that was written at the segment's end."""
        self._numbers.extend(entry)

    def collect(self, start: int, end: int, found: list[AbortedTxn]) -> bool:
        """Adds the transactions that overlap the offsets from `start` (inclusive) to `end` (exclusive). Returns
        whether no later marker can end another such transaction."""
        at = bisect_left(range(len(self)), start, key=lambda at: self._numbers[at * _FIELDS + 2])
        for one in range(at, len(self)):
            entry = self._entry(one)
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return True
        return False

    def load(self, base_offset: int, next_offset: int) -> bool:
        """Reads the file, if it exists. Returns False, and the index is empty, if the file does not fit a segment
        with these offsets."""
        data = read_file(self.path)
        if data is None:
            return not self.path.exists()
        if len(data) % _ENTRY.size:
            return False
        numbers, last = array("q"), base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTxn(*fields)
            whole = version == _VERSION and last < entry.last_offset < next_offset
            if not whole or not _is_possible(entry):
                return False
            last = entry.last_offset
            numbers.extend(entry)
        self._numbers = numbers
        return True

    def save(self, *, sync: bool) -> bool:
        """Writes the file; without entries, removes it. Returns whether a name in the folder may have changed. Raises
        OSError."""
        if self._numbers:
            put_whole(self._files, self.path, b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self), sync=sync)
            return True
        if not self.path.exists():
            return False
        self._files.unlink_if_exists(self.path)
        return True


def _is_possible(entry: AbortedTxn) -> bool:
    return (
        entry.producer_id >= 0
        and 0 <= entry.first_offset < entry.last_offset
        and 0 <= entry.last_stable_offset <= entry.last_offset + 1
    )


def aborted_between(indexes: Iterable[AbortedIndex], start: int, end: int) -> list[AbortedTxn]:
    """The aborted transactions that overlap the offsets from `start` (inclusive) to `end` (exclusive), in the order of
    their markers.

    `indexes` are those from the segment that holds `start` to the end of the log: a marker may be far after `end`."""
    found: list[AbortedTxn] = []
    for index in indexes:
        if index and index.collect(start, end, found):
            break
    return found
