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
    from muster.client.core.admin.transactions import (
        AbortTransactionSpec,
        ProducerIdAndEpoch,
        TransactionDescription,
        TransactionListing,
    )
    from muster.client.exactly_once import async_exactly_once, exactly_once
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
        ProducerFencedError,
        ProtocolError,
        RecordDeserializationError,
        SerializationError,
        TransactionAbortedError,
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

_NAMES = {
    "muster.assignors": "Assignor",
    "muster.client.admin.admin": "Admin",
    "muster.client.admin.async_admin": "AsyncAdmin",
    "muster.client.concurrent": (
        "AsyncConcurrentConsumer ConcurrentConsumer HandlerFailedError PoisonRecordError Retry RetryLaterError"
    ),
    "muster.client.consumer.async_consumer": "AsyncConsumer",
    "muster.client.consumer.consumer": "Consumer",
    "muster.client.consumer.listener": "RebalanceListener",
    "muster.client.core.admin.admin": (
        "ClusterDescription ConfigEntry ConfigResource ConfigResourceType CreatedTopic GroupDescription GroupListing "
        "MemberDescription NewTopic PartitionDescription TopicDescription TopicListing"
    ),
    "muster.client.core.admin.configs": "ConfigChange ConfigOperation",
    "muster.client.core.admin.members": "GroupMember",
    "muster.client.core.admin.partitions": "ElectionType LogDirDescription NewPartitions ProducerState ReplicaInfo",
    "muster.client.core.admin.replicas": "PartitionReassignment",
    "muster.client.core.admin.transactions": (
        "AbortTransactionSpec ProducerIdAndEpoch TransactionDescription TransactionListing"
    ),
    "muster.client.exactly_once": "async_exactly_once exactly_once",
    "muster.client.hooks": "ConsumerHooks Outbound ProducerHooks",
    "muster.client.producer.async_producer": "AsyncProducer",
    "muster.client.producer.producer": "Producer",
    "muster.client.serde": "Deserializer Serializer",
    "muster.errors": (
        "AdminError AuthenticationError ClosedError CommitFailedError ConfigError CorruptRecordError ErrorCode "
        "IllegalArgumentError IllegalStateError KafkaConnectionError KafkaError KafkaTimeoutError LogTruncationError "
        "MusterError ProducerFencedError ProtocolError RecordDeserializationError SerializationError "
        "TransactionAbortedError UnsupportedVersionError WakeupError"
    ),
    "muster.model": (
        "ConsumerRecord GroupMetadata Headers Node OffsetAndMetadata OffsetAndTimestamp PartitionInfo RecordMetadata "
        "TopicPartition"
    ),
}
"""The public names, by the module that has them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AbortTransactionSpec",
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
    "ProducerFencedError",
    "ProducerHooks",
    "ProducerIdAndEpoch",
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
    "TransactionAbortedError",
    "TransactionDescription",
    "TransactionListing",
    "UnsupportedVersionError",
    "WakeupError",
    "__version__",
    "async_exactly_once",
    "exactly_once",
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
