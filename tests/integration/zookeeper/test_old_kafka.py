"""`WatcherConsumer` in one group with the real consumer of Kafka 0.8.2.2, on its broker and its ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from muster.errors import ClosedError
from muster.zookeeper.base import znodes
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from tests.support.old_kafka import OldKafkaBroker
from tests.support.watcher_cluster import watcher
from tests.support.zookeepers import ZooKeeperServer, operator

PATIENCE_S = 240
PARTITIONS = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def old_kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldKafkaBroker]:
    with OldKafkaBroker(tmp_path_factory.mktemp("old-kafka") / "broker", zookeeper.chroot()) as broker:
        yield broker


@pytest.fixture
def znode(old_kafka: OldKafkaBroker) -> Iterator[KazooClient]:
    with operator(old_kafka.zookeeper) as client:
        yield client


def consumer(broker: OldKafkaBroker, group: str, name: str, **settings: Any) -> AsyncWatcherConsumer:
    return watcher(broker.zookeeper, group, consumer_id=name, rebalance_backoff_ms=500, **settings)


def owners(znode: KazooClient, group: str, topic: str) -> dict[int, str]:
    path = f"/consumers/{group}/owners/{topic}"
    if not znode.exists(path):
        return {}
    found = {}
    for name in znode.get_children(path):
        with contextlib.suppress(NoNodeError):  # a member may give up its claim at any time
            found[int(name)] = znode.get(f"{path}/{name}")[0].decode()
    return found


async def until_owned(znode: KazooClient, group: str, topic: str, wanted: dict[int, str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (found := await asyncio.to_thread(owners, znode, group, topic)) != wanted:
            await asyncio.sleep(0.2)
    assert found == wanted


SHARES = {
    # The partitions of Kafka's member "java", of muster's with one stream, and of muster's with two.
    "range": {0: "java-0", 1: "java-0", 2: "py1-0", 3: "py1-0", 4: "py2-0", 5: "py2-0", 6: "py2-1", 7: "py2-1"},
    "roundrobin": {0: "java-0", 4: "java-0", 1: "py1-0", 5: "py1-0", 2: "py2-0", 6: "py2-0", 3: "py2-1", 7: "py2-1"},
}


@pytest.mark.parametrize("strategy", SHARES)
async def test_a_group_with_kafkas_own_consumer(old_kafka: OldKafkaBroker, znode: KazooClient, strategy: str) -> None:
    """Both sides agree on the owners, nothing is lost, and each continues where the other one stopped."""
    group, topic = f"g-{strategy}", f"t8-{strategy}"
    await asyncio.to_thread(old_kafka.create_topic, topic, PARTITIONS)
    found: list[str] = []
    held: list[asyncio.Task[None]] = []

    async def poll(reader: AsyncWatcherConsumer) -> None:
        with suppress(ClosedError):
            while True:
                for records in (await reader.poll(500)).values():
                    found.extend((record.value or b"").decode() for record in records)

    def seen() -> set[int]:
        return {int(value) for value in [*found, *java.values]}

    async def until_seen(count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while seen() != set(range(count)):
                await asyncio.sleep(0.1)

    settings = {
        "group.id": group,
        "consumer.id": "java",
        "partition.assignment.strategy": strategy,
        "zookeeper.session.timeout.ms": "30000",
        "zookeeper.connection.timeout.ms": "60000",
        "rebalance.backoff.ms": "500",
        "rebalance.max.retries": "100",
    }
    with old_kafka.consumer(topic, **settings) as java:
        await until_owned(znode, group, topic, dict.fromkeys(range(PARTITIONS), f"{group}_java-0"))
        async with (
            consumer(old_kafka, group, "py1", partition_assignment_strategy=strategy) as first,
            consumer(old_kafka, group, "py2", partition_assignment_strategy=strategy) as second,
        ):
            first.subscribe(topic)
            second.subscribe({topic: 2} if strategy == "range" else topic, num_streams=2)
            held.extend(asyncio.create_task(poll(reader)) for reader in (first, second))
            await until_owned(znode, group, topic, {n: f"{group}_{name}" for n, name in SHARES[strategy].items()})
            await asyncio.to_thread(old_kafka.produce, topic, range(200))
            await until_seen(200)
            assert found, "ours read some of it"
            assert java.values, "and Kafka's"
            for name in znode.get_children(f"/consumers/{group}/ids"):
                member = znodes.read_member(name, znode.get(f"/consumers/{group}/ids/{name}")[0])
                assert isinstance(member, znodes.MemberRegistration)
                assert member.poison is None
            await first.commit()
            await second.commit()
            await asyncio.to_thread(java.leave)
            async with asyncio.timeout(PATIENCE_S):
                while len(first.assignment()) + len(second.assignment()) < PARTITIONS:
                    await asyncio.sleep(0.1)
            # Our member continues at the offset that Kafka's member committed when it left: records that it had read do
            # not come again.
            assert set(java.values).isdisjoint(found)
            await asyncio.to_thread(old_kafka.produce, topic, range(200, 260))
            await until_seen(260)
            for task in held:
                task.cancel()
            await asyncio.wait(held)
    # Kafka's own tool reads the offsets that muster's member wrote: no lag is left.
    checked = await asyncio.to_thread(
        old_kafka.run_class,
        "kafka.tools.ConsumerOffsetChecker",
        "--zookeeper",
        old_kafka.zookeeper,
        "--group",
        group,
        "--topic",
        topic,
    )
    rows = [line.split() for line in checked.splitlines()[1:]]
    assert len(rows) == PARTITIONS, checked
    assert sum(int(row[3]) for row in rows) == 260
    assert all(row[5] == "0" for row in rows), checked


def test_our_readers_read_what_kafka_08_wrote(old_kafka: OldKafkaBroker, znode: KazooClient) -> None:
    old_kafka.create_topic("read-back", 3)
    broker = znodes.read_broker("0", znode.get("/brokers/ids/0")[0])
    assert isinstance(broker, znodes.BrokerRegistration)
    assert broker.node is not None
    assert (broker.node.host, broker.node.port) == ("127.0.0.1", old_kafka.port)
    assert broker.encode() == znode.get("/brokers/ids/0")[0]
    topic = znodes.read_topic("read-back", znode.get("/brokers/topics/read-back")[0])
    assert topic == znodes.TopicRegistration({0: [0], 1: [0], 2: [0]}, None, 1)
    controller = znodes.read_controller(znode.get("/controller")[0])
    assert isinstance(controller, znodes.Controller)
    assert controller.encode() == znode.get("/controller")[0]
    assert znodes.read_controller_epoch(znode.get("/controller_epoch")[0]) == 1
    assert znodes.read_topic_config("read-back", znode.get("/config/topics/read-back")[0]) == {}
