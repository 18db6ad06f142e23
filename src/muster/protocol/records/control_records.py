"""Transaction markers: control batches of one record, with which a coordinator ends a producer's transaction (KIP-98).

    key    int16 version 0 | int16 type: 0 abort, 1 commit
    value  int16 version 0 | int32 epoch of the transaction coordinator

The names of the messages are Kafka's ControlRecordType and EndTxnMarker.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from muster.protocol.records.compression import Buffer
from muster.protocol.records.record_batch import BatchBuilder, BatchHeader, read_tuples

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT = 0
_COMMIT = 1


class TxnMarker(NamedTuple):
    """The end of a producer's transaction, as a coordinator sends it (Kafka's TxnMarkerEntry).

    `transaction_version` decides which epochs a partition accepts; it is not in the log.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0


def end_marker(marker: TxnMarker, timestamp: int) -> bytearray:
    """A whole control batch, for an append. `timestamp` is in milliseconds."""
    builder = BatchBuilder()
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    builder.append(timestamp, key, _VALUE.pack(_VERSION, marker.coordinator_epoch))
    return builder.build(
        producer_id=marker.producer_id, producer_epoch=marker.producer_epoch, transactional=True, control=True
    )


def read_marker(buffer: Buffer, position: int, header: BatchHeader) -> TxnMarker | None:
    """The marker in a control batch; None if compaction has emptied the batch, or its type does not end a transaction.
    Raises CorruptRecordError."""
    kind, value = _first(buffer, position, header)
    if kind not in (_ABORT, _COMMIT) or value is None or len(value) < _VALUE.size:
        return None
    return TxnMarker(header.producer_id, header.producer_epoch, kind == _COMMIT, _VALUE.unpack_from(value)[1])


def is_abort_marker(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether a control batch ends its producer's transaction without a commit. Raises CorruptRecordError.

    A reader needs no other part of the marker, so nothing else is read."""
    return _first(buffer, position, header)[0] == _ABORT


def _first(buffer: Buffer, position: int, header: BatchHeader) -> tuple[int | None, bytes | None]:
    """Type and value of the first record."""
    records = read_tuples(buffer, position, header)
    if not records:
        return None, None
    _, _, key, value, _ = records[0]
    kind: int | None = _KEY.unpack_from(key)[1] if key is not None and len(key) >= _KEY.size else None
    return kind, value
