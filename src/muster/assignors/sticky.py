"""`sticky` and `cooperative-sticky`: as balanced as possible and, within that, with as few moves as possible.

Theory
------
1. Every member states what it owns and in which generation. `Layout.settle` turns the claims into at most one rightful
   owner for each partition.
2. With equal subscriptions (leaving aside members without an existing topic), P partitions over M members make a quota
   of P // M, and P % M members have one more. A member keeps what it owns up to that; the members that own more than
   the quota are the first to be allowed one more. No other balanced assignment keeps more: each member keeps the most
   that any balanced assignment could leave it, and the extra places go first to members for which they save a move.
3. What is free then is dealt in turn, so that each topic is spread over the members (as Kafka's
   AbstractStickyAssignor does; the fresh assignment is the same as Kafka's).
4. With mixed subscriptions `mixed.py` does the rest.
5. If racks matter (`racks.py`), `near.py` assigns instead.

`sticky` is eager: members give everything up before they join, so the claims travel as user data, in the format of
Kafka's StickyAssignor (version 1: previous assignment and generation), and members of either kind can share a group.

`cooperative-sticky` (KIP-429) reads the owned partitions of the subscription, and their generation too since version 2
of the consumer protocol; before that, from the user data. A partition that has to move is left out of the assignment
altogether: its owner gives it up, joins again, and the next rebalance finds it free.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, RebalanceProtocol
from muster.assignors.layout import FREE, Claim, Layout, places_of
from muster.assignors.mixed import deal, share_mixed
from muster.assignors.near import share_by_rack
from muster.assignors.previous import PreviousReader, encode_previous_assignment
from muster.assignors.racks import NO_RACKS, PartitionRacks, Racks
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition

_INT32 = struct.Struct(">i")


class StickyAssignor(Assignor):
    """Balanced, and keeps as many partitions where they are as balance allows. Eager."""

    name = "sticky"

    def __init__(self) -> None:
        self._previous: list[TopicPartition] | None = None
        self._generation_id = UNKNOWN_GENERATION_ID

    def subscription_user_data(self, topics: Iterable[str]) -> bytes:
        """What this member owned last and in which generation, as Kafka's StickyAssignor writes it."""
        if self._previous is None:
            return b""
        return encode_previous_assignment(self._previous, self._generation_id)

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        """Remember the assignment for the next `subscription_user_data`."""
        self._previous = list(assignment.partitions)
        self._generation_id = generation_id

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Assign as described at the top of the file."""
        return self.assign_by_rack(partitions_per_topic, members, NO_RACKS)

    def assign_by_rack(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks,
    ) -> dict[str, MemberAssignment]:
        """The same, preferring partitions in the members' racks."""
        order = sorted(members)
        layout = Layout(partitions_per_topic, [members[member_id].topics for member_id in order])
        claims = self.claims(layout, [members[member_id] for member_id in order])
        owner = layout.settle(claims)
        where = Racks(layout, [members[member_id].rack_id for member_id in order], racks) if racks else None
        if where is not None and where.matter(range(len(order)), range(layout.total)):
            shares = share_by_rack(layout, owner, where)
        else:
            shares = share(layout, owner, claims)
        return {
            member_id: MemberAssignment.of_places(layout, self.granted(member, places, owner))
            for member, (member_id, places) in enumerate(zip(order, shares, strict=True))
        }

    def claims(self, layout: Layout, subscriptions: list[MemberSubscription]) -> list[Claim]:
        """What each member claims to own. Data that cannot be read claims nothing, as in Kafka."""
        reader = PreviousReader(layout)
        return [reader.read(subscription.user_data) for subscription in subscriptions]

    def granted(self, member: int, places: list[int], owner: list[int]) -> list[int]:
        """The part of a member's share that it may have now: all of it, since everything was given up."""
        return places


