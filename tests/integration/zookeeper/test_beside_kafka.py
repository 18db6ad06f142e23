"""Coordinators alongside two real brokers of Apache Kafka 3.9.1 (scheme 2): members are assigned by the coordinators
and commit to them, and fetch from Kafka. A coordinator is killed: no rebalance. A broker of Kafka is killed: members
keep what has a leader, and get the rest back with the broker (H6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import AsyncAdmin, AsyncProducer, NewTopic
from muster.client.core.admin.admin import TopicDescription
from muster.local.broker import LocalCoordinator
from muster.model import TopicPartition
from muster.protocol.group_partitions import group_partition
from muster.zookeeper.cluster.slots import SLOT_COUNT, preferred
from muster.zookeeper.consumers.async_server_assigned_consumer import AsyncServerAssignedConsumer
from muster.zookeeper.consumers.server_assigned_consumer import ServerAssignedConsumer
from tests.support.old_kafka import LastZooKeeperKafkaBroker
from tests.support.zookeepers import ZooKeeperServer, operator

pytestmark = pytest.mark.slow

PATIENCE_S = 240
TOPIC = "flights"
IDS = (101, 102)
GROUP = next(
    name for name in map("group-{}".format, range(99)) if preferred(group_partition(name, SLOT_COUNT), IDS) == 102
)
"""A group that coordinator 102 should have."""

Member = AsyncServerAssignedConsumer | ServerAssignedConsumer


class World:
    """Two brokers of Kafka, two coordinators, and a session that reads znodes."""

    def __init__(self, folder: Path, address: str, held: contextlib.ExitStack) -> None:
        self.kafka = [
            LastZooKeeperKafkaBroker(folder / f"kafka-{number}", address, broker_id=number) for number in (0, 1)
        ]
        for broker in self.kafka:
            held.enter_context(broker)
        settings = {"zookeeper.session.timeout.ms": 4_000, "group.initial.rebalance.delay.ms": 0}
        self.coordinators = {
            number: LocalCoordinator(folder / f"coordinator-{number}", address, number, settings) for number in IDS
        }
        for coordinator in self.coordinators.values():
            held.enter_context(coordinator)
        self.znodes = held.enter_context(operator(address))

    @property
    def bootstrap(self) -> str:
        """The addresses of Kafka's brokers."""
        return ",".join(broker.bootstrap for broker in self.kafka)

    def settings(self) -> dict[str, Any]:
        """The settings of a member."""
        return {
            "coordinator_servers": [coordinator.members_address for coordinator in self.coordinators.values()],
            "bootstrap_servers": self.bootstrap,
            "group_id": GROUP,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 60_000,
            "heartbeat_interval_ms": 200,
            "request_timeout_ms": 5_000,
        }

    def kill_kafka(self) -> None:
        """SIGKILL to the broker that is not the controller. Its session is long, because a JVM may pause on a busy
        machine: the znode that the end of the session would delete is deleted at once."""
        assert b'"brokerid":0' in self.znodes.get("/controller")[0]
        self.kafka[1].kill()
        self.znodes.delete("/brokers/ids/1")

    def of_kafka(self) -> dict[str, int]:
        """Each of Kafka's own znodes, with the last transaction that wrote it."""
        found, paths = {}, ["/"]
        while paths:
            path = paths.pop()
            if not path.startswith("/muster"):
                found[path] = self.znodes.get(path)[1].mzxid
                paths += [f"{path.rstrip('/')}/{name}" for name in self.znodes.get_children(path)]
        return found


