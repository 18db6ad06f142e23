"""`range`: topic by topic, neighbouring partitions to each member, the first members getting one more.

Members with equal subscriptions get the same partition numbers of every topic that has the same partition count,
which is what joins of co-partitioned topics rely on. The result is that of Kafka's RangeAssignor where no racks are
known.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members
from muster.assignors.layout import Layout


class RangeAssignor(Assignor):
    """Consecutive partitions of each topic to consecutive members."""

    name = "range"

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Share out topic by topic; the order within a member is by topic and partition."""
        order = sorted_members(members)
        layout = Layout(partitions_per_topic, [members[member_id].topics for member_id in order])
        subscribers = layout.subscribers()
        assigned: list[list[int]] = [[] for _ in order]
        for start, end, takers in zip(layout.starts, layout.starts[1:], subscribers, strict=False):
            _split(range(start, end), takers, assigned)
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
