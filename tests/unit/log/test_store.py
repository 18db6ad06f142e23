"""The data directory: locking, clean and unclean shutdown, recovery at every torn byte, deletion, checkpoints."""

import contextlib
import os
import shutil
import struct
import subprocess
import sys

import pytest

from muster.errors import ErrorCode
from muster.log import FsyncPolicy, LogConfig, LogError, LogStore, StoreLockedError
from muster.log.producers.producer_state import PartitionProducers, ProducedBatch, ProducerEntry
from muster.model import TopicPartition
from tests.support.logs import NOW, batch, held, read_all
from tests.support.power import Unsynced
from tests.support.scale import is_quick

TP = TopicPartition("a-topic.with-dashes", 0)
NO_SYNCS = Unsynced()
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150)


def open_store(root, fsync=FsyncPolicy.INTERVAL, files=NO_SYNCS, partitions=None, config=SMALL):
    return held(LogStore.open(root, now=NOW, fsync=fsync, defaults=config, files=files, partitions=partitions))


def fill(log, count=20, start=0):
    for at in range(start, start + count):
        log.append(batch((b"%d" % at, b"v" * 30), timestamp=NOW + at), now=NOW)


def produced(sequence):
    return batch((b"p", b"v"), producer_id=7, producer_epoch=1, base_sequence=sequence)


def files(folder, *suffixes):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in suffixes}


