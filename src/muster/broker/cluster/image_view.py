"""The cluster as one of its brokers sees it: `ClusterView`, answered from the broker's image of ZooKeeper.

An image may be out of date, and so may a client's metadata: the client asks again when a broker refuses it, and the
leader epoch shows which of the two is older.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.broker.cluster_view import NO_LEADER, ClusterView, Leadership
from muster.errors import ErrorCode
from muster.model import NO_LEADER_EPOCH, Node

if TYPE_CHECKING:
    from muster.zookeeper.base.image import ClusterImage

_UNKNOWN = Leadership(NO_LEADER, NO_LEADER_EPOCH, [], [], [])


class ImageView(ClusterView):
    """A cluster of several brokers, of which this is one."""

    def __init__(self, cluster_id: str, node: Node, image: ClusterImage) -> None:
        super().__init__(cluster_id, node)
        self._image = image

    @property
    def nodes(self) -> list[Node]:
        """The brokers that are registered, and that a client without encryption can reach, by id."""
        found = (registration.node for _, registration in sorted(self._image.brokers.items()))
        return [node for node in found if node is not None]

    @property
    def controller_id(self) -> int:
        """See `ClusterView.controller_id`; -1 while no broker is the controller."""
        return self._image.controller_id

    def is_registered(self, node_id: int) -> bool:
        """See `ClusterView.is_registered`."""
        return node_id in self._image.brokers

    def node_of(self, node_id: int) -> Node | None:
        """See `ClusterView.node_of`."""
        found = self._image.brokers.get(node_id)
        return found.node if found is not None else None

    def draft_node_of(self, node_id: int) -> Node | None:
        """See `ClusterView.draft_node_of`."""
        found = self._image.brokers.get(node_id)
        return found.draft_node if found is not None else None

    def may_have_topic(self, topic: str) -> bool:
        """See `ClusterView.may_have_topic`: its znode is damaged, its id or a partition is missing for now; or the
        whole topic is missing, though it was not deleted."""
        return not self._image.is_deleted(topic)

    def leadership(self, topic: str, index: int) -> Leadership:
        """See `ClusterView.leadership`. A leader that is not registered, or cannot open the partition, does not count:
        the partition's state will be updated soon."""
        found = self._image.topics.get(topic)
        if found is None:
            return _UNKNOWN
        replicas = found.registration.partitions.get(index, [])
        alive = self._image.able(found, index)
        offline = [replica for replica in replicas if replica not in alive]
        known = found.states.get(index)
        if known is None:  # the controller has not seen the new partition yet
            return Leadership(NO_LEADER, NO_LEADER_EPOCH, replicas, [], offline)
        state = known.state
        leader = state.leader if state.leader in alive else NO_LEADER
        return Leadership(leader, state.leader_epoch, replicas, state.isr, offline)

    def leader_epoch(self, topic: str, index: int) -> int:
        """See `ClusterView.leader_epoch`."""
        found = self._image.topics.get(topic)
        known = found.states.get(index) if found is not None else None
        return known.state.leader_epoch if known is not None else NO_LEADER_EPOCH

    def not_led_error(self, topic: str, index: int) -> ErrorCode:
        """See `ClusterView.not_led_error`: a partition that exists is led by another broker, or by none."""
        found = self._image.topics.get(topic)
        if found is None or index not in found.registration.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        here = self.node.node_id in found.registration.partitions[index]
        return (
            ErrorCode.KAFKA_STORAGE_ERROR
            if here and self.is_offline(topic, index)
            else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
