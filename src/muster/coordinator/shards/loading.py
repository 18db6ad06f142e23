"""Reading a shard back from its store, a piece at a time."""

from __future__ import annotations

from functools import partial
from typing import Generic

from muster.coordinator.shards.served_shard import S
from muster.coordinator.shards.store import Journal


class Loading(Generic[S]):
    """A new shard, and how far its journal has been replayed into it.

    A record that cannot be decoded is skipped and counted: a record of another program, or one damaged on disk, must
    not make the slot's other records unusable.

    Args:
        shift: milliseconds to add to the rules' time to get the time of day, which the records carry.
    """

    def __init__(self, slot: int, journal: Journal, shard: S, shift: int = 0) -> None:
        self.slot = slot
        self.journal = journal
        self.shard = shard
        self._shift = -shift
        self.is_complete = False
        self.skipped = 0
        self.first_skipped = ""

    def step(self, most: int) -> bool:
        """Apply about `most` records, or those that are left. Returns whether there was anything to read: if not, the
        store is still fetching it. Raises what the store raises."""
        piece = self.journal.read(most)
        replay, shift = self.shard.replay, self._shift
        if piece.producer_id is not None:
            replay = partial(self.shard.replay_transactional, producer_id=piece.producer_id)
        if piece.marker is not None:
            self.shard.end_transaction(*piece.marker)
        for where, key, value in piece.records:
            try:
                replay(key, value, shift)
            except Exception as error:
                self._skip(where, error)
        if piece.skipped is not None:
            self._skip(*piece.skipped)
        self.is_complete = piece.is_last
        return not piece.is_empty

    def _skip(self, where: object, error: Exception) -> None:
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"at {where}: {error}"
