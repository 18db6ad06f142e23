"""Whole stories of groups, told to muster and to Apache Kafka 4.2 alike: both give the same answers, step by step.

Every member has a connection of its own, because a JoinGroup or SyncGroup that waits keeps its connection busy. Member
ids differ between brokers and runs, so answers name members by who they are in the story.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import KafkaBroker

pytestmark = pytest.mark.slow

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
OTHER_SUBSCRIPTION = b"\0\0\0\0\0\1\0\1u\xff\xff\xff\xff"


class Stage:
    """One broker, a topic, a group, and who is on; `told` is all that was answered."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.group = f"group-{uuid.uuid4()}"
        self.topic = f"topic-{uuid.uuid4()}"
        self.connections: dict[str, RawClient] = {}
        self.waiting: dict[str, tuple[type[Request[Any]], int]] = {}
        self.ids: dict[str, str] = {}
        self.generation = 0
        self.protocol: str | None = None
        self.told: list[Any] = []
        operator = self.connection("operator")
        operator.ask(m.CreateTopicsRequest([m.CreatableTopic(self.topic, 2, 1)], 20_000), 7)
        self.until_found(operator)

    def until_found(self, operator: RawClient) -> None:
        """A new Kafka broker makes `__consumer_offsets` when it is first asked for a coordinator, then loads it."""
        find = m.FindCoordinatorRequest(coordinator_keys=[self.group])
        while operator.ask(find, 4).coordinators[0].error_code:
            pass
        retry = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        fetch = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(self.group, topics=None)])
        while operator.ask(fetch, 8).groups[0].error_code in retry:
            pass
        metadata = m.MetadataRequest([m.MetadataRequestTopic(name=self.topic)])
        while any(t.error_code or not t.partitions for t in operator.ask(metadata, 8).topics):
            pass

    def connection(self, name: str) -> RawClient:
        if name not in self.connections:
            self.connections[name] = RawClient(self.bootstrap)
        return self.connections[name]

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    # -------------------------------------------------------------------------------------------- what members may do

    def send(self, name: str, request: Request[Any], version: int) -> None:
        self.connection(name).send(request, version, f"client-{name}")
        self.waiting[name] = type(request), version

    def hear(self, *names: str) -> list[Any]:
        """Wait for answers, and keep what they say."""
        heard = []
        for name in names:
            answer = self.connection(name).receive(*self.waiting.pop(name))
            if isinstance(answer, m.JoinGroupResponse) and answer.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
                self.ids[name] = answer.member_id
                self.protocol = answer.protocol_name
                self.generation = max(self.generation, answer.generation_id)
            heard.append((name, answer))
        told = [(name, self.tell(answer)) for name, answer in heard]
        self.told += told
        return [answer for _, answer in told]

    def join(
        self,
        name: str,
        *,
        protocols: Sequence[tuple[str, bytes]] = (("range", SUBSCRIPTION),),
        version: int = 9,
        instance: str | None = None,
        member_id: str | None = None,
        session_timeout_ms: int = 30_000,
        protocol_type: str = "consumer",
    ) -> None:
        member_id = self.ids.get(name, "") if member_id is None else member_id
        wished = [m.JoinGroupRequestProtocol(*protocol) for protocol in protocols]
        request = m.JoinGroupRequest(
            self.group, session_timeout_ms, 60_000, member_id, instance, protocol_type, wished, "because"
        )
        if version < 5:
            request.group_instance_id = None
        if version < 8:
            request.reason = None
        self.send(name, request, version)

    def enter(self, name: str, **wishes: Any) -> None:
        """A new member is told its id, and comes again with it."""
        self.join(name, **wishes)
        self.hear(name)
        self.join(name, **wishes)

    def sync(self, name: str, *shares: str, generation: int | None = None, **fields: Any) -> None:
        assignments = [m.SyncGroupRequestAssignment(self.ids[each], each.encode()) for each in shares]
        number = self.generation if generation is None else generation
        fields = {"protocol_type": "consumer", "protocol_name": self.protocol, **fields}
        self.send(name, m.SyncGroupRequest(self.group, number, self.ids[name], assignments=assignments, **fields), 5)

    def heartbeat(self, name: str, generation: int | None = None, instance: str | None = None) -> None:
        number = self.generation if generation is None else generation
        self.send(name, m.HeartbeatRequest(self.group, number, self.ids.get(name, "nobody"), instance), 4)
        self.hear(name)

    def leave(self, name: str, version: int = 5, instance: str | None = None, member_id: str | None = None) -> None:
        member_id = self.ids[name] if member_id is None else member_id
        request = m.LeaveGroupRequest(self.group, members=[m.MemberIdentity(member_id, instance)])
        if version < 3:
            request = m.LeaveGroupRequest(self.group, member_id)
        self.send(name, request, version)
        self.hear(name)

    def commit(self, name: str, generation: int | None = None, version: int = 9, **fields: Any) -> None:
        """Commit offset 7 of partition 0, with a note, and of a partition that does not exist."""
        number = self.generation if generation is None else generation
        partitions = [m.OffsetCommitRequestPartition(0, 7, 2, "note"), m.OffsetCommitRequestPartition(9, 7)]
        topics = [m.OffsetCommitRequestTopic(self.topic, partitions=partitions)]
        fields = {"member_id": self.ids.get(name, ""), **fields}
        request = m.OffsetCommitRequest(self.group, number, topics=topics, **fields)
        self.send(name, request, version)
        self.hear(name)

    def look(self) -> None:
        """Describe the group, list it, and fetch its offsets."""
        described = m.DescribeGroupsRequest([self.group])
        self.send("operator", described, 6)
        self.hear("operator")
        self.send("operator", m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(self.group, topics=None)]), 9)
        self.hear("operator")

    def until(self, state: str) -> None:
        """Wait for what somebody sent to take effect: requests of two connections may overtake each other."""
        request = m.DescribeGroupsRequest([self.group])
        while self.connection("operator").ask(request, 5).groups[0].group_state != state:
            pass

    def delete(self) -> None:
        self.send("operator", m.DeleteGroupsRequest([self.group]), 2)
        self.hear("operator")

    # ------------------------------------------------------------------------------------------------ what is compared

    def who(self, member_id: str) -> str:
        return next((f"<{name}>" for name, known in self.ids.items() if known == member_id), member_id)

    def tell(self, answer: Any) -> Any:
        """An answer in terms of the story, errors by their names."""
        match answer:
            case m.JoinGroupResponse():
                told = (answer.generation_id, answer.protocol_type, answer.protocol_name, answer.skip_assignment)
                members = sorted((self.who(x.member_id), x.group_instance_id, x.metadata) for x in answer.members)
                return (*code(answer), *told, self.who(answer.leader), self.who(answer.member_id), members)
            case m.SyncGroupResponse():
                return (*code(answer), answer.protocol_type, answer.protocol_name, bytes(answer.assignment))
            case m.LeaveGroupResponse():
                return (
                    *code(answer),
                    *((self.who(x.member_id), x.group_instance_id, *code(x)) for x in answer.members),
                )
            case m.OffsetCommitResponse():
                partitions = [x for topic in answer.topics for x in topic.partitions]
                return sorted((x.partition_index, *code(x)) for x in partitions)
            case m.OffsetFetchResponse():
                return [
                    (*code(group), x.partition_index, x.committed_offset, x.committed_leader_epoch, x.metadata)
                    for group in answer.groups
                    for topic in group.topics
                    for x in topic.partitions
                ]
            case m.DescribeGroupsResponse():
                (group,) = answer.groups
                described = sorted(
                    (
                        self.who(x.member_id),
                        x.group_instance_id,
                        x.client_id,
                        x.client_host,
                        bytes(x.member_metadata),
                        bytes(x.member_assignment),
                    )
                    for x in group.members
                )
                return (*code(group), group.group_state, group.protocol_type, group.protocol_data, described)
            case m.DeleteGroupsResponse():
                return [code(result) for result in answer.results]
            case _:
                return code(answer)


