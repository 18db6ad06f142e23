"""Kafka consumer groups for Python and Spark.

from muster import Consumer, Producer, Admin, AsyncConsumer, AsyncProducer, AsyncAdmin, TopicPartition, KafkaError

All public names of the clients are here. Each is loaded when it is first used, so a program that only produces does not
import the consumers. The Spark source is `muster.spark`; consumers coordinated by ZooKeeper are in `muster.zookeeper`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from muster.version import __version__

if TYPE_CHECKING:
    from muster.assignors import Assignor
    from muster.client.admin.admin import Admin
    from muster.client.admin.async_admin import AsyncAdmin
    from muster.client.concurrent import (
        AsyncConcurrentConsumer,
        ConcurrentConsumer,
        HandlerFailedError,
        PoisonRecordError,
        Retry,
        RetryLaterError,
    )
    from muster.client.consumer.async_consumer import AsyncConsumer
    from muster.client.consumer.consumer import Consumer
    from muster.client.consumer.listener import RebalanceListener
    from muster.client.core.admin.admin import (
        ClusterDescription,
        ConfigEntry,
        ConfigResource,
        ConfigResourceType,
        CreatedTopic,
        GroupDescription,
        GroupListing,
        MemberDescription,
        NewTopic,
        PartitionDescription,
        TopicDescription,
        TopicListing,
    )
    from muster.client.core.admin.configs import ConfigChange, ConfigOperation
    from muster.client.core.admin.members import GroupMember
    from muster.client.core.admin.partitions import (
        ElectionType,
        LogDirDescription,
        NewPartitions,
        ProducerState,
        ReplicaInfo,
    )
    from muster.client.core.admin.replicas import PartitionReassignment
    from muster.client.hooks import ConsumerHooks, Outbound, ProducerHooks
    from muster.client.producer.async_producer import AsyncProducer
    from muster.client.producer.producer import Producer
    from muster.client.serde import Deserializer, Serializer
    from muster.errors import (
        AdminError,
        AuthenticationError,
        ClosedError,
        CommitFailedError,
        ConfigError,
        CorruptRecordError,
        ErrorCode,
        IllegalArgumentError,
        IllegalStateError,
        KafkaConnectionError,
        KafkaError,
        KafkaTimeoutError,
        LogTruncationError,
        MusterError,
        ProtocolError,
        RecordDeserializationError,
        SerializationError,
        UnsupportedVersionError,
        WakeupError,
    )
    from muster.model import (
        ConsumerRecord,
        GroupMetadata,
        Headers,
        Node,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        PartitionInfo,
        RecordMetadata,
        TopicPartition,
    )

_MODULES = {
    "Admin": "muster.client.admin.admin",
    "AdminError": "muster.errors",
    "Assignor": "muster.assignors",
    "AsyncAdmin": "muster.client.admin.async_admin",
    "AsyncConcurrentConsumer": "muster.client.concurrent",
    "AsyncConsumer": "muster.client.consumer.async_consumer",
    "AsyncProducer": "muster.client.producer.async_producer",
    "AuthenticationError": "muster.errors",
    "ClosedError": "muster.errors",
    "ClusterDescription": "muster.client.core.admin.admin",
    "CommitFailedError": "muster.errors",
    "ConcurrentConsumer": "muster.client.concurrent",
    "ConfigChange": "muster.client.core.admin.configs",
    "ConfigEntry": "muster.client.core.admin.admin",
    "ConfigError": "muster.errors",
    "ConfigOperation": "muster.client.core.admin.configs",
    "ConfigResource": "muster.client.core.admin.admin",
    "ConfigResourceType": "muster.client.core.admin.admin",
    "Consumer": "muster.client.consumer.consumer",
    "ConsumerHooks": "muster.client.hooks",
    "ConsumerRecord": "muster.model",
    "CorruptRecordError": "muster.errors",
    "CreatedTopic": "muster.client.core.admin.admin",
    "Deserializer": "muster.client.serde",
    "ElectionType": "muster.client.core.admin.partitions",
    "ErrorCode": "muster.errors",
    "GroupDescription": "muster.client.core.admin.admin",
    "GroupListing": "muster.client.core.admin.admin",
    "GroupMember": "muster.client.core.admin.members",
    "GroupMetadata": "muster.model",
    "HandlerFailedError": "muster.client.concurrent",
    "Headers": "muster.model",
    "IllegalArgumentError": "muster.errors",
    "IllegalStateError": "muster.errors",
    "KafkaConnectionError": "muster.errors",
    "KafkaError": "muster.errors",
    "KafkaTimeoutError": "muster.errors",
    "LogDirDescription": "muster.client.core.admin.partitions",
    "LogTruncationError": "muster.errors",
    "MemberDescription": "muster.client.core.admin.admin",
    "MusterError": "muster.errors",
    "NewPartitions": "muster.client.core.admin.partitions",
    "NewTopic": "muster.client.core.admin.admin",
    "Node": "muster.model",
    "OffsetAndMetadata": "muster.model",
    "OffsetAndTimestamp": "muster.model",
    "Outbound": "muster.client.hooks",
    "PartitionDescription": "muster.client.core.admin.admin",
    "PartitionInfo": "muster.model",
    "PartitionReassignment": "muster.client.core.admin.replicas",
    "PoisonRecordError": "muster.client.concurrent",
    "Producer": "muster.client.producer.producer",
    "ProducerHooks": "muster.client.hooks",
    "ProducerState": "muster.client.core.admin.partitions",
    "ProtocolError": "muster.errors",
    "RebalanceListener": "muster.client.consumer.listener",
    "RecordDeserializationError": "muster.errors",
    "RecordMetadata": "muster.model",
    "ReplicaInfo": "muster.client.core.admin.partitions",
    "Retry": "muster.client.concurrent",
    "RetryLaterError": "muster.client.concurrent",
    "SerializationError": "muster.errors",
    "Serializer": "muster.client.serde",
    "TopicDescription": "muster.client.core.admin.admin",
    "TopicListing": "muster.client.core.admin.admin",
    "TopicPartition": "muster.model",
    "UnsupportedVersionError": "muster.errors",
    "WakeupError": "muster.errors",
}

__all__ = [
    "Admin",
    "AdminError",
    "Assignor",
    "AsyncAdmin",
    "AsyncConcurrentConsumer",
    "AsyncConsumer",
    "AsyncProducer",
    "AuthenticationError",
    "ClosedError",
    "ClusterDescription",
    "CommitFailedError",
    "ConcurrentConsumer",
    "ConfigChange",
    "ConfigEntry",
    "ConfigError",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "Consumer",
    "ConsumerHooks",
    "ConsumerRecord",
    "CorruptRecordError",
    "CreatedTopic",
    "Deserializer",
    "ElectionType",
    "ErrorCode",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupMetadata",
    "HandlerFailedError",
    "Headers",
    "IllegalArgumentError",
    "IllegalStateError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogDirDescription",
    "LogTruncationError",
    "MemberDescription",
    "MusterError",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Outbound",
    "PartitionDescription",
    "PartitionInfo",
    "PartitionReassignment",
    "PoisonRecordError",
    "Producer",
    "ProducerHooks",
    "ProducerState",
    "ProtocolError",
    "RebalanceListener",
    "RecordDeserializationError",
    "RecordMetadata",
    "ReplicaInfo",
    "Retry",
    "RetryLaterError",
    "SerializationError",
    "Serializer",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "UnsupportedVersionError",
    "WakeupError",
    "__version__",
]


if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
