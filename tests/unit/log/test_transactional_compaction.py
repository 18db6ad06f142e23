"""Compaction with transactions: aborted ones are removed, open ones wait, markers stay while they matter."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from muster.errors import ErrorCode
from muster.log import CleanupPolicy, LogConfig, LogError, PartitionLog
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED
from muster.protocol.records.control_records import TxnMarker, read_marker
from muster.protocol.records.record_batch import BatchHeader
from tests.support.logs import NOW, batch, held, read_headers
from tests.support.power import Unsynced
from tests.support.transactions import begin, end, read_committed, sent

TP = TopicPartition("compacted", 0)
DAY = 86_400_000


@pytest.fixture
def log(tmp_path: Path):
    return held(PartitionLog(tmp_path / "compacted-0", TP, settings(), files=Unsynced()))


def settings() -> LogConfig:
    return LogConfig(segment_bytes=500, cleanup_policy=CleanupPolicy.COMPACT)


def put(log: PartitionLog, key: bytes, value: bytes | None) -> None:
    log.append(batch((key, value)), now=NOW)


def roll(log: PartitionLog) -> None:
    """Fills the active segment until there is a new one; everything is synced."""
    before = len(log.segments)
    while len(log.segments) == before:
        put(log, b"filler", b"f" * 100)
    log.flush()


def values(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in read_committed(log) if key != b"filler"}


def of_producer(log: PartitionLog, producer_id: int = 7) -> list[BatchHeader]:
    return [header for header in read_headers(log) if header.producer_id == producer_id]


def forget(log: PartitionLog, producer_id: int = 7) -> None:
    """The producer has expired: nothing needs to stay because of it."""
    log.producers.producers.pop(producer_id)


def opened(log: PartitionLog, *, crash: bool) -> PartitionLog:
    """After a start. After a crash everything is read through, and without snapshots."""
    if crash:
        log.abandon()
        for suffix in ("snapshot", "index", "timeindex", "txnindex"):
            for path in log.directory.glob(f"*.{suffix}"):
                path.unlink()
    else:
        log.close()
    return held(
        PartitionLog.open(
            log.directory, TP, log.config, now=NOW, clean=not crash, files=Unsynced(), cleaned_to=log.cleaned_to
        )
    )


def test_what_was_aborted_goes_and_takes_no_older_value_with_it(log):
    put(log, b"k", b"committed")
    begin(log, 7, (b"k", b"aborted"), (b"new", b"aborted"))
    end(log, 7, commit=False)
    begin(log, 8, (b"j", b"committed"))
    end(log, 8, commit=True)
    roll(log)
    log.compact(NOW)
    assert values(log) == {b"k": b"committed", b"j": b"committed"}
    [data, marker] = of_producer(log)
    assert (data.record_count, marker.is_control) == (0, True), "the producer's last batch stays, empty"
    assert log.read(0, 1 << 20, isolation_level=READ_COMMITTED).aborted == [(7, data.base_offset)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_tombstone_deletes_if_it_was_committed(log, commit):
    put(log, b"k", b"v")
    begin(log, 7, (b"k", None))
    end(log, 7, commit=commit)
    roll(log)
    log.compact(NOW)
    assert values(log) == ({b"k": None} if commit else {b"k": b"v"})


def test_what_is_open_is_not_compacted(log):
    put(log, b"k", b"old")
    roll(log)
    begin(log, 7, (b"k", b"of a transaction"))
    roll(log)
    roll(log)
    log.compact(NOW)
    assert log.cleaned_to == log.segments[-3].base_offset <= log.last_stable_offset
    assert not log.is_cleanable(NOW), "as much as can be is done"
    assert values(log) == {b"k": b"old"}
    end(log, 7, commit=True)
    assert log.is_cleanable(NOW)
    roll(log)
    log.compact(NOW)
    assert values(log) == {b"k": b"of a transaction"}
    assert [row for row in read_committed(log) if row[2] == b"old"] == []


def test_a_marker_may_be_in_the_part_that_is_not_compacted(log):
    """KAFKA-13727: the transaction ends in the active segment."""
    put(log, b"k", b"committed")
    begin(log, 7, (b"k", b"aborted"))
    roll(log)
    end(log, 7, commit=False)
    put(log, b"j", b"v")
    log.compact(NOW)
    assert log.cleaned_to == log.segments[-1].base_offset
    assert values(log) == {b"k": b"committed", b"j": b"v"}
    roll(log)
    log.compact(NOW)
    assert values(log) == {b"k": b"committed", b"j": b"v"}


def test_a_transaction_of_several_groups_of_segments_is_one(log):
    """KAFKA-8351: it begins in a segment that is rewritten separately, and its marker is two segments later."""
    put(log, b"k", b"committed")
    begin(log, 7, (b"k", b"aborted" * 30))
    put(log, b"x", b"x" * 200)
    begin(log, 7, (b"k", b"aborted" * 30))
    put(log, b"y", b"y" * 200)
    begin(log, 7, (b"k", b"aborted" * 30))
    put(log, b"z", b"z" * 200)
    end(log, 7, commit=False)
    roll(log)
    assert len(log.segments) > 3
    log.compact(NOW)
    assert values(log) == {b"k": b"committed", b"x": b"x" * 200, b"y": b"y" * 200, b"z": b"z" * 200}


def test_an_aborted_transaction_does_not_reach_beyond_its_marker(log):
    """The first part has already been compacted; the next run begins to read after its marker."""
    put(log, b"k", b"old")
    begin(log, 7, (b"k", b"aborted"))
    end(log, 7, commit=False)
    roll(log)
    log.compact(NOW)
    begin(log, 7, (b"k", b"new"))
    end(log, 7, commit=True)
    roll(log)
    log.compact(NOW)
    assert values(log) == {b"k": b"new"}
    assert [value for _, key, value in read_committed(log) if key == b"k"] == [b"new"]


def markers(log: PartitionLog, producer_id: int = 7) -> list[tuple[int, int | None]]:
    """Offset and delete horizon of each marker."""
    return [(one.base_offset, one.delete_horizon_ms) for one in of_producer(log, producer_id) if one.is_control]


def compact_again(log: PartitionLog, now: int) -> None:
    roll(log)
    assert log.compact(now) is not None


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_goes_after_its_records_and_in_its_time(log, commit):
    begin(log, 7, (b"k", b"v"))
    marker = end(log, 7, commit=commit)
    begin(log, 8, (b"k", b"newer"))
    end(log, 8, commit=True)
    forget(log)
    compact_again(log, NOW)
    assert markers(log) == [(marker, None)], "there were records until now"
    compact_again(log, NOW + 5)
    assert markers(log) == [(marker, NOW + 5 + DAY)]
    kept = [header for header in of_producer(log) if header.is_control]
    data = log.read(marker, 1).data
    assert read_marker(data, 0, kept[0]) == TxnMarker(7, 0, commit, 0), "it is still a marker"
    assert (kept[0].max_timestamp, kept[0].producer_epoch, kept[0].record_count) == (NOW, 0, 1)
    compact_again(log, NOW + 4 + DAY)
    assert markers(log) == [(marker, NOW + 5 + DAY)]
    compact_again(log, NOW + 5 + DAY)
    assert of_producer(log) == []
    assert values(log) == {b"k": b"newer"}


def test_a_marker_stays_while_one_record_does(log):
    begin(log, 7, (b"k", b"v"), (b"only here", b"v"))
    marker = end(log, 7, commit=True)
    put(log, b"k", b"newer")
    forget(log)
    for days in range(4):
        compact_again(log, NOW + days * DAY)
    assert markers(log) == [(marker, None)]
    assert values(log) == {b"k": b"newer", b"only here": b"v"}


def test_a_newer_marker_replaces_none(log):
    """KAFKA-14055: all markers have the same key."""
    first = begin(log, 7, (b"a", b"v"))
    end(log, 7, commit=True)
    begin(log, 7, (b"b", b"v"))
    end(log, 7, commit=True)
    compact_again(log, NOW)
    assert (first, len(markers(log))) == (0, 2)


def test_an_entry_of_the_index_goes_with_the_records(log):
    begin(log, 7, (b"k", b"v"))
    end(log, 7, commit=False)
    forget(log)
    compact_again(log, NOW)
    assert sum(len(segment.aborted) for segment in log.segments) == 1, "records were met: a reader may have them"
    compact_again(log, NOW)
    assert sum(len(segment.aborted) for segment in log.segments) == 0
    assert not list(log.directory.glob("*.txnindex"))


@pytest.mark.parametrize("crash", [True, False])
def test_what_stays_of_a_producer_with_epochs_fences(log, crash):
    """Only the marker that raised its epoch is left."""
    begin(log, 7, (b"k", b"v"))
    end(log, 7, commit=False, epoch=1, version=2)
    for days in range(4):
        compact_again(log, NOW + days * DAY)
    [marker] = of_producer(log)
    assert (marker.is_control, marker.producer_epoch, marker.record_count) == (True, 1, 0)
    again = opened(log, crash=crash)
    with pytest.raises(LogError) as refused:
        again.append(sent(7, 0, 1), now=NOW)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("crash", [True, False])
def test_what_was_compacted_is_the_same_after_a_start(log, crash):
    for at in range(6):
        begin(log, 7, (b"k%d" % (at % 2), b"%d" % at))
        begin(log, 8, (b"j", b"%d" % at))
        end(log, 8, commit=at % 2 == 0)
        end(log, 7, commit=at % 3 != 0)
    compact_again(log, NOW)
    compact_again(log, NOW + DAY)
    before, stable = read_committed(log), log.last_stable_offset
    again = opened(log, crash=crash)
    assert (read_committed(again), again.last_stable_offset, again.open_transactions()) == (before, stable, [])
    for offset in range(again.last_stable_offset):
        assert read_committed(again, offset) == [row for row in before if row[0] >= offset]


def test_a_snapshot_from_before_a_compaction_opens_nothing_again(log):
    """It says that a transaction is open; its batches and its marker have been removed since, and there is no other
    snapshot."""
    put(log, b"first", b"v")
    begin(log, 7, (b"k", b"v"))
    while len(log.segments) < 2:
        put(log, b"filler", b"f" * 100)
    log.flush()
    snapshot = log.directory / f"{log.segments[-1].base_offset:020d}.snapshot"
    kept = snapshot.read_bytes()
    end(log, 7, commit=False)
    forget(log)
    for days in range(4):
        compact_again(log, NOW + days * DAY)
    assert of_producer(log) == []
    log.abandon()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    snapshot.write_bytes(kept)
    again = held(
        PartitionLog.open(
            log.directory, TP, log.config, now=NOW, clean=False, files=Unsynced(), cleaned_to=log.cleaned_to
        )
    )
    assert snapshot.exists(), "it was taken"
    assert (again.open_transactions(), again.last_stable_offset) == ([], again.log_end_offset)


class Dying(Unsynced):
    """The process "dies" when no rename or deletion is left."""

    left = 10**9

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def replace(self, source: Path, target: Path) -> None:
        self.step()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self.step()
        super().unlink(path)


@pytest.mark.parametrize("crash_at", range(20))
def test_a_crash_at_any_step_of_the_exchange(tmp_path, crash_at):
    disk = Dying()
    log = held(PartitionLog(tmp_path / "compacted-0", TP, settings(), files=disk))
    for at in range(12):
        begin(log, 7, (b"k%d" % (at % 2), b"%d" % at))
        begin(log, 8, (b"j", b"%d" % at))
        end(log, 8, commit=at % 2 == 0)
        end(log, 7, commit=at % 3 != 0)
    roll(log)
    before = values(log)
    disk.left = crash_at
    with contextlib.suppress(KeyboardInterrupt):
        log.compact(NOW)
    disk.left = 10**9
    log.abandon()
    again = held(
        PartitionLog.open(log.directory, TP, log.config, now=NOW, clean=False, recovery_point=log.recovery_point)
    )
    assert values(again) == before
    assert again.open_transactions() == []
    bases = {segment.base_offset for segment in again.segments}
    assert {int(path.name[:20]) for path in log.directory.glob("*.txnindex")} <= bases
