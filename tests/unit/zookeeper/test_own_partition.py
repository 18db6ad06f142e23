"""A topic of which each broker leads its own partition: created by one broker, extended by the others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.zookeeper.base.operations import Create, GetData, SetData, ask, ensure_path
from muster.zookeeper.base.znodes import BROKER_TOPICS, TOPIC_CONFIGS, TopicRegistration, read_topic, topic_path
from muster.zookeeper.cluster.own_partition import own_partition
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimSession, SimZooKeeper

PATH = topic_path("t")


class World:
    """ZooKeeper with the folders of topics, and a session."""

    def __init__(self) -> None:
        self.zookeeper = SimZooKeeper(VirtualClock(), Random(3))
        self.session: SimSession = self.zookeeper.connect("one")
        self.zookeeper.settle()
        for path in (BROKER_TOPICS, TOPIC_CONFIGS):
            self.zookeeper.carry_out(self.session, ensure_path(path))

    def own(self, broker_id: int, exists: bool) -> None:
        self.zookeeper.carry_out(self.session, own_partition("t", broker_id, exists, {"cleanup.policy": "delete"}))

    @property
    def partitions(self) -> dict[int, list[int]]:
        data, _ = self.zookeeper.carry_out(self.session, ask(GetData(PATH)))
        found = read_topic("t", data)
        assert isinstance(found, TopicRegistration)
        return found.partitions


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_creates_it_and_others_add(world: World) -> None:
    world.own(3, exists=False)
    assert world.partitions == {0: [3]}
    for broker_id in (1, 2, 1, 3):
        world.own(broker_id, exists=True)
    assert world.partitions == {0: [3], 1: [1], 2: [2]}
    data, _ = world.zookeeper.carry_out(world.session, ask(GetData(f"{TOPIC_CONFIGS}/t")))
    assert data == b'{"version":1,"config":{"cleanup.policy":"delete"}}'


def test_one_that_is_there_and_not_known_is_left_alone(world: World) -> None:
    """It may belong to a user."""
    world.own(1, exists=False)
    world.own(2, exists=False)
    assert world.partitions == {0: [1]}


@pytest.mark.parametrize("data", [b"rubbish", None])
def test_one_that_is_gone_or_cannot_be_understood_is_left_alone(world: World, data: bytes | None) -> None:
    if data is not None:
        world.zookeeper.carry_out(world.session, ask(Create(PATH, data)))
    world.own(1, exists=True)
    assert data is None or world.zookeeper.carry_out(world.session, ask(GetData(PATH)))[0] == data


def test_one_that_another_writes_meanwhile_is_read_again(world: World) -> None:
    """The sequence: one reads it, another adds its partition, the first writes."""
    world.own(3, exists=False)
    plan = own_partition("t", 1, True, {})
    read = next(plan)
    answer = world.zookeeper.carry_out(world.session, ask(read))
    world.own(2, exists=True)
    writes = plan.send(answer)
    assert isinstance(writes, SetData)
    assert writes.version == 0

    def rest():
        step: Any = writes
        while True:
            try:
                result = yield from ask(step)
            except Exception as error:
                try:
                    step = plan.throw(error)
                except StopIteration:
                    return
            else:
                try:
                    step = plan.send(result)
                except StopIteration:
                    return

    world.zookeeper.carry_out(world.session, rest())
    assert world.partitions == {0: [3], 1: [2], 2: [1]}
