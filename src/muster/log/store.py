"""All logs of one data directory, laid out as Kafka lays out its own.

.lock                             held while a process has the directory open
.kafka_cleanshutdown              written by a clean `close`, removed by `open`
recovery-point-offset-checkpoint  up to where each log has been synced: after a crash nothing before it needs a check
log-start-offset-checkpoint       where each log begins, if not at a segment's beginning cleaner-offset-checkpoint
up to where each log has been compacted TOPIC-PARTITION/                  the segments of one partition; for other files
and folders see folder.py

Checkpoints name partitions. When a partition is created, they must not still hold an entry of a deleted one with the
same name: `make_room` removes it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from muster.errors import CorruptRecordError
from muster.log import folder as names
from muster.log.config import FsyncPolicy, LogConfig, LogFailedError
from muster.log.files import DISK, Files, put_whole, remove_tree
from muster.log.folder import FolderLock
from muster.log.partition import PartitionLog
from muster.log.segments.segment import Segment
from muster.model import TopicPartition

logger = logging.getLogger("muster.log")

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, CLEANED_OFFSETS)
_NAMES_SHOWN = 5

_REMOVED_AT_ONCE = 50
"""At most this many folders of deleted partitions are removed while the caller waits: each may take several
milliseconds."""


@dataclass(slots=True)
class FlushResult:
    """The result of a flush: the logs whose durable end moved, and those that failed (see `PartitionLog.failed`)."""

    advanced: list[PartitionLog] = field(default_factory=list)
    failed: list[PartitionLog] = field(default_factory=list)


class LogStore:
    """Every PartitionLog below one directory; made by `open`."""

    def __init__(self, root: Path, fsync: FsyncPolicy, defaults: LogConfig, lock: FolderLock, files: Files) -> None:
        self.root = root
        self.fsync = fsync
        self.defaults = defaults
        self.was_clean = True
        """Whether the process before this one shut down cleanly (or there was none)."""
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._dirty: set[PartitionLog] = set()
        self._uncleanable: set[PartitionLog] = set()
        """The logs whose compaction failed since the last housekeeping."""
        self._checkpoints: dict[str, dict[TopicPartition, int]] = {}
        """The contents of the checkpoint files."""
        self.after_housekeeping: Callable[[], None] = lambda: None
        """Called when space may have become free, and the checkpoints have been written."""
        self.offline: dict[TopicPartition, OSError] = {}
        """The partitions that could not be opened, and why. Their folders and checkpoints stay as they are."""
        self._checkpoint_lock = threading.Lock()
        self._doomed: list[Path] = []
        """Folders of deleted partitions that are still to be removed."""
        self._lock = lock
        self._files = files

    @classmethod
    def open(
        cls,
        root: Path | str,
        *,
        now: int,
        fsync: FsyncPolicy = FsyncPolicy.INTERVAL,
        defaults: LogConfig | None = None,
        configs: Callable[[str], LogConfig] | None = None,
        partitions: Collection[TopicPartition] | None = None,
        deleted: Collection[TopicPartition] = (),
        lock: FolderLock | None = None,
        files: Files = DISK,
    ) -> LogStore:
        """Opens the data directory, creating it if it is missing, and the logs in it; recovers them after a crash.

        `configs` returns a topic's settings if they are not the defaults; `now` is in milliseconds. `partitions` are
        those that exist, `deleted` those whose deletion a crash may have interrupted; the folder of any other partition
        is set aside. Without `partitions`, every folder with a partition's name is opened as a log. `lock` is the
        directory's lock, which the store owns from now on; without it the store takes the lock. A partition that cannot
        be opened is `offline`. Raises StoreLockedError; OSError if the disk fails."""
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        store = cls(root, FsyncPolicy(fsync), defaults or LogConfig(), lock or FolderLock.take(root), files)
        try:
            found = store._scan(partitions, deleted)
            store._load(found, now, configs or (lambda topic: store.defaults))
        except BaseException:
            store._lock.release()
            raise
        return store

    def _scan(
        self, partitions: Collection[TopicPartition] | None, deleted: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """The partitions to open. Finishes deletions, sets strays aside, leaves everything else alone."""
        known = None if partitions is None else set(partitions)
        doomed, found, foreign = set(deleted), [], []
        interrupted = []
        with os.scandir(self.root) as entries:
            things = sorted(entries, key=lambda entry: entry.name)
        for thing in things:
            name = thing.name
            partition = names.parse_partition(name)
            if names.set_aside_suffix(name) == names.DELETED and thing.is_dir(follow_symlinks=False):
                self._doomed.append(self.root / name)
            elif partition is None:
                foreign += [name] if not names.is_own_file(name) else []
            elif partition in doomed:
                interrupted.append(partition)
            elif known is not None and partition not in known:
                foreign += [name] if not self._set_stray_aside(self.root / name, partition) else []
            elif thing.is_dir():
                found.append(partition)
            elif known is not None:
                error = NotADirectoryError(
                    20, "the partition's folder should be here, but this is not a folder", thing.path
                )
                self.take_offline(partition, error)
        self.delete_all(interrupted)
        self._remove_doomed(_REMOVED_AT_ONCE)
        if foreign:
            shown = ", ".join(foreign[:_NAMES_SHOWN]) + (", ..." if len(foreign) > _NAMES_SHOWN else "")
            logger.info(
                "%s: ignored %d file(s) or folder(s) that are not this broker's: %s", self.root, len(foreign), shown
            )
        return sorted(found if known is None else known - self.offline.keys())

    def _set_stray_aside(self, path: Path, partition: TopicPartition) -> bool:
        """As Kafka does with an unknown partition, keep it under another name. Returns False if it may not be a
        partition of muster at all."""
        try:
            if not names.is_partition_folder(path):
                return False
            aside = self.root / names.set_aside_name(partition, names.STRAY)
            self._files.replace(path, aside)
        except OSError as error:
            logger.warning("%s belongs to no topic and could not be set aside: %s", path, error.strerror)
            return True
        logger.warning("%s belongs to no topic: set aside as %s; inspect it and remove it by hand", path, aside.name)
        return True

    def _load(self, found: list[TopicPartition], now: int, configs: Callable[[str], LogConfig]) -> None:
        marker = self.root / CLEAN_SHUTDOWN_FILE
        clean = marker.is_file()
        self.was_clean = clean or not found
        self._checkpoints = {name: read_checkpoint(self.root / name) for name in _CHECKPOINTS}
        of_topic = {topic: configs(topic) for topic in {partition.topic for partition in found}}
        for topic_partition in found:
            try:
                self._logs[topic_partition] = PartitionLog.open(
                    self.root / str(topic_partition),
                    topic_partition,
                    of_topic[topic_partition.topic],
                    now=now,
                    fsync=self.fsync,
                    clean=clean,
                    recovery_point=self._checkpoints[RECOVERY_POINTS].get(topic_partition, 0),
                    log_start_offset=self._checkpoints[LOG_START_OFFSETS].get(topic_partition, 0),
                    cleaned_to=self._checkpoints[CLEANED_OFFSETS].get(topic_partition, 0),
                    on_dirty=self._dirty.add,
                    files=self._files,
                )
            except OSError as error:
                self.take_offline(topic_partition, error)
        if clean:
            self._files.unlink(marker)
        if self.fsync is not FsyncPolicy.NEVER:
            # The mark of a clean shutdown must not reappear after later writes. And folders that a killed process has
            # made may not be durable yet.
            self._files.sync_folder(self.root)

    def take_offline(self, partition: TopicPartition, error: OSError) -> None:
        """Leaves a partition that could not be opened untouched until the next start."""
        self.offline[partition] = error
        logger.error("%s cannot be opened, and will not be served until the next start: %s", partition, error)

    # ---------------------------------------------------------------------------------------------- the logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """All logs, read-only."""
        return MappingProxyType(self._logs)

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def make_room(self, partitions: Iterable[TopicPartition]) -> None:
        """Call it before partitions are created: removes the remains of earlier ones with the same names. Raises
        FileExistsError if another file has the name of a partition's folder, OSError."""
        wanted = list(partitions)
        for partition in wanted:
            path = self.root / str(partition)
            if partition in self.offline:
                raise self.offline[partition]
            if partition not in self._logs and os.path.lexists(path) and not _is_empty_folder(path):
                raise FileExistsError(17, "the name of its folder is taken by something else", str(path))
        with self._checkpoint_lock:  # one that another thread is writing may still name a deleted partition
            stale = any(partition in offsets for offsets in self._checkpoints.values() for partition in wanted)
        if stale:
            self.write_checkpoints()

    def create(self, topic_partition: TopicPartition, config: LogConfig | None = None) -> PartitionLog:
        """The partition's log. A new log gets its folder now, and its files with the first append. An existing one gets
        the given settings."""
        log = self._logs.get(topic_partition)
        if log is None:
            directory = self.root / str(topic_partition)
            try:
                self._files.make_folders(directory)
            except OSError as error:
                logger.warning(
                    "%s could not be created; trying again with the first record: %s", directory, error.strerror
                )
            log = PartitionLog(
                directory,
                topic_partition,
                config or self.defaults,
                fsync=self.fsync,
                on_dirty=self._dirty.add,
                files=self._files,
            )
            self._logs[topic_partition] = log
        elif config is not None:
            log.config = config
        return log

    def delete_all(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Like `deleting`, without a break."""
        steps = self.deleting(partitions)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                left: set[TopicPartition] = end.value
                return left

    def deleting(self, partitions: Iterable[TopicPartition]) -> Generator[None, None, set[TopicPartition]]:
        """Deletes logs, and yields between them. Their folders are renamed first, so that they do not come back after a
        crash; then their files are removed. With many partitions, housekeeping or the next start removes the rest.
        Failures are logged. Returns the partitions whose folders still have their names, or may have them again after a
        power cut."""
        left, renamed = set(), {}
        for partition in partitions:
            log = self._logs.pop(partition, None)
            self.offline.pop(partition, None)
            if log is not None:
                self._dirty.discard(log)
                log.abandon()
            if os.path.lexists(self.root / str(partition)):
                aside = self._mark_deleted(partition)
                if aside is None:
                    left.add(partition)
                else:
                    renamed[partition] = aside
            yield
        if renamed and not self._sync_names():
            left.update(renamed)
        asides = list(renamed.values())
        for aside in asides[:_REMOVED_AT_ONCE]:
            self._remove(aside)
            yield
        self._doomed += asides[_REMOVED_AT_ONCE:]
        return left

    def set_aside(self, partitions: Iterable[TopicPartition], topic_id: bytes) -> list[str]:
        """Closes logs of a topic and keeps their folders under other names; durable when this returns. `open_aside`
        finds them again. Returns the new names. Raises OSError; a second call continues where this one ended."""
        asides = []
        for partition in partitions:
            log = self._logs.pop(partition, None)
            self.offline.pop(partition, None)
            if log is not None:
                self._dirty.discard(log)
                try:
                    log.close()
                except LogFailedError as error:
                    logger.error("%s: %s", partition, error)
            path = self.root / str(partition)
            if _is_empty_folder(path):
                self._files.rmdir(path)
            elif os.path.lexists(path):
                aside = names.set_aside_name(partition, names.STRAY, topic_id)
                if os.path.lexists(self.root / aside):
                    aside = names.set_aside_name(partition, names.STRAY)
                self._files.replace(path, self.root / aside)
                asides.append(aside)
        if self.fsync is not FsyncPolicy.NEVER:
            self._files.sync_folder(self.root)
        return asides

    def has_aside(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Whether a partition of the topic with this id was set aside."""
        return topic_partition not in self._logs and (self.root / _aside(topic_partition, topic_id)).is_dir()

    def open_aside(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, now: int) -> PartitionLog:
        """Opens a partition that was set aside, under its own name, and checks all of it. That takes a long time: it
        may run in a thread, and `put_back` then adds the log. Raises OSError; then it is set aside as before."""
        path, aside = self.root / str(topic_partition), self.root / _aside(topic_partition, topic_id)
        self._files.replace(aside, path)
        try:
            if self.fsync is not FsyncPolicy.NEVER:
                self._files.sync_folder(self.root)
            return PartitionLog.open(
                path,
                topic_partition,
                config,
                now=now,
                fsync=self.fsync,
                on_dirty=self._dirty.add,
                files=self._files,
            )
        except BaseException:
            self._files.replace(path, aside)
            raise

    def put_back(self, log: PartitionLog) -> None:
        """Adds a log that `open_aside` opened."""
        self._logs[log.topic_partition] = log

    def delete_aside(self, topic_ids: Collection[bytes]) -> None:
        """Removes everything that was set aside from these topics. Raises OSError."""
        ends = tuple(f".{topic_id.hex()}{names.STRAY}" for topic_id in topic_ids)
        for name in sorted(os.listdir(self.root)):
            if name.endswith(ends):
                doomed = self.root / f"{name.removesuffix(names.STRAY)}{names.DELETED}"
                self._files.replace(self.root / name, doomed)
                self._doomed.append(doomed)

    def _mark_deleted(self, partition: TopicPartition) -> Path | None:
        aside = self.root / names.set_aside_name(partition, names.DELETED)
        try:
            self._files.replace(self.root / str(partition), aside)
        except OSError as error:
            logger.warning("%s could not be deleted and is left for the next start: %s", partition, error.strerror)
            return None
        return aside

    def _sync_names(self) -> bool:
        try:
            self._files.sync_folder(self.root)
        except OSError as error:
            logger.warning("%s could not be synced: %s", self.root, error.strerror)
            return False
        return True

    def _remove_doomed(self, most: int, breathe: Callable[[], None] = lambda: None) -> None:
        for _ in range(min(most, len(self._doomed))):
            self._remove(self._doomed.pop())
            breathe()

    def _remove(self, aside: Path) -> None:
        try:
            remove_tree(self._files, aside)
        except OSError as error:
            logger.warning("%s could not be removed and is left for the next start: %s", aside, error)

    # ---------------------------------------------------------------------------------------------- durability

    def dirty(self) -> bool:
        """Whether a flush has something to do."""
        return bool(self._dirty)

    def flush(self) -> FlushResult:
        """Syncs every log that was appended to. May run in a thread of its own while another appends; the next flush
        syncs those appends. With FsyncPolicy.NEVER it does nothing."""
        result = FlushResult()
        if self.fsync is FsyncPolicy.NEVER:
            self._dirty.clear()
            return result
        for log in self._dirty.copy():
            # Taken out of the set first, then synced: an append in between puts the log in again.
            self._dirty.discard(log)
            if log.flush():
                result.advanced.append(log)
            elif log.failed is not None:
                result.failed.append(log)
        return result

    def housekeeping(self, now: int, breathe: Callable[[], None] = lambda: None) -> None:
        """Removes deleted partitions, enforces retention, compacts where it is due, writes checkpoints. Call it every
        few minutes, in a thread of its own: it may take a long time. `breathe` is called often meanwhile; it may wait,
        and may raise CompactionStopped.

        Failures of one log are logged. Raises OSError if the checkpoints cannot be written."""
        self._remove_doomed(len(self._doomed), breathe)
        if self.fsync is FsyncPolicy.NEVER:
            self._for_each(lambda log: log.flush())  # writes indexes
        retired: list[tuple[PartitionLog, list[Segment]]] = []
        self._for_each(lambda log: retired.append((log, log.retire(now))))
        # The new log starts are durable before files are removed: if a power cut brings some files back, it leaves no
        # hole.
        try:
            self.write_checkpoints()
            one_by_one = False
        except OSError:  # the disk may be full: removing files matters even more then; if it lasts, it is raised below
            one_by_one = True
        for log, doomed in retired:
            log.remove(doomed, one_by_one=one_by_one)
        self._uncleanable.clear()
        self.clean(now, breathe)
        self.write_checkpoints()
        self.after_housekeeping()

    def clean(self, now: int, breathe: Callable[[], None] = lambda: None) -> None:
        """Compacts where it is due. This part of housekeeping may be called more often: a log for which it failed waits
        for the next housekeeping. Raises OSError if the checkpoints cannot be written."""
        due = [log for log in list(self._logs.values()) if log not in self._uncleanable and log.is_cleanable(now)]
        self._uncleanable.update(self._for_each(lambda log: log.compact(now, breathe), due))
        if due:
            self.write_checkpoints()

    def _for_each(
        self, work: Callable[[PartitionLog], object], logs: Iterable[PartitionLog] | None = None
    ) -> list[PartitionLog]:
        """Calls `work` with each of these logs, or with all; returns those for which it failed."""
        failed = []
        for log in list(self._logs.values()) if logs is None else logs:
            try:
                work(log)
            except (LogFailedError, CorruptRecordError, OSError) as error:
                logger.error("%s: %s", log.topic_partition, error)
                failed.append(log)
        return failed

    def write_checkpoints(self) -> None:
        """Writes how far each log is synced, where it begins, and how far it is compacted. Raises OSError."""
        with self._checkpoint_lock:
            logs = [log for log in list(self._logs.values()) if log.log_end_offset]
            synced = logs if self.fsync is not FsyncPolicy.NEVER else []
            points = {log.topic_partition: log.recovery_point for log in synced}
            starts = {log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset}
            cleaned = {log.topic_partition: log.cleaned_to for log in logs if log.cleaned_to}
            changed = [
                self._put_checkpoint(name, offsets | self._offline_offsets(name))
                for name, offsets in zip(_CHECKPOINTS, (points, starts, cleaned), strict=True)
            ]
            if any(changed):
                self._files.sync_folder(self.root)

    def _offline_offsets(self, name: str) -> dict[TopicPartition, int]:
        offsets = self._checkpoints.get(name, {})
        return {partition: offsets[partition] for partition in list(self.offline) if partition in offsets}

    def checkpoint_new(self, synced: Iterable[PartitionLog]) -> None:
        """Writes the checkpoints if they lack one of these logs. Without its recovery point a start after a crash would
        mistake a log whose files are gone for one that was never written. Raises OSError."""
        known = self._checkpoints.get(RECOVERY_POINTS, {})
        if any(log.topic_partition not in known for log in synced):
            self.write_checkpoints()

    def _put_checkpoint(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Kafka's OffsetCheckpointFile: version, number of lines, then one line per partition: topic, partition and
        offset. Returns whether it had to be written."""
        path = self.root / name
        if self._checkpoints.get(name) == offsets and path.exists():
            return False
        lines = (f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items())
        put_whole(self._files, path, f"0\n{len(offsets)}\n{''.join(lines)}".encode(), sync=True)
        self._checkpoints[name] = offsets
        return True

    def close(self, *, clean: bool = True) -> None:
        """Closes all logs and releases the directory. With `clean` they are synced and marked, so that the next start
        need not check them; without it, everything stays as a crash would leave it. If a log fails, the shutdown is not
        clean."""
        if not self._lock.held:
            return
        try:
            whole = clean and not self.offline  # a log that cannot be opened must be checked when it can
            for log in self._logs.values():
                if not clean:
                    log.abandon()
                    continue
                try:
                    log.close()
                except LogFailedError as error:
                    logger.error("%s: %s", log.topic_partition, error)
                    whole = False
            if whole:
                self.write_checkpoints()
                # Its existence is the mark; the logs are durable already.
                put_whole(self._files, self.root / CLEAN_SHUTDOWN_FILE, b'{"version":0}', sync=False)
                self._files.sync_folder(self.root)
        except OSError as error:
            logger.error("%s: the next start will check everything: %s", self.root, error)
        finally:
            self._lock.release()


def _aside(topic_partition: TopicPartition, topic_id: bytes) -> str:
    return names.set_aside_name(topic_partition, names.STRAY, topic_id)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not os.listdir(path)


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """The file's contents; empty if it is missing or damaged, which costs time but no data."""
    if not os.path.lexists(path):
        return {}
    try:
        if not path.is_file():  # reading a pipe would wait forever
            raise ValueError("not a file")
        text = path.read_text()
        if not text.endswith("\n"):
            raise ValueError("its end is missing")
        version, count, *lines = text.splitlines()
        fields = [line.split() for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in fields}
        if version != "0" or int(count) != len(offsets):
            raise ValueError("its number of lines is wrong")
    except (ValueError, OSError) as error:
        logger.warning("%s: ignored: %s", path, error)
        return {}
    return offsets
