"""Offsets that were committed in transactions (TxnOffsetCommit) which are still open.

They are records like any commit, in batches with the producer's id. The marker that ends the transaction in the same
partition decides: COMMIT makes them the group's offsets, ABORT drops them. If there are several commits for one
partition, the last record counts, whether part of a transaction or not: a later one voids the earlier, even if the
earlier one's transaction ends after it. A partition with a voided commit still has an open transaction, so a reader
that wants stable offsets (KIP-447) waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.protocol.group_records import CommittedOffset, OffsetCommits

OffsetKey = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    """The pending offsets of a shard, by producer id."""

    __slots__ = ("_open", "_order", "by_producer")

    def __init__(self) -> None:
        # What a producer would commit, with its position in the order of records; None if it was voided.
        self.by_producer: dict[int, dict[OffsetKey, tuple[int, CommittedOffset] | None]] = {}
        self._open: dict[str, dict[str, dict[int, set[int]]]] = {}
        self._order = 0

    def add(self, producer_id: int, commits: OffsetCommits) -> None:
        """A producer's commit."""
        keys = self.by_producer.setdefault(producer_id, {})
        topic = self._open.setdefault(commits.group, {}).setdefault(commits.topic, {})
        for partition, value in commits.values:
            self._order += 1
            keys[commits.group, commits.topic, partition] = self._order, value
            topic.setdefault(partition, set()).add(producer_id)

    def add_void(self, producer_id: int, key: OffsetKey) -> None:
        """A producer's commit that a later one has voided."""
        group, topic, partition = key
        self.by_producer.setdefault(producer_id, {})[key] = None
        self._open.setdefault(group, {}).setdefault(topic, {}).setdefault(partition, set()).add(producer_id)

    def supersede(self, group: str, topic: str, partitions: Iterable[int]) -> None:
        """A commit without a transaction: it replaces all earlier ones."""
        open_here = self._open.get(group, {}).get(topic, {})
        for partition in partitions:
            for producer_id in open_here.get(partition, ()):
                self.by_producer[producer_id][group, topic, partition] = None

    def forget(self, group: str, topic: str, partition: int) -> None:
        """The group's offset was removed, and with it all pending ones."""
        for producer_id in self._open.get(group, {}).get(topic, {}).get(partition, ()):
            self.by_producer[producer_id].pop((group, topic, partition))
        self._close(group, topic, partition)

    def end(self, producer_id: int, committed: bool) -> list[tuple[OffsetKey, CommittedOffset]]:
        """The producer's transaction has ended. Returns the offsets that it commits, in the order of its records."""
        keys = self.by_producer.pop(producer_id, {})
        for group, topic, partition in keys:
            self._close(group, topic, partition, producer_id)
        if not committed:
            return []
        found = sorted((order, key, value) for key, (order, value) in _valid(keys))
        for order, key, _ in found:
            self._void_before(order, key)
        return [(key, value) for _, key, value in found]

    def _void_before(self, order: int, key: OffsetKey) -> None:
        group, topic, partition = key
        for producer_id in self._open.get(group, {}).get(topic, {}).get(partition, ()):
            other = self.by_producer[producer_id][key]
            if other is not None and other[0] < order:
                self.by_producer[producer_id][key] = None

    def _close(self, group: str, topic: str, partition: int, producer_id: int | None = None) -> None:
        """Note that the producer (None: every producer) no longer has an open transaction for the partition."""
        topics = self._open.get(group, {})
        partitions = topics.get(topic, {})
        left = partitions.get(partition, set())
        left.intersection_update(() if producer_id is None else left - {producer_id})
        if not left:
            partitions.pop(partition, None)
        if not partitions:
            topics.pop(topic, None)
        if not topics:
            self._open.pop(group, None)

    def of_group(self, group: str) -> dict[str, dict[int, set[int]]]:
        """The partitions with open transactions, by topic."""
        return self._open.get(group, {})

    def is_open(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended has committed an offset for the partition."""
        return partition in self._open.get(group, {}).get(topic, {})

    def open_keys(self) -> list[OffsetKey]:
        """All partitions with open transactions."""
        return [
            (group, topic, partition)
            for group, topics in self._open.items()
            for topic, partitions in topics.items()
            for partition in partitions
        ]


def _valid(
    keys: dict[OffsetKey, tuple[int, CommittedOffset] | None],
) -> Iterator[tuple[OffsetKey, tuple[int, CommittedOffset]]]:
    for key, found in keys.items():
        if found is not None:
            yield key, found
