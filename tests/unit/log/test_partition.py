"""One partition's log: append, read, times, retention, durability, failures."""

import errno
import os
import threading

import pytest

from muster.errors import ErrorCode
from muster.log import CleanupPolicy, FsyncPolicy, LogConfig, LogError, LogFailedError, PartitionLog, TimestampType
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import RecordFields, read_header, read_records
from tests.support.java_batches import BATCHES
from tests.support.logs import NOW, batch, read_all, read_headers
from tests.support.written import build_batch

TP = TopicPartition("topic", 3)


@pytest.fixture
def make(tmp_path, disk):
    made = []

    def make(fsync=FsyncPolicy.INTERVAL, **settings):
        made.append(PartitionLog(tmp_path / "topic-3", TP, LogConfig(**settings), fsync=fsync, files=disk))
        return made[-1]

    yield make
    for log in made:
        log.abandon()


def refused(log, data, **options):
    end = log.log_end_offset
    with pytest.raises(LogError) as caught:
        log.append(data, now=NOW, **options)
    assert log.log_end_offset == end
    return caught.value.code


# ------------------------------------------------------------------------------------------------- append and read


def test_nothing_is_on_disk_before_the_first_append(make, tmp_path):
    log = make()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.size) == (0, 0, 0, 0)
    assert log.read(0, 100).data == b""
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None
    assert log.enforce_retention(NOW) == 0
    assert not log.flush()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_offsets_are_given_in_order_and_read_back(make):
    log = make()
    assert log.append(batch((b"a", b"1"), (b"b", b"2")), now=NOW, leader_epoch=5) == (0, 1, -1, False)
    assert log.append(bytes(batch((None, b"3"))), now=NOW) == (2, 2, -1, False)
    assert read_all(log) == [(0, b"a", b"1"), (1, b"b", b"2"), (2, None, b"3")]
    assert read_headers(log)[0].partition_leader_epoch == 5
    assert read_all(log, 1) == [(1, b"b", b"2"), (2, None, b"3")]
    assert log.read(1, 1_000).next_offset == 3


def test_the_coordinators_batches_are_written_together(make):
    log = make()
    data = batch((b"a", b"1"), (b"b", b"2")) + batch((b"c", b"3"))
    assert log.append(data, now=NOW, origin="coordinator") == (0, 2, -1, False)
    assert [header.base_offset for header in read_headers(log)] == [0, 2]


def test_reading_gives_whole_batches_within_the_limit_but_at_least_one(make):
    log = make()
    size = len(batch((b"k", b"v" * 10)))
    for _ in range(10):
        log.append(batch((b"k", b"v" * 10)), now=NOW)
    assert len(log.read(0, 3 * size).data) == 3 * size
    assert len(log.read(0, 4 * size - 1).data) == 3 * size
    assert len(log.read(0, 1).data) == size
    assert log.read(0, size - 1, min_one=False).data == b""
    assert log.read(0, size - 1, min_one=False).next_offset == 0
    assert len(log.read(8, 10**9).data) == 2 * size
    assert log.read(10, 100).data == b""


