"""What the Spark source's option `columns` saves: records of 100 bytes, read with fewer and fewer columns, in turn.

    python -m benchmarks columns [--records 1000000] [--rounds 3] [--bootstrap HOST:PORT]

Each query discards its rows. It reads a tenth of the records, then all: the cost of a row is computed from the
difference. Figures are medians of the rounds. CPU is that of the JVM and all Python workers; on a shared machine it is
the reliable figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import report, spark_data
from benchmarks.spark_data import PARTITIONS, Topic
from benchmarks.spark_source import CORES, QUIET, SHORT, clocked
from muster.spark import session
from tests.support import peers

COLUMNS = ("key,value,topic,partition,offset,timestamp,timestampType", "key,value", "value", "offset")
HEAD = ("columns", "rows a second", "CPU of a row")


def main() -> int:
    """Run the queries and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", help="a broker that is already running")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            bootstrap = held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap
        spark = session("muster benchmark", f"local[{CORES}]", **QUIET)
        held.callback(spark.stop)
        topic = spark_data.fill(bootstrap, 100, "none", arguments.records)
        figures = measure(spark, bootstrap, topic, arguments.rounds)
        spark_data.drop(bootstrap, topic)
    rows = [
        (name, f"{1 / median(found.us):.2f} M/s", f"{median(found.cpu_us):.2f} µs") for name, found in figures.items()
    ]
    print(report.plain_table(HEAD, rows, (0,)))
    cases = {name: found._asdict() for name, found in figures.items()}
    path = report.save_as("spark-columns", {"records": topic.records, "rounds": arguments.rounds, "cases": cases})
    print(f"\n{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        note = f"{arguments.records:,} records, medians of {arguments.rounds} rounds, on {report.machine()}."
        report.put_on_page("spark-columns", f"{note}\n\n{report.markdown_table(HEAD, rows, (0,))}")
    return 0


class Figure(NamedTuple):
    """The cost of a row in each round, in microseconds."""

    us: list[float]
    cpu_us: list[float]


def measure(spark: Any, bootstrap: str, topic: Topic, rounds: int) -> dict[str, Figure]:
    """All queries in turn: a tenth of the records, then all; the first turn does not count."""
    found = {columns: Figure([], []) for columns in COLUMNS}
    few = topic.of_each // SHORT
    more = (topic.of_each - few) * PARTITIONS
    for turn in range(rounds + 1):
        for columns, figures in found.items():
            spent = []
            for of_each in (few, topic.of_each):
                starts = {topic.name: {str(index): topic.of_each - of_each for index in range(PARTITIONS)}}
                given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic.name, "columns": columns}
                reader = spark.read.format("muster").options(**given, startingOffsets=json.dumps(starts))
                with clocked() as taken:
                    reader.option("maxPartitions", CORES).load().write.format("noop").mode("overwrite").save()
                spent.append(taken)
            if turn:
                for figure, less, whole in zip(figures, *spent, strict=True):
                    figure.append((whole - less) / more * 1e6)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
