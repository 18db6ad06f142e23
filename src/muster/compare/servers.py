"""The servers of a comparison: processes on this machine that end with the caller, or those that the user names.

The user's servers are never stopped: the steps that would stop them are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from muster.client.admin.async_admin import AsyncAdmin
from muster.client.core.admin.admin import NewTopic
from muster.clock import monotonic_ms
from muster.compare.rules.counters import ZooKeeperCounters, parse_mntr, read_counters
from muster.compare.rules.formulas import Scheme
from muster.errors import ConfigError, KafkaError, MusterError
from muster.local.broker import LocalBroker, LocalCoordinator
from muster.local.ports import LOOPBACK, free_ports
from muster.local.zookeeper import Ensemble, ZooKeeperServer
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import Delete, GetChildren, NoNodeError, Plan, ask
from muster.zookeeper.cluster.group_znodes import group_name, read_name
from muster.zookeeper.session.session import ZooKeeperSession

A = TypeVar("A")

BROKERS = 3
COORDINATORS = 2
"""The number of coordinators of scheme 2, next to Apache Kafka's brokers."""
PATIENCE_S = 120
POLL_INTERVAL_S = 0.1
TIDY_MS = 10_000

OF_GROUPS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0}
"""The first member of a group waits for no others, so that all schemes start alike."""
SETTINGS: Mapping[str, object] = {**OF_GROUPS, "offsets.topic.num.partitions": 3, "group.events.enable": "false"}
"""For every broker. The topic of events would be created at a group's first event, with reads and writes of ZooKeeper
that are not the group's."""
OF_SCHEME: Mapping[Scheme, Mapping[str, object]] = {
    Scheme.WATCHERS: {},
    Scheme.SERVER: {"server.assigned.groups": ".*", "group.coordinator.store": "zookeeper"},
    Scheme.MEMBERS: {"group.coordinator.store": "log"},
}


@dataclass(frozen=True, slots=True)
class UserServers:
    """Servers that the user has named. `zookeeper` may have a chroot."""

    zookeeper: str | None = None
    kafka: str | None = None

    def __post_init__(self) -> None:
        if self.kafka is not None and self.zookeeper is None:
            raise ConfigError("--kafka needs --zookeeper: the ZooKeeper of that cluster, with its chroot if it has one")


