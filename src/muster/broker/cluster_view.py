"""The cluster as its brokers see it: which nodes there are, who leads a partition, who coordinates a group.

Handlers ask this, never a node of their own: today the answer is always the one broker there is, but the questions are
those of a cluster of several.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.model import Node

LEADER_EPOCH = 0


class Leadership(NamedTuple):
    """Who has a partition: node ids, and how often its leader has changed."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class ClusterView:
    """A cluster of one broker."""

    def __init__(self, cluster_id: str, node: Node) -> None:
        self.cluster_id = cluster_id
        self.node = node
        """This broker, and where clients reach it: known in full when its port is open."""

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

    def leadership(self, topic: str, index: int) -> Leadership:
        """Who has a partition that exists."""
        only = [self.node.node_id]
        return Leadership(self.node.node_id, LEADER_EPOCH, only, only)

    def coordinator(self, group_id: str) -> Node:
        """Who coordinates a group."""
        return self.node

    def check_leader_epoch(self, topic: str, index: int, epoch: int) -> None:
        """Refuse a client that knows of another leader of a partition than this one; -1 knows of none.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if epoch >= 0 and epoch != LEADER_EPOCH:
            older = epoch < LEADER_EPOCH
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
