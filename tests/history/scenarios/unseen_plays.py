"""Scripts by someone who had not read the rules: members that stall, crash, commit rarely, or change what they read."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.plays import CONFLUENT, JAVA, OTHERS, play
from tests.history.scenarios.stage import Group, Member, Stage

RANGE, COOPERATIVE, CONSUMER = JAVA
RD_RANGE, RD_COOPERATIVE, RD_CONSUMER = CONFLUENT
KAFKA_PYTHON, AIOKAFKA, MUSTER = OTHERS
MUSTER_ASYNC = Flavour("muster-async", "range")

SESSION_MS = "session.timeout.ms"
POLL_MS = "max.poll.interval.ms"
COMMIT_MS = "auto.commit.interval.ms"


def config_for(flavour: Flavour, **config: int | str) -> dict[str, str]:
    """Settings, without the session timeout for members of KIP-848's protocol; the broker's is 6 s."""
    named = {name.replace("_", "."): str(value) for name, value in config.items()}
    return {name: value for name, value in named.items() if name != SESSION_MS or not flavour.next_generation}


def three(stage: Stage, flavour: Flavour, *, commit: str = "auto", rest: bool = False, **config: int | str) -> Group:
    """A group of three that has run for some seconds."""
    topic, group, _ = stage.running(flavour, 3, config_for(flavour, **config), commit=commit, partitions=6, for_s=5)
    if rest:
        stage.rest(topic)
    return group


# ------------------------------------------------------------------------------------------ members that stall


@play([RANGE, RD_CONSUMER, AIOKAFKA])
def paused(stage: Stage, flavour: Flavour) -> None:
    """One of three members is frozen twice, for half its session: nothing should happen."""
    group = three(stage, flavour, session_timeout_ms=8_000)
    member = group.members[1]
    with stage.quiet(group, "m2 gets SIGSTOP, and SIGCONT 3 s later, twice"):
        for _ in range(2):
            member.freeze()
            time.sleep(3)
            member.thaw()
            stage.go_on(4)


@play([RD_COOPERATIVE, AIOKAFKA, MUSTER_ASYNC])
def revived(stage: Stage, flavour: Flavour) -> None:
    """One of three members is frozen for slightly longer than its session."""
    group = three(stage, flavour)
    member = group.members[1]
    with stage.happens(group, "session_expired", "m2 gets SIGSTOP for 9 s, its session is 6 s", also=["joined"]):
        member.freeze()
        time.sleep(9)
        member.thaw()


@play([COOPERATIVE, RD_CONSUMER, MUSTER])
def all_frozen(stage: Stage, flavour: Flavour) -> None:
    """The whole deployment is frozen for longer than its sessions, like a virtual machine that is migrated."""
    group = three(stage, flavour)
    members = list(group.members)
    with stage.happens(group, "session_expired", "m1, m2 and m3 get SIGSTOP"):
        for member in members:
            member.freeze()
    with stage.happens(group, "started", "m1, m2 and m3 get SIGCONT", also=["joined"]):
        for member in members:
            member.thaw()


@play([RANGE, RD_COOPERATIVE, MUSTER])
def nearly_slow(stage: Stage, flavour: Flavour) -> None:
    """A handler that takes slightly less than the poll interval, and then slightly more."""
    group = three(stage, flavour)
    with stage.quiet(group, "m2 handles two records for 8 s each, its poll interval is 10 s"):
        for _ in range(2):
            group.members[1].tell("sleep", ms=8_000)
            stage.go_on(10)
    about = "m2 handles a record for 11.5 s, its poll interval is 10 s"
    with stage.happens(group, "poll_interval_exceeded", about, also=["joined"]):
        group.members[1].tell("sleep", ms=11_500)
        stage.go_on(20)


@play([RANGE, RD_RANGE, CONSUMER])
def busy_while_joining(stage: Stage, flavour: Flavour) -> None:
    """A member joins while another handles a record, first within its poll interval, then for longer."""
    group = three(stage, flavour, max_poll_interval_ms=12_000)
    topic, busy = group.members[0].topics[0], group.members[0]
    fourth, fifth = group.member("m4"), group.member("m5")
    with stage.happens(group, "joined", "m4 joins while m1 handles a record for 8 s"):
        busy.tell("sleep", ms=8_000)
        time.sleep(1)
        fourth.subscribe(topic)
    about = "m5 joins while m1 handles a record for 30 s, its poll interval is 12 s"
    with stage.happens(group, "joined", about, also=["poll_interval_exceeded", "session_expired"]):
        busy.oversleep(30_000)
        time.sleep(1)
        fifth.subscribe(topic)
    with stage.happens(group, "joined", "m1 polls again"):
        group.members.append(busy)


@play([COOPERATIVE, RD_RANGE])
def silent_slow(stage: Stage, flavour: Flavour) -> None:
    """A group that never commits: one of three handles a record for longer than its poll interval."""
    group = three(stage, flavour, commit="none")
    member = group.members[1]
    stage.overslept(member, 30, also=["left", "session_expired"])


# ------------------------------------------------------------------------------------------ crashes


@play([RANGE, RD_CONSUMER, AIOKAFKA])
def crash_loop(stage: Stage, flavour: Flavour) -> None:
    """A container restarts repeatedly: the next process is running before the last one's session has expired."""
    group = three(stage, flavour, session_timeout_ms=10_000)
    topic = group.members[0].topics[0]
    about = "m3 gets SIGKILL four times, and is started again at once"
    with stage.happens(group, "session_expired", about, also=["joined"], pattern="flapping"):
        for _ in range(4):
            group.members[-1].crash()
            group.member("m3").subscribe(topic)
            stage.go_on(6)