def code(answer: Any) -> tuple[str]:
    return (ErrorCode(answer.error_code).name,)


# -------------------------------------------------------------------------------------------------------- the stories


def stable(stage: Stage, *names: str, **wishes: Any) -> None:
    """The members have joined and synced; the first leads."""
    stage.enter(names[0], **wishes)
    stage.hear(names[0])
    for at, name in enumerate(names[1:], 1):
        stage.enter(name, **wishes)
        stage.until("PreparingRebalance")
        for member in names[:at]:
            stage.join(member, **wishes)
        stage.hear(*names[: at + 1])
    for name in names[1:]:
        stage.sync(name)
    stage.sync(names[0], *names)
    stage.hear(*names)


def coming_and_going(stage: Stage) -> None:
    stable(stage, "a", "b")
    stage.look()
    stage.heartbeat("b")
    stage.commit("a")
    stage.enter("c")
    stage.until("PreparingRebalance")
    stage.look()
    stage.heartbeat("a")
    stage.commit("b")
    stage.join("b")
    stage.join("a")
    stage.hear("a", "b", "c")
    stage.look()
    stage.heartbeat("c")
    stage.commit("a")
    stage.sync("c")
    stage.sync("a", "b", "c")  # the leader gives itself nothing
    stage.hear("a", "c")
    stage.sync("b")
    stage.hear("b")
    stage.look()
    stage.leave("c", version=0)
    stage.join("b")
    stage.join("a")
    stage.hear("a", "b")
    # Two may not be left when a leader goes: which of them Kafka makes the leader is its hash map's secret.
    stage.leave("a", version=2)
    stage.join("b")
    stage.hear("b")
    stage.look()
    stage.leave("b")
    stage.look()
    stage.heartbeat("b")
    stage.commit("nobody", generation=-1)
    stage.delete()
    stage.look()
    stage.delete()


