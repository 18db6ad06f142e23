"""Recompress a client's batch with the topic's codec (`compression.type`); its records stay the same."""

from __future__ import annotations

from struct import Struct

from muster.errors import ErrorCode
from muster.log.batches.record_walk import RecordRules, walk
from muster.log.batches.validation import CHEAP_COMPRESSED_BYTES, CostlyError, Examined
from muster.log.config import LogConfig, LogError
from muster.protocol.primitives import Buffer
from muster.protocol.records.compression import compress
from muster.protocol.records.record_batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
    record_bytes,
    set_crc,
)

_LENGTH_AT = 8
_LENGTH = Struct(">i")
_ATTRIBUTES_AT = 21
_ATTRIBUTES = Struct(">h")
_TIMES = RecordRules(needs_key=False, earliest=NO_TIMESTAMP, latest=(1 << 63) - 1)


def recompressed(
    batch: Buffer, examined: Examined, config: LogConfig, *, at_once: bool = False
) -> tuple[Buffer, Examined]:
    """An examined batch in the configured codec; unchanged if it already has that codec.

    Raises:
        LogError: it cannot be rebuilt, or would be larger than a batch may be.
        CostlyError: with `at_once`, if it would take too long.
    """
    (header,) = examined.headers
    codec = config.compression
    if codec is None or header.attributes & COMPRESSION_MASK == codec:
        return batch, examined
    if at_once and header.size > CHEAP_COMPRESSED_BYTES:
        raise CostlyError(f"compressing {header.size} bytes takes too long")
    records = record_bytes(batch, 0, header)
    _check_rebuilding(header, records)
    made = bytearray(memoryview(batch)[:HEADER_SIZE])
    made += compress(codec, records, config.compression_level)
    _LENGTH.pack_into(made, _LENGTH_AT, len(made) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(made, _ATTRIBUTES_AT, header.attributes & ~COMPRESSION_MASK | codec)
    set_crc(made, 0, len(made))
    if len(made) > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {len(made)} bytes with codec {codec.name.lower()} exceeds the maximum of "
            f"{config.max_message_bytes}",
        )
    if len(made) > config.segment_bytes:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(made)} bytes exceed the segment size of {config.segment_bytes}"
        )
    return made, Examined([read_header(made, 0)], examined.latest)


def _check_rebuilding(header: BatchHeader, records: bytes) -> None:
    """Refuse what Kafka's batch builder refuses, although Kafka stores it in a batch that keeps its codec."""
    if header.producer_id != NO_PRODUCER_ID:
        if header.producer_epoch == NO_PRODUCER_EPOCH:
            raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, f"producer {header.producer_id} has no epoch")
        if header.base_sequence < 0:
            raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, f"sequence {header.base_sequence} of a producer is negative")
    if walk(records, header, _TIMES).bad_count:
        raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, "a record has a negative timestamp other than -1")
