"""Counters of all shards of a coordinator since it started: for operators, unused by the rules."""

from __future__ import annotations


class GroupCounts:
    """Plain integers, updated with every commit. `offsets_deleted` counts offsets of deleted topics."""

    __slots__ = ("offsets_committed", "offsets_deleted", "offsets_expired")

    def __init__(self) -> None:
        self.offsets_committed = self.offsets_expired = self.offsets_deleted = 0
