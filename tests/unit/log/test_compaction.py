"""Compaction: what stays, tombstones, idempotent producers, and a crash at every step of the replacement."""

import contextlib
import itertools
import shutil
import threading

import pytest

from muster.log import CleanupPolicy, CompactionStopped, FsyncPolicy, LogConfig, LogStore, PartitionLog
from muster.log import compaction as compaction_module
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import read_header
from tests.support.logs import NOW, batch, held, read_all, read_headers
from tests.support.power import Unsynced

TP = TopicPartition("compacted", 0)
DAY = 86_400_000


def config(**settings):
    return LogConfig(**{"segment_bytes": 500, "cleanup_policy": CleanupPolicy.COMPACT, **settings})


@pytest.fixture
def log(tmp_path):
    return alone(tmp_path)


def alone(root, files=None, **how):
    return held(PartitionLog(root / "compacted-0", TP, config(**how), files=files or Unsynced()))


def put(log, *pairs, **options):
    log.append(batch(*pairs, **options), now=NOW)


def roll(log):
    """Fills the active segment with keys that nobody else uses, until there is a new segment."""
    before = len(log.segments)
    while len(log.segments) == before:
        put(log, (b"filler", b"f" * 100))
    log.flush()  # compaction only reads what is synced


def opened(root, files=None, **how):
    """A store, and its log."""
    store = held(LogStore.open(root, now=NOW, defaults=config(**how), files=files or Unsynced()))
    return store, store.create(TP)


def filled(root, files=None, **how):
    """The same, with the last of many values of three keys in a segment that can be compacted."""
    store, log = opened(root, files, **how)
    for at in range(60):
        put(log, (b"k%d" % (at % 3), b"%d" % at))
    roll(log)
    return store, log


def latest(rows):
    return {key: value for _, key, value in rows if key != b"filler"}


def test_the_last_value_of_each_key_stays_at_its_offset(log):
    for at in range(40):
        put(log, (b"k%d" % (at % 3), b"%d" % at), (b"once%d" % at, b"x"))
    roll(log)
    before = read_all(log)
    statistics = log.compact(NOW)
    after = read_all(log)
    assert statistics.bytes_after < statistics.bytes_before
    assert statistics.records_after < statistics.records_before
    assert set(after) < set(before)
    assert latest(after) == latest(before)
    sealed = [row for row in after if row[0] < log.segments[-1].base_offset]
    keys = [key for _, key, _ in sealed]
    assert len(keys) == len(set(keys))
    assert log.cleaned_to == log.segments[-1].base_offset
    assert log.compact(NOW) is None


def test_every_offset_can_still_be_asked_for(log):
    for at in range(60):
        put(log, (b"k%d" % (at % 3), b"%d" % at))
    roll(log)
    read_all(log)  # the log remembers where readers are: that must not lead to a segment that is gone
    log.compact(NOW)
    rows = read_all(log)
    for offset in range(log.log_end_offset):
        assert read_all(log, offset) == [row for row in rows if row[0] >= offset]


def test_offsets_of_a_segment_of_which_nothing_stayed_can_still_be_asked_for(tmp_path):
    """At a start an empty segment seems to end where it begins. Its readers are waiting for the next segment, and would
    otherwise get an error that these offsets do not exist: many clients then continue at the end, and skip records."""
    with contextlib.closing(LogStore.open(tmp_path, now=NOW, defaults=config(), files=Unsynced())) as store:
        log = store.create(TP)
        while len(log.segments) < 4:
            put(log, (b"k", b"%d" % len(log.segments) * 100))
        log.flush()
        log.compact(NOW)
        assert [segment.size == 0 for segment in log.segments] == [True, True, False, False]
        kept = read_all(log)
    with contextlib.closing(LogStore.open(tmp_path, now=NOW, defaults=config(), files=Unsynced())) as store:
        log = store.logs[TP]
        store.housekeeping(NOW)
        assert log.log_start_offset == 0
        assert read_all(log, 1) == kept
        log.delete_records(log.segments[1].base_offset)
        store.housekeeping(NOW)
        assert log.segments[0].base_offset == log.log_start_offset > 1


def test_the_active_segment_is_never_touched(log):
    put(log, (b"k", b"1"), (b"k", b"2"))
    assert log.compact(NOW) is None
    roll(log)
    put(log, (b"k", b"3"))
    log.compact(NOW)
    assert [row for row in read_all(log) if row[1] == b"k"] == [(1, b"k", b"2"), (log.log_end_offset - 1, b"k", b"3")]


