"""What a task of the sink does, without a JVM: rows to records, on both brokers, and what happens to rows that cannot
be written."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType

from muster.arrow import Engine, arrow_schema
from muster.client.core.produce.partitioner import partition_for_key
from muster.spark import sink as module
from muster.spark.exactly_once import SinkError
from muster.spark.sink import close_producers, write
from muster.spark.sink_options import parse_sink_options
from tests.support.faces import PATIENCE_S, Cluster, until
from tests.support.growing import until_said
from tests.support.peers import KafkaCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HEADERS = arrow_schema(["headers"]).field(0).type
TYPES = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "headers": (ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])), HEADERS),
}


@pytest.fixture(autouse=True)
def producers():
    yield
    close_producers()


@pytest.fixture
def at_once(monkeypatch):
    """A task writes each batch of rows as it comes: otherwise it would collect all of them before it writes any."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)


def sink(cluster, columns, **options):
    given = {"kafka.bootstrap.servers": cluster.bootstrap}
    given |= {name.replace("_", "."): str(value) for name, value in options.items()}
    return parse_sink_options(given, StructType([StructField(name, TYPES[name][0]) for name in columns]))


def rows(at_once=1_000, **columns):
    """Record batches as Spark passes them to a task."""
    table = pa.table({name: pa.array(column, TYPES[name][1]) for name, column in columns.items()})
    return iter(table.to_batches(at_once))


