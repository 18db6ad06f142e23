"""Admin requests about partitions: adding them, deleting records, their producers, leaders and log directories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from muster.client.core.admin.admin import failure
from muster.client.core.checks import MAX_INT, MAX_OFFSET, check_number, check_partition, check_topic
from muster.client.core.offset_requests import by_topic
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol.admin_messages import (
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
    TopicRequest,
)

HIGH_WATERMARK = -1
"""As an offset of `delete_records`: all records that can be read now."""


@dataclass(slots=True)
class NewPartitions:
    """A topic's new total number of partitions; `assignments` has the broker ids of each new one."""

    total_count: int
    assignments: list[list[int]] | None = None


@dataclass(slots=True)
class ReplicaInfo:
    """A replica of a partition in a log directory. `offset_lag` is how far it lags the leader; `is_future`
    is true for a replica that is being moved here from another directory of the broker."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(slots=True)
class LogDirDescription:
    """A log directory of a broker. The bytes are those of its volume, None if the broker does not report them.
    `error` is None, or why the directory cannot be read: KAFKA_STORAGE_ERROR if it has failed."""

    error: KafkaError | None
    replicas: dict[TopicPartition, ReplicaInfo]
    total_bytes: int | None = None
    usable_bytes: int | None = None


@dataclass(slots=True)
class ProducerState:
    """What the leader of a partition knows about an idempotent producer. The last two fields are None if it has no
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None = None
    transaction_start_offset: int | None = None


class ElectionType(IntEnum):
    """`PREFERRED` elects the first replica. `UNCLEAN` elects one that is not in sync if no other is left: records
    that it has not replicated are lost."""

    PREFERRED = 0
    UNCLEAN = 1


# --- partitions ------------------------------------------------------------------------------------------------------


def new_partitions(topic: str, wanted: NewPartitions | int) -> CreatePartitionsTopic:
    """The request's entry for a topic's new partitions. The broker decides whether the number makes sense."""
    new = NewPartitions(wanted) if not isinstance(wanted, NewPartitions) else wanted
    check_topic(topic)
    check_number(f"the number of partitions of {topic}", new.total_count, -MAX_INT, MAX_INT)
    assignments = None
    if new.assignments is not None:
        for broker in (broker for ids in new.assignments for broker in ids):
            check_number(f"a broker's id in the assignments of {topic}", broker, -MAX_INT, MAX_INT)
        assignments = [CreatePartitionsAssignment(list(ids)) for ids in new.assignments]
    return CreatePartitionsTopic(topic, new.total_count, assignments)


# --- records ---------------------------------------------------------------------------------------------------------


def check_deletion_offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Check the offsets before which records are deleted."""
    return {
        (p := check_partition(partition)): check_number(f"the offset of {p}", offset, HIGH_WATERMARK, MAX_OFFSET)
        for partition, offset in offsets.items()
    }


def delete_records_request(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    """DeleteRecords (KIP-107), to the leader of the partitions."""
    topics: dict[str, DeleteRecordsTopic] = {}
    for (topic, partition), offset in offsets.items():
        request_topic = topics.setdefault(topic, DeleteRecordsTopic(topic))
        request_topic.partitions.append(DeleteRecordsPartition(partition, offset))
    return DeleteRecordsRequest(list(topics.values()), timeout_ms)


def deleted_records(answer: DeleteRecordsResponse) -> dict[TopicPartition, int | KafkaError]:
    """The new log start offset of each partition."""
    return {
        (p := TopicPartition(topic.name, part.partition_index)): failure(
            part.error_code, _NOT_DELETABLE.format(p) if part.error_code == ErrorCode.POLICY_VIOLATION else str(p)
        )
        or part.low_watermark
        for topic in answer.topics
        for part in topic.partitions
    }


_NOT_DELETABLE = (
    "the records of {} cannot be deleted: the topic's cleanup.policy does not include delete. Set it to compact,delete"
    " first, and back to compact afterwards"
)
"""The broker sends only the error code."""


# --- producers -------------------------------------------------------------------------------------------------------


def describe_producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """DescribeProducers (KIP-664), to the leader of the partitions."""
    return DescribeProducersRequest([TopicRequest(topic, numbers) for topic, numbers in by_topic(partitions).items()])


def described_producers(answer: DescribeProducersResponse) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
    """The producers of each partition, by id."""
    found: dict[TopicPartition, list[ProducerState] | KafkaError] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            states = [
                ProducerState(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.coordinator_epoch if each.coordinator_epoch >= 0 else None,
                    each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
                )
                for each in sorted(part.active_producers, key=lambda each: each.producer_id)
            ]
            error = failure(part.error_code, part.error_message or str(partition))
            found[partition] = states if error is None else error
    return found


# --- leaders ---------------------------------------------------------------------------------------------------------


def elect_leaders_request(
    version: int, election_type: ElectionType, partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ElectLeadersRequest:
    """ElectLeaders (KIP-460); None means all partitions.

    Raises:
        UnsupportedVersionError: v0, from before Kafka 2.4, elects only preferred leaders.
    """
    if version == 0 and election_type is not ElectionType.PREFERRED:
        raise UnsupportedVersionError("electing unclean leaders on request needs Kafka 2.4 or later")
    named = (
        None
        if partitions is None
        else [TopicPartitions(topic, numbers) for topic, numbers in by_topic(partitions).items()]
    )
    return ElectLeadersRequest(int(election_type), named, timeout_ms)


def elected_leaders(answer: ElectLeadersResponse) -> dict[TopicPartition, KafkaError | None]:
    """The outcome of each election."""
    return {
        TopicPartition(topic.topic, part.partition_id): failure(part.error_code, part.error_message)
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


# --- log directories -------------------------------------------------------------------------------------------------


def log_dirs(answer: DescribeLogDirsResponse) -> dict[str, LogDirDescription] | KafkaError:
    """The log directories of one broker, by path. As in Kafka's client, a response without any means that the caller
    is not authorized to see them (before v3 there is no error code for that)."""
    refused = failure(answer.error_code)
    if refused is None and not answer.results:
        refused = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return refused or {
        found.log_dir: LogDirDescription(
            failure(found.error_code, found.log_dir),
            {
                TopicPartition(topic.name, part.partition_index): ReplicaInfo(
                    part.partition_size, part.offset_lag, part.is_future_key
                )
                for topic in found.topics
                for part in topic.partitions
            },
            found.total_bytes if found.total_bytes >= 0 else None,
            found.usable_bytes if found.usable_bytes >= 0 else None,
        )
        for found in answer.results
    }
