"""Error responses: to a request whose shard is not here, and instead of an answer whose records were lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.coordinator.groups.offsets import Granted
from muster.errors import ErrorCode
from muster.protocol.admin_messages import OffsetDeleteRequest, OffsetDeleteResponse
from muster.protocol.messages import (
    DeletableGroupResult,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.primitives import Struct
from muster.protocol.transaction_messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

GroupRequest = (
    OffsetCommitRequest
    | HeartbeatRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | LeaveGroupRequest
    | OffsetDeleteRequest
    | TxnOffsetCommitRequest
)


def not_joined(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that failed."""
    return JoinGroupResponse(0, error, -1, None, "", "", False, member_id)  # positional arguments take half the time


def error_response(request: GroupRequest | OffsetFetchRequestGroup, error: ErrorCode) -> Struct:
    """The answer to a request whose shard is not here."""
    match request:
        case OffsetCommitRequest():
            return OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        topic.name,
                        topic.topic_id,
                        [OffsetCommitResponsePartition(p.partition_index, error) for p in topic.partitions],
                    )
                    for topic in request.topics
                ]
            )
        case TxnOffsetCommitRequest():
            return TxnOffsetCommitResponse(
                topics=[
                    TxnOffsetCommitResponseTopic(
                        topic.name,
                        [TxnOffsetCommitResponsePartition(p.partition_index, error) for p in topic.partitions],
                    )
                    for topic in request.topics
                ]
            )
        case JoinGroupRequest():
            return not_joined(error, request.member_id)
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=error)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error_code=error)
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error)
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=error)
        case OffsetFetchRequestGroup():
            # Version 1 carries errors only per partition; later versions use the one for the group.
            topics = [
                OffsetFetchResponseTopics(
                    topic.name,
                    topic.topic_id,
                    [OffsetFetchResponsePartitions(p, -1, error_code=error) for p in topic.partition_indexes],
                )
                for topic in request.topics or []
            ]
            return OffsetFetchResponseGroup(request.group_id, topics, error)


def _not_granted(granted: Granted, error: ErrorCode) -> OffsetCommitResponse:
    partitions = [OffsetCommitResponsePartition(partition, error) for partition in granted.partitions]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(granted.topic, granted.topic_id, partitions)])


_ERRORS_FOR_LOST: dict[type[Any], Callable[[Any, ErrorCode], Struct]] = {
    JoinGroupResponse: lambda answer, error: not_joined(error, answer.member_id),
    SyncGroupResponse: lambda _, error: SyncGroupResponse(error_code=error),
    LeaveGroupResponse: lambda _, error: LeaveGroupResponse(error_code=error),
    ListGroupsResponse: lambda _, error: ListGroupsResponse(error_code=error),
    DescribedGroup: lambda answer, error: DescribedGroup(group_id=answer.group_id, error_code=error),
    OffsetDeleteResponse: lambda _, error: OffsetDeleteResponse(error),
    DeletableGroupResult: lambda answer, error: DeletableGroupResult(answer.group_id, error),
    Granted: _not_granted,
}


def error_for_lost(answer: Any, error: ErrorCode) -> Any:
    """The answer to send instead of one whose records were lost. May modify `answer`."""
    if isinstance(answer, ErrorCode):
        return error
    if isinstance(answer, OffsetCommitResponse | OffsetFetchResponseGroup | TxnOffsetCommitResponse):
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.error_code = partition.error_code or error
        if isinstance(answer, OffsetFetchResponseGroup):
            answer.error_code = error
        return answer
    return _ERRORS_FOR_LOST[type(answer)](answer, error)
