"""DescribeCluster (60) and DescribeTopicPartitions (75).

DescribeCluster v1: the kind of endpoint, brokers or controllers. v2: fenced brokers (there are none).
DescribeTopicPartitions v0: topics a page at a time, with a cursor (KIP-966).
"""

from __future__ import annotations

from muster.broker.cluster_view import ClusterView
from muster.broker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from muster.broker.net.calls import Call
from muster.broker.topics.catalogue import Topic, TopicCatalogue, invalid_name
from muster.errors import ErrorCode
from muster.protocol.messages import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_BROKERS = 1
_CONTROLLERS = 2
_MAX_PARTITIONS = 2_000


def describe_cluster(cluster: ClusterView, request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """The brokers of the cluster."""
    if request.endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    requested = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[DescribeClusterBroker(node.node_id, node.host, node.port, node.rack) for node in cluster.nodes],
        cluster_authorized_operations=CLUSTER_OPERATIONS if requested else NOT_ASKED,
    )


def describe_topic_partitions(
    cluster: ClusterView, topics: TopicCatalogue, request: DescribeTopicPartitionsRequest, call: Call
) -> DescribeTopicPartitionsResponse:
    """Topics in order of their names from the cursor on, until the limit of partitions is reached."""
    cursor = request.cursor
    start = cursor.partition_index if cursor is not None else 0
    requested = sorted({topic.name for topic in request.topics}) or [topic.name for topic in topics]
    if cursor is not None:
        requested = [name for name in requested if name >= cursor.topic_name]
        if not requested or requested[0] != cursor.topic_name:
            if request.topics:
                return _refused(request)
            start = 0
        if cursor.partition_index < 0:
            return _refused(request)
    room = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    response = DescribeTopicPartitionsResponse()
    for name in requested:
        if room == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, 0)
            break
        topic = topics.get(name)
        if topic is None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid_name(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown = DescribeTopicPartitionsResponseTopic(code, name, topic_authorized_operations=TOPIC_OPERATIONS)
            response.topics.append(unknown)
            start = 0
            continue
        end = min(topic.partitions, start + room)
        response.topics.append(_described(cluster, topic, range(start, end)))
        if end < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(name, end)
            break
        room -= max(0, end - start)
        start = 0
    return response


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """The cursor matches none of the topics, or no partition."""
    code = ErrorCode.INVALID_REQUEST
    topics = [
        DescribeTopicPartitionsResponseTopic(code, topic.name, topic_authorized_operations=NOT_ASKED)
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=topics)


def _described(cluster: ClusterView, topic: Topic, indexes: range) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        nodes = cluster.leadership(topic.name, index)
        leader, epoch, replicas, in_sync, offline = nodes
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                nodes.error, index, leader, epoch, replicas, in_sync, [], [], offline
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id, topic.internal, partitions, TOPIC_OPERATIONS
    )
