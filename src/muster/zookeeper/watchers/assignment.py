"""The assignment of partitions to threads in scheme 1, which every member computes from its view of ZooKeeper.

The rules are those of Kafka 0.8.2.2 (`PartitionAssignor.scala`), including Java's sort order: Strings by their UTF-16
units, partitions for roundrobin by the signed 32-bit hash of "[topic,partition]". A member that sorted differently
would claim partitions of others, and the group would never converge.

`range` has the same result in every release from 0.8.0 to 1.1.1. `roundrobin` is that of 0.8.2: Kafka 0.10.2 differs if
members subscribe differently (KAFKA-2434), and 1.0.0 sorts by a different text (KAFKA-5822), so all members of a group
with roundrobin must run the same implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.errors import ConfigError, MusterError
from muster.model import TopicPartition
from muster.protocol import group_partitions

Threads = Mapping[str, Iterable[str]]
"""The threads of all members of the group by topic; a thread is the member's id, '-' and a number from 0."""

Partitions = Mapping[str, Iterable[int]]
"""The partitions of topics."""

Assignment = dict[TopicPartition, str]
"""The thread of each partition."""

Strategy = Callable[[Threads, Partitions], Assignment]


class UnequalSubscriptionsError(MusterError):
    """roundrobin of 0.8.2 needs the same threads for every topic of the group; its exception ends the attempt."""


def java_order(text: str) -> bytes:
    """A key that sorts like Java's `String.compareTo`: by UTF-16 units, unlike Python beyond the BMP."""
    return text.encode("utf-16-be", "surrogatepass")


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: a signed number of 32 bits."""
    value = group_partitions.java_hash(text)
    return value - (1 << 32) if value >= 1 << 31 else value


def thread_ids(consumer_id: str, streams: int) -> list[str]:
    """The threads of a member for a topic. They sort as text: '-10' comes before '-2'."""
    return [f"{consumer_id}-{number}" for number in range(streams)]


def range_(threads: Threads, partitions: Partitions) -> Assignment:
    """Topic by topic: consecutive partitions for each thread, one more for the first threads if there is a
    remainder."""
    assignment: Assignment = {}
    sorted_threads: dict[int, list[str]] = {}  # topics that the same members read share one list
    for topic, numbers in partitions.items():
        found = threads.get(topic, ())
        if id(found) not in sorted_threads:
            sorted_threads[id(found)] = sorted(set(found), key=java_order)
        ordered = sorted_threads[id(found)]
        numbers = sorted(numbers)
        if not ordered:
            continue
        each, more = divmod(len(numbers), len(ordered))
        for index, thread in enumerate(ordered[: len(numbers)]):  # the threads after these get none
            start = each * index + min(index, more)
            for number in numbers[start : start + each + (index < more)]:
                assignment[TopicPartition(topic, number)] = thread
    return assignment


def roundrobin(threads: Threads, partitions: Partitions) -> Assignment:
    """All partitions in the order of their hashes, dealt to the threads in turn.

    Two partitions with the same hash, which needs two topics whose names have the same hash, are sorted by topic; in
    Kafka the order of Scala's maps decides, which is undefined.

    Raises:
        UnequalSubscriptionsError: two topics of the group have different threads.
    """
    lists = {id(found): found for found in threads.values()}
    sets = {frozenset(found) for found in lists.values()}
    if len(sets) > 1:
        text = "with roundrobin all members must read the same topics, each with equally many streams of every topic"
        raise UnequalSubscriptionsError(text)
    ordered = sorted(next(iter(sets), ()), key=java_order)
    if not ordered:
        return {}
    dealt = sorted(
        (TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers),
        key=lambda partition: (java_hash(f"[{partition.topic},{partition.partition}]"), partition),
    )
    return {partition: ordered[index % len(ordered)] for index, partition in enumerate(dealt)}


STRATEGIES: Mapping[str, Strategy] = {"range": range_, "roundrobin": roundrobin}


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        ConfigError: there is none. Kafka 0.8 would silently use range.
    """
    found = STRATEGIES.get(name)
    if found is None:
        raise ConfigError(f"partition_assignment_strategy is {name!r}; it must be {' or '.join(STRATEGIES)}")
    return found
