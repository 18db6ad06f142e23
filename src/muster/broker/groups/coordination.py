"""Coordination of groups: the one place where a broker decides which broker has a group, and where it is stored.

Groups are hashed to slots by their ids (`protocol/group_partitions.py`). A `Coordination` knows which broker has which
slot, notifies this broker's coordinator (`Slots`) of its own slots and their epochs, and provides their store. The ones
in this file keep the groups in the topic `__consumer_offsets`, in which a slot is a partition: a slot's coordinator is
that partition's leader, under its leader epoch.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from muster.broker.cluster_view import LEADER_EPOCH, ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.topics.catalogue import Topic, TopicCatalogue
from muster.broker.topics.changes import TopicChanges, TopicPendingError
from muster.broker.topics.partitions import Partitions
from muster.coordinator.shards.log_store import ShardLogStore
from muster.coordinator.shards.store import Store
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.log import PartitionLog
from muster.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Node
from muster.protocol.group_partitions import group_partition
from muster.protocol.group_records import GroupMetadataRecord, append_records, most_bytes
from muster.protocol.records.record_batch import BatchBuilder

log = logging.getLogger("muster.broker")


class StateTopic(NamedTuple):
    """The topic in which coordinators keep their shards; each of its partitions is a slot."""

    topic: str
    partitions: str
    """The setting for its number of partitions."""
    segment_bytes: str
    """The setting for the size of its segments."""
    compression: str


OF_GROUPS = StateTopic(GROUP_METADATA_TOPIC, "offsets.topic.num.partitions", "offsets.topic.segment.bytes", "producer")
OF_TRANSACTIONS = StateTopic(
    TRANSACTION_STATE_TOPIC,
    "transaction.state.log.num.partitions",
    "transaction.state.log.segment.bytes",
    "uncompressed",
)


class Slots(Protocol):
    """This broker's coordinator, as a `Coordination` sees it (service.py)."""

    def serve(self, slots: int) -> None:
        """Start to serve requests, in the slots that `lead` brings; `slots` is the total number."""

    def serve_all(self, slots: int, written: list[int], epoch: int) -> None:
        """This broker has all slots; those in `written` may have records, and are read now."""

    def lead(self, slot: int, epoch: int) -> None:
        """This broker has the slot, under an epoch newer than all before it."""

    def resign(self, slot: int, epoch: int | None = None) -> None:
        """This broker no longer has the slot; `epoch` is that of its next coordinator, if known."""

    def is_rebalancing(self, slot: int) -> bool:
        """Whether a group in one of this broker's slots is rebalancing."""

    def release_durable(self) -> None:
        """The store has changed: records are durable, or never will be, or there is more to read."""

    def leave(self) -> None:
        """The slots no longer exist: all groups are gone. Epochs may start over."""


class Coordination(Protocol):
    """Which broker coordinates which group. By default it ignores changes of partitions and topics."""

    def store(self) -> Store:
        """Where this broker's coordinator keeps its groups; called once, before the start."""

    def start(self, groups: Slots) -> None:
        """Start to notify the coordinator of its slots. The port is not open yet."""

    def stop(self) -> None:
        """The broker is stopping."""
        return

    def record_fits(self, record: GroupMetadataRecord) -> bool:
        """Whether the store accepts a group of this size."""
        return True

    record_too_large: ErrorCode = ErrorCode.GROUP_MAX_SIZE_REACHED
    """The error for a group that is too large."""

    slots_without_topic: int = 0
    """How many slots there are, if they are not the partitions of a topic."""

    def owner(self, slot: int) -> Node | None:
        """The broker that has a slot, if slots are not the partitions of a topic; None while none does."""
        return None

    is_leased: bool = False
    """Whether this broker's slots can expire; if so, `may_serve` is called before each request."""

    def may_serve(self) -> bool:
        """Whether this broker still has the slots that the coordinator serves. If not, `ensure` is called before the
        request is handled."""
        return True

    def followed(self) -> None:
        """A broker of a cluster has caught up with its image of the cluster."""
        return

    def ensure(self) -> bool:
        """Create what groups need; called for a group's request while none is served yet. Returns whether it succeeded;
        a failure is logged. Without it there is no coordinator."""

    def coordinator(self, group_id: str) -> Node | None:
        """The coordinator of a group, None while there is none."""

    def leads(self, topic: Topic, index: int, epoch: int) -> None:
        """This broker has become the leader of a partition of any topic; its log is open."""
        return

    def resigns(self, name: str, index: int, epoch: int) -> None:
        """Another broker, or none, now leads a partition, under `epoch`. Its log is still open."""
        return

    def topic_created(self, topic: Topic) -> None:
        """A standalone broker has created a topic."""
        return

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""
        return


