"""`muster coordinator`: a group coordinator for Apache Kafka clusters of the ZooKeeper era.

It has groups and no topics. The topics are Kafka's: it reads them, and the leaders of partitions, from ZooKeeper. The
groups are in ZooKeeper, too, divided among such coordinators as among the brokers of a cluster (slot_coordination.py).
Members join it and commit to it through the listener for the draft protocol, and fetch from Kafka. The other listener
is for administration of groups.

The rules are `muster.zookeeper.cluster.beside_kafka`; this file runs them on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from muster.broker import handlers
from muster.broker.cluster.follower import Follower, Session
from muster.broker.cluster.image_view import ImageView
from muster.broker.cluster.slot_coordination import ZooKeeperCoordination, check_settings, registration_of
from muster.broker.cluster_view import NO_LEADER, Leadership
from muster.broker.config import BrokerConfig
from muster.broker.group_server import GroupServer
from muster.broker.groups.service import Groups, GroupTopics
from muster.broker.identity import uuid_bytes
from muster.broker.topics.catalogue import Topic, Topics
from muster.coordinator.groups.effects import GroupEvent
from muster.model import Node
from muster.protocol.primitives import ZERO_UUID
from muster.zookeeper.base.image import ClusterImage, TopicImage
from muster.zookeeper.base.operations import SessionEvent, Watched
from muster.zookeeper.base.znodes import CoordinatorRegistration, topic_path
from muster.zookeeper.cluster.beside_kafka import BesideKafka

log = logging.getLogger("muster.broker")

ALL_GROUPS = ".*"

SETTINGS = frozenset({
    "node.id", "listeners", "advertised.listeners", "draft.listener", "zookeeper.connect",
    "zookeeper.session.timeout.ms", "max.connections", "connections.max.idle.ms", "socket.request.max.bytes",
    "socket.listen.backlog.size", "queued.max.request.bytes", "queued.max.response.bytes",
    "group.initial.rebalance.delay.ms", "group.min.session.timeout.ms", "group.max.session.timeout.ms",
    "group.max.size", "server.assigned.groups", "offsets.retention.minutes", "offsets.retention.check.interval.ms",
    "offset.metadata.max.bytes",
})  # fmt: skip
"""The broker's settings that apply without topics."""


class KafkasTopics(Topics):
    """Kafka's topics as the groups see them: those of the image, once the offsets of former topics with the same names
    are removed. Topics of Kafka before 2.8 have no ids."""

    def __init__(self, image: ClusterImage) -> None:
        super().__init__()
        self._image = image

    def gone(self) -> list[str]:
        """Topics that no longer exist, or whose names belong to new ones. A topic whose znode cannot be read now still
        exists."""
        return [topic.name for topic in self._by_name.values() if self._is_gone(topic.name, topic.topic_id)]

    def _is_gone(self, name: str, topic_id: bytes) -> bool:
        found = self._image.topics.get(name)
        if found is None:
            return topic_path(name) not in self._image.unreadable
        return ZERO_UUID not in (topic_id, _id(found)) and _id(found) != topic_id

    def forget(self, names: Iterable[str]) -> None:
        """These topics no longer exist."""
        for name in names:
            self._by_id.pop(self._by_name.pop(name).topic_id, None)

    def adopt(self) -> None:
        """Adopt the topics of the image."""
        for name, topic in self._image.topics.items():
            self._by_name[name] = Topic(name, _id(topic), len(topic.registration.partitions))
        self._by_id = {topic.topic_id: topic for topic in self if topic.topic_id != ZERO_UUID}


def _id(topic: TopicImage) -> bytes:
    try:
        return uuid_bytes(topic.registration.topic_id or "")
    except ValueError:
        return ZERO_UUID


class LeadersView(ImageView):
    """Kafka's partitions as the groups see them. When a broker dies, Kafka's controller soon elects another in-sync
    replica; taking the partition from its member for that moment would cost two rebalances."""

    def leadership(self, topic: str, index: int) -> Leadership:
        """See `ClusterView.leadership`, with the replica that is about to become the leader."""
        found = super().leadership(topic, index)
        if found.leader != NO_LEADER or self._was_given_up(topic, index):
            return found
        heirs = [replica for replica in found.in_sync if replica not in found.offline]
        return found._replace(leader=heirs[0]) if heirs else found

    def _was_given_up(self, topic: str, index: int) -> bool:
        """Whether the controller has recorded no state yet, or a state without a leader."""
        image = self._image.topics.get(topic)
        known = image.states.get(index) if image is not None else None
        return known is None or known.state.leader < 0


class CoordinatorsView(ImageView):
    """The cluster as administrators of groups see it: the nodes are the coordinators, and none leads any of Kafka's
    partitions."""

    def __init__(self, node: Node, image: ClusterImage) -> None:
        super().__init__("", node, image)
        self.live: Callable[[], Mapping[int, CoordinatorRegistration]] = dict
        """The live coordinators by id; set before the port is open."""

    @property
    def nodes(self) -> list[Node]:
        """The coordinators."""
        return [Node(number, found.host, found.port) for number, found in sorted(self.live().items())]

    @property
    def controller_id(self) -> int:
        """-1: none of the coordinators creates topics."""
        return -1

    def is_registered(self, node_id: int) -> bool:
        """See `ClusterView.is_registered`."""
        return node_id in self.live()

    def leadership(self, topic: str, index: int) -> Leadership:
        """See `ClusterView.leadership`. Without a leader to ask, Kafka's tools show no lag."""
        return super().leadership(topic, index)._replace(leader=NO_LEADER)

    def node_of(self, node_id: int) -> Node | None:
        """See `ClusterView.node_of`."""
        found = self.live().get(node_id)
        return Node(node_id, found.host, found.port) if found is not None else None

    def draft_node_of(self, node_id: int) -> Node | None:
        """See `ClusterView.draft_node_of`."""
        found = self.live().get(node_id)
        listener = found.draft_listener if found is not None else None
        return Node(node_id, listener.host, listener.port) if listener is not None else None


