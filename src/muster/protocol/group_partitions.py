"""Which partition of `__consumer_offsets` keeps a group, and the order in which Kafka answers about several groups.

Both follow from Java's hash of a string: Kafka keeps groups in hash maps, and their order shows in its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

from muster.model import GROUP_METADATA_TOPIC

T = TypeVar("T")


def java_hash(text: str) -> int:
    """`String.hashCode`, as an unsigned number."""
    hashed = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(encoded), 2):
        hashed = (hashed * 31 + (encoded[i] << 8 | encoded[i + 1])) & 0xFFFFFFFF
    return hashed


def group_partition(group_id: str, partitions: int) -> int:
    """The partition that keeps a group: the absolute value of Java's hash of its id."""
    return _known(group_id, partitions) if len(group_id) <= _MOST_KNOWN_LENGTH else _hashed(group_id, partitions)


_MOST_KNOWN_LENGTH = 256
"""Longer ids are not cached: no real client uses them, and a hostile one may send tens of thousands."""


@lru_cache(maxsize=65_536)
def _known(group_id: str, partitions: int) -> int:
    return _hashed(group_id, partitions)


def _hashed(group_id: str, partitions: int) -> int:
    hashed = java_hash(group_id)
    if hashed >= 0x80000000:
        hashed = 0x100000000 - hashed
    return 0 if hashed == 0x80000000 else hashed % partitions


def in_hash_order(items: Iterable[T], hash_of: Callable[[T], int]) -> list[T]:
    """The items, which are all different, in the order in which a Java `HashMap` iterates over them."""
    found = list(items)
    buckets = 16
    while len(found) * 4 > buckets * 3:
        buckets *= 2
    return sorted(found, key=lambda item: (hash_of(item) ^ hash_of(item) >> 16) & (buckets - 1))


_TOPIC_HASH = java_hash(GROUP_METADATA_TOPIC)


def partition_hash(partition: int) -> int:
    """`TopicPartition.hashCode` of a partition of the groups' topic."""
    return ((31 + partition) * 31 + _TOPIC_HASH) & 0xFFFFFFFF
