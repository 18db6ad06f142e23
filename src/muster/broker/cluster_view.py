"""The cluster as its brokers see it: the nodes, and the leader of a partition.

Handlers ask this view and assume nothing about nodes. `ClusterView` is the view of a standalone broker, which always
answers with itself; image_view.py has the view of a broker in a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.model import NO_LEADER_EPOCH, Node

LEADER_EPOCH = 0

NO_LEADER = -1

LEADER_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors whose answers include the current leader (KIP-951)."""


class Leadership(NamedTuple):
    """A partition's replicas by node id, and its leader epoch; the leader is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]
    """Replicas whose brokers are down or cannot open them."""

    @property
    def error(self) -> int:
        """The partition's error in Metadata."""
        return ErrorCode.LEADER_NOT_AVAILABLE if self.leader == NO_LEADER else 0


class LeaderHint(NamedTuple):
    """The current leader, for a client that asked another broker."""

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
        """This broker's listener for the draft protocol, if it has one."""
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
        """Whether the broker is registered."""
        return node_id == self.node.node_id

    def node_of(self, node_id: int) -> Node | None:
        """A broker by its id, None if it is not registered."""
        return self.node if node_id == self.node.node_id else None

    def draft_node_of(self, node_id: int) -> Node | None:
        """A broker's listener for the draft protocol, None if it has none."""
        return self.draft_node if node_id == self.node.node_id else None

    def may_have_topic(self, topic: str) -> bool:
        """Whether the topic may exist although it is not in this broker's catalogue."""
        return False

    def leadership(self, topic: str, index: int) -> Leadership:
        """The nodes of an existing partition. One that cannot be opened has no leader: producers without keys choose
        another partition, and consumers wait for it."""
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
        """Refuse a request whose leader epoch differs from that of a partition that this broker leads; -1 means none.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if epoch != NO_LEADER_EPOCH and epoch != (current := self.leader_epoch(topic, index)):
            older = epoch < current
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def not_led_error(self, topic: str, index: int) -> ErrorCode:
        """The error for a partition that this broker does not lead, or that does not exist."""
        offline = self.is_offline(topic, index)
        return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
