"""A loaded shard, with its journal and the answers that wait for the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from muster.coordinator.shards.store import Journal
from muster.errors import ErrorCode
from muster.protocol.records.record_batch import BatchBuilder

Answer = Callable[[Any], None]

Ticket: TypeAlias = Any
"""Stands for a request that must be answered. The rules keep it and hand it back; to them it is opaque."""


@dataclass(slots=True)
class Reply:
    """The answer to a ticket: a response; one group's part of it if the request is about several groups; or, on a fast
    path, the value from which the ticket makes the response."""

    ticket: Ticket
    response: Any


class Decision(Protocol):
    """The result of a request or a deadline."""

    replies: list[Reply]
    """Answers to send once `records`, and all records decided before them, are durable."""
    records: list[Any]
    """Records to write to the store, all or none."""
    events: list[Any]
    """For the broker's log and for operators."""


class Shard(Protocol):
    """What a shard must implement to be kept in a store."""

    first_alarm: int
    """A time no later than the next deadline, NEVER if there is none; exact after a call of `next_deadline`."""

    def replay(self, key: bytes | None, value: bytes | None, shift: int) -> bool:
        """Apply a record of the store, its times shifted by `shift` ms. Returns False for a record of a kind or version
        that it skips. Raises if the record cannot be decoded."""

    def replay_transactional(self, key: bytes | None, value: bytes | None, shift: int, producer_id: int) -> bool:
        """Like `replay`, for a record of a producer's transaction: it counts only if the transaction is committed.
        `value` None: a later record has superseded it; only the open transaction still matters."""

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction ended in this slot."""

    def write_down(self, records: list[Any], batch: BatchBuilder, timestamp: int, shift: int) -> None:
        """Add these records, which the shard has decided to write, to a batch, with their times shifted by `shift`
        ms."""

    def loaded(self, now: int) -> Decision:
        """All records have been applied."""

    def unload(self, error: ErrorCode) -> Decision:
        """The shard is being dropped: every request that waits in it is answered."""

    def error_for_lost(self, answer: Any, error: ErrorCode) -> Any:
        """The answer to send instead of one whose records were lost."""

    def next_deadline(self) -> int | None:
        """When to call `on_deadline`; None if never."""

    def on_deadline(self, now: int) -> Decision:
        """Do everything that is due."""


S = TypeVar("S", bound=Shard)


class ServedShard(Generic[S]):
    """A shard with its journal, its open batch, and the answers that wait for the journal.

    `batch_shift` is the difference between the two clocks, taken once for each open batch. `decided` holds answers that
    wait for the open batch to be written. `parked` holds answers that wait for a write to become durable, each with its
    position. `written` is the position after the last write; `is_durable` says whether everything before it is known to
    be durable.
    """

    __slots__ = (
        "batch",
        "batch_shift",
        "batch_time",
        "decided",
        "is_durable",
        "journal",
        "parked",
        "shard",
        "slot",
        "written",
    )

    def __init__(self, slot: int, shard: S, journal: Journal) -> None:
        self.slot = slot
        self.shard = shard
        self.journal = journal
        self.batch = BatchBuilder()
        self.batch_time = 0
        self.batch_shift = 0
        self.written = 0
        self.is_durable = True  # what was read from the store is durable
        self.decided: list[Reply] = []
        self.parked: deque[tuple[int, Reply]] = deque()

    @property
    def is_all_durable(self) -> bool:
        """Whether everything decided so far is durable: `answer` then sends immediately."""
        return self.is_durable and not self.batch.count and not self.parked

    def answer(self, replies: list[Reply]) -> None:
        """Send these answers once everything decided so far is durable."""
        if self.batch.count:
            self.decided += replies
        elif self.parked or not self.is_durable:
            self.parked.extend([(self.written, reply) for reply in replies])
            self.release()
        else:
            for reply in replies:
                reply.ticket(reply.response)

    def wrote(self, end: int) -> None:
        """The open batch was handed to the journal, where it ends at the position `end`."""
        self.written = end
        self.is_durable = end <= self.journal.durable
        decided, self.decided = self.decided, []
        self.answer(decided)

    def release(self) -> None:
        """Send the answers whose records, and all records before them, are durable."""
        parked, durable = self.parked, self.journal.durable
        self.is_durable = self.written <= durable
        while parked and parked[0][0] <= durable:
            reply = parked.popleft()[1]
            reply.ticket(reply.response)

    def take_waiting(self) -> list[Reply]:
        """Take the answers that have not gone out, in order; the caller must send them."""
        waiting = [reply for _, reply in self.parked] + self.decided
        self.parked.clear()
        self.decided = []
        return waiting
