"""The cluster as its brokers see it: the nodes, and the leader of a partition.

Handlers ask this view and assume nothing about nodes. `ClusterView` is that of a broker alone, whose answers are always
the one broker; image_view.py has that of a broker among others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.model import NO_LEADER_EPOCH, Node

LEADER_EPOCH = 0

NO_LEADER = -1

LEADER_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors with which a client is told the leader (KIP-951)."""


class Leadership(NamedTuple):
    """The nodes that have a partition, by id, and its leader epoch; the leader is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]
    """Replicas whose brokers are away, or cannot open them."""

    @property
    def error(self) -> int:
        """What Metadata answers for the partition."""
        return ErrorCode.LEADER_NOT_AVAILABLE if self.leader == NO_LEADER else 0


class LeaderHint(NamedTuple):
    """What a client is told that asked another broker than the leader."""

    leader: int
    leader_epoch: int
    node: Node | None


class ClusterView:
    """A cluster of one broker."""

    def __init__(self, cluster_id: str, node: Node) -> None:
        self.cluster_id = cluster_id
        self.node = node
        """This broker and its advertised address, which is complete once the port is open."""
        self.draft_node: Node | None = None
        """This broker's listener for members of groups as Kafka's drafts had them, if it has one."""
        self.is_offline: Callable[[str, int], bool] = lambda topic, index: False
        """Whether this broker has a partition that it cannot open."""

    @property
    def nodes(self) -> list[Node]:
        """The brokers of the cluster."""
        return [self.node]

    @property
    def controller_id(self) -> int:
        """The node that creates and deletes topics."""
        return self.node.node_id

    def is_registered(self, node_id: int) -> bool:
        """Whether there is such a broker."""
        return node_id == self.node.node_id

    def node_of(self, node_id: int) -> Node | None:
        """A broker by its id, None if it is not there."""
        return self.node if node_id == self.node.node_id else None

    def draft_node_of(self, node_id: int) -> Node | None:
        """A broker's listener for the drafts, None if it has none."""
        return self.draft_node if node_id == self.node.node_id else None

    def may_have_topic(self, topic: str) -> bool:
        """Whether there may be a topic of that name, though this broker does not have it in its catalogue."""
        return False

    def leadership(self, topic: str, index: int) -> Leadership:
        """The nodes of a partition that exists. One that cannot be opened has no leader: producers without keys take
        another, and consumers wait for it."""
        only = [self.node.node_id]
        if self.is_offline(topic, index):
            return Leadership(NO_LEADER, LEADER_EPOCH, only, [], only)
        return Leadership(self.node.node_id, LEADER_EPOCH, only, only, [])

    def leader_hint(self, topic: str, index: int) -> LeaderHint:
        """The leader of a partition, and its address."""
        nodes = self.leadership(topic, index)
        return LeaderHint(nodes.leader, nodes.leader_epoch, self.node_of(nodes.leader))

    def leader_epoch(self, topic: str, index: int) -> int:
        """The leader epoch of a partition that this broker leads."""
        return LEADER_EPOCH

    def check_leader_epoch(self, topic: str, index: int, epoch: int) -> None:
        """Refuse a request with another leader epoch than that of a partition which this broker leads; -1 stands for
        none.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if epoch != NO_LEADER_EPOCH and epoch != (current := self.leader_epoch(topic, index)):
            older = epoch < current
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def why_not_here(self, topic: str, index: int) -> ErrorCode:
        """What is said of a partition that this broker does not lead, or that does not exist."""
        offline = self.is_offline(topic, index)
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
