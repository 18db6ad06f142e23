"""Administration of partitions' replicas: ElectLeaders (43), AlterPartitionReassignments (45),
ListPartitionReassignments (46). Checks, their order and their messages are those of Kafka's controller.

A partition has one replica with records, which never moves. So an election is not needed, or has no broker to elect
while that broker is down; a reassignment is to the current broker, or refused; and none is ever in progress. Each
broker of a cluster answers from its own image of it.

ElectLeaders v1: unclean elections too (KIP-460). AlterPartitionReassignments v1: the replication factor may be kept
(KIP-860).
"""

from __future__ import annotations

from collections.abc import Generator

from muster.broker.cluster_view import NO_LEADER, ClusterView, Leadership
from muster.broker.handlers.create_topics import check_replicas
from muster.broker.net.calls import Call
from muster.broker.topics.catalogue import TopicCatalogue
from muster.errors import ErrorCode, KafkaError
from muster.protocol.admin_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

PREFERRED = 0
UNCLEAN = 1
"""Types of elections."""

_SENTENCES = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
}


# ------------------------------------------------------------------------------------------------------- ElectLeaders


def elect_leaders(
    cluster: ClusterView, topics: TopicCatalogue, request: ElectLeadersRequest, call: Call
) -> Generator[None, None, ElectLeadersResponse]:
    """Why nothing is elected, for each partition. A request for all partitions leaves out those that need no
    election."""
    kind = request.election_type
    if kind not in (PREFERRED, UNCLEAN) and request.topic_partitions != []:  # without partitions, any type is valid
        return _unknown_kind(request)
    response = ElectLeadersResponse()
    if request.topic_partitions is None:
        for topic in list(topics):
            result = ReplicaElectionResult(topic.name)
            response.replica_election_results.append(result)
            for index in range(topic.partitions):
                one = _elected(cluster, topics, kind, topic.name, index)
                if one.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    result.partition_result.append(one)
                yield
        return response
    for requested in request.topic_partitions:
        result = ReplicaElectionResult(requested.topic)
        response.replica_election_results.append(result)
        for index in requested.partitions:
            result.partition_result.append(_elected(cluster, topics, kind, requested.topic, index))
            yield
    return response


def _unknown_kind(request: ElectLeadersRequest) -> ElectLeadersResponse:
    code, why = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    results = [
        ReplicaElectionResult(requested.topic, [PartitionResult(index, code, why) for index in requested.partitions])
        for requested in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _elected(cluster: ClusterView, topics: TopicCatalogue, kind: int, name: str, index: int) -> PartitionResult:
    topic = topics.get(name)
    if topic is None:
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < topic.partitions:
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    code = why_no_election(kind, cluster.leadership(name, index))
    return PartitionResult(index, code, _SENTENCES[code])


def why_no_election(kind: int, nodes: Leadership) -> ErrorCode:
    """Why no other replica becomes a partition's leader: the one with its records leads it, or is down."""
    if kind == UNCLEAN:
        lacks = nodes.leader == NO_LEADER
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if lacks else ErrorCode.ELECTION_NOT_NEEDED
    if nodes.leader != NO_LEADER and nodes.replicas[:1] == [nodes.leader]:
        return ErrorCode.ELECTION_NOT_NEEDED
    return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


# ------------------------------------------------------------------------------------------------------ reassignments


def alter_partition_reassignments(
    cluster: ClusterView, topics: TopicCatalogue, request: AlterPartitionReassignmentsRequest, call: Call
) -> Generator[None, None, AlterPartitionReassignmentsResponse]:
    """Check that each partition is on the requested brokers; none is moved."""
    may_change = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change, error_message=None if request.topics else ""
    )
    for requested in request.topics:
        result = ReassignableTopicResponse(requested.name)
        response.responses.append(result)
        for one in requested.partitions:
            answer = ReassignablePartitionResponse(one.partition_index, error_message=None)
            result.partitions.append(answer)
            try:
                _check_reassignment(cluster, topics, requested.name, one, may_change)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message
            yield
    return response


def _check_reassignment(
    cluster: ClusterView, topics: TopicCatalogue, name: str, requested: ReassignablePartition, may_change: bool
) -> None:
    """Raises KafkaError if the partition is not on the requested brokers."""
    topic, index = topics.get(name), requested.partition_index
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if requested.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    has = cluster.leadership(name, index).replicas
    if has and requested.replicas == has:  # even while that broker is down: in Kafka it stays registered
        return
    check_replicas(cluster, requested.replicas)
    if not may_change and len(requested.replicas) != len(has):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(has)} to {len(requested.replicas)}",
        )
    where = f"{name}-{index} stays on broker {', '.join(map(str, has))}, where its records are"
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partitions do not move here: {where}.")


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """None: a partition stays where it is."""
    return ListPartitionReassignmentsResponse(error_message=None)
