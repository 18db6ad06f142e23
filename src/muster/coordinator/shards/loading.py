"""Reading a shard back from its store, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

from muster.coordinator.shards.served_shard import S
from muster.coordinator.shards.store import Journal, Stored

Replay = Callable[[bytes | None, bytes | None, int], bool]


def last_of_each_key(records: Sequence[Stored]) -> Sequence[Stored]:
    """The last record of each key, in log order: what compaction would leave."""
    found: dict[object, Stored] = {}
    for record in reversed(records):
        found.setdefault(record[1] or record[0], record)
    return [*reversed(found.values())]


class Loading(Generic[S]):
    """A new shard, and how far its journal has been replayed into it.

    A record that cannot be decoded is skipped and counted: a record of another program, or one damaged on disk, must
    not make the slot's other records unusable.

    Args:
        shift: milliseconds to add to the rules' time to get the wall-clock time, which the records carry.
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
        """Apply about `most` records, or as many as are left. Returns whether there was anything to read: if not, the
        store is still fetching it. Raises what the store raises."""
        piece = self.journal.read(most)
        replay: Replay = self.shard.replay
        if piece.producer_id is not None:
            replay = partial(self.shard.replay_transactional, producer_id=piece.producer_id)
        if piece.marker is not None:
            self.shard.end_transaction(piece.marker.producer_id, piece.marker.committed)
        records = last_of_each_key(piece.records)
        for record in records:
            if not self._replay(replay, record) and len(records) < len(piece.records):
                self._replay_previous(replay, piece.records, record)
        if piece.skipped is not None:
            self._skip(*piece.skipped)
        self.is_complete = piece.is_last
        return not piece.is_empty

    def _replay(self, replay: Replay, record: Stored) -> bool:
        """Apply a record. Returns whether the shard has taken it."""
        try:
            return replay(record[1], record[2], self._shift)
        except Exception as error:
            self._skip(record[0], error)
            return False

    def _replay_previous(self, replay: Replay, records: Sequence[Stored], last: Stored) -> None:
        """The last record of a key was skipped: apply the one before it."""
        for each in reversed(records[: records.index(last)]):
            if each[1] and each[1] == last[1] and self._replay(replay, each):
                return

    def _skip(self, where: object, error: Exception) -> None:
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"at {where}: {error}"
