"""Scripts by someone who had not read the rules: deploys, scaling, and changes of assignor and protocol."""

from __future__ import annotations

import time

from tests.history.scenarios.clients import JAVA_ASSIGNORS, Flavour
from tests.history.scenarios.offset_plays import with_another_protocol
from tests.history.scenarios.plays import play
from tests.history.scenarios.stage import Group, Member, Stage
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
)

ASSIGNORS = "partition.assignment.strategy"


def _group(stage: Stage, flavour: Flavour, labels: list[str]) -> Group:
    topic = stage.topic("t", 8)
    group = stage.group(flavour)
    stage.started(group, [group.member(label) for label in labels], topic)
    stage.go_on(3)
    return group


@play([COOPERATIVE, RD_RANGE])
def deploy_in_pairs(stage: Stage, flavour: Flavour) -> None:
    """Four members are replaced, two at a time."""
    group = _group(stage, flavour, ["m1", "m2", "m3", "m4"])
    members = list(group.members)
    topic = members[0].topics[0]
    about = "m1 and m2 are replaced at once, then m3 and m4"
    with stage.happens(group, "left", about, also=["joined"], pattern="rolling_restart"):
        for pair in (members[:2], members[2:]):
            for member in pair:
                member.leave()
            time.sleep(2)
            for another in [group.member(member.label) for member in pair]:
                another.subscribe(topic)
            group.settle()
            stage.go_on(2)


def _surge(stage: Stage, group: Group, names: list[str]) -> None:
    topic = group.members[0].topics[0]
    about = "three members are replaced, each of the new ones joins before an old one leaves"
    with stage.happens(group, "joined", about, also=["left"], pattern="rolling_restart"):
        for old, name in zip(list(group.members), names, strict=True):
            group.member(name).subscribe(topic)
            group.settle()
            stage.go_on(1)
            old.leave()
            group.settle()
            stage.go_on(1)


@play([RANGE, RD_CONSUMER])
def deploy_with_surge(stage: Stage, flavour: Flavour) -> None:
    """A deploy that starts a new process first, all with the same client id, as is the default of libraries."""
    group = _group(stage, flavour, ["app", "app", "app"])
    _surge(stage, group, ["app", "app", "app"])


@play([COOPERATIVE, MUSTER])
def deploy_of_pods(stage: Stage, flavour: Flavour) -> None:
    """A deploy that starts a new process first, each with its own client id: it looks like ordinary scaling."""
    group = _group(stage, flavour, ["app-5f-a", "app-5f-b", "app-5f-c"])
    _surge(stage, group, ["app-7c-d", "app-7c-e", "app-7c-f"])


@play([COOPERATIVE, RD_CONSUMER])
def scaled(stage: Stage, flavour: Flavour) -> None:
    """A group grows from two members to six, one every second, and shrinks again."""
    _scaled(stage, _group(stage, flavour, ["m1", "m2"]), ["m3", "m4", "m5", "m6"])


@play([RD_RANGE, AIOKAFKA])
def scaled_same_name(stage: Stage, flavour: Flavour) -> None:
    """A group whose members share one client id grows from two to six, and shrinks again."""
    _scaled(stage, _group(stage, flavour, ["app", "app"]), ["app", "app", "app", "app"])


def _scaled(stage: Stage, group: Group, names: list[str]) -> None:
    topic = group.members[0].topics[0]
    more = [group.member(name) for name in names]
    with stage.happens(group, "joined", "four more members subscribe, one each second"):
        for member in more:
            member.subscribe(topic)
            time.sleep(1)
    stage.go_on(5)
    with stage.happens(group, "left", "four members close their consumers, one each two seconds"):
        for member in more:
            member.leave()
            time.sleep(2)


@play([RD_COOPERATIVE, CONSUMER])
def crash_and_scale(stage: Stage, flavour: Flavour) -> None:
    """Members with one client id: one is killed, and much later a third and a fourth are started."""
    group = _group(stage, flavour, ["app", "app", "app"])
    topic = group.members[0].topics[0]
    with stage.happens(group, "session_expired", "one of three gets SIGKILL"):
        group.members[0].crash()
    stage.go_on(8)
    for count in ("a third", "a fourth"):
        with stage.happens(group, "joined", f"{count} member is started"):
            group.member("app").subscribe(topic)
        stage.go_on(3)


def _bounced(stage: Stage, group: Group, strategies: str, about: str) -> None:
    topic = group.members[0].topics[0]
    with stage.happens(group, "left", about, also=["joined"], pattern="rolling_restart"):
        for member in list(group.members):
            member.leave()
            time.sleep(2)
            group.member(member.label, {ASSIGNORS: strategies}).subscribe(topic)
            group.settle()
            stage.go_on(1)


@play([RANGE])
def two_bounces(stage: Stage, flavour: Flavour) -> None:
    """From the eager protocol to the cooperative one as in Kafka's guide: all members are restarted twice."""
    group = _group(stage, flavour, ["m1", "m2", "m3"])
    eager, cooperative = JAVA_ASSIGNORS["range"], JAVA_ASSIGNORS["cooperative"]
    _bounced(stage, group, f"{cooperative},{eager}", "all are restarted with both assignors")
    _bounced(stage, group, cooperative, "all are restarted with the cooperative assignor alone")


@play([CONSUMER, RD_CONSUMER])
def downgraded(stage: Stage, flavour: Flavour) -> None:
    """Three members of KIP-848's protocol are replaced one after another by classic ones."""
    group = _group(stage, flavour, ["m1", "m2", "m3"])
    about = "m1, m2 and m3 are replaced by members with group.protocol=classic"
    with_another_protocol(stage, group, Flavour(flavour.client, "range"), about)


def _stopped(stage: Stage, group: Group) -> None:
    stage.all_left(group)
    stage.go_on(3)


@play([RANGE, RD_RANGE])
def upgraded_offline(stage: Stage, flavour: Flavour) -> None:
    """A classic group is stopped, started with KIP-848's protocol, stopped, and started as a classic one."""
    group = _group(stage, flavour, ["m1", "m2"])
    topic = group.members[0].topics[0]
    for protocol in ("consumer", flavour.protocol):
        _stopped(stage, group)
        members: list[Member] = [group.member(label, flavour=Flavour(flavour.client, protocol)) for label in "ab"]
        stage.started(group, members, topic)
        stage.go_on(4)


@play([KAFKA_PYTHON, RD_CONSUMER])
def reset_between(stage: Stage, flavour: Flavour) -> None:
    """An operator resets and deletes offsets between two runs, and later deletes the group; each time it restarts."""
    group = _group(stage, flavour, ["m1", "m2"])
    topic = group.members[0].topics[0]
    _stopped(stage, group)
    with stage.quiet(group, "an operator sets two offsets to 1, and deletes two others"):
        for partition in (0, 1):
            stage.operator.ask("set_offset", group=group.name, topic=topic, partition=partition, offset=1)
        for partition in (2, 3):
            stage.operator.ask("delete_offset", group=group.name, topic=topic, partition=partition)
    stage.started(group, group.several(2), topic)
    stage.go_on(3)
    _stopped(stage, group)
    with stage.quiet(group, "an operator deletes the group"):
        stage.operator.ask("delete_group", group=group.name)
    stage.started(group, group.several(3), topic)
