"""This broker's groups: runs their coordinator on the event loop, with its clock and its slots (coordination.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from muster.broker.clock import SteadyClock, now_ms
from muster.broker.cluster_view import NO_LEADER, ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination
from muster.broker.groups.events import GroupLines
from muster.broker.groups.on_loop import ShardsOnLoop
from muster.broker.topics.catalogue import Topic
from muster.coordinator.groups.effects import GroupEvent
from muster.coordinator.runtime import CoordinatorRuntime, GroupConfig
from muster.model import Node


class KnownTopics(Protocol):
    """The existing topics: a broker's catalogue, or Kafka's topics as a coordinator has read them."""

    def names(self) -> Iterable[str]: ...

    def partition_count(self, topic: str) -> int: ...

    def topic_id(self, topic: str) -> bytes: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...


class GroupTopics:
    """The coordinator's `TopicResolver`: the catalogue knows the topics, the cluster their leaders."""

    def __init__(self, topics: KnownTopics, cluster: ClusterView) -> None:
        self.partition_count = topics.partition_count
        self.topic_id = topics.topic_id
        self.topic_name = topics.topic_name
        self._names = topics.names
        self._cluster = cluster
        self._led: dict[str, list[int]] = {}

    def is_gone(self, topic: str) -> bool:
        """As `TopicResolver.is_gone`."""
        return not self.partition_count(topic) and not self._cluster.may_have_topic(topic)

    def led_partitions(self, topic: str) -> list[int]:
        """As `TopicResolver.led_partitions`."""
        leadership, count = self._cluster.leadership, self.partition_count(topic)
        return [index for index in range(count) if leadership(topic, index).leader != NO_LEADER]

    def changed(self) -> list[str]:
        """The topics created, deleted, or with changed partitions or leaders since the last call. Most changes in a
        cluster do not concern groups, and comparing the assignments of all groups takes long."""
        before, self._led = self._led, {name: self.led_partitions(name) for name in self._names()}
        return [name for name in before.keys() | self._led.keys() if before.get(name) != self._led.get(name)]


class Groups(ShardsOnLoop):
    """Coordinates groups on the running loop. `on_written` is called after records of groups are appended, `listeners`
    with each event of a group."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: SteadyClock,
        topics: GroupTopics,
        coordination: Coordination,
        on_written: Callable[[], None],
        listeners: Sequence[Callable[[GroupEvent], None]] = (),
    ) -> None:
        self.serving = False
        """Whether the coordinator serves: everything that groups need exists."""
        self.may_serve = coordination.may_serve if coordination.is_leased else None
        """Whether this broker still has its slots; called before each request. None: always."""
        super().__init__(clock, on_written)
        self._topics = topics
        self._coordination = coordination
        self._lines = GroupLines()
        self._listeners = listeners
        group_config = _group_config(config)
        group_config.record_fits = coordination.record_fits
        group_config.record_too_large = coordination.record_too_large
        self._shards = self.runtime = CoordinatorRuntime(
            group_config,
            coordination.store(),
            clock=clock,
            topics=topics,
            on_event=self._on_event,
            new_member_id=_new_member_id,
            schedule_flush=self._schedule_flush,
            on_deadline_moved=self._deadline_moved,
            later=self._load_later,
            wall_clock=now_ms,
        )

    def start(self) -> None:
        """Serve the groups that this broker coordinates. Those that load quickly are loaded before the first request,
        the rest between requests."""
        self._coordination.start(self)
        self._load_at_once()

    def stop(self) -> None:
        """Stop the deadlines; write the pending records."""
        self._coordination.stop()
        self._stop()

    def ensure(self) -> bool:
        """Create what groups need, before the first request of one. Returns whether it exists; without it the
        coordinator refuses all requests."""
        return self._coordination.ensure()

    def coordinator(self, group_id: str) -> Node | None:
        """The broker that coordinates a group, None while none does."""
        return self._coordination.coordinator(group_id)

    # ------------------------------------------------------------------------------------- slots (coordination.Slots)

    def serve(self, slots: int) -> None:
        """As `Slots.serve`."""
        self.runtime.config.offsets_topic_num_partitions = slots
        self.runtime.take_none()
        self.serving = True

    def serve_all(self, slots: int, written: list[int], epoch: int) -> None:
        """As `Slots.serve_all`."""
        self.runtime.config.offsets_topic_num_partitions = slots
        self.runtime.load_all(written, epoch)
        self.serving = True

    def lead(self, slot: int, epoch: int) -> None:
        """Coordinate the groups of a slot."""
        self.runtime.load(slot, epoch)

    def resign(self, slot: int, epoch: int | None = None) -> None:
        """Stop coordinating the groups of a slot."""
        self.runtime.unload(slot, epoch)

    def is_rebalancing(self, slot: int) -> bool:
        """Whether a group in a slot is rebalancing."""
        return self.runtime.is_rebalancing(slot)

    def release_durable(self) -> None:
        """As `Slots.release_durable`."""
        self.runtime.release_durable()
        self._deadline_moved()

    def leave(self) -> None:
        """All groups are gone; their members get NOT_COORDINATOR."""
        self.serving = False
        self.runtime.unload_all()

    # ------------------------------------------------------------------------------------- topics

    def topic_created(self, topic: Topic) -> None:
        """A standalone broker has created a topic."""
        self._coordination.topic_created(topic)

    def topic_deleted(self, name: str) -> None:
        """A topic is being deleted; its logs still exist."""
        self._coordination.topic_deleted(name)

    def topics_changed(self, names: Iterable[str] | None = None) -> None:
        """Topics were created or deleted, or their partitions or leaders changed; None means any topic."""
        if self.serving and self.runtime.assigns and (some := self._topics.changed() if names is None else names):
            self.runtime.topics_changed(some)

    def topics_deleted(self, names: Sequence[str]) -> Generator[None, None, None]:
        """Remove the committed offsets of deleted topics, a slice at a time."""
        yield from self.runtime.topics_deleted(names)

    # ------------------------------------------------------------------------------------- events

    def _on_event(self, event: GroupEvent) -> None:
        self._lines(event)
        for listener in self._listeners:
            listener(event)


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        group_min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        group_initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        group_max_size=config.integer("group.max.size"),
        offsets_retention_minutes=config.integer("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        server_assigned_groups=config.text_or_none("server.assigned.groups"),
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_topic_num_partitions=config.integer("offsets.topic.num.partitions"),
        node_id=config.integer("node.id"),
        metadata_max_bytes=config.integer("queued.max.request.bytes"),
    )


def _new_member_id(prefix: str) -> str:
    """A member id in Kafka's format: the member's client id or instance id, and a random part."""
    raw = next(_RANDOM)
    # A UUID of version 4, as Java's.
    return f"{prefix}-{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{_VARIANT[raw[16]]}{raw[17:20]}-{raw[20:]}"


def _random_hex() -> Iterator[str]:
    """Sixteen random bytes at a time; asking the system for each takes longer than the rest of an id."""
    while True:
        some = os.urandom(4096).hex()
        for start in range(0, len(some), 32):
            yield some[start : start + 32]


_RANDOM = _random_hex()
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
