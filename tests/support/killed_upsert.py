"""A query that writes a topic's numbers into PostgreSQL, in a process that may be killed at the end of a batch.

killed_upsert.py BOOTSTRAP TOPIC CHECKPOINT ADDRESS: reads batches of ten, and kills itself with SIGKILL when its first
batch is in the database, before Spark can record it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from muster.spark import session
from muster.spark.upsert import into_database
from tests.support.spark_query import QUIET, Stream

TABLE = "numbers"


class Killed(psycopg.Connection[Any]):
    """Kills the process when a transaction with rows of the table is committed."""

    def commit(self) -> None:
        found = self.execute(f"select count(*) from {TABLE}").fetchone()
        super().commit()
        if found != (0,):
            os.kill(os.getpid(), signal.SIGKILL)


def write_numbers(spark: Any, bootstrap: str, topic: str, checkpoint: Path, connect: Callable[[], Any]) -> Stream:
    """Start the query, which ends when it has read the existing records."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("muster").options(mode="assign", maxOffsetsPerTrigger="10", **options).load()
    writer = frame.select("partition", "offset").writeStream.foreachBatch(into_database(connect, TABLE))
    return Stream(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start)


if __name__ == "__main__":
    bootstrap, topic, checkpoint, address = sys.argv[1:]
    spark = session("killed", "local[1]", **QUIET)
    write_numbers(spark, bootstrap, topic, Path(checkpoint), partial(Killed.connect, address)).wait()
