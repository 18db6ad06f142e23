"""What one task of Spark reads, of a batch query and of a stream alike, and the reading."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from muster.model import TopicPartition
from muster.spark.fetch import FetchSettings, RangeReader


class OffsetRange(InputPartition):  # type: ignore[misc]
    """What one task reads. The topic's id is in hexadecimal digits, empty where it is not known."""

    def __init__(self, topic: str, partition: int, start: int, end: int, topic_id: str = "") -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"OffsetRange({self.topic}-{self.partition} [{self.start}, {self.end}))"


def read_range(settings: FetchSettings, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Run one task, on an executor."""
    if isinstance(task, OffsetRange):
        place = TopicPartition(task.topic, task.partition)
        yield from RangeReader(settings, place, task.start, task.end, bytes.fromhex(task.topic_id)).batches()
        _spare_collections()


_spared = 0
"""How many modules this process had when its objects were frozen."""


def _spare_collections() -> None:
    """Keep what is imported out of the full garbage collection that Spark's worker runs behind every task: it takes
    70 ms for what pyspark, pyarrow and numba consist of, where 25,000 records take 9. Only in a worker: what else
    would this process be used for?

    What is frozen is never looked at again. So garbage goes first, with it what was in use when the process was frozen
    before: else a worker whose tasks import something each would grow with each."""
    global _spared
    if TaskContext.get() is not None and len(sys.modules) != _spared:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _spared = len(sys.modules)
