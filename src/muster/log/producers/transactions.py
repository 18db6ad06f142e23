"""The unstable transactions of one partition, which limit `read_committed`, and the verification guards.

Last stable offset
    A transaction is unstable from its first batch until its marker is below the high watermark. The last stable offset
    is the first offset of the oldest unstable transaction, otherwise the high watermark. A producer has at most one
    open transaction in a partition, so first offsets identify them.

Guards (KIP-890)
    The first batch of a transaction is written only after the coordinator has confirmed that the partition belongs to
    the transaction. Until that answer arrives, the transaction may end and the next one begin; a batch written on the
    strength of a stale answer would be open forever. So a guard is issued before the coordinator is asked, the append
    must present it, and any batch or marker of the producer's transaction invalidates it. A guard also keeps the lowest
    sequence seen: if that batch failed and will be retried, a later batch must not be written first.

    With transaction version 2 each transaction has a new epoch. A marker with the guard's epoch ended the previous
    transaction, so the guard stays valid (KAFKA-18575).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended. `last_offset` is the marker's; `last_stable_offset` is where other open
    transactions leave it, whatever the high watermark (Kafka's CompletedTxn and AbortedTxn)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


class OngoingTransaction(NamedTuple):
    """A transaction that no marker has ended. `last_timestamp` (ms) is that of its producer's last batch here."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_timestamp: int


@dataclass(slots=True)
class Guard:
    """The guard of one producer. It expires some time after `since` (ms); `tv2`: the client supports transaction
    version 2."""

    number: int
    lowest_sequence: int
    epoch: int
    tv2: bool
    since: int

    def lower(self, sequence: int, epoch: int) -> None:
        """Lower the sequence to that of another batch that must be verified; a newer epoch resets it."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class PartitionTransactions:
    """The unstable transactions and the guards of a partition."""

    __slots__ = ("_decided", "_guards_issued", "guards", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """First offset to producer id; the oldest first."""
        self.guards: dict[int, Guard] = {}
        """By producer id."""
        self._decided: deque[tuple[int, int]] = deque()
        """First offset and marker offset of decided transactions; the marker was not durable when it was written."""
        self._guards_issued = 0

    def stable_end(self, high_watermark: int) -> int:
        """The last stable offset, if the log begins before it."""
        end = high_watermark
        if self.open or self._decided:
            end = min(end, next(iter(self.open), end))
            for first_offset, marker in self._decided:
                if marker >= high_watermark:
                    end = min(end, first_offset)
        return end

    def complete(self, first_offset: int, marker: int, high_watermark: int) -> None:
        """Records that a marker was written. `high_watermark` is the one after the write."""
        while self._decided and self._decided[0][1] < high_watermark:
            self._decided.popleft()
        if marker >= high_watermark:
            self._decided.append((first_offset, marker))

    def guard(self, producer_id: int, epoch: int, sequence: int, tv2: bool, now: int) -> int:
        """The guard of a producer, made if there is none."""
        guard = self.guards.get(producer_id)
        if guard is None:
            self._guards_issued += 1
            guard = self.guards[producer_id] = Guard(self._guards_issued, sequence, epoch, tv2, now)
        else:
            guard.lower(sequence, epoch)
        return guard.number

    def drop_guard(self, producer_id: int, marker_epoch: int | None = None) -> None:
        """Invalidates a guard because of a batch or a marker of the producer."""
        guard = self.guards.get(producer_id)
        if guard is not None and not (guard.tv2 and guard.epoch == marker_epoch):
            del self.guards[producer_id]

    def expire_guards(self, now: int, expiration_ms: int) -> None:
        """Forgets guards older than `expiration_ms`."""
        for producer_id, guard in list(self.guards.items()):
            if now - guard.since >= expiration_ms:
                del self.guards[producer_id]
