"""Shards kept in logs: each slot is a partition of a topic, as Kafka keeps groups in `__consumer_offsets`.

Each batch carries the epoch under which it was appended. The log rejects an append under an epoch older than its
leader's: so a coordinator that has lost the partition without noticing finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

from muster.coordinator.shards.store import FencedError, Piece, Stored
from muster.errors import CorruptRecordError, ErrorCode, KafkaError
from muster.protocol.primitives import Buffer
from muster.protocol.records.control_records import TxnMarker, read_marker
from muster.protocol.records.record_batch import BatchBuilder, BatchHeader, check_batch, iter_headers, read_records

READ_BYTES = 4 * 1024 * 1024
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch that would be larger when decompressed does not come from a coordinator, and is skipped."""

SLICE = 256
"""How many records are returned at a time, from a large batch or from many small ones."""

Skipped = tuple[object, Exception]
LogContent = list[Stored] | Skipped | Piece
"""The next entry of a log: records, something that was skipped, or the start or end of a transaction."""


class Log(Protocol):
    """What the store needs from a partition's log; `muster.log.PartitionLog` is one."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int:
        """Records below it are durable."""

    @property
    def failed(self) -> Exception | None:
        """Set once a write or sync has failed: records that are not durable at that moment never will be."""

    def append(self, batches: bytearray, *, now: int, leader_epoch: int = 0, origin: Any = "coordinator") -> Any:
        """Returns an object with `last_offset`, that of the last record. Producers may append to the same log. Raises
        KafkaError with FENCED_LEADER_EPOCH if the log's leader has a newer epoch."""

    def read(self, offset: int, max_bytes: int) -> Any:
        """Returns an object with `data` (complete batches, possibly none) and `next_offset`."""


class TransactionalLog(Log, Protocol):
    """What the store also needs from a log in which offsets may be committed in transactions."""

    def append(
        self,
        batches: bytearray,
        *,
        now: int,
        leader_epoch: int = 0,
        origin: Any = "coordinator",
        guard: int | None = None,
    ) -> Any:
        """See `Log.append`; a transaction's first batch needs the guard of its verification."""

    def begin_verification(
        self, producer_id: int, producer_epoch: int, first_sequence: int, *, tv2: bool, now: int
    ) -> int | None:
        """A guard for the first batch of a producer's transaction; None if one is open."""

    def append_marker(self, marker: TxnMarker, *, now: int, leader_epoch: int | None = None) -> Any:
        """Returns an object with `error`, `base_offset` and `message`."""

    def open_transactions(self) -> Sequence[object]: ...


class ShardLogStore:
    """A `Store`: `open_log` returns a slot's log, an empty one if it was never written.

    `alone`: no other coordinator writes to these logs. An epoch in them then fences nothing: it is left over from a
    former cluster, or damaged, because no checksum covers it. Everything is read, and writes use the newest epoch
    found.
    """

    def __init__(self, open_log: Callable[[int], Log], *, alone: bool = False) -> None:
        self._open_log = open_log
        self._alone = alone
        self._journals: dict[int, LogJournal] = {}

    def load(self, slot: int, epoch: int) -> LogJournal:
        """Take the slot. An open journal of the same or an older epoch is fenced."""
        before = self._journals.get(slot)
        if before is not None:
            if epoch < before.epoch:
                raise FencedError(f"epoch {epoch} is older than {before.epoch}")
            before.fence(epoch)
        log = self._open_log(slot)
        if log.high_watermark < log.log_end_offset:
            # A shard was dropped between an append and its sync: reading now would miss records that may reappear after
            # a crash.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the end of the log is not durable")
        journal = self._journals[slot] = LogJournal(log, epoch, partial(self._closed, slot), self._alone)
        return journal

    def _closed(self, slot: int, journal: LogJournal) -> None:
        if self._journals.get(slot) is journal:
            del self._journals[slot]


