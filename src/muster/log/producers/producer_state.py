"""What a partition knows about its producers: about idempotent ones (KIP-98), so that a batch sent twice is written
once, and about transactional ones, so that no batch is written outside a transaction that its coordinator knows about.

For each producer id: the epoch, the last five batches as ranges of sequences with their offsets, the first offset of
the open transaction, and the epoch of the coordinator that wrote the last marker. A client's batch is checked in this
order:
- a repeat of one of the five is a duplicate: it is acknowledged with the offset of the first write;
- an older epoch is refused with INVALID_PRODUCER_EPOCH;
- a transactional batch while the producer has no transaction open in this epoch must present the current guard
  (transactions.py), otherwise INVALID_TXN_STATE;
- while there is a guard, the sequence must not be higher than the guard's lowest; and if the client supports
  transaction version 2 and no batch is remembered, it must be 0, otherwise OUT_OF_ORDER_SEQUENCE_NUMBER;
- a newer epoch must begin at sequence 0;
- the same epoch must follow the last sequence (2^31 - 1 is followed by 0), otherwise OUT_OF_ORDER_SEQUENCE_NUMBER;
- an unknown producer (it expired, or its records are gone) is accepted with any sequence; UNKNOWN_PRODUCER_ID is never
  returned, as in Kafka today. An unknown producer counts as epoch -1: a lower epoch is refused, and a producer that
  does send epoch -1 may send any sequence, in every batch, and in the first batch of the next epoch;
- a batch without the transactional bit while a transaction is open is refused with INVALID_TXN_STATE.

The group coordinator writes transactional offsets without sequences: only their epoch and guard are checked.

A marker ends the open transaction, if any, and may raise the epoch. With transaction version 2 its epoch must be newer
than the known one; the same epoch is accepted as a repeat while no transaction is open (KAFKA-19999). Older versions
keep the epoch. A coordinator whose epoch is older than the last one is fenced. The contents of the log have passed
these rules, so reading it again checks nothing.

The rules are those of Kafka's ProducerAppendInfo and ProducerStateManager, and so is the format of the snapshot
(version 1: int16 version, uint32 CRC-32C of the rest, then an array of entries), except for the number of entries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from muster.errors import ErrorCode
from muster.log.config import LogError
from muster.log.files import DISK, Files, put_whole
from muster.log.producers.transactions import CompletedTransaction, OngoingTransaction, PartitionTransactions
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.records.producer_snapshots import SnapshotEntry, decode_snapshot, encode_snapshot
from muster.protocol.records.record_batch import NO_PRODUCER_EPOCH, TRANSACTIONAL_FLAG, BatchHeader

BATCHES_TO_RETAIN = 5
"""Duplicates can be recognized for this many requests in flight (max.in.flight.requests.per.connection)."""

NONE_OPEN = -1
"""The first offset of a transaction while none is open."""

NEW_EPOCHS = 2
"""The transaction version since which each transaction has an epoch of its own (KIP-890)."""

_MAX_SEQUENCE = 2**31 - 1


class ProducedBatch(NamedTuple):
    """A batch of a producer as it was written. `timestamp` is its largest, in milliseconds."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


_NO_BATCH = ProducedBatch(-1, -1, -1, -1, -1)


@dataclass(slots=True)
class ProducerEntry:
    """One producer id. `last_timestamp` (milliseconds) is that of its last batch or marker; expiry is counted from
    it."""

    epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = -1
    batches: deque[ProducedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_RETAIN))
    coordinator_epoch: int = -1
    """The coordinator epoch of the last marker, -1 before there is one."""
    first_offset: int = NONE_OPEN
    """The first offset of the open transaction."""


class LastRecord(NamedTuple):
    """The last data offset of a producer; None if only a marker with this epoch is left."""

    last_offset: int | None
    epoch: int


