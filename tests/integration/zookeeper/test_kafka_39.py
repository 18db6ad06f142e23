"""`WatcherConsumer` with Kafka 3.9.1 in ZooKeeper mode, whose own consumers have long been coordinated otherwise; and
topics in formats from before Kafka 0.11, which only brokers up to that release can still write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from muster import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import RangeReader
from muster.errors import AuthenticationError
from muster.model import TopicPartition
from muster.spark.source.options import parse_options
from muster.zookeeper.base import znodes
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from tests.support import old_kafka
from tests.support.faces import Cluster, rest, until_known
from tests.support.faces import until as wait_until
from tests.support.old_kafka import LastZooKeeperKafkaBroker
from tests.support.peers import free_ports
from tests.support.queries import Query, audit, grid
from tests.support.secure_kafka import PASSWORDS, PLAIN, Certificates, login
from tests.support.watcher_cluster import watcher
from tests.support.zookeepers import ZooKeeperServer, operator

PATIENCE_S = 240
PARTITIONS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[LastZooKeeperKafkaBroker]:
    folder = tmp_path_factory.mktemp("kafka-39") / "broker"
    open_port, _ = ports = free_ports(2)
    # Up to this protocol version a topic may ask for an older format of its records.
    settings = {"inter.broker.protocol.version": "2.8"} | _listeners(ports, certificates)
    with LastZooKeeperKafkaBroker(folder, zookeeper.chroot(), open_port, settings=settings) as broker:
        # Until its controller knows the broker, it refuses topics: they would need more brokers than exist.
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            wait_until(lambda: bool(admin.describe_cluster().nodes), rest)
        yield broker


def _listeners(ports: list[int], certificates: Certificates) -> dict[str, str]:
    """One without encryption, and one that requires TLS and a password."""
    of = "listener.name.sasl_ssl."
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_SSL://127.0.0.1:{ports[1]}",
        "sasl.enabled.mechanisms": "PLAIN",
        f"{of}plain.sasl.jaas.config": login(PLAIN, user_bob=PASSWORDS["bob"]),
        f"{of}ssl.keystore.type": "PEM",
        f"{of}ssl.keystore.location": str(certificates.path("broker")),
    }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.write()
    return made


@pytest.fixture
def znode(kafka: LastZooKeeperKafkaBroker) -> Iterator[KazooClient]:
    with operator(kafka.zookeeper) as client:
        yield client


Reader = AsyncWatcherConsumer | AsyncConsumer


class Readings:
    """The records of consumers that poll in the background."""

    def __init__(self) -> None:
        self.values: dict[Reader, list[int]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def poll(self, *readers: Reader) -> None:
        for reader in readers:
            self.values[reader] = []
            self._tasks.append(asyncio.create_task(self._poll(reader)))

    async def _poll(self, reader: Reader) -> None:
        while True:
            for records in (await reader.poll(500)).values():
                self.values[reader] += [int(record.value or b"") for record in records]

    def of(self, *readers: Reader) -> list[int]:
        return sorted(value for reader in readers for value in self.values[reader])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


async def until(predicate: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():
            await asyncio.sleep(0.05)


async def produce(kafka: LastZooKeeperKafkaBroker, values: range) -> None:
    async with AsyncProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for value in values:
            await producer.send("t39", str(value).encode(), partition=value % PARTITIONS)


def kafkas_own(znode: KazooClient) -> dict[str, int]:
    """Each of the broker's znodes, with the last transaction that wrote it."""
    found = {}
    paths = ["/"]
    while paths:
        path = paths.pop()
        if not path.startswith("/consumers"):
            found[path] = znode.get(path)[1].mzxid
            paths += [f"{path.rstrip('/')}/{name}" for name in znode.get_children(path)]
    return found


async def test_two_groups_of_one_name_one_in_zookeeper_and_one_in_the_broker(
    kafka: LastZooKeeperKafkaBroker, znode: KazooClient
) -> None:
    """Each reads everything, neither notices the other, and the broker's znodes stay as they are."""
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topics([NewTopic("t39", PARTITIONS)])
    await produce(kafka, range(40))
    readings = Readings()
    settings: dict[str, Any] = {"group_id": "one-name", "auto_offset_reset": "earliest", "session_timeout_ms": 45_000}
    async with AsyncConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False, **settings) as classic:
        classic.subscribe(["t39"])
        readings.poll(classic)
        await until(lambda: readings.of(classic) == list(range(40)))
        await classic.commit()
        generation = classic.group_metadata().generation_id
        before = await asyncio.to_thread(kafkas_own, znode)
        log = len(kafka.log)
        async with watcher(kafka.zookeeper, "one-name", consumer_id="a") as first:
            first.subscribe("t39")
            readings.poll(first)
            await until(lambda: len(first.assignment()) == PARTITIONS)
            async with watcher(kafka.zookeeper, "one-name", consumer_id="b") as second:
                second.subscribe("t39")
                readings.poll(second)
                await until(lambda: len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2)
                await produce(kafka, range(40, 80))
                await until(lambda: set(readings.of(first, second)) == set(range(80)))
                await until(lambda: readings.of(classic) == list(range(80)))
                await first.commit()
                await second.commit()
                owners = "/consumers/one-name/owners/t39"
                names = [znode.get(f"{owners}/{number}")[0].decode() for number in range(PARTITIONS)]
                assert names == ["one-name_a-0", "one-name_a-0", "one-name_b-0", "one-name_b-0"]
                await readings.stop()
        assert classic.group_metadata().generation_id == generation
        assert len(classic.assignment()) == PARTITIONS
        committed = await classic.committed([TopicPartition("t39", 0)])
        assert [place.offset for place in committed.values() if place is not None] == [10]
    assert await asyncio.to_thread(kafkas_own, znode) == before
    complaints = [line for line in kafka.log[log:].splitlines() if " ERROR " in line or " WARN " in line]
    assert not complaints
    # Its tool shows what is in ZooKeeper only if the broker has no group of that name.
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin:
        assert await admin.delete_consumer_groups(["one-name"]) == {"one-name": None}
    await asyncio.to_thread(kafkas_tools_read_it, kafka)


