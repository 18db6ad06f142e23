"""Admin requests about replicas: on which brokers (KIP-455) and in which log directories (KIP-113) they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.client.core.admin.admin import failure
from muster.client.core.checks import MAX_INT, check_number, check_partition, check_text
from muster.client.core.offset_requests import by_topic
from muster.errors import KafkaError
from muster.model import TopicPartition
from muster.protocol.admin_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)

TargetReplicas = Mapping[TopicPartition, list[int] | None]
"""The target brokers of each partition, the preferred leader first. None cancels a reassignment in progress."""


@dataclass(slots=True)
class PartitionReassignment:
    """A reassignment in progress, as broker ids: all replicas, those being added, and those being removed."""

    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]


def check_replicas(targets: Mapping[TopicPartition, Iterable[int] | None]) -> dict[TopicPartition, list[int] | None]:
    """Check the target brokers of each partition. Whether these brokers exist is for the controller to check."""
    found: dict[TopicPartition, list[int] | None] = {}
    for given, brokers in targets.items():
        partition = check_partition(given)
        what = f"a broker's id for {partition}"
        found[partition] = None if brokers is None else [check_number(what, one, -MAX_INT, MAX_INT) for one in brokers]
    return found


def reassign_request(
    targets: TargetReplicas, *, factor_may_change: bool, timeout_ms: int
) -> AlterPartitionReassignmentsRequest:
    """AlterPartitionReassignments, to the controller. Only v1 (Kafka 4.1) can forbid a change of the replication
    factor (KIP-860)."""
    topics: dict[str, ReassignableTopic] = {}
    for (topic, partition), brokers in targets.items():
        named = topics.setdefault(topic, ReassignableTopic(topic))
        named.partitions.append(ReassignablePartition(partition, brokers))
    return AlterPartitionReassignmentsRequest(timeout_ms, factor_may_change, list(topics.values()))


def reassigned(answer: AlterPartitionReassignmentsResponse) -> dict[TopicPartition, KafkaError | None]:
    """Which reassignments have begun, or were cancelled."""
    return {
        TopicPartition(topic.name, part.partition_index): failure(part.error_code, part.error_message)
        for topic in answer.responses
        for part in topic.partitions
    }


def list_reassignments_request(
    partitions: Iterable[TopicPartition] | None, timeout_ms: int
) -> ListPartitionReassignmentsRequest:
    """ListPartitionReassignments, to the controller; None means all partitions."""
    named = None
    if partitions is not None:
        named = [ListPartitionReassignmentsTopics(topic, numbers) for topic, numbers in by_topic(partitions).items()]
    return ListPartitionReassignmentsRequest(timeout_ms, named)


def reassignments(answer: ListPartitionReassignmentsResponse) -> dict[TopicPartition, PartitionReassignment]:
    """The reassignments in progress."""
    return {
        TopicPartition(topic.name, part.partition_index): PartitionReassignment(
            part.replicas, part.adding_replicas, part.removing_replicas
        )
        for topic in answer.topics
        for part in topic.partitions
    }


def check_log_dirs(targets: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
    """Check the target log directory of each partition."""
    return {
        (p := check_partition(partition)): check_text(f"the log directory of {p}", path)
        for partition, path in targets.items()
    }


def alter_log_dirs_request(targets: Mapping[TopicPartition, str]) -> AlterReplicaLogDirsRequest:
    """AlterReplicaLogDirs, to the broker that has the replicas."""
    dirs: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), path in targets.items():
        dirs.setdefault(path, {}).setdefault(topic, []).append(partition)
    return AlterReplicaLogDirsRequest(
        [
            AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(*named) for named in topics.items()])
            for path, topics in dirs.items()
        ]
    )


def altered_log_dirs(answer: AlterReplicaLogDirsResponse) -> dict[TopicPartition, KafkaError | None]:
    """Which replicas are being moved, or were there already."""
    return {
        (partition := TopicPartition(topic.topic_name, part.partition_index)): failure(part.error_code, str(partition))
        for topic in answer.results
        for part in topic.partitions
    }
