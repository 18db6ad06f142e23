"""Groups fail over in a cluster of brokers: three real brokers on a real ZooKeeper, real clients as members."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kazoo.client import KazooClient

from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.consumer.listener import RebalanceListener
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.protocol.group_records import GroupMetadataRecord, decode_record
from muster.zookeeper.cluster.group_znodes import read_znode
from muster.zookeeper.cluster.slots import SLOT_COUNT, preferred
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.muster_cluster import LONG, PATIENCE_S, eventually
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow

PARTITIONS = 6
THIRD = next(name for name in map(str, range(999)) if preferred(group_partition(name, SLOT_COUNT), (1, 2, 3)) == 3)
"""A group that broker 3 should coordinate."""

SLOT = group_partition(THIRD, SLOT_COUNT)
SIMPLE = next(name for name in map("simple-{}".format, range(9_999)) if group_partition(name, SLOT_COUNT) == SLOT)
"""A group without members in the same slot."""


class Cluster:
    def __init__(self, folder: Path, address: str, assigned: str | None) -> None:
        self.address = address
        settings: dict[str, object] = {"zookeeper.connect": address, **LONG}
        if assigned is not None:
            settings["server.assigned.groups"] = assigned
        self.brokers = {
            number: BrokerProcess(folder / f"broker{number}", {**settings, "node.id": number}) for number in (1, 2, 3)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def ask(self, number: int, request: Any, version: int) -> Any:
        with RawClient(self.brokers[number].bootstrap) as client:
            return client.ask(request, version)

    def coordinator(self, asked: int) -> int:
        """The coordinator of the group, as a broker reports it; -1 if there is none."""
        answer = self.ask(asked, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[THIRD]), 4)
        found: int = answer.coordinators[0].node_id
        assert (found == -1) is (answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return found

    def committed(self, asked: int, group_id: str = THIRD) -> dict[int, int] | ErrorCode:
        request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id, topics=None)])
        [group] = self.ask(asked, request, 8).groups
        if group.error_code:
            return ErrorCode(group.error_code)
        return {each.partition_index: each.committed_offset for t in group.topics for each in t.partitions}

    def members(self, asked: int) -> dict[str, bytes] | None:
        """The members of the group and their assignments, None unless it is stable."""
        [group] = self.ask(asked, m.DescribeGroupsRequest([THIRD]), 5).groups
        if group.error_code or group.group_state != "Stable":
            return None
        return {member.member_id: bytes(member.member_assignment) for member in group.members}


def commit_request(offset: int) -> m.OffsetCommitRequest:
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, offset)])
    return m.OffsetCommitRequest(SIMPLE, topics=[topic])


@pytest.fixture(params=[None, ".*"], ids=["a member assigns", "the coordinator assigns"])
def cluster(request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, zookeeper.chroot(), request.param)
    with contextlib.ExitStack() as held:
        for broker in made.brokers.values():
            held.callback(broker.stop)
            broker.start()
        eventually(lambda: all(made.coordinator(number) == 3 for number in made.brokers))
        yield made


# --- members ---------------------------------------------------------------------------------------------------------


class Member(threading.Thread):
    """A member in its own thread: records what it reads and how often it gets partitions, and commits."""

    SESSION_MS = 90_000
    HEARTBEAT_MS = 300

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.read: list[tuple[int, int]] = []
        self.assignments: list[list[int]] = []
        self.failures: list[BaseException] = []
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            self.failures.append(error)

    def consume(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.ending.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.failures == []


class OfMuster(Member, RebalanceListener):
    def on_partitions_assigned(self, partitions: Any) -> None:
        self.assignments.append([each.partition for each in partitions])

    def consume(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=THIRD,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            partition_assignment_strategy=["range"],
            session_timeout_ms=self.SESSION_MS,
            heartbeat_interval_ms=self.HEARTBEAT_MS,
        ) as consumer:
            consumer.subscribe(["t"], listener=self)
            while not self.ending.is_set():
                for records in consumer.poll(100).values():
                    self.read += [(record.partition, record.offset) for record in records]


class OfConfluent(Member):
    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": THIRD,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": self.SESSION_MS,
                "heartbeat.interval.ms": self.HEARTBEAT_MS,
            }
        )
        consumer.subscribe(
            ["t"], on_assign=lambda _, assigned: self.assignments.append([each.partition for each in assigned])
        )
        while not self.ending.is_set():
            for message in consumer.consume(100, timeout=0.1):
                if not message.error():
                    self.read.append((message.partition(), message.offset()))
        consumer.close()


class Group:
    """Three members, with two clients, and everything that was produced for them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members: list[Member] = [kind(cluster.bootstrap) for kind in (OfMuster, OfMuster, OfConfluent)]
        self.produced = 0
        for member in self.members:
            member.start()

    def produce(self) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for number in range(PARTITIONS):
                producer.send("t", value=b"v", partition=number)
            producer.flush()
        self.produced += 1

    def continues(self, asked: int) -> None:
        """Produce more records, which are read and committed."""
        self.produce()
        wanted = dict.fromkeys(range(PARTITIONS), self.produced)
        eventually(lambda: self.failed() or self.cluster.committed(asked) == wanted)
        assert self.failed() == []

    def failed(self) -> list[BaseException]:
        return [failure for member in self.members for failure in member.failures]

    def assignments(self) -> list[list[list[int]]]:
        return [member.assignments for member in self.members]


