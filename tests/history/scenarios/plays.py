"""The scripts: what happens to a group, and why it rebalances then. Each is played with several clients and protocols.

A recorded scenario is named after its script and its flavour, such as `crash-java-cooperative`. Scripts of three
brokers are in cluster_plays.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.stage import Group, Member, Stage

Script = Callable[[Stage, Flavour], None]

JAVA = [Flavour("java", "range"), Flavour("java", "cooperative"), Flavour("java", "consumer")]
CONFLUENT = [Flavour("confluent", "range"), Flavour("confluent", "cooperative"), Flavour("confluent", "consumer")]
OTHERS = [Flavour("kafka-python", "range"), Flavour("aiokafka", "range"), Flavour("muster", "range")]
MUSTER_COOPERATIVE = Flavour("muster", "cooperative")
CLASSIC = [flavour for flavour in (*JAVA, *CONFLUENT) if not flavour.next_generation]
MAIN = [*JAVA, *CONFLUENT]

LONG_SESSION = {"session.timeout.ms": "30000", "max.poll.interval.ms": "30000"}


@dataclass(frozen=True)
class Play:
    """A script with one flavour, and the clusters on which it is played."""

    name: str
    script: Script
    flavour: Flavour
    clusters: tuple[str, ...]


PLAYS: list[Play] = []


def play(flavours: Iterable[Flavour], *, clusters: tuple[str, ...] = ("kafka",)) -> Callable[[Script], Script]:
    """Register a script with these flavours."""

    def note(script: Script) -> Script:
        title = script.__name__.replace("_", "-")
        for flavour in flavours:
            where = tuple(each for each in clusters if each != "muster" or not flavour.next_generation)
            PLAYS.append(Play(f"{title}-{flavour}", script, flavour, where))
        return script

    return note


BOTH = ("kafka", "muster")


# ------------------------------------------------------------------------------------------ members come and go


@play([*MAIN, *OTHERS, MUSTER_COOPERATIVE], clusters=BOTH)
def life(stage: Stage, flavour: Flavour) -> None:
    """Two members start, a third joins, the first leaves."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    first, second, third = group.several(3)
    stage.started(group, [first, second], topic)
    with stage.happens(group, "joined", "m3 subscribes"):
        third.subscribe(topic)
    stage.left(first)


@play([*MAIN, *OTHERS, MUSTER_COOPERATIVE], clusters=BOTH)
def crash(stage: Stage, flavour: Flavour) -> None:
    """One of three members is killed, and is started again long after its session expired."""
    topic, group, members = stage.running(flavour, 3, for_s=4)
    stage.killed(members[1])
    stage.go_on(4)
    again = group.member("m2")
    with stage.happens(group, "joined", "m2 is started again"):
        again.subscribe(topic)


# aiokafka's member stays in the group however long its handler takes, as long as there is nothing more to fetch.
@play([*MAIN, OTHERS[0], OTHERS[2], MUSTER_COOPERATIVE], clusters=BOTH)
def slow(stage: Stage, flavour: Flavour) -> None:
    """One of three members handles a record for longer than its poll interval, and then polls again."""
    _, _, members = stage.running(flavour, 3, for_s=4)
    stage.overslept(members[1], 30)


@play([*MAIN, OTHERS[0], OTHERS[2]], clusters=BOTH)
def frozen(stage: Stage, flavour: Flavour) -> None:
    """One of three members is frozen for longer than its session, and comes back."""
    _, group, members = stage.running(flavour, 3, for_s=4)
    with stage.happens(group, "session_expired", "m2 gets SIGSTOP"):
        members[1].freeze()
    with stage.happens(group, "joined", "m2 gets SIGCONT, and learns that it is no longer a member"):
        members[1].thaw()


@play(MAIN, clusters=BOTH)
def two_crash(stage: Stage, flavour: Flavour) -> None:
    """Two of four members are killed at the same time."""
    _, group, members = stage.running(flavour, 4, for_s=4)
    with stage.happens(group, "session_expired", "m2 and m3 get SIGKILL"):
        members[1].crash()
        members[2].crash()