@play([RD_RANGE, CONSUMER, KAFKA_PYTHON])
def supervised(stage: Stage, flavour: Flavour) -> None:
    """A process is killed, and its supervisor immediately starts another, before the session has expired."""
    group = three(stage, flavour, session_timeout_ms=10_000)
    topic = group.members[0].topics[0]
    about = "m2 gets SIGKILL, and is started again at once"
    with stage.happens(group, "session_expired", about, also=["joined"]):
        group.members[1].crash()
        group.member("m2").subscribe(topic)
        stage.go_on(12)


@play([RANGE, Flavour("muster", "cooperative")])
def leader_killed(stage: Stage, flavour: Flavour) -> None:
    """A follower asks for a rebalance; then the leader is killed, then a follower."""
    topic = stage.topic("t", 6)
    group = stage.group(flavour)
    members = group.several(4)
    stage.started(group, members[:1], topic)
    with stage.happens(group, "joined", "m2, m3 and m4 subscribe"):
        for member in members[1:]:
            member.subscribe(topic)
    stage.go_on(3)
    if flavour.client == "java":
        about = "m3, which is not the leader, calls enforceRebalance"
        with stage.happens(group, "leader_rejoined", about, also=["not_known"]):
            members[2].tell("rejoin", reason="a follower asks")
            stage.go_on(4)
    with stage.happens(group, "session_expired", "m1, the leader, gets SIGKILL"):
        members[0].crash()
    stage.go_on(4)
    stage.killed(members[3])


@play([RANGE, RD_COOPERATIVE, CONSUMER])
def crash_while_joining(stage: Stage, flavour: Flavour) -> None:
    """One member joins while another, killed three seconds ago, is still in the group."""
    group = three(stage, flavour)
    late = group.member("m4")
    about = "m4 subscribes 3 s after m3 got SIGKILL"
    with stage.happens(group, "joined", about, also=["session_expired"]):
        group.members[-1].crash()
        time.sleep(3)
        late.subscribe(*group.members[0].topics)
        stage.go_on(8)


@play([COOPERATIVE, RD_RANGE])
def leave_and_crash(stage: Stage, flavour: Flavour) -> None:
    """One of four members leaves, and another one is killed at the same moment."""
    _, group, members = stage.running(flavour, 4, partitions=6, for_s=5)
    with stage.happens(group, "left", "m1 closes its consumer, and m2 gets SIGKILL", also=["session_expired"]):
        members[1].crash()
        members[0].leave()
        stage.go_on(8)


@play([CONSUMER, RD_RANGE])
def static_crash(stage: Stage, flavour: Flavour) -> None:
    """Static members: one is killed and returns within its session, another one after it."""
    topic, group, members = stage.running(
        flavour, 3, config_for(flavour, session_timeout_ms=9_000), partitions=6, static=True, for_s=4
    )
    if not flavour.next_generation:  # KIP-848's coordinator refuses an instance id that another member holds
        with stage.quiet(group, "m2 gets SIGKILL, and is back 2 s later"):
            members[1].crash()
            time.sleep(2)
            group.member("m2", instance="m2").subscribe(topic)
            stage.go_on(8)
    again = group.member("m3", instance="m3")
    stage.killed(members[2])
    with stage.happens(group, "joined", "m3 is started again, after its session has expired"):
        again.subscribe(topic)


# ------------------------------------------------------------------------------------------ ways to leave


@play([RANGE, CONSUMER, RD_RANGE, KAFKA_PYTHON])
def unsubscribes(stage: Stage, flavour: Flavour) -> None:
    """One of three members unsubscribes, and subscribes again later; its process keeps running."""
    group = three(stage, flavour)
    member = group.members[1]
    with stage.happens(group, "left", "m2 unsubscribes"):
        member.unsubscribe()
    stage.go_on(6)
    with stage.happens(group, "joined", "m2 subscribes again"):
        member.subscribe(*group.members[0].topics)


