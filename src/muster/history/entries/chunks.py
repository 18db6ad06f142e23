"""Entries sorted by group: a stretch of the log for each group, for the rules to fold.

A group is in one partition of `__consumer_offsets`, and only the order of the log counts, so entries keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from muster.history.model import Chunk, Commits, Entry, How, Place, TopicPartition
from muster.history.sink_groups import SINK_METADATA
from muster.history.tables import ENTRIES, completed

if TYPE_CHECKING:
    from muster.history.model import Int64s


def chunks(entries: pa.Table | pa.RecordBatch, now_ms: int | None) -> Iterator[Chunk]:
    """A chunk for each group of a table of schema ENTRIES, in the order in which the groups first occur. A table from
    an earlier version has fewer columns. Each chunk carries `now_ms`.
    """
    if not entries.num_rows:
        return
    table = completed(entries, ENTRIES).combine_chunks()
    groups = table.column("group").combine_chunks().dictionary_encode()
    codes = _numbers(groups.indices)
    names = [str(name) for name in groups.dictionary.to_pylist()]
    is_commit = table.column("topic").is_valid().combine_chunks().to_numpy(zero_copy_only=False)
    commits = _AllCommits(table, codes, is_commit)
    others = _Others(table, codes, ~is_commit)
    for code, name in enumerate(names):
        yield Chunk(name, others.of(code), commits.of(code), now_ms)


def _numbers(column: pa.Array[Any]) -> Int64s:
    return pc.cast(column, pa.int64()).to_numpy(zero_copy_only=False)


class _Part:
    """The marked rows of a table, sorted by group, and where each group's rows begin."""

    def __init__(self, codes: Int64s, marked: np.ndarray) -> None:
        rows = np.flatnonzero(marked)
        found = codes[rows]
        order = np.argsort(found, kind="stable")
        self.rows = rows[order]
        self._sorted = found[order]

    def span(self, code: int) -> slice:
        first, last = np.searchsorted(self._sorted, (code, code + 1))
        return slice(int(first), int(last))


_COLUMNS = ["log_offset", "timestamp_ms", "offset", "commit_ms", "leader_epoch"]


class _AllCommits:
    """The commits of all groups, as columns sorted by group."""

    def __init__(self, table: pa.Table, codes: Int64s, marked: np.ndarray) -> None:
        self._part = _Part(codes, marked)
        sorted_ = table.select(["topic", "partition", "is_transactional", *_COLUMNS])
        sorted_ = sorted_.take(self._part.rows).combine_chunks()
        topics = sorted_.column("topic").combine_chunks().dictionary_encode()
        self._topics = [str(name) for name in topics.dictionary.to_pylist()]
        partitions = _numbers(sorted_.column("partition").combine_chunks())
        self._places = (_numbers(topics.indices) << 32) | (partitions & 0xFFFFFFFF)
        self._columns = {name: _numbers(sorted_.column(name).combine_chunks()) for name in _COLUMNS}
        self._columns["how"] = _how(sorted_.column("is_transactional").combine_chunks())
        self._noted, self._texts = _notes(table.column("metadata").combine_chunks(), self._part.rows)

    def of(self, code: int) -> Commits:
        span = self._part.span(code)
        places, partition = np.unique(self._places[span], return_inverse=True)
        columns = {name: column[span] for name, column in self._columns.items()}
        names = [self._name(int(place)) for place in places]
        first, end = np.searchsorted(self._noted, (span.start, span.stop)).tolist()
        rows = (self._noted[first:end] - span.start).tolist()
        notes = list(zip(rows, self._texts[first:end], strict=True))
        return Commits(names, partition=partition.astype(np.int64), **columns, notes=notes)

    def _name(self, place: int) -> TopicPartition:
        partition = place & 0xFFFFFFFF
        return self._topics[place >> 32], partition - (partition >> 31 << 32)


def _how(is_transactional: pa.Array[Any]) -> Int64s:
    """How each was committed: values of `How`."""
    return _numbers(is_transactional.cast(pa.int64()).fill_null(int(How.UNKNOWN)))


def _notes(metadata: pa.Array[Any], rows: Int64s) -> tuple[Int64s, list[str]]:
    """Which of these rows a Spark query or sink committed, and their metadata."""
    found = pc.or_(pc.starts_with(metadata, "spark:"), pc.starts_with(metadata, SINK_METADATA))
    noted = found.fill_null(False).to_numpy(zero_copy_only=False)
    if not noted.any():
        return np.empty(0, np.int64), []
    places = np.flatnonzero(noted[rows])
    return places, [str(text) for text in metadata.take(rows[places]).to_pylist()]


class _Others:
    """The entries of all groups that are not commits, sorted by group."""

    def __init__(self, table: pa.Table, codes: Int64s, marked: np.ndarray) -> None:
        self._part = _Part(codes, marked)
        names = ["log_partition", "log_offset", "timestamp_ms", "leader_epoch", "key", "value"]
        self._table = table.select(names).take(self._part.rows).combine_chunks()

    def of(self, code: int) -> list[Entry]:
        span = self._part.span(code)
        columns = [column.to_pylist() for column in self._table.slice(span.start, span.stop - span.start).columns]
        return [Entry(Place(*place), key, value) for *place, key, value in zip(*columns, strict=True)]


def no_commits() -> Commits:
    """The commits of a group that committed nothing."""
    none = np.empty(0, np.int64)
    return Commits([], none, none, none, none, none, none, none)
