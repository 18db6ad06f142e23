"""The interface to the store of a coordinator's shards.

A shard is identified by its slot, a number. A coordinator has a slot under an epoch, which grows whenever the slot
moves to another coordinator. If two coordinators both believe that they have a slot, the store fences the one with the
older epoch: nothing that it writes from then on becomes durable.

No method blocks. `read` and `write` only start slow operations: those are done when `read` finds more, when `durable`
has grown, or when `failed` is set. If that happens after the call has returned, the store must call
`Shards.release_durable`. So a store may be the log of a partition, whose reads and appends are done when they return
(`log_store.py`), or a service across a network: then it reads ahead, and sends the writes of one turn as one
transaction that checks the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.record_batch import BatchBuilder

Stored = tuple[object, bytes | None, bytes | None]
"""A record: its place in the store, for log messages; its key; its value."""


PRODUCER_ERRORS = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Errors with which a store refuses a transaction's producer, or its coordinator: the slot is not affected."""


class FencedError(KafkaError):
    """Another coordinator has the slot, under a newer epoch."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.FENCED_LEADER_EPOCH, message)


class Piece(NamedTuple):
    """Some of a slot's contents: `records`, then perhaps something that was skipped, with its place and the error.

    `producer_id`: the records are of this producer's transaction, which a later `marker` ends.
    """

    records: Sequence[Stored]
    skipped: tuple[object, Exception] | None = None
    is_last: bool = False
    producer_id: int | None = None
    marker: TxnMarker | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the store is still fetching what comes next."""
        return not (self.records or self.skipped or self.is_last or self.marker)


class Journal(Protocol):
    """A slot held by one coordinator under one epoch: read from its beginning once, then written to."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, so that there is nothing to read."""

    def read(self, most: int) -> Piece:
        """The next records, at most about `most`; records of one key come in the order in which they were written.

        Leaves out records written under an older epoch after a newer one began. Raises FencedError if there is a record
        of an epoch newer than this journal's; after any other exception the slot cannot be read now."""

    def write(self, batch: BatchBuilder, now: int) -> int:
        """Hand over the records of one turn, all or none, at the wall-clock time `now`; returns the position after
        them.

        Raises FencedError, or what the store raises: then none of the records is or will become durable."""

    @property
    def durable(self) -> int:
        """Everything before this position is durable. No answer may reveal anything after it."""

    @property
    def failed(self) -> Exception | None:
        """Set when no further write will become durable; a FencedError if a newer epoch is the reason."""

    def close(self) -> None:
        """The shard is unloaded: it is no longer read or written."""


class TransactionalJournal(Journal, Protocol):
    """A journal with records of transactions, which producers begin and transaction coordinators end."""

    def begin_verification(self, producer_id: int, producer_epoch: int, *, tv2: bool, now: int) -> int | None:
        """A guard for the first records of a producer's transaction, which must be verified; None if the transaction is
        open here. `tv2`: the client supports transaction version 2. Raises KafkaError for an older epoch."""

    def write_transactional(
        self, batch: BatchBuilder, now: int, producer_id: int, producer_epoch: int, guard: int | None
    ) -> int:
        """Like `write`, for records of a producer's transaction. Also raises KafkaError with one of
        `PRODUCER_ERRORS`."""

    def write_marker(self, marker: TxnMarker, now: int) -> int:
        """Like `write`, for the marker that ends a producer's transaction. Also raises KafkaError with one of
        `PRODUCER_ERRORS`."""

    def open_transactions(self) -> Sequence[object]:
        """The transactions that no marker has ended."""


class Store(Protocol):
    """Where shards are kept."""

    def load(self, slot: int, epoch: int) -> Journal:
        """Take a slot under an epoch: this coordinator's current one, or one newer than all before it.

        Raises FencedError if a newer epoch is known. Raises the store's own error while it cannot be read, or while it
        is undecided whether an earlier write will become durable: the records read now might lack it."""
