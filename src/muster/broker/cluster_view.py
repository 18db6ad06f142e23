"""The cluster as its brokers see it: the nodes, the leader of a partition, the coordinator of a group.

Handlers ask this view and assume nothing about nodes. Today the answer is always the one broker; with several brokers
only the answers would change.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import ErrorCode, KafkaError
from muster.model import Node

LEADER_EPOCH = 0


class Leadership(NamedTuple):
    """The nodes that have a partition, by id, and its leader epoch."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class ClusterView:
    """A cluster of one broker."""

    def __init__(self, cluster_id: str, node: Node) -> None:
        self.cluster_id = cluster_id
        self.node = node
        """This broker and its advertised address, which is complete once the port is open."""

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
        """The nodes of a partition that exists."""
        only = [self.node.node_id]
        return Leadership(self.node.node_id, LEADER_EPOCH, only, only)

    def coordinator(self, group_id: str) -> Node:
        """The coordinator of a group."""
        return self.node

    def check_leader_epoch(self, topic: str, index: int, epoch: int) -> None:
        """Refuse a request with another leader epoch than the partition's; -1 stands for none.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if epoch >= 0 and epoch != LEADER_EPOCH:
            older = epoch < LEADER_EPOCH
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
