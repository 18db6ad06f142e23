"""The columns of a decoded record: those of Spark's own Kafka source, in its order and with its types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    Array: TypeAlias = pa.Array[Any]
else:
    Array = pa.Array

HEADERS = "headers"
LEADER_EPOCH = "leaderEpoch"
IS_TRANSACTIONAL = "isTransactional"

_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    LEADER_EPOCH: pa.int32(),
    IS_TRANSACTIONAL: pa.bool_(),
}

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestampType", IS_TRANSACTIONAL})
"""Spark does not check these for nulls; that would take an eighth of its time for a record of five columns. A timestamp
is null if it is out of Arrow's range."""

EXTRA = (HEADERS, LEADER_EPOCH, IS_TRANSACTIONAL)
"""The columns that Spark's source does not have by default: headers; the epoch of the leader that appended the batch,
which is null if the batch has none; whether the batch was written in a transaction."""

COLUMNS = tuple(name for name in _TYPES if name not in EXTRA)
"""The default columns."""


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The Arrow schema of the named columns, in the order given.

    Raises:
        ValueError: a column does not exist.
    """
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}; the columns are {', '.join(_TYPES)}")
    return pa.schema([pa.field(name, _TYPES[name], name not in NEVER_NULL) for name in columns])
