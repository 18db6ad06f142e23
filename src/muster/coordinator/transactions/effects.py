"""Output of the rules of transactions: answers, records, events. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from muster.coordinator.shards.served_shard import Reply, Ticket
from muster.coordinator.transactions.entry import Transaction
from muster.model import TopicPartition


class EntryRecord(NamedTuple):
    """The contents of a record; `entry` None is a tombstone."""

    transactional_id: str
    entry: Transaction | None


@dataclass(slots=True)
class TransactionEvent:
    """Something that an operator should know about a transactional id."""

    transactional_id: str


@dataclass(slots=True)
class TransactionTimedOut(TransactionEvent):
    """A transaction lasted longer than its timeout, and is being aborted."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int


@dataclass(slots=True)
class TransactionalIdExpired(TransactionEvent):
    """A transactional id was not used for `transactional.id.expiration.ms`, and was removed."""


class Markers(NamedTuple):
    """The markers of a transaction that has been decided: one for each of `partitions`.

    `producer_id` is the one that wrote the records, `producer_epoch` the one that fences it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: int
    partitions: frozenset[TopicPartition]


class MarkersLost(NamedTuple):
    """What the sender of markers gets instead if the decision was lost with its shard."""

    transactional_id: str


@dataclass(slots=True)
class TransactionEffects:
    """The result of a request or a deadline: `records` are appended together, before any of `replies` goes out."""

    replies: list[Reply] = field(default_factory=list)
    records: list[EntryRecord] = field(default_factory=list)
    events: list[TransactionEvent] = field(default_factory=list)

    def reply(self, ticket: Ticket, answer: Any) -> TransactionEffects:
        self.replies.append(Reply(ticket, answer))
        return self
