"""OffsetForLeaderEpoch (23): where the records of a leader epoch end (KIP-320).

A consumer asks when a partition has a leader under a newer epoch than that of the records it has read: a log that ends
before its position has lost records. v3: the asking replica, -1 of a consumer; all are answered alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from muster.broker.cluster_view import ClusterView
from muster.broker.net.calls import Call
from muster.broker.net.side_thread import SideThread, one_by_one
from muster.broker.topics.partitions import Partitions
from muster.errors import ErrorCode, KafkaError
from muster.model import NO_LEADER_EPOCH
from muster.protocol.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from muster.protocol.messages import OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd

if TYPE_CHECKING:
    from muster.log import PartitionLog


class LeaderEpochNeeds(NamedTuple):
    """What OffsetForLeaderEpoch needs."""

    cluster: ClusterView
    partitions: Partitions
    side_thread: SideThread


def offset_for_leader_epoch(
    here: LeaderEpochNeeds, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse | None:
    """The end of each partition's epoch. For an older epoch than the leader's, batches are read: a thread does it."""
    response = OffsetForLeaderEpochResponse()
    searches: list[Callable[[], None]] = []
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic.topic)
        response.topics.append(answer)
        for asked in topic.partitions:
            result = EpochEnd(partition=asked.partition)
            answer.partitions.append(result)
            try:
                log = _log(here, topic.topic, asked)
            except KafkaError as error:
                result.error_code = error.code
                continue
            search = partial(_search, log, asked.leader_epoch, result)
            if asked.leader_epoch < log.leader_epoch:
                searches.append(search)
            else:
                search()
    if not searches:
        return response
    here.side_thread.run(call, request.topics[0].topic, one_by_one(searches), lambda: call.reply(response))
    return None


def _log(here: LeaderEpochNeeds, topic: str, asked: OffsetForLeaderPartition) -> PartitionLog:
    log = here.partitions.get(topic, asked.partition)
    if log is None:
        raise KafkaError(here.cluster.why_not_here(topic, asked.partition))
    here.cluster.check_leader_epoch(topic, asked.partition, asked.current_leader_epoch)
    return log


def _search(log: PartitionLog, epoch: int, result: EpochEnd) -> None:
    result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # until it is known: the answer goes out whatever happens
    try:
        if epoch != NO_LEADER_EPOCH:
            result.leader_epoch, result.end_offset = log.end_of_epoch(epoch)
    except KafkaError as error:
        result.error_code = error.code
    else:
        result.error_code = ErrorCode.NONE
