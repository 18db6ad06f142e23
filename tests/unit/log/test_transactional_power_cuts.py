"""Power cuts during transactions: indexes, open transactions and the last stable offset match the batches that are
left."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from muster.errors import MusterError
from muster.log import CleanupPolicy, FsyncPolicy, LogConfig, LogStore, PartitionLog
from muster.log.files import Files
from muster.model import TopicPartition
from tests.support.logs import NOW, Row, batch, read_all, read_headers
from tests.support.power import Cut, RecordingDisk, Unsynced, cuts
from tests.support.transactions import begin, check_rebuilt, end, read_committed

pytestmark = pytest.mark.slow

TP = TopicPartition("transactions", 0)
PRODUCERS = (1, 2, 3)
STEPS = 30
SEEDS = range(5)


class Written(NamedTuple):
    """A record, and its producer if it belongs to a transaction."""

    row: Row
    producer: int | None


class Ended(NamedTuple):
    """A marker."""

    offset: int
    producer: int
    commit: bool


@dataclass
class Life:
    """One log with a random life. `promised`: up to which offset it was durable, since which disk operation."""

    root: Path
    policy: CleanupPolicy
    fsync: FsyncPolicy
    files: Files
    written: list[Written] = field(default_factory=list)
    promised: list[tuple[int, int]] = field(default_factory=list)
    markers: list[Ended] = field(default_factory=list)

    def open(self) -> None:
        self.store = self.opened(self.root, self.files)
        self.log = self.store.logs[TP]
        self.promise(self.log.log_end_offset)

    def opened(self, root: Path, files: Files) -> LogStore:
        config = LogConfig(
            segment_bytes=400,
            index_interval_bytes=100,
            cleanup_policy=self.policy,
            retention_ms=-1,
            delete_retention_ms=0,
        )
        return LogStore.open(root, now=NOW, fsync=self.fsync, configs=lambda _: config, partitions=[TP], files=files)

    def promise(self, end: int) -> None:
        now = self.files.now if isinstance(self.files, RecordingDisk) else 0
        self.promised.append((now, end))

    def live(self, rng: random.Random) -> None:
        self.open()
        for act in rng.choices(
            ("plain", "produce", "end", "flush", "house", "restart"), (20, 40, 30, 10, 5, 3), k=STEPS
        ):
            record = (b"k%d" % rng.randrange(3), b"%d" % rng.randrange(10**6))
            pid = rng.choice(PRODUCERS)
            if act == "plain":
                offset = self.log.append(batch(record), now=NOW).base_offset
                self.written.append(Written((offset, *record), None))
            elif act == "produce":
                self.written.append(Written((begin(self.log, pid, record), *record), pid))
            elif act == "end":
                commit = rng.random() < 0.4
                self.markers.append(Ended(end(self.log, pid, commit=commit), pid, commit))
            elif act == "flush":
                self.flush()
            elif act == "house":
                self.flush()
                self.store.housekeeping(NOW)
            else:
                self.store.close(clean=rng.random() < 0.7)
                self.open()
        self.store.close(clean=False)

    def flush(self) -> None:
        target = self.log.log_end_offset
        self.store.flush()
        self.promise(target)

    def check(self, root: Path, at: int) -> None:
        """What must hold after a cut."""
        store = self.opened(root, Unsynced())
        try:
            log = store.logs[TP]
            durable = max((end for moment, end in self.promised if moment <= at), default=0)
            assert log.log_end_offset >= durable
            # Data that was never durable may be missing in the middle, if the name of the next segment is durable.
            there = {*range(durable), *(header.base_offset for header in read_headers(log))}
            self._check_open(log, there)
            if self.policy is CleanupPolicy.DELETE:
                check_rebuilt(log)
                assert {one.row for one in self.written if one.row[0] in there} <= set(read_all(log))
            for start in {log.log_start_offset, max(log.log_start_offset, log.last_stable_offset // 2)}:
                self._check_rows(log, there, start)
        finally:
            store.close(clean=False)

    def _is_committed(self, one: Written, there: set[int]) -> bool | None:
        """According to the next marker of its producer that survived; None if there is none."""
        if one.producer is None:
            return True
        later = (end for end in self.markers if end.producer == one.producer and end.offset > one.row[0])
        return next((end.commit for end in later if end.offset in there), None)

    def _check_open(self, log: PartitionLog, there: set[int]) -> None:
        firsts = {one.first_offset for one in log.open_transactions()}
        unstable = [
            one.row[0] for one in self.written if one.row[0] in there and self._is_committed(one, there) is None
        ]
        assert firsts <= set(unstable), f"{firsts} are said to be open, of {unstable}"
        assert log.last_stable_offset == min(unstable, default=log.high_watermark)

    def _check_rows(self, log: PartitionLog, there: set[int], start: int) -> None:
        stable = range(start, log.last_stable_offset)
        seen = [one for one in self.written if one.row[0] in stable and one.row[0] in there]
        seen = [one for one in seen if self._is_committed(one, there)]
        found = read_committed(log, start)
        if self.policy is CleanupPolicy.DELETE:
            assert found == [one.row for one in seen]
            return
        assert set(found) <= {one.row for one in seen}, "an aborted record is seen"
        assert {row[1]: row[2] for row in found} == {one.row[1]: one.row[2] for one in seen}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory if there is such a file system: many small files are created and deleted."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    logging.disable(logging.ERROR)
    yield path
    logging.disable(logging.NOTSET)
    shutil.rmtree(path)


def lived(
    folder: Path, seed: int, policy: CleanupPolicy, fsync: FsyncPolicy, leave_out: str | None = None
) -> tuple[RecordingDisk, Life]:
    root = folder / "life"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    disk = RecordingDisk(root, leave_out)
    life = Life(root, policy, fsync, disk)
    life.live(random.Random(seed))
    return disk, life


def hold(folder: Path, life: Life, found: Iterator[Cut]) -> None:
    held = set()
    for cut in found:
        durable = max((end for moment, end in life.promised if moment <= cut.at), default=0)
        if (case := (cut.key(), durable)) not in held:
            held.add(case)
            cut.lay_out(folder / "cut")
            life.check(folder / "cut", cut.at)


@pytest.mark.parametrize("fsync", [FsyncPolicy.ALWAYS, FsyncPolicy.INTERVAL])
@pytest.mark.parametrize("policy", [CleanupPolicy.DELETE, CleanupPolicy.COMPACT])
@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_after_a_power_cut_are_those_of_the_batches_that_are_left(folder, seed, policy, fsync):
    disk, life = lived(folder, seed, policy, fsync)
    hold(folder, life, cuts(disk, random.Random(seed), each=1))


def test_no_part_of_a_removed_segment_comes_back_without_its_aborted_transactions(folder):
    """If the log's new start could not be written, for example on a full disk, a cut may bring back some of its
    files."""
    root = folder / "log"
    root.mkdir()
    disk = RecordingDisk(root)
    config = LogConfig(segment_bytes=400, retention_ms=-1)
    log = PartitionLog(root / str(TP), TP, config, files=disk)
    for at in range(12):
        begin(log, 1, (b"k", b"%d" % at))
        end(log, 1, commit=at % 2 == 0)
    log.flush()
    committed, point, begun = set(read_committed(log)), log.recovery_point, disk.now
    log.delete_records(log.segments[-1].base_offset)
    assert log.enforce_retention(NOW) > 3
    log.abandon()
    moments = range(begun, disk.now + 1)
    for cut in cuts(disk, random.Random(1), each=20, moments=moments):
        cut.lay_out(folder / "cut")
        again = PartitionLog.open(folder / "cut" / str(TP), TP, config, now=NOW, recovery_point=point, files=Unsynced())
        assert set(read_committed(again)) <= committed
        again.abandon()


@pytest.mark.interpreted
def test_the_index_of_aborted_transactions_is_durable_before_it_is_believed(folder):
    """Without the sync of its file, or of its name, a cut leaves aborted records among the committed ones."""
    which = CleanupPolicy.DELETE, FsyncPolicy.INTERVAL
    sites = {site for seed in SEEDS for site in lived(folder, seed, *which)[0].sites}
    sites = {site for site in sites if "AbortedIndex.save" in site or "folder: Segment.save_indexes" in site}
    assert len(sites) == 2
    assert [site for site in sites if not any(is_noticed(folder, seed, *which, site) for seed in SEEDS)] == []


def is_noticed(folder: Path, seed: int, policy: CleanupPolicy, fsync: FsyncPolicy, site: str) -> bool:
    disk, life = lived(folder, seed, policy, fsync, site)
    try:
        hold(folder, life, cuts(disk, random.Random(seed), each=3, moments=disk.risky()))
    except (AssertionError, MusterError, OSError):
        return True
    return False
