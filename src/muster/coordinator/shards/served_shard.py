"""A shard that is loaded and served, with its journal and the answers that wait for the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from muster.coordinator.shards.reply import Reply
from muster.coordinator.shards.store import Journal
from muster.errors import ErrorCode
from muster.protocol.primitives import Struct
from muster.protocol.records.record_batch import BatchBuilder

Answer = Callable[[Any], None]


class Decision(Protocol):
    """What follows from a request or a deadline."""

    replies: list[Reply]
    """Answers, to be sent when `records`, and all records decided before them, are durable."""
    records: list[Any]
    """Written to the store together."""
    events: list[Any]
    """For the log and for operators."""


class Shard(Protocol):
    """What a shard must offer to be kept in a store."""

    first_alarm: int
    """A time that is not after the next deadline, NEVER if there is none; after `next_deadline` it is the next one."""

    def replay(self, key: bytes | None, value: bytes | None, shift: int) -> None:
        """Apply a record of the store, its times moved by so many milliseconds. Raises if it cannot be understood."""

    def write_down(self, records: list[Any], batch: BatchBuilder, timestamp: int, shift: int) -> None:
        """Put what it has decided to write into a batch, its times moved by so many milliseconds."""

    def loaded(self, now: int) -> Decision:
        """All records were applied."""

    def unload(self, error: ErrorCode) -> Decision:
        """The shard goes away: every request that waits in it is answered."""

    def spoiled(self, answer: Any, error: ErrorCode) -> Struct:
        """The answer in place of one whose records were lost."""

    def next_deadline(self) -> int | None:
        """When to call `on_deadline`; None for never."""

    def on_deadline(self, now: int) -> Decision:
        """Do all that is due."""


S = TypeVar("S", bound=Shard)


class Home(Generic[S]):
    """A shard with its journal, its open batch, and the answers that wait for the journal.

    `batch_shift` is what the clocks differ by for the records of the open batch: they are compared once for each.
    `decided` are answers that wait for the open batch to be written. `parked` are answers that wait for a write to be
    durable, each with the position that it waits for. `written` is the position behind the last write; `is_durable`
    says whether everything before it is known to be durable.
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
        self.is_durable = True  # what was read is
        self.decided: list[Reply] = []
        self.parked: deque[tuple[int, Reply]] = deque()

    @property
    def is_all_durable(self) -> bool:
        """Whether everything that was decided is durable: then `answer` sends at once."""
        return self.is_durable and not self.batch.count and not self.parked

    def answer(self, replies: list[Reply]) -> None:
        """Send these answers when everything decided until now is durable."""
        if self.batch.count:
            self.decided += replies
        elif self.parked or not self.is_durable:
            self.parked.extend([(self.written, reply) for reply in replies])
            self.release()
        else:
            for reply in replies:
                reply.ticket(reply.response)

    def wrote(self, end: int) -> None:
        """The open batch was handed to the journal, which has it before the position `end`."""
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
        """The answers that have not gone out, in order; the caller has to send them."""
        waiting = [reply for _, reply in self.parked] + self.decided
        self.parked.clear()
        self.decided = []
        return waiting
