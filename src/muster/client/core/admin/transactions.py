"""Admin requests about transactions: list, describe, abort, fence, find those that hang (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from muster.client.core.admin.admin import failure, merged
from muster.client.core.admin.partitions import ProducerState
from muster.client.core.checks import MAX_INT, MAX_OFFSET, check_number, check_partition, check_text
from muster.errors import ErrorCode, IllegalArgumentError, KafkaError, UnsupportedVersionError
from muster.model import TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.transaction_messages import (
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
"""The states of a transactional id. Kafka's brokers never return the last one."""

_MAX_EPOCH = 2**15 - 1
_WITH_DURATION = 1
_WITH_PATTERN = 2


@dataclass(slots=True)
class TransactionListing:
    """A transactional id, the broker that coordinates it, and its current producer."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


@dataclass(slots=True)
class TransactionDescription:
    """A transactional id. `transaction_start_time_ms` is None if it has never had a transaction. `partitions` are those
    of its transaction; once the outcome is decided, only those still without a marker.
    """

    transactional_id: str
    coordinator_id: int
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    partitions: list[TopicPartition]


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    producer_epoch: int


class AbortTransactionSpec(NamedTuple):
    """An open transaction in a partition, by its producer as `describe_producers` returns it. `coordinator_epoch` is 0
    for a producer that has no marker in the partition yet."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = 0


def list_transactions_request(
    version: int, states: Iterable[str], producer_ids: Iterable[int], duration_ms: int, pattern: str | None
) -> ListTransactionsRequest:
    """ListTransactions, to one broker.

    Raises:
        UnsupportedVersionError: the broker is too old for a filter: it would return all ids.
    """
    if duration_ms >= 0 and version < _WITH_DURATION:
        raise UnsupportedVersionError("filtering transactions by duration needs Kafka 3.8 or later")
    if pattern and version < _WITH_PATTERN:
        raise UnsupportedVersionError("filtering transactional ids by a pattern needs Kafka 4.1 or later")
    return ListTransactionsRequest(list(states), list(producer_ids), duration_ms, pattern or None)


def listed_transactions(answer: ListTransactionsResponse, broker: int) -> list[TransactionListing]:
    """The ids of one broker.

    Raises:
        KafkaError: the broker refused to list them.
    """
    error = failure(answer.error_code)
    if error is not None:
        raise error
    return [
        TransactionListing(each.transactional_id, broker, each.producer_id, each.transaction_state)
        for each in answer.transaction_states
    ]


def all_listed(by_broker: Mapping[int, list[TransactionListing] | KafkaError]) -> list[TransactionListing]:
    """The ids of all brokers, sorted.

    Raises:
        KafkaError: a broker has not listed its ids.
    """
    return merged(by_broker, lambda each: each.transactional_id)


def check_transactional_ids(ids: Iterable[str]) -> list[str]:
    """Check the caller's transactional ids."""
    if isinstance(ids, str):
        raise IllegalArgumentError(f"the transactional ids are the text {ids!r}; pass a list of ids")
    return [check_text("a transactional id", each) for each in ids]


def described_transactions(
    answer: DescribeTransactionsResponse, broker: int
) -> dict[str, TransactionDescription | KafkaError]:
    """The ids of one coordinator."""
    return {each.transactional_id: _described(each, broker) for each in answer.transaction_states}


def _described(each: DescribeTransactionsResponseTransactionState, broker: int) -> TransactionDescription | KafkaError:
    start_ms = each.transaction_start_time_ms
    return failure(each.error_code, f"transactional id {each.transactional_id}") or TransactionDescription(
        each.transactional_id,
        broker,
        each.transaction_state,
        each.producer_id,
        each.producer_epoch,
        each.transaction_timeout_ms,
        start_ms if start_ms >= 0 else None,
        sorted(TopicPartition(topic.topic, partition) for topic in each.topics for partition in topic.partitions),
    )


def check_spec(spec: AbortTransactionSpec) -> AbortTransactionSpec:
    """Check the transaction to abort. Kafka's tools show an unknown coordinator epoch as -1; it is sent as 0, the
    lowest coordinator epoch.
    """
    partition = check_partition(spec.partition)
    return AbortTransactionSpec(
        partition,
        check_number(f"the producer id in {partition}", spec.producer_id, 0, MAX_OFFSET),
        check_number(f"the producer epoch in {partition}", spec.producer_epoch, 0, _MAX_EPOCH),
        max(check_number(f"the coordinator epoch in {partition}", spec.coordinator_epoch, -1, MAX_INT), 0),
    )