@play(MAIN, clusters=BOTH)
def join_while_leaving(stage: Stage, flavour: Flavour) -> None:
    """One member joins at the moment another one leaves."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    members = group.several(3)
    stage.started(group, members[:2], topic)
    with stage.happens(group, "joined", "m3 subscribes while m1 leaves", also=["left"]):
        members[2].subscribe(topic)
        members[0].leave()


@play(MAIN, clusters=BOTH)
def alone(stage: Stage, flavour: Flavour) -> None:
    """A group of one: it starts, leaves, and starts again."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    member = group.member("m1")
    stage.started(group, [member], topic)
    with stage.happens(group, "left", "the only member closes its consumer"):
        member.leave()
    stage.go_on(3)
    stage.started(group, [group.member("m1")], topic)
    with stage.happens(group, "session_expired", "the only member gets SIGKILL"):
        group.members[0].crash()


@play(MAIN, clusters=BOTH)
def emptied(stage: Stage, flavour: Flavour) -> None:
    """All members leave, and the group is started again."""
    topic, group, _ = stage.running(flavour, 3)
    stage.all_left(group, "all three")
    stage.go_on(4)
    again = group.several(3)
    stage.started(group, again, topic)


# ------------------------------------------------------------------------------------------ deploys


def _redeploy(group: Group, member: Member, pause_s: float, *, static: bool = False) -> Member:
    """End a member cleanly, and start another to replace it."""
    topics = member.topics
    member.leave()
    time.sleep(pause_s)
    another = group.member(member.label, instance=member.label if static else None)
    another.subscribe(*topics)
    group.settle()
    return another


@play([*MAIN, OTHERS[0], MUSTER_COOPERATIVE], clusters=BOTH)
def deploy(stage: Stage, flavour: Flavour) -> None:
    """Three members are replaced one after another; none has an instance id."""
    _, group, members = stage.running(flavour, 3, partitions=6)
    about = "m1, m2 and m3 are replaced one after another"
    with stage.happens(group, "left", about, also=["joined"], pattern="rolling_restart"):
        for member in members:
            _redeploy(group, member, 3)


@play(MAIN, clusters=BOTH)
def deploy_static(stage: Stage, flavour: Flavour) -> None:
    """Three static members are replaced within their session timeout: no rebalance."""
    topic = stage.topic("t", 6)
    group = stage.group(flavour, {} if flavour.next_generation else LONG_SESSION)
    if flavour.next_generation:
        stage.operator.ask("group_config", group=group.name, name="consumer.session.timeout.ms", value="30000")
    members = group.several(3, static=True)
    stage.started(group, members, topic)
    with stage.quiet(group, "m1, m2 and m3 are replaced one after another, each within its session timeout"):
        for member in members:
            _redeploy(group, member, 1, static=True)


@play(MAIN, clusters=BOTH)
def deploy_static_late(stage: Stage, flavour: Flavour) -> None:
    """Three static members are replaced, each later than its session timeout."""
    _, group, members = stage.running(flavour, 3, partitions=6, static=True)
    about = "m1, m2 and m3 are replaced, each after its session has expired"
    with stage.happens(group, "session_expired", about, also=["joined"], pattern="rolling_restart"):
        for member in members:
            topics = member.topics
            member.leave()
            group.settle()
            another = group.member(member.label, instance=member.label)
            another.subscribe(*topics)
            group.settle()


@play([JAVA[0], JAVA[1], CONFLUENT[0]], clusters=BOTH)
def static_replaced(stage: Stage, flavour: Flavour) -> None:
    """Another process takes over a static member's id; later a member with only another assignor replaces it."""
    topic = stage.topic("t", 6)
    names = _both_assignors(flavour)
    group = stage.group(flavour, {"partition.assignment.strategy": ",".join(names)})
    members = group.several(3, static=True)
    stage.started(group, members, topic)
    with stage.quiet(group, "another process takes m3's instance id over, and the first is fenced"):
        another = group.member("m3", instance="m3")
        group.remove(members[2])
        another.subscribe(topic)
        if flavour.client == "java":
            members[2].wait_for("fenced")
        else:  # librdkafka's member knows, but its Python client does not report it
            stage.go_on(3)
            members[2].process.kill()
    another.leave()
    changed = group.member("m3", {"partition.assignment.strategy": names[1]}, instance="m3")
    with stage.happens(group, "static_member_replaced", f"m3 comes back and supports {names[1]} only"):
        changed.subscribe(topic)


