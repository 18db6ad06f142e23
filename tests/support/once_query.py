"""A query that copies a topic to another with `exactlyOnce`, in a process that is killed.

once_query.py BOOTSTRAP SOURCE TARGET CHECKPOINT ROWS TASKS KILL: reads batches of ROWS rows in TASKS tasks, and ends
when it has read the existing records. With KILL "N:B" its driver, its JVM and its workers die by SIGKILL as soon as the
first N tasks of batch B have committed: all of them, before Spark can record it, or one, before the next one writes.
The tasks after them wait for the kill, however late that comes. With "never" it runs to its end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from muster.client.config import ClientConfig
from muster.client.plain.cluster import connect
from muster.model import TopicPartition
from muster.spark import session
from muster.spark.exactly_once import BATCH_ID, task_name
from tests.support.spark_query import QUIET, Stream

PREFIX = "once"


def held_back(number: int, batch: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For mapInArrow: passes rows, except those of task `number` of a batch and of all later ones."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if (int(context.getLocalProperty(BATCH_ID) or 0), context.partitionId()) >= (batch, number):
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.1)
        yield from batches

    return passing


def copy(
    spark: Any, bootstrap: str, source: str, target: str, checkpoint: Path, rows: int, tasks: int, kill: tuple[int, ...]
) -> Stream:
    """Start the query."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    options |= {"mode": "assign", "maxOffsetsPerTrigger": str(rows), "maxPartitions": str(tasks)}
    frame = spark.readStream.format("muster").options(**options).load()
    to = {"kafka.bootstrap.servers": bootstrap, "topic": target, "exactlyOnce": "true"}
    to |= {"kafka.transactional.id": f"{target}-{PREFIX}", "checkpointLocation": str(checkpoint)}
    chosen = frame.select("key", "value")
    if kill:
        chosen = chosen.mapInArrow(held_back(*kill), chosen.schema)
    writer = chosen.writeStream.format("muster").options(**to)
    return Stream(writer.trigger(availableNow=True).start)


def kill_when_marked(bootstrap: str, target: str, markers: dict[int, int]) -> None:
    """Kill this process and its JVM once these tasks have these markers."""
    cluster = connect(ClientConfig(bootstrap_servers=(bootstrap,)))
    place = TopicPartition(target, 0)
    while True:
        found = {
            number: cluster.committed(task_name(f"{target}-{PREFIX}", number), [place]).get(place) for number in markers
        }
        if all(one is not None and one.offset >= markers[number] for number, one in found.items()):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(0.005)


if __name__ == "__main__":
    bootstrap, source, target, checkpoint, rows, tasks, kill = sys.argv[1:]
    spark = session("once", "local[1]", **QUIET)
    at = () if kill == "never" else tuple(map(int, kill.split(":")))
    query = copy(spark, bootstrap, source, target, Path(checkpoint), int(rows), int(tasks), at)
    query.once = True
    if at:
        number, batch = at
        threading.Thread(
            target=kill_when_marked, args=(bootstrap, target, dict.fromkeys(range(number), batch + 1)), daemon=True
        ).start()
    query.wait()
