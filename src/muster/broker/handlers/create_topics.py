"""CreateTopics (19) and DeleteTopics (20). Checks, their order and their messages are those of Kafka's controller.

CreateTopics v5: the answer has partitions and settings. v7: and the topic's id.
DeleteTopics v5: error messages. v6: topics by name or id.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import NamedTuple

from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.identity import random_uuid
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.settings import show
from muster.broker.topics import settings as topic_settings
from muster.broker.topics.catalogue import Topic, TopicCatalogue, TopicToCreate, invalid_name
from muster.broker.topics.changes import TopicChanges
from muster.errors import ConfigError, ErrorCode, KafkaError
from muster.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from muster.protocol.primitives import ZERO_UUID

log = logging.getLogger("muster.broker")

MAX_PER_REQUEST = 10_000
"""The maximum number of partitions in a request, and of lines that it may write: one for each topic, partition and
setting."""

_FEW = 50
"""More topics or partitions than this are created in slices."""

UNKNOWN_NAME = "This server does not host this topic-partition."
UNKNOWN_ID = "This server does not host this topic ID."


class TopicPlan(NamedTuple):
    """A topic that may be created."""

    requested: CreatableTopic
    partitions: int
    settings: dict[str, str]


class TopicNeeds(NamedTuple):
    """The parts of the broker that CreateTopics and DeleteTopics use."""

    config: BrokerConfig
    cluster: ClusterView
    topics: TopicCatalogue
    changes: TopicChanges


def create_topics(here: TopicNeeds, request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse | Sliced:
    """Create topics; each may fail separately. With validate_only, only check. Too many are refused together."""
    few = (
        len(request.topics) <= _FEW
        and sum(_requested_partitions(here, requested) for requested in request.topics) <= _FEW
    )
    few = few and not any(here.changes.is_cleaning_up(requested.name) for requested in request.topics)
    return at_once(_creating(here, request, call.version)) if few else _creating(here, request, call.version)


def _creating(
    here: TopicNeeds, request: CreateTopicsRequest, version: int
) -> Generator[None, None, CreateTopicsResponse]:
    yield from here.changes.cleaning_up(requested.name for requested in request.topics)
    found = plans(here, request)
    if isinstance(found, CreateTopicsResponse):
        return found
    # No other request runs between the checks above and the first step of this.
    wanted = [] if request.validate_only else [plan for plan in found if isinstance(plan, TopicPlan)]
    created = (yield from _create_all(here, wanted)) if wanted else {}
    return (yield from answering(here, request, found, created, version))


def plans(
    here: TopicNeeds, request: CreateTopicsRequest
) -> list[TopicPlan | CreatableTopicResult] | CreateTopicsResponse:
    """The topics that can be created, and errors for the others; or the answer to the request, if it is too large."""
    times = Counter(topic.name for topic in request.topics)
    single = [requested for requested in request.topics if times[requested.name] == 1]
    if sum(_requested_partitions(here, requested) for requested in single) > MAX_PER_REQUEST:
        return _too_many(request, "Excessively large number of partitions per request.")
    found = [_plan(here, requested) for requested in single]
    if sum(1 + p.partitions + len(p.settings) for p in found if isinstance(p, TopicPlan)) > MAX_PER_REQUEST:
        return _too_many(request, "Unable to perform excessively large batch operation.")
    return found


def answering(
    here: TopicNeeds,
    request: CreateTopicsRequest,
    plans: Iterable[TopicPlan | CreatableTopicResult],
    created: Mapping[str, bytes | CreatableTopicResult],
    version: int,
) -> Generator[None, None, CreateTopicsResponse]:
    """The answer, a slice at a time: `created` has each topic's id, or why it was not created."""
    response = CreateTopicsResponse()
    for one in plans:
        if isinstance(one, TopicPlan):
            one = _result(here, one, created.get(one.requested.name) or random_uuid(), version)
        response.topics.append(one)
        yield
    for name, count in Counter(topic.name for topic in request.topics).items():
        if count > 1:
            response.topics.append(failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    return response


def _requested_partitions(here: TopicNeeds, requested: CreatableTopic) -> int:
    if requested.assignments:
        return len(requested.assignments)
    return here.config.integer("num.partitions") if requested.num_partitions == -1 else max(requested.num_partitions, 0)


def _too_many(request: CreateTopicsRequest, message: str) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[failed(requested.name, ErrorCode.POLICY_VIOLATION, message) for requested in request.topics]
    )