class PartitionProducers:
    """All producers of one partition."""

    __slots__ = ("producers", "transactions")

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        self.transactions = PartitionTransactions()

    # ---------------------------------------------------------------------------------------------- batches

    def check(
        self,
        header: BatchHeader,
        guard: int | None = None,
        *,
        of_client: bool = True,
        verifies: bool = True,
    ) -> ProducedBatch | None:
        """The earlier batch that this one repeats, or None if it may be written. Raises LogError. Changes nothing.

        `verifies`: whether a transaction needs a guard to begin (transaction.partition.verification.enable)."""
        entry = self.producers.get(header.producer_id)
        known = NO_PRODUCER_EPOCH if entry is None else entry.epoch
        epoch = header.producer_epoch
        if epoch < known:
            raise _old_epoch(header.producer_id, epoch, known)
        if entry is not None and epoch == known and of_client:
            first, last = header.base_sequence, header.last_sequence
            for batch in entry.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
        is_open = entry is not None and entry.first_offset != NONE_OPEN
        transactional = header.attributes & TRANSACTIONAL_FLAG
        if transactional and verifies and not (is_open and epoch == known):
            expected = self.transactions.guards.get(header.producer_id)
            if expected is None or expected.number != guard:
                raise LogError(ErrorCode.INVALID_TXN_STATE, "the record batch is not part of an ongoing transaction")
        if of_client:
            self._check_sequence(header, entry)
        if is_open and not transactional:
            raise LogError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction: its batches must be transactional",
            )
        return None

    def _check_sequence(self, header: BatchHeader, entry: ProducerEntry | None) -> None:
        first, epoch = header.base_sequence, header.producer_epoch
        guard = self.transactions.guards.get(header.producer_id)
        if guard is not None:
            if guard.tv2 and first and (entry is None or not entry.batches):
                raise _out_of_order(f"producer {header.producer_id} must begin at sequence 0, but sent {first}")
            if first > guard.lowest_sequence:
                raise _out_of_order(
                    f"producer {header.producer_id} sent sequence {first} before sequence {guard.lowest_sequence}"
                )
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            return
        if epoch > entry.epoch:
            if first:
                raise _out_of_order(
                    f"producer {header.producer_id} begins epoch {epoch} at sequence {first} "
                    f"(current epoch {entry.epoch})"
                )
            return
        current = entry.batches[-1].last_sequence if entry.batches else -1
        if first != current + 1 and not (first == 0 and current == _MAX_SEQUENCE):
            raise _out_of_order(f"producer {header.producer_id} sent sequence {first}, but the last one is {current}")

    def note(self, header: BatchHeader, marker: TxnMarker | None = None) -> CompletedTransaction | None:
        """Records a batch that has been written, or is read again from the log. For a control batch, `marker` is
        its content, None if compaction has emptied it. Returns the transaction that it has completed."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry()
        if entry.epoch != header.producer_epoch:
            entry.batches.clear()
            entry.epoch = header.producer_epoch
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            return self._end(entry, header, marker)
        entry.batches.append(
            ProducedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )
        if header.attributes & TRANSACTIONAL_FLAG:
            self.transactions.drop_guard(header.producer_id)
            if entry.first_offset == NONE_OPEN:
                entry.first_offset = header.base_offset
                self.transactions.open[header.base_offset] = header.producer_id
        return None

    # ---------------------------------------------------------------------------------------------- transactions

    def check_marker(self, marker: TxnMarker) -> None:
        """Refuse a marker that must not be written. Raises LogError: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED."""
        entry, epoch = self.producers.get(marker.producer_id), marker.producer_epoch
        if entry is None:
            return
        is_repeat = epoch == entry.epoch and entry.first_offset == NONE_OPEN
        is_new = epoch > entry.epoch if marker.transaction_version >= NEW_EPOCHS else epoch >= entry.epoch
        if not is_new and not is_repeat:
            raise _old_epoch(marker.producer_id, epoch, entry.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise LogError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} of producer {marker.producer_id} is smaller than the "
                f"last seen epoch {entry.coordinator_epoch}",
            )

    def _end(self, entry: ProducerEntry, header: BatchHeader, marker: TxnMarker | None) -> CompletedTransaction | None:
        self.transactions.drop_guard(header.producer_id, header.producer_epoch)
        if marker is None:
            return None
        entry.coordinator_epoch = marker.coordinator_epoch
        first_offset, entry.first_offset = entry.first_offset, NONE_OPEN
        if first_offset == NONE_OPEN:
            return None
        others = self.transactions.open
        del others[first_offset]
        stable = next(iter(others), header.next_offset)
        return CompletedTransaction(
            header.producer_id, first_offset, header.base_offset, stable, aborted=not marker.committed
        )

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, tv2: bool, now: int) -> int | None:
        """The guard for a producer's next transactional batch; None if its transaction is open in this epoch. Raises
        LogError(INVALID_PRODUCER_EPOCH)."""
        entry = self.producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _old_epoch(producer_id, epoch, entry.epoch)
        if self.has_open(producer_id, epoch):
            return None
        return self.transactions.guard(producer_id, epoch, sequence, tv2, now)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction open in this epoch."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.first_offset != NONE_OPEN and entry.epoch == epoch

    def open_transactions(self) -> list[OngoingTransaction]:
        """All open transactions, the oldest first."""
        return [
            OngoingTransaction(producer_id, entry.epoch, entry.coordinator_epoch, first_offset, entry.last_timestamp)
            for first_offset, producer_id in self.transactions.open.items()
            for entry in [self.producers[producer_id]]
        ]

    # ---------------------------------------------------------------------------------------------- compaction, expiry

    def last_records(self) -> dict[int, LastRecord]:
        """What compaction keeps for each producer, even when it is empty."""
        return {
            producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else None, entry.epoch)
            for producer_id, entry in self.producers.items()
        }

    def expire(self, now: int, expiration_ms: int) -> None:
        """Forgets producers whose last record is older than `expiration_ms`, unless they have an open transaction, and
        guards older than that."""
        for producer_id, entry in list(self.producers.items()):
            if entry.first_offset == NONE_OPEN and now - entry.last_timestamp >= expiration_ms:
                del self.producers[producer_id]
        self.transactions.expire_guards(now, expiration_ms)

    # ---------------------------------------------------------------------------------------------- snapshots

    def encode(self) -> bytes:
        """The snapshot's bytes: an entry for each batch that is remembered, the newest of a producer last.

        Kafka's broker writes the last batch alone, and uses the last of several entries. But a broker that was
        shut down cleanly must know all five again: with one copy of each partition, no other broker does."""
        return encode_snapshot(
            SnapshotEntry(
                producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.first_offset,
                entry.last_timestamp if batch is batches[-1] else batch.timestamp,
                entry.coordinator_epoch,
                entry.first_offset,
            )
            for producer_id, entry in self.producers.items()
            for batches in [entry.batches or (_NO_BATCH,)]
            for batch in batches
        )

    @classmethod
    def decode(cls, data: bytes) -> PartitionProducers:
        """Raises CorruptSnapshotError."""
        state = cls()
        for found in decode_snapshot(data):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset = found
            entry = state.producers.get(producer_id)
            if entry is None or entry.epoch != epoch:
                entry = state.producers[producer_id] = ProducerEntry(epoch)
            entry.last_timestamp = timestamp
            entry.coordinator_epoch, entry.first_offset = coordinator_epoch, max(first_offset, NONE_OPEN)
            if offset >= 0:
                first = (sequence - delta) & _MAX_SEQUENCE
                entry.batches.append(ProducedBatch(first, sequence, offset - delta, offset, timestamp))
        begun = ((entry.first_offset, producer_id) for producer_id, entry in state.producers.items())
        state.transactions.open.update(sorted(one for one in begun if one[0] != NONE_OPEN))
        return state

    def save(self, path: Path, files: Files = DISK) -> None:
        """Writes the snapshot, without a sync: damage caused by a power cut shows in its CRC, and the log holds all of
        it too. Raises OSError."""
        put_whole(files, path, self.encode(), sync=False)


def _old_epoch(producer_id: int, epoch: int, known: int) -> LogError:
    return LogError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch of producer {producer_id} is {epoch}, smaller than the last seen epoch {known}",
    )


def _out_of_order(message: str) -> LogError:
    return LogError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)