class TopicCoordination(Coordination):
    """The common part of standalone brokers and brokers of a cluster that keep groups in their topic."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicCatalogue,
        partitions: Partitions,
        changes: TopicChanges,
        cluster: ClusterView,
        home: StateTopic = OF_GROUPS,
    ) -> None:
        self._home = home
        self._config = config
        self._topics = topics
        self._partitions = partitions
        self._changes = changes
        self._cluster = cluster
        self._groups: Slots

    record_too_large = ErrorCode.UNKNOWN_SERVER_ERROR

    def record_fits(self, record: GroupMetadataRecord) -> bool:
        """Whether the record's batch is within its log's `max.message.bytes`, as Kafka requires."""
        topic = self._topics.get(GROUP_METADATA_TOPIC)
        slot = group_partition(record.key.group, topic.partitions) if topic is not None else 0
        found = self._partitions.get(GROUP_METADATA_TOPIC, slot)
        if found is None or most_bytes(record) <= found.config.max_message_bytes:
            return True
        batch = BatchBuilder()
        append_records(batch, 0, record)
        return batch.size <= found.config.max_message_bytes

    def ensure(self) -> bool:
        """Create the topic if it does not exist, on the first request that needs it."""
        if self._topics.get(self._home.topic) is not None:
            return True
        settings = {
            "cleanup.policy": "compact",
            "compression.type": self._home.compression,
            "segment.bytes": str(self._config.integer(self._home.segment_bytes)),
        }
        try:
            count = self._config.integer(self._home.partitions)
            self._changes.create_topic(self._home.topic, count, settings)
        except TopicPendingError:
            return False
        except (OSError, MusterError) as error:
            log.error("%s could not be created: %s", self._home.topic, error)
            return False
        return True

    def topic_deleted(self, name: str) -> None:
        """All groups are deleted with their topic."""
        if name == self._home.topic:
            self._groups.leave()

    def _open_log(self, slot: int) -> PartitionLog:
        found = self._partitions.get(self._home.topic, slot)
        if found is None:
            place = f"{self._home.topic}-{slot}"
            offline = self._partitions.is_offline(self._home.topic, slot)
            why = f"{place} cannot be opened" if offline else f"there is no {place}"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
        return found


class StandaloneCoordination(TopicCoordination):
    """A standalone broker coordinates every group, or transactional id."""

    def store(self) -> Store:
        """The logs of the topic's partitions, whatever epochs they hold."""
        return ShardLogStore(self._open_log, alone=True)

    def start(self, groups: Slots) -> None:
        """Serve the groups in the topic, if it exists."""
        self._groups = groups
        topic = self._topics.get(self._home.topic)
        if topic is not None:
            logs = [self._partitions.get(topic.name, slot) for slot in range(topic.partitions)]
            written = [slot for slot, found in enumerate(logs) if found is not None and found.log_end_offset]
            groups.serve_all(topic.partitions, written, LEADER_EPOCH)

    def coordinator(self, group_id: str) -> Node | None:
        """This broker."""
        return self._cluster.node

    def topic_created(self, topic: Topic) -> None:
        """Groups can be coordinated once their topic exists."""
        if topic.name == self._home.topic:
            self._groups.serve_all(topic.partitions, [], LEADER_EPOCH)


class ClusterCoordination(TopicCoordination):
    """A broker of a cluster coordinates the groups, or transactional ids, whose partitions it leads."""

    def store(self) -> Store:
        """The logs of the partitions that this broker leads; older epochs are fenced."""
        return ShardLogStore(self._open_log)

    def ensure(self) -> bool:
        """See `TopicCoordination.ensure`. A broker that was frozen, and may have been replaced, serves no slot."""
        is_doubtful = self._partitions.is_doubtful
        return (is_doubtful is None or not is_doubtful()) and super().ensure()

    def start(self, groups: Slots) -> None:
        """Start without slots: they come with `leads`."""
        self._groups = groups
        self._slots = 0
        """The topic's number of partitions; 0 while it is unknown."""
        groups.serve(self._config.integer(self._home.partitions))

    def followed(self) -> None:
        """Even a broker that leads none of the added partitions must look up groups by the new number of partitions."""
        topic = self._topics.get(self._home.topic)
        if topic is not None:
            self._serve(topic)

    def _serve(self, topic: Topic) -> None:
        if topic.partitions == self._slots:
            return
        if self._slots:
            text = "%s has %d partitions instead of %d: most groups now map to other partitions, without their offsets"
            log.error(text, topic.name, topic.partitions, self._slots)
        self._slots = topic.partitions
        self._groups.serve(topic.partitions)

    def coordinator(self, group_id: str) -> Node | None:
        """The leader of the group's partition, as far as this broker knows."""
        topic = self._topics.get(self._home.topic)
        if topic is None:
            return None
        slot = group_partition(group_id, topic.partitions)
        return self._cluster.node_of(self._cluster.leadership(topic.name, slot).leader)

    def leads(self, topic: Topic, index: int, epoch: int) -> None:
        """A partition of the groups' topic is a slot."""
        if topic.name == self._home.topic:
            self._serve(topic)
            self._groups.lead(index, epoch)

    def resigns(self, name: str, index: int, epoch: int) -> None:
        """See `leads`."""
        if name == self._home.topic:
            self._groups.resign(index, epoch)

    def topic_deleted(self, name: str) -> None:
        """As after the start: the topic may be created again."""
        super().topic_deleted(name)
        if name == self._home.topic:
            self.start(self._groups)
