"""The arguments and results of an admin client as values, and how brokers' responses become results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from muster.client.core.checks import MAX_INT, check_number, check_text
from muster.client.core.offset_requests import Answer, fetch_answers, group_answers
from muster.errors import ErrorCode, KafkaError, ProtocolError, UnsupportedVersionError
from muster.model import CONSUMER_PROTOCOL_TYPE, Node, OffsetAndMetadata, TopicPartition
from muster.protocol.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    DescribeConfigsResult,
    DescribedGroup,
    DescribedGroupMember,
    MetadataResponse,
    MetadataResponseTopic,
    OffsetFetchResponse,
)
from muster.protocol.subscription import decode_assignment, decode_subscription

if TYPE_CHECKING:
    from muster.protocol.group_messages import Assignment
    from muster.protocol.group_messages import DescribedGroup as ConsumerGroup

V = TypeVar("V")

_MAX_SHORT = 2**15 - 1
_WITH_DEFAULTS = 4
"""The first version of CreateTopics with broker defaults for partitions and replicas (KIP-464)."""


@dataclass(slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default.

    `assignments` (partition to broker ids) replaces both numbers. `configs` has Kafka's dotted keys.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class CreatedTopic:
    """A topic that was created; the numbers are -1 if the broker is too old to send them."""

    name: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int


@dataclass(slots=True)
class TopicListing:
    """A topic that exists."""

    name: str
    topic_id: bytes
    is_internal: bool


@dataclass(slots=True)
class PartitionDescription:
    """One partition; `leader_id` is -1 while there is none."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]


@dataclass(slots=True)
class TopicDescription:
    """A topic and its partitions, in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionDescription]


@dataclass(slots=True)
class ClusterDescription:
    """The cluster as one of its brokers describes it."""

    cluster_id: str
    controller_id: int
    nodes: list[Node]


class ConfigResourceType(IntEnum):
    """The kind of a resource that has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """One topic, broker (its id as text, empty for the defaults of all) or group."""

    resource_type: ConfigResourceType
    name: str


@dataclass(slots=True)
class ConfigEntry:
    """One setting. `value` is None if it is sensitive; `is_default` is True if it was not set for this resource."""

    name: str
    value: str | None
    is_default: bool
    read_only: bool
    is_sensitive: bool
    source: int
    documentation: str | None = None


@dataclass(slots=True)
class GroupListing:
    """A group. `state` and `group_type` are empty if the broker is too old to send them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(slots=True)
class MemberDescription:
    """A member of a group. `topics` is its subscription, `owned` the partitions that its JoinGroup named as its own."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]
    topics: list[str] = field(default_factory=list)
    owned: list[TopicPartition] = field(default_factory=list)
    epoch: int | None = None
    target: list[TopicPartition] | None = None
    """The member's target assignment, in a group of KIP-848."""
    topic_regex: str | None = None


@dataclass(slots=True)
class GroupDescription:
    """A group with its members, sorted by id. `assignor` is the chosen protocol, empty while there is none. The epochs
    are None in a group of the classic protocol.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: list[MemberDescription]
    epoch: int | None = None
    target_epoch: int | None = None


# --- building requests -----------------------------------------------------------------------------------------------


def creatable_topic(topic: NewTopic) -> CreatableTopic:
    """The request's entry for a new topic. Raises IllegalArgumentError if the request cannot carry its numbers."""
    check_text("a topic", topic.name)
    # The broker checks whether the numbers make sense.
    check_number(f"num_partitions of {topic.name}", topic.num_partitions, -MAX_INT, MAX_INT)
    check_number(f"replication_factor of {topic.name}", topic.replication_factor, -_MAX_SHORT, _MAX_SHORT)
    for number in (*topic.assignments, *chain.from_iterable(topic.assignments.values())):
        check_number(f"a number in the assignments of {topic.name}", number, -MAX_INT, MAX_INT)
    assigned = bool(topic.assignments)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.num_partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=[CreatableReplicaAssignment(part, list(ids)) for part, ids in sorted(topic.assignments.items())],
        configs=[CreatableTopicConfig(name, value) for name, value in topic.configs.items()],
    )


def check_counts_are_set(topics: list[CreatableTopic], version: int) -> None:
    """Refuse -1, which means the broker's default, for brokers before Kafka 2.4 (KIP-464): they take it literally."""
    bare = [new.name for new in topics if not new.assignments and -1 in (new.num_partitions, new.replication_factor)]
    if version < _WITH_DEFAULTS and bare:
        text = "brokers before Kafka 2.4 have no defaults: set num_partitions and replication_factor of"
        raise UnsupportedVersionError(f"{text} {', '.join(bare)}")


# --- reading answers -------------------------------------------------------------------------------------------------


def failure(code: int, message: str | None = None) -> KafkaError | None:
    """An error code as a value; None for success."""
    return None if code == ErrorCode.NONE else KafkaError(code, message)


def created_topic(answer: CreatableTopicResult) -> CreatedTopic | KafkaError:
    """The outcome of a topic's creation."""
    return failure(answer.error_code, answer.error_message) or CreatedTopic(
        answer.name, answer.topic_id, answer.num_partitions, answer.replication_factor
    )


def topic_description(answer: MetadataResponseTopic) -> TopicDescription | KafkaError:
    """A topic from a Metadata response."""
    if answer.error_code != ErrorCode.NONE:
        return KafkaError(answer.error_code, f"topic {answer.name}")
    partitions = [
        PartitionDescription(
            part.partition_index, part.leader_id, part.leader_epoch, part.replica_nodes, part.isr_nodes
        )
        for part in sorted(answer.partitions, key=lambda part: part.partition_index)
    ]
    return TopicDescription(answer.name or "", answer.topic_id, answer.is_internal, partitions)


