"""The log in memory: what is durable, what a crash takes."""

from random import Random

import pytest

from muster.errors import KafkaError
from muster.protocol.records.record_batch import iter_headers, read_records
from tests.simulator.log import SimLog


def offsets(log: SimLog, start: int, max_bytes: int = 1 << 20) -> list[int]:
    data = log.read(start, max_bytes).data
    return [record.offset for at, header in iter_headers(data) for record in read_records(data, at, header)]


def test_whole_batches_are_read_from_the_one_that_holds_the_offset():
    log = SimLog()
    for count in (2, 3, 1):
        log.write(count, now=5)
    assert offsets(log, 3) == [2, 3, 4, 5]
    assert offsets(log, 3, max_bytes=1) == [2, 3, 4]
    assert log.read(3, 1).next_offset == 5
    assert log.read(6, 1) == (b"", 6)


def test_a_lazy_log_shows_only_what_is_durable():
    log = SimLog(lazy=True)
    log.write(2, now=5)
    assert (log.high_watermark, log.log_end_offset, offsets(log, 0)) == (0, 2, [])
    log.sync()
    assert (log.high_watermark, offsets(log, 0)) == (2, [0, 1])


def test_a_crash_takes_some_batches_from_the_end_but_none_that_is_durable():
    left = set()
    for seed in range(40):
        log = SimLog(lazy=True)
        log.write(2, now=5)
        log.sync()
        log.write(3, now=6)
        log.write(1, now=7)
        log.crash(Random(seed))
        assert log.high_watermark == log.log_end_offset
        left.add(tuple(offsets(log, 0)))
        log.write(1, now=8)
        assert log.log_end_offset == offsets(log, 0)[-1] + 1 + (0 if log.high_watermark == log.log_end_offset else 1)
    assert left == {(0, 1), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)}


def test_a_log_that_is_not_lazy_loses_nothing():
    log = SimLog()
    log.write(3, now=5)
    log.crash(Random(1))
    assert offsets(log, 0) == [0, 1, 2]


def test_a_failing_log_takes_nothing():
    log = SimLog()
    log.fails = True
    with pytest.raises(KafkaError, match="disk"):
        log.write(1, now=5)
    assert log.log_end_offset == 0
