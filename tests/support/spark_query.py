"""A streaming query in a process of its own, with its own JVM, for tests that kill it.

Reads one JSON object from the command line: the source's options, the checkpoint, the sink folder, and how long each
batch takes. The sink is idempotent: batch N is one file, written whole. It runs until it is stopped or killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from muster.spark import session

_AGAIN = 3
"""How often a query is begun again whose Python process was late."""

QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}


def write_batch(folder: Path, rows: list[Any], batch: int) -> None:
    """One file for each batch, whole or not there."""
    partial = folder / f".{batch}"
    partial.write_text(json.dumps([[row["partition"], row["offset"]] for row in rows]))
    partial.replace(folder / str(batch))


class Stream:
    """A query. Spark gives a source's Python process ten seconds to start, which no setting changes: on a busy machine
    that is not always enough, and ends the query before it has read anything. Then it is begun again, three times at
    most. A query that has got further is not: its end is the test's affair."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._query = begin()
        self._begun = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended, in good order; whether it has."""
        while True:
            try:
                return bool(self._query.awaitTermination(timeout_s) is not False)
            except StreamingQueryException:
                if not self._begun_again():
                    raise

    def look(self) -> None:
        """Raise what has ended it."""
        error = self._query.exception()
        if error is not None and not self._begun_again():
            raise error

    def _begun_again(self) -> bool:
        late = "worker failed to connect back" in str(self._query.exception()) and self._query.lastProgress is None
        if not late or self._begun > _AGAIN:
            return False
        self._begun += 1
        self._query = self._begin()
        return True


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
    query = Stream(writer.trigger(processingTime="100 milliseconds").start)
    print(json.dumps({"pid": os.getpid(), "jvm": jvm}), flush=True)
    query.wait()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
