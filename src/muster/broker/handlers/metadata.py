"""Metadata (3): brokers and topics.

v0: an empty list means all topics. v1: null does. v4: the client may forbid auto-creation. v8-v10: authorized
operations of the cluster. v10: topic ids in the answer; v12: in the request, without a name. v13: an error for all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, Protocol

from muster.broker.cluster_view import ClusterView, Leadership
from muster.broker.net.calls import SMALL, Call, Sliced, at_once
from muster.broker.topics.catalogue import Topic, Topics, invalid_name
from muster.errors import ErrorCode
from muster.model import INTERNAL_TOPICS
from muster.protocol.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from muster.protocol.primitives import ZERO_UUID

NOT_ASKED = -(2**31)
"""The authorized operations were not requested."""

TOPIC_OPERATIONS = 0b110111111000
"""Read, write, create, delete, alter, describe, describe and alter configs: all operations on a topic."""

CLUSTER_OPERATIONS = 0b1111110100000
"""Create, alter, describe, cluster action, configs, idempotent write: all operations on a cluster."""


_FEW = 200
"""More topics than this are described in slices."""


class Changes(Protocol):
    """Creates requested topics (topics/changes.py)."""

    def is_cleaning_up(self, name: str) -> bool: ...

    def auto_create(self, names: Iterable[str]) -> Generator[None, None, None]: ...


class MetadataNeeds(NamedTuple):
    """The parts of the broker that Metadata uses."""

    cluster: ClusterView
    topics: Topics
    changes: Changes


def metadata(here: MetadataNeeds, request: MetadataRequest, call: Call) -> MetadataResponse | Sliced:
    """The brokers, and the requested topics."""
    requested = request.topics
    if (
        requested
        and call.version < 12
        and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in requested)
    ):
        return _refused(requested, ErrorCode.INVALID_REQUEST)
    if requested is not None and any(topic.name is None and topic.topic_id == ZERO_UUID for topic in requested):
        return _refused(requested, ErrorCode.UNKNOWN_SERVER_ERROR)  # an unexpected error in Kafka
    if requested is None or (not requested and call.version == 0):
        requested = [MetadataRequestTopic(name=topic.name) for topic in here.topics]
    steps = _metadata(here, request, requested)
    few = len(requested) <= _FEW and sum(_partitions(here, topic) for topic in requested) <= SMALL
    return at_once(steps) if few else steps


def _partitions(here: MetadataNeeds, requested: MetadataRequestTopic) -> int:
    """A requested topic's partitions; counted as many partitions if a deleted topic with its name must be removed
    first."""
    if requested.name and here.changes.is_cleaning_up(requested.name):
        return SMALL + 1
    topic = here.topics.get(requested.name) if requested.name else here.topics.by_id(requested.topic_id)
    return topic.partitions if topic is not None else 0


def _metadata(
    here: MetadataNeeds, request: MetadataRequest, requested: list[MetadataRequestTopic]
) -> Generator[None, None, MetadataResponse]:
    topics: list[MetadataResponseTopic] = []
    seen: set[tuple[str | None, bytes]] = set()
    unknown: list[str] = []
    for one in requested:
        if (one.name, one.topic_id) not in seen:
            seen.add((one.name, one.topic_id))
            topics.append(_describe_requested(here, one, unknown))
        yield
    if request.allow_auto_topic_creation and unknown:
        yield from here.changes.auto_create(unknown)
    if request.include_topic_authorized_operations:
        for found in topics:
            if found.error_code == 0:
                found.topic_authorized_operations = TOPIC_OPERATIONS
    cluster = here.cluster
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node.node_id, node.host, node.port, node.rack) for node in cluster.nodes],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _describe_requested(
    here: MetadataNeeds, requested: MetadataRequestTopic, unknown: list[str]
) -> MetadataResponseTopic:
    """The answer for a topic; the name of a topic that could be created is added to `unknown`."""
    if requested.topic_id != ZERO_UUID:
        topic = here.topics.by_id(requested.topic_id)
        if topic is None:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, requested.topic_id)
        return _described(here, topic)
    name = requested.name or ""
    topic = here.topics.get(name)
    if topic is None:
        if invalid_name(name):
            return MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
        # The topic is created after the answer, as in Kafka; clients expect this, and retry.
        unknown.append(name)
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, is_internal=name in INTERNAL_TOPICS)
    return _described(here, topic)


def _described(here: MetadataNeeds, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(here.cluster.leadership(topic.name, index), index) for index in range(topic.partitions)],
    )


def _partition(nodes: Leadership, index: int) -> MetadataResponsePartition:
    return MetadataResponsePartition(nodes.error, index, *nodes)


def _refused(requested: list[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    topics = [MetadataResponseTopic(code, topic.name or "", topic.topic_id) for topic in requested]
    return MetadataResponse(topics=topics, error_code=code)
