"""Reading a shard back from its store, a piece at a time."""

from __future__ import annotations

from typing import Generic

from muster.coordinator.shards.served_shard import S
from muster.coordinator.shards.store import Journal


class Loading(Generic[S]):
    """A fresh shard, and how far its journal has been applied to it.

    A record that cannot be understood is passed over and counted: a record of another program, or one damaged on disk,
    must not make the other records of the slot unusable.

    Args:
        shift: milliseconds to add to the rules' time to have the time of day, which the records tell.
    """

    def __init__(self, slot: int, journal: Journal, shard: S, shift: int = 0) -> None:
        self.slot = slot
        self.journal = journal
        self.shard = shard
        self._shift = -shift
        self.is_complete = False
        self.passed_over = 0
        self.first_passed_over = ""

    def step(self, most: int) -> bool:
        """Apply about so many records, or what is left. Returns whether there was anything to read: if not, the store
        is still fetching it. Raises what the store raises."""
        piece = self.journal.read(most)
        replay, shift = self.shard.replay, self._shift
        for where, key, value in piece.records:
            try:
                replay(key, value, shift)
            except Exception as error:
                self._pass_over(where, error)
        if piece.passed_over is not None:
            self._pass_over(*piece.passed_over)
        self.is_complete = piece.is_last
        return not piece.is_empty

    def _pass_over(self, where: object, error: Exception) -> None:
        self.passed_over += 1
        self.first_passed_over = self.first_passed_over or f"at {where}: {error}"
