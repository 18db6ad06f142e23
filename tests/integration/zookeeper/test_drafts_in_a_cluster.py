"""Members that use the protocol of Kafka's drafts, in a cluster whose coordinators store groups in ZooKeeper (A1, A2,
A6).

The coordinator of their group is killed, or suspended: another broker takes over from what ZooKeeper holds. The members
find the new one without help, and continue in their generation. The first one returns, and gets its groups again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster import AsyncProducer
from muster.model import TopicPartition
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.zookeeper import AsyncServerAssignedConsumer
from muster.zookeeper.cluster.slots import SLOT_COUNT, preferred
from muster.zookeeper.server_assigned.states import ServerAssignedState
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import free_ports
from tests.support.zookeepers import ZooKeeperServer, operator

pytestmark = pytest.mark.slow

PATIENCE_S = 120
PARTITIONS = 4
TOPIC = "flights"
THIRD = next(
    name for name in map("group-{}".format, range(999)) if preferred(group_partition(name, SLOT_COUNT), (1, 2, 3)) == 3
)
"""A group that broker 3 should coordinate."""


class Cluster:
    """Three brokers with draft listeners. The topic's leaders are 1 and 2, so that no partition is unavailable without
    3."""

    def __init__(self, folder: Path, address: str) -> None:
        self.address = address
        self.ports = free_ports(3)
        self.brokers = {
            number: BrokerProcess(
                folder / f"broker{number}",
                {
                    "zookeeper.connect": address,
                    "zookeeper.session.timeout.ms": 4_000,
                    "node.id": number,
                    "server.assigned.groups": "group-.*",
                    "draft.listener": f"127.0.0.1:{port}",
                },
            )
            for number, port in zip((1, 2, 3), self.ports, strict=True)
        }

    def begin(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        with operator(self.address) as znodes:
            znodes.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[1],"1":[2],"2":[1],"3":[2]}}')

    @property
    def bootstrap(self) -> str:
        return ",".join(self.brokers[number].bootstrap for number in (1, 2))

    def coordinator(self, asked: int = 1) -> tuple[int, int]:
        """The coordinator of the group, and the port of its draft listener, as a broker reports them to members."""
        with RawClient(f"127.0.0.1:{self.ports[asked - 1]}") as client:
            found = client.ask(m.FindCoordinatorRequest(THIRD), 0)
        return found.node_id, found.port

    def consumer(self) -> AsyncServerAssignedConsumer:
        return AsyncServerAssignedConsumer(
            coordinator_servers=[f"127.0.0.1:{port}" for port in self.ports],
            bootstrap_servers=self.bootstrap,
            group_id=THIRD,
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,
            heartbeat_interval_ms=200,
            request_timeout_ms=5_000,
        )


@pytest.fixture
async def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, zookeeper.chroot())
    with contextlib.ExitStack() as held:
        for broker in made.brokers.values():
            held.callback(broker.stop)
        await asyncio.to_thread(made.begin)
        yield made


async def until_coordinated_by(cluster: Cluster, *numbers: int) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while (found := await asyncio.to_thread(cluster.coordinator))[0] not in numbers:
            await asyncio.sleep(0.1)
    assert found[1] == cluster.ports[found[0] - 1], "members are told the draft listener"
    return found[0]


async def until_shared_out(*members: AsyncServerAssignedConsumer) -> list[int]:
    """Wait until these members share the partitions, and have found their coordinator; returns their generations."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.gather(*(member.poll(50) for member in members))
            shares = [member.assignment() for member in members]
            stable = all(member.state is ServerAssignedState.STABLE for member in members)
            if stable and sum(map(len, shares)) == len(set().union(*shares)) == PARTITIONS:
                return [member.group_metadata().generation_id for member in members]


async def commit_all(cluster: Cluster, *members: AsyncServerAssignedConsumer) -> None:
    """Write a record to each partition; the members read and commit it, whichever coordinator they have."""
    async with AsyncProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(PARTITIONS):
            await producer.send(TOPIC, b"x", partition=number)
    missing = {(TOPIC, number) for number in range(PARTITIONS)}
    async with asyncio.timeout(PATIENCE_S):
        while missing:
            for found in await asyncio.gather(*(member.poll(100) for member in members)):
                missing -= set(found)
    await asyncio.gather(*(member.commit(timeout_ms=PATIENCE_S * 1000) for member in members))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_failover_is_not_a_rebalance(cluster: Cluster, how: signal.Signals) -> None:
    await until_coordinated_by(cluster, 3)
    one, two = cluster.consumer(), cluster.consumer()
    async with one, two:
        one.subscribe([TOPIC])
        two.subscribe([TOPIC])
        generations = await until_shared_out(one, two)
        shares = [one.assignment(), two.assignment()]
        await commit_all(cluster, one, two)
        pid = cluster.brokers[3].pid
        if how is signal.SIGKILL:
            cluster.brokers[3].kill()
        else:
            os.kill(pid, how)  # its connections stay up
        await until_coordinated_by(cluster, 1, 2)
        await commit_all(cluster, one, two)
        assert await until_shared_out(one, two) == generations
        if how is signal.SIGKILL:
            await asyncio.to_thread(cluster.brokers[3].start)
        else:
            os.kill(pid, signal.SIGCONT)
        await until_coordinated_by(cluster, 3)
        await commit_all(cluster, one, two)
        assert await until_shared_out(one, two) == generations
        assert [one.assignment(), two.assignment()] == shares
        offsets = await one.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        assert [place and place.offset for place in offsets.values()] == [3] * PARTITIONS
        await two.close()
        [after] = await until_shared_out(one)
        assert after > generations[0], "a member that leaves makes the group rebalance"