def _both_assignors(flavour: Flavour) -> list[str]:
    if flavour.client == "confluent":
        return ["range", "roundrobin"]
    package = "org.apache.kafka.clients.consumer."
    first, second = "RangeAssignor", "RoundRobinAssignor"
    if flavour.protocol == "cooperative":
        first, second = "CooperativeStickyAssignor", "RangeAssignor"
    return [package + first, package + second]


# ------------------------------------------------------------------------------------------ what is subscribed to


@play([*MAIN, OTHERS[0], OTHERS[2]], clusters=BOTH)
def subscription(stage: Stage, flavour: Flavour) -> None:
    """One of two members also subscribes to a second topic, and later drops the first."""
    first, second = stage.topic("t"), stage.topic("u")
    group = stage.group(flavour)
    members = group.several(2)
    stage.started(group, members, first)
    with stage.happens(group, "subscription_changed", "m2 subscribes to a second topic besides"):
        members[1].subscribe(first, second)
    stage.go_on(3)
    with stage.happens(group, "subscription_changed", "m2 subscribes to the second topic alone"):
        members[1].subscribe(second)


@play([*MAIN, *OTHERS, MUSTER_COOPERATIVE], clusters=BOTH)
def partitions_added(stage: Stage, flavour: Flavour) -> None:
    """A topic of four partitions gets four more."""
    topic, group, _ = stage.running(flavour, 2, for_s=3)
    # librdkafka's leader may look at the topic later than a follower, and then asks for another rebalance.
    also = ["leader_rejoined"] if flavour.client == "confluent" else []
    with stage.happens(group, "partitions_added", "four partitions become eight", also=also):
        stage.add_partitions(topic, 8)


# ------------------------------------------------------------------------------------------ the group's leader


@play([JAVA[0], JAVA[1]], clusters=BOTH)
def leader_rejoins(stage: Stage, flavour: Flavour) -> None:
    """The leader asks for a rebalance, once with a reason and once without."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    members = group.several(3)
    stage.started(group, members[:1], topic)
    with stage.happens(group, "joined", "m2 subscribes"):
        members[1].subscribe(topic)
    with stage.happens(group, "joined", "m3 subscribes"):
        members[2].subscribe(topic)
    stage.go_on(3)
    with stage.happens(group, "leader_rejoined", "m1, the leader, calls enforceRebalance with a reason"):
        members[0].tell("rejoin", reason="the table of prices was loaded again")
        stage.go_on(1)
    stage.go_on(3)
    with stage.happens(group, "leader_rejoined", "m1, the leader, calls enforceRebalance without a reason"):
        members[0].tell("rejoin", reason=None)
        stage.go_on(1)


# ------------------------------------------------------------------------------------------ over and over


@play([*MAIN, MUSTER_COOPERATIVE], clusters=BOTH)
def flapping_crash(stage: Stage, flavour: Flavour) -> None:
    """One of three members is killed repeatedly, soon after it was started."""
    topic, group, _ = stage.running(flavour, 3)
    about = "m3 gets SIGKILL four times, and is started again after each"
    with stage.happens(group, "session_expired", about, also=["joined"], pattern="flapping"):
        for _ in range(4):
            group.members[-1].crash()
            group.settle()
            group.member("m3").subscribe(topic)
            group.settle()
            stage.go_on(1)


@play([JAVA[0], JAVA[1], CONFLUENT[1], CONFLUENT[2]], clusters=BOTH)
def flapping_slow(stage: Stage, flavour: Flavour) -> None:
    """One of three members repeatedly exceeds its poll interval."""
    _, group, members = stage.running(flavour, 3, {"max.poll.interval.ms": "6500"})
    about = "m3 handles records for longer than its poll interval four times"
    with stage.happens(group, "poll_interval_exceeded", about, also=["joined"], pattern="flapping"):
        for _ in range(4):
            members[2].oversleep(20_000)
            group.settle()
            group.members.append(members[2])
            group.settle()
            stage.go_on(1)
