"""A query through Spark Connect, in a separate process: one process has either a classic session or a remote one.

Reads one JSON object from the command line: the address, the topic, the group, the number of records and a folder. Its
trigger comes once an hour, so only the message of the session's listener makes it commit the batch while it runs. It
prints one JSON object and waits for a line from its caller before it ends.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from muster.errors import ConfigError
from muster.spark import history, register
from muster.spark.sessions import prepare
from tests.support.spark_query import QUIET

PATIENCE_S = 300.0


def _refused(spark: Any) -> bool:
    """Whether follow() refuses a session that is not a driver, because it does not run over Spark Connect."""
    try:
        history.follow(spark, "127.0.0.1:1", "out")
    except ConfigError as error:
        return "`muster history`" in str(error)
    return False


def main(arguments: dict[str, Any]) -> None:
    """Read the topic twice, as a batch and as a member of the group; write a copy of it."""
    from pyspark.sql import SparkSession

    prepare()
    spark = register(SparkSession.builder.remote("local[2]").config(map=QUIET).getOrCreate())
    options = {
        "kafka.bootstrap.servers": arguments["bootstrap"],
        "subscribe": arguments["topic"],
        "startingOffsets": "earliest",
    }
    batch = spark.read.format("muster").options(**options).load().count()
    frame = spark.readStream.format("muster").options(**options, groupId=arguments["group"]).load()
    writer = frame.select("partition", "offset").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{arguments['folder']}/checkpoint")
    query = writer.trigger(processingTime="1 hour").start(f"{arguments['folder']}/sink")
    deadline = time.monotonic() + PATIENCE_S
    while not query.recentProgress and query.exception() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    sink = spark.read.parquet(f"{arguments['folder']}/sink")
    rows = spark.read.format("muster").options(**options).load().select("key", "value", "partition")
    to = {"bootstrap": arguments["bootstrap"], "topic": arguments["topic"] + "-copy"}
    rows.write.format("muster").options(**to).mode("append").save()
    written = spark.read.format("muster").options(**options | {"subscribe": to["topic"]}).load().count()
    kept = history.tables(spark, bootstrap=arguments["bootstrap"], groups=[arguments["group"]])
    found = {
        "history": [
            kept.generations.count() > 0,
            kept.lag.count() >= 0,
            kept.lag_over_time.count() >= 0,
            _refused(spark),
        ],
        "session": type(spark).__module__,
        "batch": batch,
        "stream": sink.distinct().count(),
        "written": written,
    }
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
