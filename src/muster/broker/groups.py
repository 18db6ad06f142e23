"""The groups of this broker: runs their coordinator on the loop, with its time and logs; and the topic they are in."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence

from muster.broker.clock import SteadyClock, now_ms
from muster.broker.cluster_view import LEADER_EPOCH
from muster.broker.config import BrokerConfig
from muster.broker.events import GroupLines
from muster.broker.partitions import Partitions
from muster.broker.topic_changes import TopicChanges, TopicPendingError
from muster.broker.topics import Topic, TopicCatalogue
from muster.coordinator.effects import GroupEvent
from muster.coordinator.log_store import LogStore
from muster.coordinator.runtime import CoordinatorRuntime, GroupConfig
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.log import PartitionLog
from muster.model import GROUP_METADATA_TOPIC

log = logging.getLogger("muster.broker")

LOAD_BEFORE_START_S = 1.0
"""How long the start waits for the groups' logs to be read."""


class Groups:
    """Coordinates groups on the running loop. `on_written` is called when records of the groups are in their logs."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: SteadyClock,
        topics: TopicCatalogue,
        partitions: Partitions,
        changes: TopicChanges,
        on_written: Callable[[], None],
        on_event: Callable[[GroupEvent], None] | None,
        alone: bool = True,
    ) -> None:
        self.serving = False
        """Whether the topic of the groups exists and the coordinator serves."""
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._clock = clock
        self._topics = topics
        self._partitions = partitions
        self._changes = changes
        self._on_written = on_written
        self._alone = alone
        self._lines = GroupLines()
        self._listener = on_event
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: int | None = None
        self._arming = False
        self._flush_due = False
        self.runtime = CoordinatorRuntime(
            _group_config(config),
            LogStore(self._open_log, alone=alone),
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
        """Serve the groups in the log. Logs that can be read in a moment are read before the first request; the rest is
        read between requests."""
        topic = self._topics.get(GROUP_METADATA_TOPIC)
        if topic is not None:
            logs = [self._open_log(index) for index in range(topic.partitions)]
            self.serve(topic, [index for index, found in enumerate(logs) if found.log_end_offset])
            until = time.monotonic() + LOAD_BEFORE_START_S
            while self.runtime.is_loading and time.monotonic() < until:
                self.runtime.load_a_piece()
        self._arm_deadline()

    def start_among_others(self) -> None:
        """Serve the groups whose partitions this broker leads: `lead` tells which."""
        self.runtime.take_none()
        self._arm_deadline()

    def lead(self, topic: Topic, index: int, epoch: int) -> None:
        """This broker leads a partition of the groups' topic: it coordinates the groups in it."""
        self.runtime.config.offsets_topic_num_partitions = topic.partitions
        self.serving = True
        self.runtime.load(index, epoch)

    def resign(self, index: int, epoch: int) -> None:
        """A partition of the groups' topic is led by another broker, or by none, under an epoch."""
        self.runtime.unload(index, epoch)

    def stop(self) -> None:
        """Stop the deadlines; write the records that were decided."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._flush()

    # ------------------------------------------------------------------------------------- their topic

    def open_topic(self) -> Topic:
        """The topic of the groups; the first request of any group creates it."""
        topic = self._topics.get(GROUP_METADATA_TOPIC)
        if topic is None:
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self._config.integer("offsets.topic.segment.bytes")),
            }
            topic = self._changes.create_topic(
                GROUP_METADATA_TOPIC, self._config.integer("offsets.topic.num.partitions"), settings
            )
        return topic

    def serve(self, topic: Topic, written: list[int]) -> None:
        """Begin to coordinate. `written` are the partitions of the topic that were ever written to."""
        self.runtime.config.offsets_topic_num_partitions = topic.partitions
        self.runtime.load_all(written, LEADER_EPOCH)
        self.serving = True

    def leave(self) -> None:
        """The topic of the groups was deleted: all groups go, and their members are sent away."""
        self.serving = False
        self.runtime.unload_all()
        if not self._alone:
            self.runtime.take_none()

    def topics_deleted(self, names: Sequence[str]) -> Generator[None, None, None]:
        """Forget the offsets that were committed for deleted topics, a slice at a time."""
        yield from self.runtime.topics_deleted(names)

    def ensure_topic(self) -> bool:
        """Create the topic of the groups if it does not exist. Returns whether it exists; without it the coordinator
        refuses all requests."""
        try:
            self.open_topic()
        except TopicPendingError:
            return False
        except (OSError, MusterError) as error:
            log.error("%s could not be created: %s", GROUP_METADATA_TOPIC, error)
            return False
        return True

    # ------------------------------------------------------------------------------------- turns of the loop, and time

    def _open_log(self, partition: int) -> PartitionLog:
        found = self._partitions.get(GROUP_METADATA_TOPIC, partition)
        if found is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no {GROUP_METADATA_TOPIC}-{partition}")
        return found

    def _on_event(self, event: GroupEvent) -> None:
        self._lines(event)
        if self._listener is not None:
            self._listener(event)

    def _load_later(self, load: Callable[[], None]) -> None:
        """Read a piece of the groups' logs in the next turn of the loop, so that requests are served in between."""

        def load_and_arm() -> None:
            load()
            self._arm_deadline()

        self._loop.call_soon(load_and_arm)

    def _schedule_flush(self) -> None:
        """The coordinator has records: write them together with all others of this turn of the loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self.runtime.flush()
        self._on_written()

    def _arm_deadline(self) -> None:
        """Wake up when the earliest deadline of a group comes."""
        due = self.runtime.next_deadline()
        if due == self._deadline_at:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_at = due
        if due is not None:
            self._deadline = self._loop.call_later(max(due - self._clock(), 0) / 1000 + 0.001, self._on_deadline)

    def _deadline_moved(self) -> None:
        """The earliest deadline has moved: set the timer once for this turn of the loop, after all its reads."""
        if not self._arming:
            self._arming = True
            self._loop.call_soon(self._arm_moved)

    def _arm_moved(self) -> None:
        self._arming = False
        self._arm_deadline()

    def _on_deadline(self) -> None:
        self._deadline = self._deadline_at = None
        self.runtime.on_deadlines(self._clock())
        self._arm_deadline()


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        group_min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
        group_initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        group_max_size=config.integer("group.max.size"),
        offsets_retention_minutes=config.integer("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
        offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
        offsets_topic_num_partitions=config.integer("offsets.topic.num.partitions"),
    )


def _new_member_id(prefix: str) -> str:
    """A member id as Kafka makes them: the member's client id or instance id, and a random part."""
    raw = next(_RANDOM)
    # A UUID of version 4, as Java's.
    return f"{prefix}-{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{_VARIANT[raw[16]]}{raw[17:20]}-{raw[20:]}"


def _random_hex() -> Iterator[str]:
    """Sixteen random bytes after the other; to ask the system for each takes longer than all the rest of an id."""
    while True:
        some = os.urandom(4096).hex()
        for start in range(0, len(some), 32):
            yield some[start : start + 32]


_RANDOM = _random_hex()
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