def _plan(here: TopicNeeds, requested: CreatableTopic) -> TopicPlan | CreatableTopicResult:
    try:
        _check_name(here, requested.name)
        settings = topic_settings.check((config.name, config.value) for config in requested.configs)
        partitions = _check_partitions(here, requested)
    except KafkaError as error:
        return failed(requested.name, error.code, error.message)
    except ConfigError as error:
        return failed(requested.name, ErrorCode.INVALID_CONFIG, str(error))
    return TopicPlan(requested, partitions, settings)


def _create_all(
    here: TopicNeeds, plans: list[TopicPlan]
) -> Generator[None, None, dict[str, bytes | CreatableTopicResult]]:
    """Create topics with one write of the catalogue; if that fails, one by one. Returns each topic's id or error."""
    wanted = [TopicToCreate(plan.requested.name, plan.partitions, plan.settings) for plan in plans]
    try:
        topics = yield from here.changes.creating(wanted)
        return {topic.name: topic.topic_id for topic in topics}
    except OSError as error:
        if len(plans) == 1:
            [name] = [plan.requested.name for plan in plans]
            log.error("could not create topic %s: %s", name, error)
            message = f"The topic could not be stored: {error.strerror}"
            return {name: failed(name, ErrorCode.KAFKA_STORAGE_ERROR, message)}
    found: dict[str, bytes | CreatableTopicResult] = {}
    for plan in plans:
        yield
        again = _plan(here, plan.requested)  # another request may have created it in between
        found |= (yield from _create_all(here, [again])) if isinstance(again, TopicPlan) else {again.name: again}
    return found


def _result(
    here: TopicNeeds, plan: TopicPlan, created: bytes | CreatableTopicResult, version: int
) -> CreatableTopicResult:
    if isinstance(created, CreatableTopicResult):
        return created
    result = CreatableTopicResult(plan.requested.name, created, error_message=None)
    if version >= 5:
        result.num_partitions, result.replication_factor = plan.partitions, 1
        result.configs = _all_settings(here, plan.settings)
    return result


