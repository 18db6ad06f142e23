"""What all shards of a coordinator have done since it began: for operators, no rule asks."""

from __future__ import annotations


class GroupCounts:
    """Counted in plain additions, on the way of every commit. A deletion is an offset of a topic that was deleted."""

    __slots__ = ("offsets_committed", "offsets_deleted", "offsets_expired")

    def __init__(self) -> None:
        self.offsets_committed = self.offsets_expired = self.offsets_deleted = 0
