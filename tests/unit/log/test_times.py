"""Lookups by time, compared with a list: batches of one millisecond, times that go back, segments of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.log import FsyncPolicy, LogConfig, PartitionLog
from muster.model import TopicPartition
from tests.support.logs import NOW
from tests.support.scale import examples
from tests.support.written import build_batch

TP = TopicPartition("t", 0)


def expected(times: list[int], wanted: int, start: int = 0) -> tuple[int, int] | None:
    """The first record from `start` on that is not earlier."""
    return next(((at, time) for at, time in enumerate(times) if at >= start and time >= wanted), None)


def check(log: PartitionLog, times: list[int], start: int = 0) -> None:
    for wanted in sorted({0, *times, *(time + 1 for time in times)}):
        assert log.offset_for_timestamp(wanted) == expected(times, wanted, start)
    if not start:
        assert log.max_timestamp() == expected(times, max(times))


def reopened(log: PartitionLog, config: LogConfig, *, clean: bool) -> PartitionLog:
    log.close() if clean else log.abandon()
    return PartitionLog.open(log.directory, TP, config, now=NOW, clean=clean)


@pytest.mark.parametrize(
    ("times", "latest"),
    [
        ([], None),
        ([[-1]], (0, -1)),
        ([[-1, -1], [-1]], (0, -1)),
        ([[-2, -1]], (1, -1)),
        ([[-2], [-1, -1]], (1, -1)),
        ([[-1], [5]], (1, 5)),
        ([[-2], [-3]], None),
    ],
)
def test_the_latest_of_records_without_a_timestamp(
    tmp_path: Path, times: list[list[int]], latest: tuple[int, int] | None
) -> None:
    config = LogConfig(segment_bytes=80)
    log = PartitionLog(tmp_path / "t-0", TP, config, fsync=FsyncPolicy.INTERVAL)
    for batch in times:
        log.append(build_batch([(time, None, b"v", []) for time in batch]), now=NOW)
    assert log.max_timestamp() == latest
    for clean in (True, False):
        log = reopened(log, config, clean=clean)
        assert log.max_timestamp() == latest
    log.abandon()


BATCHES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=40)
"""The times of each batch's records: few times, so that many batches share one."""


@settings(deadline=None, max_examples=examples(150))
@given(BATCHES, st.sampled_from([0, 100, 4096]), st.sampled_from([300, 1000, 1 << 20]), st.integers(0, 60))
def test_the_first_record_of_a_time_is_found(batches: list[list[int]], interval: int, segment_bytes: int, cut: int):
    """As it was written, after a stop, after a kill, and after DeleteRecords."""
    config = LogConfig(index_interval_bytes=interval, segment_bytes=segment_bytes)
    with tempfile.TemporaryDirectory() as folder:
        log = PartitionLog(Path(folder) / "t-0", TP, config, fsync=FsyncPolicy.INTERVAL)
        for batch in batches:
            log.append(build_batch([(NOW + time, None, b"v", []) for time in batch]), now=NOW)
        times = [NOW + time for batch in batches for time in batch]
        check(log, times)
        for clean in (True, False):
            log = reopened(log, config, clean=clean)
            check(log, times)
        cut = min(cut, len(times))
        log.delete_records(cut)
        check(log, times, cut)
        log.abandon()


@pytest.mark.parametrize("clean", [None, True, False])
def test_many_batches_of_one_millisecond(tmp_path: Path, clean: bool | None):
    """A burst: the index has several entries, and the first record with that time is before all of them."""
    config = LogConfig(index_interval_bytes=200)
    log = PartitionLog(tmp_path / "t-0", TP, config)
    times = [NOW] * 5 + [NOW + 1] * 200 + [NOW + 2]
    for time in times:
        log.append(build_batch([(time, None, b"v", [])]), now=NOW)
    if clean is not None:
        log = reopened(log, config, clean=clean)
    check(log, times)
    log.abandon()
