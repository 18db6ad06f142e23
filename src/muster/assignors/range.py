"""`range`: topic by topic, neighbouring partitions to each member, the first members getting one more.

Members with equal subscriptions get the same partition numbers of every topic that has the same partition count,
which is what joins of co-partitioned topics rely on. The result is that of Kafka's RangeAssignor where no racks are
known.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members
from muster.assignors.layout import Layout, topic_partitions
from muster.model import TopicPartition


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
        assigned: list[list[TopicPartition]] = [[] for _ in order]
        for topic, count, places in zip(layout.topics, layout.counts, subscribers, strict=True):
            _split(topic_partitions(topic, count), places, assigned)
        return {member_id: MemberAssignment(partitions) for member_id, partitions in zip(order, assigned, strict=True)}


def _split(partitions: list[TopicPartition], places: list[int], assigned: list[list[TopicPartition]]) -> None:
    share, larger = divmod(len(partitions), len(places))
    at = 0
    for seat, place in enumerate(places):
        end = at + share + (seat < larger)
        if at == end:
            break
        assigned[place] += partitions[at:end]
        at = end
