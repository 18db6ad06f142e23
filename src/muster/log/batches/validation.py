"""The checks of batches before they are written: the rules of Kafka's UnifiedLog and LogValidator, in their order. Then
batches get their offsets and, with LogAppendTime, their time: patched into the bytes that will be written.

A client's batch is checked by its header, its CRC and its records (`record_walk`), even if it is compressed, as in
Kafka: a batch whose header does not match its records would stop the consumers of the partition. If the header's
largest timestamp differs from the records', it is corrected, again as in Kafka.

Checking a compressed batch can cost far more than its size suggests: with `at_once` such a batch is not checked.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import CorruptRecordError, ErrorCode
from muster.log.batches.record_walk import MAX_ERRORS, RecordLengthError, RecordRules, Walk, walk
from muster.log.config import CleanupPolicy, LogConfig, LogError, TimestampType
from muster.model import TopicPartition
from muster.protocol.records.compression import MAX_DECOMPRESSED_SIZE, BatchTooLargeError, Compression
from muster.protocol.records.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    PREFIX,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    UnsupportedMagicError,
    check_batch,
    read_header,
    record_bytes,
    set_times,
    unpack_header,
)

Buffer = bytes | bytearray | memoryview

MAX_RECORDS = 1_000_000
"""A batch with more records is refused: a consumer would have to keep all of them in memory at once."""

CHEAP_RECORDS = 10_000
CHEAP_COMPRESSED_RECORDS = 2_000
CHEAP_COMPRESSED_BYTES = 16 * 1024
_CHEAP_DECOMPRESSED_BYTES = 1024 * 1024
"""The most decompressed bytes that are checked in one step. More would take milliseconds, during which other requests
wait."""

_SMALLEST_RECORD = 7
_FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 63) - 1
_COPIED = 64 * 1024
"""Records of up to this size are copied before they are checked: bytes are faster to index than a view of them."""

_LAST_CODEC = int(Compression.ZSTD)


class Examined(NamedTuple):
    """Batches that may be written: their headers, and for each the largest timestamp of its records."""

    headers: list[BatchHeader]
    latest: list[int]


class CostlyError(CorruptRecordError):
    """Checking a batch takes longer than one step is allowed to."""


def _takes_long(header: BatchHeader) -> bool:
    """Whether checking a client's batch may take too long for one step."""
    if not header.attributes & 7:
        return header.record_count > CHEAP_RECORDS
    return header.record_count > CHEAP_COMPRESSED_RECORDS or header.size > CHEAP_COMPRESSED_BYTES


def examine(
    buffer: Buffer, config: LogConfig, now: int, origin: str, where: TopicPartition, *, at_once: bool = False
) -> Examined:
    """The batches that `buffer` holds: exactly one if it is from a client. The coordinator's own batches are trusted.

    Raises:
        LogError: they must not be written.
        CostlyError: with `at_once`, if it may take too long.
    """
    try:
        if origin == "client":
            examined = _of_client(buffer, config, now, where, at_once)
        else:
            headers = _headers(buffer)
            examined = Examined(headers, [header.max_timestamp for header in headers])
    except UnsupportedMagicError as error:
        raise LogError(ErrorCode.INVALID_RECORD, str(error)) from None
    except CostlyError:
        raise
    except CorruptRecordError as damage:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(damage)) from None
    if len(buffer) > config.segment_bytes:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(buffer)} bytes exceed the segment size of {config.segment_bytes}"
        )
    return examined


def _headers(buffer: Buffer) -> list[BatchHeader]:
    headers, position, end = [], 0, len(buffer)
    while position < end:
        header = read_header(buffer, position)
        position += header.batch_length + LOG_OVERHEAD
        headers.append(header)
    if position != end or not headers:
        raise CorruptRecordError(f"the last batch is cut off: {position - end} bytes are missing")
    return headers


def _of_client(buffer: Buffer, config: LogConfig, now: int, where: TopicPartition, at_once: bool) -> Examined:
    if not buffer:
        raise _invalid("a produce request must have a record batch for each partition")
    header = unpack_header(buffer)
    if at_once and _takes_long(header):
        raise CostlyError("the batch may take too long to check")
    size = header.batch_length + LOG_OVERHEAD
    if size < len(buffer):
        raise _invalid("exactly one record batch is allowed for a partition")
    if header.base_offset:
        raise _invalid(f"the base offset of a record batch should be 0, but it is {header.base_offset}")
    if size > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {size} bytes exceeds the maximum of {config.max_message_bytes}",
        )
    check_batch(buffer, 0, header)
    attributes = header.attributes
    if attributes & 7 > _LAST_CODEC:
        raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression type {attributes & 7}")
    _check_header(header)
    found = _walk(buffer, header, config, now, at_once)
    if found.bad or attributes & TIMESTAMP_TYPE_FLAG:
        _check_records(found, header, config, now, where)
    return Examined([header], [found.max_timestamp])


