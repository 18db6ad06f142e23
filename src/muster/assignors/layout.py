"""Names at the edge, integers inside: the numbering that the sticky assignors compute with.

All partitions of all subscribed topics are in one row, sorted by topic and partition; a partition is its place in
the row, a member its place among the sorted member ids. Ten integer lists cost a hundredth of what dictionaries of
named pairs cost, and slicing them makes dealing fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat

from muster.model import TopicPartition

FREE = -1
"""Claimed by no member."""

CONTESTED = -2
"""Claimed by several members in one generation, so that none of the claims counts."""

_NOWHERE = (0, 0)
_NONE: tuple[None, int] = (None, -1)

Claim = tuple[int, list[int]]
"""What one member claims to own: a generation, and places of a layout."""


def topic_partitions(topic: str, count: int) -> list[TopicPartition]:
    """Partitions 0 to count - 1 of a topic."""
    pairs = zip(repeat(topic), range(count), strict=False)
    return list(map(tuple.__new__, repeat(TopicPartition), pairs))  # takes half the time of `_make`, which is not in C


def places_of(spans: Mapping[str, tuple[int, int]], partitions: Iterable[tuple[str, int]]) -> list[int]:
    """The places of partitions by the `Layout.spans`; those that do not exist are skipped."""
    places: list[int] = []
    for topic, partition in partitions:
        start, count = spans.get(topic, _NOWHERE)
        if 0 <= partition < count:
            places.append(start + partition)
    return places


class Layout:
    """The row of all partitions of the topics that exist and that a member subscribes to.

    Attributes:
        topics, counts: the topics, sorted, and how many partitions each has.
        starts: where each topic begins; one more entry marks the end of the last.
        total: how many places there are.
        wanted: the topic numbers that each member wants; equal ones are one object.
    """

    def __init__(self, partitions_per_topic: Mapping[str, int], subscriptions: Iterable[list[str]]) -> None:
        kinds: dict[tuple[str, ...], int] = {}
        kind_of: list[int] = []
        seen: dict[int, tuple[list[str], int]] = {}
        for names in subscriptions:
            last, kind = seen.get(len(names), _NONE)
            if names != last:  # those of the same length are mostly equal, and comparing is cheaper than hashing
                kind = kinds.setdefault(tuple(names), len(kinds))
                seen[len(names)] = names, kind
            kind_of.append(kind)
        distinct = {topic for names in kinds for topic in names}
        self.topics = sorted(topic for topic in distinct if partitions_per_topic.get(topic, 0) > 0)
        self.counts = [partitions_per_topic[topic] for topic in self.topics]
        self.starts = [0, *accumulate(self.counts)]
        self.total = self.starts[-1]
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        numbered = [frozenset([numbers[topic] for topic in names if topic in numbers]) for names in kinds]
        one = {topics: topics for topics in numbered}
        numbered = [one[topics] for topics in numbered]
        self.wanted = [numbered[kind] for kind in kind_of]

    @cached_property
    def names(self) -> list[TopicPartition]:
        """The name of each place in the row."""
        return list(chain.from_iterable(map(topic_partitions, self.topics, self.counts)))

    @cached_property
    def number_of(self) -> list[int]:
        """The partition number within its topic, for each place in the row."""
        return list(chain.from_iterable(map(range, self.counts)))

    @cached_property
    def topic_of(self) -> list[int]:
        """The topic number, for each place in the row."""
        return list(chain.from_iterable(map(repeat, range(len(self.topics)), self.counts)))

    def groups(self) -> list[tuple[list[int], list[int]]]:
        """(topics, members) for each set of topics that have the same subscribers."""
        members: dict[frozenset[int], list[int]] = {}
        for member, topics in enumerate(self.wanted):
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

    def subscribers(self) -> list[list[int]]:
        """The members that subscribe to each topic, in order; equal ones are one object."""
        found: list[list[int]] = [[] for _ in self.topics]
        for topics, members in self.groups():
            for topic in topics:
                found[topic] = members
        return found

    def spans(self) -> dict[str, tuple[int, int]]:
        """Where each topic starts, and how many partitions it has."""
        return dict(zip(self.topics, zip(self.starts, self.counts, strict=False), strict=True))

    def named(self, places: Iterable[int]) -> list[TopicPartition]:
        """The names of some places."""
        return list(map(self.names.__getitem__, places))

    def numbered(self, places: Iterable[int]) -> dict[str, list[int]]:
        """The partition numbers of some places by topic; topics are in the order in which places first name them."""
        topics, topic_of, number_of = self.topics, self.topic_of, self.number_of
        found: dict[str, list[int]] = {}
        for place in places:
            topic = topics[topic_of[place]]
            if topic in found:
                found[topic].append(number_of[place])
            else:
                found[topic] = [number_of[place]]
        return found

    def by_topic(self, places: Sequence[int]) -> list[list[int]]:
        """Sorted places, topic by topic."""
        if len(places) == self.total:
            return [list(range(start, end)) for start, end in pairwise(self.starts)]
        ends = [bisect_left(places, start) for start in self.starts]
        return [list(places[begin:end]) for begin, end in pairwise(ends)]

    def settle(self, claims: Sequence[Claim]) -> list[int]:
        """For each place its rightful owner: a member, FREE or CONTESTED.

        If several members claim one partition, the claim with the highest generation counts: the others missed a
        rebalance. Two claims in the same highest generation contradict each other, and neither counts (as in Kafka's
        AbstractStickyAssignor).
        """
        owner = [FREE] * self.total
        for member, (_, places) in enumerate(claims):
            for place in places:
                owner[place] = member
        clashes: dict[int, set[int]] = {}
        if sum(len(places) for _, places in claims) > self.total - owner.count(FREE):
            for member, (_, places) in enumerate(claims):
                for place in places:
                    if owner[place] != member:  # every claimant but the last
                        clashes.setdefault(place, {owner[place]}).add(member)
        for place, claimants in clashes.items():
            highest = max(claims[member][0] for member in claimants)
            winners = [member for member in claimants if claims[member][0] == highest]
            owner[place] = winners[0] if len(winners) == 1 else CONTESTED
        return owner