class LogJournal:
    """A `Journal` kept in a log. Positions are offsets."""

    def __init__(self, log: Log, epoch: int, on_close: Callable[[LogJournal], None], alone: bool) -> None:
        self.log = log
        self.epoch = epoch
        self._on_close = on_close
        self._alone = alone
        self._refusal: KafkaError | None = None
        self._newest_epoch = 0
        self._slices = self._read_all()
        self._next_transactional: Piece | None = None  # read, but not returned yet

    @property
    def is_empty(self) -> bool:
        """See `Journal.is_empty`."""
        return self.log.log_start_offset == self.log.log_end_offset

    @property
    def durable(self) -> int:
        """See `Journal.durable`: the high watermark."""
        return self.log.high_watermark

    @property
    def failed(self) -> Exception | None:
        """See `Journal.failed`."""
        return self._refusal or self.log.failed

    def close(self) -> None:
        """See `Journal.close`."""
        self._refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "the shard was unloaded")
        self._on_close(self)

    def fence(self, epoch: int) -> None:
        """The slot was taken under another epoch."""
        self._refusal = FencedError(f"epoch {self.epoch} ended with epoch {epoch}")

    # ---------------------------------------------------------------------------------------------------------- write

    def write(self, batch: BatchBuilder, now: int) -> int:
        """See `Journal.write`: one append."""
        if self._refusal is not None:
            raise self._refusal
        try:
            epoch = max(self.epoch, self._newest_epoch)  # a property would cost one more call for each write
            appended = self.log.append(batch.build(), now=now, leader_epoch=epoch, origin="coordinator")
        except KafkaError as error:
            raise self._refused(error) from None
        # The log returns the position: the coordinator may not be its only writer.
        end: int = appended.last_offset + 1
        return end

    def _refused(self, error: KafkaError) -> KafkaError:
        """What to raise for an error from the log."""
        if error.code is not ErrorCode.FENCED_LEADER_EPOCH:
            return error
        self._refusal = FencedError(error.message or "the log is led under a newer epoch")
        return self._refusal

    @property
    def writing_epoch(self) -> int:
        """The epoch under which it writes; the log has no newer one."""
        return max(self.epoch, self._newest_epoch)

    @property
    def _transactional(self) -> TransactionalLog:
        return cast(TransactionalLog, self.log)

    def begin_verification(self, producer_id: int, producer_epoch: int, *, tv2: bool, now: int) -> int | None:
        """See `PartitionLog.begin_verification`."""
        return self._transactional.begin_verification(producer_id, producer_epoch, 0, tv2=tv2, now=now)

    def write_transactional(
        self, batch: BatchBuilder, now: int, producer_id: int, producer_epoch: int, guard: int | None
    ) -> int:
        """Like `write`, for records of a producer's transaction. Also raises the errors with which the log refuses a
        producer."""
        if self._refusal is not None:
            raise self._refusal
        built = batch.build(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0, transactional=True)
        try:
            appended = self._transactional.append(
                built, now=now, leader_epoch=self.writing_epoch, origin="coordinator", guard=guard
            )
        except KafkaError as error:
            raise self._refused(error) from None
        end: int = appended.last_offset + 1
        return end

    def write_marker(self, marker: TxnMarker, now: int) -> int:
        """Like `write`, for the marker that ends a producer's transaction."""
        if self._refusal is not None:
            raise self._refusal
        result = self._transactional.append_marker(marker, now=now, leader_epoch=self.writing_epoch)
        if result.error is not ErrorCode.NONE:
            raise self._refused(KafkaError(result.error, result.message))
        end: int = result.base_offset + 1
        return end

    def open_transactions(self) -> Sequence[object]:
        """See `PartitionLog.open_transactions`."""
        return self._transactional.open_transactions()

    # ----------------------------------------------------------------------------------------------------------- read

    def read(self, most: int) -> Piece:
        """See `Journal.read`. Damaged data is skipped."""
        if self._next_transactional is not None:
            piece, self._next_transactional = self._next_transactional, None
            return piece
        records: list[Stored] = []
        while len(records) < most:
            found = next(self._slices, None)
            if found is None:
                return Piece(records, is_last=True)
            if isinstance(found, Piece):
                if not records:
                    return found
                self._next_transactional = found
                break
            if isinstance(found, tuple):
                return Piece(records, found)
            records += found
        return Piece(records)

    def _read_all(self) -> Iterator[LogContent]:
        log = self.log
        offset = log.log_start_offset
        while offset < log.high_watermark:
            read = log.read(offset, READ_BYTES)
            if read.next_offset <= offset:
                return
            yield from self._batches(read.data, offset)
            offset = read.next_offset

    def _batches(self, data: Buffer, offset: int) -> Iterator[LogContent]:
        plain: list[Stored] = []
        problem: CorruptRecordError | None = None
        try:
            for position, header in iter_headers(data):
                offset = header.base_offset
                found = self._batch(data, position, header)
                if isinstance(found, list) and not header.is_transactional:
                    plain += found
                    if len(plain) < SLICE:
                        continue
                yield from _slices(plain)
                plain = []
                if isinstance(found, tuple):
                    yield found
                elif header.is_transactional:
                    yield from (Piece(some, producer_id=header.producer_id) for some in _slices(found))
        except CorruptRecordError as error:
            problem = error  # a damaged header: where the next batch begins is unknown
        yield from _slices(plain)
        if problem is not None:
            yield offset, problem

    def _batch(self, data: Buffer, position: int, header: BatchHeader) -> list[Stored] | Skipped | Piece:
        """The contents of a batch; nothing if it is a control batch that ends no transaction."""
        if self._is_of_a_fenced_epoch(header):
            epoch = header.partition_leader_epoch
            return header.base_offset, FencedError(f"written under epoch {epoch} after a newer one")
        try:
            if header.is_control:
                marker = read_marker(data, position, header)
                return [] if marker is None else Piece((), marker=marker)
            check_batch(data, position, header)
            records = read_records(data, position, header, MAX_BATCH_BYTES)
        except CorruptRecordError as error:
            return header.base_offset, error
        return [(record.offset, record.key, record.value) for record in records]

    def _is_of_a_fenced_epoch(self, header: BatchHeader) -> bool:
        epoch = header.partition_leader_epoch
        if epoch > self.epoch and not self._alone:
            raise FencedError(f"offset {header.base_offset} was written under epoch {epoch}, newer than {self.epoch}")
        is_fenced = epoch < self._newest_epoch and not self._alone
        self._newest_epoch = max(epoch, self._newest_epoch)
        return is_fenced


def _slices(records: list[Stored]) -> Iterator[list[Stored]]:
    if len(records) <= SLICE:
        return iter((records,) if records else ())
    return (records[start : start + SLICE] for start in range(0, len(records), SLICE))
