"""muster's own consumers in a group to which a standalone broker assigns: it watches the topics, they need not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from muster import AsyncConsumer
from muster.broker.broker import Broker
from muster.coordinator.groups.effects import EventCause, GroupEvent, RebalanceStarted
from muster.errors import ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol.admin_messages import CreatePartitionsRequest, CreatePartitionsTopic
from tests.support.brokers import broker_config, topic_of
from tests.support.held_disk import Asked
from tests.support.peers import free_ports

pytestmark = pytest.mark.slow

PATIENCE_S = 120
ASSIGNED = {"server.assigned.groups": "g", "group.initial.rebalance.delay.ms": 0}


class World:
    """A broker that can be restarted, and consumers of the group `g`, which never check topics themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[GroupEvent] = []
        self.consumers: list[AsyncConsumer] = []
        self.broker: Broker
        self._held = AsyncExitStack()
        self._listener = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"

    async def start(self, **settings: Any) -> None:
        config = broker_config(self.folder, {**ASSIGNED, "listeners": self._listener, **settings})
        self.broker = await self._held.enter_async_context(Broker(config, on_event=self.events.append))

    async def stop(self) -> None:
        await self._held.aclose()

    async def consumer(self, *topics: str, **settings: Any) -> AsyncConsumer:
        consumer = AsyncConsumer(
            bootstrap_servers=self.broker.bootstrap,
            group_id="g",
            allow_auto_create_topics=False,
            metadata_max_age_ms=3_600_000,
            **{"heartbeat_interval_ms": 200, **settings},
        )
        await consumer.start()
        consumer.subscribe(list(topics))
        self.consumers.append(consumer)
        return consumer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll all consumers until a condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.gather(*(consumer.poll(20) for consumer in self.consumers))

    async def shares_are(self, *shares: set[tuple[str, int]]) -> None:
        wanted = sorted(sorted(TopicPartition(*each) for each in share) for share in shares)
        await self.until(lambda: sorted(sorted(each.assignment()) for each in self.consumers) == wanted)

    async def close(self, consumer: AsyncConsumer) -> None:
        self.consumers.remove(consumer)
        await consumer.close()

    def causes(self) -> list[EventCause]:
        return [event.cause for event in self.events if isinstance(event, RebalanceStarted)]


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = World(tmp_path / "data")
    await made.start()
    yield made
    for consumer in list(made.consumers):
        await made.close(consumer)
    await made.stop()


async def test_topics_that_come_and_go_are_shared_out_though_no_member_looks(world: World) -> None:
    world.broker.changes.create_topic("a", 2, {})
    await world.consumer("a", "b")
    await world.shares_are({("a", 0), ("a", 1)})
    world.broker.changes.create_topic("b", 2, {})
    await world.shares_are({("a", 0), ("a", 1), ("b", 0), ("b", 1)})
    assert world.causes()[-1] is EventCause.PARTITIONS_GAINED
    await world.consumer("a", "b")
    await world.shares_are({("a", 0), ("b", 0)}, {("a", 1), ("b", 1)})
    topic = topic_of(world.broker, "a")
    world.broker.changes.delete_topic(topic)
    await world.shares_are({("b", 0)}, {("b", 1)})
    assert world.causes()[-1] is EventCause.TOPIC_DELETED


async def test_partitions_that_are_added_are_shared_out_though_no_member_looks(world: World) -> None:
    world.broker.changes.create_topic("a", 2, {})
    for _ in range(2):
        await world.consumer("a")
    await world.shares_are({("a", 0)}, {("a", 1)})
    request = CreatePartitionsRequest([CreatePartitionsTopic("a", 4, None)], 300_000)
    answer = await Asked(world.broker, request, 3).answered()
    assert answer.results[0].error_code == 0
    await world.shares_are({("a", 0), ("a", 1)}, {("a", 2), ("a", 3)})
    assert world.causes()[-1] is EventCause.PARTITIONS_GAINED


async def forever(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(100)


async def test_a_strategy_that_the_server_does_not_know_is_refused(world: World) -> None:
    """A7: a server that assigns has this limitation."""
    world.broker.changes.create_topic("a", 2, {})
    await world.consumer("a")
    await world.shares_are({("a", 0), ("a", 1)})
    stranger = await world.consumer("a", partition_assignment_strategy=["cooperative-sticky"])
    world.consumers.remove(stranger)
    with pytest.raises(KafkaError, match="accepts range and roundrobin") as refused:
        await asyncio.wait_for(forever(stranger), PATIENCE_S)
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    await stranger.close()
    await world.shares_are({("a", 0), ("a", 1)})


async def test_a_static_member_that_comes_back_takes_its_share_without_a_rebalance(world: World) -> None:
    world.broker.changes.create_topic("a", 2, {})
    first = await world.consumer("a", group_instance_id="one")
    await world.consumer("a", group_instance_id="two")
    await world.shares_are({("a", 0)}, {("a", 1)})
    mine, rebalances = first.assignment(), len(world.causes())
    await world.close(first)
    again = await world.consumer("a", group_instance_id="one")
    await world.until(lambda: again.assignment() == mine)
    assert len(world.causes()) == rebalances


@pytest.mark.parametrize("assigned", [None, "g"], ids=["switched off", "as before"])
async def test_a_restart_with_and_without_the_setting(world: World, assigned: str | None) -> None:
    """It is stopped properly, keeps its port, and has the group in its log."""
    world.broker.changes.create_topic("a", 4, {})
    for _ in range(2):
        await world.consumer("a")
    await world.shares_are({("a", 0), ("a", 1)}, {("a", 2), ("a", 3)})
    before = {each.group_metadata().generation_id for each in world.consumers}
    rebalances = len(world.causes())
    await world.stop()
    await world.start(**{"server.assigned.groups": assigned})

    def generations() -> set[int]:
        return {each.group_metadata().generation_id for each in world.consumers}

    if assigned is None:
        await world.until(lambda: min(generations()) > max(before))
        assert world.causes()[rebalances] is EventCause.ASSIGNER_CHANGED
    await world.shares_are({("a", 0), ("a", 1)}, {("a", 2), ("a", 3)})
    if assigned is not None:
        # A commit shows that each member has found the coordinator again, and belongs to its generation.
        await asyncio.gather(*(each.commit({next(iter(each.assignment())): 1}) for each in world.consumers))
        assert (generations(), len(world.causes())) == (before, rebalances)
