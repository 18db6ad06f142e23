"""The numbers that make a producer idempotent (KIP-98, KIP-360), by the rules of Java's producer.

Theory. The broker assigns the producer an id. Each batch carries the id, an epoch and the sequence of its first record,
counted for each partition. A broker drops a batch that it has already written and refuses one that leaves a gap. A
batch keeps its numbers through retries, since an attempt without an answer may have been written. These rules keep the
order:

- Batches stay in `in_flight` until they are done, even while they wait for a retry. Only the first of them may be sent
  again.
- A broker recognises a batch only if it is one of the last five of its partition, so a new batch is sent only while
  fewer than five are in flight. The limit of requests in flight does not ensure that when the leader changes: five
  batches are written, and their answers are lost; the leader changes, and five more go to the new leader before the
  loss is noticed. The first five would then be out of order, get new numbers, and be written twice (as in Java's
  producer).
- When a batch is given up and it is unknown whether it was written, the partition is unresolved: nothing new is sent
  until the rest is done. If the batches after it are acknowledged, the numbers are right; otherwise there is a
  gap.

A gap is repaired by going to the next epoch, in which sequences start over at 0. The producer does that on its own,
because no other producer uses its id. In the affected partitions, batches in flight are renumbered; other partitions
follow when theirs are done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.client.core.produce.accumulator import ProducerBatch, is_later, next_sequence
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.records.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_EPOCH = 32_767
_NONE_ACKED = -1
_REMEMBERED = 5
"""How many batches of a partition a broker remembers."""


@dataclass(slots=True)
class PartitionSequences:
    """The numbers of one partition; `in_flight` is in sequence order."""

    producer_id: int
    producer_epoch: int
    next_sequence: int = 0
    last_acked: int = _NONE_ACKED
    in_flight: list[ProducerBatch] = field(default_factory=list)

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """Count from 0 in a new epoch, starting with the batches in flight."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence, self.last_acked = 0, _NONE_ACKED
        for batch in self.in_flight:
            batch.set_producer(producer_id, producer_epoch, self.next_sequence)
            batch.sequence_reset = True
            self.next_sequence = next_sequence(self.next_sequence, batch.count)


