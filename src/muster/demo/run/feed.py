"""The demo's second Spark program: it feeds the topics, and is a member of the group shared with Python.

Two queries: `feed` reads the files that the demo puts into a folder and writes their records with muster's sink, one
file in each batch, so that ids rise within a partition; `shared` is a member alongside Python processes, and writes
what it handles as Parquet. When all is done, this program reads what the pipeline has written, and makes the history of
all groups from `__consumer_offsets`.

It prints `ready`, and a line for each batch. On the command `stop` it ends its queries; on `collect` it writes what
the judgement needs to files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from muster.demo.data.names import KEYS, SPARK
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.run.pipeline import SETTINGS, read_topic
from muster.demo.run.program import Program, Reporter
from muster.spark import history, session
from muster.spark.upsert import latest


def start_feed(spark: SparkSession, access: ClusterAccess, out: Path) -> StreamingQuery:
    """Records from the files in OUT/incoming, in the order of their files."""
    files = (
        spark.readStream.schema("topic STRING, key STRING, value STRING")
        .option("maxFilesPerTrigger", 1)
        .json(str(out / "incoming"))
    )
    writer = files.writeStream.format("muster").options(**access.options())
    started: StreamingQuery = (
        writer.option("checkpointLocation", str(out / "checkpoints" / "feed"))
        .queryName("feed")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    return started


def start_shared(spark: SparkSession, access: ClusterAccess, out: Path, group: str, topic: str) -> StreamingQuery:
    """A member of the group that writes what it handles."""
    checkpoint = str(out / "checkpoints" / "shared")
    source = read_topic(spark, access, topic, group, SPARK, checkpoint)
    handled = source.select("partition", "offset", f.col("value").cast("string").alias("value"))
    started: StreamingQuery = (
        handled.writeStream.format("parquet")
        .option("path", str(out / "shared"))
        .option("checkpointLocation", checkpoint)
        .queryName("shared")
        .trigger(processingTime="1 second")
        .start()
    )
    return started


def collect(spark: SparkSession, access: ClusterAccess, out: Path, groups: Sequence[str]) -> None:
    """Write to OUT/collected, as lines of JSON, what the judgement reads: the table, the joined flights, what the
    shared query has handled, and each rebalance of the groups."""
    _write(spark.read.schema("partition INT, offset LONG, value STRING").parquet(str(out / "shared")), out, "shared")
    _write(latest(spark, str(out / "delays"), KEYS), out, "delays")
    joined = spark.read.parquet(str(out / "weather")).select("id", "dep_delay", "precip", "wind_speed", "visib")
    _write(joined, out, "weather")
    options: dict[str, Any] = {
        name.replace(".", "_"): value for name, value in access.options().items() if "bootstrap" not in name
    }
    with history.tables(spark, bootstrap=access.bootstrap, groups=groups, **options) as found:
        rows = found.rebalances.select("group", "generation", "at_ms", "cause", "confidence", "source")
        _write(rows, out, "rebalances")


def _write(rows: DataFrame, out: Path, name: str) -> None:
    """Write one file on the driver: the process that reads it might not share a folder with the executors."""
    folder = out / "collected"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in rows.toJSON().toLocalIterator(prefetchPartitions=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Run both queries until the command to stop."""
    parser = argparse.ArgumentParser(prog="python -m muster.demo.run.feed")
    ClusterAccess.add_to(parser)
    for name in ("group", "topic", "out", "master"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args(argv)
    with Program() as program:
        run(program, arguments)
    return 0


def run(program: Program, arguments: argparse.Namespace) -> None:
    """Start both queries, and execute the demo's commands."""
    access, out = ClusterAccess.of(arguments), Path(arguments.out)
    spark = session("muster demo: feed", arguments.master, **SETTINGS)
    queries = [start_shared(spark, access, out, arguments.group, arguments.topic), start_feed(spark, access, out)]
    reporter = Reporter(queries, program.say)
    program.say({"event": "ready"})
    for command in program.commands():
        match command["do"]:
            case "stop":
                reporter.stop()
                for query in queries:
                    query.stop()
                program.say({"event": "stopped"})
            case "collect":
                collect(spark, access, out, command["groups"])
                program.say({"event": "collected"})
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
