"""The topic in which a broker stores group events: it is the broker's own, and no request waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.groups import event_topic
from muster.broker.groups.event_topic import LONGEST_TEXT, encoded
from muster.coordinator.groups.effects import (
    EventCause,
    ExpiryKind,
    GroupLoaded,
    MemberExpired,
    MemberLeft,
    RebalanceStarted,
)
from muster.errors import ErrorCode
from muster.model import GROUP_EVENTS_TOPIC
from muster.protocol import messages as m
from tests.support import brokers
from tests.support.brokers import log_of, topic_of
from tests.support.cluster_asks import leaders, produce
from tests.support.faulty_disk import FaultyDisk
from tests.support.group_events import Member, names, written
from tests.support.held_disk import Asked
from tests.support.said import said
from tests.support.sim_cluster import SimCluster
from tests.support.written import build_batch

PATIENCE_S = 120
FORMED = ["MemberJoined", "RebalanceStarted", "RebalanceCompleted"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data") as found:
        yield found


async def until(done: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.005)


async def produced(broker: Broker, client_id: str = "raw") -> int:
    data = m.PartitionProduceData(0, bytes(build_batch([(0, b"g", b"forged", [])])))
    topics = [m.TopicProduceData(GROUP_EVENTS_TOPIC, partition_data=[data])]
    answer = await Asked(broker, m.ProduceRequest(None, -1, 60_000, topics), 9, client_id).answered()
    error: int = answer.responses[0].partition_responses[0].error_code
    return error


async def described(broker: Broker, name: str = GROUP_EVENTS_TOPIC) -> m.MetadataResponseTopic:
    request = m.MetadataRequest([m.MetadataRequestTopic(name=name)], True)
    answer: m.MetadataResponse = await Asked(broker, request, 12).answered()
    return answer.topics[0]


async def test_the_first_event_makes_it_and_all_are_reported(broker: Broker) -> None:
    assert [topic.name for topic in broker.topics] == []
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.join()
    await until(lambda: names(broker) == FORMED)
    b.member_id = (await b.joins().answered()).member_id
    joining = b.joins("more work")
    assert await a.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await a.join()
    assert (await joining.answered()).error_code == 0
    await a.leave("consumer poll timeout has expired.")
    await until(lambda: "MemberLeft" in names(broker))
    topic = topic_of(broker, GROUP_EVENTS_TOPIC)
    assert (topic.partitions, topic.internal) == (1, True)
    wanted = {"cleanup.policy": "delete", "retention.ms": "604800000", "segment.ms": "86400000"}
    assert wanted.items() <= topic.settings.items()
    assert (await described(broker)).is_internal
    events = written(broker)[0]
    (left,) = [event for event in events if event["event"] == "MemberLeft"]
    assert left == {
        "v": 1,
        "event": "MemberLeft",
        "at_ms": left["at_ms"],
        "group_id": "g",
        "member_id": a.member_id,
        "client_id": "a",
        "client_host": "/127.0.0.1",
        "group_instance_id": None,
        "reason": "consumer poll timeout has expired.",
    }
    started = [event for event in events if event["event"] == "RebalanceStarted"]
    assert [event["state"] for event in started] == ["Empty", "Stable", "Stable"]
    assert [event["reason"] for event in events if event["event"] == "MemberJoined"] == [None, "more work"]


async def test_no_client_writes_it(broker: Broker) -> None:
    """Like the groups' topic: Kafka's own tools may, by their client id."""
    await Member(broker).join()
    await until(lambda: names(broker) == FORMED)
    assert await produced(broker) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert names(broker) == FORMED
    assert await produced(broker, "__admin_client") == 0


async def test_a_fetch_that_waits_for_events_gets_them(broker: Broker) -> None:
    await Member(broker).join()
    await until(lambda: names(broker) == FORMED)
    partition = m.FetchPartition(0, fetch_offset=3, partition_max_bytes=1 << 20)
    request = m.FetchRequest(
        max_wait_ms=100_000, min_bytes=1, topics=[m.FetchTopic(GROUP_EVENTS_TOPIC, partitions=[partition])]
    )
    waiting = Asked(broker, request, 12)
    await Member(broker, group="other").join()
    answer = await waiting.answered()
    assert b"other" in bytes(answer.responses[0].partitions[0].records)


async def test_after_a_start_groups_are_reported_and_the_setting_of_the_start_holds(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data", {"node.id": 7}) as broker:
        await Member(broker).join()
        await until(lambda: names(broker) == FORMED)
    settings = {"node.id": 7, "group.events.retention.ms": 70_000}
    async with brokers.running(tmp_path / "data", settings) as broker:
        log = log_of(broker, GROUP_EVENTS_TOPIC, 0)
        assert (log.config.retention_ms, log.config.segment_ms) == (70_000, 10_000)
        await until(lambda: names(broker) == [*FORMED, "GroupLoaded"])
        loaded = written(broker)[0][-1]
        assert (loaded["generation_id"], loaded["members"], loaded["broker_id"]) == (1, 1, 7)
    async with brokers.running(tmp_path / "data", settings) as broker:
        topic = topic_of(broker, GROUP_EVENTS_TOPIC)
        assert topic.settings["retention.ms"] == "70000"


async def test_what_waits_is_written_before_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers.running(tmp_path / "data") as broker:
        monkeypatch.setattr(event_topic, "DELAY_S", 1_000)
        await Member(broker).join()
        assert written(broker) == {}
    async with brokers.running(tmp_path / "data", {"group.events.enable": False}) as broker:
        assert names(broker) == FORMED


async def test_many_events_are_some_appends_in_their_order(broker: Broker) -> None:
    assert broker._events is not None
    count = 2 * event_topic.AT_ONCE + 1
    for number in range(count):
        broker._events(GroupLoaded("g", number, 1, 1))
    broker._events._times[:] = range(7, 7 + count)
    await until(lambda: len(names(broker)) == count)
    reported = [(event["generation_id"], event["at_ms"]) for event in written(broker)[0]]
    assert reported == [(number, number + 7) for number in range(count)]


async def test_old_events_go(tmp_path: Path) -> None:
    settings = {"group.events.retention.ms": 50, "log.retention.check.interval.ms": 20}
    async with brokers.running(tmp_path / "data", settings) as broker:
        await Member(broker).join()
        await until(lambda: (log := broker.partitions.get(GROUP_EVENTS_TOPIC, 0)) and log.log_start_offset == 3)
        await Member(broker, group="other").join()
        await until(lambda: (log := broker.partitions.get(GROUP_EVENTS_TOPIC, 0)) and log.log_start_offset == 6)


@pytest.mark.parametrize("asked_first", [False, True])
async def test_turned_off_there_is_none(tmp_path: Path, asked_first: bool) -> None:
    async with brokers.running(tmp_path / "data", {"group.events.enable": False}) as broker:
        if asked_first:
            assert (await described(broker)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await Member(broker).join()
        assert [topic.name for topic in broker.topics] == ["__consumer_offsets"]


async def test_a_client_that_asks_for_it_first_gets_the_brokers_own(broker: Broker) -> None:
    await described(broker)
    topic = topic_of(broker, GROUP_EVENTS_TOPIC)
    assert (topic.internal, topic.partitions) == (True, 1)


async def test_a_topic_of_that_name_that_users_have_stays_theirs(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic from before muster had events. Writing to it, or blocking its users, would be worse."""
    broker.changes.create_topic(GROUP_EVENTS_TOPIC, 2, {"cleanup.policy": "delete"})
    for group in ("g", "other"):
        await Member(broker, group=group).join()
        await until(lambda: not broker._events._waiting)  # type: ignore[union-attr]
    assert written(broker) == {0: [], 1: []}
    assert await produced(broker) == 0
    assert not (await described(broker)).is_internal
    (line,) = said(caplog, "muster.broker", logging.ERROR)
    assert "a topic of that name exists" in line


