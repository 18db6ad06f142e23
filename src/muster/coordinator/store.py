"""Where the shards of a coordinator are kept: what `Shards` needs of it, whatever it is made of.

A shard is known by its slot, a number. A coordinator has a slot under an epoch, which is a larger one whenever the slot
comes into other hands. Two coordinators may both believe that they have a slot; of these the store fences the one with
the older epoch: nothing that it writes becomes durable from then on.

Nothing here waits. What takes time is asked for by `read` and `write`, and has happened when `read` finds more, when
`durable` has grown, or when `failed` is set; a store that learns of it later than in the call has
`Shards.release_durable` called then. So a store may be the log of a partition, whose reads and appends are done when
they return (`log_store.py`), or one behind a network, which asks ahead, and sends what a turn has written as one
transaction that checks the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import BatchBuilder

Stored = tuple[object, bytes | None, bytes | None]
"""A record: where in the store it stands, to name it in the broker's log; its key; its value."""


class FencedError(KafkaError):
    """The slot is in other hands, under a newer epoch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.FENCED_LEADER_EPOCH, message)


class Piece(NamedTuple):
    """Some of what a slot holds: `records`, then perhaps something that is passed over, with where and why it is."""

    records: Sequence[Stored]
    passed_over: tuple[object, Exception] | None = None
    is_last: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the store has yet to find what comes next."""
        return not (self.records or self.passed_over or self.is_last)


class Journal(Protocol):
    """A slot in the hands of one coordinator, under one epoch: read from its beginning once, then written to."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, so that to read it takes no time."""

    def read(self, most: int) -> Piece:
        """The next records, about so many at most, in the order in which those of one key were written.

        What was written under an older epoch after a newer one began is left out. Raises FencedError if there is
        anything of a newer epoch than this; whatever else it raises, the slot cannot be read now."""

    def write(self, batch: BatchBuilder, now: int) -> int:
        """Hand over the records of one turn, all or none, at a time of day; returns the position behind them.

        Raises FencedError, or what the store raises: then none of them is, or will be, durable."""

    @property
    def durable(self) -> int:
        """What was written up to this position is durable. Nothing of what follows may be told."""

    @property
    def failed(self) -> Exception | None:
        """Set once the rest of what was written will not become durable; a FencedError if a newer epoch is why."""

    def close(self) -> None:
        """The shard is unloaded: nothing is read or written any more."""


class Store(Protocol):
    """Where shards are kept."""

    def load(self, slot: int, epoch: int) -> Journal:
        """Take a slot under an epoch, newer than any under which it was had before, or this coordinator's own.

        Raises FencedError if a newer epoch is known. Raises what the store raises while it cannot be read, or while it
        is open whether something that was written before will be durable: else what is read now might lack it."""
