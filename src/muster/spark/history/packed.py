"""How the history travels through Spark: packed, a table in a cell.

Twenty million commits are only a few thousand rows for Spark. A task reads and decodes a piece of one partition of
`__consumer_offsets`, and emits one row for each bucket of groups, with these groups' entries as an Arrow stream. So the
JVM moves bytes, and no single record crosses between Python and the JVM.

A bucket is (log partition, slot): a group is in one log partition, and its name determines the slot. The rows of a
bucket, ordered by `log_offset`, are what the log says about its groups, in log order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from muster.history.model import Counts
from muster.history.rows import day_of

if TYPE_CHECKING:
    from muster.history.model import Int64s

SLOTS = 8
"""Buckets per log partition. Checkpoints depend on it."""

IN_ENTRIES, IN_EVENTS, IN_EVENTS_ONLY, IN_COUNTS, IN_TICK = "entries", "events", "events_only", "counts", "tick"

COUNTS_SLOT = -1

_SPAN = "span_ms"

_PACKED: list[pa.Field[Any]] = [
    pa.field("log_partition", pa.int32()),
    pa.field("slot", pa.int32()),
    pa.field("log_offset", pa.int64()),
    pa.field("what", pa.string()),
    pa.field("at_ms", pa.int64()),
    pa.field("data", pa.binary()),
]
PACKED = pa.schema(_PACKED)
PACKED_DDL = "log_partition int, slot int, log_offset long, what string, at_ms long, data binary"
"""Rows on their way to the fold. `entries`: a stream of ENTRIES that starts at `log_offset`. `events`: rows of EVENTS
of these groups, before all entries. `events_only`: the same for groups without entries, which are not in any log.
`counts`: rows of COUNTS. `tick`: a reading at the time `at_ms`; `data` has the time up to which the log partition has
been read."""

_EVENTS: list[pa.Field[Any]] = [
    pa.field("group", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("value", pa.binary()),
]
EVENTS = pa.schema(_EVENTS)
"""Records of `__group_events`: the position and value of each."""

_COUNTS: list[pa.Field[Any]] = [
    pa.field("day", pa.date32()),
    pa.field("log_partition", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("version", pa.int32()),
    pa.field("records", pa.int64()),
]
COUNTS = pa.schema(_COUNTS)
"""How many records of each kind and version were read (`model.Counts`), by the day of the last of them."""


def slot_of(group: str) -> int:
    """The slot of a group, the same in every process."""
    return zlib.crc32(group.encode("utf-8", "surrogatepass")) % SLOTS


def to_bytes(table: pa.Table | pa.RecordBatch) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes | pa.Buffer) -> pa.Table:
    """What `to_bytes` wrote."""
    return pa.ipc.open_stream(data).read_all()


def pack(
    entries: pa.Table,
    counts: Counts,
    log_partition: int,
    only: Collection[str] = (),
    span: tuple[int, int] | None = None,
) -> pa.RecordBatch:
    """The decoded records of one piece of a log partition as rows of PACKED. `only`: the wanted groups. `span`: the
    times of the first and the last of all records."""
    rows: list[tuple[int, int, int, str, int, bytes]] = []
    last_ms = 0
    if entries.num_rows:
        last_ms = int(pc.max(entries.column("timestamp_ms")).as_py())
        for slot, part in _by_slot(entries, frozenset(only)):
            offset = int(part.column("log_offset")[0].as_py())
            rows.append((log_partition, slot, offset, IN_ENTRIES, last_ms, to_bytes(part)))
    if counts:
        data = to_bytes(_with_span(counts_table(counts, log_partition, last_ms), span))
        rows.append((log_partition, COUNTS_SLOT, -1, IN_COUNTS, last_ms, data))
    return packed_rows(rows)


def pack_events(events: pa.RecordBatch, place_of: Callable[[str], int | None], what: str = IN_EVENTS) -> pa.RecordBatch:
    """Records of `__group_events`, of schema RAW, as rows of PACKED. A record's key is its group; `place_of` returns
    the group's log partition, None if it is not wanted. `what` is IN_EVENTS or IN_EVENTS_ONLY."""
    names = [_name(key) for key in events.column("key").to_pylist()]
    places = {name: place for name in set(names) if name is not None and (place := place_of(name)) is not None}
    own: dict[tuple[int, int], list[int]] = {}
    for row, name in enumerate(names):
        if name is not None and name in places:
            own.setdefault((places[name], slot_of(name)), []).append(row)
    groups = pa.array([name if name in places else None for name in names], pa.string())
    columns = [groups, *(events.column(name) for name in EVENTS.names[1:])]
    table = pa.RecordBatch.from_arrays(columns, schema=EVENTS)
    at_ms = 0 if what == IN_EVENTS else int(pc.max(events.column("timestamp_ms")).as_py())
    rows = [(*place, -1, what, at_ms, to_bytes(table.take(pa.array(some)))) for place, some in sorted(own.items())]
    return packed_rows(rows)


def _name(key: bytes | None) -> str | None:
    """A group's name; None if the bytes are not a name, which no broker writes."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def packed_rows(rows: list[tuple[int, int, int, str, int, bytes]]) -> pa.RecordBatch:
    """Rows as a batch of the schema PACKED."""
    columns = list(zip(*rows, strict=True)) or [()] * len(PACKED)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, PACKED, strict=True)], schema=PACKED
    )


def counts_table(counts: Counts, log_partition: int, at_ms: int) -> pa.Table:
    """Counts as rows."""
    return pa.Table.from_pylist(
        [
            {"day": day_of(at_ms), "log_partition": log_partition, "kind": kind, "version": version, "records": records}
            for (kind, version), records in sorted(counts.items())
        ],
        schema=COUNTS,
    )


def _with_span(counts: pa.Table, span: tuple[int, int] | None) -> pa.Table:
    return counts if span is None else counts.replace_schema_metadata({_SPAN: f"{span[0]} {span[1]}"})


def span_of(counts: pa.Table) -> tuple[int, int] | None:
    """The times of the first and last counted record, in milliseconds; None if no record has a time."""
    text = (counts.schema.metadata or {}).get(_SPAN.encode())
    if text is None:
        return None
    first, last = text.split()
    return int(first), int(last)


def tick_rows(read_to_ms: Mapping[int, int], look_ms: int) -> pa.RecordBatch:
    """A row for each bucket of these log partitions: everything written to it before that time has been read."""
    return packed_rows(
        [
            (partition, slot, np.iinfo(np.int64).max, IN_TICK, look_ms, b"%d" % time_ms)
            for partition, time_ms in sorted(read_to_ms.items())
            for slot in range(SLOTS)
        ]
    )


def _by_slot(entries: pa.Table, only: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
    groups = entries.column("group").combine_chunks().dictionary_encode()
    names = [str(name) for name in groups.dictionary.to_pylist()]
    slots = np.array([slot_of(name) if not only or name in only else -1 for name in names], np.int8)
    of_row = slots[groups.indices.to_numpy()]
    order: Int64s = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[order], np.arange(SLOTS + 1))
    table = entries.take(order).combine_chunks()
    for slot in range(SLOTS):
        begin, end = int(bounds[slot]), int(bounds[slot + 1])
        if begin < end:
            yield slot, table.slice(begin, end - begin)
