"""Scripts about committed offsets, operators, and unusual groups."""

from __future__ import annotations

import time

from tests.history.scenarios.clients import Flavour
from tests.history.scenarios.plays import BOTH, CLASSIC, CONFLUENT, JAVA, play
from tests.history.scenarios.stage import Group, Stage, until
from tests.history.scenarios.workers import Worker

RANGE, COOPERATIVE, CONSUMER = JAVA


@play([RANGE, CONSUMER, CONFLUENT[0]], clusters=BOTH)
def rewound(stage: Stage, flavour: Flavour) -> None:
    """A group is stopped, an operator resets its offsets to earlier ones, and it is started again."""
    topic, group, _ = stage.running(flavour, 2, for_s=4)
    stage.all_left(group, "both")
    with stage.quiet(group, "an operator sets the offset of each partition to 3"):
        for partition in range(stage.topics[topic]):
            stage.operator.ask("set_offset", group=group.name, topic=topic, partition=partition, offset=3)
    stage.started(group, group.several(2), topic)


@play([RANGE, CONFLUENT[0]], clusters=BOTH)
def simple(stage: Stage, flavour: Flavour) -> None:
    """A consumer assigns partitions to itself and commits under a group's name: there are no members."""
    topic = stage.topic("t")
    group = stage.group(flavour, name="simple")
    member = group.member("m1")
    with stage.quiet(group, "a consumer without subscription commits for four partitions"):
        member.tell("assign", partitions=[[topic, at] for at in range(4)])
        stage.go_on(6)
        member.leave()


@play([RANGE, CONSUMER, CONFLUENT[1]], clusters=BOTH)
def without_commits(stage: Stage, flavour: Flavour) -> None:
    """A group that never commits: one of three is killed, another leaves. Nothing distinguishes the two."""
    _, _, members = stage.running(flavour, 3, commit="none", for_s=6)
    stage.killed(members[1], also=["left"])
    stage.go_on(6)
    stage.left(members[2], also=["session_expired"])


@play([RANGE, COOPERATIVE, CONSUMER, CONFLUENT[0]], clusters=BOTH)
def commits_by_hand(stage: Stage, flavour: Flavour) -> None:
    """Members that commit after each poll; one is killed, another leaves."""
    _, _, members = stage.running(flavour, 3, commit="manual", for_s=4)
    stage.killed(members[1])
    stage.go_on(4)
    stage.left(members[2])


@play([RANGE, COOPERATIVE, CONSUMER, CONFLUENT[0]], clusters=BOTH)
def idle_topic(stage: Stage, flavour: Flavour) -> None:
    """Nothing is written to the topic, so nothing is committed: one of three is killed, another leaves."""
    _, _, members = stage.running(flavour, 3, idle=True, for_s=4)
    stage.killed(members[1], also=["left"])
    stage.go_on(4)
    stage.left(members[2], also=["session_expired"])


@play([RANGE, COOPERATIVE, CONFLUENT[0]])
def proportions(stage: Stage, flavour: Flavour) -> None:
    """A session of 9 s and a poll interval of 60 s, in proportion to the defaults of 45 s and 5 minutes: a crash, and a
    slow handler."""
    _, group, members = stage.running(
        flavour,
        3,
        {"session.timeout.ms": "9000", "max.poll.interval.ms": "60000", "auto.commit.interval.ms": "2000"},
        partitions=6,
        for_s=10,
    )
    stage.killed(members[1])
    stage.go_on(6)
    with stage.happens(group, "poll_interval_exceeded", "m3 handles a record for 85 s"):
        members[2].oversleep(85_000)
    with stage.happens(group, "joined", "m3 polls again"):
        group.members.append(members[2])


@play([*CLASSIC, CONSUMER], clusters=BOTH)
def removed_by_an_operator(stage: Stage, flavour: Flavour) -> None:
    """An operator removes a static member whose process has ended; then one that is alive, which rejoins
    immediately."""
    topic = stage.topic("t")
    timeout = {} if flavour.next_generation else {"session.timeout.ms": "60000", "max.poll.interval.ms": "60000"}
    group = stage.group(flavour, timeout)
    members = group.several(3, static=True)
    stage.started(group, members, topic)
    members[2].leave()
    stage.go_on(1)
    with stage.happens(group, "left", "an operator removes m3, whose process has ended, by its instance id"):
        stage.operator.ask("remove_members", group=group.name, instances=["m3"], reason="scaled down")
    stage.go_on(3)


@play([RANGE, CONSUMER], clusters=BOTH)
def deleted(stage: Stage, flavour: Flavour) -> None:
    """A group is stopped and deleted, and another one of the same name is started."""
    topic, group, _ = stage.running(flavour, 2)
    stage.all_left(group, "both")
    with stage.quiet(group, "an operator deletes the group"):
        stage.operator.ask("delete_group", group=group.name)
    stage.started(group, group.several(2), topic)


@play([RANGE, CONSUMER])
def expired(stage: Stage, flavour: Flavour) -> None:
    """A group is stopped for longer than offsets are kept (a minute here), and started again."""
    topic, group, _ = stage.running(flavour, 2)
    stage.all_left(group, "both")
    with stage.quiet(group, "its offsets expire"):
        stage.go_on(75)
    stage.started(group, group.several(2), topic)


