"""Finds the broker that has a partition of a transaction."""

from __future__ import annotations

from muster.broker.cluster_view import ClusterView
from muster.broker.groups.coordination import Coordination
from muster.broker.topics.catalogue import TopicCatalogue
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Node, TopicPartition


class PartitionLocator:
    """The partitions that a transaction may have, and their brokers.

    Groups that are kept in ZooKeeper have slots instead of partitions; in a transaction these are named as if they were
    partitions of `__consumer_offsets`.
    """

    def __init__(self, cluster: ClusterView, topics: TopicCatalogue, groups: Coordination) -> None:
        self._cluster = cluster
        self._topics = topics
        self._groups = groups

    def is_here(self, node: Node) -> bool:
        """Whether a broker is this one."""
        return node.node_id == self._cluster.node.node_id

    def is_slot(self, where: TopicPartition) -> bool:
        """Whether the partition is a slot of groups that have no topic."""
        return where.topic == GROUP_METADATA_TOPIC and 0 <= where.partition < self._groups.slots_without_topic

    def is_known(self, where: TopicPartition) -> bool:
        """Whether the partition can be added to a transaction."""
        return self.is_slot(where) or 0 <= where.partition < self._topics.partition_count(where.topic)

    def is_gone(self, where: TopicPartition) -> bool:
        """Whether the partition was certainly deleted: this broker may not know yet about one that exists."""
        return not self.is_known(where) and not self._cluster.may_have_topic(where.topic)

    def coordinators(self) -> dict[Node, list[int]] | None:
        """The brokers that coordinate transactions, with their slots; None while a slot has none."""
        count = self._topics.partition_count(TRANSACTION_STATE_TOPIC)
        if not count and self._cluster.may_have_topic(TRANSACTION_STATE_TOPIC):
            return None
        found: dict[Node, list[int]] = {}
        for slot in range(count):
            node = self.leader(TopicPartition(TRANSACTION_STATE_TOPIC, slot))
            if node is None:
                return None
            found.setdefault(node, []).append(slot)
        return found

    def coordinator_epochs(self) -> list[int]:
        """The epochs of the slots' coordinators."""
        count = self._topics.partition_count(TRANSACTION_STATE_TOPIC)
        return [self._cluster.leadership(TRANSACTION_STATE_TOPIC, slot).leader_epoch for slot in range(count)]

    def leader(self, where: TopicPartition) -> Node | None:
        """The broker that has the partition now, None if none does."""
        if self.is_slot(where):
            return self._groups.owner(where.partition)
        if not self.is_known(where):
            return None
        return self._cluster.node_of(self._cluster.leadership(*where).leader)