@play([RANGE, CONSUMER])
def stays_behind(stage: Stage, flavour: Flavour) -> None:
    """Ways to close Java's consumer: without time to commit, and without leaving the group."""
    group = three(stage, flavour)
    with stage.happens(group, "left", "m2 closes its consumer with a timeout of 0"):
        group.members[1].leave(timeout_ms=0)
    stage.go_on(4)
    cause = "left" if flavour.next_generation else "session_expired"  # in KIP-848's groups only static members remain
    with stage.happens(group, cause, "m3 closes its consumer and remains in the group (CloseOptions)"):
        group.members[1].leave(how="stay")


@play([RANGE, RD_RANGE])
def all_removed(stage: Stage, flavour: Flavour) -> None:
    """An operator removes all members, which are alive and rejoin immediately."""
    group = three(stage, flavour)
    about = "an operator removes all members, which come back at once"
    with stage.happens(group, "left", about, also=["started", "joined"]):
        stage.operator.ask("remove_members", group=group.name, instances=[], reason="cleared")
        stage.go_on(5)


# ------------------------------------------------------------------------------------------ commits


def _leave_and_crash(stage: Stage, group: Group, *, is_doubtful: bool = False) -> None:
    """`is_doubtful`: commits do not distinguish the two."""
    stage.left(group.members[2], also=["session_expired"] if is_doubtful else [])
    stage.go_on(5)
    stage.killed(group.members[1], also=["left"] if is_doubtful else [])


@play([RANGE, RD_CONSUMER, MUSTER_ASYNC])
def commits_rarely(stage: Stage, flavour: Flavour) -> None:
    """Members that commit every 20 s, with a session of 6 s: one leaves, another one is killed."""
    group = three(stage, flavour, commit="manual:20000", max_poll_interval_ms=60_000)
    stage.go_on(50)
    _leave_and_crash(stage, group, is_doubtful=True)


@play([RANGE, CONSUMER])
def transactions(stage: Stage, flavour: Flavour) -> None:
    """Members that commit in their producers' transactions: one leaves, one is killed, one is slow."""
    group = three(stage, flavour, commit="transactions:1000")
    _leave_and_crash(stage, group)
    stage.go_on(4)
    member = group.members[0]
    with stage.happens(group, "poll_interval_exceeded", "m1 handles a record for 30 s, its poll interval is 10 s"):
        member.oversleep(30_000)
    with stage.happens(group, "started", "m1 polls again"):
        group.members.append(member)


@play([RD_RANGE, AIOKAFKA, CONSUMER, MUSTER])
def at_rest(stage: Stage, flavour: Flavour) -> None:
    """Nothing more is written to the topic: one leaves, another one is killed."""
    group = three(stage, flavour, rest=True)
    stage.go_on(25)
    _leave_and_crash(stage, group)


@play([RANGE, MUSTER])
def slow_batches(stage: Stage, flavour: Flavour) -> None:
    """Batches take 8 s, and are then committed, with a session of 6 s: one is killed, another one leaves."""
    group = three(stage, flavour, max_poll_records=10, max_poll_interval_ms=12_000)
    for member in group.members:
        member.tell("pace", ms=800)
    stage.go_on(30)
    also = ["left", "session_expired", "poll_interval_exceeded"]  # 8 s without a commit are normal
    stage.killed(group.members[1], also=also)
    stage.go_on(15)
    stage.left(group.members[1], also=also)


@play([RANGE, RD_RANGE, CONSUMER])
def by_default(stage: Stage, flavour: Flavour) -> None:
    """All times have their defaults: a crash, a close, and a record that takes longer than five minutes."""
    group = three(
        stage,
        flavour,
        session_timeout_ms=45_000,
        max_poll_interval_ms=300_000,
        auto_commit_interval_ms=5_000,
        metadata_max_age_ms=300_000,
    )
    stage.go_on(15)
    stage.killed(group.members[1])
    stage.go_on(20)
    stage.left(group.members[1])
    late = group.member("m4")
    with stage.happens(group, "joined", "m4 subscribes"):
        late.subscribe(*group.members[0].topics)
    stage.go_on(15)
    with stage.happens(group, "poll_interval_exceeded", "m4 handles a record for 360 s"):
        late.oversleep(360_000)
        stage.go_on(300)
    with stage.happens(group, "joined", "m4 polls again"):
        group.members.append(late)


# ------------------------------------------------------------------------------------------ topics


def _expression(stage: Stage) -> str:
    return f"{re.escape(stage.name)}\\.p.*"


