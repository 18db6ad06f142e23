"""More scripts by someone who had not read the rules, with other clients and times: measured after the rules had
changed because of the first ones."""

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
    RD_CONSUMER,
    RD_COOPERATIVE,
    RD_RANGE,
    config_for,
    three,
)

MUSTER_COOPERATIVE = Flavour("muster", "cooperative")


@play([RD_RANGE, CONSUMER])
def slow_network(stage: Stage, flavour: Flavour) -> None:
    """Members that get each response 0.7 s late: one is killed, another one leaves."""
    assert stage.road is not None
    with stage.road.alone(delay_s=0.7) as road:
        group = three(stage, flavour, bootstrap_servers=road.bootstrap, auto_commit_interval_ms=2_000)
        # librdkafka's members join so slowly here that records do not distinguish the two, and they continue to fail.
        doubts = flavour == RD_RANGE
        with stage.happens(
            group, "session_expired", "m2 gets SIGKILL", also=["poll_interval_exceeded"] if doubts else []
        ):
            group.members[1].crash()
        stage.go_on(8)
        also = ["session_expired", "started", "joined"] if doubts else []
        stage.left(group.members[1], also=also)


@play([RANGE, AIOKAFKA, RD_CONSUMER])
def network_cut(stage: Stage, flavour: Flavour) -> None:
    """One of three members is cut off from the brokers for longer than its session."""
    assert stage.road is not None
    with stage.road.alone() as road:
        topic = stage.topic("t", 6)
        group = stage.group(flavour)
        members = group.several(2)
        members.append(group.member("m3", {"bootstrap.servers": road.bootstrap}))
        stage.started(group, members, topic)
        stage.go_on(5)
        with stage.happens(group, "session_expired", "m3 and the broker exchange nothing from now on"):
            group.remove(members[2])
            road.cut()
        with stage.happens(group, "joined", "m3 reaches the broker again"):
            road.mend()
            group.members.append(members[2])


@play([MUSTER_COOPERATIVE, RD_RANGE])
def half_crash(stage: Stage, flavour: Flavour) -> None:
    """A rack is lost: three of six members are killed at once."""
    _, group, _ = stage.running(
        flavour, 6, config_for(flavour, session_timeout_ms=10_000, auto_commit_interval_ms=3_000), partitions=8, for_s=7
    )
    with stage.happens(group, "session_expired", "m1, m2 and m3 get SIGKILL"):
        for member in group.members[:3]:
            member.crash()


@play([RANGE, RD_CONSUMER])
def deploy_by_force(stage: Stage, flavour: Flavour) -> None:
    """A deploy that kills each process, and starts the next one after the session has expired."""
    group = three(stage, flavour)
    topic = group.members[0].topics[0]
    about = "m1, m2 and m3 get SIGKILL one after another, and are started again"
    with stage.happens(group, "session_expired", about, also=["joined"], pattern="rolling_restart"):
        for member in list(group.members):
            member.crash()
            group.settle()
            group.member(member.label).subscribe(topic)
            group.settle()
            stage.go_on(2)


@play([AIOKAFKA, COOPERATIVE])
def crash_one_by_one(stage: Stage, flavour: Flavour) -> None:
    """Three of four members are killed, one after another, and do not return."""
    _, _, members = stage.running(flavour, 4, config_for(flavour, session_timeout_ms=8_000), partitions=8, for_s=4)
    for member in members[:3]:
        # Here the poll interval is 2 s longer than the session: a commit interval and a heartbeat.
        stage.killed(member, also=["poll_interval_exceeded"])
        stage.go_on(3)


@play([RD_RANGE, KAFKA_PYTHON])
def long_commit_interval(stage: Stage, flavour: Flavour) -> None:
    """Automatic commits every 15 s, with a session of 6 s: one leaves, another one is killed."""
    group = three(stage, flavour, auto_commit_interval_ms=15_000, max_poll_interval_ms=60_000)
    stage.go_on(38)
    stage.left(group.members[2])
    stage.go_on(20)
    stage.killed(group.members[1])


