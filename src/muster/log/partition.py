"""The log of one partition: records are appended in order, and read from any offset.

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

Records before log_start_offset are gone (retention, DeleteRecords). Records before high_watermark may be read and
acknowledged: all written records; under FsyncPolicy.ALWAYS only those that have been synced. How far a consumer may
read is decided in `readable_end`, and nowhere else.

Transactions
    Records before last_stable_offset belong to decided transactions, or to none. Open transactions are part of
    `PartitionProducers` and its snapshots, and are rebuilt from the same batches as the sequences (producer_state.py;
    transactions.py has the last stable offset). Each segment has an index of the transactions that its markers aborted
    (aborted_index.py).

Threads
    One thread appends and reads (the broker's loop), another may call `flush`, a third `enforce_retention` and
    `compact`, any of them `close`. `_lock` guards the segments and is held for microseconds only; a sync, the rewriting
    of a segment and the replacement of files run outside it. `_sync_lock` keeps files open while they are synced, and
    is always taken first. Segments that are not synced yet belong to `flush`, and compaction leaves them alone.

Failure
    The bytes of a failed write are cut off again, and the append is refused with KAFKA_STORAGE_ERROR; the log resumes
    once there is space again, or a free file descriptor. Indexes, snapshots and compaction can wait: a failure there is
    logged, and they are done later. But after a failed sync it is unknown what the disk holds, and the system may
    report later syncs as successful although the data is gone. Then the log is `failed`: it refuses all appends, and
    acknowledges nothing that was not synced before. Opening the store again recovers it.
"""

from __future__ import annotations

import errno
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Literal, NoReturn

from muster.errors import ErrorCode
from muster.log import compaction, recovery
from muster.log.batches.record_walk import find_by_timestamp
from muster.log.batches.validation import Examined, as_writable, assign_offsets, examine
from muster.log.config import FsyncPolicy, LogConfig, LogError, LogFailedError, TimestampType
from muster.log.due import deletable, is_dirty, is_full
from muster.log.files import DISK, FileCutError, Files, put_whole
from muster.log.producers.producer_state import PartitionProducers
from muster.log.producers.transactions import OngoingTransaction
from muster.log.results import AppendResult, MarkerResult, ReadResult, Sealed, Traffic
from muster.log.segments.aborted_index import AbortedTxn, aborted_between, entry_of
from muster.log.segments.positions import Positions, end_of_epoch, position_of_end, readable
from muster.log.segments.segment import FILE_RANGE_MIN_BYTES, Segment, segment_name
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.records.control_records import TxnMarker, end_marker
from muster.protocol.records.record_batch import LOG_OVERHEAD, NO_TIMESTAMP, BatchHeader, read_header

logger = logging.getLogger("muster.log")

Origin = Literal["client", "coordinator"]

