"""`roundrobin`: all partitions of all topics in one row, dealt to the members in turn.

A member that does not subscribe to a partition's topic is skipped. The result is that of Kafka's
RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members
from muster.assignors.layout import Layout


class RoundRobinAssignor(Assignor):
    """One partition to each member in turn, across all topics."""

    name = "roundrobin"

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Deal the partitions; each member's are ordered by topic and partition."""
        order = sorted_members(members)
        layout = Layout(partitions_per_topic, [members[member_id].topics for member_id in order])
        subscribers = layout.subscribers()
        assigned: list[list[int]] = [[] for _ in order]
        turn = 0
        for _, run in groupby(range(len(subscribers)), key=lambda topic: id(subscribers[topic])):
            topics = list(run)
            places = range(layout.starts[topics[0]], layout.starts[topics[-1] + 1])
            turn = _deal(places, subscribers[topics[0]], turn, assigned)
        return {
            member_id: MemberAssignment.of_places(layout, places)
            for member_id, places in zip(order, assigned, strict=True)
        }


def _deal(places: range, circle: list[int], turn: int, assigned: list[list[int]]) -> int:
    """Deal among the members of `circle`, starting with the first at or after `turn`; return the next turn."""
    first = next((seat for seat, member in enumerate(circle) if member >= turn), 0)
    circle = circle[first:] + circle[:first]
    width = len(circle)
    for seat, member in enumerate(circle[: len(places)]):
        assigned[member] += places[seat::width]
    return circle[(len(places) - 1) % width] + 1
