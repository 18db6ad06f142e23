"""The requests of a classic member, and what their errors mean to the user."""

from __future__ import annotations

from muster.client.config import ConsumerConfig
from muster.client.core.checks import MAX_REASON_LENGTH
from muster.client.core.group.member_state import MemberGeneration
from muster.errors import ErrorCode
from muster.model import CONSUMER_PROTOCOL_TYPE
from muster.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

JOIN_GROUP_TIMEOUT_LAPSE_MS = 5_000
"""The time beyond the rebalance timeout for which a member waits for the answer to its JoinGroup."""

_FIRST_LEAVE_WITH_MEMBERS = 3


def join_timeout_ms(config: ConsumerConfig) -> int:
    """How long the broker may hold a JoinGroup: until all members have joined, or the rebalance timeout has passed."""
    return max(config.request_timeout_ms, config.max_poll_interval_ms + JOIN_GROUP_TIMEOUT_LAPSE_MS)


def join(
    group_id: str,
    generation: MemberGeneration,
    config: ConsumerConfig,
    protocols: list[JoinGroupRequestProtocol],
    reason: str,
) -> JoinGroupRequest:
    """JoinGroup; the rebalance timeout is `max.poll.interval.ms` (H2)."""
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:MAX_REASON_LENGTH],
    )


def sync(
    group_id: str, generation: MemberGeneration, config: ConsumerConfig, assignments: list[SyncGroupRequestAssignment]
) -> SyncGroupRequest:
    """SyncGroup; only the leader has assignments to send (J4)."""
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=generation.protocol_name,
        assignments=assignments,
    )


def heartbeat(group_id: str, generation: MemberGeneration, config: ConsumerConfig) -> HeartbeatRequest:
    """Heartbeat."""
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
    )


def leave(group_id: str, member_id: str, reason: str, version: int) -> LeaveGroupRequest:
    """LeaveGroup; before v3 it names one member and gives no reason (KIP-800)."""
    if version < _FIRST_LEAVE_WITH_MEMBERS:
        return LeaveGroupRequest(group_id=group_id, member_id=member_id)
    member = MemberIdentity(member_id=member_id, reason=reason[:MAX_REASON_LENGTH])
    return LeaveGroupRequest(group_id=group_id, members=[member])


def other_type(protocol_type: str | None) -> str:
    """The message when the group is not a consumer group."""
    return f"the group is of type {protocol_type!r}, this member of type {CONSUMER_PROTOCOL_TYPE!r}"


def explain(code: ErrorCode, group_id: str, config: ConsumerConfig) -> str:
    """What the user can do about an error of JoinGroup or SyncGroup."""
    match code:
        case ErrorCode.GROUP_MAX_SIZE_REACHED:
            return f"group {group_id} has as many members as the broker allows (group.max.size)"
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return (
                f"the members of group {group_id} have no assignor in common with this one: give all of them "
                "the same partition_assignment_strategy, or, during the change, one that names both assignors; "
                "a group whose coordinator computes the assignment accepts range and roundrobin"
            )
        case ErrorCode.FENCED_INSTANCE_ID:
            return f"another consumer joined group {group_id} with group_instance_id {config.group_instance_id!r}"
        case ErrorCode.INVALID_SESSION_TIMEOUT:
            return (
                f"the broker does not allow session_timeout_ms {config.session_timeout_ms} "
                "(group.min.session.timeout.ms, group.max.session.timeout.ms)"
            )
        case ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return f"this client is not authorized to join group {group_id}"
    return f"group {group_id}"
