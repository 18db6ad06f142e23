"""Creates and deletes topics: in the catalogue, with the folders of their partitions, and for the groups."""

from __future__ import annotations

import errno
import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from muster.broker.config import BrokerConfig
from muster.broker.net.calls import at_once
from muster.broker.topics.catalogue import Topic, TopicCatalogue, TopicToCreate
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import GROUP_EVENTS_TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, Node, TopicPartition

log = logging.getLogger("muster.broker")

MOST_CREATED_PARTITIONS = 10_000
"""Partitions that one Metadata request may create: as many as Kafka's controller accepts at once."""


class GroupsOfTopics(Protocol):
    """The groups, which are notified of changes to topics (groups/service.py)."""

    def ensure(self) -> bool:
        """Create what groups need, such as their topic. Returns whether it exists; a failure is logged."""

    def topic_created(self, topic: Topic) -> None:
        """A topic was created, and its partitions are open."""

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""

    def topics_changed(self, names: Iterable[str] | None = None) -> None:
        """Topics were created or deleted, or their partitions or leaders changed; None means any topic."""

    def topics_deleted(self, names: Sequence[str]) -> Generator[None, None, None]:
        """Topics were deleted: forget their committed offsets, a slice at a time."""


class TransactionsOfTopics(Protocol):
    """The transactions, whose topic may be created or deleted (transactions/service.py)."""

    def ensure(self) -> bool:
        """Create their topic. Returns whether it exists; a failure is logged."""

    def topic_created(self, topic: Topic) -> None:
        """A topic was created, and its partitions are open."""

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""

    def followed(self, nodes: Iterable[Node]) -> None:
        """A broker of a cluster has caught up with its image of the cluster."""

    def leads(self, topic: Topic, index: int, epoch: int) -> None:
        """This broker has become the leader of a partition of any topic; its log is open."""

    def resigns(self, name: str, index: int, epoch: int) -> None:
        """Another broker, or none, now leads a partition, under `epoch`. Its log is still open."""


class EventsTopic(Protocol):
    """Writes events of groups to a topic (event_topic.py)."""

    def ensure(self) -> None:
        """Create the topic if needed."""


class PartitionIncrease(NamedTuple):
    """More partitions for a topic."""

    topic: Topic
    first: int
    """The number of the first new partition."""
    partitions: int
    assigned: list[list[int]] | None = None
    """The brokers of each new partition; None: any."""


def check_count(name: str, had: int, count: int) -> None:
    """Make sure that a number of partitions is more than a topic has. Raises KafkaError with Kafka's words."""
    if count == had:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {had} partition(s).")
    if count < had:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {had} partition(s); {count} would not be an increase.",
        )


class TopicPendingError(MusterError):
    """A topic is being created, and will exist in a moment."""


class TopicRequests(Protocol):
    """A cluster, which creates and deletes topics for all brokers (zookeeper_cluster.py)."""

    def create_soon(self, names: Iterable[str], partitions: int, settings: Mapping[str, str]) -> None:
        """Create requested topics, without reporting when they exist."""


