"""Decoded record batches as rows of schema RAW."""

from __future__ import annotations

import pyarrow as pa

from muster.arrow import IS_TRANSACTIONAL, LEADER_EPOCH
from muster.arrow.schema import Array
from muster.history.tables import RAW

OFFSETS_TOPIC = "__consumer_offsets"
EVENTS_TOPIC = "__group_events"

DECODER_COLUMNS = ("offset", "timestamp", LEADER_EPOCH, "key", "value", IS_TRANSACTIONAL)
"""The columns of muster.arrow's decoder that RAW is made of."""

_UNKNOWN = -1


def to_raw(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """A batch with the columns DECODER_COLUMNS of one partition. An unknown time or epoch is -1."""
    columns: list[Array] = [
        pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).fill_null(_UNKNOWN),
        batch.column(LEADER_EPOCH).fill_null(_UNKNOWN),
        batch.column("key"),
        batch.column("value"),
        batch.column(IS_TRANSACTIONAL),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)
