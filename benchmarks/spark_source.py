"""The Spark source compared with Spark's own Kafka connector (spark-sql-kafka-0-10), in one session, on one broker.

    python -m benchmarks spark [--records 2000000] [--rounds 3] [--cases batch count …] [--bootstrap HOST:PORT]
    python -m benchmarks spark --records 10000000 --rounds 1      # the full size, in about eight minutes

Without --bootstrap an Apache Kafka 4.2 is started for the run. Both sources read the same topic of 8 partitions on
`local[2]`, in turn, after a first short read of each that does not count. Each reads a tenth of the records, then all:
the cost of a record is computed from the difference; the rest of the short read is the cost of a query without its
records: its start, and for a stream also five batches, and joining and leaving a group. Medians are shown. CPU seconds
are those of the JVM and of all Python workers; on a shared machine they are the reliable figure.

The connector is tuned so that it does not wait. After every poll it asks the broker for the start and the end of the
partition, and the answer waits for the fetch that was sent ahead: at the end of a partition until fetch.max.wait.ms has
passed. With 5 ms instead of 500 it takes half the time. More records per poll, larger or smaller fetches and a larger
receive buffer made it no faster; a million records per poll took more CPU.

muster's maxPartitions is set to the number of cores; the connector has no such option.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import report, spark_data
from benchmarks.spark_data import PARTITIONS, Topic
from muster.spark import session
from tests.support import peers

CONNECTOR_VERSION = "4.2.0"
POM = Path(__file__).resolve().parent / "java" / "spark-connector.xml"
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    # The connector keeps its consumers, and the data that they have fetched, for five minutes: many queries fill 1 GiB.
    "spark.driver.memory": "4g",
}
TUNED = {
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.wait.ms": "5",
}
CORES = 2
"""Spark's cores, and the number of muster's tasks."""

SOURCES = ("muster", "kafka")
FIVE = ("key", "value", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class Case:
    """What is measured: the data (size of a value, codec, share of the records), and the query."""

    name: str
    label: str
    value_bytes: int
    codec: str
    share: float
    work: Callable[[Any], None]
    batches: int = 0
    """The number of batches of a streaming read with Trigger.AvailableNow; 0 means a batch read."""


def to_nowhere(frame: Any) -> None:
    """Materialize every row and discard it."""
    frame.select(*FIVE).write.format("noop").mode("overwrite").save()


def counted(frame: Any) -> None:
    """count()"""
    frame.count()


def grouped(frame: Any) -> None:
    """A shuffle: rows and bytes for each of 1,000 groups of keys."""
    frame.selectExpr("crc32(key) % 1000 as k", "length(value) as n").groupBy("k").sum("n").count()


CASES = (
    Case("batch", "100 B, five columns", 100, "none", 1.0, to_nowhere),
    Case("count", "100 B, count()", 100, "none", 1.0, counted),
    Case("group", "100 B, group by key and sum", 100, "none", 1.0, grouped),
    Case("stream", "100 B, AvailableNow, five batches", 100, "none", 1.0, to_nowhere, 5),
    Case("lz4", "100 B, lz4, five columns", 100, "lz4", 1.0, to_nowhere),
    Case("stream-lz4", "100 B, lz4, AvailableNow, five batches", 100, "lz4", 1.0, to_nowhere, 5),
    Case("zstd", "100 B, zstd, five columns", 100, "zstd", 1.0, to_nowhere),
    Case("snappy", "100 B, snappy, five columns", 100, "snappy", 1.0, to_nowhere),
    Case("gzip", "100 B, gzip, five columns", 100, "gzip", 1.0, to_nowhere),
    Case("1k", "1 KB, five columns", 1000, "none", 0.1, to_nowhere),
)
SHORT = 10
"""The short read has one record in this many."""

WANTED_RATIO = 1.5


def main() -> int:
    """Run the cases and print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="records of 100 bytes in a topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in CASES], default=None)
    parser.add_argument("--bootstrap", help="a broker that is already running")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.cases is None or case.name in arguments.cases]
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            bootstrap = held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap
        spark = session("muster benchmark", f"local[{CORES}]", **QUIET, **{"spark.jars": ",".join(connector_jars())})
        held.callback(spark.stop)
        results = []
        for (value_bytes, codec, share), cases in groupby(
            chosen, lambda case: (case.value_bytes, case.codec, case.share)
        ):
            topic = spark_data.fill(bootstrap, value_bytes, codec, int(arguments.records * share))
            for case in cases:
                results.append(measure(spark, bootstrap, topic, case, arguments.rounds, folder))
                print(json.dumps(results[-1]), flush=True)
            spark_data.drop(bootstrap, topic)
    print(report.plain_table(HEAD, cells(results), LEFT))
    path = report.save_as("spark", {"records": arguments.records, "rounds": arguments.rounds, "cases": results})
    print(f"\n{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        rounds = f"{arguments.rounds} round(s), on {report.machine()}"
        note = f"{arguments.records:,} records (a tenth as many of 1 KB), {rounds}."
        report.put_on_page("spark", f"{note}\n\n{report.markdown_table(HEAD, cells(results), LEFT)}")
    short = [found["case"] for found in results if found["ratio"] < WANTED_RATIO]
    dear = [found["case"] for found in results if found["muster"]["cpu_us"] > found["kafka"]["cpu_us"]]
    print(f"below {WANTED_RATIO}×: {', '.join(short) or 'none'}; more CPU for a record: {', '.join(dear) or 'none'}")
    return 0


def connector_jars() -> list[str]:
    """The connector's jars, fetched by Maven when they are not there yet."""
    folder = peers.peers_home() / "spark-connector" / CONNECTOR_VERSION
    if not folder.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise SystemExit("Maven fetches Spark's Kafka connector: install it (on Debian the package maven)")
        partial = folder.with_name(f"{CONNECTOR_VERSION}.{os.getpid()}")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
        command = [maven, "-q", "-B", "-f", str(POM), f"-Dconnector.version={CONNECTOR_VERSION}", *goal]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Maven could not fetch the connector:\n{done.stdout[-2000:]}")
        partial.rename(folder)
    return [str(path) for path in sorted(folder.glob("*.jar"))]


def measure(spark: Any, bootstrap: str, topic: Topic, case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """One case: both sources, in alternating order; a tenth of the records, then all. The first round does not count,
    because the JVM compiles during it."""
    run = stream if case.batches else batch
    sizes = {"short": topic.of_each // SHORT, "all": topic.of_each}
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn, size in product(range(rounds + 1), sizes):
        for source in SOURCES if turn % 2 else SOURCES[::-1]:
            with clocked() as spent:
                run(spark, source, bootstrap, topic, case, sizes[size], folder)
            if turn:
                taken.setdefault((source, size), []).append((spent[0], spent[1]))
    found: dict[str, Any] = {"case": case.name, "label": case.label, "records": topic.records}
    for source in SOURCES:
        short, whole = ([median(part) for part in zip(*taken[source, size], strict=True)] for size in sizes)
        found[source] = _figures(sizes["short"] * PARTITIONS, topic.records, short, whole)
    found["ratio"] = round(found["kafka"]["us"] / found["muster"]["us"], 2)
    found["whole_ratio"] = round(found["kafka"]["wall_s"] / found["muster"]["wall_s"], 2)
    return found


def _figures(few: int, many: int, short: list[float], whole: list[float]) -> dict[str, float]:
    """The cost of a record, and of a query without its records, from wall and CPU seconds of a short read and of a full
    one."""
    each_s, each_cpu_s = ((all_of - part_of) / (many - few) for part_of, all_of in zip(short, whole, strict=True))
    return {
        "us": each_s * 1e6,
        "cpu_us": each_cpu_s * 1e6,
        "fixed_s": short[0] - few * each_s,
        "fixed_cpu_s": short[1] - few * each_cpu_s,
        "wall_s": whole[0],
        "cpu_s": whole[1],
    }


def batch(spark: Any, source: str, bootstrap: str, topic: Topic, case: Case, of_each: int, _folder: Path) -> None:
    """Read the last `of_each` records of each partition in one batch."""
    case.work(spark.read.format(source).options(**options(source, bootstrap, topic, case, of_each)).load())


def stream(spark: Any, source: str, bootstrap: str, topic: Topic, case: Case, of_each: int, folder: Path) -> None:
    """Read them as a stream, up to the current end, in the same number of batches whether they are few or many, so that
    the cost of a batch is not counted as the cost of records."""
    limit = {"maxOffsetsPerTrigger": str(-(-of_each * PARTITIONS // case.batches))}
    group = {"groupId": f"bench-{uuid.uuid4().hex[:8]}"} if source == "muster" else {}
    given = {**options(source, bootstrap, topic, case, of_each), **limit, **group}
    frame = spark.readStream.format(source).options(**given).load().select(*FIVE)
    checkpoint = str(folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != of_each * PARTITIONS:
        raise SystemExit(f"{source} read {read} of {of_each * PARTITIONS} records")


def options(source: str, bootstrap: str, topic: Topic, case: Case, of_each: int) -> dict[str, str]:
    """The best settings of each source for reading the last `of_each` records of each partition."""
    starts = {topic.name: {str(index): topic.of_each - of_each for index in range(PARTITIONS)}}
    common = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic.name, "startingOffsets": json.dumps(starts)}
    if source == "kafka":
        return {**common, **TUNED}
    common["maxPartitions"] = str(CORES)
    if case.work is grouped:
        return {**common, "columns": "key,value"}
    return {**common, "columns": "offset" if case.work is counted else ",".join(FIVE)}


@contextlib.contextmanager
def clocked() -> Iterator[list[float]]:
    """Wall and CPU seconds of what happens within the block."""
    spent: list[float] = []
    cpu, begun = cpu_of_children(), time.perf_counter()
    yield spent
    spent += [time.perf_counter() - begun, cpu_since(cpu)]


class Used(NamedTuple):
    """The CPU seconds of a descendant process. Those of a worker are lost when it ends: Spark's daemon does not wait
    for it, and ends it after a minute without work."""

    seconds: float
    is_worker: bool


def cpu_since(before: dict[int, Used]) -> float:
    """The CPU seconds used since `before` was read."""
    now = cpu_of_children()
    known = sum(used.seconds for pid, used in before.items() if pid in now or not used.is_worker)
    return sum(used.seconds for used in now.values()) - known


def cpu_of_children() -> dict[int, Used]:
    """Every descendant process (the JVM, its Python workers) except brokers; none without /proc."""
    times: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            times[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    depths = {pid: _below_spark(pid, times) for pid in times}
    return {pid: Used(times[pid][1], depth > 1) for pid, depth in depths.items() if depth >= 0}


def _below_spark(pid: int, times: dict[int, tuple[int, float]]) -> int:
    """How many levels a process is below Spark's JVM, which is this one's child; -1 if it is not below it."""
    above: list[int] = [pid]
    while above[-1] in times and above[-1] != os.getpid():
        above.append(times[above[-1]][0])
    if above[-1] != os.getpid() or len(above) == 1:
        return -1
    with contextlib.suppress(OSError):
        if b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{above[-2]}/cmdline").read_bytes():
            return len(above) - 2
    return -1


HEAD = (
    "",
    "muster",
    "connector",
    "faster by",
    "CPU of a record",
    "the connector's",
    "without its records",
    "the connector's",
    "CPU without them",
    "the connector's",
)
LEFT = (0,)


def cells(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each case."""
    return [
        (
            found["label"],
            *(f"{1 / found[source]['us']:.2f} M/s" for source in SOURCES),
            f"{found['ratio']:.2f}×",
            *(f"{found[source]['cpu_us']:.2f} µs" for source in SOURCES),
            *(f"{found[source]['fixed_s']:.2f} s" for source in SOURCES),
            *(f"{found[source]['fixed_cpu_s']:.2f} s" for source in SOURCES),
        )
        for found in results
    ]


if __name__ == "__main__":
    raise SystemExit(main())
