"""The demo's fourth member: a Spark Structured Streaming query, and the batch job over everything that was handled.

It speaks with the demo in lines of JSON: `ready` when the query runs, then, when it is told `finish` with the members'
files, it stops the query in good order and answers with the result of the job. It ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from muster.demo.way import Way
from muster.spark import session

FLIGHT = StructType(
    [
        StructField("carrier", StringType()),
        StructField("hour", IntegerType()),
        StructField("dep_delay", IntegerType()),
    ]
)
HANDLED = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", FLIGHT),
    ]
)


def start_query(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query: a member of the group that writes what it handles as Parquet."""
    source = (
        spark.readStream.format("muster")
        .options(**Way.of(arguments).options())
        .option("subscribe", arguments.topic)
        .option("group.id", arguments.group)
        .option("kafka.client.id", arguments.name)
        .option("startingOffsets", "earliest")
        .option("kafka.session.timeout.ms", "6000")
        .option("kafka.heartbeat.interval.ms", "1000")
        .option("checkpointLocation", str(Path(arguments.out) / "checkpoint"))
        .load()
    )
    handled = source.select("topic", "partition", "offset", f.col("value").cast("string").alias("value"))
    return (
        handled.writeStream.format("parquet")
        .option("path", str(Path(arguments.out) / "parquet"))
        .option("checkpointLocation", str(Path(arguments.out) / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def everything(spark: SparkSession, out: Path, files: Sequence[str]) -> DataFrame:
    """All that was handled, each record once: Spark's Parquet and the Python members' JSON lines.

    The members' files hold notes too, and perhaps a torn last line: neither has an offset.
    """
    parts = []
    if files:
        lines = spark.read.schema(HANDLED).json(list(files)).where(f.col("offset").isNotNull())
        parts.append(lines.select("topic", "partition", "offset", "value.*"))
    parquet = spark.read.schema("topic string, partition int, offset long, value string").parquet(str(out / "parquet"))
    parts.append(
        parquet.withColumn("value", f.from_json("value", FLIGHT)).select("topic", "partition", "offset", "value.*")
    )
    union = parts[0]
    for part in parts[1:]:
        union = union.unionByName(part)
    return union.dropDuplicates(["topic", "partition", "offset"])


def delays(flights: DataFrame, column: str) -> list[dict[str, Any]]:
    """Flights, departures and the sum of their delays in minutes, by a column."""
    rows: list[Row] = (
        flights.groupBy(column)
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("total_minutes"),
        )
        .orderBy(column)
        .collect()
    )
    return [row.asDict() for row in rows]


def finish(spark: SparkSession, query: StreamingQuery, out: Path, files: Sequence[str]) -> dict[str, Any]:
    """Stop the query and run the job. The rows of Spark's own output are told too, for the books."""
    query.stop()
    flights = everything(spark, out, files).cache()
    result: dict[str, Any] = {
        "distinct": flights.count(),
        "by_carrier": delays(flights, "carrier"),
        "by_hour": delays(flights, "hour"),
    }
    rows = spark.read.schema("partition int, offset long").parquet(str(out / "parquet")).collect()
    written: dict[int, list[int]] = {}
    for row in rows:
        written.setdefault(row.partition, []).append(row.offset)
    return result | {"spark_rows": written}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the query until told to finish."""
    parser = argparse.ArgumentParser(prog="python -m muster.demo.spark_query")
    Way.add_to(parser)
    for name in ("group", "topic", "name", "out", "master"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the demo, which decides
    settings = {
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
        "spark.sql.session.timeZone": "UTC",
        # Spark would forget the offsets of batches before the last hundred, and the books need them all.
        "spark.sql.streaming.minBatchesToRetain": 1_000_000,
    }
    spark = session("muster demo", arguments.master, **settings)
    query = start_query(spark, arguments)
    _say({"event": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        if query.exception() is not None:
            _say({"event": "failed", "error": str(query.exception())})
            return 1
        if command["do"] == "finish":
            _say({"event": "result", **finish(spark, query, Path(arguments.out), command["files"])})
            break
    spark.stop()
    return 0


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
