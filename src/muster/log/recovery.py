"""Loads segments from their files: after a clean shutdown by their indexes, after a crash by reading every batch.

What a crash can leave, and how it is repaired:
- a torn or corrupt batch: the segment is cut after the last intact one before it (see `_Recovery`);
- indexes that are missing, old or cut off: rebuilt while the batches are read (the index of aborted transactions while
  the producers' state is rebuilt);
- `.cleaned` files of a compaction that did not finish: deleted; the old segments are still there;
- a `.swap` file: compaction was done and only the exchange was interrupted; it is finished (see compaction.py);
- a producer snapshot that is torn, or may include batches that are gone: removed; the state is built from an older
  snapshot and the log;
- segments before the log's start, which retention was removing: removed.

Two rules always hold. No offset is reused: if the log is known to have been longer, it continues after the old end, and
the gap is reported. And no intact batch is deleted: bytes that are cut off before intact batches are kept as
`.damaged`, and whole segments after a damaged one stay in the log.

All changes made here are durable before the log is open: otherwise a later power cut could bring removed batches back
among newer ones.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import CorruptRecordError
from muster.log import compaction
from muster.log.config import MAX_OFFSETS_OF_A_SEGMENT, LogConfig
from muster.log.files import DISK, Files
from muster.log.producers.producer_state import NONE_OPEN, PartitionProducers
from muster.log.segments.aborted_index import entry_of
from muster.log.segments.segment import Segment, segment_name
from muster.protocol.records.control_records import read_marker
from muster.protocol.records.producer_snapshots import CorruptSnapshotError
from muster.protocol.records.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_batch, read_header

logger = logging.getLogger("muster.log")

_CHUNK = 4 * 1024 * 1024
_NAME = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot|log\.cleaned|log\.swap|log\.deleted)\Z")
_LOG = re.compile(r"[0-9]{20}\.log\Z")
_LEFTOVER = re.compile(r"[0-9]{20}\.[a-z.]+\.(tmp|deleted)\Z")
_MAGIC_AT = 16
_MAGIC = b"\x02"


@dataclass(slots=True)
class Loaded:
    """The contents of a partition's folder. `end_offset` is the next record's offset; it may be after the end of the
    last segment."""

    segments: list[Segment] = field(default_factory=list)
    producers: PartitionProducers = field(default_factory=PartitionProducers)
    end_offset: int = 0


def load(
    directory: Path,
    config: LogConfig,
    *,
    now: int,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    cleaned_to: int = 0,
    sync: bool,
    files: Files = DISK,
    trust: bool = True,
) -> Loaded:
    """Segments and producers of the partition in `directory`, which need not exist.

    Segments that end before `recovery_point` were synced before the crash and are trusted as after a clean shutdown,
    unless a batch turns out to be damaged: then all are read through, as they are without `trust`.
    With `sync` the others are synced now: a killed process may have left them only in the system's memory. Raises
    OSError."""
    recovery = _Recovery(directory, config, now, sync, files, cleaned_to)
    names = recovery.names()
    if not names and not recovery_point and not log_start_offset:
        return recovery.loaded  # never written: of a hundred thousand partitions, perhaps most
    if names:
        recovery.finish_swaps(names)
    bases = recovery.bases(log_start_offset)
    known_end = max(recovery_point, log_start_offset)
    for at, base in enumerate(bases):
        end = bases[at + 1] if at + 1 < len(bases) else None
        trusted = trust and (clean or (end is not None and end <= recovery_point))
        recovery.take(base, end, recovery_point, trusted=trusted)
    recovery.report_gaps(known_end, cleaned_to, clean=clean)
    recovery.extend_to(known_end)
    recovery.remove_leftovers()
    try:
        recovery.load_producers()
        recovery.save_indexes()
    except CorruptRecordError as error:
        if not trust:
            raise
        logger.error("%s: %s: reading all of its segments", directory, error)
        known = {"recovery_point": recovery_point, "log_start_offset": log_start_offset, "cleaned_to": cleaned_to}
        return load(directory, config, now=now, clean=clean, **known, sync=sync, files=files, trust=False)
    if bases and sync and not clean:
        recovery.changed = True  # names that the killed process has made may not be durable
    if recovery.changed:
        files.sync_folder(directory)
    return recovery.loaded


class _Recovery:
    """The recovery of one folder. A segment with a damaged batch is cut after the last intact batch before it."""

    def __init__(self, directory: Path, config: LogConfig, now: int, sync: bool, files: Files, cleaned_to: int) -> None:
        self.loaded = Loaded()
        self.changed = False
        self._directory = directory
        self._config = config
        self._now = now
        self._sync = sync
        self._files = files
        self._cleaned_to = cleaned_to
        self._first_loss: int | None = None
        """The first offset that is known to have been lost."""
        self._unsaved: list[Segment] = []
        """Segments whose rebuilt indexes must be saved."""
        self._unmarked: list[Segment] = []
        """Segments with control batches whose index of aborted transactions must be rebuilt."""
        self._without_producers: set[Segment] = set()
        """Segments that were read through, and contain no batch of a producer."""
        self._seen_end = 0
        """The offset after the last intact batch that was found, even if that batch is not in the log."""

    def names(self) -> list[str]:
        """The names of the log's files. Everything else in the folder is left alone."""
        try:
            with os.scandir(self._directory) as entries:
                found = sorted((entry.name, entry.is_file()) for entry in entries)
        except FileNotFoundError:
            return []
        for name, is_file in found:
            if not is_file and _LOG.match(name):
                raise OSError(
                    errno.EINVAL, "a segment should be here, but this is not a file", str(self._directory / name)
                )
        return [name for name, is_file in found if is_file and (_NAME.match(name) or _LEFTOVER.match(name))]

    def finish_swaps(self, names: list[str]) -> None:
        """See compaction.py."""
        if any(name.endswith((".cleaned", ".swap")) for name in names):
            compaction.finish_swaps(self._files, self._directory, names)
            self.changed = True

    def bases(self, log_start_offset: int) -> list[int]:
        """The first offsets of the segments that belong to the log; removes those before its start."""
        bases = [_offset(name) for name in self.names() if name.endswith(".log")]
        while len(bases) > 1 and bases[1] <= log_start_offset:
            Segment(self._directory, bases.pop(0), self._now, files=self._files).delete()
            self.changed = True
        return bases

    # ------------------------------------------------------------------------------------------- segments

    def take(self, base: int, end: int | None, recovery_point: int, *, trusted: bool) -> None:
        """Adds the segment that begins at `base` and should end before `end`, where the next one begins."""
        segment = Segment(self._directory, base, self._now, files=self._files)
        segment.created_ms = int(segment.path.stat().st_mtime * 1000)
        if base < self._seen_end:
            self._set_aside(segment, f"its offsets up to {self._seen_end - 1} are also in the segment before it")
            return
        if not (trusted and _load(segment, end)):
            self._read_through(segment, end, recovery_point)
        self.loaded.segments.append(segment)
        self._seen_end = max(self._seen_end, segment.next_offset)

    def _read_through(self, segment: Segment, end: int | None, recovery_point: int) -> None:
        """Reads the whole segment, builds its indexes, and cuts it where a batch is damaged."""
        limit = segment.base_offset + MAX_OFFSETS_OF_A_SEGMENT if end is None else end
        segment.reset()
        segment.open_for_append()
        marked = produced = False
        try:
            fd = segment.fileno()
            if self._sync:
                # The earlier process may have failed to write data to disk: the system may report the error now, or
                # never. After an error its memory may differ from the disk, so the batches are read from the disk
                # itself.
                self._files.sync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(fd).st_size
            try:
                for header in read_checked(fd, size):
                    self._check_offsets(header, segment.next_offset, limit)
                    segment.note(header, self._config.index_interval_bytes)
                    if header.producer_id >= 0:
                        produced = True
                        marked = marked or header.is_control
            except CorruptRecordError as error:
                self._cut(segment, fd, size, str(error), synced=segment.next_offset < recovery_point)
        finally:
            segment.close_file()
        if marked:
            self._unmarked.append(segment)
        if not produced:
            self._without_producers.add(segment)
        if end is not None:
            segment.seal()
            self._unsaved.append(segment)
        elif segment.aborted.path.exists():  # written at the last shutdown: it may list markers that were lost
            self._files.unlink_if_exists(segment.aborted.path)
            self.changed = True

    def _check_offsets(self, header: BatchHeader, expected: int, limit: int) -> None:
        """Check a batch's offsets, which its CRC does not cover. Only compaction leaves gaps between batches; it may
        have been at work before the topic was given another policy."""
        gap = header.base_offset != expected and not self._config.cleanup_policy.compacts
        gap = gap and header.base_offset > self._cleaned_to
        if gap or header.base_offset < expected or header.next_offset > limit:
            raise CorruptRecordError(f"a batch has offset {header.base_offset} instead of {expected}")

    def _cut(self, segment: Segment, fd: int, size: int, problem: str, *, synced: bool) -> None:
        lost = segment.next_offset
        good = list(_good_batches(fd, segment.size, size, segment.next_offset))
        logger.warning("%s: cut from %d to %d bytes: %s", segment.path, size, segment.size, problem)
        if good or synced:
            kept = segment.path.with_name(f"{segment.path.name}.{segment.size}.damaged")
            self._copy_tail(fd, segment.size, size, kept)
            whole = f"{len(good)} whole batches" if good else "no whole batch"
            logger.error("%s: the truncated part, with %s in it, is kept as %s", segment.path, whole, kept.name)
        if good:
            self._seen_end = max(self._seen_end, good[-1].next_offset)
        self._lose(lost)
        self._files.truncate(fd, segment.size)
        if self._sync:
            self._files.sync(fd)
        self.changed = True

    def _copy_tail(self, fd: int, start: int, end: int, target: Path) -> None:
        out = self._files.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            position = start
            while position < end and (data := os.pread(fd, min(_CHUNK, end - position), position)):
                written = 0
                while written < len(data):
                    written += self._files.pwrite(out, data[written:], position - start + written)
                position += len(data)
            self._files.sync(out)
        finally:
            self._files.close(out)
        self._files.sync_folder(self._directory)

    def _set_aside(self, segment: Segment, why: str) -> None:
        aside = segment.path.with_name(segment.path.name + ".damaged")
        logger.error("%s: set aside as %s: %s", segment.path, aside.name, why)
        self._files.replace(segment.path, aside)
        self.changed = True

    def _lose(self, offset: int) -> None:
        self._first_loss = offset if self._first_loss is None else min(self._first_loss, offset)

    # ------------------------------------------------------------------------------------------- the whole

    def report_gaps(self, known_end: int, cleaned_to: int, *, clean: bool) -> None:
        """Logs the offsets that are missing for a reason other than compaction."""
        expected = None
        for segment in self.loaded.segments:
            if expected is not None and expected < segment.base_offset and segment.base_offset > cleaned_to:
                if not self._config.cleanup_policy.compacts:
                    self._report(max(expected, cleaned_to), segment.base_offset)
                if not clean:
                    self._lose(max(expected, cleaned_to))
            expected = segment.next_offset
        end = self.loaded.segments[-1].next_offset if self.loaded.segments else 0
        if end < max(known_end, self._seen_end):
            self._report(end, max(known_end, self._seen_end))
            self._lose(end)

    def _report(self, start: int, end: int) -> None:
        logger.error(
            "%s: offsets %d to %d are missing: their files are missing or damaged", self._directory, start, end - 1
        )

    def extend_to(self, known_end: int) -> None:
        """Begins a new segment at the old end if the log is known to have been longer."""
        segments = self.loaded.segments
        end = max(known_end, self._seen_end)
        if end > (segments[-1].next_offset if segments else 0):
            if segments:
                segments[-1].seal()
                self._unsaved.append(segments[-1])
            else:
                self._files.make_folders(self._directory)
            new = Segment(self._directory, end, self._now, files=self._files)
            new.create()
            segments.append(new)
            self.changed = True
        self.loaded.end_offset = end

    def remove_leftovers(self) -> None:
        """Removes indexes without a segment, and files that were being written when the process died."""
        bases = {segment.base_offset for segment in self.loaded.segments}
        for name in self.names():
            stray = name.endswith((".index", ".timeindex", ".txnindex")) and _offset(name) not in bases
            if stray or _LEFTOVER.match(name) or name.endswith(".log.deleted"):
                self._files.unlink_if_exists(self._directory / name)
                self.changed = True

    def load_producers(self) -> None:
        """Loads producers from the newest intact snapshot and the log after it. Removes the other snapshots, except
        those at the beginning of a segment, which the next recovery may use."""
        end = self.loaded.end_offset if self._first_loss is None else self._first_loss
        bases = {segment.base_offset for segment in self.loaded.segments}
        start: int | None = None
        for offset in self._snapshots():
            path = self._directory / segment_name(offset, ".snapshot")
            if offset <= end and start is None and self._read_snapshot(path):
                start = offset
            elif offset > end or start is None or offset not in bases:
                self._files.unlink(path)
                self.changed = True
        if self._unmarked and self._unmarked[0].base_offset < (start or 0):
            self._rebuild_aborted_indexes()
        self._replay(self.loaded.producers, start or 0)
        self._drop_cleaned()

    def _snapshots(self) -> list[int]:
        return sorted((_offset(name) for name in self.names() if name.endswith(".snapshot")), reverse=True)

    def _rebuild_aborted_indexes(self) -> None:
        """Builds indexes of aborted transactions from a snapshot that is older than the newest one."""
        newest = self.loaded.producers
        self.loaded.producers, start = PartitionProducers(), 0
        for offset in self._snapshots():
            path = self._directory / segment_name(offset, ".snapshot")
            if offset <= self._unmarked[0].base_offset and self._read_snapshot(path):
                start = offset
                break
        self._replay(self.loaded.producers, start)
        self.loaded.producers = newest

    def _replay(self, producers: PartitionProducers, start: int) -> None:
        """Applies the log from `start` on to the producers, and adds aborted transactions to indexes being rebuilt."""
        unmarked, self._unmarked = self._unmarked, []
        for segment in self.loaded.segments:
            if segment.next_offset <= start or not segment.size or segment in self._without_producers:
                continue
            for position, header in segment.headers(segment.position_of(start)):
                if header.producer_id < 0:
                    continue
                marker = None
                if header.is_control:
                    batch = segment.view(position, position + header.size)
                    marker = read_marker(batch, 0, header)
                completed = producers.note(header, marker)
                if completed is not None and completed.aborted and segment in unmarked:
                    segment.aborted.append(entry_of(completed))

    def _drop_cleaned(self) -> None:
        """Closes transactions that an old snapshot lists as open although compaction has removed their first batch.
        Compaction does so only after the transaction has ended, and may have removed the marker as well."""
        producers = self.loaded.producers
        for first_offset, producer_id in list(producers.transactions.open.items()):
            if self._was_cleaned(first_offset) and not self._begins(first_offset, producer_id):
                del producers.transactions.open[first_offset]
                producers.producers[producer_id].first_offset = NONE_OPEN

    def _was_cleaned(self, offset: int) -> bool:
        """Whether compaction may have removed batches at this point. Before the first segment, retention did."""
        compacted = self._config.cleanup_policy.compacts or offset < self._cleaned_to
        return compacted and bool(self.loaded.segments) and offset >= self.loaded.segments[0].base_offset

    def _begins(self, offset: int, producer_id: int) -> bool:
        for segment in self.loaded.segments:
            position = segment.position_of(offset)
            if position < segment.size:
                header = read_header(segment.view(position, position + HEADER_SIZE))
                return header.base_offset == offset and header.producer_id == producer_id
        return False

    def save_indexes(self) -> None:
        """Writes the rebuilt indexes."""
        for segment in self._unsaved:
            segment.save_indexes(sync=self._sync)
            self.changed = True

    def _read_snapshot(self, path: Path) -> bool:
        try:
            self.loaded.producers = PartitionProducers.decode(path.read_bytes())
        except (CorruptSnapshotError, OSError) as error:
            logger.warning("%s: %s", path, error)
            return False
        return True