def test_a_second_process_is_kept_out(tmp_path):
    store = open_store(tmp_path)
    code = f"from muster.log import LogStore; LogStore.open({str(tmp_path)!r}, now=0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StoreLockedError" in done.stderr
    assert f"process {os.getpid()}" in done.stderr
    with pytest.raises(StoreLockedError, match="use another directory"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_there_after_opening_again(tmp_path, clean):
    store = open_store(tmp_path)
    log = store.create(TP)
    fill(log)
    log.append(produced(0), now=NOW)
    log.append(produced(1), now=NOW)
    store.create(TopicPartition("empty", 4))
    expected = read_all(log)
    times = [log.offset_for_timestamp(NOW + at) for at in range(20)]
    store.close(clean=clean)

    store = open_store(tmp_path)
    assert store.was_clean is clean
    assert set(store.logs) == {TP, TopicPartition("empty", 4)}
    log = store.get(TP)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (22, 22, 22)
    assert read_all(log) == expected
    assert [log.offset_for_timestamp(NOW + at) for at in range(20)] == times
    assert log.append(produced(1), now=NOW).duplicate
    with pytest.raises(LogError, match="OUT_OF_ORDER"):
        log.append(produced(5), now=NOW)
    assert log.append(produced(2), now=NOW).base_offset == 22


def test_a_new_directory_counts_as_clean(tmp_path):
    store = open_store(tmp_path / "new" / "deep")
    assert store.was_clean
    assert store.get(TP) is None
    store.close()


def test_recovery_builds_the_same_indexes_that_appending_wrote(tmp_path):
    store = open_store(tmp_path)
    fill(store.create(TP), 50)
    store.close()
    folder = tmp_path / str(TP)
    written = files(folder, ".index", ".timeindex")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for name in written:
        (folder / name).write_bytes(b"rubbish")
    store = open_store(tmp_path)
    store.flush()
    fill(store.get(TP), 1, start=50)
    store.flush()
    store.close()
    again = files(folder, ".index", ".timeindex")
    for name, data in written.items():
        assert again[name][: len(data)] == data


@pytest.mark.parametrize("extra", [b"", b"\xff" * 300], ids=["cut", "then rubbish"])
def test_cut_at_every_byte_of_the_last_batches(tmp_path, extra):
    store = open_store(tmp_path / "whole")
    log = store.create(TP)
    fill(log, 9)
    store.flush()
    ends = batch_ends(log)
    store.close(clean=False)
    name = sorted(files(tmp_path / "whole" / str(TP), ".log"))[-1]
    data = (tmp_path / "whole" / str(TP) / name).read_bytes()
    base = int(name[:20])
    for cut in range(0, len(data), 7 if is_quick() else 1):
        root = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", root)
        (root / str(TP) / name).write_bytes(data[:cut] + extra)
        store = open_store(root)
        log = store.get(TP)
        good = sum(1 for end in ends if end <= cut)
        assert log.log_end_offset == base + good
        assert [at for at, _, _ in read_all(log)] == list(range(base + good))
        fill(log, 1, start=base + good)
        assert read_all(log)[-1][0] == base + good
        store.close(clean=False)
        shutil.rmtree(root)


def batch_ends(log):
    active = log.segments[-1]
    return [position + header.size for position, header in active.headers()]


def test_a_corrupt_batch_in_an_old_segment_costs_what_follows_in_that_segment(tmp_path, caplog):
    """Whole segments after it stay, what was cut off is kept, and no offset is assigned twice."""
    store = open_store(tmp_path)
    fill(store.create(TP), 30)
    bases = [segment.base_offset for segment in store.get(TP).segments]
    store.close(clean=False)
    second = sorted((tmp_path / str(TP)).glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    for _ in range(3):
        store = open_store(tmp_path)
        log = store.get(TP)
        assert [segment.base_offset for segment in log.segments] == bases
        offsets = [at for at, _, _ in read_all(log)]
        lost = sorted(set(range(30)) - set(offsets))
        assert lost == list(range(lost[0], bases[2]))
        assert bases[1] < lost[0]
        assert log.log_end_offset == 30
        store.close(clean=False)
    [kept] = (tmp_path / str(TP)).glob("*.damaged")
    assert second.read_bytes() + kept.read_bytes() == data
    assert f"offsets {lost[0]} to {lost[-1]} are missing" in caplog.text
    store = open_store(tmp_path)
    fill(store.get(TP), 1, start=30)
    assert read_all(store.get(TP))[-1][0] == 30


def test_good_batches_after_a_damaged_one_are_kept_and_their_offsets_not_given_again(tmp_path, caplog):
    store = open_store(tmp_path)
    log = store.create(TP, LogConfig())
    fill(log, 10)
    ends = batch_ends(log)
    path = log.segments[0].path
    store.close(clean=False)
    data = bytearray(path.read_bytes())
    data[ends[3] : ends[4]] = bytes(ends[4] - ends[3])  # a page that was never written
    path.write_bytes(data)
    for count in range(4, 7):
        store = open_store(tmp_path)
        log = store.get(TP)
        fill(log, 1, start=log.log_end_offset)
        assert [at for at, _, _ in read_all(log)] == [0, 1, 2, 3, *range(10, 7 + count)]
        store.close(clean=False)
    [kept] = path.parent.glob("*.damaged")
    assert kept.read_bytes() == data[ends[3] :]
    assert "with 5 whole batches in it" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", ["first", "middle", "last", "all", "folder"])
def test_a_segment_that_somebody_removed_is_reported_and_its_offsets_not_given_again(tmp_path, caplog, which, clean):
    store = open_store(tmp_path)
    fill(store.create(TP), 30)
    store.flush()
    store.write_checkpoints()
    bases = [segment.base_offset for segment in store.get(TP).segments]
    store.close(clean=clean)
    logs = sorted((tmp_path / str(TP)).glob("*.log"))
    gone = {"first": logs[:1], "middle": logs[2:4], "last": logs[-1:], "all": logs, "folder": []}[which]
    if which == "folder":
        shutil.rmtree(tmp_path / str(TP))
    for path in gone:
        path.unlink()
    kept = {
        "first": range(bases[1], 30),
        "middle": [*range(bases[2]), *range(bases[4], 30)],
        "last": range(bases[-1]),
        "all": [],
        "folder": [],
    }[which]
    store = open_store(tmp_path, partitions=[TP])
    log = store.get(TP)
    assert [at for at, _, _ in read_all(log)] == list(kept)
    assert log.log_end_offset == 30
    assert ("are missing" in caplog.text) == (which != "first")
    fill(log, 1, start=30)
    assert read_all(log, 30)[0][0] == 30


def test_no_stray_snapshots_stay(tmp_path):
    for at in range(6):
        store = open_store(tmp_path)
        store.create(TP).append(produced(at), now=NOW)
        store.close()
    snapshots = sorted(path.name for path in (tmp_path / str(TP)).glob("*.snapshot"))
    # The one that was read, and the one for the next start.
    assert snapshots == [f"{5:020d}.snapshot", f"{6:020d}.snapshot"]


def test_what_was_synced_before_the_recovery_point_is_not_read_again(tmp_path):
    store = open_store(tmp_path)
    fill(store.create(TP), 30)
    store.flush()
    store.write_checkpoints()
    store.close(clean=False)
    first = min((tmp_path / str(TP)).glob("*.log"))
    data = bytearray(first.read_bytes())
    data[70] ^= 1  # in the first batch's records: only a check of its CRC would notice
    first.write_bytes(data)
    store = open_store(tmp_path)
    assert store.get(TP).log_end_offset == 30


def test_the_segment_that_holds_the_recovery_point_is_read_through(tmp_path):
    """What is after the point in it was not synced: a batch may have a page that was never written. The indexes of the
    previous shutdown exist, and are valid."""
    store = open_store(tmp_path, config=LogConfig())
    fill(store.create(TP), 10)
    store.close()
    store = open_store(tmp_path, config=LogConfig())
    log = store.get(TP)
    fill(log, 10, start=10)
    ends = batch_ends(log)
    path = log.segments[0].path
    store.close(clean=False)
    data = bytearray(path.read_bytes())
    data[ends[15] + 70] ^= 1  # in the records: the header is whole
    path.write_bytes(data)
    store = open_store(tmp_path, config=LogConfig())
    assert [at for at, _, _ in read_all(store.get(TP))] == list(range(16))


@pytest.mark.parametrize("gone", ["the end of the last segment", "the end of a sealed segment", "a segment"])
def test_a_batch_that_is_gone_is_not_mistaken_for_a_duplicate(tmp_path, gone):
    """A snapshot of the producers was on disk before the batches that it describes."""
    store = open_store(tmp_path)
    log = store.create(TP)
    count = 0
    # One or two batches in the last segment, so that earlier ones are known.
    while count < 30 or log.segments[-1].size > 200:
        log.append(produced(count), now=NOW)
        count += 1
    segments = log.segments
    store.close(clean=False)
    for segment in segments[1:]:
        state = PartitionProducers()
        state.producers[7] = ProducerEntry(1, NOW)
        last = segment.base_offset - 1
        state.producers[7].batches.append(ProducedBatch(last, last, last, last, NOW))
        state.save(log.directory / f"{segment.base_offset:020d}.snapshot")
    if gone == "a segment":
        lost = range(segments[-1].base_offset - 1, segments[-1].base_offset)
        segments[-2].path.unlink()
    else:
        cut = segments[-1] if gone == "the end of the last segment" else segments[-2]
        end = segments[-1].base_offset if cut is segments[-2] else count
        os.truncate(cut.path, cut.size - 10)
        lost = range(end - 1, end)
        if cut is segments[-1]:  # as after a clean shutdown, of which only the snapshot survived
            state.producers[7].batches.append(ProducedBatch(count - 1, count - 1, count - 1, count - 1, NOW))
            state.save(log.directory / f"{count:020d}.snapshot")
        else:
            segments[-1].path.unlink()
    store = open_store(tmp_path)
    log = store.get(TP)
    there = {at for at, _, _ in read_all(log)}
    assert not there & set(lost)
    for at in lost:
        with contextlib.suppress(LogError):  # if there are later batches, it is out of order
            assert not log.append(produced(at), now=NOW).duplicate


def test_a_missing_index_after_a_clean_shutdown_is_built_again(tmp_path):
    store = open_store(tmp_path)
    fill(store.create(TP), 30)
    store.close()
    for path in [*(tmp_path / str(TP)).glob("*.index"), min((tmp_path / str(TP)).glob("*.timeindex"))]:
        path.unlink()
    store = open_store(tmp_path)
    assert [at for at, _, _ in read_all(store.get(TP))] == list(range(30))


@pytest.mark.parametrize("damage", [b"", b"\0\1", b"\0\1" + b"x" * 60, b"\0\2" + bytes(8)])
def test_a_damaged_producer_snapshot_is_replaced_from_the_log(tmp_path, damage):
    store = open_store(tmp_path)
    log = store.create(TP)
    for at in range(12):
        log.append(produced(at), now=NOW)
    store.close()
    for path in (tmp_path / str(TP)).glob("*.snapshot"):
        path.write_bytes(damage)
    store = open_store(tmp_path)
    log = store.get(TP)
    assert log.append(produced(8), now=NOW) == (8, 8, NOW, True)
    assert log.append(produced(12), now=NOW).base_offset == 12


def test_damage_that_the_search_for_producers_meets_after_a_clean_shutdown_is_cut_out(tmp_path, caplog):
    """Without a snapshot all headers are read, and one of them is zeros: a page that the disk has lost since."""
    store = open_store(tmp_path)
    log = store.create(TP)
    for at in range(12):
        log.append(produced(at), now=NOW)
    ends, first, second = batch_ends(log), log.segments[0].path, log.segments[1].base_offset
    store.close()
    for path in (tmp_path / str(TP)).glob("*.snapshot"):
        path.unlink()
    data = bytearray(first.read_bytes())
    data[ends[0] : ends[1]] = bytes(ends[1] - ends[0])
    first.write_bytes(data)
    store = open_store(tmp_path)
    log = store.get(TP)
    assert [at for at, _, _ in read_all(log)] == [0, *range(second, 12)]
    assert log.append(produced(11), now=NOW) == (11, 11, NOW, True)
    assert log.append(produced(12), now=NOW).base_offset == 12
    assert f"{tmp_path / str(TP)}: " in caplog.text
    assert "reading all of its segments" in caplog.text
    [kept] = (tmp_path / str(TP)).glob("*.damaged")
    assert kept.read_bytes() == data[ends[0] :]


def test_folders_of_many_deleted_partitions_are_removed_by_housekeeping(tmp_path):
    """Removing one takes the disk milliseconds, and a topic is deleted by the broker's loop."""

    def left() -> int:
        return sum(name.endswith("-delete") for name in os.listdir(tmp_path))

    many = [TopicPartition("t", index) for index in range(130)]
    store = held(LogStore.open(tmp_path, now=NOW))
    for partition in many:
        store.create(partition)
    assert not store.delete_all(many)
    assert not any((tmp_path / str(partition)).exists() for partition in many)
    assert left() == 80
    store.close()
    store = held(LogStore.open(tmp_path, now=NOW))
    assert left() == 30
    store.housekeeping(NOW)
    assert left() == 0


def test_deleted_logs_do_not_come_back(tmp_path):
    store = open_store(tmp_path)
    log = store.create(TP)
    fill(log)
    view = log.read(0, 400).data
    copy = bytes(view)
    store.delete_all([TP])
    store.delete_all([TP])
    assert store.get(TP) is None
    assert view == copy
    with pytest.raises(LogError) as caught:
        log.append(batch((b"a", b"b")), now=NOW)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert store.create(TP).log_end_offset == 0
    (tmp_path / f"{TP}.{'0' * 32}-delete").mkdir()
    (tmp_path / "notes").mkdir()
    store.close()
    store = open_store(tmp_path)
    assert set(store.logs) == {TP}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {str(TP), "notes"}


def test_flush_tells_what_advanced(tmp_path):
    store = open_store(tmp_path, FsyncPolicy.ALWAYS)
    one, two = store.create(TP), store.create(TopicPartition("other", 1))
    assert not store.dirty()
    fill(one, 2)
    fill(two, 1)
    assert store.dirty()
    assert set(store.flush().advanced) == {one, two}
    assert not store.dirty()
    fill(two, 1)
    assert store.flush().advanced == [two]
    assert store.flush().advanced == []


def test_never_does_not_sync(tmp_path, disk):
    store = open_store(tmp_path, FsyncPolicy.NEVER, disk)
    disk.fail_syncs()
    fill(store.create(TP))
    assert store.flush().advanced == []
    assert not store.dirty()
    disk.mend()
    store.close()
    store = open_store(tmp_path, FsyncPolicy.NEVER)
    assert store.get(TP).log_end_offset == 20
    store.close()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n0\n"


def test_the_log_start_survives(tmp_path):
    store = open_store(tmp_path)
    log = store.create(TP)
    fill(log)
    log.delete_records(7)
    store.housekeeping(NOW)
    store.close(clean=False)
    store = open_store(tmp_path)
    log = store.get(TP)
    assert log.log_start_offset == 7
    assert read_all(log)[0][0] == 7


@pytest.mark.parametrize("text", ["", "0\n", "x\ny", "0\n5\nt 0 1\n", "9\n1\nt 0 1\n", "0\n1\nt 0\n"])
def test_damaged_checkpoints_are_ignored(tmp_path, text):
    store = open_store(tmp_path)
    fill(store.create(TP))
    store.close(clean=False)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        (tmp_path / name).write_text(text)
    store = open_store(tmp_path)
    assert len(read_all(store.get(TP))) == 20


def test_checkpoints_have_kafkas_form(tmp_path):
    store = open_store(tmp_path)
    fill(store.create(TP))
    store.close()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na-topic.with-dashes 0 20\n"


def test_settings_of_a_topic(tmp_path):
    store = open_store(tmp_path)
    other = LogConfig(segment_bytes=5_000)
    assert store.create(TP).config is SMALL
    assert store.create(TP, other).config is other
    store.close()
    store = held(LogStore.open(tmp_path, now=NOW, configs=lambda topic: other if topic == TP.topic else SMALL))
    assert store.logs[TP].config is other


def test_index_entries_are_kafkas(tmp_path):
    store = open_store(tmp_path)
    fill(store.create(TP), 6)
    store.close()
    size = len(batch((b"0", b"v" * 30)))
    entries = list(struct.iter_unpack(">ii", (tmp_path / str(TP) / f"{0:020d}.index").read_bytes()))
    assert entries == [(2, 2 * size), (4, 4 * size)]
    times = list(struct.iter_unpack(">qi", (tmp_path / str(TP) / f"{0:020d}.timeindex").read_bytes()))
    assert times == [(NOW + 2, 2), (NOW + 4, 4)]


def test_a_start_looks_once_into_the_folder_of_a_partition_without_records(tmp_path, monkeypatch):
    partitions = [TopicPartition(topic, index) for topic in ("a", "b") for index in range(20)]
    store = open_store(tmp_path)
    for partition in partitions:
        store.create(partition)
    store.close()
    looked_into, asked_about, real = [], [], os.scandir

    def scandir(path):
        looked_into.append(path)
        return real(path)

    def config_of(topic):
        asked_about.append(topic)
        return SMALL

    monkeypatch.setattr(os, "scandir", scandir)
    store = held(LogStore.open(tmp_path, now=NOW, files=NO_SYNCS, partitions=partitions, configs=config_of))
    monkeypatch.undo()

    assert sorted(store.logs) == partitions
    assert sorted(map(str, looked_into)) == sorted([str(tmp_path), *(str(tmp_path / str(one)) for one in partitions)])
    assert sorted(asked_about) == ["a", "b"]
