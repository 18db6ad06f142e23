"""What is checked of batches before they are written: the rules of Kafka's LogValidator and UnifiedLog, in their order.

A batch is judged by its header and CRC; its records are looked at only where the topic is compacted, because there each
needs a key. (Kafka also looks at each record's own timestamp; here the header's largest speaks for them.)
"""

from __future__ import annotations

from muster.errors import CorruptRecordError, ErrorCode
from muster.log.config import LogConfig, LogError, TimestampType
from muster.protocol.record_batch import BatchHeader, UnsupportedMagicError, check_batch, read_header, read_tuples


def examine(buffer: bytes | bytearray | memoryview, config: LogConfig, now: int, origin: str) -> list[BatchHeader]:
    """The headers of the batches that `buffer` holds. Raises LogError if they must not be written.

    A client sends exactly one batch. The coordinator's, which were built here, are believed."""
    try:
        headers = _headers(buffer)
        for header in headers:
            if header.size > config.max_message_bytes and origin == "client":
                raise LogError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record batch of {header.size} bytes exceeds the maximum of {config.max_message_bytes}",
                )
        if len(buffer) > config.segment_bytes:
            raise LogError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(buffer)} bytes exceed the segment size of {config.segment_bytes}",
            )
        if origin == "client":
            _check_client_batch(buffer, headers, config, now)
    except UnsupportedMagicError as error:
        raise LogError(ErrorCode.INVALID_RECORD, str(error)) from None
    except CorruptRecordError as error:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return headers


def _headers(buffer: bytes | bytearray | memoryview) -> list[BatchHeader]:
    headers, position, end = [], 0, len(buffer)
    while position < end:
        header = read_header(buffer, position)
        position += header.size
        headers.append(header)
    if position != end:
        raise CorruptRecordError(f"the last batch is cut off: {position - end} bytes are missing")
    if not headers:
        raise LogError(ErrorCode.INVALID_RECORD, "a produce request must have a record batch for each partition")
    return headers


def _check_client_batch(
    buffer: bytes | bytearray | memoryview, headers: list[BatchHeader], config: LogConfig, now: int
) -> None:
    if len(headers) != 1:
        raise _invalid(f"{len(headers)} record batches for a partition: exactly one is allowed")
    header = headers[0]
    if header.base_offset:
        raise _invalid(f"the base offset of a record batch should be 0, but it is {header.base_offset}")
    check_batch(buffer, 0, header)
    if header.last_offset_delta + 1 != header.record_count or not header.record_count:
        raise _invalid(f"a batch of {header.record_count} records has {header.last_offset_delta + 1} offsets")
    if header.is_control:
        raise _invalid("clients are not allowed to write control records")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _invalid(f"sequence {header.base_sequence} or epoch {header.producer_epoch} of a producer is negative")
    if header.is_transactional:
        raise LogError(ErrorCode.INVALID_TXN_STATE, "the record batch is not part of an ongoing transaction")
    _check_timestamp(header, config, now)
    if config.cleanup_policy.compacts and any(record[2] is None for record in read_tuples(buffer, 0, header)):
        raise _invalid("a compacted topic cannot accept a record without a key")


def _check_timestamp(header: BatchHeader, config: LogConfig, now: int) -> None:
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if header.timestamp_type:
        raise LogError(ErrorCode.INVALID_TIMESTAMP, "a producer's records must have CreateTime")
    late = header.max_timestamp - now
    if late > config.message_timestamp_after_max_ms or -late > config.message_timestamp_before_max_ms:
        raise LogError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is too far from the broker's time {now}",
        )


def _invalid(message: str) -> LogError:
    return LogError(ErrorCode.INVALID_RECORD, message)
