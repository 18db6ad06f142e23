"""What a consumer is subscribed to, which partitions it is assigned, and its position in each.

Theory. A consumer subscribes to topics by name or by pattern, and the group assigns partitions; or it is assigned
partitions manually (J7), without a group. An assigned partition goes through four states:

                                     +-> AWAIT_VALIDATION --truncated, offset unknown------+
                          new leader |       | the log is as it was, or                     |
                                     |       v truncated: back to where the logs diverge    v
    INITIALIZING --committed offset--+-> FETCHING <-------reset looked up-------------- AWAIT_RESET
         |                                      |                                           ^
         +------------no offset committed-------+------offset out of range------------------+

A partition that is FETCHING has a position that is known to be good: the offset of the next record that the user gets.
`fetch_position` is ahead of it by the records fetched and not yet handed out. A seek, a reset, a loss or a new leader
changes `epoch`, so that the answer to an older fetch is recognised and dropped, even if the partition has come back
since. A position in AWAIT_VALIDATION is committed too (`all_consumed`): the records before it were handled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from muster.client.core.checks import check_offset, check_partitions, check_topic
from muster.errors import IllegalStateError
from muster.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition
from muster.protocol.primitives import ZERO_UUID


class SubscriptionKind(Enum):
    """How the assigned partitions are chosen."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    MANUAL = "manual"


_CURRENT = {
    SubscriptionKind.TOPICS: "this consumer is subscribed to topics",
    SubscriptionKind.PATTERN: "this consumer is subscribed to a pattern",
    SubscriptionKind.MANUAL: "this consumer has partitions from assign()",
}

_REQUESTED = {
    SubscriptionKind.TOPICS: "subscribe() to topics",
    SubscriptionKind.PATTERN: "subscribe() to a pattern",
    SubscriptionKind.MANUAL: "assign()",
}


class PositionState(Enum):
    """How far a partition is from being fetched."""

    INITIALIZING = "initializing"
    AWAIT_RESET = "await reset"
    AWAIT_VALIDATION = "await validation"
    FETCHING = "fetching"


class OffsetReset(Enum):
    """Where to start if there is no usable offset (`auto.offset.reset`)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@dataclass(slots=True)
class PartitionState:
    """A consumer's position in one partition, and its state. Offsets are -1 while they are unknown."""

    state: PositionState = PositionState.INITIALIZING
    position: int = -1
    leader_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the record before the position (KIP-320)."""
    fetch_position: int = -1
    epoch: int = 0
    reset: OffsetReset = OffsetReset.NONE
    paused: bool = False
    pending_revocation: bool = False
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    retry_at: int = 0
    """The end of the backoff after an error: no fetch or lookup before it."""
    leader: tuple[int, int] | None = None
    """The leader and its epoch for which the position was validated, or assumed, to be good."""
    seen_version: int = -1
    """The version of the metadata when `leader` was last compared with it."""
    topic_id: bytes = ZERO_UUID
    """The id of the topic that the position is in, once known. A topic created again under the same name has another
    id."""
    awaited_refresh: int | None = None
    """If the position's epoch is newer than the metadata: the number of the metadata answer to wait for."""
    preferred_replica: int | None = None
    """A nearer follower that the leader named to fetch from (KIP-392), valid until `preferred_until`."""
    preferred_until: int = 0
    stored: OffsetAndMetadata | None = None
    """What the user has stored for the next commit, if only that is committed (`enable_auto_offset_store`)."""
    assigned: bool = True
    """False once the partition was given up. If it comes back, it gets a new state."""

    def move_to(self, offset: int, leader_epoch: int) -> None:
        """Move the position; data that was or is being fetched is discarded."""
        self.state = PositionState.FETCHING
        self.position = self.fetch_position = offset
        self.leader_epoch = leader_epoch
        self.epoch += 1
        self.retry_at = 0
        self.leader = None
        self.seen_version = -1
        self.awaited_refresh = None
        self.topic_id = ZERO_UUID

    def go_back(self, offset: int) -> None:
        """Move the position back to an offset that was already fetched; its validation still holds."""
        self.position = self.fetch_position = offset
        self.epoch += 1
        self.retry_at = 0

    def validate(self) -> None:
        """Fetch nothing until the leader has confirmed the position. Data already fetched is discarded."""
        self.state = PositionState.AWAIT_VALIDATION
        self.fetch_position = self.position
        self.epoch += 1
        self.retry_at = 0


