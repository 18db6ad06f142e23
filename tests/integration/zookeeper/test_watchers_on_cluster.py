"""Consumers that watch ZooKeeper read from muster's own cluster, while a broker is killed and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from muster import AsyncAdmin, NewTopic
from muster.model import TopicPartition
from muster.zookeeper.consumers.async_watcher_consumer import AsyncWatcherConsumer
from muster.zookeeper.watchers.states import WatcherState
from tests.support import old_kafka
from tests.support.muster_cluster import PARTITIONS, PATIENCE_S, Cluster, Load
from tests.support.watcher_cluster import watcher
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot()).running() as made:
        yield made


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.05)


async def test_a_broker_that_goes_and_comes_back_costs_no_record_and_a_rebalance_only_where_it_is_watched(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with AsyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("t", PARTITIONS)])
    load = Load(cluster, "t")
    found: set[tuple[int, int]] = set()

    async def poll(consumer: AsyncWatcherConsumer) -> None:
        while True:
            for partition, records in (await consumer.poll(200)).items():
                found.update((partition.partition, int(record.value or b"")) for record in records)

    async with (
        watcher(cluster.address, "watching", consumer_id="a") as plain,
        watcher(cluster.address, "watching", consumer_id="b", watch_brokers=True) as watching,
    ):
        tasks = []
        for consumer in (plain, watching):
            consumer.subscribe("t")
            tasks.append(asyncio.create_task(poll(consumer)))
        await until(lambda: len(plain.assignment()) == len(watching.assignment()) == PARTITIONS // 2)
        load.start()
        await asyncio.to_thread(load.more)
        members = [consumer._member for consumer in (plain, watching)]
        before = [member.rebalances for member in members if member is not None]
        lost = cluster.controller(1) % 3 + 1
        await asyncio.to_thread(cluster.brokers[lost].kill)
        await until(lambda: watching._member is not None and watching._member.rebalances > before[1])
        await asyncio.to_thread(cluster.brokers[lost].start)
        await asyncio.to_thread(load.more)
        await asyncio.to_thread(load.stop)
        await until(lambda: found >= set(load.acknowledged))
        await until(lambda: plain.state is watching.state is WatcherState.STABLE)
        assert plain.assignment() == {TopicPartition("t", number) for number in range(PARTITIONS // 2)}
        assert plain._member is not None
        assert plain._member.rebalances == before[0]
        for consumer in (plain, watching):
            await consumer.commit()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    described = await asyncio.to_thread(describe, cluster, tmp_path)
    assert described[0].split()[:2] == ["Topic:t", f"PartitionCount:{PARTITIONS}"]
    assert len(described) == 1 + PARTITIONS


def describe(cluster: Cluster, folder: Path) -> list[str]:
    """What Kafka 0.8.2.2's own tool reads about a topic in our znodes."""
    tool = ("kafka.admin.TopicCommand", "--zookeeper", cluster.address, "--describe", "--topic", "t")
    return old_kafka.run_class(folder, *tool).strip().splitlines()
