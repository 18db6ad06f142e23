"""Brokers that share a cluster through ZooKeeper, from seeds: one controller, live leaders, epochs that increase."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from muster.errors import MusterError
from muster.zookeeper.base.znodes import (
    BROKER_TOPICS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokerEndpoint,
    BrokerRegistration,
    Controller,
    TopicRegistration,
    partition_state_path,
    read_controller,
    read_partition_state,
    topic_path,
)
from muster.zookeeper.cluster import scheme as cluster_scheme
from muster.zookeeper.cluster.scheme import ClusterMember, create_topic, request_deletion, spread
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimZooKeeper
from tests.support.scale import fresh_seeds, seeds

SESSION_MS = 4_000


class SimBroker:
    """A broker's part in the cluster, with its own session."""

    def __init__(self, world, broker_id):
        self.world = world
        self.broker_id = broker_id
        self.member = ClusterMember(broker_id)
        self.is_running = self.is_due = self.is_dead = False
        self.session = world.zookeeper.connect(f"broker {broker_id}", timeout_ms=SESSION_MS, listener=self.on_event)

    @property
    def registration(self):
        return BrokerRegistration(self.broker_id, (BrokerEndpoint("PLAINTEXT", "localhost", 9000 + self.broker_id),), 0)

    def on_event(self, event):
        if not self.is_dead and self.member.on_event(event):
            self.wake()

    def wake(self):
        self.is_due = True
        if not self.is_running and not self.is_dead and self.session.is_connected:
            self.is_due, self.is_running = False, True
            self.session.run(self.member.turn(self.registration, self.world.clock.now), then=self.after)

    def after(self, running):
        self.is_running = False
        if self.is_dead:
            return
        if running.error is not None:
            assert isinstance(running.error, MusterError), running.error
            self.world.clock.call_later(self.world.rng.randint(50, 400), self.wake)
        elif self.is_due:
            self.wake()

    def kill(self):
        self.is_dead = True
        if not self.session.is_frozen:
            self.session.freeze()

    @property
    def believes(self):
        """The controller epoch with which it would write now."""
        return None if self.member.term is None else self.member.term.epoch


class World:
    def __init__(self, seed, *, servers=1, lag_ms=0):
        self.rng = Random(seed)
        self.clock = VirtualClock()
        self.zookeeper = SimZooKeeper(self.clock, Random(seed + 1), servers=servers, lag_ms=lag_ms)
        self.brokers: dict[int, SimBroker] = {}
        self.user = self.zookeeper.connect("user", server=0)
        self.zookeeper.settle()
        self.seen: dict[tuple[str, int, int], tuple[int, Any]] = {}
        self.controller_epoch = 0
        self.made = 0

    def start(self, broker_id):
        self.brokers[broker_id] = SimBroker(self, broker_id)

    def kill(self, broker_id):
        self.brokers.pop(broker_id).kill()

    def data(self, path):
        found = self.zookeeper.tree.find(path)
        return None if found is None else found.data

    def state(self, topic, number):
        return read_partition_state(topic, number, self.data(partition_state_path(topic, number)))

    def topics(self):
        found = self.zookeeper.tree.find(BROKER_TOPICS)
        return sorted(found.children) if found is not None else []

    def check(self):
        """What holds at every moment: epochs only increase, and only the newest controller writes."""
        elected_at = 0
        epoch = self.zookeeper.tree.find(CONTROLLER_EPOCH)
        if epoch is not None:
            elected_at, number = epoch.mzxid, int(epoch.data or b"")
            assert number >= self.controller_epoch
            self.controller_epoch = number
        for topic in self.topics():
            created = self.zookeeper.tree.get(topic_path(topic)).czxid
            for number in range(4):
                found = self.zookeeper.tree.find(partition_state_path(topic, number))
                key = (topic, created, number)
                if found is None or found.mzxid == self.seen.get(key, (0, None))[0]:
                    continue
                state, (_, before) = self.state(topic, number), self.seen.get(key, (0, None))
                self.seen[key] = (found.mzxid, state)
                if found.mzxid > elected_at:
                    assert state.controller_epoch == self.controller_epoch, f"{key} was written by a former controller"
                if before is not None:
                    assert state.leader_epoch == before.leader_epoch + 1, f"{key} has a new leader under an old epoch"
        return False

    def run(self, milliseconds):
        self.clock.run_until(self.check, milliseconds)

    def quiet(self):
        """Check what holds when faults have stopped and time has passed."""
        alive = set(self.brokers)
        controller = read_controller(self.data(CONTROLLER))
        assert isinstance(controller, Controller)
        assert controller.broker_id in alive
        believes = {number: broker.believes for number, broker in self.brokers.items() if broker.believes is not None}
        assert believes == {controller.broker_id: self.controller_epoch}
        for topic in self.topics():
            for broker in self.brokers.values():
                registration = broker.member.image.topics[topic].registration
                for number, (replica,) in registration.partitions.items():
                    seen = broker.member.image.topics[topic].states.get(number)
                    if replica in alive:
                        assert seen is not None
                        assert seen.state == self.state(topic, number)
                    if seen is not None:
                        assert seen.state.leader == (replica if replica in alive else -1)
        for broker in self.brokers.values():
            image = broker.member.image
            assert image.is_current
            assert set(image.brokers) == alive
            assert sorted(image.topics) == sorted(self.topics())
            assert image.deletions == set()
            assert image.controller_id == controller.broker_id


def act(world, number):
    rng, broker_id = world.rng, world.rng.choice((1, 2, 3))
    broker = world.brokers.get(broker_id)
    match number:
        case 0 if broker and len(world.brokers) > 1:
            world.kill(broker_id)
        case 1 if not broker:
            world.start(broker_id)
        case 2 if broker:
            world.zookeeper.expire(broker.session)
        case 3 if broker and not broker.session.is_frozen:
            broker.session.freeze()
        case 4 if broker and broker.session.is_frozen:
            broker.session.thaw()
        case 5 if broker:
            world.zookeeper.reset(broker.session)
        case 6:
            held = world.zookeeper.servers[rng.randrange(1, 3)]
            held.is_held = not held.is_held
        case 7 | 8:
            world.made += 1
            registration = TopicRegistration(spread(rng.randint(1, 4), (1, 2, 3), {}), f"id{world.made}")
            world.user.run(create_topic(f"t{world.made}", registration, {}))
        case 9 if world.topics():
            world.user.run(request_deletion(rng.choice(world.topics())))


def story(seed, bursts=25):
    """Bursts of faults, each followed by some time; at the end everything is healed and time passes."""
    world = World(seed, servers=3, lag_ms=(0, 5, 200)[seed % 3])
    for broker_id in (1, 2, 3):
        world.start(broker_id)
    world.run(2_000)
    for _ in range(bursts):
        for _ in range(world.rng.randint(1, 6)):
            act(world, world.rng.randrange(10))
            world.run(world.rng.choice((0, 1, 2, 5, 20, 100)))
        world.run(world.rng.choice((10, 200, 1_500, 6_000)))
    for index in range(3):
        world.zookeeper.release(index)
    for broker in world.brokers.values():
        if broker.session.is_frozen:
            broker.session.thaw()
    world.run(30_000)
    world.quiet()
    return world


@pytest.fixture(autouse=True)
def many_small_multis(monkeypatch):
    monkeypatch.setattr(cluster_scheme, "WRITES_OF_A_MULTI", 3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*seeds(50), *fresh_seeds(10)])
def test_a_cluster_finds_together_after_whatever_happened(seed):
    story(seed)
