"""Partitions read concurrently: each is complete and in order, in bounded memory, and failures come in their place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from muster.history.sources.reading import side_by_side


def rows(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


class Topic:
    """Partitions with these numbers of batches; records how far each was read."""

    def __init__(self, sizes: dict[int, int], fails: int | None = None) -> None:
        self.records, self.fails = sizes, fails
        self.given = dict.fromkeys(sizes, 0)
        self.closed = threading.Semaphore(0)

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        try:
            for number in range(self.records[partition]):
                self.given[partition] += 1
                yield rows(100 * partition + number)
            if partition == self.fails:
                raise OSError("it is gone")
        finally:
            self.closed.release()


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [batch["n"][0].as_py() for batch in batches]


def test_each_partition_comes_whole_in_the_order_asked_for():
    sizes = {7: 5, 1: 0, 2: 30, 3: 1, 4: 2, 5: 3, 6: 4}
    found = [(partition, numbers(batches)) for partition, batches in side_by_side(Topic(sizes), list(sizes))]
    assert found == [(partition, [100 * partition + n for n in range(size)]) for partition, size in sizes.items()]


def test_without_partitions_there_are_no_parts():
    assert list(side_by_side(Topic({}), [])) == []


def test_a_reader_waits_until_what_it_has_read_is_taken():
    topic = Topic({0: 50, 1: 50})
    parts = side_by_side(topic, [0, 1])
    _, batches = next(parts)
    assert numbers(iter([next(batches)])) == [0]
    assert topic.given[0] <= 4  # one taken, two waiting, one in hand
    parts.close()


def test_what_a_reader_raises_comes_after_what_it_had_read():
    parts = side_by_side(Topic({0: 2, 1: 1}, fails=0), [0, 1])
    _, batches = next(parts)
    assert numbers(iter([next(batches), next(batches)])) == [0, 1]
    with pytest.raises(OSError, match="it is gone"):
        next(batches)
    _, batches = next(parts)
    assert numbers(batches) == [100]


def test_a_reader_ends_when_the_caller_does():
    topic = Topic({0: 50})
    parts = side_by_side(topic, [0])
    _, batches = next(parts)
    next(batches)
    parts.close()
    assert topic.closed.acquire(timeout=120)
    assert topic.given[0] < 50
