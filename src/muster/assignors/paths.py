"""The best balance: improving paths, from the most loaded member down. See `mixed.py`.

Paths are searched over classes, not members: even thousands of members have few kinds of subscription. A class on a
path passes one partition on for each that it takes; which of its members do so is decided when the path is followed.
Links that cost no member one of its own partitions are tried first.

When no path leads from the most loaded member, all classes that the search reached are finished. Each member in them
has at most one partition fewer than that most loaded member, and no other member has more than that one, so no other
member's path can end there.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from muster.assignors.holdings import Holdings

Path = list[tuple[int, int]]
"""(class, topic) for each link: a member of the class gives one partition of the topic to the next class."""


def balance(holdings: Holdings) -> None:
    """Follow improving paths until there is none."""
    search = _Search(holdings)
    while search.sources:
        load, number = search.sources[0]
        if number in search.finished or -load != holdings.loads[search.heaviest(number)]:
            heappop(search.sources)  # an outdated entry: the class's load has changed since
            continue
        target, came_from = search.find_target(number, -load - 2)
        if target is not None:
            search.follow(number, target, came_from)


class _Search:
    """Searches for paths over the classes. Its heaps of loads may hold outdated entries, which are dropped when
    read."""

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings
        self.finished: set[int] = set()
        self.lightest_of: list[list[tuple[int, int]]] = [[] for _ in holdings.wanted]
        self.heaviest_of: list[list[tuple[int, int]]] = [[] for _ in holdings.wanted]
        self.sources: list[tuple[int, int]] = []
        for member in range(len(holdings.loads)):
            self._note_load(member)

    def find_target(self, source: int, enough: int) -> tuple[int | None, dict[int, tuple[int, int]]]:
        """The nearest class with a member of at most `enough` partitions, and for each class the link that led to it.

        If no class has such a member, no reached class needs another search. Links cost 0 (a spare partition is passed
        on) or 1.
        """
        holdings = self.holdings
        came_from: dict[int, tuple[int, int]] = {}
        settled: set[int] = set()
        offered: dict[int, int] = {}
        queue = deque([(source, source, -1)])
        while queue:
            number, giver, topic = queue.popleft()
            if number in settled or number in self.finished:
                continue
            settled.add(number)
            came_from[number] = (giver, topic)
            if holdings.loads[self.lightest(number)] <= enough:
                return number, came_from
            spare = holdings.spare[number]
            for topic, count in holdings.count[number].items():
                costs = 0 if spare[topic] else 1
                if count == 0 or offered.get(topic, 2) <= costs:
                    continue
                offered[topic] = costs
                links = [(taker, number, topic) for taker in holdings.takers[topic] if taker not in settled]
                (queue.extend if costs else queue.extendleft)(links)
        self.finished |= settled
        return None, came_from

    def follow(self, source: int, target: int, came_from: dict[int, tuple[int, int]]) -> None:
        """Move one partition along each link, the last first, and one within the source if that is needed."""
        holdings = self.holdings
        receiver = self.lightest(target)
        while target != source:
            target, topic = came_from[target]
            giver = self._giver(target, topic)
            self._move(holdings.held[giver][topic][-1], giver, receiver)
            receiver = giver
        heaviest = self.heaviest(source)
        if holdings.loads[heaviest] > holdings.loads[receiver] + 1:
            place = holdings.any_spare(heaviest)
            if place is None:
                place = next(places[-1] for places in holdings.held[heaviest].values() if places)
            self._move(place, heaviest, receiver)

    def _giver(self, number: int, topic: int) -> int:
        """The member of a class that passes on a partition of the topic: the most loaded one with a spare partition."""
        holdings = self.holdings
        heaviest = self.heaviest(number)
        if holdings.has_spare(heaviest, topic):
            return heaviest
        holders = [member for member in holdings.members[number] if holdings.held[member].get(topic)]
        return max(holders, key=lambda member: (holdings.has_spare(member, topic), holdings.loads[member], -member))

    def _move(self, place: int, giver: int, receiver: int) -> None:
        self.holdings.move(place, giver, receiver)
        self._note_load(giver)
        self._note_load(receiver)

    def _note_load(self, member: int) -> None:
        number, load = self.holdings.class_of[member], self.holdings.loads[member]
        heappush(self.lightest_of[number], (load, member))
        heappush(self.heaviest_of[number], (-load, member))
        heappush(self.sources, (-load, number))

    def lightest(self, number: int) -> int:
        """The least loaded member of a class."""
        heap = self.lightest_of[number]
        while heap[0][0] != self.holdings.loads[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def heaviest(self, number: int) -> int:
        """The most loaded member of a class."""
        heap = self.heaviest_of[number]
        while -heap[0][0] != self.holdings.loads[heap[0][1]]:
            heappop(heap)
        return heap[0][1]
