"""Batches of a log, and records of kinds that only Kafka writes, as bytes: muster itself only reads them."""

from __future__ import annotations

from collections.abc import Sequence

from muster.protocol import codec
from muster.protocol.record_kinds import TypedRecord
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchBuilder,
    Record,
    RecordFields,
)


def build_batch(
    records: Sequence[Record | RecordFields],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytearray:
    """One batch of the given records, at consecutive offsets from `base_offset` (a Record's own offset is not used)."""
    builder = BatchBuilder()
    for record in records:
        if isinstance(record, Record):
            builder.append(record.timestamp, record.key, record.value, record.headers)
        else:
            builder.append(*record)
    return builder.build(
        base_offset=base_offset,
        compression=compression,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
    )


def encode_typed(record: TypedRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record, the value in the newest version."""
    key = record.kind.to_bytes(2, "big") + codec.encode(record.key, 0)
    value = record.value
    return key, None if value is None else value.MAX_VERSION.to_bytes(2, "big") + codec.encode(value, value.MAX_VERSION)
