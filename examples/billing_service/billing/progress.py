"""How far the orders are handled: what to commit, and when."""

from __future__ import annotations

import time
from collections.abc import Iterable

from billing.service import Record

Partition = tuple[str, int]
"""A topic, and the number of its partition. In all these clients but one, `TopicPartition` is such a tuple too."""


class Progress:
    """The next offset of each partition that this process has read from.

    Args:
        interval_s: the time between two commits.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}
        self._last_s = time.monotonic()

    def add(self, record: Record) -> None:
        """A record was handled."""
        self._next[record.topic, record.partition] = record.offset + 1

    def is_due(self) -> bool:
        """Whether it is time to commit."""
        return time.monotonic() - self._last_s >= self._interval_s

    def to_commit(self) -> dict[Partition, int]:
        """The offsets to commit; empty if all are committed."""
        self._last_s = time.monotonic()
        return {} if self._next == self._committed else dict(self._next)

    def committed(self, offsets: dict[Partition, int]) -> None:
        """These offsets were committed."""
        self._committed = offsets

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions belong to other members now: those members commit the offsets."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._committed.pop(partition, None)