async def test_a_full_disk_costs_events_only(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with brokers.running(tmp_path / "data", files=disk) as broker:
        a = Member(broker)
        await a.join()
        await until(lambda: names(broker) == FORMED)
        disk.fill_up()
        waiting = []
        for name in ("b", "c"):  # its changes are reported, and no record of the group is written for it
            member = Member(broker, name)
            member.member_id = (await member.joins().answered()).member_id
            waiting.append(member.joins())
            await until(lambda: not broker._events._waiting)  # type: ignore[union-attr]
            assert await a.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        disk.mend()
        await a.join()
        for joining in waiting:
            assert (await joining.answered()).error_code == 0
        await until(lambda: names(broker) == [*FORMED, "RebalanceCompleted"])
        lines = [line for line in said(caplog, "muster.broker") if "events of groups" in line]
        assert ["are being lost" in line for line in lines] == [True, False]


@pytest.mark.interpreted
async def test_a_disk_that_is_full_at_the_first_event_gets_it_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_topic, "RETRY_S", 0.001)
    monkeypatch.setattr(event_topic, "MOST_KEPT", 2)
    real, tries = broker.changes.create_topic, []

    def refuse(*arguments: Any) -> Any:
        tries.append(arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broker.changes, "create_topic", refuse)
    assert broker._events is not None
    for number in range(3):
        broker._events(GroupLoaded("g", number, 1, 1))
    await until(lambda: len(tries) > 3)
    monkeypatch.setattr(broker.changes, "create_topic", real)
    await until(lambda: len(names(broker)) == 2)
    assert [event["generation_id"] for event in written(broker)[0]] == [1, 2]
    assert len(said(caplog, "muster.broker", logging.ERROR)) == 1