_DEFAULT_CONFIG = 5
_DYNAMIC_TOPIC_CONFIG = 1


def config_entries(answer: DescribeConfigsResult) -> dict[str, ConfigEntry] | KafkaError:
    """The settings of one resource, by name."""
    if answer.error_code != ErrorCode.NONE:
        return KafkaError(answer.error_code, answer.error_message)
    topic = answer.resource_type == ConfigResourceType.TOPIC
    return {
        entry.name: ConfigEntry(
            entry.name,
            entry.value,
            entry.config_source != _DYNAMIC_TOPIC_CONFIG if topic else entry.config_source == _DEFAULT_CONFIG,
            entry.read_only,
            entry.is_sensitive,
            entry.config_source,
            entry.documentation,
        )
        for entry in sorted(answer.configs, key=lambda entry: entry.name)
    }


def group_description(answer: DescribedGroup, coordinator: Node) -> GroupDescription | KafkaError:
    """A group with its members; the error for a group that does not exist is GROUP_ID_NOT_FOUND in every version."""
    if answer.error_code != ErrorCode.NONE:
        return KafkaError(answer.error_code, answer.error_message or f"group {answer.group_id}")
    if answer.group_state == "Dead":
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {answer.group_id} does not exist")
    members = [_member(member, answer.protocol_type) for member in answer.members]
    members.sort(key=lambda member: member.member_id)
    return GroupDescription(
        answer.group_id, answer.group_state, answer.protocol_type, answer.protocol_data, coordinator, members
    )


def consumer_group_description(answer: ConsumerGroup, coordinator: Node) -> GroupDescription | KafkaError:
    """A group of KIP-848 with its members."""
    if answer.error_code != ErrorCode.NONE:
        return KafkaError(answer.error_code, answer.error_message or f"group {answer.group_id}")
    members = [
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _assigned(member.assignment),
            sorted(member.subscribed_topic_names),
            epoch=member.member_epoch,
            target=_assigned(member.target_assignment),
            topic_regex=member.subscribed_topic_regex,
        )
        for member in sorted(answer.members, key=lambda member: member.member_id)
    ]
    return GroupDescription(
        answer.group_id,
        answer.group_state,
        CONSUMER_PROTOCOL_TYPE,
        answer.assignor_name,
        coordinator,
        members,
        answer.group_epoch,
        answer.assignment_epoch,
    )


def _assigned(assignment: Assignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _member(answer: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    member = MemberDescription(answer.member_id, answer.group_instance_id, answer.client_id, answer.client_host, [])
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return member  # Kafka Connect and others have their own formats
    try:
        if answer.member_assignment:
            member.assignment = sorted(decode_assignment(answer.member_assignment).partitions)
        if answer.member_metadata:
            subscription = decode_subscription(answer.member_metadata)
            member.topics = sorted(subscription.topics)
            member.owned = sorted(subscription.owned_partitions)
    except ProtocolError:
        pass  # a client that violates the consumer protocol: the rest is still worth showing
    return member


def all_groups(by_broker: Mapping[int, list[GroupListing] | KafkaError]) -> list[GroupListing]:
    """The groups of all brokers, sorted by id.

    Raises:
        KafkaError: a broker has not listed its groups.
    """
    return merged(by_broker, lambda group: group.group_id)


def merged(by_broker: Mapping[int, list[V] | KafkaError], id_of: Callable[[V], str]) -> list[V]:
    """What all brokers have listed, sorted by id. While coordinators move, two brokers may list the same id: one entry
    is kept.

    Raises:
        KafkaError: a broker has not listed anything.
    """
    found: dict[str, V] = {}
    for listed in by_broker.values():
        if isinstance(listed, KafkaError):
            raise listed
        found |= {id_of(each): each for each in listed}
    return [found[each] for each in sorted(found)]


def leaders(answer: MetadataResponse, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
    """Which broker leads each partition, or why none does."""
    known = {topic.name: topic for topic in answer.topics}
    brokers = {broker.node_id for broker in answer.brokers}
    found: dict[TopicPartition, int | KafkaError] = {}
    for partition in partitions:
        topic = known.get(partition.topic)
        part = None
        if topic is not None and topic.error_code == ErrorCode.NONE:
            part = next((part for part in topic.partitions if part.partition_index == partition.partition), None)
        if part is None:
            code = topic.error_code if topic is not None and topic.error_code else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found[partition] = KafkaError(code, str(partition))
        elif part.leader_id not in brokers:
            found[partition] = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        else:
            found[partition] = part.leader_id
    return found


def committed_offsets(
    answer: OffsetFetchResponse,
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError:
    """The committed offsets of one group, or why the whole group was refused; partitions without an offset are left
    out.
    """
    return _committed(*fetch_answers(answer))


def committed_offsets_by_group(
    answer: OffsetFetchResponse,
) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]:
    """The committed offsets of all groups of a response."""
    return {group.group_id: _committed(*group_answers(group)) for group in answer.groups}


def _committed(
    group_error: ErrorCode, answers: Mapping[TopicPartition, Answer]
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError:
    error = failure(group_error)
    if error is not None:
        return error
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError] = {}
    for partition, (code, committed) in answers.items():
        outcome = failure(code, str(partition)) or committed
        if outcome is not None:
            found[partition] = outcome
    return found
