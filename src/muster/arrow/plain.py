"""Decoding in plain Python: for few records, and for when numba is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from muster.arrow.layout import FLUSH_BYTES, MAX_MS
from muster.arrow.schema import HEADERS, IS_TRANSACTIONAL, LEADER_EPOCH, Array, arrow_schema
from muster.arrow.segments import EncodedBatch
from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import read_records
from muster.protocol.records.record_decode import RecordHeaders

_Row = tuple[int, int | None, bytes | None, bytes | None, RecordHeaders, int, int | None, bool]
"""offset, timestamp (µs), key, value, headers; of the batch: timestamp type, leader epoch, whether transactional."""


def decode(
    buffer: Buffer, segments: list[EncodedBatch], wanted: tuple[int, int], names: frozenset[str]
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Rows and columns of the records in the requested offset range, a piece at a time. Topic and partition are not
    among them: they are the caller's."""
    start, end = wanted
    rows: list[_Row] = []
    size = 0
    for position, header in segments:
        epoch = header.partition_leader_epoch if header.partition_leader_epoch >= 0 else None
        of_batch = header.timestamp_type, epoch, header.is_transactional
        for record in read_records(buffer, position, header):
            if start <= record.offset < end:
                headers = record.headers if HEADERS in names else []
                time = _microseconds(record.timestamp)
                rows.append((record.offset, time, record.key, record.value, headers, *of_batch))
                size += len(record.key or b"") + len(record.value or b"")
        if size >= FLUSH_BYTES:
            yield len(rows), _columns(rows, names)
            rows, size = [], 0
    if rows:
        yield len(rows), _columns(rows, names)


def _microseconds(timestamp: int) -> int | None:
    return timestamp * 1000 if -MAX_MS <= timestamp <= MAX_MS else None


def _columns(rows: list[_Row], names: frozenset[str]) -> dict[str, Array]:
    offsets, timestamps, keys, values, headers, types, epochs, transactional = zip(*rows, strict=True)
    data: dict[str, Any] = {
        "key": keys,
        "value": values,
        "offset": offsets,
        "timestamp": timestamps,
        "timestampType": types,
        "headers": [[{"key": key, "value": value} for key, value in row] or None for row in headers],
        LEADER_EPOCH: epochs,
        IS_TRANSACTIONAL: transactional,
    }
    wanted = [name for name in data if name in names]
    schema = arrow_schema(wanted)
    return {name: pa.array(data[name], schema.field(name).type) for name in wanted}
