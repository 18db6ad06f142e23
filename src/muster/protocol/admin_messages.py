# Made by `python -m muster.protocol.definitions.codegen` from admin_definitions.py; do not edit.
"""The messages of Kafka's protocol: one class for all versions of each, fields as Kafka names them.

A field that a version does not carry has its default after decoding, and is left out when encoding.
"""

from __future__ import annotations

from typing import ClassVar

from muster.protocol.primitives import EMPTY, Request, Response, Struct


class DeleteRecordsPartitionResult(Struct):
    __slots__ = ("partition_index", "low_watermark", "error_code",)

    def __init__(
        self,
        partition_index: int = 0,
        low_watermark: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.low_watermark = low_watermark
        self.error_code = error_code


class DeleteRecordsTopicResult(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[DeleteRecordsPartitionResult] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class DeleteRecordsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 21
    __slots__ = ("throttle_time_ms", "topics",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[DeleteRecordsTopicResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is EMPTY else topics


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name",)

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class AlterConfigsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 33
    __slots__ = ("throttle_time_ms", "responses",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = [] if responses is EMPTY else responses


class AlterReplicaLogDirPartitionResult(Struct):
    __slots__ = ("partition_index", "error_code",)

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class AlterReplicaLogDirTopicResult(Struct):
    __slots__ = ("topic_name", "partitions",)

    def __init__(
        self,
        topic_name: str = "",
        partitions: list[AlterReplicaLogDirPartitionResult] = EMPTY,
    ) -> None:
        self.topic_name = topic_name
        self.partitions = [] if partitions is EMPTY else partitions


class AlterReplicaLogDirsResponse(Response):
    MIN_VERSION: ClassVar = 1
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 34
    __slots__ = ("throttle_time_ms", "results",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[AlterReplicaLogDirTopicResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is EMPTY else results


class DescribeLogDirsPartition(Struct):
    __slots__ = ("partition_index", "partition_size", "offset_lag", "is_future_key",)

    def __init__(
        self,
        partition_index: int = 0,
        partition_size: int = 0,
        offset_lag: int = 0,
        is_future_key: bool = False,
    ) -> None:
        self.partition_index = partition_index
        self.partition_size = partition_size
        self.offset_lag = offset_lag
        self.is_future_key = is_future_key


class DescribeLogDirsTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[DescribeLogDirsPartition] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class DescribeLogDirsResult(Struct):
    __slots__ = ("error_code", "log_dir", "topics", "total_bytes", "usable_bytes",)

    def __init__(
        self,
        error_code: int = 0,
        log_dir: str = "",
        topics: list[DescribeLogDirsTopic] = EMPTY,
        total_bytes: int = -1,
        usable_bytes: int = -1,
    ) -> None:
        self.error_code = error_code
        self.log_dir = log_dir
        self.topics = [] if topics is EMPTY else topics
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes


class DescribeLogDirsResponse(Response):
    MIN_VERSION: ClassVar = 1
    MAX_VERSION: ClassVar = 4
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 35
    __slots__ = ("throttle_time_ms", "error_code", "results",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results: list[DescribeLogDirsResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.results = [] if results is EMPTY else results


class CreatePartitionsTopicResult(Struct):
    __slots__ = ("name", "error_code", "error_message",)

    def __init__(
        self,
        name: str = "",
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message


class CreatePartitionsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 3
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 37
    __slots__ = ("throttle_time_ms", "results",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        results: list[CreatePartitionsTopicResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is EMPTY else results


class PartitionResult(Struct):
    __slots__ = ("partition_id", "error_code", "error_message",)

    def __init__(
        self,
        partition_id: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.partition_id = partition_id
        self.error_code = error_code
        self.error_message = error_message


class ReplicaElectionResult(Struct):
    __slots__ = ("topic", "partition_result",)

    def __init__(
        self,
        topic: str = "",
        partition_result: list[PartitionResult] = EMPTY,
    ) -> None:
        self.topic = topic
        self.partition_result = [] if partition_result is EMPTY else partition_result


class ElectLeadersResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 43
    __slots__ = ("throttle_time_ms", "error_code", "replica_election_results",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        replica_election_results: list[ReplicaElectionResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.replica_election_results = [] if replica_election_results is EMPTY else replica_election_results


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name",)

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class IncrementalAlterConfigsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 1
    API_KEY: ClassVar = 44
    __slots__ = ("throttle_time_ms", "responses",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = [] if responses is EMPTY else responses


class ReassignablePartitionResponse(Struct):
    __slots__ = ("partition_index", "error_code", "error_message",)

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


class ReassignableTopicResponse(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[ReassignablePartitionResponse] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class AlterPartitionReassignmentsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 45
    __slots__ = ("throttle_time_ms", "allow_replication_factor_change", "error_code", "error_message", "responses",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        allow_replication_factor_change: bool = True,
        error_code: int = 0,
        error_message: str | None = "",
        responses: list[ReassignableTopicResponse] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.error_code = error_code
        self.error_message = error_message
        self.responses = [] if responses is EMPTY else responses


class OngoingPartitionReassignment(Struct):
    __slots__ = ("partition_index", "replicas", "adding_replicas", "removing_replicas",)

    def __init__(
        self,
        partition_index: int = 0,
        replicas: list[int] = EMPTY,
        adding_replicas: list[int] = EMPTY,
        removing_replicas: list[int] = EMPTY,
    ) -> None:
        self.partition_index = partition_index
        self.replicas = [] if replicas is EMPTY else replicas
        self.adding_replicas = [] if adding_replicas is EMPTY else adding_replicas
        self.removing_replicas = [] if removing_replicas is EMPTY else removing_replicas


class OngoingTopicReassignment(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[OngoingPartitionReassignment] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class ListPartitionReassignmentsResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 46
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "topics",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        topics: list[OngoingTopicReassignment] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.topics = [] if topics is EMPTY else topics


class OffsetDeleteResponsePartition(Struct):
    __slots__ = ("partition_index", "error_code",)

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetDeleteResponseTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[OffsetDeleteResponsePartition] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class OffsetDeleteResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 47
    __slots__ = ("error_code", "throttle_time_ms", "topics",)

    def __init__(
        self,
        error_code: int = 0,
        throttle_time_ms: int = 0,
        topics: list[OffsetDeleteResponseTopic] = EMPTY,
    ) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is EMPTY else topics


class UpdatableFeatureResult(Struct):
    __slots__ = ("feature", "error_code", "error_message",)

    def __init__(
        self,
        feature: str = "",
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.feature = feature
        self.error_code = error_code
        self.error_message = error_message


class UpdateFeaturesResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 57
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        results: list[UpdatableFeatureResult] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = [] if results is EMPTY else results


class ProducerState(Struct):
    __slots__ = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "coordinator_epoch", "current_txn_start_offset",)

    def __init__(
        self,
        producer_id: int = 0,
        producer_epoch: int = 0,
        last_sequence: int = -1,
        last_timestamp: int = -1,
        coordinator_epoch: int = 0,
        current_txn_start_offset: int = -1,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_start_offset = current_txn_start_offset


class PartitionResponse(Struct):
    __slots__ = ("partition_index", "error_code", "error_message", "active_producers",)

    def __init__(
        self,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        active_producers: list[ProducerState] = EMPTY,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.active_producers = [] if active_producers is EMPTY else active_producers


class TopicResponse(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[PartitionResponse] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class DescribeProducersResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 61
    __slots__ = ("throttle_time_ms", "topics",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        topics: list[TopicResponse] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = [] if topics is EMPTY else topics


class ConfigResource(Struct):
    __slots__ = ("resource_name", "resource_type",)

    def __init__(
        self,
        resource_name: str = "",
        resource_type: int = 16,
    ) -> None:
        self.resource_name = resource_name
        self.resource_type = resource_type


class ListConfigResourcesResponse(Response):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 74
    __slots__ = ("throttle_time_ms", "error_code", "config_resources",)

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        config_resources: list[ConfigResource] = EMPTY,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.config_resources = [] if config_resources is EMPTY else config_resources


class DeleteRecordsPartition(Struct):
    __slots__ = ("partition_index", "offset",)

    def __init__(
        self,
        partition_index: int = 0,
        offset: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.offset = offset


class DeleteRecordsTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[DeleteRecordsPartition] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 21
    RESPONSE: ClassVar = DeleteRecordsResponse
    __slots__ = ("topics", "timeout_ms",)

    def __init__(
        self,
        topics: list[DeleteRecordsTopic] = EMPTY,
        timeout_ms: int = 0,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics
        self.timeout_ms = timeout_ms


class AlterConfigsRequestAlterableConfig(Struct):
    __slots__ = ("name", "value",)

    def __init__(
        self,
        name: str = "",
        value: str | None = "",
    ) -> None:
        self.name = name
        self.value = value


class AlterConfigsRequestAlterConfigsResource(Struct):
    __slots__ = ("resource_type", "resource_name", "configs",)

    def __init__(
        self,
        resource_type: int = 0,
        resource_name: str = "",
        configs: list[AlterConfigsRequestAlterableConfig] = EMPTY,
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = [] if configs is EMPTY else configs


class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 33
    RESPONSE: ClassVar = AlterConfigsResponse
    __slots__ = ("resources", "validate_only",)

    def __init__(
        self,
        resources: list[AlterConfigsRequestAlterConfigsResource] = EMPTY,
        validate_only: bool = False,
    ) -> None:
        self.resources = [] if resources is EMPTY else resources
        self.validate_only = validate_only


class AlterReplicaLogDirTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class AlterReplicaLogDir(Struct):
    __slots__ = ("path", "topics",)

    def __init__(
        self,
        path: str = "",
        topics: list[AlterReplicaLogDirTopic] = EMPTY,
    ) -> None:
        self.path = path
        self.topics = [] if topics is EMPTY else topics


class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    MIN_VERSION: ClassVar = 1
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 34
    RESPONSE: ClassVar = AlterReplicaLogDirsResponse
    __slots__ = ("dirs",)

    def __init__(
        self,
        dirs: list[AlterReplicaLogDir] = EMPTY,
    ) -> None:
        self.dirs = [] if dirs is EMPTY else dirs


class DescribableLogDirTopic(Struct):
    __slots__ = ("topic", "partitions",)

    def __init__(
        self,
        topic: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic = topic
        self.partitions = [] if partitions is EMPTY else partitions


class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    MIN_VERSION: ClassVar = 1
    MAX_VERSION: ClassVar = 4
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 35
    RESPONSE: ClassVar = DescribeLogDirsResponse
    __slots__ = ("topics",)

    def __init__(
        self,
        topics: list[DescribableLogDirTopic] | None = EMPTY,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics


class CreatePartitionsAssignment(Struct):
    __slots__ = ("broker_ids",)

    def __init__(
        self,
        broker_ids: list[int] = EMPTY,
    ) -> None:
        self.broker_ids = [] if broker_ids is EMPTY else broker_ids


class CreatePartitionsTopic(Struct):
    __slots__ = ("name", "count", "assignments",)

    def __init__(
        self,
        name: str = "",
        count: int = 0,
        assignments: list[CreatePartitionsAssignment] | None = EMPTY,
    ) -> None:
        self.name = name
        self.count = count
        self.assignments = [] if assignments is EMPTY else assignments


class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 3
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 37
    RESPONSE: ClassVar = CreatePartitionsResponse
    __slots__ = ("topics", "timeout_ms", "validate_only",)

    def __init__(
        self,
        topics: list[CreatePartitionsTopic] = EMPTY,
        timeout_ms: int = 0,
        validate_only: bool = False,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class TopicPartitions(Struct):
    __slots__ = ("topic", "partitions",)

    def __init__(
        self,
        topic: str = "",
        partitions: list[int] = EMPTY,
    ) -> None:
        self.topic = topic
        self.partitions = [] if partitions is EMPTY else partitions


class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 2
    API_KEY: ClassVar = 43
    RESPONSE: ClassVar = ElectLeadersResponse
    __slots__ = ("election_type", "topic_partitions", "timeout_ms",)

    def __init__(
        self,
        election_type: int = 0,
        topic_partitions: list[TopicPartitions] | None = EMPTY,
        timeout_ms: int = 60000,
    ) -> None:
        self.election_type = election_type
        self.topic_partitions = [] if topic_partitions is EMPTY else topic_partitions
        self.timeout_ms = timeout_ms


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    __slots__ = ("name", "config_operation", "value",)

    def __init__(
        self,
        name: str = "",
        config_operation: int = 0,
        value: str | None = "",
    ) -> None:
        self.name = name
        self.config_operation = config_operation
        self.value = value


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    __slots__ = ("resource_type", "resource_name", "configs",)

    def __init__(
        self,
        resource_type: int = 0,
        resource_name: str = "",
        configs: list[IncrementalAlterConfigsRequestAlterableConfig] = EMPTY,
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = [] if configs is EMPTY else configs


class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 1
    API_KEY: ClassVar = 44
    RESPONSE: ClassVar = IncrementalAlterConfigsResponse
    __slots__ = ("resources", "validate_only",)

    def __init__(
        self,
        resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = EMPTY,
        validate_only: bool = False,
    ) -> None:
        self.resources = [] if resources is EMPTY else resources
        self.validate_only = validate_only


class ReassignablePartition(Struct):
    __slots__ = ("partition_index", "replicas",)

    def __init__(
        self,
        partition_index: int = 0,
        replicas: list[int] | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.replicas = replicas


class ReassignableTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[ReassignablePartition] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 45
    RESPONSE: ClassVar = AlterPartitionReassignmentsResponse
    __slots__ = ("timeout_ms", "allow_replication_factor_change", "topics",)

    def __init__(
        self,
        timeout_ms: int = 60000,
        allow_replication_factor_change: bool = True,
        topics: list[ReassignableTopic] = EMPTY,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.topics = [] if topics is EMPTY else topics


class ListPartitionReassignmentsTopics(Struct):
    __slots__ = ("name", "partition_indexes",)

    def __init__(
        self,
        name: str = "",
        partition_indexes: list[int] = EMPTY,
    ) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is EMPTY else partition_indexes


class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 46
    RESPONSE: ClassVar = ListPartitionReassignmentsResponse
    __slots__ = ("timeout_ms", "topics",)

    def __init__(
        self,
        timeout_ms: int = 60000,
        topics: list[ListPartitionReassignmentsTopics] | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.topics = topics


class OffsetDeleteRequestPartition(Struct):
    __slots__ = ("partition_index",)

    def __init__(
        self,
        partition_index: int = 0,
    ) -> None:
        self.partition_index = partition_index


class OffsetDeleteRequestTopic(Struct):
    __slots__ = ("name", "partitions",)

    def __init__(
        self,
        name: str = "",
        partitions: list[OffsetDeleteRequestPartition] = EMPTY,
    ) -> None:
        self.name = name
        self.partitions = [] if partitions is EMPTY else partitions


class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 32768
    API_KEY: ClassVar = 47
    RESPONSE: ClassVar = OffsetDeleteResponse
    __slots__ = ("group_id", "topics",)

    def __init__(
        self,
        group_id: str = "",
        topics: list[OffsetDeleteRequestTopic] = EMPTY,
    ) -> None:
        self.group_id = group_id
        self.topics = [] if topics is EMPTY else topics


class FeatureUpdateKey(Struct):
    __slots__ = ("feature", "max_version_level", "allow_downgrade", "upgrade_type",)

    def __init__(
        self,
        feature: str = "",
        max_version_level: int = 0,
        allow_downgrade: bool = False,
        upgrade_type: int = 1,
    ) -> None:
        self.feature = feature
        self.max_version_level = max_version_level
        self.allow_downgrade = allow_downgrade
        self.upgrade_type = upgrade_type


class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 2
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 57
    RESPONSE: ClassVar = UpdateFeaturesResponse
    __slots__ = ("timeout_ms", "feature_updates", "validate_only",)

    def __init__(
        self,
        timeout_ms: int = 60000,
        feature_updates: list[FeatureUpdateKey] = EMPTY,
        validate_only: bool = False,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.feature_updates = [] if feature_updates is EMPTY else feature_updates
        self.validate_only = validate_only


class TopicRequest(Struct):
    __slots__ = ("name", "partition_indexes",)

    def __init__(
        self,
        name: str = "",
        partition_indexes: list[int] = EMPTY,
    ) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is EMPTY else partition_indexes


class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 0
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 61
    RESPONSE: ClassVar = DescribeProducersResponse
    __slots__ = ("topics",)

    def __init__(
        self,
        topics: list[TopicRequest] = EMPTY,
    ) -> None:
        self.topics = [] if topics is EMPTY else topics


class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    MIN_VERSION: ClassVar = 0
    MAX_VERSION: ClassVar = 1
    FIRST_FLEXIBLE_VERSION: ClassVar = 0
    API_KEY: ClassVar = 74
    RESPONSE: ClassVar = ListConfigResourcesResponse
    __slots__ = ("resource_types",)

    def __init__(
        self,
        resource_types: list[int] = EMPTY,
    ) -> None:
        self.resource_types = [] if resource_types is EMPTY else resource_types