class TopicChanges:
    """Creates and deletes topics. `groups` is set before the first change; in a cluster `cluster_admin` too, from which
    this broker learns the existing topics."""

    def __init__(
        self, config: BrokerConfig, topics: TopicCatalogue, partitions: Partitions, fetches: ParkedFetches
    ) -> None:
        self.groups: GroupsOfTopics
        self.transactions: TransactionsOfTopics
        self.cluster_admin: TopicRequests | None = None
        self.events: EventsTopic | None = None
        """Writes events of groups; None if they are turned off."""
        self._config = config
        self._topics = topics
        self._partitions = partitions
        self._fetches = fetches
        self._clean_ups: dict[str, Generator[None, None, None]] = {}
        """The removals in progress of deleted topics' remains, by the topics' names."""

    def open_all(self) -> None:
        """At the start: finish the deletions that a crash interrupted, and open every topic's partitions."""
        for topic in self._topics.deleting:
            self._finish_deletion(topic)
        if self.cluster_admin is not None:
            return
        for topic in self._topics:
            at_once(self._partitions.opening(topic))

    def create_topic(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        """Create a topic that does not exist. Raises OSError if it could not be stored; TopicPendingError in a cluster,
        where it will exist in a moment."""
        if self.cluster_admin is not None:
            self.cluster_admin.create_soon([name], partitions, settings)
            raise TopicPendingError(f"{name} is being created")
        return self.create_topics([TopicToCreate(name, partitions, settings)])[0]

    def create_topics(self, wanted: Sequence[TopicToCreate]) -> list[Topic]:
        """Create topics that do not exist, all or none. Raises OSError if they could not be stored."""
        return at_once(self.creating(wanted))

    def creating(self, wanted: Sequence[TopicToCreate]) -> Generator[None, None, list[Topic]]:
        """Like `create_topics`, a slice at a time. The topics exist from the first slice on; their partitions follow. A
        topic may be deleted, and even created again, before its turn comes."""
        topics = self.listing(wanted)
        for topic in topics:
            yield from self._partitions.opening(topic)
            log.info("created topic %s with %d partition(s)", topic.name, topic.partitions)
            if self._partitions.is_current(topic):
                self.groups.topic_created(topic)
                self.transactions.topic_created(topic)
        self.groups.topics_changed([topic.name for topic in topics])
        return topics

    def growing(self, wanted: Sequence[PartitionIncrease]) -> Generator[None, None, None]:
        """Add partitions to topics, all or none, a slice at a time. They exist from the first slice on, and are opened
        one after another. Raises OSError if they could not be stored: then nothing has changed."""
        new = [(growth.topic, range(growth.first, growth.partitions)) for growth in wanted]
        self._partitions.make_room(TopicPartition(topic.name, index) for topic, indices in new for index in indices)
        self._topics.change_all([(growth.topic, growth.partitions, growth.topic.settings) for growth in wanted])
        for topic, indices in new:
            yield from self._partitions.opening(topic, indices.start)
            log.info("topic %s now has %d partitions instead of %d", topic.name, indices.stop, indices.start)
        self.groups.topics_changed([topic.name for topic, _ in new])

    def listing(self, wanted: Sequence[TopicToCreate]) -> list[Topic]:
        """Add topics to the catalogue, all or none, after removing the remains of former ones with the same names.
        Raises OSError if that cannot be done."""
        at_once(self.cleaning_up(new.name for new in wanted))
        for new in wanted:
            if (former := self._topics.deleting_by_name(new.name)) is not None:
                self._finish_deletion(former)
        if (
            self.cluster_admin is None
        ):  # in a cluster, room is made for each partition that this broker leads (`opened`)
            new_ones = (TopicPartition(new.name, index) for new in wanted for index in range(new.partitions))
            self._partitions.make_room(new_ones)
        if any(self._topics.deleting_by_name(new.name) for new in wanted):
            # The next start would finish the removal, and mistake the new topic's records for the old topic's.
            raise OSError(errno.EBUSY, "the former topic of that name is not removed yet")
        return self._topics.create_all(wanted)

    def auto_create(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Create topics because a Metadata request named them, as far as the settings allow it: with one write of the
        catalogue for all, a slice at a time."""
        if not self._config.flag("auto.create.topics.enable"):
            return
        names = list(names)
        yield from self.cleaning_up(names)
        partitions = self._config.integer("num.partitions")
        wanted: dict[str, TopicToCreate] = {}  # by the name that would collide: in metrics '.' and '_' are the same
        for name in names:
            if name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, GROUP_EVENTS_TOPIC):
                self._ensure(name)
            elif (len(wanted) + 1) * partitions <= MOST_CREATED_PARTITIONS and not self._taken(name):
                wanted.setdefault(name.replace(".", "_"), TopicToCreate(name, partitions, {}))
        if not wanted:
            return
        if self.cluster_admin is not None:
            self.cluster_admin.create_soon([new.name for new in wanted.values()], partitions, {})
            return
        try:
            yield from self.creating(list(wanted.values()))
        except (OSError, MusterError) as error:
            some = next(iter(wanted.values())).name
            log.error("%d topic(s), %s the first, could not be created: %s", len(wanted), some, error)

    def _ensure(self, name: str) -> None:
        """Create an internal topic, with its own settings."""
        if name == GROUP_METADATA_TOPIC:
            self.groups.ensure()
        elif name == TRANSACTION_STATE_TOPIC:
            self.transactions.ensure()
        elif name == GROUP_EVENTS_TOPIC and self.events is not None:
            self.events.ensure()

    def _taken(self, name: str) -> bool:
        return self._topics.get(name) is not None or self._topics.colliding(name) is not None

    def delete_topic(self, topic: Topic) -> None:
        """Like `deleting`, for one topic and without a break."""
        at_once(self.deleting([topic]))

    def deleting(self, topics: Sequence[Topic]) -> Generator[None, None, None]:
        """Delete topics, their records and the offsets committed for them, a slice at a time. From the first slice on
        the topics are gone, even after a crash. The rest is removed bit by bit, but completely before a topic of the
        same name can be created. Raises OSError if the catalogue could not be written: all topics still exist.

        When the groups' topic is deleted, all groups are removed immediately. Their members get errors, and find the
        coordinator again once the topic is recreated.
        """
        self._topics.delete_all(topics)
        for topic in topics:
            self._partitions.forget(topic)
        groups = [topic for topic in topics if topic.name == GROUP_METADATA_TOPIC]
        for topic in topics:
            self.groups.topic_deleted(topic.name)
            self.transactions.topic_deleted(topic.name)
        # The groups' topic is cleaned up separately: a group's next request creates it again, and must not wait for the
        # rest.
        for some in (groups, [topic for topic in topics if topic not in groups]):
            clean_up = self._clean_up(some)
            self._clean_ups |= {topic.name: clean_up for topic in some}
        yield from self.cleaning_up(topic.name for topic in topics)

    def cleaning_up(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Continue removing the remains of deleted topics with these names, a slice at a time. Several requests may do
        so in turn: each continues where the previous one stopped."""
        for clean_up in dict.fromkeys(self._clean_ups[name] for name in names if name in self._clean_ups):
            yield from clean_up

    def is_cleaning_up(self, name: str) -> bool:
        """Whether a deleted topic of that name is still being removed."""
        return name in self._clean_ups

    def _clean_up(self, topics: list[Topic]) -> Generator[None, None, None]:
        names = [topic.name for topic in topics]
        try:
            yield from self._fetches.topics_deleted(names)
            yield from self.groups.topics_deleted(names)
            left = yield from self._partitions.deleting(topics)
            for topic in topics:
                self._deleted(topic, left)
                log.info("deleted topic %s", topic.name)
                yield
            self._topics.reserve.fill()
        finally:
            for name in names:
                del self._clean_ups[name]

    def _finish_deletion(self, topic: Topic) -> None:
        """Remove the folders of a deleted topic. A folder that cannot be removed is logged, and removed at the next
        start or before a topic of that name is created."""
        self._deleted(topic, self._partitions.delete(topic))

    def _deleted(self, topic: Topic, left: set[TopicPartition]) -> None:
        if not left or left.isdisjoint(topic.topic_partitions):
            self._topics.deleted(topic)
