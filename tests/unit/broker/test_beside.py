"""A coordinator alongside Kafka, on an in-memory ZooKeeper in which the test does what Kafka's brokers do there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker import handlers
from muster.broker.cluster import follower, slot_coordination
from muster.broker.cluster.slot_coordination import ZooKeeperCoordination
from muster.broker.config import SETTINGS as ALL_SETTINGS
from muster.broker.config import BrokerConfig
from muster.broker.coordinator_process import SETTINGS, CoordinatorServer, KafkaFollower
from muster.broker.handlers import draft
from muster.broker.net.calls import Api
from muster.errors import ConfigError, ErrorCode
from muster.protocol import messages as m
from muster.protocol.draft_messages import DraftJoinGroupRequest
from muster.protocol.group_partitions import group_partition
from muster.zookeeper.base.operations import Create, Delete, GetChildren, GetData, SetData, ensure_path
from muster.zookeeper.base.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    BrokerEndpoint,
    BrokerRegistration,
    LeaderAndIsr,
    TopicRegistration,
    broker_path,
    coordinator_path,
    partition_state_path,
    topic_path,
)
from muster.zookeeper.cluster.beside_kafka import KAFKA, CoordinatorIdTakenError
from muster.zookeeper.cluster.scheme import CLUSTER_ID
from muster.zookeeper.cluster.slots import SLOT_COUNT, preferred
from tests.simulator.zookeeper import SimSession
from tests.support.held_disk import Asked
from tests.support.sim_cluster import AsyncSession, SimCluster

IDS = ("J28i5pjmSkGnk1t5tzXkjw", "Uq1Nl-TrQ6SFGwVcCf3vqA")
PARTITIONS = 4


class World(SimCluster):
    """A ZooKeeper with what Kafka's brokers 0 and 1 write in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sessions: dict[int, SimSession] = {}

    def kafka(self, cluster_id: str = "kafka-1") -> None:
        """Kafka starts for the first time."""
        for path in (BROKER_IDS, BROKER_TOPICS, "/cluster", "/config/topics", "/admin/delete_topics"):
            self.plan(ensure_path(path))
        self.do(Create(CLUSTER_ID, b'{"version":"1","id":"%s"}' % cluster_id.encode()))
        self.do(Create("/controller_epoch", b"1"))
        for number in (0, 1):
            self.comes(number)

    def comes(self, number: int) -> None:
        """A broker registers in ZooKeeper."""
        session = self.sessions[number] = self.zookeeper.connect(f"kafka-{number}", timeout_ms=60_000)
        self.zookeeper.settle()
        registration = BrokerRegistration(number, (BrokerEndpoint("PLAINTEXT", "kafka", 9092 + number),), 0)
        self.zookeeper.do(session, Create(broker_path(number), registration.encode(), ephemeral=True))

    def dies(self, number: int) -> None:
        """A broker's session ends."""
        self.zookeeper.expire(self.sessions[number])

    def create(self, topic: str, topic_id: str | None = IDS[0], replicas: int = 1) -> None:
        """Kafka creates a topic, and its controller gives the partitions leaders in turn."""
        on = {number: [number % 2, 1 - number % 2][:replicas] for number in range(PARTITIONS)}
        registration = TopicRegistration(on, topic_id)
        self.do(Create(topic_path(topic), registration.encode()))
        self.do(Create(f"{topic_path(topic)}/partitions"))
        for number in range(PARTITIONS):
            self.do(Create(f"{topic_path(topic)}/partitions/{number}"))
            state = LeaderAndIsr(number % 2, 0, on[number], 1)
            self.do(Create(partition_state_path(topic, number), state.encode()))

    def lead(self, topic: str, number: int, leader: int, epoch: int, isr: list[int] | None = None) -> None:
        """Kafka's controller writes a leader."""
        state = LeaderAndIsr(leader, epoch, isr or [number % 2], 1)
        self.do(SetData(partition_state_path(topic, number), state.encode()))

    def delete(self, topic: str) -> None:
        """Kafka's controller deletes a topic."""
        for path in reversed(self.below(topic_path(topic))):
            self.do(Delete(path))

    def below(self, path: str) -> list[str]:
        """A znode and all its descendants."""
        children = self.do(GetChildren(path))
        return [path, *(found for child in children for found in self.below(f"{path.rstrip('/')}/{child}"))]

    def of_kafka(self) -> dict[str, int]:
        """The znodes that are not the coordinators', each with the transaction that last wrote it."""
        paths = [path for path in self.below("/") if not path.startswith("/muster")]
        return {path: self.do(GetData(path))[1].mzxid for path in paths}

    def coordinator(self, number: int, **settings: object) -> tuple[CoordinatorServer, AsyncSession]:
        """A coordinator that is not started yet."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        fixed = {"node.id": number, "listeners": "127.0.0.1:0", "draft.listener": "127.0.0.1:0"}
        config = BrokerConfig({**fixed, "group.initial.rebalance.delay.ms": 0, **given})
        session = self.session(f"coordinator-{number}")
        return CoordinatorServer(config, KafkaFollower(config, session)), session

    @contextlib.asynccontextmanager
    async def coordinating(self, number: int, **settings: object) -> AsyncIterator[CoordinatorServer]:
        """A running coordinator."""
        coordinator, _ = self.coordinator(number, **settings)
        await self.soon(coordinator.start())
        try:
            yield coordinator
        finally:
            await self.soon(coordinator.stop())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(follower, "PAUSE_S", 0.001)
    monkeypatch.setattr(follower, "RETRY_TAKEN_S", 0.001)
    monkeypatch.setattr(slot_coordination, "PAUSE_S", 0.001)
    return World(tmp_path)


def held(coordinator: CoordinatorServer) -> int:
    """How many slots a coordinator serves; -1 while it serves other slots than it holds."""
    assert isinstance(coordinator.coordination, ZooKeeperCoordination)
    served_shards = coordinator.groups.runtime._served
    return len(served_shards) if served_shards.keys() == coordinator.coordination.keeper.held.keys() else -1


def table_of(coordinator: CoordinatorServer) -> dict[int, Api]:
    """The requests that its listener for group administration serves."""
    return handlers.groups_table(coordinator.cluster, coordinator._follower.topics, coordinator.groups)


async def ask(world: World, coordinator: CoordinatorServer, request: Any, version: int) -> Any:
    """Its answer to a request of group administration."""
    apis = table_of(coordinator)
    return await world.soon(Asked(None, request, version, apis=apis).answered())


class Member:
    """A member of the group `g` that speaks the draft protocol."""

    def __init__(self, world: World, coordinator: CoordinatorServer) -> None:
        self.id = ""
        self.generation = -1
        self.world = world
        self.coordinator = coordinator

    async def ask(self, request: Any, version: int = 0) -> Any:
        """The answer of the draft's listener."""
        served = table_of(self.coordinator)
        apis = draft.table(self.coordinator.cluster, self.coordinator.groups, served)
        return await self.world.soon(Asked(None, request, version, apis=apis).answered())

    async def join(self, topic: str = "t") -> list[int]:
        """Join, and return the assigned partitions."""
        answer = await self.ask(DraftJoinGroupRequest("g", 60_000, [topic], self.id, "range"))
        assert answer.error_code == 0
        self.id, self.generation = answer.consumer_id, answer.group_generation_id
        return sorted(number for topic in answer.assigned_partitions for number in topic.partitions)

    async def beat(self) -> int:
        """Send a heartbeat; returns its error code."""
        answer = await self.ask(m.HeartbeatRequest("g", self.generation, self.id))
        error: int = answer.error_code
        return error

    async def rejoin(self) -> list[int]:
        """Wait until a rebalance has begun, and join again."""
        while (error := await self.beat()) == 0:
            self.world.clock.advance(20)
        assert error == ErrorCode.ILLEGAL_GENERATION
        return await self.join()

    async def commit(self, offset: int, topic: str = "t") -> int:
        """Commit; returns the error code."""
        partition = m.OffsetCommitRequestPartition(0, offset)
        request = m.OffsetCommitRequest("g", self.generation, self.id, None, -1, [m.OffsetCommitRequestTopic(topic)])
        request.topics[0].partitions = [partition]
        answer = await self.ask(request, 2)
        error: int = answer.topics[0].partitions[0].error_code
        return error


