"""Servers on this machine for a comparison: ZooKeeper and brokers of muster in processes that end with the caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from muster.client.async_admin import AsyncAdmin
from muster.client.core.admin import NewTopic
from muster.client.driver import monotonic_ms
from muster.compare.counters import Counters, read_counters
from muster.compare.formulas import Scheme
from muster.errors import KafkaError, MusterError
from muster.local.broker import LocalBroker
from muster.local.cluster import LocalCluster
from muster.local.zookeeper import ZooKeeperServer

BROKERS = 3
PATIENCE_S = 120
LOOK_EVERY_S = 0.1

SETTINGS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}
"""Of every broker: the first member of a group waits for no others, so that all schemes start alike."""
OF_SCHEME: Mapping[Scheme, Mapping[str, object]] = {
    Scheme.SERVER: {"server.assigned.groups": ".*"},
}


async def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic; returns when each partition has a leader."""
    async with AsyncAdmin(bootstrap_servers=bootstrap, client_id="muster-compare") as admin:
        outcome = (await admin.create_topics([NewTopic(topic, partitions, 1)]))[topic]
        if isinstance(outcome, KafkaError):
            raise outcome
        give_up = monotonic_ms() + PATIENCE_S * 1_000
        while not await _is_led(admin, topic, partitions):
            if monotonic_ms() > give_up:
                raise MusterError(f"topic {topic} has partitions without a leader")
            await asyncio.sleep(LOOK_EVERY_S)


async def _is_led(admin: AsyncAdmin, topic: str, partitions: int) -> bool:
    found = (await admin.describe_topics([topic]))[topic]
    if isinstance(found, KafkaError):
        return False
    return sum(partition.leader_id >= 0 for partition in found.partitions) == partitions


class LocalServers:
    """ZooKeeper and a cluster of brokers of one's own: all of them may be stopped. Use `started`."""

    broker_stops = True
    zookeeper_stops = True

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._stopped: LocalBroker | None = None
        self.brokers = len(cluster.brokers)

    @property
    def zookeeper(self) -> str:
        """HOST:PORT."""
        return self._cluster.zookeeper

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses."""
        return self._cluster.bootstrap

    @property
    def _server(self) -> ZooKeeperServer:
        (server,) = self._cluster.zookeepers
        return server

    async def counters(self) -> Counters:
        """What ZooKeeper has counted so far."""
        return read_counters(await asyncio.to_thread(self._server.mntr))

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, with its partitions on all brokers."""
        await create_topic(self.bootstrap, topic, partitions)

    async def stop_broker(self, spared: int) -> None:
        """Stop the broker with the highest id but `spared`: it leaves the cluster at once."""
        self._stopped = next(
            self._cluster.brokers[n] for n in sorted(self._cluster.brokers, reverse=True) if n != spared
        )
        await asyncio.to_thread(self._stopped.stop)

    async def start_broker(self) -> None:
        """Have it back."""
        assert self._stopped is not None
        await asyncio.to_thread(self._stopped.start)

    async def stop_zookeeper(self) -> None:
        """Kill ZooKeeper. Its sessions go on when it is back."""
        await asyncio.to_thread(self._server.kill)

    async def start_zookeeper(self) -> None:
        """Have it back."""
        await asyncio.to_thread(self._server.start)


@contextlib.asynccontextmanager
async def started(scheme: Scheme, folder: Path, brokers: int = BROKERS) -> AsyncIterator[LocalServers]:
    """Servers for one run under a scheme, in a folder of their own."""
    settings = {**SETTINGS, **OF_SCHEME.get(scheme, {})}
    cluster = LocalCluster(folder, brokers, settings=settings, fsync=False)
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield LocalServers(cluster)
    except BaseException as error:
        cluster.__exit__(type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(cluster.__exit__, None, None, None)
