"""Whole stories of groups, played on muster and on Apache Kafka 4.2: both give the same answers, step by step.

Every member has its own connection, because a JoinGroup or SyncGroup that waits keeps its connection busy. Member ids
differ between brokers and runs, so answers name members by their names in the story.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ErrorCode
from muster.protocol import admin_messages as a
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess
from tests.support.peers import NEVER_KILLED, KafkaBroker
from tests.support.same_answers import ready_group
from tests.support.stage import SUBSCRIPTION, Stage, code

pytestmark = pytest.mark.slow

OTHER_SUBSCRIPTION = b"\0\0\0\0\0\1\0\1u\xff\xff\xff\xff"


def stable(stage: Stage, *names: str, **wishes: Any) -> None:
    """Let the members join and sync; the first one leads."""
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
    stage.sync("a", "b", "c")  # the leader assigns nothing to itself
    stage.hear("a", "c")
    stage.syncs("b")
    stage.look()
    stage.leave("c", version=0)
    stage.join("b")
    stage.join("a")
    stage.hear("a", "b")
    # No two members may remain when a leader leaves: Kafka's new leader depends on the order of its hash map.
    stage.leave("a", version=2)
    stage.joins("b")
    stage.look()
    stage.leave("b")
    stage.look()
    stage.heartbeat("b")
    stage.commit("nobody", generation=-1)
    stage.delete()
    stage.look()
    stage.delete()


def guards(stage: Stage) -> None:
    stage.joins("x", session_timeout_ms=1)
    stage.joins("x", member_id="made-up")
    stage.joins("x", protocols=())
    stage.joins("x", protocol_type="")
    stage.heartbeat("x", 1)
    stage.commit("x", generation=4, version=9)
    stable(stage, "a", "b")
    for generation in (-1, 0, 99):
        stage.heartbeat("a", generation)
        stage.syncs("a", generation=generation)
        stage.commit("a", generation)
    stage.commit("stranger")
    stage.commit("stranger", generation=-1)
    stage.commit("a", group_instance_id="nobody's")
    stage.heartbeat("a", instance="nobody's")
    stage.syncs("a", protocol_type=None)
    stage.syncs("a", protocol_type="connect")
    stage.syncs("a", protocol_name="sticky")
    stage.joins("x", protocols=[("sticky", SUBSCRIPTION)], member_id="")
    stage.joins("x", protocol_type="connect", member_id="")
    stage.leave("x", member_id="made-up")
    stage.leave("x", member_id="made-up", version=1)
    stage.leave("x", member_id="", instance="nobody's")
    stage.delete()
    stage.look()


def nothing_changed(stage: Stage) -> None:
    """C5: a member that rejoins without need is answered at once; the leader, or changed metadata, starts a
    rebalance."""
    stable(stage, "a", "b")
    stage.joins("b")
    stage.join("b", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.until("PreparingRebalance")
    stage.heartbeat("a")
    stage.join("a")
    stage.hear("a", "b")
    stage.joins("b", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.joins("a")
    stage.join("a", protocols=[("range", OTHER_SUBSCRIPTION)])
    stage.until("PreparingRebalance")
    stage.syncs("b")
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
    stage.joins("a", instance="ia")
    stage.join("b", instance="ib")
    stage.until("PreparingRebalance")
    stage.join("a", instance="ia")
    stage.hear("a", "b")
    stage.sync("b", group_instance_id="ib")
    stage.sync("a", "a", "b", group_instance_id="ia")
    stage.hear("a", "b")
    # b restarts and gets its assignment; its former member id is fenced.
    stage.joins("b2", instance="ib")
    stage.syncs("b2", group_instance_id="ib")
    stage.heartbeat("b", instance="ib")
    stage.heartbeat("b")
    stage.commit("b", group_instance_id="ib")
    stage.joins("b", instance="ib")
    stage.leave("b", instance="ib")
    # The leader restarts: it gets the members, but need not assign. Before version 9 it does not get them.
    stage.joins("a2", instance="ia")
    stage.joins("a3", instance="ia", version=8)
    stage.look()
    # A member restarts while the group is rebalancing.
    stage.enter("c")
    stage.until("PreparingRebalance")
    stage.join("b3", instance="ib")
    stage.join("a3", instance="ia")
    stage.hear("a3", "b3", "c")
    stage.join("b4", instance="ib")
    stage.until("PreparingRebalance")
    stage.syncs("c")
    stage.join("c")
    stage.join("a3", instance="ia")
    stage.hear("a3", "b4", "c")
    # An operator removes one by its instance id.
    stage.leave("operator", member_id="", instance="ib")
    stage.heartbeat("b4", instance="ib")
    stage.look()


def by_hand(stage: Stage) -> None:
    """J7: a consumer that assigns itself commits without being a member, which creates a group."""
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
    """H1, H5: a member that sends no heartbeat for its session timeout is removed, and the rest rebalances."""
    stage.enter("a")
    stage.hear("a")
    stage.enter("b", session_timeout_ms=10_000)
    stage.until("PreparingRebalance")
    stage.join("a")
    stage.hear("a", "b")
    stage.sync("b")
    stage.sync("a", "a", "b")
    stage.hear("a", "b")
    heartbeat = m.HeartbeatRequest(stage.group, stage.generation, stage.ids["a"])
    while stage.connection("a").ask(heartbeat, 4).error_code == ErrorCode.NONE:
        time.sleep(0.2)
    stage.heartbeat("a")
    stage.heartbeat("b")
    stage.commit("b")
    stage.joins("a")
    stage.look()


def named_twice(stage: Stage) -> None:
    """A protocol that is named twice is not chosen; an assignment for a non-member is ignored."""
    stage.enter("a", protocols=[("range", SUBSCRIPTION), ("range", OTHER_SUBSCRIPTION), ("sticky", SUBSCRIPTION)])
    stage.hear("a")
    stage.ids["ghost"] = "ghost-1"
    stage.syncs("a", "a", "ghost")
    stage.look()
    stage.syncs("a", "a")
    stage.look()


def handed_out(stage: Stage) -> None:
    """An id that was given out, and is returned, or used by a heartbeat, a commit, or a join of another kind."""
    stable(stage, "a")
    stage.joins("p")
    stage.heartbeat("p")
    stage.commit("p")
    stage.syncs("p")
    stage.joins("p", instance="ip")
    stage.joins("p", protocols=[("sticky", SUBSCRIPTION)])
    stage.delete()
    stage.leave("p")
    stage.leave("p")
    stage.heartbeat("a")
    stage.joins("a")
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
        stage.reported.append(("operator", (states, types, *code(answer), found)))


def old_versions(stage: Stage) -> None:
    """Commits and fetches of the oldest versions, for a group without members."""
    operator = stage.connection("operator")
    stage.commit("x", generation=-1, version=2)
    for version in (1, 2, 5, 7):
        request = m.OffsetFetchRequest(stage.group, [m.OffsetFetchRequestTopic(stage.topic, [0, 1, 9])])
        answer = operator.ask(request, version)
        reported = [(x.partition_index, x.committed_offset, *code(x)) for t in answer.topics for x in t.partitions]
        stage.reported.append(("operator", (version, answer.error_code, reported)))
    for version in (0, 1, 2):
        results = operator.ask(m.DeleteGroupsRequest([f"{stage.group}-{version}"]), version).results
        stage.reported.append(("operator", [code(r) for r in results]))
    for version in range(7):
        groups = operator.ask(m.DescribeGroupsRequest([f"{stage.group}-{version}"]), version).groups
        stage.reported.append(("operator", [(g.group_state, *code(g)) for g in groups]))


def look_everywhere(stage: Stage) -> None:
    """Describe the group, list it and fetch its offsets, in the oldest version and in the newest."""
    operator = stage.connection("operator")
    for version in (0, 6):
        groups = operator.ask(m.DescribeGroupsRequest([stage.group]), version).groups
        stage.reported.append(("operator", [(g.group_state, g.protocol_type, *code(g)) for g in groups]))
    for version in (0, 5):
        listed = operator.ask(m.ListGroupsRequest(), version).groups
        stage.reported.append(
            ("operator", [(g.protocol_type, g.group_state) for g in listed if g.group_id == stage.group])
        )
    for version in (1, 7):
        asked = m.OffsetFetchRequest(stage.group, [m.OffsetFetchRequestTopic(stage.topic, [0, 9])])
        found = operator.ask(asked, version)
        reported = [(x.partition_index, x.committed_offset, *code(x)) for t in found.topics for x in t.partitions]
        stage.reported.append(("operator", (*code(found), reported)))
    stage.look()


def delete_it(stage: Stage) -> None:
    """Delete an offset of the group, and the group, which may not exist, along with one that never exists."""
    operator = stage.connection("operator")
    forgotten = a.OffsetDeleteRequestTopic(stage.topic, [a.OffsetDeleteRequestPartition(1)])
    stage.reported.append(("operator", code(operator.ask(a.OffsetDeleteRequest(stage.group, [forgotten]), 0))))
    for version in (0, 2, 2):
        results = operator.ask(m.DeleteGroupsRequest([stage.group, f"{stage.topic}-none"]), version).results
        stage.reported.append(("operator", sorted((bool(r.group_id), *code(r)) for r in results)))


def without_a_name(stage: Stage) -> None:
    """Requests with an empty group id. Not on shared brokers: they have only one such group for all tests."""
    stage.group = ""
    ready_group(stage.connection("operator").ask, stage.group, stage.topic)
    look_everywhere(stage)
    delete_it(stage)
    stage.joins("a")
    stage.joins("a", member_id="made-up")
    stage.ids["a"] = "made-up"
    stage.syncs("a", generation=1, protocol_name="range")
    stage.heartbeat("a", 1)
    stage.leave("a")
    stage.leave("a", version=1)
    stage.commit("a", 1)
    stage.commit("a", 1, version=8)
    stage.commit("x", generation=-1, member_id="")
    look_everywhere(stage)
    stage.commit("a", 1)
    stage.commit("x", generation=0, member_id="")
    delete_it(stage)
    look_everywhere(stage)
    for version in (2, 5, 9):
        stage.commit("x", generation=-1, version=version, member_id="")
        look_everywhere(stage)
        stage.delete()


def bad_commits(stage: Stage) -> None:
    """Negative offsets, metadata that is too long, partitions and topics that do not exist."""
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
    """What was committed for a topic is removed with it, and does not return with another topic of its name."""
    operator = stage.connection("operator")
    stage.commit("a", generation=-1)
    stage.look()
    operator.ask(m.DeleteTopicsRequest([m.DeleteTopicState(stage.topic)], [], 300_000), 6)
    asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(stage.group, topics=None)])
    while operator.ask(asked, 9).groups[0].topics:
        pass
    stage.look()
    stage.commit("a", generation=-1)
    operator.ask(m.CreateTopicsRequest([m.CreatableTopic(stage.topic, 1, 1)], 300_000), 7)
    ready_group(operator.ask, stage.group, stage.topic)
    stage.look()
    stage.delete()


def left_twice(stage: Stage) -> None:
    """Several members leave in one request, some of them twice, some of them unknown."""
    stable(stage, "a", "b")
    gone = [m.MemberIdentity(stage.ids["b"]), m.MemberIdentity(stage.ids["b"]), m.MemberIdentity("x", "y")]
    stage.send("operator", m.LeaveGroupRequest(stage.group, members=gone), 5)
    stage.hear("operator")
    stage.heartbeat("a")
    stage.heartbeat("b")
    stage.commit("b")
    stage.joins("b")
    stage.look()
    stage.send("operator", m.LeaveGroupRequest(stage.group, members=[]), 5)
    stage.hear("operator")
    stage.send("operator", m.LeaveGroupRequest(f"{stage.group}-none", members=gone), 5)
    stage.hear("operator")


def static_names(stage: Stage) -> None:
    """Static members with ids, names and subscriptions that are not theirs."""
    stage.joins("a", instance="ia")
    stage.syncs("a", "a", group_instance_id="ia")
    stage.joins("a", instance="ib")
    stage.joins("x", instance="ia", member_id="made-up")
    stage.joins("a")
    stage.syncs("a", "a")
    stage.heartbeat("a", instance="ib")
    stage.leave("a", instance="ib")
    stage.leave("a", member_id="made-up", instance="ia")
    stage.look()
    stage.joins("a2", instance="ia", protocols=[("sticky", SUBSCRIPTION)])
    stage.joins("a3", instance="ia", protocols=[("range", OTHER_SUBSCRIPTION)])
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
    stage.syncs("a", "a", generation=stage.generation - 1)
    stage.syncs("a", "a")
    stage.enter("b")
    stage.until("PreparingRebalance")
    stage.syncs("a", "a", protocol_name="range")
    stage.commit("a")
    stage.ids["b2"] = stage.ids["b"]  # on another connection: its own is waiting
    stage.commit("b2", generation=0)
    stage.heartbeat("b2", 0)
    stage.leave("b2")  # Kafka leaves its JoinGroup unanswered
    stage.joins("a")
    stage.delete()
    stage.leave("a")
    stage.syncs("a", "a")
    stage.joins("a")
    stage.look()


def a_group_that_comes_again(stage: Stage) -> None:
    """An empty group takes another protocol type; a deleted one starts from the beginning."""
    stable(stage, "a")
    stage.commit("a")
    stage.leave("a")
    stage.look()
    stage.enter("w", protocol_type="connect", protocols=[("v2", b"w")])
    stage.hear("w")
    stage.syncs("w", "w", protocol_type="connect")
    stage.look()
    stage.commit("w")
    stage.leave("w")
    stage.delete()
    stage.look()
    stage.joins("w", protocol_type="connect", protocols=[("v2", b"w")])
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
    """The same story on Kafka and on muster."""
    both = Stage(kafka_broker.bootstrap), Stage(shared_muster.bootstrap)
    yield both
    for stage in both:
        stage.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(stages: tuple[Stage, Stage], story: Callable[[Stage], None]) -> None:
    both_tell_the_same(*stages, story)


def test_the_story_of_the_group_without_a_name(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", NEVER_KILLED) as kafka, BrokerProcess(tmp_path / "muster") as muster:
        stages = Stage(kafka.bootstrap), Stage(muster.bootstrap)
        both_tell_the_same(*stages, without_a_name)
        for stage in stages:
            stage.close()


def both_tell_the_same(kafka: Stage, muster: Stage, story: Callable[[Stage], None]) -> None:
    story(kafka)
    story(muster)
    for ours, theirs in zip(muster.reported, kafka.reported, strict=True):
        assert ours == theirs
    assert any("NONE" in str(answer) for _, answer in kafka.reported)
