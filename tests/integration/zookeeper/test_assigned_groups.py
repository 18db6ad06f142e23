"""A group to which the coordinator assigns, in a cluster on a real ZooKeeper: the coordinator watches topics and
leaders, the members do not.

Its members are stock clients of several kinds. One partition is added as Kafka's tools of that time did it; a broker
stops, which makes its partitions unavailable (H6), and comes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from kazoo.client import KazooClient

from muster.protocol import messages as m
from tests.support import outsiders
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.outsiders import Feed, Member, until
from tests.support.zookeepers import ZooKeeperServer, operator

pytestmark = pytest.mark.slow

GROUP = TOPIC = "assigned"
CLIENTS = ("with-kafka-python", "with-confluent", "with-aiokafka", "with-muster")


class Cluster:
    """Two brokers, one of which coordinates the group."""

    def __init__(self, folder: Path, address: str) -> None:
        settings: dict[str, object] = {
            "zookeeper.connect": address,
            "zookeeper.session.timeout.ms": 4_000,
            "server.assigned.groups": "assign.*",
        }
        self.brokers = {n: BrokerProcess(folder / f"broker{n}", {**settings, "node.id": n}) for n in (1, 2)}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def coordinator(self) -> int:
        """The broker that coordinates the group, once there is one."""
        found = -1

        def is_there() -> bool:
            nonlocal found
            with RawClient(self.brokers[1].bootstrap) as client:
                found = client.ask(m.FindCoordinatorRequest(GROUP), 1).node_id
            return found > 0

        until(is_there, lambda: "a broker coordinates the group")
        return found

    def leaders(self) -> dict[int, int]:
        """The leader of each partition."""
        with RawClient(self.brokers[self.coordinator()].bootstrap) as client:
            answer = client.ask(m.MetadataRequest([m.MetadataRequestTopic(name=TOPIC)], False), 9)
        return {partition.partition_index: partition.leader_id for partition in answer.topics[0].partitions}


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[tuple[Cluster, KazooClient]]:
    chroot = zookeeper.chroot()
    made = Cluster(tmp_path, chroot)
    with contextlib.ExitStack() as held:
        for broker in made.brokers.values():
            held.callback(broker.stop)
            broker.start()
        yield made, held.enter_context(operator(chroot))


def test_partitions_are_added_and_lose_their_leaders(cluster: tuple[Cluster, KazooClient], tmp_path: Path) -> None:
    brokers, znodes = cluster
    znodes.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[1],"1":[2],"2":[1],"3":[2]}}')
    until(lambda: sorted(brokers.leaders().items()) == [(0, 1), (1, 2), (2, 1), (3, 2)], lambda: "all are led")
    operator = outsiders.Cluster(brokers.bootstrap)
    members = [Member(client, brokers.bootstrap, GROUP, TOPIC, tmp_path) for client in CLIENTS]

    def shares() -> list[list[int]]:
        for member in members:
            member.check_alive()
        state, found = operator.group(GROUP)
        return [share.partitions for share in found] if state is ConsumerGroupState.STABLE else []

    def settle(*expected: list[int]) -> None:
        until(lambda: shares() == list(expected), lambda: f"the shares are {expected}; they are {shares()}")

    try:
        settle([0], [1], [2], [3])
        registered, _ = znodes.get(f"/brokers/topics/{TOPIC}")
        znodes.set(f"/brokers/topics/{TOPIC}", registered.replace(b'"0":[1]', b'"0":[1],"4":[1],"5":[2]'))
        settle([0, 1], [2, 3], [4], [5])
        with Feed(brokers.bootstrap, [TOPIC], 6) as feed:
            away = 3 - brokers.coordinator()
            mine = [number for number in range(6) if 1 + number % 2 != away]
            brokers.brokers[away].kill()
            settle([], *[[number] for number in mine])
            brokers.brokers[away].start()
            settle([0, 1], [2, 3], [4], [5])
            count = feed.finish()

        def missing() -> set[int]:
            return set(range(count)) - set().union(*(member.values for member in members))

        until(lambda: not missing(), lambda: f"all of {count} records are handled; missing {sorted(missing())[:20]}")
    finally:
        for member in members:
            member.destroy()
    log = "".join(broker.log() for broker in brokers.brokers.values())
    for cause in ("partitions were added, or have a leader again", "partitions have no leader (no member): no leader"):
        assert cause in log, cause
