"""The Spark source beside Spark's own Kafka connector (spark-sql-kafka-0-10), in one session, on one broker, in turn.

    python -m benchmarks spark [--records 2000000] [--rounds 3] [--cases batch count …] [--bootstrap HOST:PORT]

Without --bootstrap an Apache Kafka 4.2 is started for the run. Both sources read the same topic of 8 partitions on
`local[2]`, one round after the other, after a first round of each that is not counted; medians of the rest are shown.
The connector is tuned as well as it can be (4 MB partition fetches, 10,000 records a poll). CPU seconds are those of
the JVM and of all Python workers; where other work shares the machine they are the figure to trust.
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
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from muster.spark import session
from tests.support import peers

PARTITIONS = 8
CONNECTOR_VERSION = "4.2.0"
POM = Path(__file__).resolve().parent / "java" / "spark-connector.xml"
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
TUNED = {"kafka.max.partition.fetch.bytes": str(4 << 20), "kafka.max.poll.records": "10000"}
SOURCES = ("muster", "kafka")
FIVE = ("key", "value", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class Case:
    """What is measured: the data (size of a value, codec, share of the records), and what is done with it."""

    name: str
    label: str
    value_bytes: int
    codec: str
    share: float
    work: Callable[[Any], None]
    batches: int = 0
    """For a streaming read with Trigger.AvailableNow: in how many batches. 0 is a batch read."""


def to_nowhere(frame: Any) -> None:
    """Have every row made and thrown away."""
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
    Case("lz4", "100 B, lz4, five columns", 100, "lz4", 1.0, to_nowhere),
    Case("zstd", "100 B, zstd, five columns", 100, "zstd", 1.0, to_nowhere),
    Case("1k", "1 KB, five columns", 1000, "none", 0.1, to_nowhere),
    Case("stream", "100 B, AvailableNow, one batch", 100, "none", 1.0, to_nowhere, 1),
)


def main() -> int:
    """Run the cases and print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="records of 100 bytes in a topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in CASES], default=None)
    parser.add_argument("--bootstrap", help="a broker that is running already")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.cases is None or case.name in arguments.cases]
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            bootstrap = held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap
        spark = session("muster benchmark", "local[2]", **QUIET, **{"spark.jars": ",".join(connector_jars())})
        held.callback(spark.stop)
        results = [measure(spark, bootstrap, case, arguments, folder) for case in chosen]
    show(results)
    print(json.dumps({"records": arguments.records, "rounds": arguments.rounds, "cases": results}))
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


_topics: dict[tuple[int, str], str] = {}


def topic_for(bootstrap: str, case: Case, records: int) -> str:
    """A topic with the case's data, written when it is first needed."""
    key = case.value_bytes, case.codec
    if key not in _topics:
        _topics[key] = name = f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
            future.result(30)
        produce(bootstrap, name, records, case)
    return _topics[key]


def produce(bootstrap: str, topic: str, records: int, case: Case) -> None:
    """Keys that differ, values that compress about as JSON does."""
    settings = {"compression.type": case.codec, "linger.ms": 20, "batch.size": 64 << 10}
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 500_000, **settings})
    filler = [os.urandom(case.value_bytes).hex()[: case.value_bytes - 12].encode() for _ in range(64)]
    for number in range(records):
        value = b"%012d" % number + filler[number & 63]
        while True:
            try:
                producer.produce(topic, value, b"k%010d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 10_000:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit("the records could not be written")


def measure(spark: Any, bootstrap: str, case: Case, arguments: Any, folder: Path) -> dict[str, Any]:
    """One case: both sources in turn, the first round of each not counted."""
    records = max(PARTITIONS, int(arguments.records * case.share))
    topic = topic_for(bootstrap, case, records)
    taken: dict[str, list[tuple[float, float]]] = {source: [] for source in SOURCES}
    for turn in range(arguments.rounds + 1):
        for source in SOURCES:
            run = stream if case.batches else batch
            with clocked() as spent:
                run(spark, source, bootstrap, topic, case, records, folder)
            if turn:
                taken[source].append((spent[0], spent[1]))
    found: dict[str, Any] = {"case": case.name, "label": case.label, "records": records}
    for source, times in taken.items():
        wall = median(wall for wall, _ in times)
        found[source] = {
            "records_per_s": round(records / wall),
            "mb_per_s": round(records * (case.value_bytes + 11) / wall / 1e6, 1),
            "cpu_s": round(median(cpu for _, cpu in times), 2),
        }
    found["ratio"] = round(found["muster"]["records_per_s"] / found["kafka"]["records_per_s"], 2)
    return found


def batch(spark: Any, source: str, bootstrap: str, topic: str, case: Case, _records: int, _folder: Path) -> None:
    """Read it all at once."""
    case.work(spark.read.format(source).options(**options(source, bootstrap, topic, case)).load())


def stream(spark: Any, source: str, bootstrap: str, topic: str, case: Case, records: int, folder: Path) -> None:
    """Read it all as a stream, from the beginning to what is there now."""
    limit = {"maxOffsetsPerTrigger": str(-(-records // case.batches)), "startingOffsets": "earliest"}
    group = {"groupId": f"bench-{uuid.uuid4().hex[:8]}"} if source == "muster" else {}
    given = {**options(source, bootstrap, topic, case), **limit, **group}
    frame = spark.readStream.format(source).options(**given).load().select(*FIVE)
    checkpoint = str(folder / f"checkpoint-{uuid.uuid4().hex[:8]}")
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != records:
        raise SystemExit(f"{source} read {read} of {records} records")


def options(source: str, bootstrap: str, topic: str, case: Case) -> dict[str, str]:
    """How each source is set up for its best."""
    common = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    if source == "kafka":
        return {**common, **TUNED}
    if case.work is grouped:
        return {**common, "columns": "key,value"}
    return {**common, "columns": "offset" if case.work is counted else ",".join(FIVE)}


@contextlib.contextmanager
def clocked() -> Iterator[list[float]]:
    """Wall and CPU seconds of what happens within."""
    spent: list[float] = []
    cpu, begun = cpu_of_children(), time.perf_counter()
    yield spent
    spent += [time.perf_counter() - begun, cpu_of_children() - cpu]


def cpu_of_children() -> float:
    """CPU seconds of every process below this one (the JVM, its Python workers) but a broker; 0 where /proc is not."""
    times: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            times[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(spent for pid, (_, spent) in times.items() if _is_spark(pid, times))


def _is_spark(pid: int, times: dict[int, tuple[int, float]]) -> bool:
    above: list[int] = [pid]
    while above[-1] in times and above[-1] != os.getpid():
        above.append(times[above[-1]][0])
    if above[-1] != os.getpid() or len(above) == 1:
        return False
    with contextlib.suppress(OSError):
        return b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{above[-2]}/cmdline").read_bytes()
    return False


def show(results: list[dict[str, Any]]) -> None:
    """The table."""
    head = ("", "muster", "connector", "ratio", "CPU s muster", "CPU s connector")
    table = [head]
    for found in results:
        ours, theirs = found["muster"], found["kafka"]
        rates = [f"{side['records_per_s'] / 1e6:.2f} M/s ({side['mb_per_s']:.0f} MB/s)" for side in (ours, theirs)]
        table.append((found["label"], *rates, f"{found['ratio']:.2f}×", f"{ours['cpu_s']}", f"{theirs['cpu_s']}"))
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    raise SystemExit(main())
