"""The requests of transactions, and what their answers say about each partition.

Clients use AddPartitionsToTxn up to v3; from v3 on, TxnOffsetCommit names the consumer, whose generation fences it
(KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.client.core.offset_requests import by_topic
from muster.errors import ErrorCode, UnsupportedVersionError, error_code
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from muster.protocol.messages import InitProducerIdRequest
from muster.protocol.records.record_batch import NO_PRODUCER_ID
from muster.protocol.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

ADD_PARTITIONS_OF_CLIENTS = 3
INIT_WITH_EPOCH = 3
"""The first version of InitProducerId that can ask for the next epoch (KIP-360)."""
PRODUCE_BEFORE_V2, OFFSETS_BEFORE_V2, END_BEFORE_V2 = 11, 4, 4
"""The newest versions of Produce, TxnOffsetCommit and EndTxn for a broker without `transaction.version` 2 (KIP-890)."""
_FIRST_WITH_MEMBER = 3

Codes = dict[TopicPartition, ErrorCode]


def init_request(
    version: int, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int
) -> InitProducerIdRequest:
    """A first id or, for a producer that has one, its next epoch.

    Raises:
        UnsupportedVersionError: the broker cannot raise an epoch.
    """
    if version < INIT_WITH_EPOCH and producer_id != NO_PRODUCER_ID:
        raise UnsupportedVersionError("giving a producer its next epoch needs Kafka 2.5 or later")
    return InitProducerIdRequest(transactional_id, timeout_ms, producer_id, producer_epoch)


def add_partitions_request(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Partitions that records of the transaction go to."""
    topics = [AddPartitionsToTxnTopic(name, numbers) for name, numbers in by_topic(sorted(partitions)).items()]
    return AddPartitionsToTxnRequest([], transactional_id, producer_id, producer_epoch, topics)


def added(reply: AddPartitionsToTxnResponse) -> Codes:
    """The outcome for each partition."""
    return {
        TopicPartition(topic.name, found.partition_index): error_code(found.partition_error_code)
        for topic in reply.results_by_topic_v3_and_below
        for found in topic.results_by_partition
    }


def offsets_request(
    version: int,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    """Offsets of a group.

    Raises:
        UnsupportedVersionError: the broker cannot check that the consumer is still a member of the group.
    """
    if version < _FIRST_WITH_MEMBER and group != GroupMetadata(group.group_id):
        raise UnsupportedVersionError("comparing a consumer's generation needs Kafka 2.5 or later (KIP-447)")
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for partition, offset in offsets.items():
        topic = topics.setdefault(partition.topic, TxnOffsetCommitRequestTopic(partition.topic))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(partition.partition, offset.offset, offset.leader_epoch, offset.metadata)
        )
    return TxnOffsetCommitRequest(
        transactional_id,
        group.group_id,
        producer_id,
        producer_epoch,
        group.generation_id,
        group.member_id,
        group.group_instance_id,
        list(topics.values()),
    )


def committed(reply: TxnOffsetCommitResponse) -> Codes:
    """The outcome for the offset of each partition."""
    return {
        TopicPartition(topic.name, found.partition_index): error_code(found.error_code)
        for topic in reply.topics
        for found in topic.partitions
    }
