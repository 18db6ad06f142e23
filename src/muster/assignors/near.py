"""`sticky` and `cooperative-sticky` if racks matter: balance first, near replicas second, few moves third.

With equal subscriptions the steps are those of Kafka 4.2's AbstractStickyAssignor, so that a fresh group gets the same
assignment:

1. A member keeps what it owns in its own rack, up to its share.
2. Free partitions are dealt in turn to members in one of their racks, those with the fewest such members first.
3. The rest is dealt in turn to all members that have room.

With mixed subscriptions Kafka searches until it finds no better balance, and may miss the best one. Here members keep
what they own in their racks, a free partition goes to the least loaded member in one of its racks, and `paths.py` finds
the best balance. Then members trade partitions, one for one, while that brings more of them near, or back to their
owner.
"""

from __future__ import annotations

from collections import deque

from muster.assignors.holdings import Holdings
from muster.assignors.layout import Layout
from muster.assignors.paths import balance
from muster.assignors.racks import Racks

_MAX_TRADES_CONSIDERED = 500_000
"""Racks only reduce cost: a rebalance must not wait for a long search."""


def share_by_rack(layout: Layout, owner: list[int], racks: Racks) -> list[list[int]]:
    """Give every place of the layout to a member that subscribes to its topic."""
    active = [member for member, topics in enumerate(layout.wanted) if topics]
    if len({layout.wanted[member] for member in active}) == 1:
        return _Dealer(layout, owner, racks, active).deal()
    return _share_mixed(layout, owner, racks)


# --- equal subscriptions ---------------------------------------------------------------------------------------------


class _Dealer:
    """Deals to members that all want the same. `below` have less than the smaller share, `even` have exactly that and
    may have one more; `larger` is how many may still get the larger share."""

    def __init__(self, layout: Layout, owner: list[int], racks: Racks, active: list[int]) -> None:
        self._layout = layout
        self._racks = racks
        self._share, self._larger = divmod(layout.total, len(active))
        self._shares: list[list[int]] = [[] for _ in layout.wanted]
        self._below: list[int] = []
        self._even: list[int] = []
        self._free = dict.fromkeys(range(layout.total))
        self._keep(owner, active)

    def deal(self) -> list[list[int]]:
        """The places of each member."""
        waiting = [place for place in self._racks.rarest_first(self._free) if not self._to_a_near_one(place)]
        turns = deque(self._below)
        even = deque(self._even)
        for place in waiting:
            member = turns.popleft() if turns else even.popleft()
            places = self._shares[member]
            places.append(place)
            if len(places) < self._share:
                turns.append(member)
            elif len(places) == self._share:
                even.append(member)
        return self._shares

    def _keep(self, owner: list[int], active: list[int]) -> None:
        owned: list[list[int]] = [[] for _ in self._shares]
        for place, member in enumerate(owner):
            if member >= 0 and self._racks.fit(member, place):
                owned[member].append(place)
        number_of = self._layout.number_of
        for member in active:
            owned[member].sort(key=number_of.__getitem__)  # low numbers stay, across all topics
            most = self._share
            if len(owned[member]) < most:
                self._below.append(member)
            elif len(owned[member]) > most and self._larger:
                most += 1
                self._larger -= 1
            else:
                self._even.append(member)
            self._shares[member] = owned[member][:most]
            for place in self._shares[member]:
                del self._free[place]
        self._turn = 0
        if not self._larger:
            self._even.clear()

    def _to_a_near_one(self, place: int) -> bool:
        """Give a place to a member in one of its racks, if one has room."""
        seat = self._seat(place, self._below, self._turn)
        if seat is not None:
            self._fill(seat, place)
            return True
        seat = self._seat(place, self._even, 0)
        if seat is None:
            return False
        self._shares[self._even.pop(seat)].append(place)
        self._larger -= 1
        if not self._larger:
            self._even.clear()
        return True

    def _seat(self, place: int, members: list[int], first: int) -> int | None:
        for offset in range(len(members)):
            seat = (first + offset) % len(members)
            if self._racks.near(members[seat], place):
                return seat
        return None

    def _fill(self, seat: int, place: int) -> None:
        member = self._below[seat]
        self._shares[member].append(place)
        if len(self._shares[member]) >= self._share:
            del self._below[seat]
            if self._larger:
                self._even.append(member)
        else:
            seat += 1
        self._turn = seat % len(self._below) if self._below else 0