def guards(stage: Stage) -> None:
    stage.join("x", session_timeout_ms=1)
    stage.hear("x")
    stage.join("x", member_id="made-up")
    stage.hear("x")
    stage.join("x", protocols=())
    stage.hear("x")
    stage.join("x", protocol_type="")
    stage.hear("x")
    stage.heartbeat("x", 1)
    stage.commit("x", generation=4, version=9)
    stable(stage, "a", "b")
    for generation in (-1, 0, 99):
        stage.heartbeat("a", generation)
        stage.sync("a", generation=generation)
        stage.hear("a")
        stage.commit("a", generation)
    stage.commit("stranger")
    stage.commit("stranger", generation=-1)
    stage.commit("a", group_instance_id="nobody's")
    stage.heartbeat("a", instance="nobody's")
    stage.sync("a", protocol_type=None)
    stage.hear("a")
    stage.sync("a", protocol_type="connect")
    stage.hear("a")
    stage.sync("a", protocol_name="sticky")
    stage.hear("a")
    stage.join("x", protocols=[("sticky", SUBSCRIPTION)], member_id="")
    stage.hear("x")
    stage.join("x", protocol_type="connect", member_id="")
    stage.hear("x")
    stage.leave("x", member_id="made-up")
    stage.leave("x", member_id="made-up", version=1)
    stage.leave("x", member_id="", instance="nobody's")
    stage.delete()
    stage.look()


