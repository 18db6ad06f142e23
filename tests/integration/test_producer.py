"""The producer on muster and on Apache Kafka: other clients read what it wrote, and a kill -9 neither loses nor doubles
records."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Confluent
from confluent_kafka import TopicPartition as Place

from muster.client.admin.admin import Admin
from muster.client.consumer.async_consumer import AsyncConsumer
from muster.client.core.produce.partitioner import partition_for_key
from muster.client.producer.async_producer import AsyncProducer
from muster.client.producer.producer import Producer
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import RecordMetadata
from tests.support.brokers import BrokerProcess
from tests.support.faces import PATIENCE_S, new_topic, rest, until, until_known
from tests.support.peers import KafkaBroker, KafkaCluster, run_kafka_class

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a way that is deprecated
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPlace

pytestmark = pytest.mark.slow

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = [
    (b"%d" % number if number % 3 else None, None if number % 7 == 6 else b"value %d " % number * 5, 1_000 + number)
    for number in range(500)
]
HEADERS = [("a", b"1"), ("é", None), ("a", b"")]


@pytest.fixture(params=["shared_muster", "kafka_broker", "kafka_cluster"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


def read_confluent(bootstrap: str, topic: str, partitions: int, count: int) -> list[list[Any]]:
    """Key, value, timestamp and headers of each partition's records, read by librdkafka."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False, "check.crcs": True}
    consumer = Confluent(settings)
    consumer.assign([Place(topic, number, 0) for number in range(partitions)])
    found: list[list[Any]] = [[] for _ in range(partitions)]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline, f"{sum(map(len, found))} of {count}"
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            assert message.offset() == len(found[message.partition()])
            headers = message.headers() or []
            found[message.partition()].append((message.key(), message.value(), message.timestamp()[1], headers))
    consumer.close()
    return found