# --- mixed subscriptions ---------------------------------------------------------------------------------------------


def _share_mixed(layout: Layout, owner: list[int], racks: Racks) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in layout.wanted]
    free: list[int] = []
    topic_of = layout.topic_of
    for place, member in enumerate(owner):
        kept = member >= 0 and topic_of[place] in layout.wanted[member] and racks.fit(member, place)
        (shares[member] if kept else free).append(place)
    subscribers = layout.subscribers()
    free.sort(key=lambda place: len(subscribers[topic_of[place]]))
    for place in [place for place in free if not _to_the_lightest(place, subscribers[topic_of[place]], shares, racks)]:
        _to_the_lightest(place, subscribers[topic_of[place]], shares, None)
    holdings = Holdings(layout, owner, shares)
    balance(holdings)
    _Trade(holdings, racks, subscribers).all()
    return holdings.shares()


def _to_the_lightest(place: int, takers: list[int], shares: list[list[int]], racks: Racks | None) -> bool:
    fitting = takers if racks is None else [member for member in takers if racks.fit(member, place)]
    if not fitting:
        return False
    shares[min(fitting, key=lambda member: len(shares[member]))].append(place)
    return True


class _Trade:
    """Trades between members that leave the loads as they are, or swap two loads that differ by one."""

    def __init__(self, holdings: Holdings, racks: Racks, subscribers: list[list[int]]) -> None:
        self._holdings = holdings
        self._racks = racks
        self._subscribers = subscribers
        self._considered = 0

    def all(self) -> None:
        """Trade until no trade helps; each one brings more partitions near, or as many near and more back to their
        owners."""
        places = range(len(self._holdings.holder))
        while sum(self._improve(place) for place in places if self._may_gain(place)):
            if self._considered >= _MAX_TRADES_CONSIDERED:
                return

    def _worth(self, member: int, place: int) -> tuple[bool, bool]:
        return self._racks.fit(member, place), self._holdings.owner[place] == member

    def _gain(self, place: int, giver: int, taker: int) -> tuple[int, int]:
        (near, own), (near_now, own_now) = self._worth(taker, place), self._worth(giver, place)
        return near - near_now, own - own_now

    def _may_gain(self, place: int) -> bool:
        holder, owner = self._holdings.holder[place], self._holdings.owner[place]
        return not self._racks.fit(holder, place) or (owner >= 0 and owner != holder)

    def _improve(self, place: int) -> bool:
        holdings = self._holdings
        holder = holdings.holder[place]
        for taker in self._subscribers[holdings.topic_of[place]]:
            gain = self._gain(place, holder, taker)
            if taker == holder or gain <= (0, 0):
                continue
            if holdings.loads[holder] == holdings.loads[taker] + 1:
                holdings.move(place, holder, taker)
                return True
            back = self._in_return(holder, taker, gain)
            if back is not None:
                holdings.move(place, holder, taker)
                holdings.move(back, taker, holder)
                return True
            if self._considered >= _MAX_TRADES_CONSIDERED:
                return False
        return False

    def _in_return(self, holder: int, taker: int, gain: tuple[int, int]) -> int | None:
        """One of the taker's places that the holder can take in exchange without loss."""
        for topic, places in self._holdings.held[taker].items():
            if not self._holdings.wants(holder, topic):
                continue
            for place in places:
                self._considered += 1
                near, own = self._gain(place, taker, holder)
                if (gain[0] + near, gain[1] + own) > (0, 0):
                    return place
        return None
