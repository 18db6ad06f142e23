"""All logs of one data directory, laid out as Kafka lays out its own.

.lock                             held while a process has the directory open
.kafka_cleanshutdown              written by a clean `close`, removed by `open`
recovery-point-offset-checkpoint  up to where each log has been synced: before it nothing need be checked after a crash
log-start-offset-checkpoint       where each log begins, if not at a segment's beginning
cleaner-offset-checkpoint         up to where each log has been compacted
TOPIC-PARTITION/                  the segments of one partition
TOPIC-PARTITION.HEX-delete/       a partition that is being deleted; what a crash leaves of it goes at the next start
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from muster.errors import CorruptRecordError, MusterError
from muster.log.config import FsyncPolicy, LogConfig, LogFailedError
from muster.log.partition import PartitionLog
from muster.log.producer_state import write_atomically
from muster.model import TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
_DELETED = "-delete"


class StoreLockedError(MusterError):
    """Another process has the data directory open."""


@dataclass(slots=True)
class FlushResult:
    """What a flush did: the logs whose durable end moved, and those that failed (see `PartitionLog.failed`)."""

    advanced: list[PartitionLog] = field(default_factory=list)
    failed: list[PartitionLog] = field(default_factory=list)


class LogStore:
    """Every PartitionLog below one directory. `open` is the way in."""

    def __init__(self, root: Path, fsync: FsyncPolicy, defaults: LogConfig, lock_fd: int) -> None:
        self.root = root
        self.fsync = fsync
        self.defaults = defaults
        self.was_clean = True
        """Whether the process before this one shut down cleanly (or there was none)."""
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._dirty: set[PartitionLog] = set()
        self._lock_fd = lock_fd

    @classmethod
    def open(
        cls,
        root: Path | str,
        *,
        now: int,
        fsync: FsyncPolicy = FsyncPolicy.INTERVAL,
        defaults: LogConfig | None = None,
        configs: Callable[[str], LogConfig] | None = None,
    ) -> LogStore:
        """Opens the data directory, made if there is none, and all logs in it; recovers them after a crash.

        `configs` gives a topic's settings where they are not the defaults; `now` is in milliseconds. Raises
        StoreLockedError, and OSError if the disk fails."""
        root = Path(root)
        root.mkdir(parents=True, exist_ok=True)
        store = cls(root, FsyncPolicy(fsync), defaults or LogConfig(), _lock(root))
        try:
            store._load(now, configs or (lambda topic: store.defaults))
        except BaseException:
            os.close(store._lock_fd)
            raise
        return store

    def _load(self, now: int, configs: Callable[[str], LogConfig]) -> None:
        partitions = []
        for entry in os.scandir(self.root):
            if not entry.is_dir():
                continue
            if entry.name.endswith(_DELETED):
                shutil.rmtree(entry.path)
            elif (topic_partition := _parse_folder(entry.name)) is not None:
                partitions.append(topic_partition)
        marker = self.root / CLEAN_SHUTDOWN_FILE
        clean = marker.exists()
        self.was_clean = clean or not partitions
        recovery_points = _read_checkpoint(self.root / RECOVERY_POINTS)
        starts = _read_checkpoint(self.root / LOG_START_OFFSETS)
        cleaned = _read_checkpoint(self.root / CLEANED_OFFSETS)
        for topic_partition in sorted(partitions):
            self._logs[topic_partition] = PartitionLog.open(
                self.root / str(topic_partition),
                topic_partition,
                configs(topic_partition.topic),
                now=now,
                fsync=self.fsync,
                clean=clean,
                recovery_point=recovery_points.get(topic_partition, 0),
                log_start_offset=starts.get(topic_partition, 0),
                cleaned_to=cleaned.get(topic_partition, 0),
                on_dirty=self._dirty.add,
            )
        marker.unlink(missing_ok=True)

    # ---------------------------------------------------------------------------------------------- the logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """All logs, to look at."""
        return MappingProxyType(self._logs)

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def create(self, topic_partition: TopicPartition, config: LogConfig | None = None) -> PartitionLog:
        """The partition's log; a new one gets its folder, and its files with the first append. An old one gets the
        settings that are given. Raises OSError."""
        log = self._logs.get(topic_partition)
        if log is None:
            directory = self.root / str(topic_partition)
            directory.mkdir(exist_ok=True)
            log = PartitionLog(
                directory, topic_partition, config or self.defaults, fsync=self.fsync, on_dirty=self._dirty.add
            )
            self._logs[topic_partition] = log
        elif config is not None:
            log.config = config
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Deletes the log: at once by name, so that it does not come back after a crash, then its files. Nothing
        happens if there is none. Raises OSError."""
        log = self._logs.pop(topic_partition, None)
        if log is None:
            return
        self._dirty.discard(log)
        doomed = self.root / f"{topic_partition}.{uuid.uuid4().hex}{_DELETED}"
        log.abandon()
        os.replace(log.directory, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------- durability

    def dirty(self) -> bool:
        """Whether a flush has something to do."""
        return bool(self._dirty)

    def flush(self) -> FlushResult:
        """Syncs every log that was appended to. May run in a thread of its own while others append; what they append
        meanwhile is for the next time. With FsyncPolicy.NEVER it does nothing."""
        result = FlushResult()
        if self.fsync is FsyncPolicy.NEVER:
            self._dirty.clear()
            return result
        for log in self._dirty.copy():
            # First out of the set, then synced: an append in between puts the log in again.
            self._dirty.discard(log)
            if log.flush():
                result.advanced.append(log)
            elif log.failed is not None:
                result.failed.append(log)
        return result

    def housekeeping(self, now: int) -> None:
        """Retention, compaction where it is due, and checkpoints. Call it every few minutes, in the thread that
        flushes.

        A log that fails is marked so and left alone. Raises OSError if the checkpoints cannot be written."""
        for log in list(self._logs.values()):
            try:
                log.enforce_retention(now)
                if log.is_cleanable():
                    log.compact(now)
            except (LogFailedError, CorruptRecordError) as error:
                logger.error("%s: %s", log.topic_partition, error)
        self.write_checkpoints()

    def write_checkpoints(self) -> None:
        """Notes how far each log is synced, begins and is compacted. Raises OSError."""
        logs = [log for log in list(self._logs.values()) if log.log_end_offset]
        points = {log.topic_partition: log.flushed_offset for log in logs}
        _write_checkpoint(self.root / RECOVERY_POINTS, points if self.fsync is not FsyncPolicy.NEVER else {})
        _write_checkpoint(
            self.root / LOG_START_OFFSETS,
            {log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset},
        )
        _write_checkpoint(
            self.root / CLEANED_OFFSETS, {log.topic_partition: log.cleaned_to for log in logs if log.cleaned_to}
        )

    def close(self, *, clean: bool = True) -> None:
        """Closes all logs and lets go of the directory. With `clean` they are synced and marked, so that the next start
        need not check them; without, all stays as a crash would leave it. Logs that fail make it not clean."""
        if self._lock_fd < 0:
            return
        try:
            for log in self._logs.values():
                if not clean:
                    log.abandon()
                    continue
                try:
                    log.close()
                except LogFailedError as error:
                    logger.error("%s: %s", log.topic_partition, error)
                    clean = False
            if clean:
                self.write_checkpoints()
                write_atomically(self.root / CLEAN_SHUTDOWN_FILE, json.dumps({"version": 0}).encode())
        finally:
            lock_fd, self._lock_fd = self._lock_fd, -1
            os.close(lock_fd)


def _lock(root: Path) -> int:
    fd = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        whose = f" (process {owner})" if owner else ""
        raise StoreLockedError(
            f"the data directory {root} is open in another process{whose}: stop that one or use another directory"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _parse_folder(name: str) -> TopicPartition | None:
    topic, dash, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition)) if dash and topic and partition.isdecimal() else None


def _write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Kafka's OffsetCheckpointFile: version, number of lines, then topic, partition and offset a line."""
    lines: Iterable[str] = (f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items())
    write_atomically(path, f"0\n{len(offsets)}\n{''.join(lines)}".encode())


def _read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """What the file says; nothing if it is missing or damaged, which costs time but no data."""
    try:
        version, count, *lines = path.read_text().splitlines()
        fields = [line.split() for line in lines]
        offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in fields}
        if version != "0" or int(count) != len(offsets):
            raise ValueError("the number of lines is not what it says")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("%s: ignored: %s", path, error)
        return {}
    return offsets
