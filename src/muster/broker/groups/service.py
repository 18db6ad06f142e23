"""This broker's groups: runs their coordinator on the event loop, with its clock and its slots (coordination.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from muster.broker.clock import SteadyClock
from muster.broker.cluster_view import NO_LEADER, ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination
from muster.broker.groups.events import GroupLines
from muster.broker.groups.on_loop import ShardsOnLoop
from muster.broker.topics.catalogue import Topics
from muster.coordinator.groups.effects import GroupEvent
from muster.coordinator.runtime import CoordinatorRuntime, GroupConfig
from muster.log import OngoingTransaction


class GroupTopics:
    """The coordinator's `TopicResolver`: the catalogue knows the topics, the cluster their leaders."""

    def __init__(self, topics: Topics, cluster: ClusterView) -> None:
        self.partition_count = topics.partition_count
        self.topic_id = topics.topic_id
        self.topic_name = topics.topic_name
        self._names = topics.names
        self._cluster = cluster
        self._led: dict[str, list[int]] = {}

    def is_gone(self, topic: str) -> bool:
        """See `TopicResolver.is_gone`."""
        return not self.partition_count(topic) and not self._cluster.may_have_topic(topic)

    def led_partitions(self, topic: str) -> list[int]:
        """See `TopicResolver.led_partitions`."""
        leadership, count = self._cluster.leadership, self.partition_count(topic)
        return [index for index in range(count) if leadership(topic, index).leader != NO_LEADER]

    def changed(self) -> list[str]:
        """The topics created, deleted, or with changed partitions or leaders since the last call. Most changes in a
        cluster do not concern groups, and comparing the assignments of all groups takes a long time."""
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
        self.may_serve = coordination.may_serve if coordination.is_leased else None
        """Whether this broker still has its slots; called before each request. None: always."""
        super().__init__(clock, coordination, on_written)
        self._topics = topics
        self._lines = GroupLines()
        self._listeners = listeners
        group_config = _group_config(config)
        group_config.record_fits = coordination.record_fits
        group_config.record_too_large = coordination.record_too_large
        self._shards = self.runtime = CoordinatorRuntime(
            group_config,
            coordination.store(),
            self._host(self._on_event),
            topics=topics,
            new_member_id=_new_member_id,
        )

    def before_request(self) -> None:
        """Create what groups need if it is missing, and drop the slots if this broker may have lost them."""
        if not self.serving or (self.may_serve is not None and not self.may_serve()):
            self.ensure()

    def is_rebalancing(self, slot: int) -> bool:
        """See `Slots.is_rebalancing`."""
        return self.runtime.is_rebalancing(slot)

    def open_in_slots(self) -> list[tuple[int, OngoingTransaction]] | None:
        """The transactions that are open in slots without a partition; None while some are being read."""
        if self.runtime.is_loading:
            return None
        return self.runtime.open_transactions() if self._coordination.slots_without_topic else []

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
    # A version 4 UUID, like Java's.
    return f"{prefix}-{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{_VARIANT[raw[16]]}{raw[17:20]}-{raw[20:]}"


def _random_hex() -> Iterator[str]:
    """Sixteen random bytes at a time; asking the system for each id takes longer than all other steps."""
    while True:
        some = os.urandom(4096).hex()
        for start in range(0, len(some), 32):
            yield some[start : start + 32]


_RANDOM = _random_hex()
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
