"""What a coordinator knows about a transactional id, and how that changes.

A transactional id has a producer id and an epoch. Each new producer of a transactional id gets the next epoch, which
fences the producer before it. A producer of `transaction.version` 2 (KIP-890) also gets a new epoch with each
transaction, so that a late request of an earlier transaction cannot be mistaken for one of the next. An epoch is an
int16; when it runs out, the transactional id gets another producer id and begins at 0 again.

32,766 is the last epoch that a producer may have: the coordinator must still be able to fence it. So 32,767 is seen
only while the transaction that used up the epochs is being finished, and in its markers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from muster.coordinator.shards.clocks import NO_TIMESTAMP, shift_time
from muster.model import TopicPartition
from muster.protocol.transaction_messages import PartitionsSchema, TransactionLogValue

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_EPOCH = 32_766
"""The last epoch that a producer can get."""
NO_TIMEOUT_MS = 2**31 - 1
"""A transaction with this timeout never times out."""
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
EPOCH_BUMPS_SINCE = 2
"""Since this `transaction.version`, each transaction has its own epoch."""


class TransactionState(IntEnum):
    """The states of a transactional id, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        """As in ListTransactions: `PrepareCommit`."""
        return self.name.title().replace("_", "")


EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT

IDLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction: one may begin, and the id may expire."""
ENDING = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""Decided, and written; not every partition has its marker yet."""

BEFORE: Mapping[TransactionState, frozenset[TransactionState]] = {
    EMPTY: IDLE,
    ONGOING: IDLE | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: IDLE | {ONGOING},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}
"""For each state, the states from which it may be reached."""


class Transaction(NamedTuple):
    """A transactional id. Immutable: a change makes a new value, which is written and then replaces this one.

    `previous_producer_id` is the id before the last change, whatever that changed: so a retry after a rotation of the
    producer id is recognized until the next change. `last_producer_epoch` is the previous epoch if its producer may ask
    for the current one again, otherwise -1. `next_producer_id` is set while a transaction that used up the epochs is
    being finished. `client_version` is the `transaction.version` of the producer that began or ended the transaction.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_update_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether its producer cannot be given another epoch."""
        return self.producer_epoch >= LAST_EPOCH

    def has_timed_out(self, now: int) -> bool:
        """Whether its transaction has lasted too long."""
        return self.state is ONGOING and self.timeout_ms != NO_TIMEOUT_MS and self.start_ms + self.timeout_ms < now

    def has_expired(self, expiration_ms: int, now: int) -> bool:
        """Whether it has been unused for long enough to expire."""
        return self.state in IDLE and self.last_update_ms <= now - expiration_ms

    def _changed(self, state: TransactionState, now: int, **changes: Any) -> Transaction:
        if self.state not in BEFORE[state]:
            raise ValueError(f"a transaction cannot go from {self.state.kafka_name} to {state.kafka_name}")
        return self._replace(state=state, last_update_ms=now, previous_producer_id=self.producer_id, **changes)

    def initialized(self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now: int) -> Transaction:
        """A producer has (again) asked for its ids."""
        return self._changed(
            EMPTY,
            now,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )

    def with_partitions(self, partitions: frozenset[TopicPartition], client_version: int, now: int) -> Transaction:
        """The transaction writes to these partitions too; it begins if there was none."""
        start_ms = self.start_ms if self.state is ONGOING else now
        return self._changed(
            ONGOING, now, partitions=self.partitions | partitions, start_ms=start_ms, client_version=client_version
        )

    def ended(self, state: TransactionState, client_version: int, next_producer_id: int, now: int) -> Transaction:
        """Its producer has decided to commit or abort. Since version 2 the epoch is a new one, which the markers
        carry."""
        changes: dict[str, Any] = {}
        if client_version >= EPOCH_BUMPS_SINCE:
            changes = {"producer_epoch": self.producer_epoch + 1, "last_producer_epoch": self.producer_epoch}
        if self.state is not ONGOING:  # nothing was written in it: its start is unknown, but needed
            changes["start_ms"] = now
        return self._changed(state, now, client_version=client_version, next_producer_id=next_producer_id, **changes)

    def fenced(self, now: int) -> Transaction:
        """The transaction is aborted without its producer, whose epoch ends, as before transaction version 2."""
        epoch = self.producer_epoch + 1
        changes = {"producer_epoch": epoch, "last_producer_epoch": NO_PRODUCER_EPOCH, "client_version": 0}
        return self._changed(PREPARE_ABORT, now, next_producer_id=NO_PRODUCER_ID, **changes)

    def completed(self, now: int) -> Transaction:
        """Every partition has its marker."""
        changes: dict[str, Any] = {}
        if self.client_version >= EPOCH_BUMPS_SINCE and self.next_producer_id != NO_PRODUCER_ID:
            changes = {"producer_id": self.next_producer_id, "producer_epoch": 0}
        state = COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT
        return self._changed(state, now, partitions=frozenset(), next_producer_id=NO_PRODUCER_ID, **changes)

    # ---------------------------------------------------------------------------------------------------- its records

    def value(self, shift: int = 0) -> TransactionLogValue:
        """The value to write, with its times shifted by `shift` ms."""
        topics: dict[str, PartitionsSchema] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, PartitionsSchema(topic)).partition_ids.append(partition)
        updated, started = self.last_update_ms, self.start_ms
        if shift:
            updated, started = shift_time(updated, shift), shift_time(started, shift)
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None if self.state is EMPTY else [*topics.values()],
            transaction_last_update_timestamp_ms=updated,
            transaction_start_timestamp_ms=started,
            client_transaction_version=self.client_version,
            last_producer_epoch=self.last_producer_epoch,
        )

    @classmethod
    def of(cls, value: TransactionLogValue, shift: int = 0) -> Transaction:
        """What a record says. Raises ValueError for a state that is never written."""
        topics = value.transaction_partitions
        return cls(
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            shift_time(value.transaction_last_update_timestamp_ms, shift),
            TransactionState(value.transaction_status),
            frozenset([TopicPartition(each.topic, index) for each in topics for index in each.partition_ids])
            if topics
            else NO_PARTITIONS,
            shift_time(value.transaction_start_timestamp_ms, shift),
            value.previous_producer_id,
            value.next_producer_id,
            value.last_producer_epoch,
            value.client_transaction_version,
        )
