"""`range`: topic by topic, neighbouring partitions to each member, the first members getting one more.

Members with equal subscriptions get the same partition numbers of every topic that has the same partition count,
which is what joins of co-partitioned topics rely on. The result is that of Kafka's RangeAssignor where no racks are
known.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.assignors.base import Assignor, MemberAssignment, MemberSubscription, sorted_members, subscribed_counts
from muster.assignors.layout import topic_partitions
from muster.model import TopicPartition


class RangeAssignor(Assignor):
    """Consecutive partitions of each topic to consecutive members."""

    name = "range"

    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Share out topic by topic; the order within a member is by topic and partition."""
        counts = subscribed_counts(partitions_per_topic, members)
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        consumers: dict[str, list[list[TopicPartition]]] = {topic: [] for topic in counts}
        for member_id in sorted_members(members):
            for topic in set(members[member_id].topics):
                if topic in consumers:
                    consumers[topic].append(assigned[member_id])
        for topic, count in counts.items():
            _split(topic_partitions(topic, count), consumers[topic])
        return {member_id: MemberAssignment(partitions) for member_id, partitions in assigned.items()}


def _split(partitions: list[TopicPartition], consumers: list[list[TopicPartition]]) -> None:
    share, larger = divmod(len(partitions), len(consumers))
    at = 0
    for place, consumer in enumerate(consumers):
        end = at + share + (place < larger)
        if at == end:
            break
        consumer += partitions[at:end]
        at = end
