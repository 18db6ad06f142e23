"""Clients, admin and command line with brokers of Kafka before 4.0, which support older versions of the same
requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from muster import Admin, AsyncProducer, Consumer, NewTopic, Producer
from muster.cli.main import main
from muster.errors import KafkaError
from muster.model import TopicPartition
from tests.support import scale
from tests.support.cluster_chaos import Facts, Member
from tests.support.faces import Cluster, rest, until
from tests.support.old_kafka import LastZooKeeperKafkaBroker
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

PARTITIONS = 4
COUNT = 600


@pytest.fixture(scope="module", params=scale.older_kafkas())
def kafka(
    zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LastZooKeeperKafkaBroker]:
    folder = tmp_path_factory.mktemp("kafka-older") / "broker"
    with LastZooKeeperKafkaBroker(folder, zookeeper.chroot(), version=request.param) as broker:
        yield broker


@pytest.fixture
def topic(kafka: LastZooKeeperKafkaBroker) -> str:
    """A topic with records that producers of both kinds wrote with every compression."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS)])

        def has_leaders() -> bool:
            reported = admin.describe_topics([name], raise_errors=False)[name]
            return not isinstance(reported, KafkaError) and all(part.leader_id >= 0 for part in reported.partitions)

        until(has_leaders, rest)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    share = COUNT // len(codecs) // 2
    for number, codec in enumerate(codecs):
        settings = {"bootstrap_servers": kafka.bootstrap, "compression_type": codec}
        with Producer(settings) as producer:
            for value in range(2 * number * share, (2 * number + 1) * share):
                producer.send(name, str(value).encode(), str(value).encode(), headers=[("codec", codec.encode())])
        asyncio.run(write(name, range((2 * number + 1) * share, (2 * number + 2) * share), settings))
    return name


async def write(topic: str, values: range, settings: dict[str, Any]) -> None:
    async with AsyncProducer(settings) as producer:
        await asyncio.gather(*(producer.send_and_wait(topic, b"%d" % value, b"%d" % value) for value in values))


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_group_of_both_kinds_of_consumers_reads_each_record_once(
    kafka: LastZooKeeperKafkaBroker, topic: str, assignor: str
) -> None:
    facts, group = Facts({}), f"g-{assignor}"
    settings = Cluster(kafka.bootstrap).settings(partition_assignment_strategy=assignor)
    with contextlib.ExitStack() as members, Admin(bootstrap_servers=kafka.bootstrap) as admin:
        for face in ("sync", "async"):
            own = settings | {"group_instance_id": f"own-{face}"}
            members.callback(Member(facts, face, face, topic, group, **own).stop)

        def shares() -> list[int]:
            described = admin.describe_consumer_groups([group], raise_errors=False)[group]
            if isinstance(described, KafkaError):  # no member has joined yet
                return []
            return sorted(len(member.assignment) for member in described.members)

        until(lambda: bool(facts.errors) or shares() == [PARTITIONS // 2] * 2, rest)
        until(lambda: bool(facts.errors) or len(read(facts, group)) >= COUNT, rest)
    assert facts.errors == []
    values = read(facts, group)
    assert sorted(values) == list(range(COUNT))
    with Consumer(bootstrap_servers=kafka.bootstrap, group_id=group) as consumer:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        committed = consumer.committed(places)
        assert {place: found.offset for place, found in committed.items() if found} == consumer.end_offsets(places)


def read(facts: Facts, group: str) -> list[int]:
    return [int(value) for _, rows in list(facts.runs.get(group, ())) for _, value in list(rows)]


def test_arrow_and_times(kafka: LastZooKeeperKafkaBroker, topic: str) -> None:
    zero = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([zero])
        consumer.seek_to_beginning([zero])
        end = consumer.end_offsets([zero])[zero]
        assert consumer.offsets_for_times({zero: 1})[zero].offset == 0  # type: ignore[union-attr]
        rows = 0
        while rows < end:
            rows += sum(table.num_rows for table in consumer.poll_arrow(500).values())
        assert rows == end


def test_the_admins_day(kafka: LastZooKeeperKafkaBroker, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main([*arguments, "--bootstrap", kafka.bootstrap]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    with Consumer(bootstrap_servers=kafka.bootstrap, group_id="day", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        until(lambda: bool(consumer.poll(100)), rest)
    assert said("topics", "create", "day", "--partitions", "2")
    assert "has 3 partitions" in said("topics", "alter", "day", "--partitions", "3")
    assert "day" in said("topics", "list").split()
    assert "PartitionCount: 3" in said("topics", "describe", "day")
    assert said("configs", "alter", "topics", "day", "--set", "retention.ms=123456789")
    assert "123456789" in said("configs", "describe", "topics", "day")
    assert "Broker 0" in said("configs", "describe", "brokers")
    assert "day" in said("groups", "list").split()
    assert topic in said("groups", "describe", "day")
    assert "Empty" in said("groups", "describe", "day", "--state")
    assert said("groups", "reset-offsets", "day", "--topic", topic, "--to-earliest", "--execute")
    [group] = [group for group in json.loads(said("lag", "--json"))["groups"] if group["group"] == "day"]
    assert sum(part["lag"] for part in group["partitions"]) == COUNT
    assert said("records", "delete", f"{topic}:0", "--before", "10", "--yes")
    found = [
        json.loads(line) for line in said("consume", topic, "--from-beginning", "--until-end", "--json").splitlines()
    ]
    assert len(found) == COUNT - 10
    assert len(said("consume", topic, "--last", "2", "--until-end").splitlines()) == 2 * PARTITIONS
    assert f"{topic}-3" in said("log-dirs", "describe")
    assert said("health").startswith("healthy")
    doctor = json.loads(said("doctor", "--group", "day", "--json"))
    assert [group["group"] for group in doctor["groups"]] == ["day"]
    assert [row["cause"] for row in doctor["rebalances"]][:1] == ["started"]
    assert said("groups", "delete-offsets", "day", "--topic", topic)
    assert said("topics", "delete", "day", "--yes")
