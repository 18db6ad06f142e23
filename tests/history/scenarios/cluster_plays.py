"""Scripts on three brokers, in which a group's coordinator moves from one to another."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.operator_client import Operator
from tests.history.scenarios.plays import CONFLUENT, JAVA, LONG_SESSION, MAIN, play
from tests.history.scenarios.stage import Group, Stage, until
from tests.support.brokers import BrokerProcess
from tests.support.peers import KafkaCluster

OFFSETS = "__consumer_offsets"
THREE = ("cluster3",)


@dataclass
class Nodes:
    """The brokers of a cluster, and which of them coordinates what."""

    cluster: KafkaCluster
    operator: Operator
    partitions: int
    earlier_logs: list[str] = field(default_factory=list)
    """What the nodes logged before they were started again, which begins a new log."""
    frozen: int = 0

    def partition_of(self, group: Group) -> int:
        """The partition of `__consumer_offsets` with the group's records, computed as in Kafka."""
        code = 0
        for character in group.name:
            code = (31 * code + ord(character)) & 0xFFFFFFFF
        signed = code - (1 << 32) if code >= 1 << 31 else code
        return (0 if signed == -(1 << 31) else abs(signed)) % self.partitions

    def coordinator(self, group: Group) -> int:
        """The node that coordinates the group."""
        found = self.operator.ask("leader", topic=OFFSETS, partition=self.partition_of(group))
        return int(found["leader"])

    def move(self, group: Group, node: int) -> None:
        """Make another node the group's coordinator by a planned change of leaders."""
        group.seen()  # the topic exists once a coordinator has been looked up
        self.operator.ask("lead", topic=OFFSETS, partition=self.partition_of(group), node=node)
        until(lambda: self.coordinator(group) == node, f"node {node} coordinates {group.name}")

    def kill(self, node: int) -> None:
        """SIGKILL a broker, and wait until others lead its partitions."""
        self.earlier_logs.append(self.cluster.node(node).log)
        self.cluster.node(node).kill()

    def stop(self, node: int) -> None:
        """Stop a broker cleanly: it hands its leaderships over first."""
        self.earlier_logs.append(self.cluster.node(node).log)
        self.cluster.node(node).stop()

    def restart(self, node: int) -> None:
        """Start a broker again, and wait until it has caught up."""
        self.cluster.node(node).start()
        until(self._in_sync, f"node {node} is in sync")

    def freeze(self, node: int) -> None:
        """SIGSTOP a broker."""
        pid = self.cluster.node(node).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self.frozen = pid

    def thaw(self, node: int) -> None:
        """SIGCONT, and wait until it has caught up."""
        os.kill(self.frozen, signal.SIGCONT)
        until(self._in_sync, f"node {node} is in sync")

    def _in_sync(self) -> bool:
        told = [self.operator.ask("leader", topic=OFFSETS, partition=at) for at in range(self.partitions)]
        return all(each["in_sync"] == self.cluster.size for each in told)

    def logs(self) -> list[str]:
        """The log lines of all nodes."""
        return [*self.earlier_logs, *(self.cluster.node(node).log for node in range(1, self.cluster.size + 1))]


@dataclass
class Alone:
    """A single broker of muster, which coordinates every group."""

    broker: BrokerProcess

    def move(self, group: Group, node: int) -> None:
        """Nothing to move."""

    def kill(self, _: int) -> None:
        """SIGKILL it."""
        self.broker.kill()

    def restart(self, _: int) -> None:
        """Start it again."""
        self.broker.start()


def nodes_of(stage: Stage) -> Nodes:
    """The brokers of a stage that has several."""
    assert isinstance(stage.cluster, Nodes)
    return stage.cluster


def _three(stage: Stage, flavour: Flavour, config: dict[str, str] | None = None, *, node: int = 2) -> Group:
    """A group of three that this node coordinates."""
    topic = stage.topic("t")
    group = stage.group(flavour, config)
    assert isinstance(stage.cluster, Nodes | Alone)
    stage.cluster.move(group, node)
    stage.started(group, group.several(3), topic)
    stage.go_on(3)
    return group


@play(MAIN, clusters=THREE)
def coordinator_killed(stage: Stage, flavour: Flavour) -> None:
    """The coordinator's broker is killed; the members find the new one in time, and nothing rebalances."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour, {} if flavour.next_generation else LONG_SESSION)
    try:
        with stage.quiet(group, "node 2, which coordinates the group, gets SIGKILL"):
            nodes.kill(2)
            until(lambda: nodes.coordinator(group) not in (2, -1), "another node coordinates")
            stage.go_on(8)
    finally:
        nodes.restart(2)


@play(MAIN, clusters=THREE)
def coordinator_led_elsewhere(stage: Stage, flavour: Flavour) -> None:
    """The leadership of the group's partition is given to another broker, and nothing rebalances; then m3 leaves."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    with stage.quiet(group, "node 3 becomes the leader of the group's partition by a preferred election"):
        nodes.move(group, 3)
        stage.go_on(6)
    with stage.happens(group, "left", "m3 closes its consumer, long after the coordinator moved"):
        group.members[-1].leave()


@contextlib.contextmanager
def _lost(stage: Stage, group: Group, about: str) -> Iterator[None]:
    """An act that makes librdkafka's classic members lose their membership; all others find the coordinator in time."""
    flavour = group.flavour
    if flavour.client == "confluent" and not flavour.next_generation:
        with stage.happens(group, "coordinator_moved", about, also=["session_expired", "joined"]):
            yield
    else:
        with stage.quiet(group, about):
            yield


@play(MAIN, clusters=THREE)
def coordinator_frozen(stage: Stage, flavour: Flavour) -> None:
    """The coordinator's broker is frozen, as in a long garbage collection, and another one takes over."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    nodes.freeze(2)
    try:
        with _lost(stage, group, "node 2, which coordinates the group, gets SIGSTOP"):
            stage.go_on(20)
    finally:
        nodes.thaw(2)


@play(MAIN, clusters=(*THREE, "muster"))
def coordinator_restarted(stage: Stage, flavour: Flavour) -> None:
    """The coordinator's broker, which is also the controller, is down for 15 s; no other broker takes over."""
    nodes = stage.cluster
    assert isinstance(nodes, Nodes | Alone)
    group = _three(stage, flavour, node=1)
    with _lost(stage, group, "node 1 gets SIGKILL, and is started again 15 s later"):
        nodes.kill(1)
        stage.go_on(15)
        nodes.restart(1)
        stage.go_on(10)


@play([JAVA[0], JAVA[1], CONFLUENT[0]], clusters=THREE)
def coordinator_moved_while_joining(stage: Stage, flavour: Flavour) -> None:
    """The coordinator moves while a rebalance waits for a member that handles a record."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour, {"max.poll.interval.ms": "20000"})
    late = group.member("m4")
    with stage.happens(
        group,
        "joined",
        "m4 joins, m1 is busy for 8 s, meanwhile node 3 becomes the coordinator",
        also=["coordinator_moved"],
    ):
        group.members[0].tell("sleep", ms=8_000)
        time.sleep(0.5)
        late.subscribe(*group.members[0].topics)
        time.sleep(2)
        nodes.move(group, 3)
