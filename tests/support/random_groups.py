"""Random requests about a group, from a seed: members join, sync, commit and leave, correctly and incorrectly."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, ApiKey
from muster.protocol.primitives import ZERO_UUID, Request
from tests.support.differential import Ask, Side
from tests.support.same_answers import UNKNOWN_ID, ready_group

STEPS = 45
OPERATOR = "operator"
NOBODY = "made-up"
ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]
WEIGHTS = {
    "join": 24,
    "sync": 22,
    "heartbeat": 8,
    "leave": 5,
    "commit": 8,
    "fetch": 6,
    "describe": 6,
    "list": 1,
    "delete": 2,
    "delete_offsets": 3,
}


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, in the oldest version."""
    named = b"".join(len(each).to_bytes(2) + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4) + named + b"\xff\xff\xff\xff"


class RandomGroup:
    """One seed: up to three clients and one group."""

    steps = STEPS

    def __init__(self, seed: int, topic: str) -> None:
        self._dice = random.Random(seed)
        self._topic = topic
        self._group = f"group-{seed}-{uuid.uuid4().hex[:8]}"
        self._clients = "abc"[: self._dice.choice([1, 2, 3, 3])]
        self._instances = [None, None, "one", "two"] if self._dice.random() < 0.4 else [None]
        self._ids: list[str] = []
        """Names of the members' ids, in the order in which they were assigned."""
        self._busy: dict[str, tuple[str, str | None]] = {}
        """The member id and instance id with which a client waits."""
        self._instance_of: dict[str, str] = {}
        """Instance ids, by the names of static members' ids."""
        self._generation = 0
        self._leader = ""
        """The name of the leader's id; "" if it cannot be known."""
        self._protocol: str | None = None
        self._sides: Sequence[Side] = ()

    def begin(self, sides: Sequence[Side]) -> None:
        """Wait until the group's coordinator is ready."""
        self._sides = sides
        for side in sides:
            side.call(ready_group(side.ask, self._group, self._topic), "the topic's")
            (offsets,) = side.ask(m.MetadataRequest([m.MetadataRequestTopic(name=GROUP_METADATA_TOPIC)]), 12).topics
            side.call(bytes(offsets.topic_id), "that of the offsets")

    def end(self, sides: Sequence[Side]) -> None:
        """Only a group is left."""

    # --------------------------------------------------------------------------------------------------------- requests

    def next(self, waiting: Collection[str]) -> Ask | None:
        """A request of an idle client, or of an operator."""
        self._busy = {by: who for by, who in self._busy.items() if by in waiting}
        free = [each for each in self._clients if each not in waiting]
        kind = self._dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0] if free else "describe"
        by = self._dice.choice(free) if free else OPERATOR
        return getattr(self, f"_{kind}")(by)  # type: ignore[no-any-return]

    def _version(self, key: ApiKey) -> int:
        """Any version, most often the newest."""
        first, last = ADVERTISED[key]
        return last if self._dice.random() < 0.4 else self._dice.randint(first, last)

    def _member(self, by: str) -> str:
        """A member id by its name: usually the client's own newest one."""
        own = [each for each in self._ids if each.startswith(by)]
        free = [each for each in self._ids if each not in {name for name, _ in self._busy.values()}]
        luck = self._dice.random()
        if luck < 0.75 and own:
            return own[-1]
        if luck < 0.85 and free:
            return self._dice.choice(free)
        return "" if luck < 0.96 else NOBODY

    def _some_generation(self) -> int:
        right = self._dice.random() < 0.85
        now = self._generation
        return now if right else self._dice.choice([now - 1, now + 1, -1, 0, 2**31 - 1, -5])

    def _group_id(self, *, keeps: bool = False) -> str:
        """Usually the seed's own group, and sometimes the one with the empty name. All seeds share that one: a request
        that may leave something there, or report about it (`keeps`), does not name it."""
        other = f"other-{self._group}"
        return self._group if self._dice.random() < 0.97 else other if keeps else self._dice.choice(["", other])

    def _waits(self, name: str, instance: str | None) -> bool:
        """Whether a request with this id is already waiting: Kafka leaves the older one hanging (compatibility.md)."""
        busy = self._busy.values()
        return any(name == one or (instance and instance in (other, self._instance_of.get(one))) for one, other in busy)

    def _join(self, by: str) -> Ask | None:
        version, dice = self._version(ApiKey.JOIN_GROUP), self._dice
        name, group = self._member(by), self._group_id()
        instance = dice.choice(self._instances) if version >= 5 else None
        if self._waits(name, instance) if name else self._waits("-", instance):
            return None
        ours, other = subscription(self._topic), subscription("another")
        all_of_them = [(each, ours) for each in dice.sample(ASSIGNORS, len(ASSIGNORS))]
        usual = [[("range", ours)], [("range", ours), ("sticky", other)], all_of_them]
        odd = [[], [("x", b"")], [("range", b"\xff")], [("", ours)]]
        wished = dice.choice(usual if dice.random() < 0.93 else odd)
        kind = "consumer" if dice.random() < 0.96 else dice.choice(["", "connect"])
        session_ms = 60_000 if dice.random() < 0.95 else dice.choice([1, 0, -1, 2**31 - 1])
        reason = "why" if version >= 8 else None
        self._busy[by] = name, instance

        def build(side: Side) -> Request[Any]:
            protocols = [m.JoinGroupRequestProtocol(*each) for each in wished]
            given = side.given.get(name, name)
            return m.JoinGroupRequest(group, session_ms, 60_000, given, instance, kind, protocols, reason)

        return Ask(by, version, build, may_wait=True)

    def _sync(self, by: str) -> Ask | None:
        version, dice = self._version(ApiKey.SYNC_GROUP), self._dice
        name, group, generation = self._member(by), self._group_id(), self._some_generation()
        if self._waits(name, None):
            return None
        instance = dice.choice(self._instances) if version >= 3 else None
        shares = list(self._ids) if dice.random() < 0.8 else dice.sample(self._ids, dice.randint(0, len(self._ids)))
        if dice.random() < 0.05:
            shares += ["nobody", *shares[:1]]
        kind = "consumer" if dice.random() < 0.9 else dice.choice([None, "connect", ""])
        chosen = self._protocol if dice.random() < 0.9 else dice.choice([None, "range", "x"])
        self._busy[by] = name, instance

        def build(side: Side) -> Request[Any]:
            given = [m.SyncGroupRequestAssignment(side.given.get(each, each), each.encode()) for each in shares]
            of_protocol = (kind, chosen) if version >= 5 else (None, None)
            return m.SyncGroupRequest(
                group, generation, side.given.get(name, name), instance, *of_protocol, assignments=given
            )

        return Ask(by, version, build, may_wait=True)

    def _heartbeat(self, by: str) -> Ask:
        version, group, generation = self._version(ApiKey.HEARTBEAT), self._group_id(), self._some_generation()
        name, instance = self._member(by), self._dice.choice(self._instances) if version >= 3 else None

        def build(side: Side) -> Request[Any]:
            return m.HeartbeatRequest(group, generation, side.given.get(name, name), instance)

        return Ask(by, version, build)

    def _leave(self, by: str) -> Ask | None:
        version, group, dice = self._version(ApiKey.LEAVE_GROUP), self._group_id(), self._dice
        count = dice.choice([1, 1, 1, 2, 0]) if version >= 3 else 1
        leaving = [(self._member(by), dice.choice(self._instances) if version >= 3 else None) for _ in range(count)]
        # Which of two members becomes the leader when a leader has left depends on Kafka's hash map.
        leader_stays = self._leader and all(name != self._leader and not instance for name, instance in leaving)
        members = len(self._ids) + sum(not name for name, _ in self._busy.values())
        if (members > 2 and not leader_stays) or any(self._waits(*each) for each in leaving):
            return None
        self._leader = self._leader if leader_stays else ""

        def build(side: Side) -> Request[Any]:
            given = [(side.given.get(name, name), instance) for name, instance in leaving]
            if version < 3:
                return m.LeaveGroupRequest(group, given[0][0])
            return m.LeaveGroupRequest(group, members=[m.MemberIdentity(*each) for each in given])

        return Ask(by, version, build)

    def _named(self, version: int, topic: str, side: Side) -> tuple[str, bytes]:
        """A topic as named by OffsetCommit and OffsetFetch: by id since version 10."""
        if version < 10:
            return topic, ZERO_UUID
        return "", {self._topic: side.given["the topic's"], "": ZERO_UUID}.get(topic, UNKNOWN_ID)

    def _some_topics(self) -> list[str]:
        some = [self._topic] * 6 + ["nowhere", GROUP_METADATA_TOPIC, ""]
        return [self._dice.choice(some) for _ in range(self._dice.choice([1, 1, 1, 2, 0]))]

    def _commit(self, by: str) -> Ask:
        version, dice, group = self._version(ApiKey.OFFSET_COMMIT), self._dice, self._group_id(keeps=True)
        generation, name = self._some_generation(), self._member(by)
        if dice.random() < 0.3:
            generation, name = -1, "" if dice.random() < 0.8 else name
        # A commit without membership that is refused because of its metadata creates a group only in Kafka
        # (compatibility.md).
        notes = ["", "n", None] if generation < 0 else ["", "n", None, "x" * 5000]
        some = range(dice.choice([1, 1, 2, 3, 0]))
        topics = [(topic, [self._some_commit(notes) for _ in some]) for topic in self._some_topics()]
        instance = dice.choice(self._instances) if version >= 7 else None
        retention_ms = dice.choice([-1, -1, 10**9]) if version < 5 else -1

        def build(side: Side) -> Request[Any]:
            committed = [
                m.OffsetCommitRequestTopic(
                    *self._named(version, topic, side),
                    [m.OffsetCommitRequestPartition(p, o, e if version >= 6 else -1, n) for p, o, e, n in partitions],
                )
                for topic, partitions in topics
            ]
            return m.OffsetCommitRequest(
                group, generation, side.given.get(name, name), instance, retention_ms, committed
            )

        return Ask(by, version, build)

    def _some_commit(self, notes: list[str | None]) -> tuple[int, int, int, str | None]:
        """Partition, offset, leader epoch and metadata."""
        choose = self._dice.choice
        return choose([0, 1, 0, 99, -1]), choose([5, 0, 9, -1, 2**62]), choose([-1, 0, 3]), choose(notes)

    def _fetch(self, by: str) -> Ask:
        version, dice, group = self._version(ApiKey.OFFSET_FETCH), self._dice, self._group_id(keeps=True)
        asked = [
            (topic, dice.choice([[0, 1], [0], [0, 0], [99, -1], []])) for topic in [*self._some_topics(), "nowhere"]
        ]
        all_of_it, stable = dice.random() < 0.4 and version >= 2, dice.random() < 0.3 and version >= 7
        generation, name = dice.choice([(-1, None)] * 4 + [(self._generation, self._member(by)), (0, "x"), (-1, "x")])

        def build(side: Side) -> Request[Any]:
            if version < 8:
                topics = [m.OffsetFetchRequestTopic(topic, partitions) for topic, partitions in asked]
                return m.OffsetFetchRequest(group, None if all_of_it else topics, require_stable=stable)
            some = [m.OffsetFetchRequestTopics(*self._named(version, topic, side), each) for topic, each in asked]
            first = m.OffsetFetchRequestGroup(group, topics=None if all_of_it else some)
            if version >= 9 and name is not None:
                first.member_id, first.member_epoch = side.given.get(name, name), generation
            other = m.OffsetFetchRequestGroup(f"none-{self._group}")
            return m.OffsetFetchRequest(groups=[first, other], require_stable=stable)

        return Ask(by, version, build)

    def _describe(self, by: str) -> Ask:
        groups = [self._group, f"none-{self._group}"]
        version = self._version(ApiKey.DESCRIBE_GROUPS)
        return Ask(by, version, lambda side: m.DescribeGroupsRequest(groups))

    def _list(self, by: str) -> Ask:
        version = self._version(ApiKey.LIST_GROUPS)

        def only_this(answer: Any) -> None:
            answer["groups"] = [each for each in answer["groups"] if each["group_id"] == self._group]

        return Ask(by, version, lambda side: m.ListGroupsRequest(), only_this)

    def _delete(self, by: str) -> Ask:
        self._leader = ""
        none = f"none-{self._group}"
        names = self._dice.choice(
            [[self._group], [self._group] * 2, [none, self._group], [f"other-{self._group}", none]]
        )
        return Ask(by, self._version(ApiKey.DELETE_GROUPS), lambda side: m.DeleteGroupsRequest(names))

    def _delete_offsets(self, by: str) -> Ask:
        group, dice = self._group_id(keeps=True), self._dice
        asked = [(topic, dice.choice([[0], [0, 1], [99], []])) for topic in self._some_topics()]

        def build(side: Side) -> Request[Any]:
            made = a.OffsetDeleteRequestPartition
            topics = [a.OffsetDeleteRequestTopic(topic, [made(each) for each in some]) for topic, some in asked]
            return a.OffsetDeleteRequest(group, topics)

        return Ask(by, 0, build)

    # ---------------------------------------------------------------------------------------------------------- answers

    def learn(self, ask: Ask, answers: Sequence[tuple[Side, Any]]) -> None:
        """Record the names of member ids, and the state of the group."""
        ours = answers[0][1]
        if isinstance(ours, m.LeaveGroupResponse):
            self._await_timers()
        if not all(isinstance(answer, m.JoinGroupResponse) for _, answer in answers):
            return
        if all(answer.member_id not in (*side.names, "", NOBODY) for side, answer in answers):
            name = f"{ask.by}{len(self._ids)}"
            self._ids.append(name)
            for side, answer in answers:
                side.call(answer.member_id, name)
        if ours.error_code == 0:
            side = answers[0][0]
            asked: Any = ask.build(side)
            is_static = asked.group_instance_id is not None  # it may have replaced the leader
            if is_static:
                self._instance_of[side.names[ours.member_id]] = asked.group_instance_id
            self._leader = "" if is_static else side.names.get(ours.leader, "")
            self._generation, self._protocol = ours.generation_id, ours.protocol_name

    def _await_timers(self) -> None:
        """If the last member has left while an id was given out to another, wait until the group is empty. Both brokers
        leave that to a timer of 0 ms. If one never does it, a later answer shows it."""
        asked = m.DescribeGroupsRequest([self._group])
        for _ in range(100):
            found = [side.ask(asked, 5).groups[0] for side in self._sides]
            if all(group.members or group.group_state != "PreparingRebalance" for group in found):
                return
            time.sleep(0.02)