class Sequences:
    """One producer's id, epoch and sequences."""

    first_goes_alone = True
    """Whether the first batch of a partition in an epoch is sent alone (`may_send`)."""

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._bump_required = False
        self._to_restart: set[TopicPartition] = set()
        self._unresolved: dict[TopicPartition, int] = {}

    # --- the producer's id -------------------------------------------------------------------------------------------

    @property
    def needs_producer_id(self) -> bool:
        """Whether an id must be fetched before anything can be sent."""
        return self.producer_id == NO_PRODUCER_ID

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Adopt the id and epoch from the broker."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._restart_partitions()

    def settle(self) -> None:
        """Before each round of sending: check unresolved partitions, and go to the next epoch if one requires it."""
        for partition, _ in list(self._unresolved.items()):
            entry = self._entry(partition)
            if entry.in_flight:
                continue
            del self._unresolved[partition]
            if entry.next_sequence != next_sequence(entry.last_acked, 1):
                self._request_bump(partition)
        if not self._bump_required or self.needs_producer_id:
            return
        self._bump_required = False
        if self.producer_epoch == MAX_EPOCH:
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        else:
            self.producer_epoch += 1
            self._restart_partitions()

    def _restart_partitions(self) -> None:
        for partition in self._to_restart:
            self._entry(partition).restart(self.producer_id, self.producer_epoch)
            self._unresolved.pop(partition, None)
        self._to_restart.clear()

    def _request_bump(self, partition: TopicPartition) -> None:
        self._bump_required = True
        self._to_restart.add(partition)

    def _entry(self, partition: TopicPartition) -> PartitionSequences:
        found = self._partitions.get(partition)
        if found is None:
            found = PartitionSequences(self.producer_id, self.producer_epoch)
            self._partitions[partition] = found
        return found

    # --- sending -----------------------------------------------------------------------------------------------------

    def may_send(self, batch: ProducerBatch) -> bool:
        """Whether a batch, the first in its partition's queue, may be sent now."""
        if self.needs_producer_id or self._bump_required:
            return False
        entry = self._entry(batch.partition)
        if batch.has_sequence:
            return not entry.in_flight or entry.in_flight[0] is batch
        if batch.partition in self._unresolved:
            return False
        # Sequence 0 of a new epoch must not be written before batches in flight with the old epoch. And a
        # broker that knows nothing of the producer accepts any sequence as the first: if the first batch were refused
        # and the second written, the first could never follow. So the first is sent alone (Java's producer sends them
        # together).
        stale = (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch)
        if not entry.in_flight:
            return True
        if stale or len(entry.in_flight) >= _REMEMBERED:
            return False
        if entry.last_acked == _NONE_ACKED and self.first_goes_alone:
            return False
        return entry.in_flight[0].base_sequence == next_sequence(entry.last_acked, 1)

    def assign(self, batch: ProducerBatch) -> None:
        """Number a batch that is about to be sent; a numbered one keeps its numbers."""
        if batch.has_sequence:
            batch.sequence_reset = False  # from now on answers are about the new numbers
            return
        entry = self._entry(batch.partition)
        if (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch):
            entry.restart(self.producer_id, self.producer_epoch)
        batch.set_producer(self.producer_id, self.producer_epoch, entry.next_sequence)
        entry.next_sequence = next_sequence(entry.next_sequence, batch.count)
        entry.in_flight.append(batch)

    # --- answers -----------------------------------------------------------------------------------------------------

    def completed(self, batch: ProducerBatch) -> None:
        """A batch was acknowledged."""
        entry = self._entry(batch.partition)
        last = next_sequence(batch.base_sequence, batch.count - 1)
        # Answers of two leaders may arrive out of order.
        if entry.last_acked == _NONE_ACKED or is_later(last, entry.last_acked):
            entry.last_acked = last
        self._remove(batch)

    def split(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """Pieces replace a batch that was too large."""
        in_flight = self._entry(batch.partition).in_flight
        index = next(index for index, known in enumerate(in_flight) if known is batch)
        in_flight[index : index + 1] = pieces

    def can_retry(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether to send a refused batch again; requests a new epoch if its numbers cannot be repaired."""
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            # The broker has lost the producer's state, perhaps with the records that held it. Without a log start
            # offset, the partition has moved in the meantime; a renumbered batch is sent again with its old numbers.
            if log_start_offset != -1 and not batch.sequence_reset:
                self._request_bump(batch.partition)
            return True
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._out_of_order(batch)
            return True
        return code.retriable

    def _out_of_order(self, batch: ProducerBatch) -> None:
        entry = self._entry(batch.partition)
        unresolved = self._unresolved.get(batch.partition)
        is_next = batch.base_sequence == next_sequence(entry.last_acked, 1)
        if unresolved is None:
            # Not the next expected batch: one before it failed, and both are sent again in order.
            if is_next and not batch.sequence_reset:
                self._request_bump(batch.partition)
        elif batch.base_sequence == unresolved and entry.in_flight[:1] == [batch]:
            self._request_bump(batch.partition)

    def failed(self, batch: ProducerBatch) -> None:
        """A batch is given up. If it was not written, its numbers leave a gap, and later batches are renumbered.

        Batches before it cannot be: their answers may be lost, and under new numbers the broker would write them twice.
        So the partition is unresolved while there are any (Java's producer renumbers them nevertheless).
        """
        if not batch.has_sequence:
            return
        is_first = self._entry(batch.partition).in_flight[:1] == [batch]
        self._remove(batch)
        if is_first and not batch.maybe_written:
            self._request_bump(batch.partition)
        else:
            following = next_sequence(batch.base_sequence, batch.count)
            known = self._unresolved.get(batch.partition)
            if known is None or is_later(following, known):
                self._unresolved[batch.partition] = following

    def _remove(self, batch: ProducerBatch) -> None:
        entry = self._entry(batch.partition)
        entry.in_flight = [known for known in entry.in_flight if known is not batch]


class TransactionSequences(Sequences):
    """The sequences of a transactional producer, whose epoch only the coordinator raises (KIP-98, KIP-890).

    A batch that is given up ends its transaction, and with it come a new epoch and new sequences (`begin_epoch`). So
    nothing is renumbered, and no gap needs to be repaired.
    """

    def begin_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Adopt an id and epoch from the coordinator, with no batch in flight: all partitions start over."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._partitions.clear()

    def settle(self) -> None:
        return

    def is_in_line(self, batch: ProducerBatch) -> bool:
        """Whether no batch before this one was lost, so that brokers accept it."""
        entry = self._entry(batch.partition)
        expected = next_sequence(entry.last_acked, 1)
        for known in entry.in_flight:
            if known.base_sequence != expected:
                return False
            if known is batch:
                return True
            expected = next_sequence(expected, known.count)
        return False

    def can_retry(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether to send a refused batch again."""
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            return log_start_offset == -1
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # Not the next expected batch: one before it failed, and both are sent again in order.
            return batch.base_sequence != next_sequence(self._entry(batch.partition).last_acked, 1)
        return code.retriable

    def failed(self, batch: ProducerBatch) -> None:
        """A batch is given up."""
        if batch.has_sequence:
            self._remove(batch)
