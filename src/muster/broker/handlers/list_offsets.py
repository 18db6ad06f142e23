"""ListOffsets (2): offsets by time, and special offsets. OffsetForLeaderEpoch (23): where an epoch ends (KIP-320).

ListOffsets v2: isolation level. v4: leader epochs. v7: the record with the largest timestamp (-3). v8: the earliest
local offset (-4). v9: the latest tiered one (-5). v10: timeout_ms. v11: the earliest pending upload (-6). Nothing is
tiered here.

A consumer asks for the end of an epoch when a partition has a leader under a newer epoch than that of the records it
has read: a log that ends before its position has lost records. OffsetForLeaderEpoch v3: the replica that asks, -1 for
a consumer; all get the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from muster.broker.cluster_view import ClusterView
from muster.broker.net.calls import Call
from muster.broker.net.side_thread import SideThread, one_by_one
from muster.broker.topics.partitions import Partitions
from muster.errors import CorruptRecordError, ErrorCode, KafkaError
from muster.model import NO_LEADER_EPOCH
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from muster.protocol.messages import OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd

if TYPE_CHECKING:
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
"""The first version that supports each special timestamp."""


Search = Callable[[], None]
"""Searches batches, and fills in a result."""


class ListOffsetsNeeds(NamedTuple):
    """The parts of the broker that these handlers use."""

    cluster: ClusterView
    partitions: Partitions
    side_thread: SideThread


def list_offsets(here: ListOffsetsNeeds, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse | None:
    """The offset for each partition's timestamp.

    To find a timestamp, batches are read, which may take a long time: a thread does it.
    """
    times = Counter(
        (topic.name, requested.partition_index) for topic in request.topics for requested in topic.partitions
    )
    response = ListOffsetsResponse()
    searches: list[Search] = []
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(topic.name)
        response.topics.append(answer)
        # A partition that is requested twice is answered once, with an error.
        for requested in {requested.partition_index: requested for requested in topic.partitions}.values():
            result = ListOffsetsPartitionResponse(requested.partition_index)
            answer.partitions.append(result)
            try:
                if times[topic.name, requested.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                search = _find(here, topic.name, requested, request.isolation_level, call.version, result)
                if search is not None:
                    searches.append(search)
            except KafkaError as error:
                result.error_code = error.code
    if not searches:
        return response
    here.side_thread.run(call, request.topics[0].name, one_by_one(searches), lambda: call.reply(response))
    return None


def _led(here: ListOffsetsNeeds, topic: str, index: int, known_epoch: int) -> PartitionLog:
    """The log of a partition that this broker leads under the epoch that the client knows. Raises KafkaError."""
    log = here.partitions.get(topic, index)
    if log is None:
        raise KafkaError(here.cluster.not_led_error(topic, index))
    here.cluster.check_leader_epoch(topic, index, known_epoch)
    return log


def _find(
    here: ListOffsetsNeeds,
    topic: str,
    requested: ListOffsetsPartition,
    isolation_level: int,
    version: int,
    result: ListOffsetsPartitionResponse,
) -> Search | None:
    """Fill in the offset if it is known, otherwise return the search for it. Raises KafkaError."""
    if requested.timestamp < 0 and version < _SINCE.get(requested.timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    log = _led(here, topic, requested.partition_index, requested.current_leader_epoch)
    epoch = here.cluster.leader_epoch(topic, requested.partition_index) if version >= 4 else -1
    if requested.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    if requested.timestamp == LATEST_TIMESTAMP:
        _fill_in(result, (log.readable_end(isolation_level), -1), epoch)
    elif requested.timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL):
        _fill_in(result, (log.log_start_offset, -1), epoch)
    else:
        return partial(_search, log, requested.timestamp, isolation_level, epoch, result)
    return None


def _search(
    log: PartitionLog, timestamp: int, isolation_level: int, epoch: int, result: ListOffsetsPartitionResponse
) -> None:
    result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # until the offset is known: the answer goes out in any case
    try:
        if timestamp == MAX_TIMESTAMP:
            found = log.max_timestamp(isolation_level)
        else:
            found = log.offset_for_timestamp(timestamp, isolation_level)
    except KafkaError as error:
        result.error_code = error.code
    except CorruptRecordError:
        result.error_code = ErrorCode.CORRUPT_MESSAGE
    else:
        result.error_code = ErrorCode.NONE
        _fill_in(result, found, epoch)


def _fill_in(result: ListOffsetsPartitionResponse, found: tuple[int, int] | None, epoch: int) -> None:
    """Offset and timestamp, which is -1 for the special offsets."""
    if found is not None:
        result.offset, result.timestamp = found
        result.leader_epoch = epoch


# ------------------------------------------------------------------------------------------------ OffsetForLeaderEpoch


def offset_for_leader_epoch(
    here: ListOffsetsNeeds, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse | None:
    """The end of each partition's epoch. For an older epoch than the leader's, batches are read: a thread does it."""
    response = OffsetForLeaderEpochResponse()
    searches: list[Search] = []
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic.topic)
        response.topics.append(answer)
        for requested in topic.partitions:
            result = EpochEnd(partition=requested.partition)
            answer.partitions.append(result)
            try:
                log = _led(here, topic.topic, requested.partition, requested.current_leader_epoch)
            except KafkaError as error:
                result.error_code = error.code
                continue
            search = partial(_search_epoch, log, requested.leader_epoch, result)
            if requested.leader_epoch < log.leader_epoch:
                searches.append(search)
            else:
                search()
    if not searches:
        return response
    here.side_thread.run(call, request.topics[0].topic, one_by_one(searches), lambda: call.reply(response))
    return None


def _search_epoch(log: PartitionLog, epoch: int, result: EpochEnd) -> None:
    result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # until the offset is known: the answer goes out in any case
    try:
        if epoch != NO_LEADER_EPOCH:
            result.leader_epoch, result.end_offset = log.end_of_epoch(epoch)
    except KafkaError as error:
        result.error_code = error.code
    else:
        result.error_code = ErrorCode.NONE
