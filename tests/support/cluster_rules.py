"""The cluster's rules on a ZooKeeper in memory: any named session carries out what is asked."""

from __future__ import annotations

from random import Random

from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.operations import ensure_path
from muster.zookeeper.base.znodes import (
    BrokerEndpoint,
    BrokerRegistration,
    LeaderAndIsr,
    partition_state_path,
    read_partition_state,
)
from muster.zookeeper.cluster import scheme as cluster_scheme
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import SimZooKeeper


def state(leader, epoch=0, isr=None, controller=1):
    return LeaderAndIsr(leader, epoch, [leader] if isr is None else isr, controller)


class World:
    def __init__(self):
        self.clock = VirtualClock()
        self.zookeeper = SimZooKeeper(self.clock, Random(1))
        self.sessions = {}

    def session(self, name):
        if name not in self.sessions:
            self.sessions[name] = self.zookeeper.connect(name, timeout_ms=4_000)
            self.zookeeper.settle()
        return self.sessions[name]

    def run(self, plan, name="one"):
        return self.zookeeper.carry_out(self.session(name), plan)

    def do(self, what, name="one"):
        return self.zookeeper.do(self.session(name), what)

    def image(self, name="one"):
        image = ClusterImage()
        self.run(image.refresh(), name)
        return image

    def data(self, path):
        found = self.zookeeper.tree.find(path)
        return None if found is None else found.data

    def state(self, topic, number):
        return read_partition_state(topic, number, self.data(partition_state_path(topic, number)))


def made_world():
    """With the znodes that each broker creates."""
    made = World()
    for path in cluster_scheme.PERSISTENT:
        made.run(ensure_path(path))
    return made


def registration(broker_id):
    return BrokerRegistration(broker_id, (BrokerEndpoint("PLAINTEXT", "localhost", 9000 + broker_id),), 0)
