"""What the coordinator asks about topics. The broker answers from its metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TopicResolver(Protocol):
    """The topics that exist now: looked up by name, or by the id that newer requests use in its place."""

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic, 0 if there is none of that name."""

    def is_gone(self, topic: str) -> bool:
        """Whether there is surely no topic of that name: then what groups have committed for it is forgotten. A topic
        of which only this broker knows too little has no partitions here, and is not gone."""

    def led_partitions(self, topic: str) -> Sequence[int]:
        """The partitions of a topic that have a leader, ascending; none if there is no topic of that name."""

    def topic_id(self, topic: str) -> bytes:
        """The topic's id (16 bytes), all zeros if there is none."""

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name that goes with an id, None if there is none."""