class SubscriptionState:
    """One consumer's subscription and assignment."""

    def __init__(self, auto_offset_reset: str = "latest") -> None:
        self.default_reset = OffsetReset(auto_offset_reset)
        self.kind = SubscriptionKind.NONE
        self.topics: set[str] = set()
        """The effective topics: those named, or those that the pattern matches now."""
        self.pattern: re.Pattern[str] | None = None
        self._assigned: dict[TopicPartition, PartitionState] = {}
        self.assignment_id = 0
        """Goes up with each change of the assignment."""

    # --- what is subscribed to ---------------------------------------------------------------------------------------

    @property
    def group_managed(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.kind in (SubscriptionKind.TOPICS, SubscriptionKind.PATTERN)

    def subscribe(self, topics: Iterable[str]) -> bool:
        """Subscribe by name; replaces an earlier subscription. Returns whether anything changed."""
        wanted = {check_topic(topic) for topic in topics}
        self._become(SubscriptionKind.TOPICS)
        changed = wanted != self.topics
        self.topics = wanted
        return changed

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to the topics whose whole name matches; `update_pattern` fills them in."""
        self._become(SubscriptionKind.PATTERN)
        self.pattern = pattern

    def update_pattern(self, topics: Iterable[str]) -> bool:
        """Match the pattern against the topics of the cluster. Returns whether that changed the subscription."""
        assert self.pattern is not None
        matched = {topic for topic in topics if self.pattern.fullmatch(topic)}
        changed = matched != self.topics
        self.topics = matched
        return changed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign manually (J7); replaces an earlier assignment. Partitions that stay keep their positions."""
        wanted = check_partitions(partitions)
        self._become(SubscriptionKind.MANUAL)
        self._replace(wanted)
        self.topics = {partition.topic for partition in self._assigned}

    def unsubscribe(self) -> None:
        """Forget subscription and assignment."""
        self.kind = SubscriptionKind.NONE
        self.topics = set()
        self.pattern = None
        self._replace([])

    def _become(self, kind: SubscriptionKind) -> None:
        if self.kind not in (SubscriptionKind.NONE, kind):
            raise IllegalStateError(f"{_CURRENT[self.kind]}; call unsubscribe() before {_REQUESTED[kind]}")
        self.kind = kind

    # --- what is assigned --------------------------------------------------------------------------------------------

    def assign_from_group(self, partitions: Iterable[TopicPartition]) -> None:
        """Adopt the group's assignment. Partitions that stay keep their positions; new ones start INITIALIZING."""
        self._replace(list(partitions))

    def _replace(self, partitions: list[TopicPartition]) -> None:
        before = self._assigned
        self.assignment_id += 1
        # A partition may be lost and come back while a fetch is under way. The answer belongs to the earlier ownership,
        # so an epoch must never be reused in a later one.
        epoch = self.assignment_id << 32
        self._assigned = {partition: before.get(partition) or PartitionState(epoch=epoch) for partition in partitions}
        for state in before.values():
            state.assigned = False
        for state in self._assigned.values():
            state.assigned = True
            state.pending_revocation = False

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, in the order in which they were assigned."""
        return list(self._assigned)

    def states(self) -> Iterable[tuple[TopicPartition, PartitionState]]:
        """All assigned partitions with their states."""
        return self._assigned.items()

    def state(self, partition: TopicPartition) -> PartitionState:
        """The state of an assigned partition.

        Raises:
            IllegalStateError: it is not assigned.
        """
        found = self._assigned.get(partition)
        if found is None:
            raise IllegalStateError(f"{partition} is not assigned to this consumer")
        return found

    def find(self, partition: TopicPartition) -> PartitionState | None:
        """The state of a partition, None if it is not assigned."""
        return self._assigned.get(partition)

    def mark_pending_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and handing out partitions that are about to be given up."""
        for partition in partitions:
            state = self._assigned.get(partition)
            if state is not None:
                state.pending_revocation = True

    # --- positions ---------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record to be handed out, None while it is unknown."""
        state = self.state(partition)
        return state.position if state.state is PositionState.FETCHING else None

    def all_consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that commit everything handed out so far."""
        return {
            partition: OffsetAndMetadata(state.position, state.leader_epoch)
            for partition, state in self._assigned.items()
            if state.state in (PositionState.FETCHING, PositionState.AWAIT_VALIDATION)
        }

    def store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Store offsets for the next commit that names none.

        Raises:
            IllegalStateError: a partition is not assigned; then nothing is stored.
            IllegalArgumentError: an offset is out of range.
        """
        wanted = [(self.state(partition), check_offset(partition, offset)) for partition, offset in offsets.items()]
        for state, offset in wanted:
            state.stored = offset

    def stored(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The stored offsets of the assigned partitions."""
        return {partition: state.stored for partition, state in self._assigned.items() if state.stored is not None}

    def store_at_least(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These offsets are being committed explicitly: a later commit of stored offsets must not reset the group to
        older ones."""
        for partition, offset in offsets.items():
            state = self._assigned.get(partition)
            if state is not None and state.stored is not None and state.stored.offset < offset.offset:
                state.stored = offset

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Continue at an offset.

        Raises:
            IllegalStateError: the partition is not assigned.
            IllegalArgumentError: the offset is out of range.
        """
        wanted = check_offset(partition, offset)
        self.state(partition).move_to(wanted.offset, wanted.leader_epoch)

    def set_position(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Start at the committed offset. Does nothing if the user has called `seek` or lost the partition meanwhile."""
        state = self._assigned.get(partition)
        if state is not None and state.state is PositionState.INITIALIZING:
            state.move_to(offset, leader_epoch)

    def partitions_without_position(self) -> list[TopicPartition]:
        """Partitions that wait for the group's committed offset."""
        return [p for p, state in self._assigned.items() if state.state is PositionState.INITIALIZING]

    def request_reset(self, partition: TopicPartition, strategy: OffsetReset | None = None) -> bool:
        """Request a lookup of the position. Returns False if the strategy is NONE: then the user must be notified."""
        state = self._assigned.get(partition)
        strategy = strategy or self.default_reset
        if state is None:
            return True
        if strategy is OffsetReset.NONE:
            return False
        state.state = PositionState.AWAIT_RESET
        state.reset = strategy
        state.epoch += 1
        state.retry_at = 0
        return True

    def needs_reset(self) -> list[TopicPartition]:
        """Partitions whose position has to be looked up."""
        return [p for p, state in self._assigned.items() if state.state is PositionState.AWAIT_RESET]

    def finish_reset(self, partition: TopicPartition, strategy: OffsetReset, offset: int) -> None:
        """Adopt the looked-up position, unless the partition was lost or `seek` was called meanwhile."""
        state = self._assigned.get(partition)
        if state is not None and state.state is PositionState.AWAIT_RESET and state.reset is strategy:
            state.move_to(offset, NO_LEADER_EPOCH)  # the leader itself named it: there is nothing to validate

    # --- pausing -----------------------------------------------------------------------------------------------------

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Neither fetch these nor hand out their records until `resume`. Fetched data is kept."""
        for partition in partitions:
            self.state(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        for partition in partitions:
            self.state(partition).paused = False

    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return [partition for partition, state in self._assigned.items() if state.paused]
