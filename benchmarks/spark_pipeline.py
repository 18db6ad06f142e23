"""The demo's pipeline compared with the same pipeline on Spark's own Kafka connector, on one broker, in turn.

    python -m benchmarks pipeline [--flights 336776] [--rounds 3] [--seconds 20] [--rate 500]

An Apache Kafka 4.2 is started for the run and gets the demo's records: flights and weather. Both kinds run the same
three queries (`demo/run/pipeline.py`: windows into a table and a compacted topic, a stream-stream join, dead letters)
in the same session on `local[2]`; they differ in the source and the sink. muster's queries are members of groups and
commit, the connector's do neither.

- Throughput: each query reads all existing records (Trigger.AvailableNow), all three in parallel. Records count once
for
  each query that reads them. CPU is that of the JVM and all Python workers.
- Latency: a producer writes flights at a steady rate while the three queries run without a pause between batches; the
  third one writes every flight, not only damaged ones. Latency is from the timestamp of a flight to that of its dead
  letter, both from producers' clocks on one machine. The first seconds do not count.

Figures are medians of the rounds, without the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks import report
from benchmarks.spark_source import CORES, QUIET, TUNED, clocked, connector_jars
from muster.demo.data.events import FLIGHTS_STREAM, StreamEvent, events
from muster.demo.data.flights import FLIGHTS
from muster.demo.data.names import KEYS, DemoNames
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.run.pipeline import Pipeline
from muster.spark import session
from muster.spark.upsert import Write
from tests.support import peers

WARM_UP_S = 15
KINDS = ("muster", "kafka")
HEAD = ("", "records/s", "CPU of a record", "latency p50", "latency p99")


class Connector(Pipeline):
    """The pipeline with Spark's own connector."""

    def _source(self, group: str, topic: str) -> DataFrame:
        options = {f"kafka.{name}": value for name, value in self._access.settings().items()}
        source = self._spark.readStream.format("kafka").options(**options, **TUNED)
        return source.option("subscribe", topic).option("startingOffsets", self.starting).load()

    def _into_results(self) -> Write:
        topic, options = self._names.windows, self._access.options()

        def write(rows: DataFrame, batch: int) -> None:
            rest = [column for column in rows.columns if column not in KEYS]
            key, value = (f.to_json(f.struct(*columns)) for columns in (KEYS, rest))
            records = rows.select(key.alias("key"), value.alias("value"))
            records.write.format("kafka").options(**options, topic=topic).save()

        return write

    def _to_topic(self, rows: DataFrame, topic: str) -> Any:
        return rows.writeStream.format("kafka").options(**self._access.options(), topic=topic)

    starting = "earliest"


class Live(Pipeline):
    """For latency: batches without a pause, and a dead letter for every flight."""

    trigger: Mapping[str, Any] = {"processingTime": "0 seconds"}

    def _flights(self, query: str) -> DataFrame:
        found = super()._flights(query)
        return found.withColumn("fault", f.coalesce("fault", f.lit("none"))) if query == "check" else found


class LiveConnector(Live, Connector):
    """The same with Spark's own connector."""


class Again(DemoNames):
    """The same topics with new groups for each run, which start at the beginning."""

    def group(self, source: str) -> str:
        return f"{self.flights}-{source}-{uuid.uuid4().hex[:8]}"


class Whole(Pipeline):
    """For throughput: all existing records."""

    trigger: Mapping[str, Any] = {"availableNow": True}


class WholeConnector(Whole, Connector):
    """The same with Spark's own connector."""


