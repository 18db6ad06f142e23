"""Where the records of a leader epoch end, compared with a list of all batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.log import LogConfig, LogFailedError, PartitionLog
from muster.model import TopicPartition
from tests.support.logs import NOW, batch
from tests.support.scale import examples

TP = TopicPartition("topic", 3)


def written(folder: Path, runs: list[tuple[int, int]], config: LogConfig) -> PartitionLog:
    """A log whose leader wrote this many batches of two records in each epoch; the last epoch is 20."""
    log = PartitionLog(folder / "topic-3", TP, config)
    for epoch, batches in runs:
        log.leader_epoch = epoch
        for _ in range(batches):
            log.append(batch((b"a", b"1"), (b"b", bytes(40))), now=NOW)
    log.leader_epoch = 20
    return log


def expected(log: PartitionLog, epoch: int) -> tuple[int, int]:
    """The answer of Kafka's list of epochs, computed from all batches in turn."""
    if epoch >= log.leader_epoch:
        return (epoch, log.log_end_offset) if epoch == log.leader_epoch else (-1, -1)
    found = epoch
    for segment in log.segments:
        for _, header in segment.headers():
            if header.partition_leader_epoch > epoch:
                return found, header.base_offset
            found = header.partition_leader_epoch
    return found, log.log_end_offset


RUNS = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 12)), max_size=6).map(sorted)


@settings(max_examples=examples(60))
@given(RUNS, st.sampled_from([300, 1_000, 1_000_000]), st.sampled_from([1, 200, 100_000]))
def test_the_end_of_each_epoch(runs: list[tuple[int, int]], segment_bytes: int, index_interval_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
    with tempfile.TemporaryDirectory() as folder:
        log = written(Path(folder), runs, config)
        for epoch in range(22):
            assert log.end_of_epoch(epoch) == expected(log, epoch), epoch
        log.close()


def test_epochs_whose_records_are_deleted_end_where_the_log_begins(tmp_path: Path) -> None:
    log = written(tmp_path, [(1, 1), (4, 3)], LogConfig())
    assert (log.end_of_epoch(0), log.end_of_epoch(1), log.end_of_epoch(3)) == ((0, 0), (1, 2), (1, 2))
    log.delete_records(5)
    assert (log.end_of_epoch(1), log.end_of_epoch(4), log.end_of_epoch(20)) == ((1, 5), (4, 8), (20, 8))
    log.close()


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    log = written(tmp_path, [(1, 1), (4, 3)], LogConfig())
    (tmp_path / "topic-3" / f"{0:020d}.log").write_bytes(b"")
    with pytest.raises(LogFailedError):
        log.end_of_epoch(1)
    log.abandon()
