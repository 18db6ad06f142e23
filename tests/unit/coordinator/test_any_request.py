"""Whatever numbers and names a request contains: no rule raises, the records it writes can be read, and its answer can
be encoded.

A rule that raised would leave all groups of its partition without a coordinator for a second.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.coordinator.groups.group import GroupState
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.primitives import Request
from tests.support.group_harness import GroupHarness
from tests.support.message_strategies import message
from tests.support.scale import examples

FIRST_WITH_TOPIC_IDS = 10  # of OffsetCommit (KIP-848)
CHANGING: list[type[Request[Any]]] = [
    m.JoinGroupRequest,
    m.SyncGroupRequest,
    m.LeaveGroupRequest,
    m.OffsetCommitRequest,
]


def in_state(state: GroupState) -> GroupHarness:
    group = GroupHarness().stable_with("a", "b")
    if state is GroupState.PREPARING_REBALANCE:
        group.join("c")
    elif state is GroupState.COMPLETING_REBALANCE:
        group.join("a").join("b")
    elif state is GroupState.EMPTY:
        group.leave("a").leave("b")
    return group


@st.composite
def requests(draw: st.DrawFn, kind: type[Request[Any]]) -> tuple[Any, int, bool]:
    """Any request in any version, and whether it should come from a real member."""
    version = draw(st.integers(kind.MIN_VERSION, kind.MAX_VERSION))
    return draw(message(kind.__name__, version)), version, draw(st.booleans())


def as_member(request: Any, group: GroupHarness, version: int) -> None:
    """Make the request pass the first checks."""
    request.group_id = group.group_id
    if hasattr(request, "member_id"):
        request.member_id = group.ids.get("a", "")
    if hasattr(request, "group_instance_id"):
        request.group_instance_id = None
    for name in ("generation_id", "generation_id_or_member_epoch"):
        if hasattr(request, name):
            setattr(request, name, group.generation)
    for topic in getattr(request, "topics", []):
        topic.name = "t"
        if version >= FIRST_WITH_TOPIC_IDS:
            topic.topic_id = group.topics.topic_id("t")
        for partition in topic.partitions:
            partition.partition_index = 0
    if isinstance(request, m.JoinGroupRequest):
        request.session_timeout_ms = 10_000
        request.protocol_type = "consumer"
        for protocol in request.protocols:
            protocol.name = "range"


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
@given(data=st.data(), state=st.sampled_from([state for state in GroupState if state is not GroupState.DEAD]))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_makes_a_rule_raise(kind: type[Request[Any]], data: st.DataObject, state: GroupState) -> None:
    request, version, member = data.draw(requests(kind))
    group = in_state(state)
    if member:
        as_member(request, group, version)
    origin = group._origin("a", version, "fresh")
    rules: dict[type[Request[Any]], Any] = {
        m.JoinGroupRequest: group.shard.join,
        m.SyncGroupRequest: group.shard.sync,
        m.LeaveGroupRequest: group.shard.leave,
        m.OffsetCommitRequest: group.shard.commit,
    }
    group._take(rules[kind](request, origin, group.now))  # this writes its records, and reads them again
    answer = group.answers.get(origin.ticket)
    if answer is not None:
        codec.encode(answer, version)
    group.tick(10**9)
    assert group.replayed().groups.keys() == group.shard.groups.keys()


@given(request=message("HeartbeatRequest", m.HeartbeatRequest.MAX_VERSION))
def test_no_heartbeat_makes_a_rule_raise(request: m.HeartbeatRequest) -> None:
    group = in_state(GroupState.STABLE)
    who = (request.generation_id, request.member_id, request.group_instance_id)
    group.shard.heartbeat(group.group_id, *who, group.now)


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63), -2, 0])
def test_no_retention_time_is_too_long_for_a_record(retention_ms: int) -> None:
    """Versions 2 to 4 of OffsetCommit: some clients send 2**63 - 1 to mean "forever"."""
    group = in_state(GroupState.STABLE)
    assert group.commit("a", {("t", 0): 5}, version=3, retention_ms=retention_ms) == [0]
    assert group.committed("t", 0) == 5
