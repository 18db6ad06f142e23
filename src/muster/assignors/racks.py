"""Racks (KIP-881): which members can read which partitions from a replica in their own rack.

With a `client.rack`, a member fetches from a replica in that rack if there is one (KIP-392), so partitions with such a
replica cost less to read. Balance comes first, racks second and stickiness third, as in Kafka 4.2. Racks matter only if
members share racks with partitions, and not all partitions are in all racks: otherwise the assignors ignore them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from muster.assignors.layout import Layout

PartitionRacks = Mapping[str, Sequence[frozenset[str]]]
"""For each topic, for each partition: the racks of its replicas, including those that are down."""

NO_RACKS: PartitionRacks = {}

_NOWHERE: frozenset[str] = frozenset()


class Racks:
    """The racks of members and places of a layout.

    Attributes:
        of_member: a member's rack, None if it named none.
        of_place: the racks of a place's replicas.
    """

    def __init__(self, layout: Layout, members: Iterable[str | None], racks: PartitionRacks) -> None:
        self.of_member = [rack or None for rack in members]
        self.of_place = list(chain.from_iterable(map(_padded, map(racks.get, layout.topics), layout.counts)))

    def matter(self, members: Iterable[int], places: Iterable[int]) -> bool:
        """Whether racks make a difference to which of these members gets which of these places."""
        wanted = {rack for member in members if (rack := self.of_member[member]) is not None}
        if not wanted:
            return False
        found = {self.of_place[place] for place in places}
        everywhere = _NOWHERE.union(*found)
        return not wanted.isdisjoint(everywhere) and found != {everywhere}

    def fit(self, member: int, place: int) -> bool:
        """Whether the member can read the place in its own rack, or does not say where it is."""
        rack = self.of_member[member]
        return rack is None or rack in self.of_place[place]

    def near(self, member: int, place: int) -> bool:
        """Whether the member is known to be in a rack of the place."""
        return self.of_member[member] in self.of_place[place]

    def rarest_first(self, places: Iterable[int]) -> list[int]:
        """Places with the fewest members in their racks first, otherwise in order."""
        members = Counter(rack for rack in self.of_member if rack is not None)
        near = {racks: sum(members[rack] for rack in racks) for racks in set(self.of_place)}
        return sorted(places, key=lambda place: near[self.of_place[place]])


def _padded(racks: Sequence[frozenset[str]] | None, count: int) -> list[frozenset[str]]:
    known = list(racks or ())[:count]
    return known + [_NOWHERE] * (count - len(known))