class CooperativeStickyAssignor(StickyAssignor):
    """`sticky` under cooperative rebalancing: partitions that move are revoked first and assigned in the next
    rebalance."""

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE)

    def subscription_user_data(self, topics: Iterable[str]) -> bytes:
        """The generation of the last assignment: the only place for it before version 2 of the subscription."""
        return _INT32.pack(self._generation_id)

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        """Remember the generation; the subscription has the owned partitions."""
        self._generation_id = generation_id

    def claims(self, layout: Layout, subscriptions: list[MemberSubscription]) -> list[Claim]:
        """Owned partitions and their generation, which is the subscription's own if it has one."""
        spans = layout.spans()
        return [(_generation(each), places_of(spans, each.owned_partitions)) for each in subscriptions]

    def granted(self, member: int, places: list[int], owner: list[int]) -> list[int]:
        """Leave out the places that another member still holds.

        A contested place is left out for all members, even for those that claim it: each of them has to give it up
        before one of them can have it.
        """
        return [place for place in places if owner[place] == member or owner[place] == FREE]


def _generation(subscription: MemberSubscription) -> int:
    if subscription.generation_id == UNKNOWN_GENERATION_ID and len(subscription.user_data) >= _INT32.size:
        return int(_INT32.unpack_from(subscription.user_data)[0])
    return subscription.generation_id


def share(layout: Layout, owner: list[int], claims: list[Claim]) -> list[list[int]]:
    """Give every place of the layout to a member that subscribes to its topic; `owner` comes from `settle`."""
    shares, free = _kept(layout, owner, claims)
    active = [member for member, topics in enumerate(layout.wanted) if topics]
    if len(set(layout.wanted) - {frozenset()}) <= 1:
        _share_equally(layout, shares, active, free)
    else:
        share_mixed(layout, owner, shares, layout.by_topic(free))
    return shares


def _kept(layout: Layout, owner: list[int], claims: list[Claim]) -> tuple[list[list[int]], Sequence[int]]:
    """Leave every place with its rightful owner if that still subscribes; the rest is free. All lists are in order."""
    shares = [sorted(places) for _, places in claims]
    claimed = sum(map(len, shares))
    if not claimed:
        return shares, range(layout.total)
    if claimed == layout.total - owner.count(FREE):  # no place is claimed twice, so every claim is right
        free = _places_of(FREE, owner)
    else:
        rightful = [sorted(set(places)) for places in shares]
        shares = [[place for place in places if owner[place] == member] for member, places in enumerate(rightful)]
        free = [place for place, member in enumerate(owner) if member < 0]
    unwanted: list[int] = []
    for member, topics in enumerate(layout.wanted):
        if len(topics) < len(layout.topics) and shares[member]:
            topic_of = layout.topic_of
            lost = [place for place in shares[member] if topic_of[place] not in topics]
            if lost:
                unwanted += lost
                shares[member] = [place for place in shares[member] if topic_of[place] in topics]
    return shares, sorted(free + unwanted) if unwanted else free


def _places_of(member: int, owner: list[int]) -> list[int]:
    """All places of one member in order, found as fast as a list can be searched: it holds few of them."""
    found: list[int] = []
    place = -1
    with suppress(ValueError):
        while True:
            place = owner.index(member, place + 1)
            found.append(place)
    return found


def _share_equally(layout: Layout, shares: list[list[int]], active: list[int], free: Sequence[int]) -> None:
    if not active:
        return
    quota, larger = divmod(layout.total, len(active))
    released, larger = _release(layout, shares, active, quota, larger)
    if released:
        free = sorted([*free, *released])
    even = [member for member in active if len(shares[member]) == quota]
    needs = [(member, quota - len(shares[member])) for member in active if len(shares[member]) < quota]
    dealt = sum(need for _, need in needs)
    filled = deal(free[:dealt], needs, shares)
    for member, place in zip((even + filled)[:larger], free[dealt:], strict=True):
        shares[member].append(place)


def _release(
    layout: Layout, shares: list[list[int]], active: list[int], quota: int, larger: int
) -> tuple[list[int], int]:
    """Take from every member what it holds above its quota; return that, and how many may still have one more.

    Low partition numbers are kept in all topics, so that a large owner stays spread over the topics.
    """
    released: list[int] = []
    over = [member for member in active if len(shares[member]) > quota]
    for member in over:
        keep = quota + (larger > 0)
        larger -= larger > 0
        ranked = sorted(shares[member], key=layout.number_of.__getitem__)
        shares[member] = ranked[:keep]
        released += ranked[keep:]
    return released, larger