async def committed(world: World, coordinator: CoordinatorServer, topic: str = "t") -> int:
    request = m.OffsetFetchRequest("g", [m.OffsetFetchRequestTopic(topic, [0])])
    answer = await ask(world, coordinator, request, 7)
    assert answer.error_code == 0
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


@contextlib.asynccontextmanager
async def serving(world: World) -> AsyncIterator[tuple[CoordinatorServer, Member]]:
    """A coordinator alongside Kafka with a topic, and a member that has not joined yet."""
    world.kafka()
    world.create("t")
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        yield coordinator, Member(world, coordinator)


@contextlib.asynccontextmanager
async def committed_to(world: World) -> AsyncIterator[tuple[CoordinatorServer, Member]]:
    """The same, after the member has joined and committed 5."""
    async with serving(world) as (coordinator, member):
        await member.join()
        assert await member.commit(5) == 0
        yield coordinator, member


async def test_members_have_what_has_a_leader_and_get_the_rest_back(world: World) -> None:
    async with serving(world) as (coordinator, member):
        assert await member.join() == [0, 1, 2, 3]
        world.dies(1)  # Kafka's controller has not written the leaders yet
        assert await member.rejoin() == [0, 2]
        for number in (1, 3):
            world.lead("t", number, -1, 1)
        world.comes(1)
        await world.until(lambda: 1 in coordinator.cluster._image.brokers)
        assert await member.beat() == 0, "it is there, but leads nothing yet"
        world.lead("t", 1, 1, 2)
        assert await member.rejoin() == [0, 1, 2]
        world.dies(0)
        world.dies(1)
        while await member.rejoin():
            pass
        world.comes(0)
        assert await member.rejoin() == [0, 2]


