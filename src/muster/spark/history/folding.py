"""The functions that Spark calls with packed rows: in a batch, in a stream, and to unpack the output.

The output is packed as well: a row is a table's name and rows of it as an Arrow stream. So one pass gives all
tables, whatever their schema, and only what is written or queried is unpacked.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from muster.client.admin.admin import Admin
from muster.client.plain.fetch import FetchSettings
from muster.clock import wall_clock_ms
from muster.errors import MusterError
from muster.history.lag.over_time import CommitTimeline
from muster.history.model import (
    CommitNote,
    Finding,
    Generation,
    Lag,
    Limits,
    OpenTransaction,
    Rebalance,
    Rows,
    TopicPartition,
)
from muster.history.rows import from_table, schema_of, to_table
from muster.history.sources.open_transactions import oldest_open
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.spark.history.buckets import Bucket, BucketOutput, GroupViews
from muster.spark.history.packed import (
    COUNTS,
    COUNTS_SLOT,
    IN_COUNTS,
    IN_ENTRIES,
    IN_EVENTS,
    IN_EVENTS_ONLY,
    IN_TICK,
    from_bytes,
    to_bytes,
)

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from pyspark.sql.streaming.state import GroupState

log = logging.getLogger("muster.spark.history")

_CLUSTER_TIMEOUT_MS = 15_000
"""How long a task waits for the cluster."""

KINDS: dict[str, type[Any]] = {
    "generations": Generation,
    "rebalances": Rebalance,
    "notes": CommitNote,
    "lag": Lag,
    "findings": Finding,
}
SCHEMAS: dict[str, pa.Schema] = {name: schema_of(kind) for name, kind in KINDS.items()} | {"counts": COUNTS}
OPEN = "open/"
"""Prefix of a table's name: rows that would be in it if the log ended here."""

STATUSES = "statuses"
"""A row whose data are pickled `GroupStatus`s, from which the lag is computed (lags.py)."""

TIMELINE = "timeline"
"""A row whose data is a pickled `CommitTimeline` and whose `at_ms` is its step, for the lag over time (lags.py)."""

_NAME, _DATA = pa.field("name", pa.string()), pa.field("data", pa.binary())
_OUTPUT: list[pa.Field[Any]] = [_NAME, pa.field("at_ms", pa.int64()), _DATA]
OUTPUT = pa.schema(_OUTPUT)
OUTPUT_DDL = "name string, at_ms long, data binary"
"""`at_ms` is the time of the bucket's tick, 0 without one."""

_GROUPED: list[pa.Field[Any]] = [pa.field("group", pa.string()), _NAME, _DATA]
GROUPED = pa.schema(_GROUPED)
GROUPED_DDL = "group string, name string, data binary"
STATE_DDL = "groups binary"

_AT_ONCE = 2_000
"""Rows that are emitted together."""

_Packed = tuple[str, bytes]
Batches = Iterator[pa.RecordBatch]


def fold_in_order(limits: Limits, now_ms: int | None) -> Callable[[Batches], Batches]:
    """For mapInArrow: folds packed rows, sorted by log partition, slot and log offset, to their end.

    `now_ms` is the time of the log's end; None: the time of a bucket's last record."""

    def run(batches: Batches) -> Batches:
        bucket: _Whole | None = None
        for batch in batches:
            for partition, slot, _, what, at_ms, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if what == IN_COUNTS:
                    yield output_batch([("counts", data)])
                elif what in (IN_EVENTS, IN_EVENTS_ONLY, IN_ENTRIES):
                    if bucket is None or bucket.key != (partition, slot):
                        yield from bucket.end() if bucket is not None else ()
                        bucket = _Whole((partition, slot), limits, now_ms)
                    yield from bucket.read(data, at_ms) if what == IN_ENTRIES else bucket.add_events(what, data, at_ms)
        yield from bucket.end() if bucket is not None else ()

    return run


class _Whole:
    """A bucket that is read from beginning to end."""

    def __init__(self, key: tuple[int, int], limits: Limits, now_ms: int | None) -> None:
        self.key = key
        self._now_ms = now_ms
        self._bucket = Bucket(limits)
        self._bucket.timeline = CommitTimeline(limits.since_ms)
        self._views = GroupViews(limits)
        self._last_ms = 0

    def add_events(self, what: str, data: bytes, at_ms: int) -> Batches:
        self._bucket.add_events(from_bytes(data), is_all=what == IN_EVENTS_ONLY)
        self._last_ms = max(self._last_ms, at_ms)
        return iter(())

    def read(self, data: bytes, at_ms: int) -> Batches:
        self._bucket.read(from_bytes(data))
        self._last_ms = max(self._last_ms, at_ms)
        rows = self._bucket.output.final
        if len(rows.generations) + len(rows.rebalances) + len(rows.notes) >= _AT_ONCE:
            yield self._output(self._bucket.take())

    def end(self) -> Batches:
        now_ms = self._last_ms if self._now_ms is None else self._now_ms
        self._bucket.end(now_ms)
        output = self._bucket.take()
        yield self._output(output)
        statuses = [(STATUSES, pickle.dumps(output.statuses, pickle.HIGHEST_PROTOCOL))]
        yield output_batch([*statuses, *_packed("findings", self._views.findings(now_ms))])
        timeline = self._bucket.timeline
        if timeline is not None and timeline.commits:
            step_ms = timeline.reach(now_ms)
            yield output_batch([(TIMELINE, pickle.dumps(timeline, pickle.HIGHEST_PROTOCOL))], step_ms)

    def _output(self, output: BucketOutput) -> pa.RecordBatch:
        self._views.add(output.final)
        return output_batch(_packed_rows(output.final))