def generation(znodes: KazooClient) -> int:
    """The generation stored in ZooKeeper."""
    path = f"/muster/groups/{SLOT}/{THIRD}"
    found = read_znode(path, znodes.get(path)[0])
    assert isinstance(found, dict), found
    [record] = [decode_record(key, value) for key, value in found.items()]
    assert isinstance(record, GroupMetadataRecord)
    assert record.value is not None
    return record.value.generation


def test_a_stable_group_survives_its_coordinators(cluster: Cluster, znodes: KazooClient) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        places = {number: [1 + number % 2] for number in range(PARTITIONS)}  # not on the broker that will be killed
        admin.create_topics([NewTopic("t", assignments=places)])
    group = Group(cluster)
    try:
        eventually(lambda: group.failed() or len(cluster.members(3) or ()) == 3)
        group.continues(3)
        eventually(lambda: sorted(n for each in group.assignments() for n in each[-1]) == list(range(PARTITIONS)))
        shares, number, assignments = cluster.members(3), generation(znodes), str(group.assignments())

        def is_as_before() -> None:
            assert (generation(znodes), str(group.assignments())) == (number, assignments)

        # Killed: when its session has expired, another broker continues with its groups.
        cluster.brokers[3].kill()
        second = eventually(lambda: next((each for each in [cluster.coordinator(1)] if each not in (3, -1)), None))
        assert eventually(lambda: cluster.members(second)) == shares
        assert cluster.committed(second) == dict.fromkeys(range(PARTITIONS), group.produced)
        group.continues(second)
        is_as_before()

        # It comes back, and gets its slots back.
        cluster.brokers[3].start()
        eventually(lambda: all(cluster.coordinator(each) == 3 for each in cluster.brokers))
        assert eventually(lambda: cluster.members(3)) == shares
        group.continues(3)
        is_as_before()

        # It is suspended for longer than its session lives. A commit waits in its socket.
        assert cluster.ask(3, commit_request(7), 8).topics[0].partitions[0].error_code == 0
        with RawClient(cluster.brokers[3].bootstrap) as waiting:
            assert waiting.ask(commit_request(8), 8).topics[0].partitions[0].error_code == 0
            os.kill(cluster.brokers[3].pid, signal.SIGSTOP)
            try:
                waiting.send(commit_request(9), 8)
                third = eventually(lambda: next((e for e in [cluster.coordinator(1)] if e not in (3, -1)), None))
                assert eventually(lambda: cluster.members(third)) == shares
                assert cluster.ask(third, commit_request(10), 8).topics[0].partitions[0].error_code == 0
            finally:
                os.kill(cluster.brokers[3].pid, signal.SIGCONT)
            answer = waiting.receive(m.OffsetCommitRequest, 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        eventually(lambda: cluster.committed(3, SIMPLE) == {0: 10})  # it has its slots again
        group.continues(3)
        is_as_before()
    finally:
        for member in group.members:
            member.ending.set()
    for member in group.members:
        member.stop()
    read = sorted(each for member in group.members for each in member.read)
    assert read == [(number, offset) for number in range(PARTITIONS) for offset in range(group.produced)]