# ----------------------------------------------------------------------------------------------------- a record's value

EVENTS = [
    GroupLoaded("grüppe ☃", 3, 2, 1),
    MemberLeft("g", "a-1", "a", "/h", "i", 'it said "no"\n'),
    MemberExpired("g", "a-1", "a", "/h", None, ExpiryKind.SESSION, 10_000),
    RebalanceStarted("g", 3, EventCause.MEMBER_LEFT, "why", "a-1", "a", None, "Stable"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_value_has_the_fields_of_its_event(event: Any) -> None:
    """As a line of `--events`."""
    value = json.loads(encoded(5, event))
    assert value == {"v": 1, "event": type(event).__name__, "at_ms": 5, **asdict(event)}


def test_long_texts_are_cut() -> None:
    """Clients choose ids and reasons, and a record must not grow with them."""
    value = json.loads(encoded(5, MemberLeft("g", "m" * 8_000, "a", "/h", None, "x" * LONGEST_TEXT)))
    assert value["member_id"] == "m" * LONGEST_TEXT + "…"
    assert value["reason"] == "x" * LONGEST_TEXT


# ------------------------------------------------------------------------------------------------------------ a cluster


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topic, "RETRY_S", 0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_hurry")
async def test_each_broker_of_a_cluster_writes_to_a_partition_of_its_own(cluster: SimCluster) -> None:
    """Even a broker that joins later, and even if all start at once."""
    async with contextlib.AsyncExitStack() as held:
        some = [await held.enter_async_context(cluster.running(number)) for number in (1, 2, 3)]
        await cluster.until(lambda: all(len(broker.cluster.nodes) == 3 for broker in some))
        for broker in some:
            tell(broker, 0)
        await cluster.until(lambda: all(reported(broker) == [0] for broker in some))
        late = await held.enter_async_context(cluster.running(4))
        tell(late, 1)
        some.append(late)
        await cluster.until(lambda: reported(late) == [1])
        await cluster.until(lambda: all(len(leaders(broker, GROUP_EVENTS_TOPIC)) == 4 for broker in some))
        assert sorted(leader for leader, _ in leaders(late, GROUP_EVENTS_TOPIC).values()) == [1, 2, 3, 4]
        for number, broker in enumerate(some, start=1):
            assert {event["broker_id"] for events in written(broker).values() for event in events} == {number}
            assert broker.topics.get(GROUP_EVENTS_TOPIC).internal  # type: ignore[union-attr]


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_broker_that_comes_back_continues_in_its_partition(cluster: SimCluster) -> None:
    async with cluster.running(1) as one:
        async with cluster.running(2) as two:
            tell(two, 0)
            await cluster.until(lambda: reported(two) == [0])
        tell(one, 1)
        await cluster.until(lambda: reported(one) == [1])
        async with cluster.running(2) as two:
            tell(two, 2)
            await cluster.until(lambda: reported(two) == [0, 2])
            assert len(leaders(one, GROUP_EVENTS_TOPIC)) == 2


async def test_in_a_cluster_too_a_topic_of_users_stays_theirs(cluster: SimCluster) -> None:
    async with cluster.running(1) as broker:
        asked = Asked(broker, m.CreateTopicsRequest([m.CreatableTopic(GROUP_EVENTS_TOPIC, 1, 1)], 60_000), 7)
        await cluster.soon(asked.answered())
        tell(broker, 0)
        await cluster.until(lambda: not broker._events._waiting)  # type: ignore[union-attr]
        assert written(broker) == {0: []}
        answer = await produce(broker, GROUP_EVENTS_TOPIC, 0).answered()
        assert answer.responses[0].partition_responses[0].error_code == 0


def tell(broker: Broker, number: int) -> None:
    """Cause an event in a group."""
    assert broker._events is not None
    broker._events(GroupLoaded("g", number, 1, broker.node.node_id))


def reported(broker: Broker) -> list[int]:
    """The events in the broker's own partition."""
    return [event["generation_id"] for events in written(broker).values() for event in events]
