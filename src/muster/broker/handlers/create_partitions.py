"""CreatePartitions (37): more partitions for existing topics (KIP-195). Checks and messages are those of Kafka's
controller.

Partitions are only added: records stay where they are, and keys may map to other partitions from then on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, Protocol

from muster.broker.handlers import create_topics
from muster.broker.handlers.create_topics import TopicNeeds
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.topics.changes import PartitionIncrease, check_count
from muster.errors import ErrorCode, KafkaError
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from muster.protocol.admin_messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

log = logging.getLogger("muster.broker")

_FEW = 50
"""More partitions than this are created in slices."""


class PartitionAdmin(Protocol):
    """Adds partitions for all brokers (zookeeper_cluster.py)."""

    def grow(
        self, wanted: Sequence[PartitionIncrease], timeout_ms: int, done: Callable[[Mapping[str, KafkaError]], None]
    ) -> None:
        """Add partitions; `done` gets the failures by topic."""


class _Found(NamedTuple):
    results: list[CreatePartitionsTopicResult]
    wanted: list[PartitionIncrease]


def create_partitions(
    cluster_admin: PartitionAdmin | None, here: TopicNeeds, request: CreatePartitionsRequest, call: Call
) -> CreatePartitionsResponse | Sliced | None:
    """Add partitions; each topic may fail separately. With validate_only, only check."""
    if cluster_admin is None:
        steps = _growing(here, request)
        new = sum(max(requested.count - here.topics.partition_count(requested.name), 0) for requested in request.topics)
        return at_once(steps) if new <= _FEW else steps
    found = _check_all(here, request)
    response = CreatePartitionsResponse(results=found.results)
    if request.validate_only or not found.wanted:
        return response
    cluster_admin.grow(found.wanted, request.timeout_ms, lambda failed: call.reply(_answer(response, failed)))
    return None


def _answer(response: CreatePartitionsResponse, failed: Mapping[str, KafkaError]) -> CreatePartitionsResponse:
    for result in response.results:
        if not result.error_code and (error := failed.get(result.name)) is not None:
            result.error_code, result.error_message = error.code, error.message
    return response


def _growing(here: TopicNeeds, request: CreatePartitionsRequest) -> Generator[None, None, CreatePartitionsResponse]:
    found = _check_all(here, request)
    response = CreatePartitionsResponse(results=found.results)
    if request.validate_only or not found.wanted:
        return response
    # No other request runs between the checks above and the first step of this: one that added partitions to a topic,
    # or deleted it, would be undone.
    try:
        yield from here.changes.growing(found.wanted)
    except OSError as error:
        names = [growth.topic.name for growth in found.wanted]
        log.error("could not add partitions to %d topic(s), first %s: %s", len(names), names[0], error)
        message = f"The partitions could not be stored: {error.strerror}"
        return _answer(response, dict.fromkeys(names, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)))
    return response


def _check_all(here: TopicNeeds, request: CreatePartitionsRequest) -> _Found:
    """What can be done for the topics that are named once, and why the others cannot grow."""
    times = Counter(topic.name for topic in request.topics)
    found = _Found([], [])
    for name, count in times.items():
        if count > 1:
            result = CreatePartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            found.results.append(result)
    for requested in request.topics:
        if times[requested.name] > 1:
            continue
        result = CreatePartitionsTopicResult(requested.name)
        found.results.append(result)
        try:
            found.wanted.append(_check(here, requested))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
    return found


def _check(here: TopicNeeds, requested: CreatePartitionsTopic) -> PartitionIncrease:
    topic = here.topics.get(requested.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    check_count(topic.name, topic.partitions, requested.count)
    if topic.name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        what = "groups" if topic.name == GROUP_METADATA_TOPIC else "transactional ids"
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Partitions cannot be added to {topic.name}: {what} would map to other partitions, without their state.",
        )
    if requested.count - topic.partitions > create_topics.MAX_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return PartitionIncrease(topic, topic.partitions, requested.count, _assigned(here, requested, topic.partitions))


def _assigned(here: TopicNeeds, requested: CreatePartitionsTopic, had: int) -> list[list[int]] | None:
    """The brokers of each new partition, if the request names them."""
    if requested.assignments is None:
        return None
    if len(requested.assignments) != requested.count - had:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {requested.count - had} additional partition(s), but only {len(requested.assignments)} "
            "assignment(s) were specified.",
        )
    for assignment in requested.assignments:
        create_topics.check_replicas(here.cluster, assignment.broker_ids)
        if len(assignment.broker_ids) != 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes a partition with {len(assignment.broker_ids)} replica(s), "
                "but this is not consistent with previous partitions, which have 1 replica(s).",
            )
    return [list(assignment.broker_ids) for assignment in requested.assignments]
