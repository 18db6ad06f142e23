"""What one Spark task reads, in a batch read or a stream, and how it reads it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import zip_longest
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from muster.client.plain.fetch import FetchSettings, RangeReader
from muster.model import TopicPartition
from muster.spark.offsets import Claim
from muster.spark.source.shares import pack
from muster.spark.worker import keep_memory, spare_collections


class OffsetRange(NamedTuple):
    """Offsets `[start, end)` of a partition. The topic's ID is in hexadecimal, empty if unknown."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


class ReadTask(InputPartition):  # type: ignore[misc]
    """What one task reads: ranges, one after another."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"ReadTask({', '.join(map(str, self.ranges))})"


def tasks(
    pieces: Iterable[tuple[TopicPartition, Claim]], ids: Callable[[str], str], most: int | None
) -> list[ReadTask]:
    """The tasks that read these claims: one for each, or at most `most`. `ids` returns a topic's ID."""
    ranges = [OffsetRange(*place, *claim, ids(place.topic)) for place, claim in pieces]
    return [ReadTask(some) for some in pack(ranges, most, lambda found: found.end - found.start)]


def read_range(settings: FetchSettings, task: InputPartition) -> Generator[pa.RecordBatch, None, None]:
    """Run one task, on an executor. The first request for a range is sent before the last records of the previous range
    are returned, as within a range."""
    if not isinstance(task, ReadTask):
        return
    keep_memory()
    readers = [_reader(settings, found) for found in task.ranges]
    try:
        for reader, following in zip_longest(readers, readers[1:]):
            yield from reader.batches(None if following is None else following.begin)
    finally:
        for reader in readers:
            reader.close()
    spare_collections()


def _reader(settings: FetchSettings, found: OffsetRange) -> RangeReader:
    place = TopicPartition(found.topic, found.partition)
    return RangeReader(settings, place, found.start, found.end, bytes.fromhex(found.topic_id))
