"""Gives batches their offsets and, with LogAppendTime, their time: patched into the bytes that will be written."""

from __future__ import annotations

from muster.log.batches.validation import Examined
from muster.log.config import LogConfig, TimestampType
from muster.protocol.records.record_batch import (
    LOG_OVERHEAD,
    PREFIX,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    read_header,
    set_times,
)


def place(
    buffer: bytearray | memoryview, examined: Examined, offset: int, config: LogConfig, now: int, leader_epoch: int
) -> list[BatchHeader]:
    """Patches offsets from `offset` on and the epoch into the batches, and also the time, with LogAppendTime or if the
    header's time is wrong. Returns the new headers. `now` is in milliseconds."""
    stamp = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    placed = []
    position = 0
    for header, latest in zip(examined.headers, examined.latest, strict=True):
        PREFIX.pack_into(buffer, position, offset, header.batch_length, leader_epoch)
        if stamp or header.attributes & TIMESTAMP_TYPE_FLAG or header.max_timestamp != latest:
            set_times(buffer, position, header, now if stamp else latest, stamp)
            header = read_header(buffer, position)
        else:
            header = tuple.__new__(BatchHeader, (offset, header.batch_length, leader_epoch) + header[3:])  # noqa: RUF005
        placed.append(header)
        offset += header.last_offset_delta + 1
        position += header.batch_length + LOG_OVERHEAD
    return placed


def writable(batches: bytes | bytearray | memoryview) -> bytearray | memoryview:
    """The batches themselves if they can be patched, else a copy."""
    if isinstance(batches, bytearray):
        return batches
    return bytearray(batches) if isinstance(batches, bytes) or batches.readonly else batches