def test_tombstones_stay_for_delete_retention(log):
    put(log, (b"k", b"1"), (b"other", b"1"))
    put(log, (b"k", None))
    roll(log)
    log.compact(NOW)
    assert (2, b"k", None) in read_all(log)
    [tombstones] = [header for header in read_headers(log) if header.base_offset == 2]
    assert tombstones.delete_horizon_ms == NOW + DAY
    roll(log)
    log.compact(NOW + DAY - 1)
    assert (2, b"k", None) in read_all(log)
    roll(log)
    log.compact(NOW + DAY)
    assert b"k" not in latest(read_all(log))
    assert latest(read_all(log)) == {b"other": b"1"}


@pytest.mark.parametrize("codec", Compression)
def test_what_stays_of_a_batch_keeps_its_frame(log, codec):
    sent = batch(
        (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), compression=codec, producer_id=5, producer_epoch=2, base_sequence=30
    )
    log.append(sent, now=NOW, leader_epoch=4)
    roll(log)
    log.compact(NOW)
    [header] = [header for header in read_headers(log) if header.producer_id == 5]
    was = read_header(sent)
    assert header.record_count == 2
    for name in ("base_offset", "last_offset_delta", "producer_epoch", "base_sequence", "attributes", "max_timestamp"):
        assert getattr(header, name) == getattr(was, name), name
    assert header.partition_leader_epoch == 4


def test_the_last_batch_of_a_producer_stays_though_it_is_empty(tmp_path):
    store, log = opened(tmp_path)
    for at in range(3):
        put(log, (b"k", b"%d" % at), producer_id=5, producer_epoch=0, base_sequence=at)
    put(log, (b"k", b"end"))
    roll(log)
    log.compact(NOW)
    [header] = [header for header in read_headers(log) if header.producer_id == 5]
    assert (header.base_offset, header.record_count, header.max_timestamp) == (2, 0, NOW)
    store.close(clean=False)
    for path in (tmp_path / str(TP)).glob("*.snapshot"):
        path.unlink()
    _, log = opened(tmp_path)
    again = batch((b"k", b"2"), producer_id=5, producer_epoch=0, base_sequence=2)
    assert log.append(again, now=NOW) == (2, 2, NOW, True)


def test_neighbours_become_one_segment(log):
    for at in range(60):
        put(log, (b"k%d" % (at % 3), b"%d" % at))
    roll(log)
    log.compact(NOW)
    roll(log)
    many = len(log.segments)
    log.compact(NOW)
    assert len(log.segments) < many
    assert latest(read_all(log)) == {b"k0": b"57", b"k1": b"58", b"k2": b"59"}
    assert_files_are_those_of(log)


def test_views_outlive_the_exchange(log):
    for at in range(40):
        put(log, (b"k", b"%d" % at))
    roll(log)
    views = [log.read(offset, 400).data for offset in range(0, 40, 5)]
    copies = [bytes(view) for view in views]
    log.compact(NOW)
    assert views == copies


def test_records_that_are_too_young_wait(tmp_path):
    log = alone(tmp_path, min_compaction_lag_ms=1_000)
    put(log, (b"k", b"1"), (b"k", b"2"))
    roll(log)
    assert log.compact(NOW + 999) is None
    assert log.compact(NOW + 1_000) is not None


def test_when_compaction_is_due(log):
    put(log, (b"k", b"1"))
    assert not log.is_cleanable(NOW)
    roll(log)
    assert log.is_cleanable(NOW)
    log.compact(NOW)
    assert not log.is_cleanable(NOW)
    log.config.cleanup_policy = CleanupPolicy.DELETE
    roll(log)
    assert not log.is_cleanable(NOW)


def test_what_has_waited_for_the_largest_lag_is_compacted_however_little_it_is(tmp_path):
    """KIP-354. The age is that of the first batch, and a segment is closed in time."""
    lag = {"max_compaction_lag_ms": 1_000, "min_cleanable_dirty_ratio": 1.0}
    log = alone(tmp_path, **lag)
    put(log, (b"k", b"1"))
    roll(log)
    log.compact(NOW)
    put(log, (b"k", b"2"))
    roll(log)
    assert not log.is_cleanable(NOW + 1_000)
    assert log.is_cleanable(NOW + 1_001)
    log.compact(NOW + 1_001)
    assert not log.is_cleanable(NOW + 10_000)


@pytest.mark.parametrize(("policy", "segments"), [(CleanupPolicy.COMPACT, 2), (CleanupPolicy.DELETE, 1)])
def test_a_segment_of_a_compacted_log_is_closed_when_it_is_due_for_compaction(tmp_path, policy, segments):
    log = alone(tmp_path, max_compaction_lag_ms=1_000, cleanup_policy=policy)
    for age in (0, 1_000, 1_001):
        log.append(batch((b"k", b"%d" % age), timestamp=NOW + age), now=NOW + age)
    assert len(log.segments) == segments


