"""The requests of transactions: AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28),
WriteTxnMarkers (27), DescribeTransactions (65), ListTransactions (66).

PRODUCER_FENCED is known to clients since v2 of the first three. AddPartitionsToTxn v4: from brokers, several
transactions at once. EndTxn v5: the ids for the next transaction. TxnOffsetCommit v3: the member (KIP-447); v5: the
broker adds the group to the transaction. WriteTxnMarkers v2: the transaction version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from muster.broker.groups.service import Groups
from muster.broker.handlers.coordinators import in_parts
from muster.broker.net.calls import Call, Sliced, at_once
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.broker.transactions.service import TransactionService
from muster.broker.transactions.verification import SupportedOperation, Verifier, of_offset_commit
from muster.coordinator.parts import Gather
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.coordinator.transactions.shard import IDS_AT_A_TIME, fenced_error
from muster.errors import ErrorCode, KafkaError
from muster.model import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_FROM_BROKERS_SINCE = 4
"""Since this version, brokers send AddPartitionsToTxn too."""
_FENCED_SINCE = 2
_LOADING_SINCE = 2
"""The version of TxnOffsetCommit whose clients understand that a coordinator is loading (KAFKA-7296)."""


class TransactionNeeds(NamedTuple):
    """The parts of the broker that these handlers use."""

    locator: PartitionLocator
    groups: Groups
    transactions: TransactionService
    verifier: Verifier


def init_producer_id(
    here: TransactionService, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse | None:
    """InitProducerId (22): ids for a producer, with or without a transactional id. A producer without transactions that
    asks again gets a new id, as in Kafka."""
    error = ErrorCode.NONE
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        error = ErrorCode.INVALID_REQUEST
    elif request.transactional_id is not None:
        if not here.ensure():
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            here.runtime.init_producer_id(request, call.version, call.reply)
            return None
    else:
        try:
            return InitProducerIdResponse(producer_id=here.new_id(), producer_epoch=0)
        except KafkaError as failure:
            error = failure.code
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


# -------------------------------------------------------------------------------------------------- AddPartitionsToTxn


def add_partitions_to_txn(here: TransactionNeeds, request: AddPartitionsToTxnRequest, call: Call) -> None:
    """Add partitions to transactions, or verify that they are in them."""
    version, transactions = call.version, request.transactions
    if version < _FROM_BROKERS_SINCE:
        transactions = [
            AddPartitionsToTxnTransaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            )
        ]

    def reply(found: list[AddPartitionsToTxnResult]) -> None:
        if version < _FROM_BROKERS_SINCE:
            call.reply(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=found[0].topic_results))
        else:
            call.reply(AddPartitionsToTxnResponse(results_by_transaction=found))

    gather = Gather(len(transactions), reply)
    for i, requested in enumerate(transactions):
        _add_partitions(here, requested, version, gather.part(i))


def _add_partitions(
    here: TransactionNeeds,
    requested: AddPartitionsToTxnTransaction,
    version: int,
    take: Callable[[AddPartitionsToTxnResult], None],
) -> None:
    partitions = frozenset(TopicPartition(t.name, p) for t in requested.topics for p in t.partitions)
    producer = ProducerIdentity(requested.producer_id, requested.producer_epoch)

    def added(error: ErrorCode) -> None:
        take(_result_for_all(requested, fenced_error(error, version, _FENCED_SINCE)))

    refused = _not_to_be_added(here, partitions, from_client=version < _FROM_BROKERS_SINCE)
    if refused:
        # If one is refused, nothing is added.
        take(_result(requested, dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused))
    elif not here.transactions.ensure():
        added(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif requested.verify_only:
        here.transactions.runtime.verify_partitions(
            requested.transactional_id, producer, partitions, lambda found: take(_result(requested, found))
        )
    else:
        client_version = 2 if version >= _FROM_BROKERS_SINCE else 0
        here.transactions.runtime.add_partitions(
            requested.transactional_id, producer, partitions, client_version, added
        )


def _not_to_be_added(
    here: TransactionNeeds, partitions: Iterable[TopicPartition], *, from_client: bool
) -> dict[TopicPartition, ErrorCode]:
    refused = {}
    for partition in partitions:
        if from_client and partition.topic in INTERNAL_TOPICS:
            refused[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not here.locator.is_known(partition):
            refused[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _result_for_all(requested: AddPartitionsToTxnTransaction, error: ErrorCode) -> AddPartitionsToTxnResult:
    topics = [
        AddPartitionsToTxnTopicResult(
            topic.name, [AddPartitionsToTxnPartitionResult(index, error) for index in topic.partitions]
        )
        for topic in requested.topics
    ]
    return AddPartitionsToTxnResult(requested.transactional_id, topics)


def _result(
    requested: AddPartitionsToTxnTransaction, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    """Each partition with its error once, however often it was named."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, index), error in sorted(errors.items()):
        found = topics.setdefault(topic, AddPartitionsToTxnTopicResult(topic))
        found.results_by_partition.append(AddPartitionsToTxnPartitionResult(index, error))
    return AddPartitionsToTxnResult(requested.transactional_id, list(topics.values()))


