"""The requests of Kafka's draft protocol for groups whose coordinator assigns (A2 to A6), on a separate listener.

    ConsumerMetadata (10), JoinGroup (11) with the assignment in its answer, Heartbeat (12), LeaveGroup (13)

OffsetCommit and OffsetFetch are those of the other listener. There is no ApiVersions: it came with Kafka 0.10. Members
on both listeners share one group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from muster.broker.cluster_view import ClusterView
from muster.broker.groups.service import Groups
from muster.broker.net.calls import Api, Call
from muster.coordinator.assigned_calls import AssignedJoin, AssignedJoined, AssignedMembers
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from muster.protocol.api import ApiKey
from muster.protocol.draft_api import DRAFT_REQUESTS, DRAFT_VERSIONS
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)

_MOST_ELEMENTS = 20_000
"""Topics in one JoinGroup."""


class DraftNeeds(NamedTuple):
    """The parts of the broker that these handlers use."""

    cluster: ClusterView
    groups: Groups
    members: AssignedMembers


def table(cluster: ClusterView, groups: Groups, classic: dict[int, Api]) -> dict[int, Api]:
    """The API for each request of the drafts; `classic` has those that the other listener also serves."""
    here = DraftNeeds(cluster, groups, AssignedMembers(groups.runtime))
    handlers: dict[int, Callable[..., Any]] = {
        ApiKey.FIND_COORDINATOR: find_coordinator,
        ApiKey.JOIN_GROUP: join,
        ApiKey.HEARTBEAT: heartbeat,
        ApiKey.LEAVE_GROUP: leave,
    }
    apis = {int(key): classic[key] for key in DRAFT_REQUESTS if key not in handlers}
    for key, handle in handlers.items():
        first, last = DRAFT_VERSIONS[key]
        apis[int(key)] = Api(DRAFT_REQUESTS[key], first, last, partial(handle, here), most_elements=_MOST_ELEMENTS)
    return apis


def find_coordinator(here: DraftNeeds, request: FindCoordinatorRequest, call: Call) -> FindCoordinatorResponse:
    """ConsumerMetadata: the draft listener of the group's coordinator (A2)."""
    node = here.groups.coordinator(request.key) if here.groups.ensure() else None
    found = here.cluster.draft_node_of(node.node_id) if node is not None else None
    if found is None:
        return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1, host="", port=-1)
    return FindCoordinatorResponse(node_id=found.node_id, host=found.host, port=found.port)


def join(here: DraftNeeds, request: DraftJoinGroupRequest, call: Call) -> None:
    """JoinGroup: answered when all members have joined, with the member's partitions (A5)."""

    def reply(found: AssignedJoined) -> None:
        topics = [DraftAssignedTopic(topic, numbers) for topic, numbers in found.partitions.items()]
        call.reply(DraftJoinGroupResponse(found.error, found.generation_id, found.member_id, topics))

    ask = AssignedJoin(
        request.group_id,
        request.consumer_id,
        request.session_timeout,
        request.topics,
        request.partition_assignment_strategy,
    )
    here.groups.before_request()
    here.members.join(ask, _client(call), reply)


def heartbeat(here: DraftNeeds, request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    """Heartbeat: ILLEGAL_GENERATION says that a rebalance has begun (A3, A4)."""
    here.groups.before_request()
    error = here.members.heartbeat(request.group_id, request.generation_id, request.member_id)
    return HeartbeatResponse(error_code=error)


def leave(here: DraftNeeds, request: LeaveGroupRequest, call: Call) -> None:
    """LeaveGroup."""
    here.groups.before_request()
    here.members.leave(
        request.group_id,
        request.member_id,
        _client(call),
        lambda error: call.reply(LeaveGroupResponse(error_code=error)),
    )


def _client(call: Call) -> Client:
    return Client(call.client_id, call.connection.client_host, call.version)
