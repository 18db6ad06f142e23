"""In which order things reach the disk, and what a disk that fails in between leaves."""

import errno
import os
import random
import threading
from itertools import pairwise

import pytest

from muster.log import CleanupPolicy, FsyncPolicy, LogConfig, LogStore, recovery, write_whole
from muster.log.files import Files, remove_tree
from muster.log.store import LOG_START_OFFSETS, RECOVERY_POINTS, read_checkpoint
from muster.model import TopicPartition
from tests.support.logs import NOW, batch, held, read_all
from tests.support.power import RecordingDisk, Unsynced, cuts

TP, OTHER = TopicPartition("t", 0), TopicPartition("other", 3)
SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100)
DAY = 86_400_000


class Noting(Unsynced):
    """Records, without paths, which names are changed and what is synced."""

    def __init__(self):
        self.done = []
        self._names = {}

    def open(self, path, flags):
        new = not path.exists()
        fd = super().open(path, flags)
        self._names[fd] = path.name
        if new:
            self.done.append(("make", path.name))
        return fd

    def sync(self, fd):
        self.done.append(("sync", self._names[fd]))

    def sync_folder(self, folder):
        self.done.append(("sync folder", folder.name))

    def replace(self, source, target):
        super().replace(source, target)
        self.done.append(("replace", target.name))

    def unlink(self, path):
        super().unlink(path)
        self.done.append(("unlink", path.name))

    def forget(self):
        self.done = []


def open_store(root, files=None, config=SMALL, fsync=FsyncPolicy.INTERVAL, now=NOW):
    return held(LogStore.open(root, now=now, fsync=fsync, defaults=config, files=files or Unsynced()))


def fill(log, segments=1, **options):
    """Appends until there are this many more segments."""
    wanted = len(log.segments) + segments
    while len(log.segments) < wanted:
        log.append(batch((b"k", b"v" * 60), **options), now=NOW)


def test_the_names_of_all_segments_are_durable_not_only_that_of_the_first(tmp_path):
    disk = Noting()
    log = open_store(tmp_path, disk).create(TP)
    for _ in range(3):
        disk.forget()
        fill(log)
        log.flush()
        made = [at for at, (what, name) in enumerate(disk.done) if what == "make" and name.endswith(".log")]
        assert made
        assert ("sync folder", "t-0") in disk.done[made[-1] :]
        assert ("sync folder", tmp_path.name) in disk.done[made[-1] :]


def test_segments_go_one_by_one_where_the_new_start_is_not_durable(tmp_path):
    """A power cut that brings some of them back must not leave a gap."""
    disk = Noting()
    log = open_store(tmp_path, disk).create(TP)
    fill(log, 3)
    log.flush()
    log.delete_records(-1)
    disk.forget()
    assert log.enforce_retention(NOW) >= 3
    steps = [step for step in disk.done if step == ("sync folder", "t-0") or step[1].endswith(".log")]
    gone = [at for at, (what, _) in enumerate(steps) if what == "unlink"]
    assert len(gone) >= 3
    assert all(("sync folder", "t-0") in steps[a:b] for a, b in pairwise([*gone, len(steps)]))


def test_checkpoints_have_the_space_that_retention_freed_before_anything_else(tmp_path, disk):
    store = open_store(tmp_path, disk)
    log = store.create(TP)
    fill(log, 3)
    log.flush()
    log.delete_records(log.segments[2].base_offset)
    disk.fill_up()
    store.after_housekeeping = disk.fill_up  # it uses all the space
    store.housekeeping(NOW)
    assert read_checkpoint(tmp_path / LOG_START_OFFSETS) == {TP: log.log_start_offset}


def test_a_deletion_is_durable_by_name_before_a_file_goes(tmp_path):
    disk = Noting()
    store = open_store(tmp_path, disk)
    fill(store.create(TP))
    disk.forget()
    assert not store.delete_all([TP])
    renamed = next(at for at, (what, name) in enumerate(disk.done) if what == "replace" and name.startswith("t-0."))
    synced = disk.done.index(("sync folder", tmp_path.name))
    first_gone = next(at for at, (what, _) in enumerate(disk.done) if what == "unlink")
    assert renamed < synced < first_gone


def test_a_deletion_that_is_not_durable_is_not_complete(tmp_path, disk):
    store = open_store(tmp_path, disk)
    store.create(TP).append(batch((b"k", b"v")), now=NOW)
    disk.fail_syncs()
    assert store.delete_all([TP])


def test_one_folder_that_cannot_be_renamed_makes_a_deletion_incomplete(tmp_path):
    class Stubborn(Unsynced):
        def replace(self, source, target):
            if source.name == str(TP):
                raise OSError(errno.EBUSY, "busy")
            super().replace(source, target)

    store = open_store(tmp_path, Stubborn())
    for partition in (TP, OTHER):
        store.create(partition).append(batch((b"k", b"v")), now=NOW)
    assert store.delete_all([TP, OTHER]) == {TP}
    assert not (tmp_path / str(OTHER)).exists()