@play([RANGE, COOPERATIVE, CONSUMER, CONFLUENT[0]], clusters=BOTH)
def topic_created(stage: Stage, flavour: Flavour) -> None:
    """Of two topics that a group subscribes to, one exists from the beginning; the other is created later."""
    first, name = stage.topic("t"), f"{stage.name}.u"
    group = stage.group(flavour)
    members = group.several(2)
    # librdkafka subscribes the group only to topics that exist, and its leader asks again when it finds one missing.
    told, also = "partitions_added", ["leader_rejoined"] if flavour.client == "confluent" else []
    if flavour.client == "confluent":
        told = "subscription_changed"
    about = "2 members subscribe at once, one topic is not there yet"
    with stage.happens(group, "started", about, also=["joined", *also]):
        for member in members:
            member.subscribe(first)
            member.tell("subscribe", topics=[first, name])
    with stage.happens(group, told, "the second topic is created", also=["partitions_added", *also]):
        for member in members:
            member.topics = [first, name]
        stage.topic("u")
    stage.go_on(3)


@play([RANGE, COOPERATIVE, CONSUMER], clusters=BOTH)
def topic_deleted(stage: Stage, flavour: Flavour) -> None:
    """One of two topics is deleted. No cause has that name: the cause found names the leader, if there is one."""
    first, second = stage.topic("t"), stage.topic("u")
    group = stage.group(flavour)
    members = group.several(2)
    stage.started(group, members, first, second)
    stage.go_on(3)
    cause = "not_known" if flavour.next_generation else "leader_rejoined"
    with stage.happens(group, cause, "the second topic is deleted"):
        for member in members:
            member.topics = [first]
        stage.delete_topic(second)
    stage.go_on(3)


@play([RANGE, COOPERATIVE], clusters=BOTH)
def pattern_of_deleted(stage: Stage, flavour: Flavour) -> None:
    """Members subscribe by a pattern; a topic that it matches is created, and later deleted."""
    group = stage.group(flavour)
    members, names = group.several(2), [stage.topic("t")]
    with stage.happens(group, "started", "2 members subscribe by a pattern at once", also=["joined"]):
        for member in members:
            member.topics = list(names)
            group.members.append(member)
            member.tell("subscribe", pattern=f"{stage.name}\\..*")
    stage.go_on(3)
    with stage.happens(group, "subscription_changed", "a topic that it matches is created", also=["partitions_added"]):
        names.append(stage.topic("u"))
        for member in members:
            member.topics = list(names)
    stage.go_on(3)
    with stage.happens(group, "subscription_changed", "that topic is deleted"):
        for member in members:
            member.topics = names[:1]
        stage.delete_topic(names[1])


def with_another_protocol(stage: Stage, group: Group, flavour: Flavour, about: str) -> None:
    """Replace all members one after another by those of another protocol."""
    topics = group.members[0].topics
    with stage.happens(group, "left", about, also=["joined"], pattern="rolling_restart"):
        for member in list(group.members):
            member.leave()
            time.sleep(2)
            group.member(member.label, flavour=flavour).subscribe(*topics)
            until(lambda: len(group.seen()[1]) == len(group.members), "the member is back")
            stage.go_on(4)


@play([RANGE, CONFLUENT[0]])
def upgraded(stage: Stage, flavour: Flavour) -> None:
    """Three classic members are replaced one after another by members of KIP-848's protocol."""
    _, group, _ = stage.running(flavour, 3, partitions=6)
    about = "m1, m2 and m3 are replaced by members with group.protocol=consumer"
    with_another_protocol(stage, group, Flavour(flavour.client, "consumer"), about)


@play([RANGE])
def connect(stage: Stage, flavour: Flavour) -> None:
    """Two workers of Kafka Connect, whose group has another protocol type; the second is killed."""
    group = stage.group(flavour, name="workers")
    group.protocol_type = "connect"
    first, second = Worker(group, "w1"), Worker(group, "w2")
    with stage.happens(group, "started", "a worker starts"):
        first.subscribe()
        until(lambda: group.seen_members() == 1, "one worker is there")
    with stage.happens(group, "joined", "a second worker starts"):
        second.subscribe()
        until(lambda: group.seen_members() == 2, "two workers are there")
    with stage.happens(group, "session_expired", "the second worker gets SIGKILL", also=["left"]):
        second.crash()
        until(lambda: group.seen_members() == 1, "one worker is left")
    first.crash()


@play([Flavour("java", "share")])
def queue(stage: Stage, flavour: Flavour) -> None:
    """A share group of two; the rules do not cover it, but its records are counted."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    with stage.quiet(group, "two members of a share group come, and one leaves"):
        members = group.several(2)
        for member in members:
            member.tell("subscribe", topics=[topic])
        stage.go_on(6)
        members[0].leave()


@play([Flavour("java", "streams")])
def streams(stage: Stage, flavour: Flavour) -> None:
    """A streams group (KIP-1071), with heartbeats only; the rules do not cover it, but its records are counted."""
    topic = stage.topic("t")
    group = stage.group(flavour)
    port = int(stage.bootstrap.rpartition(":")[2])
    with stage.quiet(group, "two members of a streams group come and leave"):
        for member, epoch in (("first", 0), ("second", 0), ("first", -1), ("second", -1)):
            heartbeat = {"group": group.name, "topic": topic, "member": member, "epoch": epoch, "port": port}
            stage.operator.ask("streams_heartbeat", **heartbeat)
            stage.go_on(1)