def read(cluster, topic, count, partitions=4):
    """All records of a topic as confluent's consumer reads them, partition by partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    try:
        until(lambda: len(found) >= count, lambda: found.extend(consumer.consume(1_000, 0.1)))
        found += consumer.consume(1, 0.2)
    finally:
        consumer.close()
    assert not [message.error() for message in found if message.error()]
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


@pytest.mark.parametrize(
    ("codec", "engine"),
    [
        ("none", Engine.NUMBA),
        ("gzip", Engine.PYTHON),
        ("snappy", Engine.NUMBA),
        ("lz4", Engine.PYTHON),
        ("zstd", Engine.NUMBA),
    ],
)
def test_rows_are_records_where_kafka_puts_them(cluster, codec, engine):
    topic = cluster.topic(4)
    count = 4_000
    keys = [None if number % 4 == 0 else b"key %d" % (number % 97) for number in range(count)]
    values = [None if number % 11 == 5 else b"%d" % number for number in range(count)]
    headers = [[{"key": "h", "value": b"x"}, {"key": "n", "value": None}] if n % 3 == 0 else None for n in range(count)]
    partitions = [2 if number % 10 == 9 else None for number in range(count)]
    options = sink(
        cluster,
        ["key", "value", "headers", "partition"],
        topic=topic,
        kafka_compression_type=codec,
        kafka_batch_size=256,  # so that rows without keys choose at random dozens of times
    )
    write(options, rows(key=keys, value=values, headers=headers, partition=partitions), engine)
    found = read(cluster, topic, count)
    reported = Counter((message.key(), message.value(), str(message.headers())) for message in found)
    pairs = [str([("h", b"x"), ("n", None)]) if n % 3 == 0 else "None" for n in range(count)]
    assert reported == Counter(zip(keys, values, pairs, strict=True))
    where: dict[int, list[int]] = {}
    for message in found:
        if message.value() is not None:
            where.setdefault(message.partition(), []).append(int(message.value()))
    for partition, numbers in where.items():
        keyed = [number for number in numbers if keys[number] is not None or partitions[number] is not None]
        assert keyed == sorted(keyed), "rows of one partition keep their order"
        for number in keyed:
            expected = partitions[number]
            assert partition == (partition_for_key(keys[number] or b"", 4) if expected is None else expected)
    alone = {message.partition() for message in found if message.key() is None and message.value() is not None}
    assert len(alone) > 1, "rows without keys are spread"


def test_each_row_can_name_its_topic_and_the_option_wins(cluster):
    one, other = cluster.topic(2), cluster.topic(1)
    names = [one if number % 3 else other for number in range(300)]
    values = [b"%d" % number for number in range(300)]
    write(sink(cluster, ["value", "topic"]), rows(value=values, topic=names, at_once=70))
    assert {int(m.value()) for m in read(cluster, one, 200, 2)} == {n for n in range(300) if n % 3}
    assert [int(m.value()) for m in read(cluster, other, 100, 1)] == [n for n in range(300) if n % 3 == 0]
    write(sink(cluster, ["value", "topic"], topic=other), rows(value=values, topic=[None] * 300))
    assert len(read(cluster, other, 400, 1)) == 400


def test_a_batch_of_large_values_is_cut_and_its_parts_are_not_copied():
    options = sink(Cluster("localhost:1"), ["key", "value"], topic="t")
    count, size = 3_000, 10_000
    [batch] = rows(count, key=[b"%d" % number for number in range(count)], value=[bytes(size)] * count)
    small = batch.slice(0, 10)
    found: list[Any] = list(module._chunks(options, iter([small, batch, small.slice(0, 0), small, small])))
    assert [chunk.num_rows for chunk in found] == [10 + 750, 750, 750, 750, 20]
    assert all(chunk.nbytes <= module.MOST_BYTES + small.nbytes for chunk in found)
    assert [chunk.column("key").num_chunks for chunk in found] == [2, 1, 1, 1, 2]
    assert found[1].column("value").chunk(0).buffers()[2].address == batch.column("value").buffers()[2].address
    assert pa.concat_tables(found)["key"].to_pylist() == [
        key for part in (small, batch, small, small) for key in part["key"].to_pylist()
    ]


def test_no_rows_need_no_broker_and_a_second_task_has_the_same_producer(cluster):
    write(parse_sink_options({"bootstrap": "localhost:1", "topic": "t"}, schema_of("value")), iter([]))
    write(parse_sink_options({"bootstrap": "localhost:1", "topic": "t"}, schema_of("value")), rows(value=[]))
    topic = cluster.topic(1)
    for number in range(3):
        write(sink(cluster, ["value"], topic=topic), rows(value=[b"%d" % number]))
    [producer] = module._producers.values()
    assert producer._engine.core.metrics.records_sent == 3
    assert [message.value() for message in read(cluster, topic, 3, 1)] == [b"0", b"1", b"2"]


def schema_of(*columns):
    return StructType([StructField(name, TYPES[name][0]) for name in columns])


def test_what_cannot_be_written_fails_the_task_with_a_sentence(cluster):
    topic = cluster.topic(2)
    here = {"topic": topic}

    def without_partition(limit_ms):
        with pytest.raises(SinkError) as refused:
            write(
                sink(cluster, ["value", "partition"], topic=topic, kafka_max_block_ms=limit_ms),
                rows(value=[b"x"], partition=[7]),
            )
        return str(refused.value)

    assert until_said(rf"records for {topic}-7 were not written: .* has 2 partitions", without_partition, 1_500)
    cases: list[tuple[Any, Any, str]] = [
        ({"topic": "no such topic", "kafka_max_block_ms": 1_500}, {"value": [b"x"]}, "no such topic"),
        (here, {"value": [b"x"], "partition": [-3]}, "names partition -3"),
        (
            here,
            {"value": [bytes(2_000_000)]},
            r"takes 2000\d\d\d bytes; kafka.max.request.size of this producer allows 1048576",
        ),
        ({}, {"value": [b"x"], "topic": [None]}, "null in column topic: name a topic"),
        (here, {"value": [b"x"], "headers": [[{"key": None, "value": b""}]]}, "whose key is null"),
        (here, {"value": [b"x"], "headers": [[None]]}, "a header that is null"),
    ]
    for options, columns, sentence in cases:
        with pytest.raises(SinkError, match=sentence):
            write(sink(cluster, list(columns), **options), rows(**columns))
    write(sink(cluster, ["value"], **here), rows(value=[b"fine"]))
    assert [message.value() for message in read(cluster, topic, 1, 2)] == [b"fine"]


def test_a_record_that_the_broker_refuses(cluster):
    topic = cluster.topic(1)
    options = sink(cluster, ["value"], topic=topic, kafka_max_request_size=8_000_000, kafka_batch_size=4_000_000)
    with pytest.raises(SinkError, match=f"records for {topic}-0 were not written: .*MESSAGE_TOO_LARGE"):
        write(options, rows(value=[bytes(3_000_000)]))
    # Batches that are too large for the broker, but whose records are not, are split.
    write(options, rows(value=[b"%d" % number * 10_000 for number in range(100, 200)]))
    assert [len(message.value()) for message in read(cluster, topic, 100, 1)] == [30_000] * 100


@pytest.mark.usefixtures("at_once")
def test_nothing_is_lost_or_written_twice_when_the_broker_is_killed_and_comes_back(muster_process):
    cluster = Cluster(muster_process.bootstrap)
    topic = cluster.topic(4)
    count = 60_000
    begun = threading.Event()

    def some():
        for number, batch in enumerate(rows(value=[b"%09d" % n for n in range(count)], at_once=1_000)):
            if number == 20:
                begun.set()
                killed.wait(PATIENCE_S)
            yield batch

    killed = threading.Event()

    def kill():
        begun.wait(PATIENCE_S)
        muster_process.kill()
        killed.set()
        muster_process.start()

    killer = threading.Thread(target=kill)
    killer.start()
    options = sink(cluster, ["value"], topic=topic, kafka_batch_size=2_048, kafka_buffer_memory=65_536)
    try:
        write(options, some())
    finally:
        killer.join()
    assert sorted(int(message.value()) for message in read(cluster, topic, count)) == list(range(count))


def test_a_broker_that_stays_away_fails_the_task_with_what_was_waited_for(muster_process):
    cluster = Cluster(muster_process.bootstrap)
    topic = cluster.topic(1)
    options = sink(cluster, ["value"], topic=topic, kafka_delivery_timeout_ms=10_000, kafka_request_timeout_ms=5_000)
    write(options, rows(value=[b"there"]))
    muster_process.kill()
    sentence = rf"records for {topic}-0 were not written: 1 records .* not acknowledged within \d+ ms: "
    with pytest.raises(SinkError, match=sentence):
        write(options, rows(value=[b"away"]))
    muster_process.start()
    write(options, rows(value=[b"back"]))
    assert [message.value() for message in read(cluster, topic, 2, 1)] == [b"there", b"back"]


@pytest.mark.usefixtures("at_once")
def test_leaders_move_while_a_task_writes(tmp_path):
    """Twice, in the middle of the rows. Not the first node's leader: it is the controller, without which no leader
    moves."""
    with KafkaCluster(tmp_path / "cluster", size=3) as brokers:
        cluster = Cluster(brokers.bootstrap)
        topic = cluster.topic(3)
        count = 30_000

        def some():
            numbers = [b"%d" % number for number in range(count)]
            for number, batch in enumerate(rows(key=numbers, value=numbers)):
                if number in (5, 15):
                    brokers.node(2 if number == 5 else 3).kill()
                if number in (10, 20):
                    brokers.node(2 if number == 10 else 3).start()
                yield batch

        options = sink(cluster, ["key", "value"], topic=topic, kafka_batch_size=2_048, kafka_buffer_memory=65_536)
        write(options, some())
        found = read(cluster, topic, count, 3)
    assert sorted(int(message.value()) for message in found) == list(range(count))


@pytest.mark.usefixtures("at_once")
def test_a_broker_that_is_frozen_for_longer_than_its_answers_are_waited_for(muster_process):
    """Requests are given up and sent again, although the broker has them: it writes none of them twice."""
    cluster = Cluster(muster_process.bootstrap)
    topic = cluster.topic(4)
    count = 40_000

    def some():
        for number, batch in enumerate(rows(value=[b"%09d" % n for n in range(count)], at_once=1_000)):
            if number in (10, 25):
                os.kill(muster_process.pid, signal.SIGSTOP)
                threading.Timer(2, os.kill, (muster_process.pid, signal.SIGCONT)).start()
            yield batch

    options = sink(
        cluster,
        ["value"],
        topic=topic,
        kafka_batch_size=2_048,
        kafka_buffer_memory=65_536,
        kafka_request_timeout_ms=500,
    )
    write(options, some())
    assert sorted(int(message.value()) for message in read(cluster, topic, count)) == list(range(count))