def add_offsets_to_txn(here: TransactionNeeds, request: AddOffsetsToTxnRequest, call: Call) -> None:
    """Add the partition of `__consumer_offsets` that stores a group."""

    def reply(error: ErrorCode) -> None:
        call.reply(AddOffsetsToTxnResponse(0, fenced_error(error, call.version, _FENCED_SINCE)))

    if not here.groups.ensure() or not here.transactions.ensure():
        reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return
    partitions = frozenset((_partition_of(here, request.group_id),))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    here.transactions.runtime.add_partitions(request.transactional_id, producer, partitions, 0, reply)


def _partition_of(here: TransactionNeeds, group_id: str) -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, here.groups.runtime.partition_for(group_id))


def end_txn(here: TransactionNeeds, request: EndTxnRequest, call: Call) -> None:
    """Commit or abort."""
    if here.transactions.ensure():
        here.transactions.runtime.end(request, call.version, call.reply)
    else:
        call.reply(EndTxnResponse(0, ErrorCode.COORDINATOR_NOT_AVAILABLE))


# ----------------------------------------------------------------------------------------------------- TxnOffsetCommit


def txn_offset_commit(here: TransactionNeeds, request: TxnOffsetCommitRequest, call: Call) -> None:
    """Commit offsets as part of a transaction."""
    version, runtime = call.version, here.groups.runtime
    operation = of_offset_commit(version)

    def reply(response: TxnOffsetCommitResponse) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_SINCE:
                    partition.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        call.reply(response)

    def commit(guard: int | None, error: ErrorCode) -> None:
        here.groups.before_request()
        runtime.commit_in_transaction(request, error, guard, reply)

    here.groups.before_request()
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        guard = _begin_verification(here, request, producer, operation)
    except KafkaError as error:
        commit(None, error.code)
        return
    if guard is None:
        commit(None, ErrorCode.NONE)
        return
    where = _partition_of(here, request.group_id)

    def verified(errors: Mapping[TopicPartition, ErrorCode]) -> None:
        error = errors.get(where, ErrorCode.NONE)
        commit(guard, _OF_COORDINATORS.get(error, error))

    here.verifier.ask(request.transactional_id, producer, frozenset((where,)), operation, verified)


_OF_COORDINATORS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What a client gets instead of errors that are only for brokers (KAFKA-16386)."""


def _begin_verification(
    here: TransactionNeeds, request: TxnOffsetCommitRequest, producer: ProducerIdentity, operation: SupportedOperation
) -> int | None:
    """A guard; None if there is nothing to verify: no transaction begins with a commit that names no partition."""
    named = (TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    if not request.group_id or not any(map(here.locator.is_known, named)):
        return None
    tv2 = operation is SupportedOperation.ADD
    return here.groups.runtime.begin_verification(request.group_id, *producer, tv2=tv2)


# -------------------------------------------------------------------------------------------------- markers, describing


def write_txn_markers(here: TransactionNeeds, request: WriteTxnMarkersRequest, call: Call) -> None:
    """Write markers into partitions of this broker: for the transaction coordinators on other brokers, and for
    operators, to end a transaction that hangs (KIP-664)."""
    gather = Gather(len(request.markers), lambda found: call.reply(WriteTxnMarkersResponse(found)))
    for i, marker in enumerate(request.markers):
        _write_marker(here, marker, gather.part(i))


def _write_marker(
    here: TransactionNeeds, requested: WritableTxnMarker, take: Callable[[WritableTxnMarkerResult], None]
) -> None:
    partitions = [TopicPartition(topic.name, index) for topic in requested.topics for index in topic.partition_indexes]
    marker = TxnMarker(
        requested.producer_id,
        requested.producer_epoch,
        requested.transaction_result,
        requested.coordinator_epoch,
        requested.transaction_version,
    )

    def done(errors: list[ErrorCode]) -> None:
        found = iter(errors)
        topics = [
            WritableTxnMarkerTopicResult(
                topic.name, [WritableTxnMarkerPartitionResult(index, next(found)) for index in topic.partition_indexes]
            )
            for topic in requested.topics
        ]
        take(WritableTxnMarkerResult(requested.producer_id, topics))

    here.transactions.writer.write_all(marker, partitions, done)


def describe_transactions(here: TransactionNeeds, request: DescribeTransactionsRequest, call: Call) -> Sliced | None:
    """The state of transactional ids."""
    here.transactions.ensure()

    def reply(found: list[DescribeTransactionsResponseTransactionState]) -> None:
        call.reply(DescribeTransactionsResponse(transaction_states=found))

    def part(ids: list[str], take: Callable[[list[DescribeTransactionsResponseTransactionState]], None]) -> None:
        describe = here.transactions.runtime.describe
        describe(DescribeTransactionsRequest(ids), lambda response: take(response.transaction_states))

    return in_parts(request.transactional_ids, part, reply)


def list_transactions(here: TransactionNeeds, request: ListTransactionsRequest, call: Call) -> Sliced | None:
    """The transactional ids of this broker."""
    here.transactions.ensure()
    runtime = here.transactions.runtime
    steps = runtime.list_transactions(request, call.reply)
    if runtime.id_count > IDS_AT_A_TIME:
        return steps
    at_once(steps)
    return None
