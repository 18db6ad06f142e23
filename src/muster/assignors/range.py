"""`range`: topic by topic, each member gets adjacent partitions, and the first members get one more.

Members with equal subscriptions get the same partition numbers of every topic that has the same partition count,
which is what joins of co-partitioned topics rely on. The result is that of Kafka's RangeAssignor.

If racks matter (`racks.py`), each member first gets the partitions that it can read in its own rack, up to its
share, and then what is left. Topics with the same number of partitions and the same members are assigned together: a
partition number goes to a member whose rack fits for all of them, or waits until the end, so joins still find what they
need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members
from muster.assignors.layout import Layout
from muster.assignors.racks import NO_RACKS, PartitionRacks, Racks


class RangeAssignor(Assignor):
    """Consecutive partitions of each topic to consecutive members."""

    name = "range"

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Assign topic by topic; each member's partitions are ordered by topic and partition."""
        return self.assign_by_rack(partitions_per_topic, members, NO_RACKS)

    def assign_by_rack(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks,
    ) -> dict[str, MemberAssignment]:
        """The same, with partitions of a member's own rack first."""
        order = sorted_members(members)
        layout = Layout(partitions_per_topic, [members[member_id].topics for member_id in order])
        subscribers = layout.subscribers()
        spans = [range(start, end) for start, end in zip(layout.starts, layout.starts[1:], strict=False)]
        assigned: list[list[int]] = [[] for _ in order]
        if racks:
            where = Racks(layout, [members[member_id].rack_id for member_id in order], racks)
            shares = [_Topic(span, takers, where) for span, takers in zip(spans, subscribers, strict=True)]
        else:
            shares = []
        if any(share.matters for share in shares):
            _split_by_rack(shares, assigned)
        else:
            for span, takers in zip(spans, subscribers, strict=True):
                _split(span, takers, assigned)
        return {
            member_id: MemberAssignment.of_places(layout, places)
            for member_id, places in zip(order, assigned, strict=True)
        }


def _split(places: range, takers: list[int], assigned: list[list[int]]) -> None:
    share, larger = divmod(len(places), len(takers))
    at = 0
    for seat, member in enumerate(takers):
        end = at + share + (seat < larger)
        if at == end:
            break
        assigned[member] += places[at:end]
        at = end


class _Topic:
    """One topic while it is being assigned: `free` are its places that have no member yet, in order."""

    def __init__(self, places: range, takers: list[int], racks: Racks) -> None:
        self.places = places
        self.takers = takers
        self.racks = racks
        self.matters = racks.matter(takers, places)
        self.knows_racks = any(racks.of_member[member] is not None for member in takers)
        self.free = dict.fromkeys(places)
        self._share, self._larger = divmod(len(places), len(takers))
        self._given = dict.fromkeys(takers, 0)

    def room(self, member: int) -> int:
        """How many more the member may get now: while larger shares are left, it may get one of them."""
        return max(0, self._share + (self._larger > 0) - self._given[member])

    def give(self, member: int, places: list[int], assigned: list[list[int]]) -> None:
        """Give the places to the member."""
        assigned[member] += places
        self._given[member] += len(places)
        self._larger -= self._given[member] > self._share
        for place in places:
            del self.free[place]

    def split(self, may: Callable[[int, int], bool], assigned: list[list[int]]) -> None:
        """Give each member in turn the first free places that it may have, up to its share."""
        for member in self.takers:
            found = list(islice((place for place in self.free if may(member, place)), self.room(member)))
            if found:
                self.give(member, found, assigned)


def _split_by_rack(topics: list[_Topic], assigned: list[list[int]]) -> None:
    together: dict[tuple[int, int], list[_Topic]] = {}
    for topic in topics:
        if topic.knows_racks:
            together.setdefault((id(topic.takers), len(topic.places)), []).append(topic)
    for alike in together.values():
        if len(alike) > 1:
            _split_together(alike, assigned)
        elif alike[0].matters:
            alike[0].split(alike[0].racks.fit, assigned)
    for topic in topics:
        topic.split(lambda _member, _place: True, assigned)
    for places in assigned:
        places.sort()


def _split_together(topics: list[_Topic], assigned: list[list[int]]) -> None:
    """Give the same partition number of all topics to one member if its rack fits for all of them."""
    waiting = list(topics[0].takers)
    for number in range(len(topics[0].places)):
        for member in waiting:
            if all(topic.room(member) and topic.racks.fit(member, topic.places[number]) for topic in topics):
                for topic in topics:
                    topic.give(member, [topic.places[number]], assigned)
                if not any(topic.room(member) for topic in topics):
                    waiting.remove(member)
                break