def _check_header(header: BatchHeader) -> None:
    attributes, last_offset_delta, record_count = header.attributes, header.last_offset_delta, header.record_count
    if last_offset_delta < 0 or record_count <= 0 or last_offset_delta + 1 != record_count:
        raise _invalid(f"a batch of {record_count} records has {last_offset_delta + 1} offsets")
    if attributes & CONTROL_FLAG:
        raise _invalid("clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"sequence {header.base_sequence} of a producer is negative")


def _walk(buffer: Buffer, header: BatchHeader, config: LogConfig, now: int, at_once: bool) -> Walk:
    earliest, latest = _FIRST_TIME, _LAST_TIME
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        earliest = max(now - config.message_timestamp_before_max_ms, earliest)
        latest = min(now + config.message_timestamp_after_max_ms, latest)
    policy = config.cleanup_policy  # compared here: a property would cost one more call for each batch
    compacts = policy is CleanupPolicy.COMPACT or policy is CleanupPolicy.COMPACT_AND_DELETE
    rules = RecordRules(compacts, earliest, latest)
    data = _records(buffer, header, at_once)
    if header.record_count * _SMALLEST_RECORD > len(data):
        raise _invalid(f"{header.record_count} records do not fit into {len(data)} bytes")
    if header.record_count > MAX_RECORDS:
        raise LogError(ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of more than {MAX_RECORDS} records")
    compressed = bool(header.attributes & 7)
    try:
        found = walk(data, header, rules)
    except RecordLengthError as error:
        code = ErrorCode.INVALID_RECORD if compressed else ErrorCode.UNKNOWN_SERVER_ERROR
        raise LogError(code, str(error)) from None
    except CorruptRecordError as damage:
        raise _invalid(str(damage)) from None
    if compressed and not found.in_sequence and not found.bad_count:
        raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, "the offsets of a compressed batch do not count up from 0")
    return found


def _records(buffer: Buffer, header: BatchHeader, at_once: bool) -> bytes | memoryview:
    """The records of a complete batch, decompressed. A large batch is not copied."""
    if not header.attributes & 7:
        data = memoryview(buffer)[HEADER_SIZE:]
        return bytes(data) if len(data) <= _COPIED else data
    try:
        return record_bytes(buffer, 0, header, _CHEAP_DECOMPRESSED_BYTES if at_once else MAX_DECOMPRESSED_SIZE)
    except BatchTooLargeError as error:
        if at_once:
            raise CostlyError(str(error)) from None
        raise LogError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
    except CorruptRecordError as damage:
        raise LogError(ErrorCode.UNKNOWN_SERVER_ERROR, str(damage)) from None


def _check_records(found: Walk, header: BatchHeader, config: LogConfig, now: int, where: TopicPartition) -> None:
    """Kafka's messages for records that are complete but not allowed."""
    errors = []
    untimely = any(record.timestamp is not None for record in found.bad)
    for record in found.bad:
        if record.timestamp is None:
            text = f"Compacted topic cannot accept message without key in topic partition {where}"
        else:
            earliest, latest = now - config.message_timestamp_before_max_ms, now + config.message_timestamp_after_max_ms
            text = (
                f"Timestamp {record.timestamp} of message with offset {record.offset_delta} is out of range. The "
                f"timestamp should be within [{earliest}, {latest}]"
            )
        errors.append((record.at, text))
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME and header.timestamp_type:
        untimely = True
        text = "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."
        errors = errors or [(index, text) for index in range(min(header.record_count, MAX_ERRORS))]
    if not errors:
        return
    if untimely:
        message = "One or more records have been rejected due to invalid timestamp"
        raise _refusal(ErrorCode.INVALID_TIMESTAMP, message, errors)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index, text in errors[:3])
    message = (
        f"One or more records have been rejected due to {found.bad_count} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]"
    )
    raise _refusal(ErrorCode.INVALID_RECORD, message, errors)


def _refusal(code: ErrorCode, message: str, errors: list[tuple[int, str]]) -> LogError:
    error = LogError(code, message)
    error.record_errors = errors
    return error


def _invalid(message: str) -> LogError:
    return LogError(ErrorCode.INVALID_RECORD, message)


# ---------------------------------------------------------------------------------------------------- offsets, times


def assign_offsets(
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


def as_writable(batches: bytes | bytearray | memoryview) -> bytearray | memoryview:
    """The batches themselves if they can be patched, otherwise a copy."""
    if isinstance(batches, bytearray):
        return batches
    return bytearray(batches) if isinstance(batches, bytes) or batches.readonly else batches
