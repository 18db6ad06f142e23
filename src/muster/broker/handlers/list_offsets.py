"""ListOffsets (2): offsets by time, and the special ones.

v2: isolation level. v4: leader epochs. v7: the record with the largest timestamp (-3). v8: the earliest local offset
(-4). v9: the latest tiered one (-5). v10: timeout_ms. v11: the earliest pending upload (-6). Nothing is tiered here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from muster.broker.handlers.fetch import check_leader_epoch
from muster.broker.handlers.metadata import LEADER_EPOCH
from muster.broker.server import Call
from muster.errors import CorruptRecordError, ErrorCode, KafkaError
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from muster.broker.broker import Broker
    from muster.log import PartitionLog

MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version that first knows each special timestamp."""


def list_offsets(broker: Broker, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """The offset for each partition's timestamp."""
    times = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    response = ListOffsetsResponse()
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(topic.name)
        response.topics.append(answer)
        # A partition that is asked for twice is answered once, with an error.
        for asked in {asked.partition_index: asked for asked in topic.partitions}.values():
            result = ListOffsetsPartitionResponse(asked.partition_index)
            answer.partitions.append(result)
            try:
                if times[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                _find(broker, topic.name, asked, call.version, result)
            except KafkaError as error:
                result.error_code = error.code
            except CorruptRecordError:
                result.error_code = ErrorCode.CORRUPT_MESSAGE
    return response


def _find(
    broker: Broker, topic: str, asked: ListOffsetsPartition, version: int, result: ListOffsetsPartitionResponse
) -> None:
    """Fill in what is found. Raises KafkaError."""
    if asked.timestamp < 0 and version < _SINCE.get(asked.timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    log = broker.partition(topic, asked.partition_index)
    if log is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_leader_epoch(asked.current_leader_epoch)
    found = _offset(log, asked.timestamp)
    if found is not None:
        result.offset, result.timestamp = found
        if version >= 4:
            result.leader_epoch = LEADER_EPOCH


def _offset(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp; the special offsets have timestamp -1."""
    if timestamp == LATEST_TIMESTAMP:
        return log.high_watermark, -1
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if timestamp == MAX_TIMESTAMP:
        return log.max_timestamp()
    return log.offset_for_timestamp(timestamp)