def _load(segment: Segment, end: int | None) -> bool:
    try:
        return segment.load(end)
    except CorruptRecordError:
        return False


def _offset(name: str) -> int:
    return int(name[:20])


def read_checked(fd: int, size: int) -> Iterator[BatchHeader]:
    """The headers of a segment's batches, each checked with its CRC. Raises CorruptRecordError at the first damaged
    batch, or if `size` is in the middle of one; OSError."""
    window, start, position = memoryview(b""), 0, 0
    while position < size:
        if position + HEADER_SIZE > start + len(window):
            window, start = memoryview(os.pread(fd, _CHUNK, position)), position
        header = read_header(window, position - start)
        end = position + header.batch_length + LOG_OVERHEAD
        if end > size:
            raise CorruptRecordError(f"a batch of {header.size} bytes is truncated: {size - position} are present")
        if end > start + len(window):
            window, start = memoryview(os.pread(fd, max(_CHUNK, header.size), position)), position
        check_batch(window, position - start, header)
        yield header
        position = end


def _good_batches(fd: int, position: int, size: int, next_offset: int) -> Iterator[BatchHeader]:
    """Whole batches somewhere after the damage at `position`. If there are any, the damage is not a torn end."""
    position += 1
    while position + HEADER_SIZE <= size:
        chunk = os.pread(fd, _CHUNK, position)
        at = chunk.find(_MAGIC, _MAGIC_AT)
        while at >= 0:
            base_offset = int.from_bytes(chunk[at - _MAGIC_AT : at - _MAGIC_AT + 8], "big")
            if next_offset <= base_offset < next_offset + MAX_OFFSETS_OF_A_SEGMENT:
                header = _whole_batch(fd, position + at - _MAGIC_AT, size)
                if header is not None:
                    break
            at = chunk.find(_MAGIC, at + 1)
        if at < 0:
            position += max(len(chunk) - _MAGIC_AT, 1)
            continue
        assert header is not None
        yield header
        next_offset = header.next_offset
        position += at - _MAGIC_AT + header.size


def _whole_batch(fd: int, position: int, size: int) -> BatchHeader | None:
    try:
        header = read_header(os.pread(fd, HEADER_SIZE, position))
        if position + header.size > size:
            return None
        check_batch(os.pread(fd, header.size, position), 0, header)
    except CorruptRecordError:
        return None
    return header
