"""Verification (KIP-890): before a partition takes the first records of a transaction, its broker asks the coordinator
whether the transaction has that partition; or, for producers of `transaction.version` 2, asks it to add the
partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from muster.broker.config import BrokerConfig
from muster.broker.links.links import Links, Purpose
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.broker.transactions.service import TransactionService
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode, error_code
from muster.model import TopicPartition
from muster.protocol.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

Errors = Mapping[TopicPartition, ErrorCode]

OLDEST_VERSION = 4
"""The oldest AddPartitionsToTxn that brokers send."""


class SupportedOperation(Enum):
    """What a request's version lets the broker do (Kafka's TransactionSupportedOperation)."""

    VERIFY_WITH_OLD_ERRORS = 0
    VERIFY = 1
    ADD = 2


def of_produce(version: int) -> SupportedOperation:
    """The operation for a Produce."""
    return (
        SupportedOperation.ADD
        if version >= 12
        else SupportedOperation.VERIFY
        if version == 11
        else SupportedOperation.VERIFY_WITH_OLD_ERRORS
    )


def of_offset_commit(version: int) -> SupportedOperation:
    """The operation for a TxnOffsetCommit."""
    return (
        SupportedOperation.ADD
        if version >= 5
        else SupportedOperation.VERIFY
        if version == 4
        else SupportedOperation.VERIFY_WITH_OLD_ERRORS
    )


class Verifier:
    """Asks the coordinator, on this broker or on another."""

    def __init__(
        self, config: BrokerConfig, transactions: TransactionService, locator: PartitionLocator, links: Links
    ) -> None:
        self._transactions = transactions
        self._locator = locator
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._backoff_s = config.integer("add.partitions.to.txn.retry.backoff.ms") / 1e3
        self._longest_s = config.integer("add.partitions.to.txn.retry.backoff.max.ms") / 1e3

    def ask(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        operation: SupportedOperation,
        done: Callable[[Errors], None],
        *,
        patient: bool = False,
    ) -> None:
        """Verify or add partitions; `done` is called with the errors of those that may not be written to. `patient`: a
        partition that cannot be added while the last transaction is being finished is tried again for a while."""
        if operation is not SupportedOperation.ADD and not self._transactions.verifies:
            done({})
            return
        until = self._loop.time() + self._longest_s if patient and operation is SupportedOperation.ADD else 0.0
        self._ask(transactional_id, producer, partitions, operation, done, until)

    def _ask(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        operation: SupportedOperation,
        done: Callable[[Errors], None],
        until: float,
    ) -> None:
        again = partial(self._ask, transactional_id, producer, partitions, operation, done, until)

        def answered(errors: Errors) -> None:
            if ErrorCode.CONCURRENT_TRANSACTIONS in errors.values() and self._loop.time() < until:
                self._loop.call_later(self._backoff_s, again)
            else:
                done(_refusals(errors, operation))

        is_there = self._transactions.ensure()
        node = self._transactions.coordinator(transactional_id) if is_there else None
        if node is None:
            answered(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif not self._locator.is_here(node):
            request = _request(transactional_id, producer, partitions, operation)
            self._links.ask(node, Purpose.VERIFICATION, request, OLDEST_VERSION, partial(_read, partitions, answered))
        elif operation is SupportedOperation.ADD:
            self._transactions.runtime.add_partitions(
                transactional_id, producer, partitions, 2, lambda error: answered(dict.fromkeys(partitions, error))
            )
        else:
            self._transactions.runtime.verify_partitions(transactional_id, producer, partitions, answered)


def _request(
    transactional_id: str,
    producer: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    operation: SupportedOperation,
) -> AddPartitionsToTxnRequest:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, AddPartitionsToTxnTopic(topic)).partitions.append(index)
    asked = AddPartitionsToTxnTransaction(
        transactional_id, *producer, operation is not SupportedOperation.ADD, list(topics.values())
    )
    return AddPartitionsToTxnRequest([asked])


def _read(
    partitions: frozenset[TopicPartition],
    done: Callable[[Errors], None],
    response: AddPartitionsToTxnResponse | None,
) -> None:
    error = ErrorCode.NETWORK_EXCEPTION if response is None else error_code(response.error_code)
    errors = dict.fromkeys(partitions, error or ErrorCode.UNKNOWN_SERVER_ERROR)
    for transaction in response.results_by_transaction if response is not None else ():
        for topic in transaction.topic_results:
            for each in topic.results_by_partition:
                errors[TopicPartition(topic.name, each.partition_index)] = error_code(each.partition_error_code)
    done({where: errors[where] for where in partitions})


def _refusals(found: Errors, operation: SupportedOperation) -> Errors:
    return {each: _error(error, operation) for each, error in found.items() if error is not ErrorCode.NONE}


def _error(error: ErrorCode, operation: SupportedOperation) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and operation is SupportedOperation.VERIFY_WITH_OLD_ERRORS:
        return ErrorCode.INVALID_TXN_STATE
    return error
