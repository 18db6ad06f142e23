"""Sharing out under mixed subscriptions, when not every member wants the same topics.

Theory
------
The best balance is the one with the least sum of squared loads; it also has the least maximum and the greatest
minimum that the subscriptions allow. An assignment has it if and only if there is no *improving path*: a chain of
members m0, m1, ... mk where each can take a partition that the one before it holds, and the last has at least two
fewer than the first (optimal semi-matchings; Harvey, Ladner, Lovász, Tamir 2006). Moving one partition along each
link takes one from m0, gives one to mk and leaves the loads between as they were. A single move is the path of
length one, so the result can be improved by no single move either.

1. Every member starts with what it keeps (`sticky.py`).
2. Each topic's free partitions are poured into the least loaded of its subscribers, topics with the fewest
   subscribers first. With two or three kinds of subscription that is mostly the end of it.
3. While there is an improving path from the most loaded member, it is followed. What cannot be improved from the
   most loaded is finished and set aside with everything that it can reach: nothing in there has two fewer.
4. What was taken from its owner on the way is given back where a swap for something nobody misses allows it.

Members with the same subscription form a *class*: whatever one of them may take, all may. Paths are searched over
classes, with links that cost nobody a partition of its own counted as free, so a path costs as few moves as can be.
Balance is exact. The number of moves is the least for each path but not proven to be the least over all of them.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from muster.assignors.layout import FREE, Layout

Path = list[tuple[int, int]]
"""(class, topic) for each link: a member of the class gives one partition of the topic to the next class."""


def deal(places: list[int], needs: list[tuple[int, int]], shares: list[list[int]]) -> list[int]:
    """Deal places in turn to (member, how many); return the members in the order in which they were filled.

    `places` holds exactly as many as are needed. Whole rounds are dealt at once, as slices, up to where the next
    member is filled.
    """
    at = 0
    dealt_to_each = 0
    filled: list[int] = []
    while needs:
        rounds = min(need for _, need in needs) - dealt_to_each
        width = len(needs)
        end = at + rounds * width
        for seat, (member, _) in enumerate(needs, at):
            shares[member] += places[seat:end:width]
        at = end
        dealt_to_each += rounds
        filled += [member for member, need in needs if need == dealt_to_each]
        needs = [(member, need) for member, need in needs if need > dealt_to_each]
    return filled


def pour(loads: list[tuple[int, int]], amount: int) -> list[tuple[int, int]]:
    """Raise the lowest of (load, member) by `amount` in all, as water would; return (member, by how much)."""
    loads = sorted(loads)
    below = 0
    width = 0
    for load, _ in loads:
        if load * width - below >= amount:
            break
        below += load
        width += 1
    level, one_more = divmod(amount + below, width)
    raised = [(member, level - load + (seat < one_more)) for seat, (load, member) in enumerate(loads[:width])]
    return [(member, by) for member, by in raised if by]


def share_mixed(
    layout: Layout, wanted: list[frozenset[int]], owner: list[int], shares: list[list[int]], free: list[list[int]]
) -> None:
    """Complete `shares` with the places in `free` (by topic), then balance.

    `wanted` and `shares` are indexed by member, `owner` by place.
    """
    subscribers: list[list[int]] = [[] for _ in layout.counts]
    for member, topics in enumerate(wanted):
        for topic in topics:
            subscribers[topic].append(member)
    for topic in sorted(range(len(free)), key=lambda topic: (len(subscribers[topic]), topic)):
        if free[topic]:
            needs = pour([(len(shares[member]), member) for member in subscribers[topic]], len(free[topic]))
            deal(free[topic], needs, shares)
    loads = [len(shares[member]) for member, topics in enumerate(wanted) if topics]
    if max(loads) - min(loads) > 1:
        balancer = _Balancer(layout, wanted, owner, shares)
        balancer.balance()
        balancer.give_back()
        for member, held in enumerate(balancer.held):
            shares[member] = sorted(place for places in held.values() for place in places)


class _Balancer:
    """Follows improving paths. Holds each member's places by topic, those that are not its own last in each list."""

    def __init__(self, layout: Layout, wanted: list[frozenset[int]], owner: list[int], shares: list[list[int]]) -> None:
        self.owner = owner
        self.shares = shares
        self.topic_of = layout.topics_of()
        numbers: dict[frozenset[int], int] = {}
        self.class_of = [numbers.setdefault(topics, len(numbers)) for topics in wanted]
        self.wanted = list(numbers)
        self.members: list[list[int]] = [[] for _ in numbers]
        self.loads = [len(places) for places in shares]
        self.held: list[dict[int, list[int]]] = [{} for _ in shares]
        self.count: list[dict[int, int]] = [{} for _ in numbers]
        self.spare: list[dict[int, int]] = [{} for _ in numbers]
        self.takers: list[list[int]] = [[] for _ in layout.counts]
        self.lightest: list[list[tuple[int, int]]] = [[] for _ in numbers]
        self.heaviest: list[list[tuple[int, int]]] = [[] for _ in numbers]
        self.sources: list[tuple[int, int]] = []
        for number, topics in enumerate(self.wanted):
            for topic in topics:
                self.takers[topic].append(number)
        for member, places in enumerate(shares):
            self.members[self.class_of[member]].append(member)
            for place in places:
                self._put(member, place)
            self._note_load(member)

    def balance(self) -> None:
        """Follow improving paths until there is none."""
        finished: set[int] = set()
        while self.sources:
            load, number = self.sources[0]
            if number in finished or -load != self.loads[self._heaviest(number)]:
                heappop(self.sources)
                continue
            path, target = self._find_path(number, -load - 2, finished)
            if path is not None:
                self._follow(path, target)

    def _find_path(self, source: int, enough: int, finished: set[int]) -> tuple[Path | None, int]:
        """The cheapest path to a class with a member of at most `enough` partitions; finish what is reached if none.

        A search with links of cost 0 (the class holds a partition of the topic that is not its holder's own) and 1.
        """
        came_from: dict[int, tuple[int, int]] = {}
        settled: set[int] = set()
        offered: set[tuple[int, bool]] = set()
        queue = deque([(source, -1, -1)])
        while queue:
            number, parent, topic = queue.popleft()
            if number in settled or number in finished:
                continue
            settled.add(number)
            if parent >= 0:
                came_from[number] = (parent, topic)
            if self.loads[self._lightest(number)] <= enough:
                return self._trace(came_from, source, number), number
            spare = self.spare[number]
            for topic, count in self.count[number].items():
                if count == 0 or (topic, True) in offered:
                    continue
                free_of_cost = spare.get(topic, 0) > 0
                if (topic, free_of_cost) in offered:
                    continue
                offered.add((topic, free_of_cost))
                links = [(taker, number, topic) for taker in self.takers[topic] if taker not in settled]
                (queue.extendleft if free_of_cost else queue.extend)(links)
        finished |= settled
        return None, source

    @staticmethod
    def _trace(came_from: dict[int, tuple[int, int]], source: int, target: int) -> Path:
        path: Path = []
        while target != source:
            target, topic = came_from[target]
            path.append((target, topic))
        path.reverse()
        return path

    def _follow(self, path: Path, target: int) -> None:
        receiver = self._lightest(target)
        for number, topic in reversed(path):
            giver = self._giver(number, topic)
            self._move(self.held[giver][topic][-1], giver, receiver)
            receiver = giver
        source = path[0][0] if path else target
        heaviest = self._heaviest(source)
        if self.loads[heaviest] > self.loads[receiver] + 1:
            self._move(self._best_to_give(heaviest, receiver), heaviest, receiver)

    def _giver(self, number: int, topic: int) -> int:
        """Who in a class gives a partition of the topic: one that loses nothing of its own, the most loaded of them."""
        heaviest = self._heaviest(number)
        if self._is_spare(heaviest, topic):
            return heaviest
        holders = [member for member in self.members[number] if self.held[member].get(topic)]
        return max(holders, key=lambda member: (self._is_spare(member, topic), self.loads[member], -member))

    def _best_to_give(self, giver: int, receiver: int) -> int:
        """A partition that costs no move if there is one."""
        own = -1
        for topic, places in self.held[giver].items():
            if self._is_spare(giver, topic):
                return places[-1]
            if places:
                own = max(own, places[-1])
        return own

    def _is_spare(self, member: int, topic: int) -> bool:
        places = self.held[member].get(topic)
        return bool(places and self.owner[places[-1]] != member)

    def give_back(self) -> None:
        """Return what was taken on the way where that costs neither balance nor another member's own partition."""
        holder = {
            place: member for member, held in enumerate(self.held) for places in held.values() for place in places
        }
        lost = [place for place, member in sorted(holder.items()) if self._misses(self.owner[place], member, place)]
        returned = True
        while returned:
            returned = False
            for place in lost:
                owner, member = self.owner[place], holder[place]
                if owner == member:
                    continue
                swap = self._spare_for(owner, member) if self.loads[member] != self.loads[owner] + 1 else FREE
                if swap is None:
                    continue
                returned = True
                self._move(place, member, owner)
                holder[place] = owner
                if swap != FREE:
                    self._move(swap, owner, member)
                    holder[swap] = member

    def _misses(self, owner: int, holder: int, place: int) -> bool:
        return owner >= 0 and owner != holder and self.topic_of[place] in self.wanted[self.class_of[owner]]

    def _spare_for(self, giver: int, receiver: int) -> int | None:
        wanted = self.wanted[self.class_of[receiver]]
        for topic, places in self.held[giver].items():
            if topic in wanted and self._is_spare(giver, topic):
                return places[-1]
        return None

    def _put(self, member: int, place: int) -> None:
        topic, number = self.topic_of[place], self.class_of[member]
        places = self.held[member].setdefault(topic, [])
        if self.owner[place] == member:
            places.insert(0, place)
        else:
            places.append(place)
            self.spare[number][topic] = self.spare[number].get(topic, 0) + 1
        self.count[number][topic] = self.count[number].get(topic, 0) + 1

    def _take(self, member: int, place: int) -> None:
        topic, number = self.topic_of[place], self.class_of[member]
        places = self.held[member][topic]
        if places[-1] == place:
            places.pop()
        else:
            places.remove(place)
        self.count[number][topic] -= 1
        if self.owner[place] != member:
            self.spare[number][topic] -= 1

    def _move(self, place: int, giver: int, receiver: int) -> None:
        self._take(giver, place)
        self._put(receiver, place)
        for member, by in ((giver, -1), (receiver, 1)):
            self.loads[member] += by
            self._note_load(member)

    def _note_load(self, member: int) -> None:
        number, load = self.class_of[member], self.loads[member]
        heappush(self.lightest[number], (load, member))
        heappush(self.heaviest[number], (-load, member))
        heappush(self.sources, (-load, number))

    def _lightest(self, number: int) -> int:
        heap = self.lightest[number]
        while heap[0][0] != self.loads[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def _heaviest(self, number: int) -> int:
        heap = self.heaviest[number]
        while -heap[0][0] != self.loads[heap[0][1]]:
            heappop(heap)
        return heap[0][1]