@pytest.mark.parametrize("fsync", FsyncPolicy)
def test_a_deleted_log_is_not_waited_for_nor_held(tmp_path, fsync):
    store = open_store(tmp_path, fsync=fsync)
    store.create(TP).append(batch((b"k", b"v")), now=NOW)
    assert store.dirty()
    store.delete_all([TP])
    assert not store.dirty()


def test_what_is_appended_while_a_sync_runs_is_synced_by_the_next(tmp_path, disk):
    store = open_store(tmp_path, disk)
    log = store.create(TP)
    log.append(batch((b"k", b"1")), now=NOW)
    with disk.held_syncs():
        flushing = threading.Thread(target=store.flush)
        flushing.start()
        disk.wait_for_sync()
        log.append(batch((b"k", b"2")), now=NOW)
    flushing.join()
    assert log.recovery_point == 1
    assert store.dirty()
    store.flush()
    assert (log.recovery_point, store.dirty()) == (2, False)


def test_checkpoints_that_could_not_be_written_are_written_later(tmp_path, disk):
    store = open_store(tmp_path, disk)
    log = store.create(TP)
    for _ in range(2):
        log.append(batch((b"k", b"v")), now=NOW)
        store.flush()
        disk.fill_up()
        with pytest.raises(OSError):
            store.write_checkpoints()
        disk.mend()
        store.write_checkpoints()
        assert read_checkpoint(tmp_path / RECOVERY_POINTS) == {TP: log.log_end_offset}


def test_a_checkpoint_that_is_being_written_does_not_outlive_the_partition_that_it_names(tmp_path, disk):
    """DeleteRecords is writing where the log begins when the topic is deleted and created again: after a kill the new
    log would begin there too, after its first records."""
    store = open_store(tmp_path, disk)
    log = store.create(TP)
    fill(log, 3)
    log.delete_records(3)
    with disk.held_syncs():
        writing = threading.Thread(target=store.write_checkpoints)
        writing.start()
        disk.wait_for_sync()
        store._logs.pop(TP)  # `deleting` would wait for the disk too
        making = threading.Thread(target=store.make_room, args=[[TP]])
        (tmp_path / str(TP)).rename(tmp_path / "away")
        making.start()
        making.join(0.2)
    writing.join()
    making.join()
    assert all(TP not in read_checkpoint(tmp_path / name) for name in (RECOVERY_POINTS, LOG_START_OFFSETS))


def test_old_records_go_on_a_full_disk_too_one_segment_after_the_other(tmp_path):
    class Full(Noting):
        full = False

        def pwrite(self, fd, data, position):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().pwrite(fd, data, position)

    disk = Full()
    store = open_store(tmp_path, disk, config=LogConfig(segment_bytes=500, retention_bytes=800))
    log = store.create(TP)
    fill(log, 7)
    store.flush()
    kept = read_all(log)
    disk.full = True
    disk.forget()
    with pytest.raises(OSError, match="No space left"):
        store.housekeeping(NOW)
    assert log.log_start_offset > 0
    gone = [name for what, name in disk.done if what == "unlink" and name.endswith(".log")]
    assert len(gone) >= 3
    for earlier, later in pairwise([("unlink", name) for name in gone]):
        assert ("sync folder", str(TP)) in disk.done[disk.done.index(earlier) : disk.done.index(later)]
    assert not list(tmp_path.glob("*.tmp")), "the space that is left is not taken up"
    begin = log.log_start_offset
    store.close(clean=False)
    store = open_store(tmp_path)
    assert read_all(store.get(TP)) == [row for row in kept if row[0] >= begin]


def test_one_checkpoint_that_changed_is_durable_like_all(tmp_path):
    disk = Noting()
    store = open_store(tmp_path, disk)
    log = store.create(TP)
    for _ in range(2):
        log.append(batch((b"k", b"v")), now=NOW)
        store.flush()
        disk.forget()
        store.write_checkpoints()
        assert disk.done.index(("replace", RECOVERY_POINTS)) < disk.done.index(("sync folder", tmp_path.name))
    assert ("sync", RECOVERY_POINTS + ".tmp") in disk.done


def test_without_syncs_indexes_are_written_and_the_logs_start_is_kept(tmp_path):
    store = open_store(tmp_path, fsync=FsyncPolicy.NEVER)
    log = store.create(TP)
    fill(log, 4)
    store.flush()
    assert not store.dirty()
    log.delete_records(4)
    store.housekeeping(NOW)
    indexes = {path.name[:20] for path in log.directory.glob("*.timeindex")}
    assert indexes == {segment.path.name[:20] for segment in log.segments[:-1]}
    store.close(clean=False)
    store = open_store(tmp_path, fsync=FsyncPolicy.NEVER)
    assert store.logs[TP].log_start_offset == 4