class Servers:
    """ZooKeeper and brokers that serve. `brokers` says how many are registered in ZooKeeper.

    This class is for servers that the user runs; the steps look at `broker_stops` and `zookeeper_stops` first.
    """

    broker_stops = False
    zookeeper_stops = False
    coordinators = ""
    """The listeners of scheme 2's coordinators."""

    def __init__(self, zookeeper: str, bootstrap: str, brokers: int, groups: str = "") -> None:
        self.zookeeper = zookeeper
        """HOST:PORT,HOST:PORT/chroot."""
        self.bootstrap = bootstrap
        self.groups = groups or bootstrap
        """The brokers or coordinators that describe groups."""
        self.brokers = brokers

    def zookeeper_of(self, member: str) -> str:
        """The address by which a member reaches ZooKeeper."""
        return self.zookeeper

    async def counters(self) -> ZooKeeperCounters:
        """What ZooKeeper has counted so far: each of its servers counts the requests of its own clients."""
        total = ZooKeeperCounters()
        for address in self.zookeeper.partition("/")[0].split(","):
            total += await _counters_of(address)
        return total

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; returns when each partition has a leader."""
        async with AsyncAdmin(bootstrap_servers=self.bootstrap, client_id="muster-compare") as admin:
            await admin.create_topics([NewTopic(topic, partitions, 1)])
            give_up = monotonic_ms() + PATIENCE_S * 1_000
            while not await _is_led(admin, topic, partitions):
                if monotonic_ms() > give_up:
                    raise MusterError(f"topic {topic} still has partitions without a leader after {PATIENCE_S} s")
                await asyncio.sleep(POLL_INTERVAL_S)

    async def stop_broker(self, spared: int) -> None:
        """Stop one of the brokers, but not the one with the id `spared` (-1: any). It leaves the cluster
        immediately."""
        raise NotImplementedError

    async def start_broker(self) -> None:
        """Start it again."""
        raise NotImplementedError

    async def stop_zookeeper(self) -> None:
        """Kill ZooKeeper. Its sessions continue when it is back."""
        raise NotImplementedError

    async def start_zookeeper(self) -> None:
        """Start it again."""
        raise NotImplementedError

    async def be_late(self, delay_ms: int) -> None:
        """Delay everything that the lagging member's own server learns by this much. 0: no delay."""
        raise NotImplementedError

    async def lag(self) -> None:
        """Stop the lagging member's own server from learning anything."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """Let it catch up."""
        raise NotImplementedError


async def _counters_of(address: str) -> ZooKeeperCounters:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"mntr")
            answer = await reader.read()
            writer.close()
    except OSError as error:
        raise MusterError(f"cannot read the counters of ZooKeeper at {address} with `mntr`: {error}") from None
    return read_counters(parse_mntr(answer.decode()))


async def _is_led(admin: AsyncAdmin, topic: str, partitions: int) -> bool:
    found = (await admin.describe_topics([topic], raise_errors=False))[topic]
    if isinstance(found, KafkaError):
        return False
    return sum(partition.leader_id >= 0 for partition in found.partitions) == partitions


class LocalServers(Servers):
    """Brokers that were started for the run, on a ZooKeeper started for it unless the user has named one."""

    broker_stops = True

    def __init__(
        self, zookeeper: str, brokers: Mapping[int, LocalBroker], drafts: Sequence[str], server: ZooKeeperServer | None
    ) -> None:
        super().__init__(zookeeper, ",".join(broker.bootstrap for broker in brokers.values()), len(brokers))
        self.coordinators = ",".join(drafts)
        self.zookeeper_stops = server is not None
        self._brokers = brokers
        self._server = server
        self._stopped: LocalBroker | None = None

    async def stop_broker(self, spared: int) -> None:
        """Stop the broker with the highest id other than `spared`."""
        self._stopped = self._brokers[max(self._brokers.keys() - {spared})]
        await asyncio.to_thread(self._stopped.stop)

    async def start_broker(self) -> None:
        """Start it again."""
        assert self._stopped is not None
        await asyncio.to_thread(self._stopped.start)

    async def stop_zookeeper(self) -> None:
        """Kill it."""
        assert self._server is not None
        await asyncio.to_thread(self._server.kill)

    async def start_zookeeper(self) -> None:
        """Start it again."""
        assert self._server is not None
        await asyncio.to_thread(self._server.start)


class DifferingServers(LocalServers):
    """An ensemble of three, and brokers on it. One follower is for one member alone, and may lag behind."""

    def __init__(
        self, ensemble: Ensemble, follower: ZooKeeperServer, lagging: str, brokers: Mapping[int, LocalBroker]
    ) -> None:
        super().__init__(_others(ensemble, follower), brokers, (), None)
        self._ensemble = ensemble
        self._follower = follower
        self._lagging = lagging
        self._lag = contextlib.ExitStack()

    def zookeeper_of(self, member: str) -> str:
        """The lagging server only for its member, the others for all."""
        return self._follower.address if member == self._lagging else self.zookeeper

    async def be_late(self, delay_ms: int) -> None:
        """Hold back each message for this long."""
        self._ensemble.delay(self._follower, delay_ms)

    async def lag(self) -> None:
        """Hold back what it would learn."""
        await asyncio.to_thread(self._lag.enter_context, self._ensemble.lagging(self._follower))

    async def catch_up(self) -> None:
        """Release the held messages."""
        self._lag.close()


def _others(ensemble: Ensemble, follower: ZooKeeperServer) -> str:
    return ",".join(server.address for server in ensemble.servers if server is not follower)


@contextlib.asynccontextmanager
async def start_servers(scheme: Scheme, folder: Path, given: UserServers, name: str) -> AsyncIterator[Servers]:
    """Servers for one run under a scheme, with a folder of their own, and `name` as chroot in the user's ZooKeeper. At
    the end nothing of that name is left there, or in the user's Kafka."""
    try:
        with contextlib.ExitStack() as running:
            if given.kafka is None:
                yield await _start(scheme, folder, given, name, running)
            else:
                yield await _beside(scheme, folder, given, running)
    finally:
        if given.zookeeper is not None:
            await _tidy(scheme, given, name)


async def _beside(scheme: Scheme, folder: Path, given: UserServers, running: contextlib.ExitStack) -> Servers:
    """The user's Kafka; under scheme 2 with its own coordinators."""
    assert given.kafka is not None
    assert given.zookeeper is not None
    async with AsyncAdmin(bootstrap_servers=given.kafka, client_id="muster-compare") as admin:
        brokers = [node.node_id for node in (await admin.describe_cluster()).nodes]
    if scheme is not Scheme.SERVER:
        return Servers(given.zookeeper, given.kafka, len(brokers))
    first = max(brokers) + 1
    coordinators = []
    for number in range(first, first + COORDINATORS):
        place = folder / f"coordinator-{number}"
        coordinators.append(LocalCoordinator(place, given.zookeeper, number, OF_GROUPS))
        await _enter(running, coordinators[-1])
    servers = Servers(given.zookeeper, given.kafka, len(brokers), ",".join(one.address for one in coordinators))
    servers.coordinators = ",".join(one.members_address for one in coordinators)
    return servers