@play([RANGE, RD_COOPERATIVE])
def short_poll_interval(stage: Stage, flavour: Flavour) -> None:
    """A poll interval shorter than the session if the client allows it, otherwise equal: one is slow, one is killed."""
    poll_ms = 8_000 if flavour.client == "java" else 15_000
    group = three(stage, flavour, session_timeout_ms=15_000, max_poll_interval_ms=poll_ms)
    member = group.members[0]
    about = f"m1 handles a record for 40 s, its poll interval is {poll_ms // 1000} s"
    same = flavour.client != "java"  # both timeouts are the same, so the records are too
    with stage.happens(group, "poll_interval_exceeded", about, also=["session_expired"] if same else []):
        member.oversleep(40_000)
    with stage.happens(group, "joined", "m1 polls again"):
        group.members.append(member)
    stage.go_on(5)
    also = ["poll_interval_exceeded"] if same else []
    stage.killed(group.members[0], also=also)


@play([RANGE, RD_CONSUMER])
def static_scaled_in(stage: Stage, flavour: Flavour) -> None:
    """Static members: one is slow for longer than its poll interval, another one closes and never comes back."""
    _, group, members = stage.running(flavour, 3, partitions=6, static=True, for_s=5)
    stage.overslept(members[1], 35)
    stage.go_on(5)
    about = "m3 closes its consumer, which says nothing for good, and its session expires"
    with stage.happens(group, "session_expired", about):
        members[2].leave()


@play([RANGE, MUSTER])
def deploy_with_a_topic(stage: Stage, flavour: Flavour) -> None:
    """A deploy after which members read one topic more."""
    first, second = stage.topic("t"), stage.topic("u")
    group = stage.group(flavour)
    stage.started(group, group.several(3), first)
    stage.go_on(3)
    about = "m1, m2 and m3 are replaced by members that subscribe to a second topic besides"
    also = ["joined", "subscription_changed"]
    with stage.happens(group, "left", about, also=also, pattern="rolling_restart"):
        for member in list(group.members):
            member.leave()
            time.sleep(2)
            group.member(member.label).subscribe(first, second)
            until(lambda: len(group.seen()[1]) == len(group.members), "the member is back")
            stage.go_on(5)


@play([RD_RANGE, CONSUMER])
def visitor(stage: Stage, flavour: Flavour) -> None:
    """A console consumer joins the group for some seconds, and again half a minute later."""
    group = three(stage, flavour)
    topic = group.members[0].topics[0]
    for _ in range(2):
        guest = group.member("console")
        with stage.happens(group, "joined", "a console consumer subscribes"):
            guest.subscribe(topic)
        with stage.happens(group, "left", "the console consumer is closed"):
            guest.leave()
        stage.go_on(20)


@play([RD_RANGE, CONSUMER, KAFKA_PYTHON])
def spare_members(stage: Stage, flavour: Flavour) -> None:
    """More members than partitions: one without partitions is killed, another one leaves. Neither has ever
    committed."""
    _, group, members = stage.running(flavour, 5, partitions=2, for_s=5)
    told = group.seen()[3]
    idle = {member_id for member_id, partitions in told if not partitions}
    spare = [member for member in members if member.label in _labels_of(stage, group, idle)]
    with stage.happens(group, "session_expired", "a member without partitions gets SIGKILL", also=["left"]):
        spare[0].crash()
    stage.go_on(5)
    with stage.happens(group, "left", "a member without partitions closes its consumer", also=["session_expired"]):
        spare[1].leave()


def _labels_of(stage: Stage, group: Group, ids: set[str]) -> set[str]:
    members = stage.operator.ask("describe", group=group.name, type="")["members"]
    return {member["client_id"] for member in members if member["member_id"] in ids}


@play([RANGE, RD_COOPERATIVE], clusters=THREE)
def host_lost(stage: Stage, flavour: Flavour) -> None:
    """A host with a member and the coordinator's broker is lost."""
    nodes = nodes_of(stage)
    topic = stage.topic("t", 6)
    group = stage.group(flavour, config_for(flavour, session_timeout_ms=9_000))
    nodes.move(group, 2)
    stage.started(group, group.several(3), topic)
    stage.go_on(5)
    try:
        about = "m2 and node 2, which coordinates the group, get SIGKILL"
        with stage.happens(group, "session_expired", about, also=["coordinator_moved", "joined"]):
            group.members[1].crash()
            nodes.kill(2)
            until(lambda: nodes.coordinator(group) not in (2, -1), "another node coordinates")
            stage.go_on(15)
    finally:
        nodes.restart(2)
