"""The draft protocol's requests at a broker whose slots may have moved to another: each reads the clock first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.broker.groups.service import Groups
from muster.broker.handlers import draft
from muster.errors import ErrorCode
from muster.model import Node
from muster.protocol.draft_messages import DraftJoinGroupRequest
from muster.protocol.messages import FindCoordinatorRequest, HeartbeatRequest, LeaveGroupRequest


class Parts:
    """Groups and members that record the requests that they get, in order."""

    def __init__(self, serving: bool = True, may_serve: bool = True, ensures: bool = True) -> None:
        self.asked: list[str] = []
        self.serving = serving
        self.may_serve = lambda: may_serve
        self._ensures = ensures

    def ensure(self) -> bool:
        self.asked.append("ensure")
        return self._ensures

    before_request = Groups.before_request

    def coordinator(self, group_id: str) -> Node:
        return Node(1, "here", 9)

    def join(self, *_: object) -> None:
        self.asked.append("join")

    def heartbeat(self, *_: object) -> ErrorCode:
        self.asked.append("heartbeat")
        return ErrorCode.NONE

    def leave(self, *_: object) -> None:
        self.asked.append("leave")

    def draft_node_of(self, node_id: int) -> Node:
        return Node(node_id, "drafts", 10)

    @property
    def here(self) -> Any:
        return draft.DraftNeeds(self, self, self)  # type: ignore[arg-type]


CALL: Any = SimpleNamespace(
    client_id="c", connection=SimpleNamespace(client_host="/h"), version=0, reply=lambda _: None
)
REQUESTS = {
    "join": (draft.join, DraftJoinGroupRequest("g", 10_000, ["t"], "", "range")),
    "heartbeat": (draft.heartbeat, HeartbeatRequest("g", 1, "m")),
    "leave": (draft.leave, LeaveGroupRequest("g", "m")),
}


@pytest.mark.interpreted  # a compiled method only accepts objects of its own class
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize(
    ("serving", "may_serve", "first"), [(True, True, []), (True, False, ["ensure"]), (False, True, ["ensure"])]
)
def test_slots_are_dropped_in_doubt_before_a_request_is_handled(
    name: str, serving: bool, may_serve: bool, first: list[str]
) -> None:
    parts = Parts(serving, may_serve)
    handle, request = REQUESTS[name]
    handle(parts.here, request, CALL)  # type: ignore[operator]
    assert parts.asked == [*first, name]


def test_a_coordinator_is_named_once_there_is_what_groups_need() -> None:
    found = draft.find_coordinator(Parts().here, FindCoordinatorRequest(key="g"), CALL)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "drafts", 10)
    none = draft.find_coordinator(Parts(ensures=False).here, FindCoordinatorRequest(key="g"), CALL)
    assert (none.error_code, none.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