async def _tidy(scheme: Scheme, given: UserServers, name: str) -> None:
    """Remove what a run has made in the user's ZooKeeper and Kafka, as far as they can be reached."""
    assert given.zookeeper is not None
    if given.kafka is not None:
        with contextlib.suppress(MusterError):
            async with AsyncAdmin(bootstrap_servers=given.kafka, default_api_timeout_ms=TIDY_MS) as admin:
                await admin.delete_topics([name], raise_errors=False)
                if scheme is Scheme.MEMBERS:
                    await admin.delete_consumer_groups([name], raise_errors=False)
    with contextlib.suppress(MusterError):
        async with ZooKeeperSession(given.zookeeper) as session:
            await session.run(removal(f"/{name}" if given.kafka is None else f"{znodes.CONSUMERS}/{name}"))
            if scheme is Scheme.SERVER:
                await session.run(removal_of_group(name))


def removal_of_group(name: str) -> Plan[None]:
    """Delete a group of scheme 2, whose coordinator is gone, with its offsets."""
    with contextlib.suppress(NoNodeError):
        for slot in (yield from ask(GetChildren(znodes.GROUPS))):
            above = f"{znodes.GROUPS}/{slot}"
            for znode in (yield from ask(GetChildren(above))):
                if read_name(znode).group == group_name(name):
                    yield from removal(f"{above}/{znode}")


def removal(path: str) -> Plan[None]:
    """Delete a znode and everything below it."""
    with contextlib.suppress(NoNodeError):
        for child in (yield from ask(GetChildren(path))):
            yield from removal(f"{path}/{child}")
        yield from ask(Delete(path))


@contextlib.asynccontextmanager
async def start_ensemble(folder: Path, lagging: str) -> AsyncIterator[Servers]:
    """Servers, one of which may lag behind and has a member of its own."""
    with contextlib.ExitStack() as running:
        yield await _ensemble(folder, lagging, running)


async def _enter(running: contextlib.ExitStack, server: contextlib.AbstractContextManager[A]) -> A:
    """Start a server in a thread. A caller that is cancelled, even twice, continues once the thread is done: a server
    that starts after the end of `running` would not be stopped with it."""
    entering = asyncio.ensure_future(asyncio.to_thread(running.enter_context, server))
    kill: Callable[[], None] | None = getattr(server, "kill", None)
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        while not entering.done():
            with contextlib.suppress(asyncio.CancelledError):
                if kill is not None:
                    await asyncio.to_thread(kill)  # it may take a long time to serve
                await asyncio.wait([entering], timeout=POLL_INTERVAL_S)
        entering.exception()  # a killed server fails, as expected
        raise


async def _ensemble(folder: Path, lagging: str, running: contextlib.ExitStack) -> DifferingServers:
    ensemble = await _enter(running, Ensemble(folder / "zookeeper", fsync=False, relayed=True))
    follower = (await asyncio.to_thread(lambda: ensemble.followers))[0]
    brokers = (await _start_brokers(Scheme.WATCHERS, folder, _others(ensemble, follower), running))[0]
    return DifferingServers(ensemble, follower, lagging, brokers)


async def _start(
    scheme: Scheme, folder: Path, given: UserServers, name: str, running: contextlib.ExitStack
) -> LocalServers:
    server = None
    if given.zookeeper is None:
        server = await _enter(running, ZooKeeperServer(folder / "zookeeper", fsync=False))
    zookeeper = server.address if server is not None else f"{given.zookeeper}/{name}"
    brokers, drafts = await _start_brokers(scheme, folder, zookeeper, running)
    return LocalServers(zookeeper, brokers, drafts, server)


async def _start_brokers(
    scheme: Scheme, folder: Path, zookeeper: str, running: contextlib.ExitStack
) -> tuple[dict[int, LocalBroker], list[str]]:
    """Brokers by their ids, and their listeners for members of scheme 2."""
    drafts = [f"{LOOPBACK}:{port}" for port in free_ports(BROKERS)]
    brokers = {}
    for number, draft in enumerate(drafts, 1):
        settings = {**SETTINGS, **OF_SCHEME[scheme], "draft.listener": draft}
        place = folder / f"broker-{number}"
        brokers[number] = LocalBroker(place, zookeeper=zookeeper, broker_id=number, settings=settings)
        await _enter(running, brokers[number])
    return brokers, drafts