@pytest.mark.parametrize("how", ["compacted", "retired"])
def test_no_index_is_written_for_a_segment_that_is_gone(tmp_path, how, disk):
    """Its indexes could not be written before. Those of a compacted segment have the same names as the new one's, and
    would mislead its readers."""
    policy = CleanupPolicy.COMPACT if how == "compacted" else CleanupPolicy.DELETE
    config = LogConfig(segment_bytes=500, index_interval_bytes=1, cleanup_policy=policy)
    store = open_store(tmp_path, disk, config)
    log = store.create(TP)
    fill(log, 4)
    disk.fill_up()
    log.flush()
    disk.mend()
    assert log.recovery_point == 0, "no indexes were written"
    if how == "compacted":
        log.compact(NOW)
    else:
        log.delete_records(log.segments[2].base_offset)
        log.enforce_retention(NOW)
    there = {path.name: path.read_bytes() for path in log.directory.glob("*index")}
    kept = {segment.path.name[:20] for segment in log.segments}
    log.flush()
    after = {path.name: path.read_bytes() for path in log.directory.glob("*index")}
    assert {name[:20] for name in after} <= kept
    if how == "compacted":
        assert {name: after[name] for name in there} == there


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path):
    class Slow(Files):
        def pwrite(self, fd, data, position):
            return super().pwrite(fd, memoryview(data)[:3], position)

    write_whole(Slow(), tmp_path / "small", b"more than three bytes")
    assert (tmp_path / "small").read_bytes() == b"more than three bytes"
    (tmp_path / "small.tmp").write_bytes(b"left by a process that was killed, and longer")
    write_whole(Slow(), tmp_path / "small", b"short")
    assert (tmp_path / "small").read_bytes() == b"short"
    store = open_store(tmp_path / "data", Slow())
    store.create(TP).append(batch((b"k", b"v")), now=NOW)
    store.close()
    store = open_store(tmp_path / "data")
    assert read_all(store.logs[TP]) == [(0, b"k", b"v")]


def test_what_a_link_leads_to_is_not_removed_with_it(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(precious)
    (tmp_path / "other").symlink_to(precious)
    remove_tree(Files(), folder)
    remove_tree(Files(), tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
    assert (precious / "thesis").read_text() == "x"


# ------------------------------------------------------------------------------------------------- what recovery keeps


def damaged_log(root, offset=4):
    """A log of nine batches, one of which is damaged; and the bytes from that one on."""
    store = open_store(root, config=LogConfig())
    log = store.create(TP)
    for at in range(9):
        log.append(batch((b"k", b"%d" % at * 20)), now=NOW)
    size = log.segments[0].size // 9
    path = log.segments[0].path
    store.close(clean=False)
    data = bytearray(path.read_bytes())
    data[size * offset + 70] ^= 1
    path.write_bytes(data)
    return path, bytes(data), size * offset


def test_a_power_cut_while_damage_is_cut_off_takes_none_of_the_good_batches_after_it(tmp_path, caplog):
    """At every moment they are in the log's file, or in the one that is set aside."""
    root = tmp_path / "first"
    root.mkdir()
    path, data, at = damaged_log(root)
    disk = RecordingDisk(root)
    open_store(root, disk, LogConfig()).close(clean=False)
    seen = set()
    for cut in cuts(disk, random.Random(1)):
        cut.lay_out(tmp_path / "cut")
        folder = tmp_path / "cut" / str(TP)
        whole = (folder / path.name).read_bytes() == data
        aside = [found.read_bytes() == data[at:] for found in folder.glob("*.damaged")]
        assert whole or aside == [True]
        seen.add(whole)
    assert seen == {True, False}


@pytest.mark.parametrize(("recovery_point", "kept"), [(0, False), (9, True)])
def test_what_was_synced_once_is_kept_though_no_batch_of_it_is_whole(tmp_path, recovery_point, kept):
    """After the recovery point it is the torn end of a write, before it the damage has another cause."""
    path, data, at = damaged_log(tmp_path, 8)
    (tmp_path / RECOVERY_POINTS).write_text(f"0\n1\nt 0 {recovery_point}\n")
    store = open_store(tmp_path, config=LogConfig())
    assert [found.read_bytes() for found in path.parent.glob("*.damaged")] == ([data[at:]] if kept else [])
    assert len(read_all(store.logs[TP])) == 8
    assert store.logs[TP].log_end_offset == (9 if kept else 8)


@pytest.mark.parametrize("chunk", [*range(61, 200, 7), 4096])
def test_good_batches_are_found_wherever_the_pieces_end_in_which_a_file_is_read(tmp_path, monkeypatch, chunk):
    path, data, at = damaged_log(tmp_path)
    monkeypatch.setattr(recovery, "_CHUNK", chunk)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = [header.base_offset for header in recovery._good_batches(fd, at, len(data), 4)]
    finally:
        os.close(fd)
    assert found == [5, 6, 7, 8]


def test_records_without_a_time_are_as_old_as_their_file_also_after_a_restart(tmp_path):
    config = LogConfig(segment_bytes=500, retention_ms=DAY)
    store = open_store(tmp_path, config=config)
    fill(store.create(TP), 2, timestamp=-1)
    store.close()
    for path in (tmp_path / str(TP)).glob("*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    store = open_store(tmp_path, config=config, now=NOW + 2 * DAY)
    log = store.logs[TP]
    assert log.enforce_retention(NOW + DAY) == 0
    assert log.enforce_retention(NOW + DAY + 1) == 2