def nothing_changed(stage: Stage) -> None:
    """C5: who joins again without need is answered at once; the leader, or changed metadata, starts a rebalance."""
    stable(stage, "a", "b")
    stage.join("b")
    stage.hear("b")
    stage.join("b", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.until("PreparingRebalance")
    stage.heartbeat("a")
    stage.join("a")
    stage.hear("a", "b")
    stage.join("b", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.hear("b")
    stage.join("a")
    stage.hear("a")
    stage.join("a", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.until("PreparingRebalance")
    stage.sync("b")
    stage.hear("b")
    stage.join("b", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.hear("a", "b")


def choosing_a_protocol(stage: Stage) -> None:
    both = [("sticky", OTHER_SUBSCRIPTION), ("range", SUBSCRIPTION)]
    stable(stage, "a", "b", protocols=both)
    stage.join("c", version=3)
    stage.until("PreparingRebalance")
    stage.join("a", protocols=both)
    stage.join("b", protocols=both)
    stage.hear("a", "b", "c")
    stage.look()


def static_members(stage: Stage) -> None:
    stage.join("a", instance="ia")
    stage.hear("a")
    stage.join("b", instance="ib")
    stage.until("PreparingRebalance")
    stage.join("a", instance="ia")
    stage.hear("a", "b")
    stage.sync("b", group_instance_id="ib")
    stage.sync("a", "a", "b", group_instance_id="ia")
    stage.hear("a", "b")
    # b restarts and takes its share; whoever had its place is fenced.
    stage.join("b2", instance="ib")
    stage.hear("b2")
    stage.sync("b2", group_instance_id="ib")
    stage.hear("b2")
    stage.heartbeat("b", instance="ib")
    stage.heartbeat("b")
    stage.commit("b", group_instance_id="ib")
    stage.join("b", instance="ib")
    stage.hear("b")
    stage.leave("b", instance="ib")
    # The leader restarts: it is told of the members, but need not assign. Before version 9 it is not told.
    stage.join("a2", instance="ia")
    stage.hear("a2")
    stage.join("a3", instance="ia", version=8)
    stage.hear("a3")
    stage.look()
    # Somebody restarts while the group is changing.
    stage.enter("c")
    stage.until("PreparingRebalance")
    stage.join("b3", instance="ib")
    stage.join("a3", instance="ia")
    stage.hear("a3", "b3", "c")
    stage.join("b4", instance="ib")
    stage.until("PreparingRebalance")
    stage.sync("c")
    stage.hear("c")
    stage.join("c")
    stage.join("a3", instance="ia")
    stage.hear("a3", "b4", "c")
    # An operator takes one out by its name.
    stage.leave("operator", member_id="", instance="ib")
    stage.heartbeat("b4", instance="ib")
    stage.look()


def by_hand(stage: Stage) -> None:
    """J7: a consumer that assigns itself commits without being a member, and makes a group by it."""
    stage.look()
    stage.commit("a", generation=-1)
    stage.commit("a", generation=-1, version=2)
    stage.look()
    stage.commit("a", generation=0)
    stage.commit("a", generation=-1, member_id="made-up")
    stage.commit("a", generation=-1, group_instance_id="made-up")
    stable(stage, "b")
    stage.commit("a", generation=-1)
    stage.look()
    stage.leave("b")
    stage.commit("a", generation=-1)
    stage.delete()


def falling_silent(stage: Stage) -> None:
    """H1, H5: who sends no heartbeat for its session timeout is removed, and the rest rebalances."""
    stable(stage, "a", "b", session_timeout_ms=6_000)
    heartbeat = m.HeartbeatRequest(stage.group, stage.generation, stage.ids["a"])
    while stage.connection("a").ask(heartbeat, 4).error_code == ErrorCode.NONE:
        time.sleep(0.2)
    stage.heartbeat("a")
    stage.heartbeat("b")
    stage.commit("b")
    stage.join("a", session_timeout_ms=6_000)
    stage.hear("a")
    stage.look()


def named_twice(stage: Stage) -> None:
    """A protocol that is named twice is not chosen; an assignment for somebody who is no member is ignored."""
    stage.enter("a", protocols=[("range", SUBSCRIPTION), ("range", OTHER_SUBSCRIPTION), ("sticky", SUBSCRIPTION)])
    stage.hear("a")
    stage.ids["ghost"] = "ghost-1"
    stage.sync("a", "a", "ghost")
    stage.hear("a")
    stage.look()
    stage.sync("a", "a")
    stage.hear("a")
    stage.look()


def handed_out(stage: Stage) -> None:
    """An id that was handed out, and is given back, or used by a heartbeat, a commit, or a join of another kind."""
    stable(stage, "a")
    stage.join("p")
    stage.hear("p")
    stage.heartbeat("p")
    stage.commit("p")
    stage.sync("p")
    stage.hear("p")
    stage.join("p", instance="ip")
    stage.hear("p")
    stage.join("p", protocols=[("sticky", SUBSCRIPTION)])
    stage.hear("p")
    stage.delete()
    stage.leave("p")
    stage.leave("p")
    stage.heartbeat("a")
    stage.join("a")
    stage.hear("a")
    stage.look()


def listed(stage: Stage) -> None:
    stable(stage, "a")
    filters: list[tuple[list[str], list[str]]] = [
        ([], []),
        (["stable"], []),
        (["STABLE "], ["classic"]),
        ([], ["CLASSIC"]),
        ([], ["consumer"]),
        ([], ["nonsense"]),
        (["nonsense"], []),
        (["Empty"], ["classic", "consumer"]),
        (["Empty", "Stable"], []),
    ]
    for states, types in filters:
        answer = stage.connection("operator").ask(m.ListGroupsRequest(states_filter=states, types_filter=types), 5)
        found = sorted(
            (g.protocol_type, g.group_state, g.group_type) for g in answer.groups if g.group_id == stage.group
        )
        stage.told.append(("operator", (states, types, *code(answer), found)))


def old_versions(stage: Stage) -> None:
    """Commits and fetches of the oldest versions, for a group that nobody has joined."""
    operator = stage.connection("operator")
    stage.commit("x", generation=-1, version=2)
    for version in (1, 2, 5, 7):
        request = m.OffsetFetchRequest(stage.group, [m.OffsetFetchRequestTopic(stage.topic, [0, 1, 9])])
        answer = operator.ask(request, version)
        told = [(x.partition_index, x.committed_offset, *code(x)) for t in answer.topics for x in t.partitions]
        stage.told.append(("operator", (version, answer.error_code, told)))
    for version in (0, 1, 2):
        results = operator.ask(m.DeleteGroupsRequest([f"{stage.group}-{version}", ""]), version).results
        stage.told.append(("operator", sorted((r.group_id[-2:], *code(r)) for r in results)))
    for version in range(7):
        groups = operator.ask(m.DescribeGroupsRequest(["", f"{stage.group}-{version}"]), version).groups
        stage.told.append(("operator", sorted((g.group_id[-2:], g.group_state, *code(g)) for g in groups)))


def without_a_name(stage: Stage) -> None:
    """Requests that name no group."""
    stage.group = ""
    stage.join("a")
    stage.hear("a")
    stage.join("a", member_id="made-up")
    stage.hear("a")
    stage.ids["a"] = "made-up"
    stage.sync("a", generation=1, protocol_name="range")
    stage.hear("a")
    stage.heartbeat("a", 1)
    stage.leave("a")
    stage.leave("a", version=1)
    stage.commit("a", 1)
    stage.commit("a", 1, version=8)
    stage.commit("x", generation=-1, member_id="")


def bad_commits(stage: Stage) -> None:
    """Offsets below zero, notes that are too long, partitions and topics that are not there."""
    stable(stage, "a")
    for offset, note in ((-1, ""), (-2, ""), (5, "x" * 4096), (6, "x" * 4097), (7, None), (2**63 - 1, "\u00fc" * 4096)):
        partitions = [m.OffsetCommitRequestPartition(1, offset, -1, note)]
        topics = [m.OffsetCommitRequestTopic(stage.topic, partitions=partitions)]
        request = m.OffsetCommitRequest(stage.group, stage.generation, stage.ids["a"], topics=topics)
        stage.send("a", request, 8)
        stage.hear("a")
        stage.look()
    for partition in (-1, 2, 2**31 - 1):
        partitions = [m.OffsetCommitRequestPartition(partition, 5), m.OffsetCommitRequestPartition(0, 5)]
        topics = [m.OffsetCommitRequestTopic(stage.topic, partitions=partitions)]
        topics += [m.OffsetCommitRequestTopic("no-such-topic", partitions=[m.OffsetCommitRequestPartition(0, 5)])]
        stage.send("a", m.OffsetCommitRequest(stage.group, 77, stage.ids["a"], topics=topics), 8)
        stage.hear("a")
    stage.send("a", m.OffsetCommitRequest(stage.group, stage.generation, stage.ids["a"]), 8)
    stage.hear("a")


def a_topic_that_goes(stage: Stage) -> None:
    """What was committed for a topic goes with it, and does not come back with another of its name."""
    operator = stage.connection("operator")
    stage.commit("a", generation=-1)
    stage.look()
    operator.ask(m.DeleteTopicsRequest([m.DeleteTopicState(stage.topic)], [], 20_000), 6)
    asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(stage.group, topics=None)])
    while operator.ask(asked, 9).groups[0].topics:
        pass
    stage.look()
    stage.commit("a", generation=-1)
    operator.ask(m.CreateTopicsRequest([m.CreatableTopic(stage.topic, 1, 1)], 20_000), 7)
    stage.until_found(operator)
    stage.look()
    stage.delete()


def left_twice(stage: Stage) -> None:
    """Several members leave in one request, some of them twice, some of them nobody."""
    stable(stage, "a", "b")
    gone = [m.MemberIdentity(stage.ids["b"]), m.MemberIdentity(stage.ids["b"]), m.MemberIdentity("x", "y")]
    stage.send("operator", m.LeaveGroupRequest(stage.group, members=gone), 5)
    stage.hear("operator")
    stage.heartbeat("a")
    stage.heartbeat("b")
    stage.commit("b")
    stage.join("b")
    stage.hear("b")
    stage.look()
    stage.send("operator", m.LeaveGroupRequest(stage.group, members=[]), 5)
    stage.hear("operator")
    stage.send("operator", m.LeaveGroupRequest(f"{stage.group}-none", members=gone), 5)
    stage.hear("operator")


def static_names(stage: Stage) -> None:
    """Static members with ids, names and wishes that are not theirs."""
    stage.join("a", instance="ia")
    stage.hear("a")
    stage.sync("a", "a", group_instance_id="ia")
    stage.hear("a")
    stage.join("a", instance="ib")
    stage.hear("a")
    stage.join("x", instance="ia", member_id="made-up")
    stage.hear("x")
    stage.join("a")
    stage.hear("a")
    stage.sync("a", "a")
    stage.hear("a")
    stage.heartbeat("a", instance="ib")
    stage.leave("a", instance="ib")
    stage.leave("a", member_id="made-up", instance="ia")
    stage.look()
    stage.join("a2", instance="ia", protocols=[("sticky", SUBSCRIPTION)])
    stage.hear("a2")
    stage.join("a3", instance="ia", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.hear("a3")
    stage.look()
    stage.leave("a3", member_id="", instance="ia")
    stage.look()


def out_of_turn(stage: Stage) -> None:
    """Syncs, joins and commits in states where they are not expected."""
    stage.enter("a")
    stage.hear("a")
    stage.commit("a")
    stage.heartbeat("a")
    stage.join("a")  # the leader joins again before it has assigned
    stage.hear("a")
    stage.sync("a", "a", generation=stage.generation - 1)
    stage.hear("a")
    stage.sync("a", "a")
    stage.hear("a")
    stage.enter("b")
    stage.until("PreparingRebalance")
    stage.sync("a", "a", protocol_name="range")
    stage.hear("a")
    stage.commit("a")
    stage.ids["b2"] = stage.ids["b"]  # on another connection: its own waits
    stage.commit("b2", generation=0)
    stage.heartbeat("b2", 0)
    stage.leave("b2")  # Kafka leaves its JoinGroup without an answer
    stage.join("a")
    stage.hear("a")
    stage.delete()
    stage.leave("a")
    stage.sync("a", "a")
    stage.hear("a")
    stage.join("a")
    stage.hear("a")
    stage.look()


def a_group_that_comes_again(stage: Stage) -> None:
    """An empty group takes another protocol type; a deleted one begins at the beginning."""
    stable(stage, "a")
    stage.commit("a")
    stage.leave("a")
    stage.look()
    stage.enter("w", protocol_type="connect", protocols=[("v2", b"w")])
    stage.hear("w")
    stage.sync("w", "w", protocol_type="connect")
    stage.hear("w")
    stage.look()
    stage.commit("w")
    stage.leave("w")
    stage.delete()
    stage.look()
    stage.join("w", protocol_type="connect", protocols=[("v2", b"w")])
    stage.hear("w")
    stage.ids.pop("w")
    stage.enter("n")
    stage.hear("n")
    stage.look()


def times_that_make_no_sense(stage: Stage) -> None:
    for rebalance_ms, session_ms in ((-1, 30_000), (0, 30_000), (60_000, 0), (60_000, -1), (60_000, 2**31 - 1)):
        wished = [m.JoinGroupRequestProtocol("range", SUBSCRIPTION)]
        request = m.JoinGroupRequest(stage.group, session_ms, rebalance_ms, "", None, "consumer", wished)
        stage.send("x", request, 9)
        stage.hear("x")
        stage.ids.pop("x", None)
    stable(stage, "a")


STORIES = [
    coming_and_going,
    guards,
    nothing_changed,
    choosing_a_protocol,
    static_members,
    by_hand,
    falling_silent,
    named_twice,
    handed_out,
    listed,
    old_versions,
    without_a_name,
    bad_commits,
    a_topic_that_goes,
    left_twice,
    static_names,
    out_of_turn,
    a_group_that_comes_again,
    times_that_make_no_sense,
]


@pytest.fixture
def stages(kafka_broker: KafkaBroker, shared_muster: BrokerProcess) -> Iterator[tuple[Stage, Stage]]:
    """The same scene on Kafka and on muster."""
    both = Stage(kafka_broker.bootstrap), Stage(shared_muster.bootstrap)
    yield both
    for stage in both:
        stage.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(stages: tuple[Stage, Stage], story: Callable[[Stage], None]) -> None:
    kafka, muster = stages
    story(kafka)
    story(muster)
    for ours, theirs in zip(muster.told, kafka.told, strict=True):
        assert ours == theirs
    assert any("NONE" in str(answer) for _, answer in kafka.told)
