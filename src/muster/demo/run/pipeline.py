"""The demo's pipeline: a program for Spark with three streaming queries, each a member of its own consumer group.

    flights ──┬─ parsed, joined with airlines and airports ─┬─ good ─── windows of a day ──┬─ a table (Parquet)
              │                                             │                              └─ a compacted topic
              │                                             └─ late, damaged ── a topic of dead letters
    weather ──┴─ good flights joined with the weather of their hour ── Parquet

The records determine which flights are late (events.py), so the result is the same however Spark cuts its batches, and
whatever is killed. Spark's watermark only says when state may be dropped: WATERMARK exceeds the time by which good
flights can be out of order, so it drops none.

Killed at any time and restarted on the same folder, the program continues where it was. On the command `lose an
executor` it lets a task kill its own executor; on `finish` it reads to the end (program.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from muster.demo.data.events import ALLOWED_LATENESS, FlightFault
from muster.demo.data.flights import airlines, airports
from muster.demo.data.names import HEARTBEAT_INTERVAL_MS, KEYS, SESSION_TIMEOUT_MS, DemoNames
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.run.program import Program, Reporter
from muster.spark import session
from muster.spark.stopping import stoppable
from muster.spark.upsert import Write, into_parquet, into_topic

FLIGHT = (
    "id LONG, seen_at TIMESTAMP, time_hour TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, dep_delay INT, damaged STRING"
)
WEATHER = "station STRING, hour TIMESTAMP, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"
WATERMARK = "14 days"

_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""With a single compiler the code cache is 48 MB. When full, it stops compilation, and says so on standard output."""

SETTINGS = {
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": False,
    "spark.sql.session.timeZone": "UTC",
    # For a run of a few minutes on small batches, optimizing compilation costs more than it gains.
    "spark.driver.extraJavaOptions": _SMALL,
    "spark.executor.extraJavaOptions": _SMALL,
    # The demo judges batches by their offsets, of which Spark would keep only the last hundred.
    "spark.sql.streaming.minBatchesToRetain": 1_000_000,
    # Limits for demos on Spark clusters, which two programs share.
    "spark.executor.cores": 1,
    "spark.cores.max": 2,
}


class Pipeline:
    """The three queries. How and when they read and write is in separate attributes and methods: another connector can
    replace these."""

    trigger: Mapping[str, Any] = {"processingTime": "2 seconds"}

    def __init__(self, spark: SparkSession, access: ClusterAccess, names: DemoNames, out: Path) -> None:
        self._spark = spark
        self._access = access
        self._names = names
        self._out = out
        self._airlines = _named(spark, airlines(), "carrier", "airline")
        self._airports = _named(spark, airports(), "origin", "airport")

    def start(self) -> list[StreamingQuery]:
        """Start them, each on its checkpoint."""
        return [self._windows(), self._join(), self._check()]

    def _windows(self) -> StreamingQuery:
        flights = self._flights("windows").where("fault IS NULL").withWatermark("time_hour", WATERMARK)
        by_day = flights.groupBy(f.window("time_hour", "1 day"), "origin", "carrier").agg(
            f.first("airport").alias("airport"),
            f.first("airline").alias("airline"),
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("minutes"),
        )
        rows = by_day.withColumn("day", f.to_date("window.start")).drop("window")
        into_table = into_parquet(str(self._out / "delays"), KEYS)
        into_results = self._into_results()

        @stoppable
        def write(batch: DataFrame, number: int) -> None:
            batch.persist()  # otherwise each sink would compute the windows again
            into_table(batch, number)
            into_results(batch, number)
            batch.unpersist()

        return self._query("windows", rows.writeStream.outputMode("update").foreachBatch(write))

    def _join(self) -> StreamingQuery:
        flights = self._flights("join").where("fault IS NULL").withWatermark("time_hour", WATERMARK)
        hours = self._source("join-weather", self._names.weather)
        weather = hours.select(f.from_json(f.col("value").cast("string"), WEATHER).alias("w")).select("w.*")
        joined = flights.join(
            weather.withWatermark("hour", WATERMARK), f.expr("origin = station AND time_hour = hour")
        ).select("id", "origin", "dest", "carrier", "time_hour", "dep_delay", "temp", "wind_speed", "precip", "visib")
        return self._query("join", joined.writeStream.format("parquet").option("path", str(self._out / "weather")))

    def _check(self) -> StreamingQuery:
        dead = self._flights("check").where("fault IS NOT NULL")
        place = f.concat_ws("-", "topic", "partition", "offset")
        letters = dead.select(
            "key", "value", f.array(_header("fault", f.col("fault")), _header("source", place)).alias("headers")
        )
        return self._query("check", self._to_topic(letters, self._names.dead))

    def _into_results(self) -> Write:
        return into_topic(self._names.windows, KEYS, **self._access.options())

    def _to_topic(self, rows: DataFrame, topic: str) -> Any:
        return rows.writeStream.format("muster").options(**self._access.options(), topic=topic)

    def _flights(self, query: str) -> DataFrame:
        """Flights as a query reads them: records, columns, and `fault`, which is null for good ones."""
        records = self._source(query, self._names.flights)
        flight = f.from_json(f.col("value").cast("string"), FLIGHT, {"columnNameOfCorruptRecord": "damaged"})
        parsed = records.select("topic", "partition", "offset", "key", "value", flight.alias("flight"))
        columns = parsed.select("topic", "partition", "offset", "key", "value", "flight.*")
        named = columns.join(f.broadcast(self._airlines), "carrier", "left").join(
            f.broadcast(self._airports), "origin", "left"
        )
        oldest = f.col("seen_at") - f.expr(f"INTERVAL {ALLOWED_LATENESS.days} DAYS")
        fault = (
            f.when(f.col("damaged").isNotNull() | f.col("id").isNull(), FlightFault.NOT_JSON)
            .when(f.col("time_hour").isNull() | f.col("seen_at").isNull(), FlightFault.NO_HOUR)
            .when(f.col("airline").isNull(), FlightFault.UNKNOWN)
            .when(f.col("time_hour") < oldest, FlightFault.LATE)
        )
        return named.withColumn("fault", fault)

    def _source(self, group: str, topic: str) -> DataFrame:
        checkpoint = self._checkpoint(group.partition("-")[0])
        return read_topic(self._spark, self._access, topic, self._names.group(group), group, checkpoint)

    def _query(self, name: str, writer: Any) -> StreamingQuery:
        started: StreamingQuery = (
            writer.option("checkpointLocation", self._checkpoint(name)).queryName(name).trigger(**self.trigger).start()
        )
        # Each source has a Python process, which Spark gives ten seconds to start, whatever else starts meanwhile: on a
        # busy machine the four of them would not all be in time if they began together.
        while started.isActive and str(started.status["message"]).startswith("Initializing"):
            time.sleep(0.02)
        return started

    def _checkpoint(self, query: str) -> str:
        return str(self._out / "checkpoints" / query)


