"""Scripts by someone who had not read the rules: brokers that stop and return, with clients of several kinds.

Clients react differently, so the coordinators' log decides whether the group rebalanced.
"""

from __future__ import annotations

import time

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.cluster_plays import THREE, nodes_of
from tests.history.scenarios.plays import play
from tests.history.scenarios.stage import Group, Stage, until
from tests.history.scenarios.unseen_plays import (
    AIOKAFKA,
    CONSUMER,
    COOPERATIVE,
    KAFKA_PYTHON,
    MUSTER,
    RANGE,
    RD_COOPERATIVE,
    RD_RANGE,
    config_for,
)

LOST = ["session_expired", "joined"]


def _three(stage: Stage, flavour: Flavour, node: int = 2) -> Group:
    topic = stage.topic("t", 6)
    group = stage.group(flavour, config_for(flavour, session_timeout_ms=8_000))
    nodes_of(stage).move(group, node)
    stage.started(group, group.several(3), topic)
    stage.go_on(4)
    return group


@play([RANGE, AIOKAFKA, MUSTER], clusters=THREE)
def brokers_rolled(stage: Stage, flavour: Flavour) -> None:
    """Two of three brokers are restarted cleanly, one after another; the coordinator moves twice."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    with stage.perhaps(group, "coordinator_moved", "nodes 2 and 3 are stopped and started again", also=LOST):
        for node in (2, 3):
            nodes.earlier_logs.append(nodes.cluster.node(node).log)
            nodes.cluster.node(node).stop()
            nodes.restart(node)
            stage.go_on(8)


@play([KAFKA_PYTHON, AIOKAFKA, MUSTER, COOPERATIVE], clusters=THREE)
def coordinator_killed_soon(stage: Stage, flavour: Flavour) -> None:
    """The coordinator's broker is killed, and members have sessions of 8 s."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    try:
        with stage.perhaps(group, "coordinator_moved", "node 2, the coordinator, gets SIGKILL", also=LOST):
            nodes.kill(2)
            until(lambda: nodes.coordinator(group) not in (2, -1), "another node coordinates")
            stage.go_on(15)
    finally:
        nodes.restart(2)


@play([AIOKAFKA, MUSTER, RANGE], clusters=THREE)
def coordinator_stands_still(stage: Stage, flavour: Flavour) -> None:
    """The coordinator's broker gets SIGSTOP, another one takes over, and it gets SIGCONT after 20 s."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    nodes.freeze(2)
    thawed = False
    try:
        with stage.perhaps(group, "coordinator_moved", "node 2, the coordinator, gets SIGSTOP for 20 s", also=LOST):
            stage.go_on(20)
            nodes.thaw(2)
            thawed = True
            stage.go_on(5)
    finally:
        if not thawed:
            nodes.thaw(2)


@play([RANGE, RD_COOPERATIVE], clusters=THREE)
def crash_while_moving(stage: Stage, flavour: Flavour) -> None:
    """A member is killed, and before its session has expired, another broker becomes the coordinator."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    with stage.happens(group, "session_expired", "m2 gets SIGKILL, 4 s later node 3 becomes the coordinator"):
        group.members[1].crash()
        time.sleep(4)
        nodes.move(group, 3)
        stage.go_on(8)


@play([CONSUMER, RD_RANGE], clusters=THREE)
def crash_after_moving(stage: Stage, flavour: Flavour) -> None:
    """Another broker becomes the coordinator; 10 s later a member is killed, and another one leaves."""
    nodes = nodes_of(stage)
    group = _three(stage, flavour)
    with stage.quiet(group, "node 3 becomes the coordinator by a preferred election"):
        nodes.move(group, 3)
        stage.go_on(8)
    stage.killed(group.members[1])
    stage.left(group.members[1])
