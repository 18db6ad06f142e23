"""Clients that others wrote, in a cluster of three brokers: one is killed under load, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.consumer import Consumer
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support import outsiders
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.outsiders import CLIENTS, Feed, Member, until
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

TOPIC = GROUP = "mixed"
PARTITIONS = 3 * len(CLIENTS)
"""With range, each member has three in a row: one of each broker."""


class Brokers:
    """Three brokers, and what they tell of the topic."""

    def __init__(self, folder: Path, address: str) -> None:
        settings: dict[str, object] = {
            "zookeeper.connect": address,
            "zookeeper.session.timeout.ms": 4_000,
            "offsets.topic.num.partitions": 6,
        }
        self.all = {n: BrokerProcess(folder / f"broker{n}", {**settings, "node.id": n}) for n in (1, 2, 3)}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.all.values())

    def coordinator(self) -> int:
        """The broker that coordinates the group, once it knows that it does."""
        found = -1

        def is_there() -> bool:
            nonlocal found
            with RawClient(self.all[1].bootstrap) as client:
                found = client.ask(m.FindCoordinatorRequest(GROUP), 1).node_id
            if found < 0:
                return False
            with RawClient(self.all[found].bootstrap) as client:
                return client.ask(m.DescribeGroupsRequest([GROUP]), 5).groups[0].error_code == 0

        until(is_there, lambda: "a broker coordinates the group")
        return found

    def leaders(self, asked: int) -> dict[int, tuple[int, int, int]]:
        """Error, leader and epoch of each partition, as one broker tells them."""
        with RawClient(self.all[asked].bootstrap) as client:
            answer = client.ask(m.MetadataRequest([m.MetadataRequestTopic(name=TOPIC)], False), 9)
        return {
            part.partition_index: (part.error_code, part.leader_id, part.leader_epoch)
            for part in answer.topics[0].partitions
        }

    def under_newer_epochs(
        self, asked: int, partitions: list[int], before: dict[int, tuple[int, int, int]], wanted: tuple[int, int]
    ) -> dict[int, tuple[int, int, int]]:
        """Wait until partitions have this error and leader, under newer epochs than before; what is told then."""
        told: dict[int, tuple[int, int, int]] = {}

        def are_there() -> bool:
            nonlocal told
            told = self.leaders(asked)
            return all(told[n][:2] == wanted and told[n][2] > before[n][2] for n in partitions)

        until(are_there, lambda: f"error and leader of {partitions} are {wanted}, after {before}: {told}")
        return told


@pytest.fixture
def brokers(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path, zookeeper.chroot())
    with contextlib.ExitStack() as held:
        for broker in made.all.values():
            held.callback(broker.stop)
            broker.start()
        yield made


def stored(bootstrap: str) -> dict[int, list[int]]:
    """All numbers in each partition."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(TOPIC, number) for number in found]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for partition, records in consumer.poll(500).items():
                found[partition.partition] += [int(record.value or b"") for record in records]
    return found


def test_all_go_on_when_a_broker_is_killed_and_comes_back(
    brokers: Brokers, java: str, kcat: str, tmp_path: Path
) -> None:
    operator = outsiders.Cluster(brokers.bootstrap)
    operator.create([TOPIC], PARTITIONS)
    coordinator = brokers.coordinator()
    with contextlib.ExitStack() as held:
        members = []
        for client in CLIENTS:
            members.append(Member(client, brokers.bootstrap, GROUP, TOPIC, tmp_path))
            held.callback(members[-1].destroy)
        feed = held.enter_context(Feed(brokers.bootstrap, [TOPIC], PARTITIONS, {"enable.idempotence": True}))
        operator.shared_by(GROUP, members, PARTITIONS)

        def handled(numbers: range, but: list[int]) -> None:
            """All numbers are handled, but for those of some partitions."""

            def missing() -> list[int]:
                for member in members:
                    member.check_alive()
                seen = set().union(*(member.values for member in members))
                return [n for n in numbers if n not in seen and n % PARTITIONS not in but]

            until(lambda: not missing(), lambda: f"all is handled; missing: {missing()[:20]} of {numbers}")

        for victim in (coordinator % 3 + 1, coordinator):
            # Every member has read from every broker: it knows under which epochs.
            handled(range(feed.count + PARTITIONS), [])
            other = victim % 3 + 1
            before = brokers.leaders(other)
            mine = [number for number, (_, leader, _) in before.items() if leader == victim]
            assert len(mine) == len(CLIENTS)
            brokers.all[victim].kill()
            away = brokers.under_newer_epochs(other, mine, before, (ErrorCode.LEADER_NOT_AVAILABLE, -1))
            if victim != coordinator:  # without which they wait in their commits
                handled(range(feed.count, feed.count + PARTITIONS), mine)
            brokers.all[victim].start()
            brokers.under_newer_epochs(other, mine, away, (0, victim))
        count = feed.finish()
        handled(range(count), [])
    expected = {partition: list(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)}
    assert stored(brokers.bootstrap) == expected, "each record is there once, in order"
