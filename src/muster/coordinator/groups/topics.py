"""The topics as the coordinator sees them. The broker implements this from its metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TopicResolver(Protocol):
    """The existing topics: looked up by name, or by the id that newer requests use instead."""

    def partition_count(self, topic: str) -> int:
        """A topic's number of partitions, 0 if there is no such topic."""

    def is_gone(self, topic: str) -> bool:
        """Whether the topic certainly does not exist, so that its committed offsets can be removed. A topic about which
        this broker does not know enough has no partitions here, but still exists."""

    def led_partitions(self, topic: str) -> Sequence[int]:
        """The partitions of a topic that have a leader, ascending; none if there is no such topic."""

    def topic_id(self, topic: str) -> bytes:
        """The topic's id (16 bytes), all zeros if there is no such topic."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with an id, None if there is none."""