_EMPTY = memoryview(b"")
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors in opening a file or folder for a sync. No sync was tried, so nothing is lost."""


class PartitionLog:
    """One partition's log. Nothing is created on disk before the first append."""

    def __init__(
        self,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        fsync: FsyncPolicy = FsyncPolicy.INTERVAL,
        on_dirty: Callable[[PartitionLog], None] | None = None,
        files: Files = DISK,
    ) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.fsync = fsync
        self.failed: LogFailedError | None = None
        self.producers = PartitionProducers()
        self.traffic = Traffic()
        self.leader_epoch = 0
        """The epoch under which this broker leads the partition: for batches appended without one."""
        self.cleaned_to = 0
        """Where the dirty part begins: compaction has seen everything before it."""
        self._segments: tuple[Segment, ...] = ()
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._durable = 0
        """The offset up to which everything has been synced."""
        self._sealed: list[Sealed] = []
        """Sealed segments that still need a sync, indexes and a snapshot."""
        self._new_files = False
        self._exchanged: list[compaction.Replacement] = []
        """Compacted segments that are valid already, but whose predecessors could not be removed yet."""
        self.in_trouble = False  # whether the last write, or a read since, has failed
        self._closed = False
        self._positions = Positions()
        self._on_dirty = on_dirty
        self._files = files
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()

    @classmethod
    def open(
        cls,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now: int,
        fsync: FsyncPolicy = FsyncPolicy.INTERVAL,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        cleaned_to: int = 0,
        on_dirty: Callable[[PartitionLog], None] | None = None,
        files: Files = DISK,
    ) -> PartitionLog:
        """The log in its files. Unless the shutdown was `clean`, everything from `recovery_point` on is checked, and
        cut off at the first batch that is torn or corrupt. Raises OSError."""
        log = cls(directory, topic_partition, config, fsync=fsync, on_dirty=on_dirty, files=files)
        loaded = recovery.load(
            directory,
            config,
            now=now,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            cleaned_to=cleaned_to,
            sync=fsync is not FsyncPolicy.NEVER,
            files=files,
        )
        if loaded.segments:
            log._segments = tuple(loaded.segments)
            log.producers = loaded.producers
            log._log_end_offset = loaded.end_offset
            log._log_start_offset = max(log._segments[0].base_offset, min(log_start_offset, log._log_end_offset))
            log.cleaned_to = min(max(cleaned_to, log._log_start_offset), log._log_end_offset)
            log._durable = log._log_end_offset
        return log

    # ---------------------------------------------------------------------------------------------- properties

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """Records before it are durable in the sense of the fsync policy."""
        if self.fsync is FsyncPolicy.ALWAYS:
            return self._durable
        return self._log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Records before it belong to decided transactions, or to none. Not before the log's start."""
        return self._stable_end(self.high_watermark)

    def _stable_end(self, high_watermark: int) -> int:
        return max(self.producers.transactions.stable_end(high_watermark), self._log_start_offset)

    def readable_end(self, isolation_level: int) -> int:
        """The offset before which a consumer may see records, and which it gets when it asks for the latest offset.

        `isolation_level` is READ_UNCOMMITTED or READ_COMMITTED."""
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    @property
    def recovery_point(self) -> int:
        """Records before it need not be checked after a crash: they and their indexes are synced."""
        with self._lock:
            synced = [sealed.segment for sealed in self._sealed if sealed.segment.next_offset <= self._durable]
            return min([self._durable, *(segment.base_offset for segment in synced)])

    @property
    def closed(self) -> bool:
        """Whether it was closed, or deleted: records that are not durable by then never will be."""
        return self._closed

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, the oldest first; the last one is active."""
        return self._segments

    # ---------------------------------------------------------------------------------------------- append

    def append(
        self,
        batches: bytes | bytearray | memoryview,
        *,
        now: int,
        leader_epoch: int | None = None,
        origin: Origin = "client",
        examined: Examined | None = None,
        guard: int | None = None,
    ) -> AppendResult:
        """Appends batches in one write, and gives them their offsets. A client's append, or one with a producer id, has
        exactly one batch.

        The batches are validated first, unless `examined` has the result already. Offsets and leader epoch are patched
        into `batches` itself if it is writable. `guard` is what `begin_verification` has returned. Raises LogError with
        the client's error code: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
        INVALID_TIMESTAMP, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE; FENCED_LEADER_EPOCH,
        if the partition is led under a newer epoch; LogFailedError if the disk fails or has failed."""
        buffer = as_writable(batches)
        if examined is None:
            examined = examine(buffer, self.config, now, origin, self.topic_partition)
        with self._lock:
            if self.failed is not None or self._closed:
                self._refuse()
            if leader_epoch is not None and leader_epoch < self.leader_epoch:
                raise _fenced(leader_epoch, self.leader_epoch)
            if examined.headers[0].producer_id >= 0:
                verifies = self.config.transaction_partition_verification_enable
                duplicate = self.producers.check(
                    examined.headers[0], guard, of_client=origin == "client", verifies=verifies
                )
                if duplicate is not None:
                    return AppendResult(duplicate.first_offset, duplicate.last_offset, duplicate.timestamp, True)
            base_offset = self._log_end_offset
            epoch = self.leader_epoch if leader_epoch is None else leader_epoch
            placed = assign_offsets(buffer, examined, base_offset, self.config, now, epoch)
            self._write(buffer, placed, now)
            last_offset = self._log_end_offset - 1
        if self._on_dirty is not None:
            self._on_dirty(self)
        stamped = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendResult(base_offset, last_offset, now if stamped else NO_TIMESTAMP, False)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, first_sequence: int, *, tv2: bool, now: int
    ) -> int | None:
        """The guard to append a transactional batch with, once its coordinator has confirmed that the partition belongs
        to the producer's transaction. None: the transaction is open here, so the coordinator has already confirmed it.

        `tv2`: the client supports transaction version 2. Raises LogError(INVALID_PRODUCER_EPOCH) for an older epoch."""
        with self._lock:
            return self.producers.begin_verification(producer_id, producer_epoch, first_sequence, tv2, now)

    def append_marker(self, marker: TxnMarker, *, now: int, leader_epoch: int | None = None) -> MarkerResult:
        """Ends a producer's transaction. A repeated marker is written again. An older epoch of the producer is refused
        (INVALID_PRODUCER_EPOCH; with `transaction_version` 2 also the same epoch while its transaction is open), and so
        is an older epoch of the coordinator (TRANSACTION_COORDINATOR_FENCED). Other errors are those of `append`."""
        batch = end_marker(marker, now)
        header = read_header(batch)
        try:
            with self._lock:
                if self.failed is not None or self._closed:
                    self._refuse()
                if leader_epoch is not None and leader_epoch < self.leader_epoch:
                    raise _fenced(leader_epoch, self.leader_epoch)
                self.producers.check_marker(marker)
                base_offset = self._log_end_offset
                epoch = self.leader_epoch if leader_epoch is None else leader_epoch
                placed = assign_offsets(batch, Examined([header], [now]), base_offset, self.config, now, epoch)
                self._write(batch, placed, now, marker)
        except LogError as error:
            return MarkerResult(error.code, message=str(error))
        if self._on_dirty is not None:
            self._on_dirty(self)
        return MarkerResult(ErrorCode.NONE, base_offset, len(batch))

    def open_transactions(self) -> list[OngoingTransaction]:
        """The transactions that no marker here has ended, the oldest first."""
        with self._lock:
            return self.producers.open_transactions()

    def _write(
        self, buffer: bytearray | memoryview, placed: list[BatchHeader], now: int, marker: TxnMarker | None = None
    ) -> None:
        try:
            segment = self._active(len(buffer), placed, now)
            segment.write(buffer)
        except FileCutError as cut:
            raise self._fail("writing", cut) from cut
        except OSError as error:
            self._report("refuses records", error)
            raise LogFailedError(f"writing the log of {self.topic_partition} failed: {error}") from error
        if self.in_trouble:
            self.in_trouble = False
            logger.info("%s accepts records again", self.topic_partition)
        self.traffic.appends += 1
        completed = None
        for header in placed:
            self.traffic.records_in += header.record_count
            self.traffic.bytes_in += header.batch_length + LOG_OVERHEAD
            segment.note(header, self.config.index_interval_bytes)
            if header.producer_id >= 0:
                completed = self.producers.note(header, marker)
        self._log_end_offset = segment.next_offset
        if completed is not None:
            if completed.aborted:
                segment.aborted.append(entry_of(completed))
            transactions = self.producers.transactions
            transactions.complete(completed.first_offset, completed.last_offset, self.high_watermark)

    def _active(self, size: int, placed: list[BatchHeader], now: int) -> Segment:
        """The segment to write to: the last one, or a new one by Kafka's rules."""
        if not self._segments:
            self._files.make_folders(self.directory)
            return self._add_segment(placed[0].base_offset, now)
        active = self._segments[-1]
        return self._roll(now) if is_full(active, size, placed, self.config, now) else active

    def _roll(self, now: int) -> Segment:
        """Seals the active segment and begins the next at the log's end. Raises OSError; then nothing has changed."""
        active = self._segments[-1]
        new = self._add_segment(self._log_end_offset, now)
        active.seal()
        self._sealed.append(Sealed(active, self._log_end_offset, self.producers.encode()))
        return new

    def _add_segment(self, base_offset: int, now: int) -> Segment:
        segment = Segment(self.directory, base_offset, now, files=self._files)
        segment.create()
        self._segments = (*self._segments, segment)
        self._new_files = True
        return segment

    def _refuse(self) -> NoReturn:
        if self.failed is not None:
            raise self.failed
        raise LogError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {self.topic_partition} is closed")

    def _fail(self, what: str, error: OSError) -> LogFailedError:
        self.failed = LogFailedError(f"{what} the log of {self.topic_partition} failed: {error}")
        logger.error("%s; it accepts no more records until it is opened again", self.failed.message)
        return self.failed

    def _unreadable(self, error: OSError) -> LogFailedError:
        self._report("cannot be read", error)
        return LogFailedError(f"reading the log of {self.topic_partition} failed: {error}")

    def _report(self, what: str, error: OSError) -> None:
        """Log a problem only once while it lasts: it would flood the log."""
        if not self.in_trouble:
            self.in_trouble = True
            logger.error("%s %s: %s", self.topic_partition, what, error)

    # ---------------------------------------------------------------------------------------------- read

    def read(
        self, offset: int, max_bytes: int, *, min_one: bool = True, isolation_level: int = READ_UNCOMMITTED
    ) -> ReadResult:
        """Complete batches from the one that holds `offset` on, from one segment and before the consumer's
        `readable_end`.

        At most `max_bytes`; but with `min_one` the first batch is returned whatever its size. Empty at the end of the
        log. Raises LogError(OFFSET_OUT_OF_RANGE) for an offset outside of the log, LogFailedError."""
        with self._lock:
            if not self._log_start_offset <= offset <= self._log_end_offset:
                raise LogError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} of {self.topic_partition} is not between "
                    f"{self._log_start_offset} and {self._log_end_offset}",
                )
            # Both are read once: a sync that ends in between would move them.
            high_watermark = self.high_watermark
            stable = self._stable_end(high_watermark)
            committed = isolation_level == READ_COMMITTED
            readable_end = stable if committed else high_watermark
            aborted: list[tuple[int, int]] | None = [] if committed else None
            empty = ReadResult(_EMPTY, offset, high_watermark, self._log_start_offset, stable, None, aborted)
            if offset >= readable_end:
                return empty
            try:
                found = self._positions.find(self._segments, offset)
                if found is None:
                    return empty
                segment, position = found
                limit = position_of_end(segment, readable_end)
                end = segment.end_of_read(position, max_bytes, limit) if position < limit else position
                if end <= position and min_one and position < limit:
                    end = position + segment.batch_size(position)
                if end <= position:
                    return empty
                data = segment.view(position, end)
                next_offset = self._positions.offset_at(segment, end)
                file_range = segment.file_range(position, data) if end - position >= FILE_RANGE_MIN_BYTES else None
            except OSError as error:
                raise self._unreadable(error) from error
            if committed:
                aborted = [entry[:2] for entry in self._aborted(offset, next_offset)]
        return ReadResult(data, next_offset, high_watermark, self._log_start_offset, stable, file_range, aborted)

    def _aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that overlap with these offsets, by their markers."""
        at = max(bisect_right(self._segments, start, key=attrgetter("base_offset")) - 1, 0)
        return aborted_between((segment.aborted for segment in self._segments[at:]), start, end)

    def readable_size(self, offset: int, isolation_level: int) -> int:
        """The size in bytes of the batches that a consumer may see, from the one that holds `offset` on. Raises
        LogFailedError."""
        with self._lock:
            end = self.readable_end(isolation_level)
            try:
                found = self._positions.find(self._segments, offset) if offset < end else None
                if found is None:
                    return 0
                size = -found[1]
                for segment in self._segments[self._segments.index(found[0]) :]:
                    size += position_of_end(readable(segment, self._segments), end)
                    if segment.next_offset >= end:
                        break
            except OSError as error:
                raise self._unreadable(error) from error
            return size

    def offset_for_timestamp(self, timestamp: int, isolation_level: int = READ_UNCOMMITTED) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that the consumer may see and that is not earlier than `timestamp`
        (milliseconds); None if there is none. Raises CorruptRecordError, LogFailedError.

        Reading a batch may take a long time: call it from a different thread than append and read. It does not block
        them."""
        segment, position = None, 0
        while True:
            with self._lock:
                try:
                    if segment not in self._segments:
                        # The first round; or the segment searched was replaced or deleted meanwhile.
                        segment, position = self._segment_for_timestamp(timestamp, -1)
                    if segment is None:
                        return None
                    start_offset, end_offset = self._log_start_offset, self.readable_end(isolation_level)
                    end = position_of_end(readable(segment, self._segments), end_offset)
                    batch, stop = segment.batch_for_timestamp(position, end, timestamp, start_offset)
                    if batch is None and stop == position:
                        segment, stop = self._segment_for_timestamp(timestamp, segment.base_offset)
                        if segment is None:
                            return None
                except OSError as error:
                    raise self._unreadable(error) from error
            position = stop
            if batch is not None and (found := find_by_timestamp(batch, timestamp, start_offset)):
                return found

    def _segment_for_timestamp(self, timestamp: int, base_offset: int) -> tuple[Segment | None, int]:
        """The first segment after the one at `base_offset` that may have records from `timestamp` on, and where."""
        for segment in self._segments:
            if segment.base_offset > base_offset and segment.max_timestamp >= timestamp:
                readable(segment, self._segments)
                return segment, segment.position_before_time(timestamp, self._log_start_offset)
        return None, 0

    def max_timestamp(self, isolation_level: int = READ_UNCOMMITTED) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp, which is -1 if no record has one; None
        if the log is empty. As in Kafka it is also None if all timestamps are below -1."""
        latest = max((segment.max_timestamp for segment in self._segments), default=NO_TIMESTAMP)
        return self.offset_for_timestamp(latest, isolation_level)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The last epoch up to `epoch` with records, and the offset after them; -1 and -1 for an epoch that has not
        begun (KIP-320). Raises LogFailedError."""
        with self._lock:
            if epoch >= self.leader_epoch:
                return (epoch, self._log_end_offset) if epoch == self.leader_epoch else (-1, -1)
            try:
                last, end = end_of_epoch(self._segments, epoch)
            except OSError as error:
                raise self._unreadable(error) from error
            end = self._log_end_offset if end is None else max(end, self._log_start_offset)
            return epoch if last is None else last, end

    # ---------------------------------------------------------------------------------------------- durability

    @property
    def _syncs(self) -> bool:
        """Whether the policy makes any promise about power cuts."""
        return self.fsync is not FsyncPolicy.NEVER

    def flush(self) -> bool:
        """Syncs everything that was appended until now, and writes the indexes of sealed segments. Returns whether that
        moved the durable end. With FsyncPolicy.NEVER it only writes indexes.

        May run in a different thread than append and read. If a sync fails, `failed` is set; after any other failure
        the next call tries again."""
        with self._sync_lock:
            with self._lock:
                if self.failed is not None or self._closed or not self._segments:
                    return False
                active = self._segments[-1]
                target = self._log_end_offset
                sealed = tuple(self._sealed)
                new_files, self._new_files = self._new_files, False
            moved = False
            if self._syncs:
                if not self._sync_files((*sealed, active), new_files):
                    return False
                moved = target > self._durable
                self._durable = target
            self._save_sealed(sealed)
            return moved

    def _sync_files(self, written: tuple[Sealed | Segment, ...], new_files: bool) -> bool:
        try:
            for one in written:
                (one.segment if isinstance(one, Sealed) else one).sync()
            if new_files:
                self._files.sync_folder(self.directory)
                self._files.sync_folder(self.directory.parent)
        except OSError as error:
            if error.errno not in _TRANSIENT:
                self._fail("syncing", error)
                return False
            self._report("could not be synced", error)
            if new_files:  # never cleared here: an append in another thread may have just set it
                self._new_files = True
            if self._on_dirty is not None:
                self._on_dirty(self)
            return False
        return True

    def _save_sealed(self, sealed: tuple[Sealed, ...]) -> None:
        """Writes indexes and snapshots of segments that are synced. Without them a start after a crash reads through
        the whole segments."""
        try:
            for segment, offset, snapshot in sealed:
                segment.save_indexes(sync=self._syncs)
                put_whole(self._files, self.directory / segment_name(offset, ".snapshot"), snapshot, sync=False)
        except OSError as error:
            self._report("could not write the indexes of a segment", error)
            return
        with self._lock:
            for one in sealed:
                one.segment.close_file()
            self._sealed = [one for one in self._sealed if one not in sealed]

    def close(self) -> None:
        """Syncs (except with FsyncPolicy.NEVER), writes indexes and producer snapshot, and closes the files. Views that
        were given out stay valid. Raises LogFailedError if something could not be written."""
        self.flush()
        with self._sync_lock, self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._segments and self.failed is None:
                    if self._sealed or (self._durable < self._log_end_offset and self._syncs):
                        raise OSError("not everything could be written")
                    self._segments[-1].save_indexes(sync=self._syncs)
                    snapshot = self.directory / segment_name(self._log_end_offset, ".snapshot")
                    self.producers.save(snapshot, self._files)
            except OSError as error:
                raise self._fail("closing", error) from error
            finally:
                self._positions.clear()
                for segment in self._segments:
                    segment.close()
        if self.failed is not None:
            raise self.failed

    def abandon(self) -> None:
        """Closes the files without writing anything: the log stays as a crash would leave it."""
        with self._sync_lock, self._lock:
            self._closed = True
            self._positions.clear()
            for segment in self._segments:
                segment.close()

    # ------------------------------------------------------------------------------------------- retention, compaction

    def delete_records(self, before_offset: int) -> int:
        """Makes `before_offset` the log's start (-1 is the high watermark) and returns the start. The next
        `enforce_retention` removes the bytes. Raises LogError(OFFSET_OUT_OF_RANGE)."""
        with self._lock:
            offset = self.high_watermark if before_offset == -1 else before_offset
            if not 0 <= offset <= self.high_watermark:
                raise LogError(ErrorCode.OFFSET_OUT_OF_RANGE, f"cannot delete records before offset {before_offset}")
            self._log_start_offset = max(self._log_start_offset, offset)
            self.cleaned_to = max(self.cleaned_to, self._log_start_offset)
            return self._log_start_offset

    def enforce_retention(self, now: int) -> int:
        """Deletes the oldest segments: those before the log's start and, if the policy deletes, those beyond the
        retention by time or size. Returns how many. Forgets idempotent producers that were idle for too long.

        The active segment is deleted too when it is due; then the log is empty. Raises LogFailedError."""
        self.remove(doomed := self.retire(now), one_by_one=True)
        return len(doomed)

    def retire(self, now: int) -> list[Segment]:
        """The first half of `enforce_retention`: takes the segments out of the log. The caller makes the new start
        durable before the second half: otherwise a power cut can leave a hole. Raises LogFailedError."""
        with self._sync_lock, self._lock:
            if self.failed is not None or self._closed or not self._segments or self._exchanged:
                return []
            self.producers.expire(now, self.config.producer_id_expiration_ms)
            ends = self._log_start_offset, self.high_watermark, self._log_end_offset
            count = deletable(self._segments, self.config, now, *ends)
            if not count:
                return []
            try:
                if count == len(self._segments):
                    self._roll(now)
            except OSError as error:
                self._report("could not begin a new segment", error)
                return []
            doomed, self._segments = list(self._segments[:count]), self._segments[count:]
            self._log_start_offset = max(self._log_start_offset, self._segments[0].base_offset)
            self.cleaned_to = max(self.cleaned_to, self._log_start_offset)
            self._sealed = [one for one in self._sealed if one.segment not in doomed]
            self._positions.clear()
            return doomed

    def remove(self, doomed: list[Segment], *, one_by_one: bool = False) -> None:
        """The second half of `enforce_retention`: deletes the files. The next start deletes any remaining files. If the
        new start is not durable, `one_by_one`: each segment's removal is durable before the next begins."""
        try:
            for segment in doomed:
                if one_by_one and segment.aborted:
                    # If the index of aborted transactions went first, a start would find the offset index without it,
                    # and conclude that nothing was aborted.
                    self._files.unlink_if_exists(segment.index.path)
                    self._files.sync_folder(self.directory)
                segment.delete()
                self._files.unlink_if_exists(self.directory / segment_name(segment.base_offset, ".snapshot"))
                if one_by_one:
                    self._files.sync_folder(self.directory)
        except OSError as error:
            self._report("could not remove a segment", error)

    def is_cleanable(self, now: int) -> bool:
        """Whether compaction is due (`is_dirty`)."""
        if not self.config.cleanup_policy.compacts or self.failed is not None or self._closed:
            return False
        with self._lock:
            stable = self.last_stable_offset
            sealed = [segment for segment in self._segments[:-1] if segment.next_offset <= stable]
        return is_dirty(sealed, self.config, self.cleaned_to, now)

    def compact(self, now: int, breathe: Callable[[], None] = lambda: None) -> compaction.Statistics | None:
        """Rewrites the sealed segments before the last stable offset so that only the last record of each key is kept
        (and tombstones for `delete_retention_ms` after they are first encountered). Offsets do not change. None if
        there is nothing to do.

        This takes a long time: call it from a different thread than append, read and flush. `breathe` is called often;
        it may wait, and may raise CompactionStopped. Raises OSError, CorruptRecordError; the log is as good as
        before."""
        self._finish_exchanges()
        with self._lock:
            limit = min(self._durable if self._syncs else self._log_end_offset, self.last_stable_offset)
            sealed = [segment for segment in self._segments[:-1] if segment.next_offset <= limit]
            if self.failed is not None or self._closed or not sealed:
                return None
            producers = self.producers.last_records()
            aborted = self._aborted(sealed[0].base_offset, sealed[-1].next_offset)
            for segment in sealed:
                segment.map_whole()
        run = compaction.clean(
            sealed, self.config, now, self.cleaned_to, producers, aborted, files=self._files, breathe=breathe
        )
        if run is None:
            return None
        for replacement in run.replacements:
            if not self._swap(replacement):
                return None
        self.cleaned_to = max(self.cleaned_to, run.cleaned_to)
        return run.statistics

    def _swap(self, replacement: compaction.Replacement) -> bool:
        if not self._has(replacement.old):
            compaction.discard(replacement.new)
            return False
        compaction.commit(replacement)
        with self._lock:
            # The log was closed or deleted meanwhile: the next start finishes the exchange, or the folder is gone.
            if not self._has(replacement.old):
                replacement.new.close()
                return False
            at = self._segments.index(replacement.old[0])
            self._segments = (*self._segments[:at], replacement.new, *self._segments[at + len(replacement.old) :])
            self._sealed = [one for one in self._sealed if one.segment not in replacement.old]
            self._exchanged.append(replacement)
            self._positions.clear()
        self._finish_exchanges()
        return True

    def _has(self, segments: list[Segment]) -> bool:
        return not self._closed and all(segment in self._segments for segment in segments)

    def _finish_exchanges(self) -> None:
        while self._exchanged and not self._closed:
            compaction.finish(self._exchanged[0])
            del self._exchanged[0]


def _fenced(epoch: int, known: int) -> LogError:
    return LogError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is older than {known}")