class KafkaFollower(Follower):
    """Follows what Kafka's brokers write, for the groups. `connect` first, `join` once the ports are known."""

    suspended = "commits wait"

    def __init__(self, config: BrokerConfig, session: Session) -> None:
        self.member = BesideKafka(config.integer("node.id"))
        super().__init__(self.member.coordinator_id, session, self.member.image)
        self.topics = KafkasTopics(self.image)
        self._cluster: CoordinatorsView
        self._groups: Groups
        self._coordination: ZooKeeperCoordination
        self._brokers: list[int] | None = None

    @property
    def is_registered(self) -> bool:
        """See `Follower.is_registered`."""
        return self.member.is_registered

    async def connect(self) -> None:
        """Start the session.

        Raises:
            ZooKeeperError: ZooKeeper does not answer, or has no such folder.
        """
        await self._open()

    async def join(self, cluster: CoordinatorsView, groups: Groups, coordination: ZooKeeperCoordination) -> None:
        """Register, and follow Kafka's cluster from now on. The image has been read when this returns.

        Raises:
            CoordinatorIdTakenError: another live coordinator has this id (it outlived the session timeout).
            ConfigError: this coordinator cannot use that ZooKeeper.
        """
        self._cluster, self._groups, self._coordination = cluster, groups, coordination
        await self._begin()

    def _on_session_event(self, event: Watched | SessionEvent) -> bool:
        return self.member.on_event(event)

    async def _turn(self) -> None:
        await self.session.run(self.member.turn(registration_of(self._cluster)))
        self._succeeded()
        self._cluster.cluster_id = self.member.cluster_id or ""
        gone = self.topics.gone()
        if gone:
            await self.session.run(self.member.check())
            self.topics.forget(gone)
            for _ in self._groups.topics_deleted(gone):
                await asyncio.sleep(0)
        self.topics.adopt()
        self._say_brokers()
        self._groups.topics_changed()
        self._coordination.followed()

    def _say_brokers(self) -> None:
        brokers = sorted(self.image.brokers)
        if brokers == self._brokers:
            return
        self._brokers = brokers
        if brokers:
            log.info("Kafka's brokers: %s", ", ".join(map(str, brokers)))
        else:
            log.warning("no Kafka broker is registered in ZooKeeper: members get no partitions until one is")
        if self.node_id in brokers:
            log.warning("a Kafka broker has this coordinator's id, %d: tools will confuse the two", self.node_id)


class CoordinatorServer(GroupServer):
    """A coordinator in this process, on the running loop."""

    cluster: CoordinatorsView

    def __init__(
        self, config: BrokerConfig, follower: KafkaFollower, on_event: Callable[[GroupEvent], None] | None = None
    ) -> None:
        if not config.is_set("server.assigned.groups"):
            config.set("server.assigned.groups", ALL_GROUPS)
        super().__init__(config, on_event)
        self._follower = follower

    @property
    def ends(self) -> list[asyncio.Event]:
        """See `GroupServer.ends`."""
        return [self._follower.lost]

    async def start(self) -> None:
        """Open the ports.

        Raises:
            MusterError: ZooKeeper does not answer or cannot be used by this coordinator, or a port cannot be opened.
        """
        check_settings(self.config)
        self.loop = asyncio.get_running_loop()
        try:
            await self._follower.connect()
            self._start_groups()
            await self._join()
        except BaseException:
            await self._follower.leave()
            raise
        self._accept()

    def _start_groups(self) -> None:
        follower = self._follower
        self.cluster = CoordinatorsView(self._advertised(), follower.image)
        self.coordination = ZooKeeperCoordination(follower, self.cluster)
        keeper = self.coordination.keeper
        self.cluster.live = lambda: keeper.live
        topics = GroupTopics(follower.topics, LeadersView("", self.node, follower.image))
        self.groups = Groups(self.config, self._clock, topics, self.coordination, lambda: None, self._listeners)
        self.groups.start()

    async def _join(self) -> None:
        """Connections wait until it has read Kafka's cluster: before that it would know no topics."""
        try:
            await self._bind(handlers.groups_table(self.cluster, self._follower.topics, self.groups))
            try:
                assert isinstance(self.coordination, ZooKeeperCoordination)
                await self._follower.join(self.cluster, self.groups, self.coordination)
            except BaseException:
                await self._server.close()
                raise
        except BaseException:
            self.groups.stop()
            raise

    def trouble(self) -> str | None:
        """See `GroupServer.trouble`."""
        found = super().trouble()
        if found is None and not self._follower.is_registered:
            return "it is not registered in ZooKeeper: members cannot find it"
        return found

    async def stop(self) -> None:
        """Answer the requests that can be answered, close the ports, release the slots. A second call does nothing."""
        if not self._accept_no_more():
            return
        self.groups.stop()
        self.groups.runtime.close()
        await self._server.close()
        await self._follower.leave()
