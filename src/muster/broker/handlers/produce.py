"""Produce (0): batches into the log.

v5: log_start_offset. v8: errors of single records (KIP-467). v10: the current leader. v13: topic ids instead of names.
acks=0 is not answered; acks=1 and acks=all wait for the same thing, one broker being all replicas: that the log calls
the records durable.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from muster.broker.clock import now_ms
from muster.broker.server import NO_RESPONSE, Call, CloseConnectionError
from muster.errors import ErrorCode, KafkaError
from muster.model import INTERNAL_TOPICS
from muster.protocol.compression import Compression
from muster.protocol.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from muster.protocol.primitives import Buffer
from muster.protocol.record_batch import LOG_OVERHEAD

if TYPE_CHECKING:
    from muster.broker.broker import Broker
    from muster.log import PartitionLog
_SIZE = Struct(">i")
_MAGIC = 16
_ATTRIBUTES = 22
_SMALLEST = 14
"""Bytes of the smallest record of the oldest format, which no size may be below."""

_ZSTD_SINCE = 7


class Wait(NamedTuple):
    """An append that is to be durable before it is acknowledged."""

    log: PartitionLog
    end: int
    result: PartitionProduceResponse

    @property
    def over(self) -> bool:
        """Whether the records are durable, or never will be."""
        return self.log.high_watermark >= self.end or self.log.failed is not None or self.log.closed


ADMIN_CLIENT_ID = "__admin_client"
"""The one client that Kafka lets write to internal topics. It is but a name: what is read of them is checked."""

ACKS = (-1, 0, 1)
"""Replicas that a producer may wait for: all, none, the leader."""


def produce(broker: Broker, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append each partition's batches; answer when they are durable."""
    waits: list[Wait] = []
    failed = False
    response = ProduceResponse()
    for asked in request.topic_data:
        name = _topic_name(broker, asked, call.version)
        topic = TopicProduceResponse(asked.name, bytes(asked.topic_id))
        response.responses.append(topic)
        for partition in asked.partition_data:
            result = _append(broker, name, partition, request, call, waits)
            failed = failed or result.error_code != 0
            topic.partition_responses.append(result)
    if request.acks == 0:
        # Nobody waits for these records, but with fsync=always they cannot be read before they are synced.
        broker.durability.want()
        if failed:
            raise CloseConnectionError("a produce with acks=0 failed; closing is the only way to tell")
        return NO_RESPONSE  # type: ignore[return-value]
    if all(wait.over for wait in waits):
        return response
    broker.durability.wait(waits, lambda: _durable(waits, response, call))
    return None


def _durable(waits: list[Wait], response: ProduceResponse, call: Call) -> None:
    for wait in waits:
        if wait.log.high_watermark < wait.end:
            wait.result.base_offset = -1
            if wait.log.failed is None:  # closed: the topic was deleted
                wait.result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wait.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                wait.result.error_message = "The records could not be written to disk."
    call.reply(response)


def _topic_name(broker: Broker, asked: TopicProduceData, version: int) -> str | None:
    """The topic's name, None for an id that no topic has."""
    return asked.name if version < 13 else broker.topics.topic_name(bytes(asked.topic_id))


def _append(
    broker: Broker,
    name: str | None,
    asked: PartitionProduceData,
    request: ProduceRequest,
    call: Call,
    waits: list[Wait],
) -> PartitionProduceResponse:
    result = PartitionProduceResponse(asked.index, base_offset=-1)
    if request.acks not in ACKS:
        result.error_code = ErrorCode.INVALID_REQUIRED_ACKS
        return result
    log = broker.partition(name, asked.index) if name is not None else None
    if log is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result
    if asked.records is None or isinstance(asked.records, list):
        result.error_code = ErrorCode.INVALID_RECORD
        return result
    try:
        check_batches(asked.records, call.version)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    if name in INTERNAL_TOPICS and call.client_id != ADMIN_CLIENT_ID:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return result
    try:
        appended = log.append(asked.records, now=now_ms())
    except KafkaError as error:
        _refused(result, error, log, request.transactional_id)
        return result
    end = appended.last_offset + 1
    broker.fetches.appended(log.topic_partition.topic, asked.index, len(asked.records), end)
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time
    result.log_start_offset = log.log_start_offset
    waits.append(Wait(log, end, result))
    return result


def check_batches(records: Buffer, version: int) -> None:
    """Kafka's first look at what a partition is sent: exactly one batch of magic 2 with a codec of that version.

    Raises:
        KafkaError: INVALID_RECORD, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE.
    """
    size = _batch_size(records, 0)
    if size is None or records[_MAGIC] != 2:
        raise KafkaError(ErrorCode.INVALID_RECORD)
    codec = records[_ATTRIBUTES] & 7 if size > _ATTRIBUTES else 0
    if codec == Compression.ZSTD and version < _ZSTD_SINCE:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if _batch_size(records, size) is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD)


def _batch_size(records: Buffer, position: int) -> int | None:
    """Bytes of the batch at a position, None if no whole one is there."""
    left = len(records) - position
    if left < LOG_OVERHEAD:
        return None
    (size,) = _SIZE.unpack_from(records, position + 8)
    if size < _SMALLEST:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"Record size {size} is less than the minimum record overhead ({_SMALLEST})"
        )
    if left <= _MAGIC:
        return None
    magic = records[position + _MAGIC]
    if magic > 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    return int(size) + LOG_OVERHEAD if left >= size + LOG_OVERHEAD else None


_KNOWN_START = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
)
"""Errors that Kafka finds inside the log, and so answers with the log's start."""


def _refused(
    result: PartitionProduceResponse, error: KafkaError, log: PartitionLog, transactional_id: str | None
) -> None:
    result.error_code = error.code
    if error.code is ErrorCode.INVALID_TXN_STATE:
        # No transaction can have been begun here: what Kafka says of a transactional id that it does not know.
        known = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        result.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional_id is None else known
    if error.code in _KNOWN_START:
        result.log_start_offset = log.log_start_offset
    if error.code is ErrorCode.INVALID_TIMESTAMP:
        result.record_errors = [BatchIndexAndErrorMessage(0, error.message)]
        result.error_message = "One or more records have been rejected due to invalid timestamp"
    elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
        result.error_message = error.message
