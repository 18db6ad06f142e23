"""Verification (KIP-890): before a partition takes the first records of a transaction, its broker asks the coordinator
whether the transaction has that partition; or, for producers of `transaction.version` 2, adds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from muster.broker.config import BrokerConfig
from muster.broker.transactions.service import Transactions
from muster.coordinator.transactions.rules import Producer
from muster.errors import ErrorCode
from muster.model import TopicPartition

Errors = Mapping[TopicPartition, ErrorCode]


class Operation(Enum):
    """What a request's version lets the broker do."""

    VERIFY_WITH_OLD_ERRORS = 0
    VERIFY = 1
    ADD = 2


def of_produce(version: int) -> Operation:
    """The operation for a Produce."""
    return Operation.ADD if version >= 12 else Operation.VERIFY if version == 11 else Operation.VERIFY_WITH_OLD_ERRORS


def of_offset_commit(version: int) -> Operation:
    """The operation for a TxnOffsetCommit."""
    return Operation.ADD if version >= 5 else Operation.VERIFY if version == 4 else Operation.VERIFY_WITH_OLD_ERRORS


class Verifier:
    """Asks the coordinator, which here is in the same process."""

    def __init__(self, config: BrokerConfig, transactions: Transactions) -> None:
        self._transactions = transactions
        self._loop = asyncio.get_running_loop()
        self._backoff_s = config.integer("add.partitions.to.txn.retry.backoff.ms") / 1e3
        self._longest_s = config.integer("add.partitions.to.txn.retry.backoff.max.ms") / 1e3

    def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        operation: Operation,
        done: Callable[[Errors], None],
        *,
        patient: bool = False,
    ) -> None:
        """Verify or add partitions; `done` is called with the errors of those that may not be written to. `patient`: a
        partition that cannot be added while the last transaction is being finished is tried again for a while."""
        if operation is not Operation.ADD and not self._transactions.verifies:
            done({})
            return
        until = time.monotonic() + self._longest_s if patient and operation is Operation.ADD else 0.0
        self._ask(transactional_id, producer, partitions, operation, done, until)

    def _ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        operation: Operation,
        done: Callable[[Errors], None],
        until: float,
    ) -> None:
        runtime = self._transactions.runtime
        if not self._transactions.ensure():
            done(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif operation is not Operation.ADD:
            runtime.verify_partitions(
                transactional_id, producer, partitions, lambda found: done(_told(found, operation))
            )
        else:
            again = partial(self._ask, transactional_id, producer, partitions, operation, done, until)

            def added(error: ErrorCode) -> None:
                if error is ErrorCode.CONCURRENT_TRANSACTIONS and time.monotonic() < until:
                    self._loop.call_later(self._backoff_s, again)
                else:
                    done(_told(dict.fromkeys(partitions, error), operation))

            runtime.add_partitions(transactional_id, producer, partitions, 2, added)


def _told(found: Errors, operation: Operation) -> Errors:
    return {each: _error(error, operation) for each, error in found.items() if error is not ErrorCode.NONE}


def _error(error: ErrorCode, operation: Operation) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.VERIFY_WITH_OLD_ERRORS:
        return ErrorCode.INVALID_TXN_STATE
    return error