def test_memory_for_keys_bounds_one_run(log, monkeypatch):
    monkeypatch.setattr(compaction_module, "KEY_MEMORY", 500)
    for at in range(60):
        put(log, (b"k%d" % at, b"v"))
    for at in range(60):
        put(log, (b"k%d" % at, b"w"))
    roll(log)
    before, runs = latest(read_all(log)), 0
    while log.compact(NOW) is not None:
        runs += 1
        assert latest(read_all(log)) == before
    assert runs > 3
    assert log.cleaned_to == log.segments[-1].base_offset
    assert b"v" not in {value for _, _, value in read_all(log)}


@pytest.mark.parametrize("crash_at", range(14))
def test_a_crash_at_any_step_of_the_exchange(tmp_path, crash_at):
    root = tmp_path / "data"
    disk = Dying()
    store, log = opened(root, disk, segment_bytes=900)
    for at in range(60):
        put(log, (b"k%d" % (at % 4), b"%d" % at))
    put(log, (b"k0", None))
    log.compact(NOW)
    for at in range(30):
        put(log, (b"k%d" % (1 + at % 3), b"again %d" % at))
    roll(log)
    before = latest(read_all(log))
    disk.left = crash_at
    with contextlib.suppress(KeyboardInterrupt):
        log.compact(NOW)
    disk.left = 10**9
    crashed = tmp_path / "crashed"
    shutil.copytree(root, crashed)
    store.close(clean=False)

    store, log = opened(crashed, segment_bytes=900)
    rows = read_all(log)
    offsets = [offset for offset, _, _ in rows]
    assert latest(rows) == before
    assert offsets == sorted(set(offsets))
    assert {path.suffix for path in (crashed / str(TP)).iterdir()} <= {".log", ".index", ".timeindex", ".snapshot"}
    assert_files_are_those_of(log)
    log.compact(NOW)
    assert latest(read_all(log)) == before
    assert_files_are_those_of(log)


@pytest.mark.parametrize("trouble", ["full", "descriptors", "syncs"])
def test_a_compaction_that_fails_costs_nothing(tmp_path, disk, trouble):
    store, log = filled(tmp_path, disk)
    before = read_all(log)
    {"full": lambda: disk.fill_up(30), "descriptors": disk.use_up_descriptors, "syncs": disk.fail_syncs}[trouble]()
    with pytest.raises(OSError):
        log.compact(NOW)
    disk.mend()
    assert (log.failed, latest(read_all(log))) == (None, latest(before))
    assert not [*log.directory.glob("*.cleaned"), *log.directory.glob("*.swap")]
    put(log, (b"k0", b"more"))
    store.housekeeping(NOW)
    assert latest(read_all(log)) == {**latest(before), b"k0": b"more"}
    assert len(read_all(log)) < len(before)


def test_a_log_that_cannot_be_compacted_is_left_alone_until_the_next_housekeeping(tmp_path, disk, caplog):
    store, log = filled(tmp_path, disk)
    disk.fill_up(30)
    with contextlib.suppress(OSError):  # for the checkpoints
        store.clean(NOW)
    disk.mend()
    assert caplog.text.count("No space left") == 1
    store.clean(NOW)
    assert log.cleaned_to == 0
    store.housekeeping(NOW)
    assert log.cleaned_to > 0
    put(log, (b"k0", b"more"))
    roll(log)
    before = log.cleaned_to
    store.clean(NOW)
    assert log.cleaned_to > before


def test_an_exchange_that_fails_midway_holds_and_is_finished_later(tmp_path, disk):
    _, log = filled(tmp_path, disk)
    wanted = latest(read_all(log))
    disk.fail_syncs(after=2)  # of the new file and of the folder: after that the decision is made
    with pytest.raises(OSError):
        log.compact(NOW)
    assert latest(read_all(log)) == wanted
    assert len(list(log.directory.glob("*.swap"))) == 1
    disk.mend()
    log.config.retention_bytes = 0
    log.config.cleanup_policy = CleanupPolicy.COMPACT_AND_DELETE
    assert log.enforce_retention(NOW) == 0  # the files do not have their final names yet
    log.config.cleanup_policy = CleanupPolicy.COMPACT
    log.compact(NOW)
    assert latest(read_all(log)) == wanted
    assert_files_are_those_of(log)


def test_no_sync_waits_for_a_compaction(tmp_path):
    """The thread that compacts is blocked in the middle of it; another log is synced, and the same one as well."""
    store = held(LogStore.open(tmp_path, now=NOW, fsync=FsyncPolicy.ALWAYS, defaults=config()))
    log, other = store.create(TP), store.create(TopicPartition("other", 0))
    for at in range(60):
        put(log, (b"k%d" % (at % 3), b"%d" % at))
    roll(log)
    wanted = latest(read_all(log))
    begun, go_on = threading.Event(), threading.Event()

    def breathe():
        begun.set()
        assert go_on.wait(60)

    keeper = threading.Thread(target=lambda: store.housekeeping(NOW, breathe))
    keeper.start()
    assert begun.wait(60)
    for one in (log, other):
        put(one, (b"new", b"v"))
    assert set(store.flush().advanced) == {log, other}
    assert read_all(log)[-1][1:] == (b"new", b"v")
    go_on.set()
    keeper.join()
    assert latest(read_all(log)) == {**wanted, b"new": b"v"}
    assert len(read_all(log)) < 20


