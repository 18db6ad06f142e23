"""Metadata (3): brokers and topics.

v0: an empty list means all topics. v1: null does. v4: the client may forbid auto-creation. v8-v10: authorized
operations of the cluster. v10: topic ids in the answer; v12: in the request, without a name. v13: an error for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.broker.server import Call
from muster.broker.topics import Topic, invalid_name
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from muster.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from muster.broker.broker import Broker

NOT_ASKED = -(2**31)
TOPIC_OPERATIONS = 0b110111111000
"""Read, write, create, delete, alter, describe, describe and alter configs: all that there are for a topic."""

CLUSTER_OPERATIONS = 0b1111110100000
"""Create, alter, describe, cluster action, configs, idempotent write: all that there are for a cluster."""

LEADER_EPOCH = 0


def metadata(broker: Broker, request: MetadataRequest, call: Call) -> MetadataResponse:
    """The one broker, and the topics asked for."""
    asked = request.topics
    if asked and call.version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in asked):
        return _refused(asked, ErrorCode.INVALID_REQUEST)
    if asked is not None and any(topic.name is None and topic.topic_id == ZERO_UUID for topic in asked):
        return _refused(asked, ErrorCode.INVALID_REQUEST)
    if asked is None or (not asked and call.version == 0):
        topics = [_described(broker, topic) for topic in broker.topics]
    else:
        topics = [_asked_for(broker, topic, request.allow_auto_topic_creation) for topic in _once_each(asked)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == 0:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    node = broker.node
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node.node_id, node.host, node.port, node.rack)],
        cluster_id=broker.cluster_id,
        controller_id=node.node_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _once_each(asked: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.name, topic.topic_id): topic for topic in asked}.values())


def _asked_for(broker: Broker, asked: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic:
    if asked.topic_id != ZERO_UUID:
        topic = broker.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
        return _described(broker, topic)
    name = asked.name or ""
    topic = broker.topics.get(name)
    if topic is None:
        if invalid_name(name):
            return MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
        if may_create:
            broker.auto_create(name)
        # A new topic is there for whoever asks again. Clients count on what Kafka does: it creates behind the answer.
        return MetadataResponseTopic(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, is_internal=name == GROUP_METADATA_TOPIC
        )
    return _described(broker, topic)


def _described(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    node = [broker.node.node_id]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponsePartition(0, index, node[0], LEADER_EPOCH, node, node) for index in range(topic.partitions)
        ],
    )


def _refused(asked: list[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    topics = [MetadataResponseTopic(code, topic.name or "", topic.topic_id) for topic in asked]
    return MetadataResponse(topics=topics)
