"""Records that wait to be sent, as batches for each partition.

A batch takes records until it reaches `batch.size` or is sent. Waiting records count against `buffer.memory` with an
upper bound for each, so that the sum is known before a record is encoded. `Unsettled` counts the records that a flush
waits for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.errors import MusterError
from muster.model import NO_LEADER_EPOCH, TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchBuilder,
    read_tuples,
    record_size,
    set_producer,
)

RecordHeaders = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class OutgoingRecord:
    """A record from the caller. `size` is its `record_size`; with `partition` None, the partitioner chooses.

    `deadline` is set while the record waits for its topic to be known. `era` is set when the core takes it
    (`Unsettled`).
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    timestamp: int
    receipt: Any
    size: int
    deadline: int = 0
    era: int = 0


@dataclass(slots=True)
class OutgoingBatch:
    """Records that go to one partition as one batch; with `partition` None, to any partition of the topic.

    They share one timestamp and one receipt, which is returned once for each. `size` is the size of the batch before
    compression. The other fields are as in `OutgoingRecord`.
    """

    topic: str
    partition: int | None
    builder: BatchBuilder
    timestamp: int
    receipt: Any
    deadline: int = 0
    era: int = 0
    key: None = None

    @property
    def size(self) -> int:
        return self.builder.size

    @property
    def count(self) -> int:
        """The number of records."""
        return self.builder.count


Outgoing = OutgoingRecord | OutgoingBatch


