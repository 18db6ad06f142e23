"""A partition's state of idempotent producers (KIP-98), so that a batch sent twice is written once.

For each producer id: the epoch, and the last five batches as ranges of sequences with their offsets. A batch
- whose range is one of the five is a duplicate: it is acknowledged with the offset of the first time;
- of an older epoch is refused with INVALID_PRODUCER_EPOCH;
- of a newer epoch must begin at sequence 0;
- of the same epoch must follow the last sequence (2^31 - 1 is followed by 0), else OUT_OF_ORDER_SEQUENCE_NUMBER;
- of an unknown producer (it expired, or its records are gone) is accepted with any sequence, so today's brokers have
  no use for UNKNOWN_PRODUCER_ID. What is unknown counts as epoch -1: a lower epoch is refused, and a producer that
  really sends epoch -1 may send any sequence, also the next batch, also the first of the next epoch.
The rules are those of Kafka's ProducerAppendInfo and ProducerStateManager, the snapshot is theirs too
(version 1: int16 version, uint32 CRC-32C of what follows, then an array of entries), but for the number of entries.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from muster.errors import ErrorCode, MusterError
from muster.log.config import LogError
from muster.log.files import DISK, Files, put_whole
from muster.protocol.records.record_batch import NO_PRODUCER_EPOCH, BatchHeader

BATCHES_TO_RETAIN = 5
"""Duplicates can be recognised for this many requests in flight (max.in.flight.requests.per.connection)."""

_MAX_SEQUENCE = 2**31 - 1
_VERSION = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


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
    """One producer id. `last_timestamp` (milliseconds) decides about expiry."""

    epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = -1
    batches: deque[ProducedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_RETAIN))


class CorruptSnapshotError(MusterError):
    """A producer snapshot that is damaged; the state is built from the log instead."""


class PartitionProducers:
    """All producers of one partition."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """The earlier batch that this one repeats, or None if it may be written. Raises LogError. Changes nothing."""
        entry = self.producers.get(header.producer_id)
        known = NO_PRODUCER_EPOCH if entry is None else entry.epoch
        first, last, epoch = header.base_sequence, header.last_sequence, header.producer_epoch
        if epoch < known:
            raise LogError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch of producer {header.producer_id} is {epoch}, smaller than the last seen epoch {known}",
            )
        if entry is None:
            return None
        if epoch == known:
            for batch in entry.batches:
                if batch.first_sequence == first and batch.last_sequence == last:
                    return batch
        if known == NO_PRODUCER_EPOCH:
            return None
        if epoch > known:
            if first:
                raise LogError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} begins epoch {epoch} at sequence {first} (current epoch {known})",
                )
            return None
        current = entry.batches[-1].last_sequence if entry.batches else -1
        if first != current + 1 and not (first == 0 and current == _MAX_SEQUENCE):
            raise LogError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first}, the last one is {current}",
            )
        return None

    def note(self, header: BatchHeader) -> None:
        """Takes note of a batch that has been written, or is read again from the log."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry()
        if entry.epoch != header.producer_epoch:
            entry.batches.clear()
            entry.epoch = header.producer_epoch
        entry.last_timestamp = header.max_timestamp
        if not header.is_control:
            entry.batches.append(
                ProducedBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                )
            )

    def last_offset(self, producer_id: int) -> int:
        """The last offset that the producer wrote, -1 if unknown. Compaction keeps that batch even when it is empty."""
        entry = self.producers.get(producer_id)
        return entry.batches[-1].last_offset if entry and entry.batches else -1

    def expire(self, now: int, expiration_ms: int) -> None:
        """Forgets producers whose last record is older than `expiration_ms`."""
        for producer_id, entry in list(self.producers.items()):
            if now - entry.last_timestamp >= expiration_ms:
                del self.producers[producer_id]

    # ---------------------------------------------------------------------------------------------- snapshots

    def encode(self) -> bytes:
        """The snapshot's bytes: an entry for each batch that is remembered, the newest of a producer last.

        Kafka's broker writes the last batch alone, and of several entries it believes the last. But a broker that was
        shut down cleanly must know all five again: with one copy of each partition, no other broker does."""
        parts = [
            _ENTRY.pack(
                producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.first_offset,
                entry.last_timestamp if batch is batches[-1] else batch.timestamp,
                -1,
                -1,
            )
            for producer_id, entry in self.producers.items()
            for batches in [entry.batches or (_NO_BATCH,)]
            for batch in batches
        ]
        parts.insert(0, _COUNT.pack(len(parts)))
        body = b"".join(parts)
        return _VERSION.pack(1, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> PartitionProducers:
        """Raises CorruptSnapshotError."""
        try:
            version, crc = _VERSION.unpack_from(data)
            if version != 1:
                raise CorruptSnapshotError(f"a producer snapshot of unknown version {version}")
            if crc32c(data[_VERSION.size :]) != crc:
                raise CorruptSnapshotError("a producer snapshot's CRC does not hold")
            [count] = _COUNT.unpack_from(data, _VERSION.size)
            state = cls()
            for at in range(count):
                fields = _ENTRY.unpack_from(data, _VERSION.size + _COUNT.size + at * _ENTRY.size)
                producer_id, epoch, sequence, offset, delta, timestamp, _, _ = fields
                entry = state.producers.get(producer_id)
                if entry is None or entry.epoch != epoch:
                    entry = state.producers[producer_id] = ProducerEntry(epoch)
                entry.last_timestamp = timestamp
                if offset >= 0:
                    first = (sequence - delta) & _MAX_SEQUENCE
                    entry.batches.append(ProducedBatch(first, sequence, offset - delta, offset, timestamp))
        except struct.error as error:
            raise CorruptSnapshotError(f"a producer snapshot is cut off: {error}") from None
        return state

    def save(self, path: Path, files: Files = DISK) -> None:
        """Writes the snapshot, without a sync: damage by a power cut shows in its CRC, and the log holds all of it
        too. Raises OSError."""
        put_whole(files, path, self.encode(), sync=False)
