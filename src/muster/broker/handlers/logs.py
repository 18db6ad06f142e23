"""Administration of partitions' logs: DeleteRecords (21), AlterReplicaLogDirs (34), DescribeLogDirs (35),
DescribeProducers (61).

DeleteRecords moves the start of a log (KIP-107). The answer goes out when the new start offset is on disk; the bytes
before it are removed with the next retention check. AlterReplicaLogDirs (KIP-113) can move a partition only to the
folder in which it already is. DescribeLogDirs v3: an error for all. v4: sizes of the disk (KIP-827). DescribeProducers
(KIP-664) has idempotent producers and, for an open transaction, its first offset.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from muster.broker.cluster_view import ClusterView
from muster.broker.handlers.create_topics import UNKNOWN_NAME
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.net.side_thread import SideThread, one_by_one
from muster.broker.topics.catalogue import TopicCatalogue, invalid_name
from muster.broker.topics.partitions import Partitions
from muster.errors import ErrorCode, KafkaError
from muster.log import CleanupPolicy, PartitionLog
from muster.model import INTERNAL_TOPICS, TopicPartition
from muster.protocol.admin_messages import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

log = logging.getLogger("muster.broker")

NO_LOW_WATERMARK = -1
_LONGEST_FOLDER = 255
_MOVING = ".-future"
"""Kafka's name for the folder of a partition that is being moved ends with this, after 32 digits."""
_FEW = 100
"""More partitions than this are described in slices."""


class LogNeeds(NamedTuple):
    """The parts of the broker that these handlers use."""

    cluster: ClusterView
    topics: TopicCatalogue
    partitions: Partitions
    side_thread: SideThread
    data_dir: Path


# ----------------------------------------------------------------------------------------------------- DeleteRecords


def delete_records(here: LogNeeds, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse | None:
    """Set each partition's log start offset. A partition that is named twice is answered once, as in Kafka."""
    requested = {(topic.name, one.partition_index): one.offset for topic in request.topics for one in topic.partitions}
    by_topic: dict[str, DeleteRecordsTopicResult] = {}
    done: list[tuple[PartitionLog, DeleteRecordsPartitionResult]] = []
    for (topic, index), offset in requested.items():
        result = DeleteRecordsPartitionResult(index, NO_LOW_WATERMARK)
        by_topic.setdefault(topic, DeleteRecordsTopicResult(topic)).partitions.append(result)
        try:
            found = _log_to_cut(here, topic, index)
            result.low_watermark = found.delete_records(offset)
        except KafkaError as error:
            result.error_code = error.code
        else:
            done.append((found, result))
    response = DeleteRecordsResponse(topics=list(by_topic.values()))
    if not done:
        return response
    here.side_thread.run(
        call, request.topics[0].name, one_by_one([partial(_keep, here, done)]), lambda: call.reply(response)
    )
    return None


def _log_to_cut(here: LogNeeds, topic: str, index: int) -> PartitionLog:
    """The log of a partition whose records may be deleted. Raises KafkaError, in the order of Kafka's checks."""
    known = here.topics.get(topic)
    if known is None or not 0 <= index < known.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic in INTERNAL_TOPICS and known.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    found = here.partitions.get(topic, index)
    if found is None:
        raise KafkaError(here.cluster.not_led_error(topic, index))
    if found.config.cleanup_policy is CleanupPolicy.COMPACT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    return found


def _keep(here: LogNeeds, done: list[tuple[PartitionLog, DeleteRecordsPartitionResult]]) -> None:
    """Make the new start offsets durable."""
    for _, result in done:  # until it is known: the answer goes out whatever happens
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    try:
        here.partitions.persist_log_starts(found for found, _ in done)
    except OSError as error:
        log.error("could not write the log start offsets of %d partition(s): %s", len(done), error)
        return
    for _, result in done:
        result.error_code = ErrorCode.NONE


# ----------------------------------------------------------------------------------------------- AlterReplicaLogDirs


def alter_replica_log_dirs(
    here: LogNeeds, request: AlterReplicaLogDirsRequest, call: Call
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    """Check that each partition is in the requested folder. The last folder named for a partition counts."""
    wanted = {
        TopicPartition(topic.name, index): one.path
        for one in request.dirs
        for topic in one.topics
        for index in topic.partitions
    }
    by_topic: dict[str, AlterReplicaLogDirTopicResult] = {}
    for partition, path in wanted.items():
        answer = AlterReplicaLogDirPartitionResult(partition.partition, _why_not_in(here, path, partition))
        by_topic.setdefault(partition.topic, AlterReplicaLogDirTopicResult(partition.topic)).partitions.append(answer)
        yield
    return AlterReplicaLogDirsResponse(results=list(by_topic.values()))


def _why_not_in(here: LogNeeds, path: str, partition: TopicPartition) -> ErrorCode:
    """Why a partition cannot be in a folder, in the order of Kafka's checks."""
    topic, index = partition
    if len(f"{topic}-{index}{_MOVING}") + 32 > _LONGEST_FOLDER:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path != _folder(here):
        return ErrorCode.LOG_DIR_NOT_FOUND
    known = here.topics.get(topic)
    if known is None or not 0 <= index < known.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if here.partitions.has(partition) else here.cluster.not_led_error(topic, index)


def _folder(here: LogNeeds) -> str:
    """The one log directory, as reported to clients."""
    return str(here.data_dir.absolute())


# --------------------------------------------------------------------------------------------------- DescribeLogDirs


def describe_log_dirs(here: LogNeeds, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse | Sliced:
    """The one log directory, with the size of each partition in it."""
    steps = _describe_log_dir(here, request)
    return steps if len(here.partitions) > _FEW else at_once(steps)


def _describe_log_dir(
    here: LogNeeds, request: DescribeLogDirsRequest
) -> Generator[None, None, DescribeLogDirsResponse]:
    result = DescribeLogDirsResult(log_dir=_folder(here))
    response = DescribeLogDirsResponse(results=[result])
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    by_topic: dict[str, DescribeLogDirsTopic] = {}
    for partition, one in here.partitions.hosted():
        yield
        if wanted is None or partition in wanted:
            topic = by_topic.setdefault(partition.topic, DescribeLogDirsTopic(partition.topic))
            topic.partitions.append(DescribeLogDirsPartition(partition.partition, one.size))
    try:
        disk = os.statvfs(here.data_dir)
    except OSError as error:
        log.error("could not read %s: %s", here.data_dir, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return response
    result.topics = list(by_topic.values())
    result.total_bytes, result.usable_bytes = disk.f_frsize * disk.f_blocks, disk.f_frsize * disk.f_bavail
    return response


# ------------------------------------------------------------------------------------------------- DescribeProducers


def describe_producers(
    here: LogNeeds, request: DescribeProducersRequest, call: Call
) -> Generator[None, None, DescribeProducersResponse]:
    """The producers that each partition remembers, a partition at a time."""
    response = DescribeProducersResponse()
    for topic in request.topics:
        answer = TopicResponse(topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            result = PartitionResponse(index)
            answer.partitions.append(result)
            try:
                result.active_producers = _producers(here, topic.name, index)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            yield
    return response


def _producers(here: LogNeeds, topic: str, index: int) -> list[ProducerState]:
    if why := invalid_name(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    if here.topics.get(topic) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_NAME)
    found = here.partitions.get(topic, index)
    if found is None:
        raise KafkaError(here.cluster.not_led_error(topic, index))
    return [
        ProducerState(
            producer_id,
            entry.epoch,
            entry.batches[-1].last_sequence if entry.batches else -1,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.first_offset,
        )
        for producer_id, entry in list(found.producers.producers.items())
    ]