class ProducerBatch:
    """Records for one partition. `receipts` holds the face's receipt of each record, `eras` its era."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "builder",
        "closed",
        "created_ms",
        "done",
        "encoded",
        "eras",
        "leader_epoch",
        "maybe_written",
        "memory",
        "order",
        "partition",
        "producer_epoch",
        "producer_id",
        "receipts",
        "retry_at",
        "sequence_reset",
        "timestamps",
    )

    def __init__(self, partition: TopicPartition, created_ms: int, order: tuple[int, ...]) -> None:
        self.partition = partition
        self.created_ms = created_ms
        self.order = order
        """The batch's rank among those of its partition; the pieces of a split batch have an additional number."""
        self.builder = BatchBuilder()
        self.encoded: bytearray | None = None
        self.receipts: list[Any] = []
        self.timestamps: list[int] = []
        self.eras: list[int] = []
        self.memory = 0
        self.attempts = 0
        self.retry_at = 0
        self.leader_epoch = NO_LEADER_EPOCH
        self.closed = False
        """Whether no more records can be added."""
        self.done = False
        self.maybe_written = False
        """An attempt may have written the batch, although no answer confirms that."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.sequence_reset = False

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.receipts)

    @property
    def has_sequence(self) -> bool:
        """Whether the batch has a sequence, which the broker checks."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def size(self) -> int:
        """The batch's size in bytes, exact once it is encoded."""
        return self.builder.size if self.encoded is None else len(self.encoded)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        receipt: Any,
        era: int,
    ) -> None:
        """Add a record."""
        self.builder.append_at(len(self.receipts), timestamp, key, value, headers)
        self.receipts.append(receipt)
        self.timestamps.append(timestamp)
        self.eras.append(era)

    def fill(self, whole: OutgoingBatch) -> None:
        """Adopt the records of an encoded batch: no record can be added."""
        self.builder, self.closed = whole.builder, True
        self.receipts = [whole.receipt] * whole.count
        self.timestamps = [whole.timestamp] * whole.count
        self.eras = [whole.era] * whole.count
        self.memory = whole.size

    def encode(self, compression: Compression, level: int | None, transactional: bool = False) -> bytearray:
        """Build the batch's bytes, once; no record can be added afterwards."""
        self.closed = True
        if self.encoded is None:
            self.encoded = self.builder.build(
                compression=compression,
                level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
            self.builder = BatchBuilder()  # its parts are no longer needed
        return self.encoded

    def set_producer(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the batch's producer id, epoch and sequence, even after encoding."""
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
        if self.encoded is not None:
            # A copy: a socket may still be writing the old bytes.
            self.encoded = bytearray(self.encoded)
            set_producer(self.encoded, 0, producer_id, producer_epoch, base_sequence)

    def split(self) -> list[ProducerBatch]:
        """The records as smaller batches, at most half as large, with their old sequences."""
        assert self.encoded is not None
        records = read_tuples(self.encoded)
        limit = sum(record_size(key, value, headers) for _, _, key, value, headers in records) // 2
        pieces: list[ProducerBatch] = []
        filled = limit
        sequence = self.base_sequence
        for index, (_, timestamp, key, value, headers) in enumerate(records):
            size = record_size(key, value, headers)
            if not pieces or filled + size > limit:
                pieces.append(ProducerBatch(self.partition, self.created_ms, (*self.order, len(pieces))))
                filled = 0
            pieces[-1].append(timestamp, key, value, headers, self.receipts[index], self.eras[index])
            pieces[-1].memory += size
            filled += size
        for piece in pieces:
            if self.has_sequence:
                piece.set_producer(self.producer_id, self.producer_epoch, sequence)
                sequence = next_sequence(sequence, piece.count)
        return pieces


def next_sequence(sequence: int, count: int) -> int:
    """The sequence after `count` records starting at `sequence`; after 2^31-1 comes 0."""
    return (sequence + count) & 0x7FFFFFFF


def is_later(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another, possibly across the wrap from 2^31-1 to 0."""
    return 0 < (sequence - other) & 0x7FFFFFFF < 1 << 30


@dataclass(slots=True)
class Completion:
    """A finished batch: the face resolves its receipts.

    `base_offset` is -1 if the broker did not return it. `record_errors` holds errors that differ from `error`, by
    index.
    """

    partition: TopicPartition
    receipts: list[Any]
    timestamps: list[int]
    memory: int
    eras: list[int]
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: MusterError | None = None
    record_errors: dict[int, MusterError] = field(default_factory=dict)


class CompressionRatio:
    """How well the records of one topic compress: an estimate that worsens quickly and improves slowly, as in Java."""

    __slots__ = ("ratio",)

    def __init__(self) -> None:
        self.ratio = 1.0

    def observe(self, observed: float) -> None:
        """Record one batch's ratio."""
        if observed > self.ratio:
            self.ratio = max(self.ratio + 0.05, observed)
        else:
            self.ratio = max(self.ratio - 0.005, observed)

    def estimate(self, size: int) -> int:
        """The probable compressed size of this many bytes."""
        return size if self.ratio >= 1 else int(size * self.ratio * 1.05)


class Accumulator:
    """The queues of batches: in each, the oldest batch first and only the last one open for records."""

    def __init__(self, batch_size: int, compression: Compression, transactional: bool = False) -> None:
        self._batch_size = batch_size
        self._transactional = transactional
        self._compression = compression
        self._ratios: dict[str, CompressionRatio] = {}
        self._created = 0
        self.queues: dict[TopicPartition, deque[ProducerBatch]] = {}

    def append(self, partition: TopicPartition, record: Outgoing, now: int) -> tuple[bool, bool]:
        """Add a record to the open batch, or to a new one if it is full. Returns whether the batch is new, and whether
        it is full now."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = deque()
        if record.__class__ is OutgoingBatch:
            self._begin(queue, partition, now).fill(record)
            return True, True
        assert isinstance(record, OutgoingRecord)
        batch = queue[-1] if queue else None
        ratio = self._ratios.get(partition.topic)
        is_new = batch is None or not self._takes(batch, record.size, ratio)
        if batch is None or is_new:
            batch = self._begin(queue, partition, now)
        batch.append(record.timestamp, record.key, record.value, record.headers, record.receipt, record.era)
        batch.memory += record.size
        size = batch.builder.size
        return is_new, (size if ratio is None else ratio.estimate(size)) >= self._batch_size

    def _begin(self, queue: deque[ProducerBatch], partition: TopicPartition, now: int) -> ProducerBatch:
        self._created += 1
        batch = ProducerBatch(partition, now, (self._created,))
        queue.append(batch)
        return batch

    def waiting(self) -> list[tuple[TopicPartition, deque[ProducerBatch]]]:
        """The queues that are not empty. The least recently used comes first, so none starves."""
        return [(partition, queue) for partition, queue in self.queues.items() if queue]

    def take(self, partition: TopicPartition) -> None:
        """Take the first batch from a queue; the queue's next turn is after all others."""
        queue = self.queues.pop(partition)
        queue.popleft()
        self.queues[partition] = queue

    def _takes(self, batch: ProducerBatch, size: int, ratio: CompressionRatio | None) -> bool:
        if batch.closed:
            return False
        size += batch.builder.size
        return (size if ratio is None else ratio.estimate(size)) <= self._batch_size

    def is_full(self, batch: ProducerBatch, queue: deque[ProducerBatch]) -> bool:
        """Whether no more records will be added to it."""
        if batch.closed or queue[-1] is not batch:
            return True
        return self._expected(batch.partition.topic, batch.size) >= self._batch_size

    def _expected(self, topic: str, size: int) -> int:
        ratio = self._ratios.get(topic)
        return size if ratio is None else ratio.estimate(size)

    def encode(self, batch: ProducerBatch, level: int | None) -> None:
        """Build a batch's bytes, and learn from them how well its topic compresses."""
        if batch.encoded is not None:
            return
        plain = batch.size
        encoded = batch.encode(self._compression, level, self._transactional)
        if self._compression is not Compression.NONE:
            ratio = self._ratios.setdefault(batch.partition.topic, CompressionRatio())
            ratio.observe((len(encoded) - HEADER_SIZE) / max(1, plain - HEADER_SIZE))

    def forget_ratio(self, topic: str) -> None:
        """The estimate was wrong: a batch was refused as too large."""
        self._ratios.pop(topic, None)

    def topics(self) -> set[str]:
        """The topics with batches in a queue."""
        return {partition.topic for partition, queue in self.queues.items() if queue}


class Unsettled:
    """How many records of each era are not settled yet: a flush waits for them.

    A record is settled when its acknowledgement or failure was passed to the face. Records are counted by the era in
    which they were accepted. A flush begins a new era, and ends when no record of an earlier era is left. So a flush
    searches no queue, and cannot miss a record there.
    """

    __slots__ = ("_left", "era")

    def __init__(self) -> None:
        self.era = 0
        """The era of a record accepted now."""
        self._left: dict[int, int] = {}
        """Eras with records, the oldest first: records are added only to the newest."""

    def add(self, count: int = 1) -> None:
        """Count newly accepted records."""
        self._left[self.era] = self._left.get(self.era, 0) + count

    def settle(self, eras: Sequence[int]) -> None:
        """Count settled records; their eras are in the order in which they arrived."""
        counts = {eras[0]: len(eras)} if eras[0] == eras[-1] else Counter(eras)
        for era, count in counts.items():
            left = self._left[era] - count
            if left:
                self._left[era] = left
            else:
                del self._left[era]

    def begin_flush(self) -> Callable[[], bool]:
        """Begin a new era; returns a function that says whether all earlier records are settled."""
        self.era += 1
        limit = self.era
        return lambda: next(iter(self._left), limit) >= limit