def read_topic(
    spark: SparkSession, access: ClusterAccess, topic: str, group: str, client_id: str, checkpoint: str
) -> DataFrame:
    """A topic's records, read from the beginning by a member of a group."""
    return (
        spark.readStream.format("muster")
        .options(**access.options())
        .option("subscribe", topic)
        .option("group.id", group)
        .option("kafka.client.id", client_id)
        .option("startingOffsets", "earliest")
        .option("maxPartitions", "1")
        .option("kafka.session.timeout.ms", str(SESSION_TIMEOUT_MS))
        .option("kafka.heartbeat.interval.ms", str(HEARTBEAT_INTERVAL_MS))
        .option("checkpointLocation", checkpoint)
        .load()
    )


def _named(spark: SparkSession, names: Mapping[str, str], code: str, name: str) -> DataFrame:
    """A static table. Made from Arrow it is part of the plan, and costs a batch no separate job."""
    return spark.createDataFrame(pa.table({code: list(names), name: list(names.values())}))


def _header(name: str, value: Column) -> Column:
    return f.struct(f.lit(name).alias("key"), f.encode(value, "utf-8").alias("value"))


# ---------------------------------------------------------------------------------------------------------- the process


def lose_executor(spark: SparkSession) -> None:
    """Kill an executor of this program with SIGKILL, wherever it runs; Spark retries its tasks. In `local` mode, in
    which the driver runs tasks, its Python workers are killed."""
    keeps_jvm = spark.sparkContext.master.startswith("local")
    spark.sparkContext.parallelize([keeps_jvm], 1).foreachPartition(_kill_executor)


def _kill_executor(keeps_jvm: Iterable[bool]) -> None:
    """A task that kills its executor; when retried, it does nothing."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() > 0:
        return
    if not any(keeps_jvm):
        # The parent of this process is the daemon that forks Python workers, and its parent is the executor's JVM.
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)  # the daemon's group: all Python workers of the executor


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pipeline until the command to finish."""
    parser = argparse.ArgumentParser(prog="python -m muster.demo.run.pipeline")
    ClusterAccess.add_to(parser)
    for name in ("topic", "out", "master"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args(argv)
    with Program() as program:
        run(program, arguments)
    return 0


def run(program: Program, arguments: argparse.Namespace) -> None:
    """Start the pipeline, and execute the demo's commands."""
    spark = session("muster demo: pipeline", arguments.master, **SETTINGS)
    pipeline = Pipeline(spark, ClusterAccess.of(arguments), DemoNames.of(arguments.topic), Path(arguments.out))
    queries = pipeline.start()
    reporter = Reporter(queries, program.say)
    program.say({"event": "ready"})
    for command in program.commands():
        match command["do"]:
            case "lose an executor":
                lose_executor(spark)
                program.say({"event": "lost an executor"})
            case "finish":
                reporter.stop()
                for query in queries:
                    query.processAllAvailable()
                    query.stop()
                program.say({"event": "finished"})
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
