"""A life of a store for the tests of power cuts: what it does, what it promises when, and what must hold for the folder
that a cut leaves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.log import CleanupPolicy, Files, FsyncPolicy, LogConfig, LogError, LogStore, PartitionLog
from muster.log.store import CLEANED_OFFSETS, RECOVERY_POINTS, read_checkpoint
from muster.model import TopicPartition
from muster.protocol.records.record_batch import read_header
from tests.support.logs import NOW, Row, batch, read_all, read_headers
from tests.support.power import RecordingDisk, Unsynced

PLAIN = TopicPartition("plain", 0)
KEYED = TopicPartition("keyed", 0)
CONFIGS = {
    "plain": LogConfig(segment_bytes=500, index_interval_bytes=100, retention_bytes=1_500, retention_ms=86_400_000),
    "keyed": LogConfig(segment_bytes=500, index_interval_bytes=100, cleanup_policy=CleanupPolicy.COMPACT),
}
STEP_MS = 10
_KEYS = 4

MIXED = {"append": 62, "flush": 18, "keep house": 12, "restart": 6, "delete": 2}
COMPACTION = {"append": 70, "flush": 12, "keep house": 18}
RESTARTS = {"append": 60, "flush": 5, "keep house": 15, "restart": 20}
DELETION = {"append": 60, "flush": 10, "keep house": 15, "delete": 15}


@dataclass
class Promise:
    """What holds from a moment on. `end`: records before it are durable. `start`: those before it may be gone. `noted`:
    where recovery and compaction begin according to the last checkpoints, so that a start need not do everything
    again."""

    at: int
    end: int = 0
    start: int = 0
    noted: tuple[int, int] = (0, 0)


@dataclass
class Written:
    """Everything that was ever appended to a log, acknowledged or not: record and time at each offset."""

    rows: dict[int, Row] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    batches: dict[int, bytes] = field(default_factory=dict)
    """Batches of the idempotent producer, as sent, by base offset."""
    promises: list[Promise] = field(default_factory=lambda: [Promise(0)])
    gone: set[int] = field(default_factory=set)
    """What a cut removed that had not been promised."""

    def promise(self, at: int, *, end: int = 0, noted: tuple[int, int] | None = None) -> None:
        last = self.promises[-1]
        self.promises.append(Promise(at, max(end, last.end), last.start, last.noted if noted is None else noted))

    def promised(self, at: int) -> Promise:
        return [promise for promise in self.promises if promise.at <= at][-1]

    def half_gone(self) -> Written:
        """The state while it is being deleted: any part of it may exist."""
        return Written(dict(self.rows), dict(self.times), dict(self.batches), [Promise(0, 0, 10**9)])

    def copy(self, at: int) -> Written:
        """The state after a cut, for a second life: what was promised stays promised."""
        promise = self.promised(at)
        return Written(dict(self.rows), dict(self.times), dict(self.batches), [Promise(0, promise.end, promise.start)])


class Life:
    """One process, or several, on one disk. `written` is from a previous life."""

    def __init__(
        self, root: Path, fsync: FsyncPolicy, files: Files, written: dict[TopicPartition, Written] | None = None
    ) -> None:
        self.root = root
        self.fsync = fsync
        self.files = files
        self.written = written or {PLAIN: Written(), KEYED: Written()}
        self.deleted: dict[TopicPartition, list[tuple[int, int, Written]]] = {PLAIN: [], KEYED: []}
        """Logs that were deleted, and the time in which that happened."""
        self.clock = NOW + 1 + max([0, *(t - NOW for w in self.written.values() for t in w.times.values())])
        self.shut_at: set[int] = set()
        """When the store was closed and marked as cleanly shut down."""
        self.open()
        if written is not None:
            for where, log in self.store.logs.items():
                self.written[where].gone = set(range(log.log_end_offset)) - {row[0] for row in read_all(log)}

    @property
    def at(self) -> int:
        return self.files.now if isinstance(self.files, RecordingDisk) else 0

    def open(self) -> None:
        self.store = LogStore.open(
            self.root,
            now=self.clock,
            fsync=self.fsync,
            configs=CONFIGS.__getitem__,
            partitions=[PLAIN, KEYED],
            files=self.files,
        )
        for where, written in self.written.items():
            # A start has synced what it found.
            written.promise(self.at, end=self.store.logs[where].log_end_offset)

    def append(self, where: TopicPartition, rng: random.Random, *, sequence: int | None = None) -> None:
        self.clock += STEP_MS
        log = self.store.logs[where]
        key = b"k%d" % rng.randrange(_KEYS)
        value = None if where == KEYED and rng.random() < 0.2 else b"%d %s" % (self.clock, b"v" * rng.randrange(60))
        options = {} if sequence is None else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        time = self.clock - rng.choice((0, 0, 500))
        data = batch((key, value), timestamp=time, **options)
        sent = bytes(data)
        offset = log.append(data, now=self.clock).base_offset
        written = self.written[where]
        if offset in written.rows:  # a record that a cut took back
            assert offset >= written.promises[-1].end
        written.rows[offset] = (offset, key, value)
        written.times[offset] = time
        written.batches.pop(offset, None)
        if sequence is not None:
            written.batches[offset] = sent

    def flush(self) -> None:
        ends = {where: self.store.logs[where].log_end_offset for where in self.written}
        self.store.flush()
        for where, end in ends.items():
            log = self.store.logs[where]
            durable = log.high_watermark if self.fsync is FsyncPolicy.ALWAYS else end
            assert durable >= end
            self.written[where].promise(self.at, end=durable)

    def keep_house(self, days: int = 0) -> None:
        self.clock += days * 86_400_000
        begun = self.at
        self.store.housekeeping(self.clock)
        for where, written in self.written.items():
            start = self.store.logs[where].log_start_offset
            at, written.promises = written.promises, [p for p in written.promises if p.at < begun]
            last = at[-1]
            written.promises.append(Promise(begun, last.end, max(start, last.start), (0, 0)))
            written.promise(self.at, noted=(self.store.logs[where].recovery_point, self.store.logs[where].cleaned_to))

    def restart(self, *, clean: bool) -> None:
        self.store.close(clean=clean)
        if clean:
            self.shut_at.add(self.at)
            for where, written in self.written.items():
                end = self.store.logs[where].log_end_offset
                written.promise(self.at, end=end, noted=(end, 0))
        self.open()

    def delete(self, where: TopicPartition) -> None:
        """The log is deleted, and another one takes its place."""
        begun = self.at
        assert not self.store.delete_all([where])
        self.store.make_room([where])
        self.store.create(where, CONFIGS[where.topic])
        self.deleted[where].append((begun, self.at, self.written[where]))
        self.written[where] = Written(promises=[Promise(self.at)])

    def live(self, rng: random.Random, steps: int, chances: Mapping[str, int] = MIXED) -> None:
        """A mix of everything."""
        sequences = {where: self._next_sequence(where) for where in self.written}
        for act in rng.choices(list(chances), list(chances.values()), k=steps):
            where = rng.choice((PLAIN, KEYED))
            if act == "append":
                for _ in range(rng.choice((1, 1, 4))):
                    idempotent = rng.random() < 0.5
                    self.append(where, rng, sequence=sequences[where] if idempotent else None)
                    sequences[where] += idempotent
            elif act == "flush":
                self.flush()
            elif act == "keep house":
                self.keep_house(days=rng.choice((0, 0, 0, 2)))
            elif act == "restart":
                self.restart(clean=rng.random() < 0.7)
            else:
                self.delete(where)
                sequences[where] = 0

    def written_by(self, at: int) -> dict[TopicPartition, Written]:
        """The contents of the logs at a moment."""
        logs = {where: self._log_at(where, at) for where in self.written}
        return {where: written.half_gone() if is_going else written for where, (written, is_going) in logs.items()}

    def asked(self, at: int) -> tuple[object, ...]:
        """Equal for moments at which `check` requires the same of a folder."""
        found: list[object] = [at in self.shut_at]
        for where in self.written:
            written, is_going = self._log_at(where, at)
            promise = written.promised(at)
            found.append((id(written), is_going or (promise.end, promise.start, promise.noted)))
        return tuple(found)

    def _log_at(self, where: TopicPartition, at: int) -> tuple[Written, bool]:
        """The log with that name, and whether it was being deleted."""
        found, is_going = self.written[where], False
        for begun, done, written in reversed(self.deleted[where]):
            if at < done:
                found, is_going = written, at > begun
        return found, is_going

    def _next_sequence(self, where: TopicPartition) -> int:
        entry = self.store.logs[where].producers.producers.get(7)
        return entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0


def check(root: Path, life: Life, at: int) -> None:
    """What must hold for the folder that a cut at `at` has left."""
    noted = [read_checkpoint(root / name) for name in (RECOVERY_POINTS, CLEANED_OFFSETS)]
    store = LogStore.open(
        root, now=life.clock, fsync=life.fsync, configs=CONFIGS.__getitem__, partitions=[PLAIN, KEYED], files=Unsynced()
    )
    try:
        assert store.was_clean or at not in life.shut_at, "a clean shutdown counts as a crash"
        for where, written in life.written_by(at).items():
            promise = written.promised(at)
            _check_log(store.logs[where], written, promise, life.clock)
            for said, promised in zip(noted, promise.noted, strict=True):
                assert said.get(where, 0) >= promised, f"{where}: {promised} was noted, {said} is there"
    finally:
        store.close(clean=False)


def _check_log(log: PartitionLog, written: Written, promise: Promise, clock: int) -> None:
    rows = read_all(log)
    offsets = [row[0] for row in rows]
    assert offsets == sorted(set(offsets)), "offsets are not in order"
    for row in rows:
        assert written.rows.get(row[0]) == row, f"wrong bytes at {row[0]}"
    assert log.log_end_offset >= promise.end, f"the log ends at {log.log_end_offset}, {promise.end} was durable"
    if set(range(promise.start, promise.end)) - written.gone:
        assert log.log_start_offset <= promise.start or written.gone, (
            f"it begins at {log.log_start_offset}, not at {promise.start}"
        )
    if log.config.cleanup_policy is CleanupPolicy.DELETE:
        missing = set(range(min(log.log_start_offset, promise.start), promise.end)) - set(offsets)
        missing -= written.gone
        assert not missing, f"durable records are missing: {sorted(missing)}"
    else:
        _check_keys(rows, written, promise)
    _check_lookups(log, offsets)
    _check_times(log, rows, written)
    _check_producer(log, written, set(offsets), clock)
    assert not list(log.directory.glob("*.damaged")), "a power cut damages nothing that is worth keeping"


def _check_keys(rows: list[Row], written: Written, promise: Promise) -> None:
    durable = {
        key: (offset, value)
        for offset, key, value in sorted(written.rows.values())
        if offset < promise.end and offset not in written.gone
    }
    found = {key: (offset, value) for offset, key, value in rows}
    for key, (offset, value) in durable.items():
        if key not in found:
            assert value is None, f"the last value of {key!r} is gone"
        else:
            assert found[key][0] >= offset, f"{key!r} has an older value"


def _check_lookups(log: PartitionLog, offsets: list[int]) -> None:
    for offset in reversed(offsets):  # not in the order in which the log caches the next position
        header = read_header(log.read(offset, 1).data)
        assert header.base_offset <= offset <= header.last_offset, f"asked for {offset}, got {header.base_offset}"


def _check_times(log: PartitionLog, rows: list[Row], written: Written) -> None:
    times = [(written.times[offset], offset) for offset, _, _ in rows]
    for wanted in {time + extra for time, _ in times for extra in (0, 1)}:
        first = next(((offset, time) for time, offset in times if time >= wanted), None)
        assert log.offset_for_timestamp(wanted) == first, f"time {wanted}"


def _check_producer(log: PartitionLog, written: Written, offsets: set[int], clock: int) -> None:
    """A batch that is gone is not treated as a duplicate, and one that exists is."""
    found = [header for header in read_headers(log) if header.producer_id == 7]
    last = {header.base_offset for header in found}
    for offset, sent in written.batches.items():
        header = read_header(sent)
        try:
            duplicate = log.producers.check(header)
        except LogError:
            duplicate = None
        if duplicate is not None:
            assert duplicate.first_offset in written.batches, f"{duplicate} for {offset}, of {sorted(written.batches)}"
            there = duplicate.first_offset in offsets or duplicate.first_offset in last
            gone = duplicate.first_offset < log.log_start_offset or log.config.cleanup_policy.compacts
            assert there or gone, f"the batch at {offset} is gone and would be acknowledged"
    entry = log.producers.producers.get(7)
    if entry is not None:
        assert entry.batches[-1].last_offset >= max(last, default=-1), "the producer's last batch is not known"
        assert entry.batches[-1].last_offset < log.log_end_offset
    elif found:
        assert found[-1].max_timestamp <= clock - log.config.producer_id_expiration_ms, "the producer is forgotten"