async def test_a_leader_that_is_followed_by_another_replica_costs_no_rebalance(world: World) -> None:
    world.kafka()
    world.create("t", replicas=2)
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        member = Member(world, coordinator)
        assert await member.join() == [0, 1, 2, 3]
        world.dies(1)
        await world.until(lambda: 1 not in coordinator._follower.image.brokers)
        assert await member.beat() == 0, "Kafka's controller has yet to write"
        for number in range(PARTITIONS):
            world.lead("t", number, 0, 1, [0])
        await world.until(lambda: coordinator._follower.image.topics["t"].states[3].state.leader == 0)
        assert await member.beat() == 0
        world.comes(1)
        world.dies(0)  # and 1 is not in sync
        assert await member.rejoin() == []
        world.lead("t", 0, -1, 2, [0])
        world.comes(0)
        assert await member.rejoin() == [1, 2, 3]
        world.lead("t", 0, 0, 3, [0])
        assert await member.rejoin() == [0, 1, 2, 3]


async def test_nothing_of_kafkas_is_written(world: World) -> None:
    world.kafka()
    world.create("t")
    before = world.of_kafka()
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        member = Member(world, coordinator)
        await member.join()
        assert await member.commit(5) == 0
        assert world.of_kafka() == before
    assert world.of_kafka() == before
    assert world.do(GetChildren("/muster/coordinators")) == []


async def test_another_coordinator_continues_in_the_same_generation(world: World) -> None:
    world.kafka()
    world.create("t")
    async with world.coordinating(101) as first:
        await world.until(lambda: held(first) == SLOT_COUNT)
        async with world.coordinating(102) as second:
            share = sum(preferred(slot, (101, 102)) == 102 for slot in range(SLOT_COUNT))
            await world.until(lambda: (held(first), held(second)) == (SLOT_COUNT - share, share))
            should = preferred(group_partition("g", SLOT_COUNT), (101, 102))
            there, other = (first, second) if should == 101 else (second, first)
            member = Member(world, there)
            assert await member.join() == [0, 1, 2, 3]
            assert await member.commit(7) == 0
            found = await Member(world, other).ask(m.FindCoordinatorRequest("g"))
            assert (found.node_id, found.port) == (should, there.cluster.draft_node.port)  # type: ignore[union-attr]
            world.cut(session_of(there))
            await world.until(lambda: held(other) == SLOT_COUNT)
            member.coordinator = other
            assert await member.beat() == 0
            assert await committed(world, other) == 7
            member.coordinator = there
            assert await member.beat() == ErrorCode.NOT_COORDINATOR
            world.zookeeper.heal(session_of(there).sim)


