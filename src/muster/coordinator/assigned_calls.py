"""Joining, heartbeats and leaving for members that get their partitions in the answer to JoinGroup (A3 to A5).

The draft protocol for a coordinator that assigns has no SyncGroup: the answer to JoinGroup carries the partitions. Here
such a member belongs to the classic group like any other (server_assignment.py): its join is a JoinGroup and, once that
is answered, the SyncGroup that returns its assignment. So both kinds of members can be in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from muster.coordinator.runtime import Client, CoordinatorRuntime
from muster.errors import ErrorCode
from muster.model import CONSUMER_PROTOCOL_TYPE, UNKNOWN_GENERATION_ID
from muster.protocol.messages import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.subscription import Subscription, decode_assignment, encode_subscription

_JOIN_VERSION = 3
"""The last version in which a new member joins with a single request."""
_SYNC_VERSION = 3
_LEAVE_VERSION = 2

_JOIN_AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
"""Answers to a SyncGroup that mean that the group has started another rebalance."""


class AssignedJoin(NamedTuple):
    """A request to join from such a member; `member_id` is empty for a new one."""

    group_id: str
    member_id: str
    session_timeout_ms: int
    topics: Sequence[str]
    strategy: str


class AssignedJoined(NamedTuple):
    """The answer: an error, or a generation and the member's partition numbers by topic."""

    error: ErrorCode
    generation_id: int
    member_id: str
    partitions: dict[str, list[int]]


class AssignedMembers:
    """Passes the requests of such members to the coordinator."""

    def __init__(self, runtime: CoordinatorRuntime) -> None:
        self._runtime = runtime

    def join(self, ask: AssignedJoin, client: Client, reply: Callable[[AssignedJoined], None]) -> None:
        """Join or rejoin. `reply` is called once, when the assignment is durable.

        Answers with INCONSISTENT_GROUP_PROTOCOL for a strategy that the coordinator or the group's other members do not
        support, or for a group to which the coordinator does not assign.
        """
        if not self._runtime.assigns_to(ask.group_id):
            reply(_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ask.member_id))
            return
        metadata = encode_subscription(Subscription(list(ask.topics)), version=0)
        request = JoinGroupRequest(
            group_id=ask.group_id,
            session_timeout_ms=ask.session_timeout_ms,
            rebalance_timeout_ms=ask.session_timeout_ms,
            member_id=ask.member_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(ask.strategy, metadata)],
        )
        self._runtime.submit(request, _as_version(client, _JOIN_VERSION), partial(self._joined, ask, client, reply))

    def _joined(self, ask: AssignedJoin, client: Client, reply: Callable[[AssignedJoined], None], answer: Any) -> None:
        if answer.error_code != ErrorCode.NONE:
            reply(_failed(ErrorCode(answer.error_code), answer.member_id))
            return
        request = SyncGroupRequest(ask.group_id, answer.generation_id, answer.member_id)
        shared = partial(self._shared, ask._replace(member_id=answer.member_id), client, reply, answer.generation_id)
        self._runtime.submit(request, _as_version(client, _SYNC_VERSION), shared)

    def _shared(
        self,
        ask: AssignedJoin,
        client: Client,
        reply: Callable[[AssignedJoined], None],
        generation_id: int,
        answer: Any,
    ) -> None:
        error = ErrorCode(answer.error_code)
        if error in _JOIN_AGAIN:
            self.join(ask, client, reply)
        elif error is not ErrorCode.NONE:
            reply(_failed(error, ask.member_id))
        else:
            partitions: dict[str, list[int]] = {}
            for topic, number in decode_assignment(answer.assignment).partitions:
                partitions.setdefault(topic, []).append(number)
            reply(AssignedJoined(error, generation_id, ask.member_id, partitions))

    def heartbeat(self, group_id: str, generation_id: int, member_id: str) -> ErrorCode:
        """A heartbeat (A3). During a rebalance the member's generation has ended (A4)."""
        error = self._runtime.heartbeat(group_id, generation_id, member_id, None)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.REBALANCE_IN_PROGRESS else error

    def leave(self, group_id: str, member_id: str, client: Client, reply: Callable[[ErrorCode], None]) -> None:
        """Leave the group; `reply` is called once, with the error or NONE."""

        def left(answer: Any) -> None:
            reply(ErrorCode(answer.error_code))

        self._runtime.submit(LeaveGroupRequest(group_id, member_id), _as_version(client, _LEAVE_VERSION), left)


def _failed(error: ErrorCode, member_id: str) -> AssignedJoined:
    return AssignedJoined(error, UNKNOWN_GENERATION_ID, member_id, {})


def _as_version(client: Client, version: int) -> Client:
    return Client(client.client_id, client.client_host, version)
