"""Chooses the partition of a record as Java's producer does (KIP-480, KIP-794).

A key goes to partition murmur2(key) modulo the number of partitions, so both clients write the same key to the same
partition. Records without a key stick to one partition for about a batch; then another partition is
drawn. The more batches wait for a partition, the smaller its chance: a slow broker gets fewer records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import unpack_from

from muster.client.core.seeded_random import SeededRandom

Partitioner = Callable[[bytes | None, list[int], list[int]], int]
"""A user's partitioner: (key bytes, all partitions, those with a leader) to partition."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 hash, as an unsigned number of 32 bits."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for k in unpack_from(f"<{whole // 4}I", data):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The partition for a topic's records without a key."""

    __slots__ = ("_batch_size", "_produced", "_random", "partition")

    def __init__(self, batch_size: int, random: SeededRandom) -> None:
        self._batch_size = max(1, batch_size)
        self._random = random
        self._produced = 0
        self.partition: int | None = None
        """Where records go now; None until `switch` was called."""

    def switch(self, candidates: Sequence[int], queued: Sequence[int] | None = None) -> int:
        """Draw a partition; `queued` says how many batches wait for each candidate, None for equal chances."""
        self._produced = 0
        if queued is None or len(candidates) < 2:
            self.partition = candidates[self._random.below(len(candidates))]
            return self.partition
        most = max(queued) + 1
        table = list(accumulate(most - waiting for waiting in queued))
        drawn = self._random.below(table[-1])
        self.partition = next(c for c, end in zip(candidates, table, strict=True) if drawn < end)
        return self.partition

    def produced(self, size: int, at_batch_end: bool) -> bool:
        """Count bytes written to the partition; returns whether to switch.

        Switch once a batch's worth has gone there and a batch is full, and at twice that in any case. A switch within
        a batch would leave a small batch behind.
        """
        self._produced += size
        return self._produced >= (self._batch_size if at_batch_end else 2 * self._batch_size)
