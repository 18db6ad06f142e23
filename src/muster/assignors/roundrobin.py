"""`roundrobin`: all partitions of all topics in one row, dealt to the members in turn.

A member that does not subscribe to a partition's topic is passed over. The result is that of Kafka's
RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members, subscribed_counts
from muster.assignors.layout import topic_partitions
from muster.model import TopicPartition


class RoundRobinAssignor(Assignor):
    """One partition to each member in turn, over all topics."""

    name = "roundrobin"

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Deal the partitions out; the order within a member is by topic and partition."""
        counts = subscribed_counts(partitions_per_topic, members)
        order = sorted_members(members)
        topics = [frozenset(members[member_id].topics) for member_id in order]
        assigned: list[list[TopicPartition]] = [[] for _ in order]
        turn = 0
        for topic, count in counts.items():
            circle = [place for place, subscribed in enumerate(topics) if topic in subscribed]
            turn = _deal(topic_partitions(topic, count), circle, turn, assigned)
        return {member_id: MemberAssignment(partitions) for member_id, partitions in zip(order, assigned, strict=True)}


def _deal(partitions: list[TopicPartition], circle: list[int], turn: int, assigned: list[list[TopicPartition]]) -> int:
    """Deal one topic among the places of `circle`, from the first at or after `turn` on; return the next turn."""
    first = next((at for at, place in enumerate(circle) if place >= turn), 0)
    circle = circle[first:] + circle[:first]
    width = len(circle)
    for at, place in enumerate(circle[: len(partitions)]):
        assigned[place] += partitions[at::width]
    return circle[(len(partitions) - 1) % width] + 1
