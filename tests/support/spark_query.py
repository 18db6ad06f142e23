"""A streaming query in a process of its own, with its own JVM, for tests that kill it.

Reads one JSON object from the command line: the source's options, the checkpoint, the sink folder, and how long each
batch takes. The sink is idempotent: batch N is one file, written whole. It runs until it is stopped or killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from muster.spark import session

QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}


def write_batch(folder: Path, rows: list[Any], batch: int) -> None:
    """One file for each batch, whole or not there."""
    partial = folder / f".{batch}"
    partial.write_text(json.dumps([[row["partition"], row["offset"]] for row in rows]))
    partial.replace(folder / str(batch))


def main(arguments: dict[str, Any]) -> None:
    """Run the query."""
    spark = session("test", "local[2,4]", **QUIET)
    jvm = spark.sparkContext._gateway.proc.pid
    Path(arguments["sink"]).mkdir(parents=True, exist_ok=True)

    def sink(frame: Any, batch: int) -> None:
        rows = frame.select("partition", "offset").collect()
        time.sleep(arguments["batch_s"])
        write_batch(Path(arguments["sink"]), rows, batch)

    frame = spark.readStream.format("muster").options(**arguments["options"]).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", arguments["checkpoint"])
    query = writer.trigger(processingTime="100 milliseconds").start()
    print(json.dumps({"pid": os.getpid(), "jvm": jvm}), flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
