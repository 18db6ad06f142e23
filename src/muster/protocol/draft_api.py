"""The requests of Kafka's drafts from 2013 to 2015, by key, and the version of each: see `draft_definitions.py`."""

from __future__ import annotations

from typing import Any, Final

from muster.protocol import messages
from muster.protocol.api import ApiKey
from muster.protocol.draft_messages import DraftJoinGroupRequest
from muster.protocol.primitives import Request

DRAFT_REQUESTS: Final[dict[int, type[Request[Any]]]] = {
    ApiKey.OFFSET_COMMIT: messages.OffsetCommitRequest,
    ApiKey.OFFSET_FETCH: messages.OffsetFetchRequest,
    ApiKey.FIND_COORDINATOR: messages.FindCoordinatorRequest,  # ConsumerMetadata in the drafts
    ApiKey.JOIN_GROUP: DraftJoinGroupRequest,
    ApiKey.HEARTBEAT: messages.HeartbeatRequest,
    ApiKey.LEAVE_GROUP: messages.LeaveGroupRequest,
}
"""The class of each request, by its key."""

DRAFT_VERSIONS: Final[dict[int, tuple[int, int]]] = {
    key: {ApiKey.OFFSET_COMMIT: (2, 2), ApiKey.OFFSET_FETCH: (1, 1)}.get(ApiKey(key), (0, 0)) for key in DRAFT_REQUESTS
}
"""The requests that a member of the drafts sends. It does not ask its coordinator for versions: ApiVersions came with
Kafka 0.10."""
