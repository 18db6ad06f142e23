"""The history's tables as Arrow schemas: the one place that says how a row looks, in memory, in Parquet and in Spark.

Times are int64 milliseconds since the epoch in names that end in `_ms`; the tables that people read have timestamps
(`at`, `started`) in UTC with milliseconds beside them, so that SQL can say `WHERE at > now() - INTERVAL 1 DAY`.
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
]
RAW = pa.schema(_RAW)
"""Records of `__consumer_offsets` as they are read."""

_ENTRIES: list[pa.Field[Any]] = [
    pa.field("group", pa.string(), nullable=False),
    pa.field("log_partition", pa.int32(), nullable=False),
    pa.field("log_offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("leader_epoch", pa.int32(), nullable=False),
    pa.field("kind", pa.int16(), nullable=False),
    # Of commits; null in other records.
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),  # -1: a tombstone
    pa.field("commit_ms", pa.int64()),  # -1: a tombstone
    pa.field("expire_ms", pa.int64()),  # -1: none of its own
    pa.field("metadata", pa.string()),
    # Of other records; null in commits.
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
]
ENTRIES = pa.schema(_ENTRIES)
"""What decode.py makes of them: one row for each record of a group, in log order within a partition of the topic."""
