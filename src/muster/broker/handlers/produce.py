"""Produce (0): batches into the log.

v5: log_start_offset. v8: errors of single records (KIP-467). v10: the current leader. v13: topic ids instead of names.
acks=0 is not answered; acks=1 and acks=all wait for the same thing, one broker being all replicas: that the log calls
the records durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from muster.broker.clock import now_ms
from muster.broker.server import NO_RESPONSE, Call, CloseConnectionError
from muster.errors import ErrorCode, KafkaError
from muster.protocol.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from muster.broker.broker import Broker
    from muster.log import PartitionLog


class Wait(NamedTuple):
    """An append that is to be durable before it is acknowledged."""

    log: PartitionLog
    end: int
    result: PartitionProduceResponse

    @property
    def over(self) -> bool:
        """Whether the records are durable, or never will be."""
        return self.log.high_watermark >= self.end or self.log.failed is not None


ACKS = (-1, 0, 1)
"""Replicas that a producer may wait for: all, none, the leader."""


def produce(broker: Broker, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append each partition's batches; answer when they are durable."""
    waits: list[Wait] = []
    failed = False
    response = ProduceResponse()
    for asked in request.topic_data:
        name, unknown = _topic_name(broker, asked, call.version)
        topic = TopicProduceResponse(asked.name, bytes(asked.topic_id))
        response.responses.append(topic)
        for partition in asked.partition_data:
            result = _append(broker, name, unknown, partition, request, waits)
            failed = failed or result.error_code != 0
            topic.partition_responses.append(result)
    if request.acks == 0:
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
            wait.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            wait.result.error_message = "The records could not be written to disk."
            wait.result.base_offset = -1
    call.reply(response)


def _topic_name(broker: Broker, asked: TopicProduceData, version: int) -> tuple[str | None, ErrorCode]:
    if version < 13:
        return asked.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = broker.topics.by_id(bytes(asked.topic_id))
    return (topic.name if topic is not None else None), ErrorCode.UNKNOWN_TOPIC_ID


def _append(
    broker: Broker,
    name: str | None,
    unknown: ErrorCode,
    asked: PartitionProduceData,
    request: ProduceRequest,
    waits: list[Wait],
) -> PartitionProduceResponse:
    result = PartitionProduceResponse(asked.index, base_offset=-1)
    if request.acks not in ACKS:
        result.error_code = ErrorCode.INVALID_REQUIRED_ACKS
        return result
    log = broker.partition(name, asked.index) if name is not None else None
    if log is None:
        result.error_code = unknown
        return result
    if asked.records is None or isinstance(asked.records, list):
        result.error_code = ErrorCode.INVALID_RECORD
        return result
    try:
        appended = log.append(asked.records, now=now_ms())
    except KafkaError as error:
        _refused(result, error, log, request.transactional_id)
        return result
    broker.fetches.appended(log.topic_partition.topic, asked.index, len(asked.records))
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time
    result.log_start_offset = log.log_start_offset
    waits.append(Wait(log, appended.last_offset + 1, result))
    return result


_KNOWN_START = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TIMESTAMP,
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
