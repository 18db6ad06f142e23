"""The history's tables as Arrow schemas: the one definition of a row in memory, in Parquet and in Spark.

Names that end in `_ms` are int64 milliseconds since the epoch; the tables for people also have timestamps in UTC
(`at`, `started`), so that SQL can use `WHERE at > now() - INTERVAL 1 DAY`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_RAW: list[pa.Field[Any]] = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("leader_epoch", pa.int32(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("is_transactional", pa.bool_()),
]
RAW = pa.schema(_RAW)
"""Records of `__consumer_offsets` as they are read. `is_transactional`: the record was written in a transaction (an
offset commit by TxnOffsetCommit); null if that is not known."""

_ENTRIES: list[pa.Field[Any]] = [
    pa.field("group", pa.string(), nullable=False),
    pa.field("log_partition", pa.int32(), nullable=False),
    pa.field("log_offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("leader_epoch", pa.int32(), nullable=False),
    pa.field("kind", pa.int16(), nullable=False),
    # For commits; null in other records.
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),  # -1: a tombstone
    pa.field("commit_ms", pa.int64()),  # -1: a tombstone
    pa.field("expire_ms", pa.int64()),  # -1: none of its own
    pa.field("metadata", pa.string()),
    pa.field("is_transactional", pa.bool_()),  # null: not known
    # For other records; null in commits.
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
]
ENTRIES = pa.schema(_ENTRIES)
"""The result of decode.py: one row for each record of a group, in log order within a partition of the topic."""


def completed(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """A table with this schema. Columns that it lacks are null: an earlier version wrote it without them."""
    found = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    for missing in (field for field in schema if field.name not in found.schema.names):
        found = found.append_column(missing, pa.nulls(found.num_rows, missing.type))
    return found.select(schema.names).cast(schema)


# --- tables for people -----------------------------------------------------------------------------------------------

_AT = pa.timestamp("us", tz="UTC")


def _list(of: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", of))  # as Spark and Parquet name it


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()
_PARTITIONS = _list(_struct(topic=_TEXT, partition=_INT))
_MEMBER = _struct(
    member_id=_TEXT,
    client_id=_TEXT,
    host=_TEXT,
    instance_id=_TEXT,
    topics=_list(_TEXT),
    topic_regex=_TEXT,
    assignment=_PARTITIONS,
    owned=_PARTITIONS,
    session_timeout_ms=_INT,
    rebalance_timeout_ms=_INT,
    epoch=_INT,
)
_CHANGES = _list(_struct(member=_MEMBER, before=_MEMBER))


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


GENERATIONS = _schema(
    day=pa.date32(),
    group=_TEXT,
    generation=_INT,
    kind=_TEXT,
    started=_AT,
    started_ms=_LONG,
    ended=_AT,
    ended_ms=_LONG,
    prepared=_AT,
    prepared_ms=_LONG,
    settled=_AT,
    settled_ms=_LONG,
    protocol_type=_TEXT,
    protocol=_TEXT,
    leader=_TEXT,
    members=_list(_MEMBER),
    log_partition=_INT,
    log_offset=_LONG,
    timestamp_ms=_LONG,
    leader_epoch=_INT,
)
"""A row for each `Generation`; the last four columns locate its record."""

REBALANCES = _schema(
    day=pa.date32(),
    group=_TEXT,
    generation=_INT,
    previous_generation=_INT,
    at=_AT,
    at_ms=_LONG,
    duration_ms=_LONG,
    duration_is=_TEXT,
    cause=_TEXT,
    confidence=pa.float64(),
    phase=_INT,
    is_rebalance=pa.bool_(),
    is_stop=pa.bool_(),
    source=_TEXT,
    evidence=_list(_TEXT),
    alternatives=_list(_struct(cause=_TEXT, told_apart_by=_TEXT)),
    pattern=_struct(
        kind=_TEXT, confidence=pa.float64(), evidence=_list(_TEXT), members=_list(_TEXT), went=_list(_TEXT)
    ),
    members_before=_INT,
    members_after=_INT,
    joined=_CHANGES,
    left=_list(_MEMBER),
    replaced=_CHANGES,
    resubscribed=_CHANGES,
    moved=_INT,
    moved_needlessly=_INT,
    moved_partitions=_list(
        _struct(topic=_TEXT, partition=_INT, from_member=_TEXT, to_member=_TEXT, needless=pa.bool_())
    ),
    stopped_partition_ms=_LONG,
    stopped=_list(_struct(topic=_TEXT, partition=_INT, ms=_LONG)),
    waited_ms=_LONG,
    waited_for=_list(_MEMBER),
)
"""A row for each `Rebalance`."""

NOTES = _schema(
    day=pa.date32(),
    group=_TEXT,
    topic=_TEXT,
    partition=_INT,
    at=_AT,
    at_ms=_LONG,
    kind=_TEXT,
    offset=_LONG,
    previous_offset=_LONG,
    is_transactional=pa.bool_(),
)
"""A row for each `CommitNote`."""

LAG = _schema(
    day=pa.date32(),
    group=_TEXT,
    topic=_TEXT,
    partition=_INT,
    at=_AT,
    at_ms=_LONG,
    committed_offset=_LONG,
    committed=_AT,
    committed_ms=_LONG,
    log_start_offset=_LONG,
    log_end_offset=_LONG,
    lag_records=_LONG,
    is_exact=pa.bool_(),
    lag_ms=_LONG,
    lost_records=_LONG,
    expires=_AT,
    expires_ms=_LONG,
)
"""A row for each `Lag`."""

FINDINGS = _schema(
    day=pa.date32(),
    group=_TEXT,
    rule=_TEXT,
    since=_AT,
    since_ms=_LONG,
    sentence=_TEXT,
    stopped_partition_ms=_LONG,
    stopped_partition_ms_per_day=_LONG,
    advice=_TEXT,
)
"""A row for each `Finding`."""