@pytest.fixture
def world(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[World]:
    with contextlib.ExitStack() as held:
        yield World(tmp_path, zookeeper.chroot(), held)


async def polled(member: Member) -> dict[TopicPartition, list[Any]]:
    if isinstance(member, ServerAssignedConsumer):
        return await asyncio.to_thread(member.poll, 100)
    return await member.poll(100)


async def commit(one: AsyncServerAssignedConsumer, two: ServerAssignedConsumer) -> None:
    await one.commit(timeout_ms=PATIENCE_S * 1000)
    await asyncio.to_thread(two.commit, timeout_ms=PATIENCE_S * 1000)


async def until_shared_out(members: list[Member], wanted: set[int]) -> list[int]:
    """Wait until these members share those partitions of the topic equally; returns their generations."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.gather(*map(polled, members))
            shares = [member.assignment() for member in members]
            sizes = sorted(map(len, shares))
            if sum(sizes) == len(wanted) and set().union(*shares) == {TopicPartition(TOPIC, n) for n in wanted}:
                generations = [member.group_metadata().generation_id for member in members]
                if len(set(generations)) == 1 and sizes[-1] - sizes[0] <= 1:
                    return generations


async def until_committed(
    world: World, one: AsyncServerAssignedConsumer, two: ServerAssignedConsumer, end: int
) -> None:
    """Read, and commit, until all partitions have been read up to their end."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.gather(polled(one), polled(two))
            await commit(one, two)
            if await committed(world) == [end] * 4:
                return


async def read(members: list[Member], count: int) -> list[int]:
    """This many records, as they arrive."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for records in await asyncio.gather(*map(polled, members)):
                found += [int(record.value or b"") for some in records.values() for record in some]
    return sorted(found)


async def produce(world: World, values: range, partitions: int) -> None:
    async with AsyncProducer(bootstrap_servers=world.bootstrap) as producer:
        for value in values:
            await producer.send(TOPIC, b"%d" % value, partition=value % partitions)


async def created(world: World) -> set[int]:
    """Create the topic; returns the partitions that broker 1 leads. A broker learns of a topic a moment after its
    creation."""
    async with AsyncAdmin(bootstrap_servers=world.bootstrap) as admin, asyncio.timeout(PATIENCE_S):
        await admin.create_topics([NewTopic(TOPIC, 4)])
        while True:
            found = (await admin.describe_topics([TOPIC], raise_errors=False))[TOPIC]
            if isinstance(found, TopicDescription) and all(part.leader_id >= 0 for part in found.partitions):
                return {part.partition for part in found.partitions if part.leader_id == 1}
            await asyncio.sleep(0.05)


async def test_members_are_assigned_alongside_kafka_and_read_from_it(world: World) -> None:
    lost = await created(world)
    assert len(lost) == 2, "Kafka spreads partitions over its brokers"
    await produce(world, range(20), 4)
    before = await asyncio.to_thread(world.of_kafka)
    one = AsyncServerAssignedConsumer(**world.settings())
    two = await asyncio.to_thread(ServerAssignedConsumer, **world.settings())
    members: list[Member] = [one, two]
    async with one, contextlib.aclosing(Closing(two)):
        for member in members:
            member.subscribe([TOPIC])
        generations = await until_shared_out(members, {0, 1, 2, 3})
        shares = [one.assignment(), two.assignment()]
        # Nothing was committed for partitions that changed their owner before.
        await until_committed(world, one, two, 5)
        assert await asyncio.to_thread(world.of_kafka) == before, "Kafka's znodes are as they were"

        await asyncio.to_thread(world.coordinators[102].kill)
        await produce(world, range(20, 40), 4)
        assert await read(members, 20) == list(range(20, 40)), "nothing comes twice"
        await commit(one, two)
        assert [one.assignment(), two.assignment()] == shares
        assert await until_shared_out(members, {0, 1, 2, 3}) == generations, "a failover is no rebalance"

        await asyncio.to_thread(world.kill_kafka)
        await until_shared_out(members, {0, 1, 2, 3} - lost)
        await asyncio.to_thread(world.kafka[1].start)
        await until_shared_out(members, {0, 1, 2, 3})
        await produce(world, range(40, 60), 4)
        assert await read(members, 20) == list(range(40, 60)), "what was committed is not read again"
        await commit(one, two)
    assert await committed(world) == [15] * 4


class Closing:
    """Close a blocking consumer in a thread."""

    def __init__(self, consumer: ServerAssignedConsumer) -> None:
        self._consumer = consumer

    async def aclose(self) -> None:
        await asyncio.to_thread(self._consumer.close)


async def committed(world: World) -> list[int | None]:
    """The committed offsets according to the listener for group administration."""
    servers = ",".join(coordinator.address for coordinator in world.coordinators.values())
    async with AsyncAdmin(bootstrap_servers=servers) as admin:
        assert [group.group_id for group in await admin.list_consumer_groups()] == [GROUP]
        found = await admin.list_consumer_group_offsets(GROUP)
    return [getattr(found.get(TopicPartition(TOPIC, number)), "offset", None) for number in range(4)]
