"""The store of a coordinator's shards, as `Shards` needs it.

A shard is known by its slot, a number. A coordinator has a slot under an epoch, which grows whenever the slot moves to
another coordinator. Two coordinators may both believe that they have a slot. Then the store fences the one with the
older epoch: nothing that it writes from then on becomes durable.

No method here waits. `read` and `write` only begin what takes time: it has happened when `read` finds more, when
`durable` has grown, or when `failed` is set. A store that learns of it after the call has returned has
`Shards.release_durable` called. So a store may be the log of a partition, whose reads and appends are done when they
return (`log_store.py`). Or it may be behind a network: then it reads ahead, and sends the writes of one turn as one
transaction that checks the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.record_batch import BatchBuilder

Stored = tuple[object, bytes | None, bytes | None]
"""A record: where in the store it stands, to name it in the broker's log; its key; its value."""


class FencedError(KafkaError):
    """Another coordinator has the slot, under a newer epoch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.FENCED_LEADER_EPOCH, message)


class Piece(NamedTuple):
    """Some of a slot's contents: `records`, then perhaps something that is passed over, with its place and the
    error."""

    records: Sequence[Stored]
    passed_over: tuple[object, Exception] | None = None
    is_last: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the store is still fetching what comes next."""
        return not (self.records or self.passed_over or self.is_last)


class Journal(Protocol):
    """A slot as one coordinator has it, under one epoch: read from its beginning once, then written to."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, so that reading takes no time."""

    def read(self, most: int) -> Piece:
        """The next records, about so many at most; records of one key are in the order in which they were written.

        Records written under an older epoch after a newer one began are left out. Raises FencedError if there is a
        record of a newer epoch than this; after any other exception the slot cannot be read now."""

    def write(self, batch: BatchBuilder, now: int) -> int:
        """Hand over the records of one turn, all or none, at a time of day; returns the position behind them.

        Raises FencedError, or what the store raises: then none of them is, or will be, durable."""

    @property
    def durable(self) -> int:
        """Everything before this position is durable. No answer may tell of anything behind it."""

    @property
    def failed(self) -> Exception | None:
        """Set once later writes will never become durable; a FencedError if a newer epoch is the reason."""

    def close(self) -> None:
        """The shard is unloaded: it is neither read nor written any more."""


class Store(Protocol):
    """Where shards are kept."""

    def load(self, slot: int, epoch: int) -> Journal:
        """Take a slot under an epoch: this coordinator's own, or one newer than all before it.

        Raises FencedError if a newer epoch is known. Raises the store's own error while it cannot be read, or while it
        is undecided whether an earlier write will be durable: otherwise the records read now might lack it."""
