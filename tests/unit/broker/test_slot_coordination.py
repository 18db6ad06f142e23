"""A broker's groups in slots, on a ZooKeeper in memory: when it serves which, and what it reports about the others."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.cluster import slot_coordination
from muster.broker.cluster.slot_coordination import ZooKeeperCoordination
from muster.broker.handlers.coordinators import fast_heartbeat
from muster.broker.handlers.fast_commit import fast_commit
from muster.broker.handlers.offsets import fast_offset_fetch
from muster.errors import ConfigError, ErrorCode
from muster.model import Node
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.group_partitions import group_partition
from muster.protocol.group_records import GroupMetadataRecord
from muster.zookeeper.base.operations import Create, Plan, SetData
from muster.zookeeper.base.znodes import CoordinatorRegistration, slot_epoch_path
from muster.zookeeper.cluster import scheme as cluster_scheme
from muster.zookeeper.cluster.slots import SLOT_COUNT, SlotKeeper, preferred
from tests.support.cluster_asks import put_in, taken_out
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.sim_cluster import SESSION_MS, SimCluster, session_of

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
NAMES = [f"g{number}" for number in range(8)]
NOWHERE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


async def create(cluster: SimCluster, broker: Broker, name: str) -> None:
    asked = Asked(broker, m.CreateTopicsRequest([m.CreatableTopic(name, 1, 1)], 60_000), 7)
    answer = await cluster.soon(asked.answered())
    assert answer.topics[0].error_code == 0


async def coordinator(broker: Broker, group_id: str) -> tuple[int, int]:
    answer = await Asked(broker, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4).answered()
    return answer.coordinators[0].error_code, answer.coordinators[0].node_id


async def commit(cluster: SimCluster, broker: Broker, group_id: str, offset: int) -> int:
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, offset)])
    asked = Asked(broker, m.OffsetCommitRequest(group_id, -1, "", None, -1, [topic]), 8)
    answer = await cluster.soon(asked.answered())
    error: int = answer.topics[0].partitions[0].error_code
    return error


async def committed(cluster: SimCluster, broker: Broker, group_id: str) -> tuple[int, int]:
    asked = Asked(broker, m.OffsetFetchRequest(group_id, [m.OffsetFetchRequestTopic("t", [0])]), 7)
    answer = await cluster.soon(asked.answered())
    if answer.error_code:
        return answer.error_code, -1
    return answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].committed_offset


def serves(broker: Broker, slots: int | None = None) -> bool:
    """Whether it has read all the slots that it holds (and holds this many)."""
    assert isinstance(broker.coordination, ZooKeeperCoordination)
    held = broker.coordination.keeper.held
    return broker.groups.runtime._served.keys() == held.keys() and (slots is None or len(held) == slots)


async def test_groups_are_where_their_slots_are_and_fail_over(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        await create(cluster, one, "t")
        assert [await commit(cluster, one, name, 5) for name in NAMES] == [0] * len(NAMES)
        async with cluster.running(2) as two:
            share = sum(preferred(slot, (1, 2)) == 2 for slot in range(SLOT_COUNT))
            await cluster.until(lambda: serves(two, share) and serves(one, SLOT_COUNT - share))
            for name in NAMES:
                should = preferred(group_partition(name, SLOT_COUNT), (1, 2))
                there, elsewhere = (one, two) if should == 1 else (two, one)
                await cluster.until(lambda: session_of(one).sim.is_connected)
                assert [await coordinator(broker, name) for broker in (one, two)] == [(0, should)] * 2
                assert await committed(cluster, there, name) == (0, 5)
                assert await commit(cluster, elsewhere, name, 6) == NOT_COORDINATOR
                assert await commit(cluster, there, name, 7) == 0
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        assert [await committed(cluster, one, name) for name in NAMES] == [(0, 7)] * len(NAMES)
        assert not (cluster._folder / "broker1" / "__consumer_offsets-0").exists()


def give_no_id(*_: Any) -> Plan[int]:
    """Assigns no id, as if there were no controller."""
    yield from ()
    return 0


@pytest.mark.parametrize(
    "data", [b"rubbish", b'{"version":1,"partitions":{"0":[1]}}', b'{"version":3,"partitions":{}}', None]
)
async def test_what_was_committed_for_a_topic_that_cannot_be_understood_is_kept(
    cluster: SimCluster, data: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a coordinator that starts meanwhile and has never known the topic. One of Kafka's older tools may have removed
    the topic's id, which only the controller restores; None: the whole topic is missing, and was not deleted."""
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        await create(cluster, one, "t")
        assert [await commit(cluster, one, name, 5) for name in NAMES] == [0] * len(NAMES)
        monkeypatch.setattr(cluster_scheme, "_give_id", give_no_id)
        former = cluster.zookeeper.tree.get("/brokers/topics/t").data
        taken: dict[str, bytes | None] = {}
        if data is None:
            taken = taken_out(cluster, "/brokers/topics/t")
            await cluster.until(lambda: one.topics.get("t") is None)
        else:
            cluster.do(SetData("/brokers/topics/t", data))
        async with cluster.running(2) as two:
            share = sum(preferred(slot, (1, 2)) == 2 for slot in range(SLOT_COUNT))
            await cluster.until(lambda: serves(two, share))
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        if data is None:
            put_in(cluster, taken)
        else:
            cluster.do(SetData("/brokers/topics/t", former))
        await cluster.until(lambda: one.topics.get("t") is not None)
        assert [await committed(cluster, one, name) for name in NAMES] == [(0, 5)] * len(NAMES)


