# Made by `python -m muster.protocol.definitions.codegen` from group_definitions.py; do not edit.
"""The messages of Kafka's protocol: one class for all versions of each, fields as Kafka names them.

A field that a version does not carry has its default after decoding, and is left out when encoding.
"""

from __future__ import annotations

from typing import ClassVar

from muster.protocol.primitives import EMPTY, ZERO_UUID, Message, Request, Response, Struct


class ConsumerGroupMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class ConsumerGroupMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("epoch", "metadata_hash",)

    def __init__(
        self,
        epoch: int = 0,
        metadata_hash: int = 0,
    ) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash


class ConsumerGroupPartitionMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class PartitionMetadata(Struct):
    __slots__ = ("partition", "racks",)

    def __init__(
        self,
        partition: int = 0,
        racks: list[str] = EMPTY,
    ) -> None:
        self.partition = partition
        self.racks = [] if racks is EMPTY else racks


class TopicMetadata(Struct):
    __slots__ = ("topic_id", "topic_name", "num_partitions", "partition_metadata",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        topic_name: str = "",
        num_partitions: int = 0,
        partition_metadata: list[PartitionMetadata] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.num_partitions = num_partitions
        self.partition_metadata = [] if partition_metadata is EMPTY else partition_metadata


class ConsumerGroupPartitionMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("topics",)

    def __init__(
        self,
        topics: list[TopicMetadata] = EMPTY,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics


class ConsumerGroupMemberMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ClassicProtocol(Struct):
    __slots__ = ("name", "metadata",)

    def __init__(
        self,
        name: str = "",
        metadata: bytes = b"",
    ) -> None:
        self.name = name
        self.metadata = metadata


class ClassicMemberMetadata(Struct):
    __slots__ = ("session_timeout_ms", "supported_protocols",)

    def __init__(
        self,
        session_timeout_ms: int = 0,
        supported_protocols: list[ClassicProtocol] = EMPTY,
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.supported_protocols = [] if supported_protocols is EMPTY else supported_protocols


class ConsumerGroupMemberMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("instance_id", "rack_id", "client_id", "client_host", "subscribed_topic_names", "subscribed_topic_regex", "rebalance_timeout_ms", "server_assignor", "classic_member_metadata",)

    def __init__(
        self,
        instance_id: str | None = "",
        rack_id: str | None = "",
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: list[str] = EMPTY,
        subscribed_topic_regex: str | None = "",
        rebalance_timeout_ms: int = -1,
        server_assignor: str | None = "",
        classic_member_metadata: ClassicMemberMetadata | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = [] if subscribed_topic_names is EMPTY else subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.server_assignor = server_assignor
        self.classic_member_metadata = classic_member_metadata


class ConsumerGroupTargetAssignmentMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("assignment_epoch",)

    def __init__(
        self,
        assignment_epoch: int = 0,
    ) -> None:
        self.assignment_epoch = assignment_epoch


class ConsumerGroupTargetAssignmentMemberKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ConsumerGroupTargetAssignmentMemberValueTopicPartition(Struct):
    __slots__ = ("topic_id", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is EMPTY else partitions


class ConsumerGroupTargetAssignmentMemberValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        topic_partitions: list[ConsumerGroupTargetAssignmentMemberValueTopicPartition] = EMPTY,
    ) -> None:
        self.topic_partitions = [] if topic_partitions is EMPTY else topic_partitions


class ConsumerGroupCurrentMemberAssignmentKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    __slots__ = ("topic_id", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is EMPTY else partitions


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("member_epoch", "previous_member_epoch", "state", "assigned_partitions", "partitions_pending_revocation",)

    def __init__(
        self,
        member_epoch: int = 0,
        previous_member_epoch: int = 0,
        state: int = 0,
        assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = EMPTY,
        partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = EMPTY,
    ) -> None:
        self.member_epoch = member_epoch
        self.previous_member_epoch = previous_member_epoch
        self.state = state
        self.assigned_partitions = [] if assigned_partitions is EMPTY else assigned_partitions
        self.partitions_pending_revocation = [] if partitions_pending_revocation is EMPTY else partitions_pending_revocation


class ShareGroupMemberMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ShareGroupMemberMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("rack_id", "client_id", "client_host", "subscribed_topic_names",)

    def __init__(
        self,
        rack_id: str | None = "",
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: list[str] = EMPTY,
    ) -> None:
        self.rack_id = rack_id
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = [] if subscribed_topic_names is EMPTY else subscribed_topic_names


class ShareGroupMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class ShareGroupMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("epoch", "metadata_hash",)

    def __init__(
        self,
        epoch: int = 0,
        metadata_hash: int = 0,
    ) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash


class ShareGroupTargetAssignmentMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class ShareGroupTargetAssignmentMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("assignment_epoch",)

    def __init__(
        self,
        assignment_epoch: int = 0,
    ) -> None:
        self.assignment_epoch = assignment_epoch


class ShareGroupTargetAssignmentMemberKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ShareGroupTargetAssignmentMemberValueTopicPartition(Struct):
    __slots__ = ("topic_id", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is EMPTY else partitions


class ShareGroupTargetAssignmentMemberValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        topic_partitions: list[ShareGroupTargetAssignmentMemberValueTopicPartition] = EMPTY,
    ) -> None:
        self.topic_partitions = [] if topic_partitions is EMPTY else topic_partitions


class ShareGroupCurrentMemberAssignmentKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class ShareGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    __slots__ = ("topic_id", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.partitions = [] if partitions is EMPTY else partitions


class ShareGroupCurrentMemberAssignmentValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("member_epoch", "previous_member_epoch", "state", "assigned_partitions",)

    def __init__(
        self,
        member_epoch: int = 0,
        previous_member_epoch: int = 0,
        state: int = 0,
        assigned_partitions: list[ShareGroupCurrentMemberAssignmentValueTopicPartitions] = EMPTY,
    ) -> None:
        self.member_epoch = member_epoch
        self.previous_member_epoch = previous_member_epoch
        self.state = state
        self.assigned_partitions = [] if assigned_partitions is EMPTY else assigned_partitions


class ShareGroupStatePartitionMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class TopicPartitionsInfo(Struct):
    __slots__ = ("topic_id", "topic_name", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        topic_name: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = [] if partitions is EMPTY else partitions


class ShareGroupStatePartitionMetadataValueTopicInfo(Struct):
    __slots__ = ("topic_id", "topic_name",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        topic_name: str = "",
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name


class ShareGroupStatePartitionMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("initializing_topics", "initialized_topics", "deleting_topics",)

    def __init__(
        self,
        initializing_topics: list[TopicPartitionsInfo] = EMPTY,
        initialized_topics: list[TopicPartitionsInfo] = EMPTY,
        deleting_topics: list[ShareGroupStatePartitionMetadataValueTopicInfo] = EMPTY,
    ) -> None:
        self.initializing_topics = [] if initializing_topics is EMPTY else initializing_topics
        self.initialized_topics = [] if initialized_topics is EMPTY else initialized_topics
        self.deleting_topics = [] if deleting_topics is EMPTY else deleting_topics


class ConsumerGroupRegularExpressionKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "regular_expression",)

    def __init__(
        self,
        group_id: str = "",
        regular_expression: str = "",
    ) -> None:
        self.group_id = group_id
        self.regular_expression = regular_expression


class ConsumerGroupRegularExpressionValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("topics", "version", "timestamp",)

    def __init__(
        self,
        topics: list[str] = EMPTY,
        version: int = 0,
        timestamp: int = 0,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics
        self.version = version
        self.timestamp = timestamp


class StreamsGroupMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class LastAssignmentConfig(Struct):
    __slots__ = ("key", "value",)

    def __init__(
        self,
        key: str = "",
        value: str = "",
    ) -> None:
        self.key = key
        self.value = value


class StreamsGroupMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("epoch", "metadata_hash", "validated_topology_epoch", "last_assignment_configs",)

    def __init__(
        self,
        epoch: int = 0,
        metadata_hash: int = 0,
        validated_topology_epoch: int = -1,
        last_assignment_configs: list[LastAssignmentConfig] | None = EMPTY,
    ) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash
        self.validated_topology_epoch = validated_topology_epoch
        self.last_assignment_configs = [] if last_assignment_configs is EMPTY else last_assignment_configs


class StreamsGroupMemberMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class Endpoint(Struct):
    __slots__ = ("host", "port",)

    def __init__(
        self,
        host: str = "",
        port: int = 0,
    ) -> None:
        self.host = host
        self.port = port


class KeyValue(Struct):
    __slots__ = ("key", "value",)

    def __init__(
        self,
        key: str = "",
        value: str = "",
    ) -> None:
        self.key = key
        self.value = value


class StreamsGroupMemberMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("instance_id", "rack_id", "client_id", "client_host", "rebalance_timeout_ms", "topology_epoch", "process_id", "user_endpoint", "client_tags",)

    def __init__(
        self,
        instance_id: str | None = "",
        rack_id: str | None = "",
        client_id: str = "",
        client_host: str = "",
        rebalance_timeout_ms: int = -1,
        topology_epoch: int = 0,
        process_id: str = "",
        user_endpoint: Endpoint | None = None,
        client_tags: list[KeyValue] = EMPTY,
    ) -> None:
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.topology_epoch = topology_epoch
        self.process_id = process_id
        self.user_endpoint = user_endpoint
        self.client_tags = [] if client_tags is EMPTY else client_tags


class StreamsGroupTargetAssignmentMetadataKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class StreamsGroupTargetAssignmentMetadataValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("assignment_epoch",)

    def __init__(
        self,
        assignment_epoch: int = 0,
    ) -> None:
        self.assignment_epoch = assignment_epoch


class StreamsGroupTargetAssignmentMemberKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class StreamsGroupTargetAssignmentMemberValueTaskIds(Struct):
    __slots__ = ("subtopology_id", "partitions",)

    def __init__(
        self,
        subtopology_id: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.subtopology_id = subtopology_id
        self.partitions = [] if partitions is EMPTY else partitions


class StreamsGroupTargetAssignmentMemberValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("active_tasks", "standby_tasks", "warmup_tasks",)

    def __init__(
        self,
        active_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = EMPTY,
        standby_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = EMPTY,
        warmup_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = EMPTY,
    ) -> None:
        self.active_tasks = [] if active_tasks is EMPTY else active_tasks
        self.standby_tasks = [] if standby_tasks is EMPTY else standby_tasks
        self.warmup_tasks = [] if warmup_tasks is EMPTY else warmup_tasks


class StreamsGroupCurrentMemberAssignmentKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id", "member_id",)

    def __init__(
        self,
        group_id: str = "",
        member_id: str = "",
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id


class StreamsGroupCurrentMemberAssignmentValueTaskIds(Struct):
    __slots__ = ("subtopology_id", "partitions", "assignment_epochs",)

    def __init__(
        self,
        subtopology_id: str = "",
        partitions: list[int] = EMPTY,
        assignment_epochs: list[int] | None = EMPTY,
    ) -> None:
        self.subtopology_id = subtopology_id
        self.partitions = [] if partitions is EMPTY else partitions
        self.assignment_epochs = [] if assignment_epochs is EMPTY else assignment_epochs


class StreamsGroupCurrentMemberAssignmentValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("member_epoch", "previous_member_epoch", "state", "active_tasks", "standby_tasks", "warmup_tasks", "active_tasks_pending_revocation", "standby_tasks_pending_revocation", "warmup_tasks_pending_revocation",)

    def __init__(
        self,
        member_epoch: int = 0,
        previous_member_epoch: int = 0,
        state: int = 0,
        active_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
        standby_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
        warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
        active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
        standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
        warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = EMPTY,
    ) -> None:
        self.member_epoch = member_epoch
        self.previous_member_epoch = previous_member_epoch
        self.state = state
        self.active_tasks = [] if active_tasks is EMPTY else active_tasks
        self.standby_tasks = [] if standby_tasks is EMPTY else standby_tasks
        self.warmup_tasks = [] if warmup_tasks is EMPTY else warmup_tasks
        self.active_tasks_pending_revocation = [] if active_tasks_pending_revocation is EMPTY else active_tasks_pending_revocation
        self.standby_tasks_pending_revocation = [] if standby_tasks_pending_revocation is EMPTY else standby_tasks_pending_revocation
        self.warmup_tasks_pending_revocation = [] if warmup_tasks_pending_revocation is EMPTY else warmup_tasks_pending_revocation


class StreamsGroupTopologyKey(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    __slots__ = ("group_id",)

    def __init__(
        self,
        group_id: str = "",
    ) -> None:
        self.group_id = group_id


class TopicConfig(Struct):
    __slots__ = ("key", "value",)

    def __init__(
        self,
        key: str = "",
        value: str = "",
    ) -> None:
        self.key = key
        self.value = value


class StreamsGroupTopologyValueTopicInfo(Struct):
    __slots__ = ("name", "partitions", "replication_factor", "topic_configs",)

    def __init__(
        self,
        name: str = "",
        partitions: int = 0,
        replication_factor: int = 0,
        topic_configs: list[TopicConfig] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.replication_factor = replication_factor
        self.topic_configs = [] if topic_configs is EMPTY else topic_configs


class CopartitionGroup(Struct):
    __slots__ = ("source_topics", "source_topic_regex", "repartition_source_topics",)

    def __init__(
        self,
        source_topics: list[int] = EMPTY,
        source_topic_regex: list[int] = EMPTY,
        repartition_source_topics: list[int] = EMPTY,
    ) -> None:
        self.source_topics = [] if source_topics is EMPTY else source_topics
        self.source_topic_regex = [] if source_topic_regex is EMPTY else source_topic_regex
        self.repartition_source_topics = [] if repartition_source_topics is EMPTY else repartition_source_topics


class Subtopology(Struct):
    __slots__ = ("subtopology_id", "source_topics", "source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics", "copartition_groups",)

    def __init__(
        self,
        subtopology_id: str = "",
        source_topics: list[str] = EMPTY,
        source_topic_regex: list[str] = EMPTY,
        state_changelog_topics: list[StreamsGroupTopologyValueTopicInfo] = EMPTY,
        repartition_sink_topics: list[str] = EMPTY,
        repartition_source_topics: list[StreamsGroupTopologyValueTopicInfo] = EMPTY,
        copartition_groups: list[CopartitionGroup] = EMPTY,
    ) -> None:
        self.subtopology_id = subtopology_id
        self.source_topics = [] if source_topics is EMPTY else source_topics
        self.source_topic_regex = [] if source_topic_regex is EMPTY else source_topic_regex
        self.state_changelog_topics = [] if state_changelog_topics is EMPTY else state_changelog_topics
        self.repartition_sink_topics = [] if repartition_sink_topics is EMPTY else repartition_sink_topics
        self.repartition_source_topics = [] if repartition_source_topics is EMPTY else repartition_source_topics
        self.copartition_groups = [] if copartition_groups is EMPTY else copartition_groups


class StreamsGroupTopologyValue(Message):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    __slots__ = ("epoch", "subtopologies",)

    def __init__(
        self,
        epoch: int = 0,
        subtopologies: list[Subtopology] = EMPTY,
    ) -> None:
        self.epoch = epoch
        self.subtopologies = [] if subtopologies is EMPTY else subtopologies


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    __slots__ = ("topic_id", "topic_name", "partitions",)

    def __init__(
        self,
        topic_id: bytes = ZERO_UUID,
        topic_name: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = [] if partitions is EMPTY else partitions


class Assignment(Struct):
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = EMPTY,
    ) -> None:
        self.topic_partitions = [] if topic_partitions is EMPTY else topic_partitions


class Member(Struct):
    __slots__ = ("member_id", "instance_id", "rack_id", "member_epoch", "client_id", "client_host", "subscribed_topic_names", "subscribed_topic_regex", "assignment", "target_assignment", "member_type",)

    def __init__(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        rack_id: str | None = None,
        member_epoch: int = 0,
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: list[str] = EMPTY,
        subscribed_topic_regex: str | None = None,
        assignment: Assignment | None = None,
        target_assignment: Assignment | None = None,
        member_type: int = -1,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.member_epoch = member_epoch
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = [] if subscribed_topic_names is EMPTY else subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.assignment = Assignment() if assignment is None else assignment
        self.target_assignment = Assignment() if target_assignment is None else target_assignment
        self.member_type = member_type


class DescribedGroup(Struct):
    __slots__ = ("error_code", "error_message", "group_id", "group_state", "group_epoch", "assignment_epoch", "assignor_name", "members", "authorized_operations",)

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        group_epoch: int = 0,
        assignment_epoch: int = 0,
        assignor_name: str = "",
        members: list[Member] = EMPTY,
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.group_epoch = group_epoch
        self.assignment_epoch = assignment_epoch
        self.assignor_name = assignor_name
        self.members = [] if members is EMPTY else members
        self.authorized_operations = authorized_operations


class ConsumerGroupDescribeResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 69
    __slots__ = ("throttle_time_ms", "groups",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        groups: list[DescribedGroup] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = [] if groups is EMPTY else groups


class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 69
    RESPONSE: ClassVar = ConsumerGroupDescribeResponse
    __slots__ = ("group_ids", "include_authorized_operations",)

    def __init__(
        self,
        group_ids: list[str] = EMPTY,
        include_authorized_operations: bool = False,
    ) -> None:
        self.group_ids = [] if group_ids is EMPTY else group_ids
        self.include_authorized_operations = include_authorized_operations
