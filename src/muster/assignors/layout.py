"""Names at the edge, integers inside: the numbering that the sticky assignors compute on.

All partitions of all subscribed topics stand in one row, sorted by topic and partition; a partition is its place in
the row, a member its place among the sorted member ids. Ten integer lists cost a hundredth of what dictionaries of
named pairs cost, and slices of them are what makes dealing fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat

from muster.model import TopicPartition

FREE = -1
"""Claimed by nobody."""

CONTESTED = -2
"""Claimed by several members in one generation, so that nobody's claim counts."""

Claim = tuple[int, Iterable[tuple[str, int]]]
"""What one member says it owns: the generation it says so of, and (topic, partition) pairs."""


def topic_partitions(topic: str, count: int) -> list[TopicPartition]:
    """Partitions 0 to count - 1 of a topic."""
    return list(map(TopicPartition._make, zip(repeat(topic), range(count), strict=False)))


class Layout:
    """The row of all partitions. `starts[t]` is where topic number t begins; one more entry ends the last."""

    __slots__ = ("counts", "starts", "topic_numbers", "topics", "total")

    def __init__(self, counts: dict[str, int]) -> None:
        self.topics = list(counts)
        self.counts = list(counts.values())
        self.starts = [0, *accumulate(self.counts)]
        self.total = self.starts[-1]
        self.topic_numbers = {topic: number for number, topic in enumerate(self.topics)}

    def names(self) -> list[TopicPartition]:
        """The name of each place in the row."""
        return list(chain.from_iterable(map(topic_partitions, self.topics, self.counts)))

    def partition_numbers(self) -> list[int]:
        """The partition number within its topic, for each place in the row."""
        return list(chain.from_iterable(map(range, self.counts)))

    def topics_of(self) -> list[int]:
        """The topic number, for each place in the row."""
        return list(chain.from_iterable(map(repeat, range(len(self.topics)), self.counts)))

    def wanted(self, topics: Sequence[Sequence[str]]) -> list[frozenset[int]]:
        """The numbers of the existing topics that each member wants; equal ones are one object."""
        numbers = self.topic_numbers
        by_names: dict[tuple[str, ...], frozenset[int]] = {}
        distinct: dict[frozenset[int], frozenset[int]] = {}
        wanted: list[frozenset[int]] = []
        for names in map(tuple, topics):
            if names not in by_names:
                numbered = frozenset([numbers[name] for name in names if name in numbers])
                by_names[names] = distinct.setdefault(numbered, numbered)
            wanted.append(by_names[names])
        return wanted

    def groups(self, wanted: Sequence[frozenset[int]]) -> list[tuple[list[int], list[int]]]:
        """(topics, members) for each set of members that is what subscribes to those topics."""
        members: dict[frozenset[int], list[int]] = {}
        for member, topics in enumerate(wanted):
            members.setdefault(topics, []).append(member)
        takers: list[list[frozenset[int]]] = [[] for _ in self.topics]
        for topics in members:
            for topic in topics:
                takers[topic].append(topics)
        grouped: dict[tuple[frozenset[int], ...], list[int]] = {}
        for topic, subscriptions in enumerate(takers):
            grouped.setdefault(tuple(subscriptions), []).append(topic)
        return [
            (together, sorted(member for topics in subscriptions for member in members[topics]))
            for subscriptions, together in grouped.items()
        ]

    def subscribers(self, wanted: Sequence[frozenset[int]]) -> list[list[int]]:
        """The members that subscribe to each topic, in order; equal ones are one object."""
        found: list[list[int]] = [[] for _ in self.topics]
        for topics, members in self.groups(wanted):
            for topic in topics:
                found[topic] = members
        return found

    def settle(self, claims: Sequence[Claim]) -> list[int]:
        """Say for each place who has a right to it: a member, FREE or CONTESTED.

        Where several members claim one partition, the highest generation has it: the others missed a rebalance. Two
        in the same highest generation are a contradiction, and neither has it (as in Kafka's AbstractStickyAssignor).
        Partitions and topics that no longer exist are passed over.
        """
        owner = [FREE] * self.total
        clashes: dict[int, set[int]] = {}
        spans = {topic: (self.starts[t], self.counts[t]) for t, topic in enumerate(self.topics)}
        for member, (_, owned) in enumerate(claims):
            for topic, partition in owned:
                start, count = spans.get(topic, (0, 0))
                if not 0 <= partition < count:
                    continue
                place = start + partition
                other = owner[place]
                if other == FREE:
                    owner[place] = member
                elif other != member:
                    clashes.setdefault(place, {other}).add(member)
        for place, claimants in clashes.items():
            highest = max(claims[member][0] for member in claimants)
            winners = [member for member in claimants if claims[member][0] == highest]
            owner[place] = winners[0] if len(winners) == 1 else CONTESTED
        return owner