async def test_groups_continue_at_a_broker_whose_disk_is_full(cluster: SimCluster) -> None:
    """It takes them from a broker that dies, and keeps what they committed for a topic that it could not list."""
    disk = FaultyDisk()
    async with cluster.running(1, disk) as one:
        async with cluster.running(2) as two:
            await create(cluster, two, "u")
            await cluster.until(lambda: one.topics.get("u") is not None)
            disk.fill_up()
            await create(cluster, two, "t")
            share = sum(preferred(slot, (1, 2)) == 2 for slot in range(SLOT_COUNT))
            await cluster.until(lambda: serves(two, share))
            theirs = [name for name in NAMES if preferred(group_partition(name, SLOT_COUNT), (1, 2)) == 2]
            assert theirs
            assert [await commit(cluster, two, name, 5) for name in theirs] == [0] * len(theirs)
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        assert one.topics.get("t") is None
    async with cluster.running(1, disk) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        assert one.topics.get("t") is None
        disk.mend()
        await cluster.until(lambda: one.topics.get("t") is not None)
        assert [await committed(cluster, one, name) for name in theirs] == [(0, 5)] * len(theirs)


async def test_requests_that_a_process_finds_when_it_wakes_are_refused(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        await create(cluster, one, "t")
        assert await commit(cluster, one, "g", 5) == 0
        session_of(one).sim.freeze()  # no session events arrive
        cluster.clock.advance(SESSION_MS)
        assert serves(one, SLOT_COUNT)
        assert await coordinator(one, "g") == NOWHERE
        heartbeat = await Asked(one, m.HeartbeatRequest("g", 1, "m"), 4).answered()
        assert heartbeat.error_code == NOT_COORDINATOR
        assert await committed(cluster, one, "g") == (NOT_COORDINATOR, -1)
        assert await commit(cluster, one, "g", 6) == NOT_COORDINATOR
        assert serves(one, 0)
        session_of(one).sim.thaw()
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        assert await committed(cluster, one, "g") == (0, 5)


async def test_the_short_ways_ask_the_clock_too(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        await create(cluster, one, "t")
        assert await commit(cluster, one, "g", 5) == 0
        heartbeat = codec.encode(m.HeartbeatRequest("g", 1, "m"), 4)
        asked = m.OffsetFetchRequestGroup("g", topics=[m.OffsetFetchRequestTopics("t", bytes(4))])
        look_up = codec.encode(m.OffsetFetchRequest(groups=[asked]), 8)
        topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 6)])
        committed = codec.encode(m.OffsetCommitRequest("g", topics=[topic]), 8)
        call: Any = SimpleNamespace(version=8, correlation_id=1, reply_ready=lambda answer: None)

        def taken() -> list[bool]:
            return [
                fast_heartbeat(one.groups)(heartbeat, 0, 4, 1) is not None,
                fast_offset_fetch(one.groups)(look_up, 0, 8, 1) is not None,
                fast_commit(one.groups)(committed, 0, call),
            ]

        assert taken() == [True] * 3
        session_of(one).sim.freeze()
        cluster.clock.advance(SESSION_MS)
        assert taken() == [False] * 3