def abort_marker(spec: AbortTransactionSpec) -> WriteTxnMarkersRequest:
    """WriteTxnMarkers, to the leader of the partition. As in Kafka's client the marker has transaction version 0, which
    a partition accepts at the epoch of the open transaction, whatever version its producer has: a marker of version 2
    must have a higher epoch (KIP-890), which only the coordinator can assign.
    """
    topic = WritableTxnMarkerTopic(spec.partition.topic, [spec.partition.partition])
    marker = WritableTxnMarker(spec.producer_id, spec.producer_epoch, False, [topic], spec.coordinator_epoch)
    return WriteTxnMarkersRequest([marker])


_ABORT_REFUSED = {
    ErrorCode.INVALID_PRODUCER_EPOCH: "the partition knows a later epoch of producer {0.producer_id}",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "the partition knows a later coordinator epoch than"
    " {0.coordinator_epoch}; describe-producers shows it",
}


def aborted(answer: WriteTxnMarkersResponse, spec: AbortTransactionSpec) -> dict[TopicPartition, KafkaError | None]:
    """The outcome."""
    return {
        TopicPartition(topic.name, part.partition_index): failure(
            part.error_code,
            _ABORT_REFUSED.get(ErrorCode(part.error_code), str(spec.partition)).format(spec)
            if part.error_code
            else None,
        )
        for marker in answer.markers
        for topic in marker.topics
        for part in topic.partitions
    }


def fence_request(transactional_id: str, timeout_ms: int) -> InitProducerIdRequest:
    """InitProducerId without ids: the coordinator gives the transactional id another epoch, and aborts its
    transaction."""
    return InitProducerIdRequest(transactional_id, timeout_ms, -1, -1)


def fenced(answer: InitProducerIdResponse, transactional_id: str) -> ProducerIdAndEpoch | KafkaError:
    """The id and epoch that the next producer of this transactional id would have started with."""
    return failure(answer.error_code, f"transactional id {transactional_id}") or ProducerIdAndEpoch(
        answer.producer_id, answer.producer_epoch
    )


# --- transactions that hang ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class HangingTransaction:
    """An open transaction in a partition, not known to its coordinator, so it never ends on its own.
    `transactional_id` is None if no id has this producer now. `coordinator_epoch` is -1 if the producer has no marker
    there yet."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    duration_ms: int
    transactional_id: str | None


def open_transactions(
    producers: Mapping[TopicPartition, Iterable[ProducerState]], longer_than_ms: int, now_ms: int
) -> list[HangingTransaction]:
    """The open transactions whose last batch is older than `longer_than_ms`: candidates, because their coordinators may
    still know them.
    """
    return [
        HangingTransaction(
            *partition,
            each.producer_id,
            each.producer_epoch,
            -1 if each.coordinator_epoch is None else each.coordinator_epoch,
            each.transaction_start_offset,
            each.last_timestamp,
            now_ms - each.last_timestamp,
            None,
        )
        for partition, found in sorted(producers.items())
        for each in found
        if each.transaction_start_offset is not None and now_ms - each.last_timestamp > longer_than_ms
    ]


def hanging_transactions(
    candidates: Iterable[HangingTransaction],
    listed: Iterable[TransactionListing],
    described: Mapping[str, TransactionDescription | KafkaError],
) -> list[HangingTransaction]:
    """The candidates whose coordinator does not list the partition in a transaction of the producer's id, as
    `kafka-transactions.sh find-hanging` decides: a partition that it lists will still get its marker."""
    ids = {each.producer_id: each.transactional_id for each in listed}
    found = []
    for each in candidates:
        each.transactional_id = ids.get(each.producer_id)
        known = described.get(each.transactional_id or "")
        if isinstance(known, KafkaError) and known.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise known
        has_it = isinstance(known, TransactionDescription) and (each.topic, each.partition) in known.partitions
        if not has_it:
            found.append(each)
    return found