def session_of(coordinator: CoordinatorServer) -> AsyncSession:
    found = coordinator._follower.session
    assert isinstance(found, AsyncSession)
    return found


@pytest.mark.parametrize("fresh", [None, IDS[1]], ids=["deleted", "created again"])
async def test_offsets_go_with_their_topic(world: World, fresh: str | None) -> None:
    world.kafka()
    world.create("t")
    world.create("kept", IDS[1] if fresh is None else None)
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        member = Member(world, coordinator)
        await member.join()
        assert await member.commit(5) == 0
        assert await member.commit(6, "kept") == 0
        world.delete("t")
        if fresh is not None:
            world.create("t", fresh)
        while await committed(world, coordinator) != -1:
            world.clock.advance(20)
        assert await committed(world, coordinator, "kept") == 6


async def test_offsets_are_kept_while_a_topic_cannot_be_understood(world: World) -> None:
    async with committed_to(world) as (coordinator, member):
        data, _ = world.do(GetData(topic_path("t")))
        world.do(SetData(topic_path("t"), b"{"))
        assert await member.rejoin() == []
        world.do(SetData(topic_path("t"), data))
        assert await member.rejoin() == [0, 1, 2, 3]
        assert await committed(world, coordinator) == 5


async def test_a_coordinator_stops_and_keeps_offsets_when_kafkas_znodes_are_lost(world: World) -> None:
    async with committed_to(world) as (coordinator, _):
        world.do(Delete(CLUSTER_ID))
        world.delete("t")
        await world.until(coordinator.ends[0].is_set)
        assert await committed(world, coordinator) == 5
    again, _ = world.coordinator(101)
    with pytest.raises(ConfigError, match="ZooKeeper has lost cluster kafka-1"):
        await world.soon(again.start())
    world.do(Create(CLUSTER_ID, b'{"version":"1","id":"kafka-2"}'))
    again, session = world.coordinator(101)
    with pytest.raises(ConfigError, match=r"ZooKeeper has lost cluster kafka-1: .*kafka-2"):
        await world.soon(again.start())
    assert not session.sim.is_connected