def main() -> int:
    """Run both and print the table; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flights", type=int, default=FLIGHTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rate", type=int, default=500, help="flights per second while latency is measured")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    sent = list(events(arguments.flights))
    reads = sum(3 if event.stream == FLIGHTS_STREAM else 1 for event in sent)
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-")))
        access = ClusterAccess(held.enter_context(peers.KafkaBroker(folder / "kafka", heap="1g")).bootstrap)
        settings = {**QUIET, "spark.sql.session.timeZone": "UTC", "spark.jars": ",".join(connector_jars())}
        spark = session("muster benchmark", f"local[{CORES}]", **settings)
        held.callback(spark.stop)
        names = _topics(access)
        _send(access, names, sent)
        for turn in range(arguments.rounds + 1):
            for kind in KINDS:
                figures = throughput(spark, access, names, kind, folder / f"whole-{kind}-{turn}", reads)
                figures |= latency(spark, access, kind, folder / f"live-{kind}-{turn}", sent, arguments)
                print(json.dumps({"kind": kind, "turn": turn, **figures}), flush=True)
                if turn:
                    for name, value in figures.items():
                        found[kind].setdefault(name, []).append(value)
    rows = [cells(kind, found[kind]) for kind in KINDS]
    print(report.plain_table(HEAD, rows, (0,)))
    path = report.save_as("spark-pipeline", {"flights": arguments.flights, "rate": arguments.rate, "figures": found})
    print(f"\n{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        note = f"{arguments.flights:,} flights, {arguments.rate} a second for latency, medians of {arguments.rounds} "
        table = report.markdown_table(HEAD, rows, (0,))
        report.put_on_page("spark-pipeline", f"{note}round(s), on {report.machine()}.\n\n{table}")
    return 0


def _topics(access: ClusterAccess) -> DemoNames:
    """Fresh topics."""
    names = DemoNames.of(f"bench-{uuid.uuid4().hex[:8]}")
    admin = AdminClient({"bootstrap.servers": access.bootstrap})
    for future in admin.create_topics(
        [NewTopic(topic, count, 1) for topic, count in names.partitions.items()]
    ).values():
        future.result(30)
    return names


def _send(access: ClusterAccess, names: DemoNames, sent: Iterable[StreamEvent], rate: int = 0) -> None:
    """Write records, at a rate of this many a second or as fast as possible."""
    producer = Producer({"bootstrap.servers": access.bootstrap, "linger.ms": 5})
    began = time.monotonic()
    for number, event in enumerate(sent):
        while rate and number > (time.monotonic() - began) * rate:
            producer.poll(0.002)
        topic = names.flights if event.stream == FLIGHTS_STREAM else names.weather
        while True:
            try:
                producer.produce(topic, event.value, event.key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def throughput(
    spark: SparkSession, access: ClusterAccess, names: DemoNames, kind: str, folder: Path, reads: int
) -> dict[str, float]:
    """Run all three queries over all existing records; return their wall and CPU time."""
    pipeline = (Whole if kind == "muster" else WholeConnector)(spark, access, Again(*astuple(names)), folder)
    with clocked() as spent:
        for query in pipeline.start():
            query.awaitTermination()
    wall_s, cpu_s = spent
    return {"per_s": reads / wall_s, "cpu_us": cpu_s / reads * 1e6}


def _ends(access: ClusterAccess, topic: str, partitions: int) -> list[tuple[int, int]]:
    """The number of each partition, and its end."""
    consumer = Consumer({"bootstrap.servers": access.bootstrap, "group.id": "bench-ends"})
    ends = [(number, consumer.get_watermark_offsets(TopicPartition(topic, number))[1]) for number in range(partitions)]
    consumer.close()
    return ends


def latency(
    spark: SparkSession,
    access: ClusterAccess,
    kind: str,
    folder: Path,
    sent: Sequence[StreamEvent],
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """Run the queries while flights arrive, and compare the timestamps of flights and dead letters, in milliseconds."""
    names = _topics(access)
    pipeline = (Live if kind == "muster" else LiveConnector)(spark, access, names, folder)
    queries = pipeline.start()
    total = (WARM_UP_S + arguments.seconds) * arguments.rate
    _send(access, names, islice(sent, total), arguments.rate)
    give_up = time.monotonic() + 120
    while sum(end for _, end in _ends(access, names.dead, names.partitions[names.dead])) < sum(
        end for _, end in _ends(access, names.flights, names.partitions[names.flights])
    ):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{kind} wrote fewer dead letters than there were flights")
        time.sleep(0.2)
    for query in queries:
        query.stop()
    at = {
        f"{names.flights}-{partition}-{offset}": timestamp
        for partition, offset, timestamp, _ in _read(access, names.flights, names.partitions[names.flights])
    }
    counted_from = min(at.values()) + WARM_UP_S * 1_000
    taken = [
        timestamp - at[source]
        for _, _, timestamp, source in _read(access, names.dead, names.partitions[names.dead])
        if at[source] >= counted_from
    ]
    hundredths = quantiles(taken, n=100)
    return {"p50_ms": hundredths[49], "p99_ms": hundredths[98]}


def _read(access: ClusterAccess, topic: str, partitions: int) -> Iterable[tuple[int, int, int, str]]:
    """Partition, offset, timestamp and the header `source` of each record."""
    left = {number: end for number, end in _ends(access, topic, partitions) if end}
    consumer = Consumer({"bootstrap.servers": access.bootstrap, "group.id": "bench-read", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    while left:
        for record in consumer.consume(10_000, 1.0):
            headers = dict(record.headers() or ())
            yield record.partition(), record.offset(), record.timestamp()[1], headers.get("source", b"").decode()
            if record.offset() + 1 >= left.get(record.partition(), 1 << 62):
                del left[record.partition()]
    consumer.close()


def cells(kind: str, figures: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """A row of the table."""
    rate, cpu, half, most = (median(figures[name]) for name in ("per_s", "cpu_us", "p50_ms", "p99_ms"))
    label = "muster" if kind == "muster" else "Spark's connector"
    return (label, f"{rate:,.0f}", f"{cpu:.0f} µs", f"{half:,.0f} ms", f"{most:,.0f} ms")


if __name__ == "__main__":
    raise SystemExit(main())
