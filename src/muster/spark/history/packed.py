"""How the history travels through Spark: packed, a table in a cell.

Of twenty million commits Spark is to see some thousand rows. A task reads and decodes a piece of one partition of
`__consumer_offsets`, and hands over one row for each bucket of groups, with these groups' entries as an Arrow stream.
So the JVM moves bytes, and no record crosses between Python and the JVM by itself.

A bucket is (log partition, slot): a group lies in one log partition, and its name says in which slot. Rows of a bucket,
in the order of `log_offset`, are what the log says about its groups, in its order.
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
"""Into how many buckets the groups of a log partition go. A checkpoint depends on it."""

IN_ENTRIES, IN_EVENTS, IN_TOLD, IN_COUNTS, IN_TICK = "entries", "events", "told", "counts", "tick"

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
"""Rows on their way to the fold. `entries`: a stream of ENTRIES that begins at `log_offset`. `events`: rows of EVENTS
of these groups, before all entries. `told`: the same of groups that have no entries, as no log has them. `counts`: rows
of COUNTS. `tick`: a look at the time `at_ms`, and in `data` up to which time the log partition has been read."""

_EVENTS: list[pa.Field[Any]] = [
    pa.field("group", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("value", pa.binary()),
]
EVENTS = pa.schema(_EVENTS)
"""Records of `__group_events`: where each stands, and its value."""

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
    """The slot of a group, the same in each process."""
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
    """The decoded records of one piece of a log partition, as rows of PACKED. `only`: no groups but these. `span`: the
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
    """Records of `__group_events`, of schema RAW, as rows of PACKED. A record's key is its group; `place_of` says in
    which log partition that one stands, None for one that is not wanted. `what` is IN_EVENTS or IN_TOLD."""
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
    """A group's name; None for bytes that are none: no broker writes such a key."""
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
    """The times of the first and the last record that were counted, in milliseconds; None: no record has a time."""
    text = (counts.schema.metadata or {}).get(_SPAN.encode())
    if text is None:
        return None
    first, last = text.split()
    return int(first), int(last)


def tick_rows(read_to_ms: Mapping[int, int], look_ms: int) -> pa.RecordBatch:
    """A row for each bucket of these log partitions: all that was written before this time to it has been read."""
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
