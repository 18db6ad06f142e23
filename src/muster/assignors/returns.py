"""The fewest moves that the best balance allows: giving back what was taken. See `mixed.py`.

Theory
------
The number of partitions in their owners' hands can grow without loss of balance if and only if there is a cycle of
handovers that gains more of them than it costs (as for every minimum-cost flow). Its links:

- a member gives a partition of a topic into the topic's pool: costs 1 if all that it holds of the topic is its own;
- a member takes one out of a pool: gains 1 if it has lost one of the topic. The member that holds that very partition
  takes the one that was put into the pool instead, which is just as good, being of the same topic;
- the ends of the chain may be a member that ends with one more and one that ends with one fewer, if the second had
  exactly one more than the first: they swap loads. The link between them leads through the level they share.

`_returned_by_swap` finds the short cycles, which are nearly all; `_is_least` proves quickly, in nearly all cases,
that no cycle is left; and `_find_cycle` searches the rest (Bellman-Ford, in the version with a queue).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from muster.assignors.holdings import Holdings

Node = tuple[str, int]
"""("member", number), ("pool", topic) or ("level", load)."""


def give_back(holdings: Holdings) -> None:
    """Return partitions to their owners until no balanced assignment leaves more of them in place."""
    lost = holdings.lost()
    while sum(_returned_by_swap(holdings, place) for place in lost):
        pass
    while not _is_least(holdings):
        cycle = _Cycles(holdings).find()
        if cycle is None:
            return
        _turn(holdings, cycle)


def _returned_by_swap(holdings: Holdings, place: int) -> bool:
    """Give a place back to its owner in exchange for a spare one, or for nothing if the holder has one more."""
    owner, holder = holdings.owner[place], holdings.holder[place]
    if owner == holder:
        return False
    if holdings.loads[holder] == holdings.loads[owner] + 1:
        holdings.move(place, holder, owner)
        return True
    if not holdings.spares[owner]:
        return False
    for topic, places in holdings.held[owner].items():
        if holdings.wants(holder, topic) and holdings.has_spare(owner, topic):
            holdings.move(places[-1], owner, holder)
            holdings.move(place, holder, owner)
            return True
    return False


def _is_least(holdings: Holdings) -> bool:
    """A quick proof: a member that lost something holds no spare place, and neither does any member with exactly one
    place more than it.

    Then each member keeps all that its load has room for, and no swap of loads makes room for more.
    """
    losers = {holdings.owner[place] for place in holdings.lost()}
    levels = {holdings.loads[member] + 1 for member in losers}
    return not any(
        spares and (member in losers or load in levels)
        for member, (load, spares) in enumerate(zip(holdings.loads, holdings.spares, strict=True))
    )


class _Cycles:
    """The graph of handovers, and the search for a gaining cycle in it."""

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings
        self.lost = {(holdings.owner[place], holdings.topic_of[place]) for place in holdings.lost()}
        self.at_level: dict[int, list[int]] = {}
        for member, load in enumerate(holdings.loads):
            self.at_level.setdefault(load, []).append(member)

    def find(self) -> list[Node] | None:
        """A cycle that gains, each node once, or None if there is none."""
        distance: dict[Node, int] = {}
        parent: dict[Node, Node] = {}
        queue = deque(("pool", topic) for topic in sorted({topic for _, topic in self.lost}))
        waiting = set(queue)
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            for successor, cost in self._links(node):
                reached = distance.get(node, 0) + cost
                if reached >= distance.get(successor, 0):
                    continue
                distance[successor] = reached
                parent[successor] = node
                if cost < 0 and (cycle := _cycle_through(parent, successor)):
                    return cycle
                if successor not in waiting:
                    waiting.add(successor)
                    queue.append(successor)
        return None

    def _links(self, node: Node) -> Iterator[tuple[Node, int]]:
        holdings = self.holdings
        kind, number = node
        if kind == "member":
            for topic, places in holdings.held[number].items():
                if places:
                    yield ("pool", topic), 0 if holdings.has_spare(number, topic) else 1
            yield ("level", holdings.loads[number]), 0
        elif kind == "pool":
            for taker in holdings.takers[number]:
                for member in holdings.members[taker]:
                    yield ("member", member), -1 if (member, number) in self.lost else 0
        else:
            for member in self.at_level.get(number + 1, ()):
                yield ("member", member), 0


def _cycle_through(parent: dict[Node, Node], node: Node) -> list[Node] | None:
    """The cycle that following the parents from a node leads into, in the order of the handovers.

    A cycle of parents always gains; it need not pass through the node itself.
    """
    trail: dict[Node, int] = {}
    while node in parent and node not in trail:
        trail[node] = len(trail)
        node = parent[node]
    if node not in trail:
        return None
    return list(trail)[trail[node] :][::-1]


def _turn(holdings: Holdings, cycle: list[Node]) -> None:
    """Hand over along the cycle: member, pool, member, ... possibly with one level among them."""
    start = cycle.index(next(node for node in cycle if node[0] == "pool"))
    ring = [cycle[start - 1], *cycle[start:], *cycle[:start]]
    for giver, pool, receiver in zip(ring, ring[1:], ring[2:], strict=False):
        if pool[0] == "pool":
            _hand_over(holdings, giver[1], pool[1], receiver[1])


def _hand_over(holdings: Holdings, giver: int, topic: int, receiver: int) -> None:
    """One partition of the topic from giver to receiver, preferably one that the receiver lost."""
    mine = (
        place for place in holdings.lost() if holdings.owner[place] == receiver and holdings.topic_of[place] == topic
    )
    back = next(mine, None)
    place = holdings.held[giver][topic][-1]
    if back is None or holdings.owner[place] == receiver:
        holdings.move(place, giver, receiver)
        return
    holder = holdings.holder[back]
    if holder != giver:
        holdings.move(place, giver, holder)
    holdings.move(back, holder, receiver)