@pytest.mark.parametrize("offset", [-1, 2, 100])
def test_offsets_outside_are_out_of_range(make, offset):
    log = make()
    log.append(batch((b"k", b"v")), now=NOW)
    with pytest.raises(LogError) as caught:
        log.read(offset, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_reading_across_segments_with_a_sparse_index(make):
    log = make(segment_bytes=2_000, index_interval_bytes=300)
    for at in range(200):
        log.append(batch((b"%d" % at, b"v" * (at % 50))), now=NOW)
    assert len(log.segments) > 5
    expected = [(at, b"%d" % at, b"v" * (at % 50)) for at in range(200)]
    for start in range(200):
        assert read_all(log, start, max_bytes=700) == expected[start:]


def test_views_of_the_growing_segment_stay_good(make):
    log = make()
    views = []
    for at in range(50):
        log.append(batch((b"%d" % at, b"v" * 10_000)), now=NOW)
        views.append(log.read(0, 10**9).data)
    assert [len(view) for view in views] == sorted(len(view) for view in views)
    log.close()
    for at, view in enumerate(views):
        assert read_records(view, len(view) - len(views[0]) - (0 if at < 10 else 1))[0].key == b"%d" % at


def test_views_outlive_retention(make):
    log = make(segment_bytes=1_000, retention_bytes=0)
    for at in range(30):
        log.append(batch((b"%d" % at, b"v" * 100)), now=NOW)
    view = log.read(0, 500).data
    copy = bytes(view)
    assert log.enforce_retention(NOW) > 1
    assert view == copy


def test_log_append_time(make):
    log = make(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    result = log.append(batch((b"a", b"1"), timestamp=5), now=NOW)
    assert result.log_append_time == NOW
    [header] = read_headers(log)
    assert (header.timestamp_type, header.max_timestamp) == (1, NOW)
    assert log.max_timestamp() == (0, NOW)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_damaged_batches_are_refused(make):
    log = make()
    good = batch((b"a", b"1"))
    bad = bytearray(good)
    bad[-1] ^= 1
    assert refused(log, bad) is ErrorCode.CORRUPT_MESSAGE
    assert refused(log, good[:-1]) is ErrorCode.CORRUPT_MESSAGE
    assert refused(log, good[:30]) is ErrorCode.CORRUPT_MESSAGE
    assert refused(log, b"") is ErrorCode.INVALID_RECORD
    assert log.append(good, now=NOW).base_offset == 0


def test_what_clients_may_not_send(make):
    log = make()
    assert refused(log, batch((b"a", b"1")) * 2) is ErrorCode.INVALID_RECORD
    assert refused(log, batch((b"a", b"1"), base_offset=4)) is ErrorCode.INVALID_RECORD
    assert refused(log, batch((b"a", b"1"), control=True)) is ErrorCode.INVALID_RECORD
    assert refused(log, batch((b"a", b"1"), producer_id=4)) is ErrorCode.INVALID_RECORD
    assert refused(log, BATCHES["magic1"]) is ErrorCode.INVALID_RECORD
    assert refused(log, BATCHES["transactional"]) is ErrorCode.INVALID_TXN_STATE
    assert refused(log, batch((b"a", b"1"), timestamp=NOW + 3_600_001)) is (ErrorCode.INVALID_TIMESTAMP)


def test_sizes_that_are_too_large(make):
    log = make(max_message_bytes=200, segment_bytes=500)
    assert refused(log, batch((b"a", b"1" * 200))) is ErrorCode.MESSAGE_TOO_LARGE
    assert refused(log, batch((b"a", b"1" * 500)), origin="coordinator") is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.append(batch((b"a", b"1" * 200)), now=NOW, origin="coordinator").base_offset == 0


def test_a_compacted_topic_wants_keys(make):
    log = make(cleanup_policy=CleanupPolicy.COMPACT)
    assert refused(log, batch((b"a", b"1"), (None, b"2"))) is ErrorCode.INVALID_RECORD
    assert log.append(batch((b"a", b"1")), now=NOW).base_offset == 0


# ------------------------------------------------------------------------------------------------- idempotent producers


def produced(sequence, epoch=0, count=2, producer_id=7):
    return batch(*[(b"k", b"v")] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_sent_again_is_acknowledged_and_not_written(make):
    log = make()
    for at in range(7):
        log.append(produced(2 * at), now=NOW)
    for at in range(2, 7):
        assert log.append(produced(2 * at), now=NOW) == (2 * at, 2 * at + 1, NOW, True)
    assert log.log_end_offset == 14
    assert refused(log, produced(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_and_old_epochs_are_refused(make):
    log = make()
    log.append(produced(0, epoch=3), now=NOW)
    assert refused(log, produced(3, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(log, produced(1, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(log, produced(2, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(log, produced(2, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(produced(0, epoch=4), now=NOW).base_offset == 2
    assert log.append(produced(2, epoch=4), now=NOW).base_offset == 4


def test_an_unknown_producer_may_begin_anywhere(make):
    log = make()
    assert log.append(produced(1_000), now=NOW).base_offset == 0
    assert refused(log, produced(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap(make):
    log = make()
    log.append(produced(2**31 - 2), now=NOW)
    assert log.append(produced(0), now=NOW).base_offset == 2
    assert log.append(produced(2**31 - 2), now=NOW) == (0, 1, NOW, True)


def test_silent_producers_are_forgotten(make):
    log = make()
    log.append(produced(0), now=NOW)
    log.enforce_retention(NOW + 86_399_999)
    assert refused(log, produced(50)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.enforce_retention(NOW + 86_400_000)
    assert log.append(produced(50), now=NOW).base_offset == 2


# ------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_offsets_for_times(make, codec):
    log = make(segment_bytes=3_000, index_interval_bytes=200)
    times = [NOW + 10 * (at // 2) + (5 if at % 7 == 0 else 0) for at in range(300)]
    for at in range(0, 300, 3):
        records: list[RecordFields] = [(time, b"k", b"v" * 20, []) for time in times[at : at + 3]]
        log.append(build_batch(records, compression=codec), now=NOW)
    for wanted in range(NOW - 3, max(times) + 3, 3):
        first = next(((at, time) for at, time in enumerate(times) if time >= wanted), None)
        assert log.offset_for_timestamp(wanted) == first
    assert log.max_timestamp() == (times.index(max(times)), max(times))
    log.delete_records(100)
    assert log.offset_for_timestamp(0) == (100, times[100])


# ----------------------------------------------------------------------------------------------- retention and deletion


def fill(log, count=30, step=1_000):
    for at in range(count):
        log.append(batch((b"%d" % at, b"v" * 100), timestamp=NOW + at * step), now=NOW + at * step)


def test_retention_by_size(make, tmp_path):
    log = make(segment_bytes=1_000, retention_bytes=2_500)
    fill(log)
    deleted = log.enforce_retention(NOW)
    assert deleted > 0
    assert log.size - log.segments[0].size < 2_500 <= log.size
    assert log.log_start_offset == log.segments[0].base_offset > 0
    assert read_all(log)[0][0] == log.log_start_offset
    assert len(list((tmp_path / "topic-3").glob("*.log"))) == len(log.segments)
    with pytest.raises(LogError, match="OFFSET_OUT_OF_RANGE"):
        log.read(0, 100)


def test_retention_by_time_takes_the_active_segment_too(make):
    log = make(segment_bytes=1_000, retention_ms=10_000)
    fill(log)
    log.enforce_retention(NOW + 29_000)
    kept = {key for _, key, _ in read_all(log)}
    assert {b"%d" % at for at in range(19, 30)} <= kept
    assert b"5" not in kept
    log.enforce_retention(NOW + 60_000)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (30, 30, 0)
    assert log.append(batch((b"a", b"b")), now=NOW).base_offset == 30
    assert read_all(log) == [(30, b"a", b"b")]


def test_retention_leaves_what_is_not_durable(make):
    log = make(FsyncPolicy.ALWAYS, segment_bytes=500, retention_bytes=0)
    fill(log, 10)
    assert log.enforce_retention(NOW) == 0
    log.flush()
    fill(log, 10)
    assert log.enforce_retention(NOW) > 0
    assert log.log_start_offset <= log.high_watermark == 10


def test_deleted_records(make):
    log = make(segment_bytes=1_000)
    fill(log)
    assert log.delete_records(12) == 12
    assert read_all(log)[0][0] == 12
    assert log.enforce_retention(NOW) >= 1
    assert log.segments[0].base_offset <= 12 < log.segments[1].base_offset
    assert log.delete_records(3) == 12
    for offset in (31, -2):
        with pytest.raises(LogError, match="OFFSET_OUT_OF_RANGE"):
            log.delete_records(offset)
    assert log.delete_records(-1) == 30
    assert read_all(log) == []


def test_segments_roll_by_time(make):
    log = make(segment_ms=5_000)
    fill(log, 13)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 12]


# ------------------------------------------------------------------------------------------------- durability


def test_always_means_that_only_synced_records_can_be_read(make):
    log = make(FsyncPolicy.ALWAYS, segment_bytes=500)
    fill(log, 3)
    assert (log.high_watermark, log.log_end_offset) == (0, 3)
    assert log.read(0, 1_000).data == b""
    assert log.read(2, 1_000).data == b""
    assert log.offset_for_timestamp(0) is None
    assert log.flush()
    assert log.high_watermark == 3
    fill(log, 10)
    assert len(read_all(log)) == 3
    assert log.read(0, 10_000).high_watermark == 3
    assert log.flush()
    assert not log.flush()
    assert len(read_all(log)) == 13


@pytest.mark.parametrize("rolls", [False, True])
def test_what_is_appended_while_a_sync_runs_is_not_durable_with_it(make, disk, rolls):
    log = make(FsyncPolicy.ALWAYS, segment_bytes=500 if rolls else 50_000)
    fill(log, 2)
    with disk.held_syncs():
        thread = threading.Thread(target=log.flush)
        thread.start()
        disk.wait_for_sync()
        fill(log, 10)
        assert log.high_watermark == 0
    thread.join()
    assert (log.high_watermark, log.log_end_offset) == (2, 12)
    assert len(read_all(log)) == 2
    log.flush()
    assert len(read_all(log)) == 12
    # What was sealed meanwhile was not forgotten: it is synced, and has its indexes.
    sealed = {segment.base_offset for segment in log.segments[:-1]}
    assert {int(path.stem) for path in log.directory.glob("*.index")} == sealed


def test_a_segment_that_was_synced_and_then_compacted_is_read_to_its_new_end(make):
    log = make(FsyncPolicy.ALWAYS, segment_bytes=600, cleanup_policy=CleanupPolicy.COMPACT)
    for _ in range(5):
        log.append(batch((b"k", b"v")), now=NOW)
    log.flush()
    log.append(batch((b"long", b"v" * 300)), now=NOW)
    assert len(log.segments) == 2
    assert log.compact(NOW) is not None
    assert read_all(log) == [(4, b"k", b"v")]


@pytest.mark.parametrize("fsync", [FsyncPolicy.INTERVAL, FsyncPolicy.NEVER])
def test_otherwise_what_is_written_can_be_read(make, fsync):
    log = make(fsync, segment_bytes=500)
    fill(log, 10)
    assert log.high_watermark == 10
    assert len(read_all(log)) == 10


def test_flushing_while_appending(make):
    log = make(FsyncPolicy.ALWAYS, segment_bytes=5_000)
    done = threading.Event()
    seen = []

    def flush():
        while not done.is_set():
            log.flush()
            seen.append(log.high_watermark)

    thread = threading.Thread(target=flush)
    thread.start()
    fill(log, 2_000, step=0)
    done.set()
    thread.join()
    log.flush()
    assert seen == sorted(seen)
    assert log.high_watermark == 2_000
    assert [at for at, _, _ in read_all(log, max_bytes=5_000)] == list(range(2_000))


def test_a_full_disk_refuses_records_until_there_is_space_and_leaves_no_torn_batch(make, disk, tmp_path, caplog):
    log = make()
    fill(log, 3)
    size = log.segments[-1].path.stat().st_size
    disk.fill_up(20)
    for _ in range(3):
        with pytest.raises(LogFailedError, match="No space left"):
            fill(log, 1)
    assert log.segments[-1].path.stat().st_size == size
    assert len(read_all(log)) == 3
    assert caplog.text.count("refuses records") == 1
    disk.mend()
    assert log.append(batch((b"a", b"b")), now=NOW).base_offset == 3
    assert len(read_all(log)) == 4
    log.close()
    assert [offset for offset, _, _ in read_all(reopened(tmp_path))] == [0, 1, 2, 3]


def reopened(tmp_path):
    return PartitionLog.open(tmp_path / "topic-3", TP, LogConfig(), now=NOW)


@pytest.mark.parametrize("trouble", ["full", "descriptors"])
def test_a_segment_that_cannot_be_begun_is_begun_later(make, disk, tmp_path, trouble):
    log = make(segment_bytes=1_000)
    fill(log, 5)
    disk.fill_up(0) if trouble == "full" else disk.use_up_descriptors()
    with pytest.raises(LogFailedError):
        fill(log, 30)
    kept = log.log_end_offset
    log.flush()
    disk.mend()
    fill(log, 30)
    log.close()
    assert [offset for offset, _, _ in read_all(reopened(tmp_path))] == list(range(kept + 30))


def test_nothing_counts_as_durable_while_its_folder_cannot_be_synced(make, disk):
    dirty: list[PartitionLog] = []
    log = make(FsyncPolicy.ALWAYS)
    log._on_dirty = dirty.append
    fill(log, 3)
    disk.use_up_descriptors()
    dirty.clear()
    assert not log.flush()
    assert (log.high_watermark, log.failed) == (0, None)
    assert dirty == [log]
    disk.mend()
    synced = disk.syncs
    assert log.flush()
    assert log.high_watermark == 3
    assert disk.syncs == synced + 3  # the file, its folder, and the parent folder


def test_a_log_without_indexes_is_read_through_after_a_crash(make, disk, tmp_path):
    """The indexes cannot be written, so the recovery point must not pass the segments that lack them."""
    log = make(segment_bytes=1_000, index_interval_bytes=200)
    fill(log, 40)
    (tmp_path / "topic-3" / f"{0:020d}.index.tmp").mkdir()
    log.flush()
    assert (log.recovery_point, log.failed) == (0, None)
    fill(log, 1)
    (tmp_path / "topic-3" / f"{0:020d}.index.tmp").rmdir()
    log.flush()
    assert log.recovery_point == 41


def test_an_append_while_a_sync_looks_at_the_file_is_not_damage(make, monkeypatch):
    """A thread runs the sync. It reads where the file ends, an append continues, and only then does it compare."""
    log = make()
    log.append(batch((b"a", b"1")), now=NOW)
    real = os.lseek

    def overtaken(fd: int, *where: int) -> int:
        end = real(fd, *where)
        monkeypatch.setattr(os, "lseek", real)
        log.append(batch((b"b", b"2")), now=NOW)
        return end

    monkeypatch.setattr(os, "lseek", overtaken)
    assert log.flush()
    assert os.lseek is real
    assert log.failed is None
    assert log.append(batch((b"c", b"3")), now=NOW).base_offset == 2


@pytest.mark.parametrize("first", ["append", "flush"])
@pytest.mark.parametrize("fsync", [FsyncPolicy.INTERVAL, FsyncPolicy.ALWAYS])
def test_a_file_that_somebody_else_cut_is_neither_read_nor_added_to(make, fsync, first, caplog):
    """Accessing the lost pages of the map would end the process."""
    log = make(fsync, segment_bytes=300_000)
    for at in range(80):
        log.append(batch((b"%d" % at, b"v" * 10_000)), now=NOW)
    log.flush()
    views = [log.read(0, 10**6), log.read(log.segments[-1].base_offset, 10**6)]
    assert all(view.data for view in views)
    for segment in (log.segments[0], log.segments[-1]):
        with segment.path.open("r+b") as file:
            file.truncate(5_000)
    for offset in (2, log.segments[-1].base_offset + 2, log.log_end_offset - 1):
        for max_bytes in (100, 10**6):
            with pytest.raises(LogFailedError, match="shorter than"):
                log.read(offset, max_bytes)
    with pytest.raises(LogFailedError):
        log.offset_for_timestamp(0)
    assert caplog.text.count("cannot be read") == 1
    if first == "append":
        assert refused(log, batch((b"a", b"b"))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.flush()
    assert log.failed is not None
    assert refused(log, batch((b"a", b"b"))) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_sync_fails_the_log(make, disk):
    log = make(FsyncPolicy.ALWAYS)
    fill(log, 3)
    disk.fail_syncs()
    assert not log.flush()
    assert log.high_watermark == 0
    assert refused(log, batch((b"a", b"b"))) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_log_that_cannot_be_synced_is_not_closed_well(make, disk):
    """A descriptor was missing only during the last attempt to sync."""
    log = make()
    fill(log, 3)
    sync_folder = disk.sync_folder

    def fail_once(folder):
        disk.sync_folder = sync_folder
        raise OSError(errno.EMFILE, "too many open files")

    disk.sync_folder = fail_once
    with pytest.raises(LogFailedError):
        log.close()


def test_a_closed_log_refuses(make):
    log = make()
    fill(log, 3)
    log.close()
    assert refused(log, batch((b"a", b"b"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_headers_read_back_are_those_that_were_sent(make):
    log = make()
    sent = batch((b"a", b"b"), compression=Compression.LZ4)
    crc = read_header(sent).crc
    log.append(sent, now=NOW)
    assert read_headers(log)[0].crc == crc