async def test_an_epoch_that_an_operator_raises_costs_the_next_write_only(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        await create(cluster, one, "t")
        assert await commit(cluster, one, "g", 5) == 0
        cluster.do(SetData(slot_epoch_path(group_partition("g", SLOT_COUNT)), b"me"))
        assert await commit(cluster, one, "g", 6) == NOT_COORDINATOR
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        assert await committed(cluster, one, "g") == (0, 5)
        assert await commit(cluster, one, "g", 7) == 0


async def test_what_is_not_a_coordinator_is_logged_once(cluster: SimCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster.running(1) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        cluster.do(Create("/muster/coordinators/7", b"rubbish"))
        await cluster.until(lambda: "/muster/coordinators/7 cannot be read" in caplog.text)
        await cluster.until(lambda: serves(one, SLOT_COUNT))
    assert caplog.text.count("/muster/coordinators/7") == 1


async def test_longer_notes_than_znodes_have_room_for_are_refused_at_the_start(cluster: SimCluster) -> None:
    broker, _ = cluster.make(1, offset_metadata_max_bytes=4_097)
    with pytest.raises(ConfigError, match=r"offset\.metadata\.max\.bytes must be at most 4096 with"):
        await broker.start()
    assert not broker.config.data_dir.exists()


# --- a slot is served when everything is known -----------------------------------------------------------------------


class Reported:
    """Records the calls that the coordinator gets."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.rebalancing: set[int] = set()

    def is_rebalancing(self, slot: int) -> bool:
        return slot in self.rebalancing

    def serve(self, slots: int) -> None:
        self.events.append(slots)

    def lead(self, slot: int, epoch: int) -> None:
        self.events.append(("lead", slot, epoch))

    def resign(self, slot: int, epoch: int | None = None) -> None:
        self.events.append(("resign", slot))


class Among:
    """The cluster, from which no events arrive."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(is_live=True, listen=lambda listener: None)
        self.node_id, self.is_registered = 1, False
        self.image = SimpleNamespace(is_current=False)
        self.turns = 0

    def wake(self) -> None:
        self.turns += 1


@pytest.fixture
async def parts() -> Any:
    among, reported = Among(), Reported()
    made = ZooKeeperCoordination(among, SimpleNamespace(node=Node(1, "here", 9), draft_node=None))  # type: ignore[arg-type]
    made.start(reported)  # type: ignore[arg-type]
    yield made, among, reported
    made.stop()
    await asyncio.sleep(0)


async def test_a_slot_is_served_when_this_broker_has_all_topics(parts: Any) -> None:
    """Offsets of topics that are not known are removed when a slot is read."""
    made, among, reported = parts
    slot = group_partition("g", SLOT_COUNT)
    for each in (slot, slot + 1):
        made.keeper.held[each] = 3
        made.keeper._owners[each] = SimpleNamespace(coordinator_id=1)
        made._gained(each, 3)
    assert among.turns == 1
    assert made.coordinator("g") is None
    made.followed()
    assert reported.events == [SLOT_COUNT]  # another event came meanwhile, and is not read yet
    made._lost(slot + 1)
    among.image.is_current = True
    made.followed()
    assert reported.events == [SLOT_COUNT, ("resign", slot + 1), ("lead", slot, 3)]
    assert made.coordinator("g") == Node(1, "here", 9)
    made.followed()
    assert len(reported.events) == 3
    among.session.is_live = False
    assert made.coordinator("g") is None


async def test_slots_that_a_request_has_dropped_are_taken_again_though_no_doubt_is_reported(parts: Any) -> None:
    """A process was suspended for a long time, and its session proves to be alive before its doubt was reported."""
    made, among, reported = parts
    turned = asyncio.Event()
    among.session.run = Turns(made.keeper, turned)
    among.is_registered = made.keeper.is_registered = True
    made.keeper._live_is_stale = False
    made.keeper._stale.clear()
    made.keeper.held[5] = 3
    assert made.ensure()
    assert reported.events == [SLOT_COUNT]
    among.session.is_live = False
    assert made.ensure()
    assert reported.events == [SLOT_COUNT, ("resign", 5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert turned.is_set()


async def test_a_slot_whose_groups_have_rebalanced_is_looked_at_again(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_coordination, "KEPT_PAUSE_S", 0)
    made, among, reported = parts
    turned = asyncio.Event()
    among.session.run = Turns(made.keeper, turned)
    among.is_registered = made.keeper.is_registered = True
    made.keeper._live_is_stale = False
    reported.rebalancing = {5}
    made.keeper.kept = {5, 6}  # another coordinator should have both
    made._wake.set()
    await turned.wait()
    turned.clear()
    made.keeper.kept = {5}
    for _ in range(10):
        await asyncio.sleep(0)
    assert not turned.is_set()
    reported.rebalancing = set()
    async with asyncio.timeout(60):
        await turned.wait()


class Turns:
    """A session that marks turns as done without running them."""

    def __init__(self, keeper: SlotKeeper, turned: asyncio.Event) -> None:
        self._keeper, self._turned = keeper, turned

    async def __call__(self, plan: Any) -> None:
        plan.close()
        self._keeper._stale.clear()
        self._turned.set()


async def test_another_coordinator_is_known_by_its_own_znode(parts: Any) -> None:
    made, _, _ = parts
    made.keeper._owners[group_partition("g", SLOT_COUNT)] = SimpleNamespace(coordinator_id=2)
    assert made.coordinator("g") is None
    made.keeper.live = {2: CoordinatorRegistration("there", 7)}
    assert made.coordinator("g") == Node(2, "there", 7)


async def test_what_fits_into_a_znode(parts: Any) -> None:
    made, _, _ = parts
    key = m.GroupMetadataKey("g")
    assert made.record_fits(GroupMetadataRecord(key, None))
    member = m.MemberMetadata("m", subscription=b"", assignment=bytes(8_000_000))
    value = m.GroupMetadataValue("consumer", 1, "range", "m", 0, [member])
    assert made.record_fits(GroupMetadataRecord(key, value))  # compressed
    member.assignment = Random(1).randbytes(1_000_000)
    assert not made.record_fits(GroupMetadataRecord(key, value))


@pytest.mark.interpreted  # it replaces a method, which compiled modules call anyway
async def test_groups_are_asked_only_about_topics_that_have_changed(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many groups, all assignments would be checked again whenever anything in the cluster changes."""
    settings: dict[str, Any] = {"server.assigned.groups": ".*"}
    async with cluster.running(1, **settings) as one:
        await cluster.until(lambda: serves(one, SLOT_COUNT))
        asked: list[list[str]] = []
        monkeypatch.setattr(one.groups.runtime, "topics_changed", lambda names: asked.append(sorted(names)))
        await create(cluster, one, "t")
        await create(cluster, one, "u")
        await cluster.until(lambda: ["u"] in asked)  # groups are notified after the catalogue, and so after the answer
        assert [names for names in asked if names != ["t"]] == [["u"]]
        asked.clear()
        cluster.do(SetData("/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}'))
        await cluster.until(lambda: [topic.settings for topic in one.topics if topic.settings])
        await create(cluster, one, "v")
        await cluster.until(lambda: asked)
        assert asked == [["v"]]