@play([COOPERATIVE, RD_RANGE, CONSUMER])
def pattern(stage: Stage, flavour: Flavour) -> None:
    """Members subscribe by a regular expression; a matching topic is created. Classic members send only topics."""
    first = stage.topic("p1")
    group = stage.group(flavour)
    members = group.several(2)
    also = ["leader_rejoined"] if flavour.client == "confluent" else []
    with stage.happens(group, "started", "2 members subscribe by an expression", also=["joined", *also]):
        for member in members:
            member.match(_expression(stage), first)
    stage.go_on(3)
    about = "a topic that matches is created"
    with stage.happens(group, "subscription_changed", about, also=["partitions_added", *also]):
        second = stage.topic("p2")
        for member in members:
            member.topics = [first, second]


@play([CONSUMER, RD_CONSUMER])
def server_regex(stage: Stage, flavour: Flavour) -> None:
    """The broker evaluates a regular expression: a matching topic is created, then a member changes its expression."""
    first = stage.topic("p1")
    group = stage.group(flavour)
    members = group.several(2)
    by = "regex" if flavour.client == "java" else "pattern"
    with stage.happens(group, "started", "2 members subscribe by an expression", also=["joined"]):
        for member in members:
            member.match(_expression(stage), first, by=by)
    stage.go_on(3)
    with stage.happens(group, "partitions_added", "a topic that matches is created"):
        second = stage.topic("p2")
        for member in members:
            member.topics = [first, second]
    stage.go_on(3)
    with stage.happens(group, "subscription_changed", "m2 subscribes by an expression that the first topic matches"):
        members[1].match(f"{re.escape(stage.name)}\\.p1", first, by=by)


@play([RD_RANGE, RD_CONSUMER, MUSTER])
def topic_gone(stage: Stage, flavour: Flavour) -> None:
    """One of two topics is deleted. No cause has that name."""
    first, second = stage.topic("t"), stage.topic("u")
    group = stage.group(flavour)
    members = group.several(2)
    stage.started(group, members, first, second)
    stage.go_on(3)
    cause, also = "not_known" if flavour.next_generation else "leader_rejoined", []
    if flavour == RD_RANGE:  # librdkafka subscribes the group only to topics that exist
        cause, also = "subscription_changed", ["leader_rejoined"]
    with stage.happens(group, cause, "the second topic is deleted", also=also):
        for member in members:
            member.topics = [first]
        stage.delete_topic(second)
        stage.go_on(6)


@play([COOPERATIVE, RD_CONSUMER, AIOKAFKA])
def partitions_while_dead(stage: Stage, flavour: Flavour) -> None:
    """A topic gets more partitions while a killed member is still in the group."""
    group = three(stage, flavour)
    about = "six partitions become nine, 1 s after m3 got SIGKILL"
    also = ["session_expired", *(["leader_rejoined"] if flavour.client == "confluent" else [])]
    with stage.happens(group, "partitions_added", about, also=also):
        group.members[2].crash()
        time.sleep(1)
        stage.add_partitions(group.members[0].topics[0], 9)
        stage.go_on(8)


# ------------------------------------------------------------------------------------------ clients and assignors


@play([RANGE])
def mixed_clients(stage: Stage, flavour: Flavour) -> None:
    """Members with three client libraries in a group: one is killed, another one leaves, the third is slow."""
    topic = stage.topic("t", 6)
    group = stage.group(flavour)
    members: list[Member] = [
        group.member(each.client, flavour=replace(each, protocol="range")) for each in (flavour, RD_RANGE, AIOKAFKA)
    ]
    members.append(group.member("muster", flavour=MUSTER))
    stage.started(group, members, topic)
    stage.go_on(4)
    with stage.happens(group, "session_expired", "the Java consumer gets SIGKILL"):
        members[0].crash()
    stage.go_on(4)
    with stage.happens(group, "left", "aiokafka's consumer is closed"):
        members[2].leave()
    stage.go_on(4)
    with stage.happens(group, "poll_interval_exceeded", "librdkafka's member handles a record for 30 s"):
        members[1].oversleep(30_000)
    with stage.happens(group, "joined", "librdkafka's member polls again"):
        group.members.append(members[1])


@play([CONSUMER, RD_CONSUMER])
def remote_range(stage: Stage, flavour: Flavour) -> None:
    """KIP-848 with the assignor `range`: one member is killed, one is slow, one leaves."""
    _, _, members = stage.running(flavour, 3, {"group.remote.assignor": "range"}, partitions=6, for_s=4)
    stage.killed(members[0])
    stage.go_on(4)
    stage.overslept(members[1], 30)
    stage.go_on(4)
    stage.left(members[2])
