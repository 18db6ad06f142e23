"""FindCoordinator (10) and the requests that go to the group coordinator.

FindCoordinator v1: kinds of keys. v4: several keys at once. v6: share groups.
Requests of groups are passed to the coordinator's runtime, which answers them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator
from functools import lru_cache
from struct import Struct
from typing import Any, TypeVar

from muster.broker.groups.service import Groups
from muster.broker.handlers.configs import MALFORMED
from muster.broker.net.calls import Call, Fast, Sliced, at_once
from muster.broker.transactions.service import TransactionService
from muster.coordinator.parts import Gather
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from muster.model import Node
from muster.protocol import codec
from muster.protocol.api import CoordinatorType
from muster.protocol.messages import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
)
from muster.protocol.primitives import Request

log = logging.getLogger("muster.broker")

_AT_ONCE = 200
"""Requests about more groups or transactional ids than this are handled in parts."""


def find_coordinator(
    groups: Groups, transactions: TransactionService | None, request: FindCoordinatorRequest, call: Call
) -> FindCoordinatorResponse | Sliced:
    """The coordinator of groups or of transactions; share groups have none here."""
    if call.version >= 4:
        steps = _coordinators(groups, transactions, request, call.version)
        return steps if len(request.coordinator_keys) > _AT_ONCE else at_once(steps)
    found = _coordinator(groups, transactions, request.key, request.key_type, call.version)
    message = _MESSAGES[ErrorCode(found.error_code)]
    return FindCoordinatorResponse(0, found.error_code, message, found.node_id, found.host, found.port)


def _coordinators(
    groups: Groups, transactions: TransactionService | None, request: FindCoordinatorRequest, version: int
) -> Generator[None, None, FindCoordinatorResponse]:
    found = []
    for key in request.coordinator_keys:
        found.append(_coordinator(groups, transactions, key, request.key_type, version))
        yield
    return FindCoordinatorResponse(coordinators=found)


_MESSAGES = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: MALFORMED,
}
"""Up to v3 every answer has a message, even without an error."""

_SHARE_KEY = re.compile(r"[^:]+:[A-Za-z0-9_-]{22}:\d+\Z")


def _coordinator(
    groups: Groups, transactions: TransactionService | None, key: str, key_type: int, version: int
) -> Coordinator:
    if key_type in (CoordinatorType.GROUP, CoordinatorType.TRANSACTION):
        coordinates = groups if key_type == CoordinatorType.GROUP else transactions
        node: Node | None = None
        if coordinates is not None and coordinates.ensure():
            node = coordinates.coordinator(key)
        if node is None:
            return Coordinator(key, -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        return Coordinator(key, node.node_id, node.host, node.port, 0, "")
    if key_type == CoordinatorType.SHARE and version >= 6 and _SHARE_KEY.match(key):
        return Coordinator(key, -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    message = "" if key_type == CoordinatorType.SHARE else MALFORMED
    return Coordinator(key, -1, "", -1, ErrorCode.INVALID_REQUEST, message)


GROUP_OPERATIONS = 0b110101001000
"""Read, delete, describe, describe and alter configs: all operations on a group."""


def describe_groups(groups: Groups, request: DescribeGroupsRequest, call: Call) -> Sliced | None:
    """DescribeGroups (15): the coordinator's answer; with the authorized operations of each group (v3) on request."""

    def reply(found: list[DescribedGroup]) -> None:
        for group in found:
            if group.error_code == 0 and request.include_authorized_operations:
                group.authorized_operations = GROUP_OPERATIONS
        call.reply(DescribeGroupsResponse(groups=found))

    def part(group_ids: list[str], take: Callable[[list[DescribedGroup]], None]) -> None:
        submit(groups, DescribeGroupsRequest(group_ids), call, lambda response: take(response.groups))

    return in_parts(request.groups, part, reply)


def delete_groups(groups: Groups, request: DeleteGroupsRequest, call: Call) -> Sliced | None:
    """DeleteGroups (42): a group that is named twice is answered once, as in Kafka."""

    def reply(found: list[DeletableGroupResult]) -> None:
        call.reply(DeleteGroupsResponse(results=found))

    def part(group_ids: list[str], take: Callable[[list[DeletableGroupResult]], None]) -> None:
        submit(groups, DeleteGroupsRequest(group_ids), call, lambda response: take(response.results))

    return in_parts(list(dict.fromkeys(request.groups_names)), part, reply)


T = TypeVar("T")


def in_parts(
    ids: list[str],
    submit: Callable[[list[str], Callable[[list[T]], None]], None],
    reply: Callable[[list[T]], None],
) -> Sliced | None:
    """Handle a request about many groups, or transactional ids, a few at a time; call `reply` with all answers, in
    order, after the last."""
    parts = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)] or [[]]
    gather = Gather(len(parts), lambda found: reply([answer for answers in found for answer in answers]))

    def steps() -> Sliced:
        for number, some in enumerate(parts):
            submit(some, gather.part(number))
            yield
        return None

    if len(parts) > 1:
        return steps()
    submit(parts[0], gather.part(0))
    return None


def group_request(groups: Groups, request: Request[Any], call: Call) -> None:
    """Pass a request to the coordinator, which answers it now or when its group is ready."""
    submit(groups, request, call, call.reply)


def submit(groups: Groups, request: Request[Any], call: Call, reply: Callable[[Any], None]) -> None:
    """Pass a request to the coordinator; `reply` is called once with the answer, now or later."""
    if not groups.serving or (groups.may_serve is not None and not groups.may_serve()):
        groups.before_request()
    groups.runtime.submit(request, _client(call.client_id, call.connection.client_host, call.version), reply)


_client = lru_cache(maxsize=1024)(Client)
"""Cached: the same few clients ask again and again."""


_ANSWER_V0 = Struct(">iih")
_ANSWER_V1 = Struct(">iiih")
_ANSWER_V4 = Struct(">iibihb")


def fast_heartbeat(groups: Groups) -> Fast:
    """The fast path for a heartbeat: decode, one call of the coordinator's rule, a literal answer."""
    heartbeat, may_serve = groups.runtime.heartbeat, groups.may_serve
    decode = codec.decode

    def answer(frame: bytes, position: int, version: int, correlation_id: int) -> bytes | None:
        if not groups.serving or (may_serve is not None and not may_serve()):
            return None
        request = decode(HeartbeatRequest, version, frame, position)
        error = heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
        if version >= 4:
            return _ANSWER_V4.pack(12, correlation_id, 0, 0, error, 0)
        if version:
            return _ANSWER_V1.pack(10, correlation_id, 0, error)
        return _ANSWER_V0.pack(6, correlation_id, error)

    return answer