def kafkas_tools_read_it(kafka: LastZooKeeperKafkaBroker) -> None:
    shell = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
    said = kafka.run_class(shell, "-server", kafka.zookeeper, "get", "/consumers/one-name/offsets/t39/3")
    assert "20" in said.splitlines(), said
    where = ["--zookeeper", kafka.zookeeper, "--group", "one-name", "--topic", "t39"]
    checked = old_kafka.run_class(kafka.folder, "kafka.tools.ConsumerOffsetChecker", *where)
    rows = [line.split() for line in checked.splitlines()[1:]]
    assert [(row[2], row[3], row[5]) for row in rows] == [(str(n), "20", "0") for n in range(PARTITIONS)], checked


def test_our_readers_read_what_kafka_39_wrote(kafka: LastZooKeeperKafkaBroker, znode: KazooClient) -> None:
    data = znode.get("/brokers/ids/0")[0]
    broker = znodes.read_broker("0", data)
    assert isinstance(broker, znodes.BrokerRegistration)
    assert broker.node is not None
    assert (broker.node.host, broker.node.port) == ("127.0.0.1", kafka.port)
    assert broker.encode() == data
    controller = znodes.read_controller(znode.get("/controller")[0])
    assert isinstance(controller, znodes.Controller)
    assert controller.encode() == znode.get("/controller")[0]


@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.0", 1)])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_spark_source_reads_the_formats_of_before_kafka_011(
    kafka: LastZooKeeperKafkaBroker, tmp_path: Path, version: str, magic: int, codec: str
) -> None:
    cluster = Cluster(kafka.bootstrap)
    topic = f"format-{magic}-{codec}"
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, configs={"message.format.version": version, "retention.ms": "-1"})])
    until_known(kafka.bootstrap, topic, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in range(100):
        producer.produce(topic, b"v%d" % number, b"k%d" % number, partition=number % 2, timestamp=1_000 * number)
    assert producer.flush(PATIENCE_S) == 0
    (segment,) = (kafka.folder / "data" / f"{topic}-0").glob("*.log")
    assert segment.read_bytes()[16] == magic
    query = Query(cluster, topic, tmp_path, maxOffsetsPerTrigger=30)
    try:
        wait_until(lambda: len(query.sink()) >= 100, query.run)
    finally:
        query.stop()
    assert audit(grid(100, 2), query.sink()) == (set(), {})
    options = {"bootstrap": kafka.bootstrap, "subscribe": topic, "columns": "key,value,partition,offset,timestamp"}
    settings = parse_options(options, streaming=False).fetch_settings()
    rows = RangeReader(settings, TopicPartition(topic, 1), 0, 50).batches()
    found = [row for batch in rows for row in batch.to_pylist()]
    times = [row.pop("timestamp").timestamp() for row in found]
    assert times == ([1 + 2.0 * number for number in range(50)] if magic else [-0.001] * 50)
    assert found == [
        {"key": b"k%d" % (2 * number + 1), "value": b"v%d" % (2 * number + 1), "partition": 1, "offset": number}
        for number in range(50)
    ]
    disconnect()


async def test_a_watcher_reads_where_the_brokers_want_tls_and_a_password(
    kafka: LastZooKeeperKafkaBroker, certificates: Certificates
) -> None:
    """From the listeners that the broker registers in ZooKeeper, it takes the one for its own `security_protocol`."""
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topics([NewTopic("t39-secured", 1)])
    async with AsyncProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait("t39-secured", b"1")
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "bob",
        "ssl_truststore_location": str(certificates.path("ca")),
    }
    async with watcher(kafka.zookeeper, "secured", sasl_password=PASSWORDS["bob"], **settings) as member:
        member.subscribe(["t39-secured"])
        assert (await anext(member)).value == b"1"
        await member.commit()
    async with watcher(kafka.zookeeper, "refused", sasl_password="hush-wrong", **settings) as member:
        member.subscribe(["t39-secured"])
        with pytest.raises(AuthenticationError, match="the broker refused PLAIN"):
            await anext(member)


# --- a broker that takes commits by the topic's name ------------------------------------------------------------------


def test_a_position_committed_in_the_former_topic_hides_nothing_of_the_new_one(
    kafka: LastZooKeeperKafkaBroker, tmp_path: Path
) -> None:
    """The query has not noticed that the topic was deleted and recreated; the next run finds the commit."""
    for folder in (tmp_path / str(number) for number in range(20)):
        cluster = Cluster(kafka.bootstrap)
        topic = cluster.written(10, partitions=1)
        first = Query(cluster, topic, folder, failOnDataLoss="false")
        wait_until(lambda first=first: first.running is not None, first.trigger)  # type: ignore[misc]
        cluster.recreate(topic)
        cluster.produce(topic, 30, partitions=1)
        first.finish()
        first.stop()
        with Admin(bootstrap_servers=kafka.bootstrap) as admin:
            found = admin.list_consumer_group_offsets(cluster.group)
        if found:  # otherwise it would have checked its topics while there was none, and noticed
            break
    assert found[TopicPartition(topic, 0)].offset == 10
    again = Query(cluster, topic, folder, failOnDataLoss="false")
    try:
        wait_until(lambda: len(again.sink()) >= 40, again.run)
    finally:
        again.stop()
    assert again.sink()[10:] == sorted(grid(30, 1))
