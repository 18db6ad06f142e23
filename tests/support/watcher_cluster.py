"""A broker of muster's that is registered in a real ZooKeeper, for tests of the consumers that watch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from muster import AsyncAdmin, AsyncProducer, NewTopic
from muster.model import ConsumerRecord
from muster.zookeeper.base import znodes
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from tests.support.brokers import BrokerProcess
from tests.support.zookeepers import ZooKeeperServer

PATIENCE_S = 120


class Cluster:
    """A broker, and what a controller would have written about it."""

    def __init__(self, bootstrap: str, connect: str, zookeeper: KazooClient) -> None:
        self.bootstrap = bootstrap
        self.connect = connect
        self.zookeeper = zookeeper

    async def create(self, topic: str, partitions: int, records: int = 0) -> None:
        async with AsyncAdmin(bootstrap_servers=self.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, partitions)])
        if records:
            await self.produce(topic, partitions, range(records))
        await asyncio.to_thread(self.announce, topic, partitions)

    async def produce(self, topic: str, partitions: int, values: Iterable[int]) -> None:
        async with AsyncProducer(bootstrap_servers=self.bootstrap) as producer:
            for value in values:
                await producer.send(topic, str(value).encode(), partition=value % partitions)
            await producer.flush()

    def announce(self, topic: str, partitions: int) -> None:
        data = znodes.TopicRegistration({number: [0] for number in range(partitions)}, version=1).encode()
        path = znodes.topic_path(topic)
        if self.zookeeper.exists(path):
            self.zookeeper.set(path, data)
        else:
            self.zookeeper.create(path, data, makepath=True)

    def owners(self, group: str, topic: str) -> dict[int, str]:
        path = f"/consumers/{group}/owners/{topic}"
        found = {}
        for name in self.zookeeper.get_children(path):
            with suppress(NoNodeError):  # released meanwhile
                found[int(name)] = self.zookeeper.get(f"{path}/{name}")[0].decode()
        return found

    def offset(self, group: str, topic: str, partition: int) -> int | None:
        path = f"/consumers/{group}/offsets/{topic}/{partition}"
        return int(self.zookeeper.get(path)[0]) if self.zookeeper.exists(path) else None

    def consumer(self, group: str, **settings: Any) -> AsyncWatcherConsumer:
        return watcher(
            self.connect, group, **{"zookeeper_session_timeout_ms": 20_000, "rebalance_max_retries": 50, **settings}
        )


def watcher(address: str, group: str, **settings: Any) -> AsyncWatcherConsumer:
    """A consumer of scheme 1 with timeouts for a busy machine."""
    patient = {
        "auto_offset_reset": "earliest",
        "zookeeper_session_timeout_ms": 30_000,
        "zookeeper_connection_timeout_ms": 60_000,
        "rebalance_backoff_ms": 300,
        "rebalance_max_retries": 100,
    }
    return AsyncWatcherConsumer(zookeeper_connect=address, group_id=group, **{**patient, **settings})


@asynccontextmanager
async def watched_cluster(zookeeper: ZooKeeperServer, broker: BrokerProcess) -> AsyncIterator[Cluster]:
    """muster's broker, registered in a ZooKeeper chroot that no other test uses."""
    address = zookeeper.chroot()
    host, _, root = address.partition("/")
    name, _, port = broker.bootstrap.rpartition(":")

    def begin() -> KazooClient:
        client = KazooClient(host, timeout=60)
        client.start(timeout=PATIENCE_S)
        client.ensure_path(f"/{root}/brokers/ids")
        client.chroot = f"/{root}"
        endpoint = znodes.BrokerEndpoint("PLAINTEXT", name, int(port))
        client.create("/brokers/ids/0", znodes.BrokerRegistration(0, (endpoint,), 0, 4).encode())
        return client

    client = await asyncio.to_thread(begin)
    yield Cluster(broker.bootstrap, address, client)
    await asyncio.to_thread(client.stop)
    await asyncio.to_thread(client.close)


async def until(predicate: Callable[[], bool], what: str = "it") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():
            await asyncio.sleep(0.02)


async def collect(consumer: AsyncWatcherConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until there are this many records."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for records in (await consumer.poll(200)).values():
                found += records
    return found


@asynccontextmanager
async def polling(*consumers: AsyncWatcherConsumer) -> AsyncIterator[list[ConsumerRecord]]:
    """Consumers that poll in the background; and the records that they got."""
    found: list[ConsumerRecord] = []

    async def poll(consumer: AsyncWatcherConsumer) -> None:
        while True:
            for records in (await consumer.poll(200)).values():
                found.extend(records)

    tasks = [asyncio.create_task(poll(consumer)) for consumer in consumers]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled() or not task.exception(), task.exception()


def end_session(consumer: AsyncWatcherConsumer) -> None:
    """Take over its session with another client, and close it: ZooKeeper then ends it like an expired one."""
    assert consumer._session is not None
    assert consumer._session._current is not None
    other = KazooClient(consumer._session._address, client_id=consumer._session._current._client.client_id)
    other.start(timeout=PATIENCE_S)
    other.stop()
    other.close()