async def test_without_kafka_it_waits_for_one(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        assert [record.message for record in caplog.records if "no Kafka broker" in record.message] == [
            "no Kafka broker is registered in ZooKeeper: members get no partitions until one is"
        ]
        member = Member(world, coordinator)
        assert await member.join() == []
        world.kafka()
        world.create("t")
        while await member.join() != [0, 1, 2, 3]:
            world.clock.advance(20)
        assert coordinator.cluster.cluster_id == "kafka-1"
        assert world.do(GetData(KAFKA))[0] == b"kafka-1"


async def test_a_kafka_whose_cluster_has_no_id_is_known_by_its_topics(world: World) -> None:
    """Before 0.10.1 clusters had no id; before 2.8 topics had none."""
    world.kafka()
    world.do(Delete(CLUSTER_ID))
    world.create("t", None)
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        member = Member(world, coordinator)
        assert await member.join() == [0, 1, 2, 3]
        assert await member.commit(5) == 0
        world.delete("t")
        while await committed(world, coordinator) != -1:
            world.clock.advance(20)


async def test_an_id_of_another_process_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.kafka()
    like_a_broker, _ = world.coordinator(1)
    with pytest.raises(ConfigError, match="a broker already has id 1"):
        await world.soon(like_a_broker.start())
    async with world.coordinating(101):
        twin, session = world.coordinator(101)
        monkeypatch.setattr(follower, "TAKEN_MORE_S", 0.05)
        session.timeout_ms = 0
        with pytest.raises(CoordinatorIdTakenError, match="another coordinator is registered with the id 101"):
            await world.soon(twin.start())
        assert not session.sim.is_connected, "its session is closed"


async def test_a_coordinator_whose_id_was_taken_meanwhile_stops(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was suspended beyond its session timeout, and was started again elsewhere."""
    world.kafka()
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        session = session_of(coordinator)
        monkeypatch.setattr(follower, "TAKEN_MORE_S", 0.05)
        session.timeout_ms = 0
        world.cut(session)
        await world.until(lambda: world.do(GetChildren("/muster/coordinators")) == [])
        world.do(Create(coordinator_path(101), b'{"version":1,"host":"h","port":9}', ephemeral=True))
        world.zookeeper.heal(session.sim)
        await world.until(coordinator.ends[0].is_set)
        assert "another coordinator is registered with the id 101; this process stops" in caplog.text
        assert held(coordinator) == 0


async def test_a_coordinator_whose_session_has_expired_comes_back(world: World) -> None:
    async with serving(world) as (coordinator, member):
        assert await member.join() == [0, 1, 2, 3]
        assert await member.commit(5) == 0
        world.expire(session_of(coordinator))
        await world.until(lambda: held(coordinator) == 0)
        assert await member.beat() == ErrorCode.NOT_COORDINATOR
        world.create("u", IDS[1])
        await world.until(lambda: held(coordinator) == SLOT_COUNT)
        assert await member.beat() == 0
        assert await committed(world, coordinator) == 5
        assert await member.join("u") == [0, 1, 2, 3], "its watches are new"


async def test_an_id_whose_session_ends_is_taken_over(world: World) -> None:
    """A coordinator that was killed finds its own former registration when it is started again."""
    world.kafka()
    former = world.zookeeper.connect("former", timeout_ms=4_000)
    world.zookeeper.settle()
    world.plan(ensure_path("/muster/coordinators"))
    world.zookeeper.do(former, Create(coordinator_path(101), b'{"version":1,"host":"h","port":9}', ephemeral=True))
    world.zookeeper.cut(former)
    async with world.coordinating(101) as coordinator:
        await world.until(lambda: held(coordinator) == SLOT_COUNT)


async def test_coordinators_and_musters_brokers_do_not_mix(world: World) -> None:
    async with world.coordinating(101):
        broker, _ = world.make(1)
        with pytest.raises(ConfigError, match="coordinators that run next to Apache Kafka"):
            await world.soon(broker.start())
    other = World(world._folder / "other")
    async with other.running(1):
        coordinator, _ = other.coordinator(101)
        with pytest.raises(ConfigError, match="a cluster of muster's brokers"):
            await other.soon(coordinator.start())


@pytest.mark.parametrize("carries_out", [False, True])
async def test_a_start_that_loses_its_connection_anywhere_succeeds(world: World, carries_out: bool) -> None:
    world.kafka()
    world.create("t")
    for number in range(0, 60, 3):
        coordinator, session = world.coordinator(101)
        session.break_at, session.carries_out = number, carries_out
        await world.soon(coordinator.start())
        assert coordinator._follower.topics.partition_count("t") == PARTITIONS
        await world.soon(coordinator.stop())


async def test_tools_that_look_after_groups_learn_of_coordinators_alone(world: World) -> None:
    async with serving(world) as (coordinator, member):
        reported = await ask(world, coordinator, m.MetadataRequest([m.MetadataRequestTopic(name="t")], False), 9)
        assert [node.node_id for node in reported.brokers] == [101]
        assert reported.cluster_id == "kafka-1"
        found = [(part.error_code, part.leader_id, part.replica_nodes) for part in reported.topics[0].partitions]
        assert found == [(ErrorCode.LEADER_NOT_AVAILABLE, -1, [number % 2]) for number in range(PARTITIONS)]
        by_id = m.MetadataRequest([m.MetadataRequestTopic(reported.topics[0].topic_id, None)], False)
        assert [topic.name for topic in (await ask(world, coordinator, by_id, 12)).topics] == ["t"]
        unknown = m.MetadataRequest([m.MetadataRequestTopic(name="u")], True)
        answer = await ask(world, coordinator, unknown, 9)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        versions = await ask(world, coordinator, m.ApiVersionsRequest("muster", "1"), 3)
        served = table_of(coordinator)
        assert {api.api_key for api in versions.api_keys} == set(served)
        assert m.JoinGroupRequest.API_KEY not in served, "a member's client would look for Kafka's records here"
        await member.join()
        listed = await ask(world, coordinator, m.ListGroupsRequest(), 4)
        assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "Stable")]
        deleted = await ask(world, coordinator, m.DeleteGroupsRequest(["g"]), 2)
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP


def test_each_setting_of_a_coordinator_is_one_of_the_brokers() -> None:
    assert ALL_SETTINGS.keys() >= SETTINGS