def read_kafka_python(bootstrap: str, topic: str, partitions: int, count: int) -> list[list[Any]]:
    """The same, read by kafka-python."""
    # It once read nothing from a fresh topic, on three brokers of Apache Kafka, until its metadata expired.
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True, metadata_max_age_ms=5_000)
    places = [KafkaPlace(topic, number) for number in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found: list[list[Any]] = [[] for _ in range(partitions)]
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline
        for records in consumer.poll(200).values():
            for record in records:
                found[record.partition].append((record.key, record.value, record.timestamp, list(record.headers)))
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_others_read_what_it_wrote(bootstrap, codec):
    name = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, linger_ms=20) as producer:
        futures = [
            producer.send(name, value, key, partition=number % 3, timestamp_ms=timestamp, headers=HEADERS)
            for number, (key, value, timestamp) in enumerate(RECORDS)
        ]
        producer.flush()
        reported = [future.result() for future in futures]
    written = [[(*record, HEADERS) for record in RECORDS[number::3]] for number in range(3)]
    assert [(found.partition, found.offset) for found in reported] == [(n % 3, n // 3) for n in range(len(RECORDS))]
    assert [found.timestamp for found in reported] == [timestamp for _, _, timestamp in RECORDS]
    assert read_confluent(bootstrap, name, 3, len(RECORDS)) == written
    if codec in ("none", "gzip"):  # those that it supports without further packages
        assert read_kafka_python(bootstrap, name, 3, len(RECORDS)) == written


@pytest.mark.any_loop
@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_the_async_face_and_each_level_of_acks(bootstrap, acks):
    name = await asyncio.to_thread(new_topic, bootstrap, 1)
    async with AsyncProducer(bootstrap_servers=bootstrap, acks=acks) as producer:
        futures = [await producer.send(name, b"%d" % number) for number in range(1000)]
        await producer.flush()
        offsets = [(await future).offset for future in futures]
        (partition,) = await producer.partitions_for(name)
    async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
        assert await consumer.partitions_for(name) == [partition]
    assert partition.leader is not None
    assert offsets == ([-1] * 1000 if acks == 0 else list(range(1000)))
    (found,) = await asyncio.to_thread(read_confluent, bootstrap, name, 1, 1000)
    assert [value for _, value, *_ in found] == [b"%d" % number for number in range(1000)]


def test_a_topic_comes_into_being_when_it_is_written_to(bootstrap):
    name = f"new-{uuid.uuid4().hex[:8]}"
    with Producer(bootstrap_servers=bootstrap) as producer:
        assert producer.send_and_wait(name, b"first").offset == 0


def test_a_deleted_topic_is_not_brought_back_by_records_for_another(bootstrap):
    """Both clusters create the topics that a Metadata request names, unless it forbids that."""
    gone, other = new_topic(bootstrap, 1), new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer, Admin(bootstrap_servers=bootstrap) as admin:
        producer.send_and_wait(gone, b"before")
        assert admin.delete_topics([gone]) == {gone: None}
        until_known(bootstrap, gone, 0)
        producer.send_and_wait(other, b"after")
        assert gone not in {found.name for found in admin.list_topics()}
        producer.send_and_wait(gone, b"written to again")
        # The one of three brokers that the admin asks may not know it yet.
        until(lambda: gone in {found.name for found in admin.list_topics()}, rest)


def test_an_invalid_topic_is_reported(bootstrap):
    with Producer(bootstrap_servers=bootstrap) as producer, pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        producer.send_and_wait("no such/name", b"")


def test_batches_that_the_broker_finds_too_large_are_split(bootstrap):
    name = new_topic(bootstrap, 1, max_message_bytes="1000")
    with Producer(bootstrap_servers=bootstrap, linger_ms=60_000) as producer:  # so that they are in few batches
        futures = [producer.send(name, b"%03d" % number + bytes(100)) for number in range(200)]
        alone = producer.send(name, bytes(2000))
        behind = producer.send(name, b"behind")
        producer.flush()
        assert [future.result().offset for future in futures] == list(range(200))
        assert behind.result().offset == 200
        with pytest.raises(KafkaError) as raised:
            alone.result()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.metrics().value("batch-split-total") > 0


def test_keys_are_where_javas_producer_puts_them(bootstrap):
    """The same keys written by Kafka's own producer into a topic with as many partitions."""
    ours, javas = new_topic(bootstrap, 7), new_topic(bootstrap, 7)
    keys = ["N14228", "ключ", "a", "", "x" * 300, *(f"key-{number}" for number in range(200))]
    lines = "".join(f"{key}\tv\n" for key in keys)
    properties = ["--property", "parse.key=true", "--property", "key.separator=\t"]
    done = run_kafka_class(
        "org.apache.kafka.tools.ConsoleProducer",
        # Its own request timeout is 1.5 s: a record that it gives up after three attempts is lost, and its exit code is
        # 0.
        *("--bootstrap-server", bootstrap, "--topic", javas, *properties, "--request-timeout-ms", "60000"),
        stdin=lines,
    )
    assert done.returncode == 0, done.stderr
    with Producer(bootstrap_servers=bootstrap) as producer:
        for key in keys:
            producer.send(ours, b"v", key.encode())
    count = len(keys)
    found = [
        [[key for key, *_ in part] for part in read_confluent(bootstrap, name, 7, count)] for name in (ours, javas)
    ]
    assert found[0] == found[1]
    assert all(partition_for_key(key, 7) == number for number, part in enumerate(found[0]) for key in part)


def test_records_without_keys_spread_over_the_partitions(bootstrap):
    name = new_topic(bootstrap, 6)
    with Producer(bootstrap_servers=bootstrap, batch_size=1000) as producer:
        for _ in range(3000):
            producer.send(name, bytes(100))
    counts = [len(part) for part in read_confluent(bootstrap, name, 6, 3000)]
    assert all(counts), counts


@pytest.mark.parametrize("idempotent", [True, False])
def test_leaving_with_means_that_all_is_written_and_reported(bootstrap, idempotent):
    """The loop in the README. The first records of a producer wait for their topic, and for a producer id."""
    name = new_topic(bootstrap, 8)
    reported: list[RecordMetadata | MusterError | None] = []
    with Producer(bootstrap_servers=bootstrap, enable_idempotence=idempotent) as producer:
        for number in range(1_000):
            producer.send(
                name, b"v", key=b"N%d" % number, on_delivery=lambda found, error: reported.append(error or found)
            )
    places = [(found.partition, found.offset) for found in reported if isinstance(found, RecordMetadata)]
    assert len(reported) == len(set(places)) == 1_000
    assert sum(map(len, read_confluent(bootstrap, name, 8, 1_000))) == 1_000


def test_without_acks_closing_loses_nothing_of_what_is_still_to_be_written(bootstrap):
    name = new_topic(bootstrap, 2)
    with Producer(bootstrap_servers=bootstrap, acks=0, batch_size=500_000) as producer:
        for number in range(400):
            producer.send(name, bytes(100_000), partition=number % 2)
    assert sum(map(len, read_confluent(bootstrap, name, 2, 400))) == 400


def test_flush_means_that_all_before_it_is_reported(bootstrap):
    name = new_topic(bootstrap, 8)
    with Producer(bootstrap_servers=bootstrap, linger_ms=100) as producer:
        for _ in range(20):
            futures = [producer.send(name, b"v", key=b"%d" % number) for number in range(50)]
            producer.flush()
            assert all(future.done() for future in futures)


# --- kill -9 ---------------------------------------------------------------------------------------------------------


class MortalCluster:
    """Three brokers, two of which are killed in turn: the first is the controller."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._nodes = itertools.cycle([cluster.node(2), cluster.node(3)])
        self._killed = cluster.node(2)

    def kill(self) -> None:
        self._killed = next(self._nodes)
        self._killed.kill()

    def start(self) -> None:
        self._killed.start()


@pytest.fixture(params=["muster", "kafka", "cluster"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess | KafkaBroker | MortalCluster]:
    if request.param == "kafka":
        with KafkaBroker(tmp_path / "kafka") as kafka:
            yield kafka
    elif request.param == "cluster":
        with KafkaCluster(tmp_path / "cluster") as cluster:
            yield MortalCluster(cluster)
    else:
        with BrokerProcess(tmp_path / "data") as muster:
            yield muster


class Writer:
    """Sends numbered records to three partitions from its own thread until it is stopped."""

    def __init__(self, producer: Producer, name: str) -> None:
        self.sent = 0
        self.futures: list[object] = []
        self._producer = producer
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            value = json.dumps(self.sent).encode()
            self.futures.append(self._producer.send(self._name, value, partition=self.sent % 3))
            self.sent += 1
            if self.sent % 50 == 0:
                time.sleep(0.005)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def has_sent(producer: Producer, count: float) -> bool:
    return producer.metrics().value("record-acknowledged-total") > count


def test_a_broker_killed_under_load_loses_doubles_and_reorders_nothing(mortal):
    name = new_topic(mortal.bootstrap)
    patient = {"delivery_timeout_ms": 240_000, "max_block_ms": 240_000}
    with Producer(patient, bootstrap_servers=mortal.bootstrap, linger_ms=2) as producer:
        writer = Writer(producer, name)
        for _ in range(2):
            before = producer.metrics().value("record-acknowledged-total")
            writer.wait_for(partial(has_sent, producer, before + 500))
            mortal.kill()
            mortal.start()
        writer.stop()
        producer.flush(300_000)
        acknowledged = producer.metrics().value("record-acknowledged-total")
    assert acknowledged == writer.sent
    found = read_confluent(mortal.bootstrap, name, 3, writer.sent)
    for number, part in enumerate(found):
        assert [int(value) for _, value, *_ in part] == list(range(number, writer.sent, 3))
