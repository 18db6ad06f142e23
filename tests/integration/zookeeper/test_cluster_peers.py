"""A cluster of muster's brokers with tools and consumers from the time of ZooKeeper: Kafka's own 0.8 ones, and scheme
1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client.producer.producer import Producer
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.zookeeper.consumers.watcher_consumer import WatcherConsumer
from tests.support import old_kafka, outsiders
from tests.support.muster_cluster import LONG, Cluster, eventually
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), zookeeper.chroot(), LONG).running() as made:
        yield made


def led(cluster: Cluster, topic: str, partitions: int) -> bool:
    reported = [cluster.leaders(topic, number) for number in cluster.brokers]
    return all(len(found) == partitions and all(code == 0 for code, _, _ in found.values()) for found in reported)


def produce(cluster: Cluster, topic: str, partitions: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(partitions):
            producer.send(topic, value=b"%d" % number, partition=number)
        producer.flush()


def test_kafkas_tool_of_its_time_with_zookeeper(cluster: Cluster, tmp_path: Path) -> None:
    """TopicCommand of 0.8.2.2 creates, describes, adds partitions (and drops the topic's id) and deletes."""

    def tool(*arguments: str) -> str:
        where = ["--zookeeper", cluster.address, "--topic", "old", *arguments]
        return old_kafka.run_class(tmp_path, "kafka.admin.TopicCommand", *where)

    tool("--create", "--partitions", "2", "--replication-factor", "2", "--config", "retention.ms=99000")
    eventually(lambda: led(cluster, "old", 2))
    produce(cluster, "old", 2)
    tool("--alter", "--partitions", "3")
    eventually(lambda: led(cluster, "old", 3))
    produce(cluster, "old", 3)
    leaders = {number: leader for number, (_, leader, _) in cluster.leaders("old", 1).items()}
    lines = [line.split() for line in tool("--describe").splitlines()]
    assert "retention.ms=99000" in lines[0][-1]
    # Whatever the replicas, one broker has the records: only it is in sync.
    assert {int(line[3]): (int(line[5]), line[-1]) for line in lines[1:]} == {
        number: (leader, str(leader)) for number, leader in leaders.items()
    }
    assert ends(cluster, "old") == {0: 2, 1: 2, 2: 1}, "what was acknowledged before the change is there"
    tool("--delete")
    eventually(lambda: not list(cluster.folder.glob("broker*/old-?")))


def ends(cluster: Cluster, topic: str) -> dict[int, int]:
    found = {}
    for number, (_, leader, _) in cluster.leaders(topic, 1).items():
        asked = m.ListOffsetsTopic(topic, [m.ListOffsetsPartition(number, -1, -1)])
        answer = cluster.ask(leader, m.ListOffsetsRequest(-1, 0, [asked]), 7)
        found[number] = answer.topics[0].partitions[0].offset
    return found


def test_a_group_that_zookeeper_coordinates(cluster: Cluster) -> None:
    """Scheme 1 finds topics, partitions and leaders in the znodes of this cluster."""
    outsiders.Cluster(cluster.bootstrap).create(["watched"], PARTITIONS)
    produce(cluster, "watched", PARTITIONS)
    settings: dict[str, Any] = {
        "zookeeper_connect": cluster.address,
        "group_id": "watchers",
        "auto_offset_reset": "earliest",
        "zookeeper_session_timeout_ms": 30_000,
        "rebalance_backoff_ms": 500,
        "rebalance_max_retries": 100,
    }
    with contextlib.ExitStack() as held:
        readers = [held.enter_context(WatcherConsumer(**settings)) for _ in range(2)]
        found: list[bytes] = []
        for reader in readers:
            reader.subscribe(["watched"])

        def all_read() -> bool:
            for reader in readers:
                found.extend(record.value or b"" for records in reader.poll(100).values() for record in records)
            shares = [sum(map(len, reader.streams().values())) for reader in readers]
            return shares == [3, 3] and {int(value) for value in found} == set(range(PARTITIONS))

        eventually(all_read)
        assert sorted(p for reader in readers for each in reader.streams().values() for p in each) == [
            TopicPartition("watched", number) for number in range(PARTITIONS)
        ]