def _check_name(here: TopicNeeds, name: str) -> None:
    if why := invalid_name(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    if here.topics.get(name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other := here.topics.colliding(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _check_partitions(here: TopicNeeds, requested: CreatableTopic) -> int:
    """How many partitions the topic gets. Raises KafkaError in the order of Kafka's checks."""
    if requested.assignments:
        return _check_assignments(here, requested)
    if requested.replication_factor < -1 or requested.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if requested.num_partitions < -1 or requested.num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if requested.replication_factor > 1:
        raise _too_many_replicas(requested.replication_factor, len(here.cluster.nodes))
    return requested.num_partitions if requested.num_partitions > 0 else here.config.integer("num.partitions")


def _too_many_replicas(wanted: int, brokers: int) -> KafkaError:
    reason = f"because only {brokers} broker(s) are registered."
    if wanted <= brokers:
        reason = "because muster keeps one replica of each partition."
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} cannot be "
        f"reached {reason}",
    )


def _check_assignments(here: TopicNeeds, requested: CreatableTopic) -> int:
    if requested.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if requested.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    seen = set()
    for assignment in requested.assignments:
        if assignment.partition_index in seen:
            raise _bad_assignment(
                f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            )
        seen.add(assignment.partition_index)
        check_replicas(here.cluster, assignment.broker_ids)
        if len(assignment.broker_ids) > 1:
            raise _too_many_replicas(len(assignment.broker_ids), len(here.cluster.nodes))
    if seen != set(range(len(seen))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return len(seen)


def check_replicas(cluster: ClusterView, broker_ids: list[int]) -> None:
    """Check that the brokers named for a partition are registered, each once. Raises KafkaError."""
    if not broker_ids:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    seen = set()
    for broker_id in sorted(broker_ids):
        if not cluster.is_registered(broker_id):
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id in seen:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        seen.add(broker_id)


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def failed(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name, ZERO_UUID, code, message)


def _all_settings(here: TopicNeeds, settings: dict[str, str]) -> list[CreatableTopicConfigs]:
    found = []
    for name in topic_settings.SETTINGS:
        value = topic_settings.effective(name, settings, here.config)
        found.append(CreatableTopicConfigs(name, show(value.value), False, value.source, False))
    return found


def delete_topics(here: TopicNeeds, request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse | Sliced:
    """Delete topics: with one write of the catalogue for all, and a slice at a time."""
    requested = [DeleteTopicState(name) for name in request.topic_names] if call.version < 6 else request.topics
    if not here.config.flag("delete.topic.enable"):
        code = ErrorCode.INVALID_REQUEST if call.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(topic.name, topic.topic_id, code) for topic in requested]
        )
    return _deleting(here, *named_once(requested))


def named_once(requested: list[DeleteTopicState]) -> tuple[list[DeleteTopicState], list[DeletableTopicResult]]:
    """The topics that are named once, and the results for those that are named more than once."""
    # A topic that is named in both ways, or in neither, is refused each time.
    names = Counter(topic.name for topic in requested if topic.name is not None and topic.topic_id == ZERO_UUID)
    ids = Counter(topic.topic_id for topic in requested if topic.name is None and topic.topic_id != ZERO_UUID)
    single = [
        topic
        for topic in requested
        if (topic.name is None) == (topic.topic_id == ZERO_UUID) or names[topic.name or ""] + ids[topic.topic_id] == 1
    ]
    twice = [_undeleted(name, ZERO_UUID, "Duplicate topic name.") for name, count in names.items() if count > 1]
    twice += [_undeleted(None, topic_id, "Duplicate topic id.") for topic_id, count in ids.items() if count > 1]
    return single, twice


def _deleting(
    here: TopicNeeds, requested: list[DeleteTopicState], twice: list[DeletableTopicResult]
) -> Generator[None, None, DeleteTopicsResponse]:
    found: dict[str, Topic] = {}
    results = [to_delete(here, each, found) for each in requested]
    # No other request runs between the checks above and the first step of this.
    try:
        if found:
            yield from here.changes.deleting(list(found.values()))
    except OSError as error:
        log.error("could not delete %d topic(s), first %s: %s", len(found), next(iter(found)), error)
        for result in results:
            if not result.error_code:
                result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return DeleteTopicsResponse(responses=results + twice)


def _undeleted(
    name: str | None, topic_id: bytes, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> DeletableTopicResult:
    return DeletableTopicResult(name, topic_id, code, message)


def to_delete(here: TopicNeeds, requested: DeleteTopicState, found: dict[str, Topic]) -> DeletableTopicResult:
    """The result for a topic if its deletion succeeds, and add it to `found`; or why it cannot be deleted."""
    if requested.name is not None and requested.topic_id != ZERO_UUID:
        return _undeleted(requested.name, requested.topic_id, "You may not specify both topic name and topic id.")
    if requested.name is None and requested.topic_id == ZERO_UUID:
        return _undeleted(None, ZERO_UUID, "Neither topic name nor id were specified.")
    if requested.name is not None:
        topic = here.topics.get(requested.name)
        if topic is None or topic.name in found:
            return _undeleted(requested.name, ZERO_UUID, UNKNOWN_NAME, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    else:
        topic = here.topics.by_id(requested.topic_id)
        if topic is None or topic.name in found:
            return _undeleted(None, requested.topic_id, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    found[topic.name] = topic
    return DeletableTopicResult(topic.name, topic.topic_id)
