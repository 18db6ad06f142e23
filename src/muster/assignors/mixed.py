"""Assignment under mixed subscriptions, when not every member wants the same topics.

Theory
------
The best balance is the one with the least sum of squared loads; it also has the least maximum and the greatest
minimum that the subscriptions allow. An assignment has it if and only if there is no *improving path*: a chain of
members m0, m1, ... mk where each can take a partition that the one before it holds, and the last has at least two
fewer than the first (optimal semi-matchings; Harvey, Ladner, Lovász, Tamir 2006). Moving one partition along each
link takes one from m0, gives one to mk and leaves the loads between as they were. A single move is the path of
length one, so no single move can improve the result either.

1. Every member starts with what it keeps (`sticky.py`).
2. The free partitions are poured into the least loaded subscribers of their topics, topics with the fewest
   subscribers first. With two or three kinds of subscription, that is usually all.
3. While there is an improving path from the most loaded member, it is followed (`paths.py`).
4. Partitions taken from their owners on the way are given back as far as the best balance allows (`returns.py`).

Both searches run until they prove that nothing is left to find, so both the balance and the number of moves are the
best possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from muster.assignors.holdings import Holdings
from muster.assignors.layout import Layout
from muster.assignors.paths import balance
from muster.assignors.returns import give_back


def deal(places: Sequence[int], needs: list[tuple[int, int]], shares: list[list[int]]) -> list[int]:
    """Deal places in turn to (member, how many); return the members in the order in which they were filled.

    `places` holds exactly as many as are needed. Whole rounds are dealt at once, as slices, until the next member is
    filled.
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


def pour(loads: list[int], subscribers: list[int], amount: int) -> list[tuple[int, int]]:
    """Raise the lowest loads among the subscribers by a total of `amount`, as water would; return (member, by how
    much).

    `loads` is changed. Load and member are sorted as one integer: pairs would take three times as long.
    """
    base = len(loads)
    ranked = sorted([loads[member] * base + member for member in subscribers])
    below = 0
    width = 0
    for rank in ranked:
        load = rank // base
        if load * width - below >= amount:
            break
        below += load
        width += 1
    level, one_more = divmod(amount + below, width)
    raised: list[tuple[int, int]] = []
    for seat, rank in enumerate(ranked[:width]):
        member = rank % base
        target = level + 1 if seat < one_more else level
        if target > loads[member]:
            raised.append((member, target - loads[member]))
            loads[member] = target
    return raised


def share_mixed(layout: Layout, owner: list[int], shares: list[list[int]], free: list[list[int]]) -> None:
    """Complete `shares` with the places in `free` (by topic), then balance.

    `shares` is indexed by member, `owner` by place. Topics with the same subscribers are handled as one.
    """
    active = [member for member, topics in enumerate(layout.wanted) if topics]
    groups = sorted(layout.groups(), key=lambda group: (len(group[1]), group[0]))
    subscribers = [members for _, members in groups]
    loads, poured = _pour_all(shares, active, subscribers, [_size(free, topics) for topics, _ in groups])
    if _spread(loads, active) > 1:
        fair, _ = _pour_all([[] for _ in shares], active, subscribers, [_total(layout, topics) for topics, _ in groups])
        if _release(layout, [load + 1 for load in fair], shares, free):
            loads, poured = _pour_all(shares, active, subscribers, [_size(free, topics) for topics, _ in groups])
    for group, needs in poured.items():
        deal(list(chain.from_iterable(free[topic] for topic in groups[group][0])), needs, shares)
    if _spread(loads, active) > 1:
        holdings = Holdings(layout, owner, shares)
        balance(holdings)
        give_back(holdings)
        shares[:] = holdings.shares()


def _size(free: list[list[int]], topics: list[int]) -> int:
    return sum(len(free[topic]) for topic in topics)


def _total(layout: Layout, topics: list[int]) -> int:
    return sum(layout.counts[topic] for topic in topics)


def _pour_all(
    shares: list[list[int]], active: list[int], subscribers: list[list[int]], amounts: list[int]
) -> tuple[list[int], dict[int, list[tuple[int, int]]]]:
    """Pour the free partitions of each group of topics, then each group again on top of the others while that evens the
    loads.

    Nothing has been dealt yet, so pouring again moves nothing; it is much cheaper than following paths afterwards.
    Returns the loads and, for each group, how many each member gets.
    """
    loads = [len(places) for places in shares]
    poured = {group: pour(loads, subscribers[group], amount) for group, amount in enumerate(amounts) if amount}
    squares = _squares(loads)
    while _spread(loads, active) > 1:
        for group in poured:
            for member, by in poured[group]:
                loads[member] -= by
            poured[group] = pour(loads, subscribers[group], amounts[group])
        before, squares = squares, _squares(loads)
        if squares >= before:
            break
    return loads, poured


def _release(layout: Layout, most: list[int], shares: list[list[int]], free: list[list[int]]) -> bool:
    """Free in one step whatever members hold above `most`; return whether there was anything to free.

    It saves a path for each such partition. Places that need not have been freed come back in the end: `give_back` is
    exact.
    """
    over = [member for member, places in enumerate(shares) if len(places) > most[member]]
    if over:
        number, topic_of = layout.number_of, layout.topic_of
        for member in over:
            shares[member].sort(key=number.__getitem__)
            for place in shares[member][most[member] :]:
                free[topic_of[place]].append(place)
            del shares[member][most[member] :]
    return bool(over)


def _squares(loads: list[int]) -> int:
    return sum(load * load for load in loads)


def _spread(loads: list[int], active: list[int]) -> int:
    held = [loads[member] for member in active]
    return max(held) - min(held)