def fold_on(limits: Limits) -> Callable[[Any, Iterator[DataFrame], GroupState], Iterator[DataFrame]]:
    """For applyInPandasWithState, grouped by log partition and slot: folds a batch's packed rows onto the state."""
    import pandas as pd

    def run(key: Any, frames: Iterator[DataFrame], state: GroupState) -> Iterator[DataFrame]:
        rows = [
            row
            for frame in frames
            for row in zip(frame["log_offset"], frame["what"], frame["at_ms"], frame["data"], strict=True)
        ]
        rows.sort(key=lambda row: int(row[0]))
        tick_ms = 0
        if int(key[1]) == COUNTS_SLOT:
            output = [("counts", sum_counts(bytes(data) for _, what, _, data in rows if what == IN_COUNTS))]
        else:
            had_some = bool(state.exists)
            bucket = Bucket(limits, bytes(state.get[0]) if had_some else b"")
            for _, what, at_ms, data in rows:
                if what == IN_TICK:
                    tick_ms = int(at_ms)
                    bucket.tick(int(bytes(data)))
                elif what == IN_ENTRIES:
                    bucket.read(from_bytes(data))
                elif what in (IN_EVENTS, IN_EVENTS_ONLY):
                    bucket.add_events(from_bytes(data), is_all=what == IN_EVENTS_ONLY)
            stored = bucket.store()
            if stored:
                state.update((stored,))
            elif had_some:
                state.remove()
            output = output_rows(bucket.take(), with_states=had_some and tick_ms > 0)
        yield pd.DataFrame([(name, tick_ms, data) for name, data in output], columns=OUTPUT.names)

    return run


def output_rows(output: BucketOutput, *, with_states: bool) -> list[_Packed]:
    """A bucket's output, packed. At a tick it has the states of its groups even if the last group was just forgotten:
    otherwise its earlier open rows would remain, next to the same rows as final ones."""
    rows = _packed_rows(output.final) + [(OPEN + name, data) for name, data in _packed_rows(output.open)]
    if output.statuses or with_states:
        rows.append((STATUSES, pickle.dumps(output.statuses, pickle.HIGHEST_PROTOCOL)))
    return rows


def _packed_rows(rows: Rows) -> list[_Packed]:
    return [
        *_packed("generations", rows.generations),
        *_packed("rebalances", rows.rebalances),
        *_packed("notes", rows.notes),
    ]


def _packed(name: str, rows: list[Any]) -> list[_Packed]:
    return [(name, to_bytes(to_table(KINDS[name], rows)))] if rows else []


def output_batch(rows: list[_Packed], at_ms: int = 0) -> pa.RecordBatch:
    """Packed rows as a batch of schema OUTPUT."""
    rows_at = [{"name": name, "at_ms": at_ms, "data": data} for name, data in rows]
    return pa.RecordBatch.from_pylist(rows_at, schema=OUTPUT)


def sum_counts(parts: Iterable[bytes]) -> bytes:
    """The counts of several pieces as one table."""
    table = pa.concat_tables([from_bytes(part) for part in parts])
    keys = ["day", "log_partition", "kind", "version"]
    summed = table.group_by(keys).aggregate([("records", "sum")]).rename_columns([*keys, "records"])
    return to_bytes(summed.select(COUNTS.names).cast(COUNTS))


def unpack(batches: Batches) -> Batches:
    """For mapInArrow: unpacks a column `data` of Arrow streams."""
    for batch in batches:
        for data in batch.column("data"):
            yield from from_bytes(data.as_buffer()).replace_schema_metadata().to_batches()


def pack_groups(name: str) -> Callable[[Batches], Batches]:
    """For mapInArrow: rows of a table to rows of GROUPED."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            groups = [str(group) for group in pc.unique(batch.column("group")).to_pylist()]
            own = [table.filter(pc.equal(table["group"], pa.scalar(group))) for group in groups]
            rows = [(group, name, to_bytes(part)) for group, part in zip(groups, own, strict=True)]
            yield pa.RecordBatch.from_pylist([dict(zip(GROUPED.names, row, strict=True)) for row in rows], GROUPED)

    return run


def find(limits: Limits, now_ms: int | None, settings: FetchSettings) -> Callable[[Batches], Batches]:
    """For mapInArrow, over packed rows of some tables of a few groups: their findings. `now_ms`: the current time;
    None: this machine's clock. With `settings` the cluster is asked for the transactions that groups wait for."""

    def run(batches: Batches) -> Batches:
        views = GroupViews(limits)
        for batch in batches:
            for row in batch.to_pylist():
                rows = from_table(KINDS[row["name"]], from_bytes(row["data"]))
                views.add_table(row["name"], rows)
        at_ms = wall_clock_ms() if now_ms is None else now_ms
        if behind := views.behind():
            views.limits = replace(limits, open_transactions=_open_transactions(settings, behind, at_ms))
        found = views.findings(at_ms)
        if found:
            yield from to_table(Finding, found).to_batches()

    return run


def _open_transactions(
    settings: FetchSettings, behind: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, OpenTransaction]:
    warnings = ReaderWarnings()
    try:
        with Admin(asdict(settings.client), default_api_timeout_ms=_CLUSTER_TIMEOUT_MS) as admin:
            found = oldest_open(admin, behind, now_ms, warnings)
    except MusterError as error:
        found = {}
        warnings.add(f"whether transactions are open is not known: {error}")
    for warning in warnings.sentences():
        log.warning("%s", warning)
    return found