@pytest.mark.parametrize("how", ["stopped", "deleted", "closed"])
def test_a_compaction_ends_when_it_is_no_longer_wanted(tmp_path, how):
    store, log = filled(tmp_path)
    before = latest(read_all(log))
    calls = itertools.count()

    def breathe():
        if next(calls) == 70:  # while the new segment is written
            if how == "stopped":
                raise CompactionStopped
            store.delete_all([TP]) if how == "deleted" else log.close()

    with contextlib.suppress(CompactionStopped):
        store.housekeeping(NOW, breathe)
    assert next(calls) > 70
    store.close()
    store = held(LogStore.open(tmp_path, now=NOW, defaults=config()))
    if how == "deleted":
        assert store.get(TP) is None
    else:
        assert latest(read_all(store.logs[TP])) == before
    store.close()
    assert not list(tmp_path.rglob("*.cleaned"))


def test_values_do_not_go_for_newer_ones_that_are_not_synced(tmp_path, disk):
    log = alone(tmp_path, disk)
    put(log, (b"k", b"old"))
    roll(log)
    before = len(log.segments)
    while len(log.segments) == before:
        put(log, (b"k", b"new" * 20))
    log.compact(NOW)
    assert (0, b"k", b"old") in read_all(log)
    log.flush()
    log.compact(NOW)
    assert (0, b"k", b"old") not in read_all(log)


def test_a_tombstones_time_runs_from_the_first_compaction(log):
    put(log, (b"k", b"1"), timestamp=NOW - 30 * DAY)
    put(log, (b"k", None), timestamp=NOW - 30 * DAY)
    roll(log)
    log.compact(NOW)
    roll(log)
    log.compact(NOW + 1)
    assert (1, b"k", None) in read_all(log)


@pytest.mark.parametrize("crash_at", range(1, 6))
def test_an_exchange_is_finished_up_to_the_last_record_that_it_took_in(tmp_path, crash_at):
    """The last of the old segments has one record, and that stays."""
    disk = Dying()
    store, log = opened(tmp_path / "data", disk)
    for _ in range(5):
        put(log, (b"k", b"v"))
    put(log, (b"last", b"v" * 200))
    while len(log.segments) < 3:
        put(log, (b"end", b"v" * 400))
    log.flush()
    assert [segment.base_offset for segment in log.segments] == [0, 5, 6]
    log.config.segment_bytes = 2_000  # both fit into one
    disk.left = crash_at
    with pytest.raises(KeyboardInterrupt):
        log.compact(NOW)
    disk.left = 10**9
    store.close(clean=False)
    store, log = opened(tmp_path / "data")
    assert read_all(log) == [(4, b"k", b"v"), (5, b"last", b"v" * 200), (6, b"end", b"v" * 400)]
    assert sorted(path.name for path in log.directory.glob("*.log*")) == [f"{0:020d}.log", f"{6:020d}.log"]


def assert_files_are_those_of(log):
    bases = {segment.base_offset for segment in log.segments}
    for suffix in ("log", "index", "timeindex"):
        found = {int(path.name[:20]) for path in log.directory.glob(f"*.{suffix}")}
        assert found == bases or found == bases - {log.segments[-1].base_offset}


class Dying(Unsynced):
    """The process "dies" (with an exception that nothing handles) when no rename or deletion is left."""

    left = 10**9

    def step(self):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def replace(self, source, target):
        self.step()
        super().replace(source, target)

    def unlink(self, path):
        self.step()
        super().unlink(path)


def test_what_was_compacted_is_whole_under_another_policy(tmp_path):
    """The sequence: compacted; another policy; a kill -9; the recovery point is lost, so that everything is read
    through."""
    store, log = opened(tmp_path)
    for at in range(40):
        put(log, (b"k" if at % 2 else b"once%d" % at, b"%d" % at))
    roll(log)
    log.compact(NOW)
    store.write_checkpoints()
    rows = read_all(log)
    assert [offset for offset, _, _ in rows] != list(range(len(rows)))
    store.close(clean=False)
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for policy in (CleanupPolicy.DELETE, CleanupPolicy.NONE):
        store = LogStore.open(tmp_path, now=NOW, defaults=config(cleanup_policy=policy), files=Unsynced())
        assert read_all(store.logs[TP]) == rows
        store.close(clean=False)
    assert not list((tmp_path / str(TP)).glob("*.damaged"))
