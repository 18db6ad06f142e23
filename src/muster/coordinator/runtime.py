"""The coordinator's runtime: loads shards from their logs, runs requests through them, appends what they decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from muster.coordinator.config import GroupConfig
from muster.coordinator.effects import GroupEvent
from muster.coordinator.topics import TopicResolver
from muster.errors import ErrorCode
from muster.protocol.primitives import Request, Response

__all__ = ["Client", "CoordinatorRuntime", "GroupConfig"]


class Client(NamedTuple):
    """Who sent a request."""

    client_id: str
    client_host: str
    api_version: int


class CoordinatorRuntime:
    """All groups of one broker."""

    def __init__(
        self,
        config: GroupConfig,
        open_log: Callable[[int], Any],
        *,
        clock: Callable[[], int],
        topics: TopicResolver,
        on_event: Callable[[GroupEvent], None],
        new_member_id: Callable[[str], str],
        schedule_flush: Callable[[], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def partition_for(self, group_id: str) -> int:
        raise NotImplementedError

    def load_all(self) -> None:
        raise NotImplementedError

    def submit(self, request: Request[Any], client: Client, reply: Callable[[Response], None]) -> None:
        raise NotImplementedError

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> ErrorCode:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def release_durable(self) -> None:
        raise NotImplementedError

    def next_deadline(self) -> int | None:
        raise NotImplementedError

    def on_deadlines(self, now: int) -> None:
        raise NotImplementedError

    def topic_deleted(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
