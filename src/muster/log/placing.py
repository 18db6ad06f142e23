"""Gives batches their offsets and, with LogAppendTime, their time: patched into the bytes that will be written."""

from __future__ import annotations

from muster.log.config import LogConfig, TimestampType
from muster.log.validation import Examined
from muster.protocol.record_batch import BatchHeader, assign_offset, read_header, set_times


def place(
    buffer: bytearray | memoryview, examined: Examined, offset: int, config: LogConfig, now: int, leader_epoch: int
) -> list[BatchHeader]:
    """Patches offsets from `offset` on and the epoch into the batches, and also the time, with LogAppendTime or if the
    header's time is wrong. Returns the new headers. `now` is in milliseconds."""
    stamp = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    placed = []
    position = 0
    for header, latest in zip(*examined, strict=True):
        assign_offset(buffer, position, offset, leader_epoch)
        if stamp or header.timestamp_type or header.max_timestamp != latest:
            set_times(buffer, position, header, now if stamp else latest, stamp)
            header = read_header(buffer, position)
        else:
            header = BatchHeader(offset, header.batch_length, leader_epoch, *header[3:])
        placed.append(header)
        offset = header.next_offset
        position += header.size
    return placed


def writable(batches: bytes | bytearray | memoryview) -> bytearray | memoryview:
    """The batches themselves if they can be patched, else a copy."""
    if isinstance(batches, bytes) or (isinstance(batches, memoryview) and batches.readonly):
        return bytearray(batches)
    return batches
