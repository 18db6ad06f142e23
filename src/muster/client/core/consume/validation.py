"""Positions after a change of leaders: does the new leader have what this consumer has read (KIP-320)?

Theory. A follower that lacks the end of the log may be elected (by an unclean election, or because all other disks were
lost). New records get offsets from that follower's own end, so a consumer with a later position would silently skip
some of them. Each batch says in which leader epoch it was written. So a position is a pair: an offset, and the epoch of
the record before it. The leader says where that epoch ends in its log; if that is below the position, the logs diverge
there.

Every position that has an epoch is validated once for each leader, before anything is fetched from it: when the
metadata names another leader or epoch, when a committed offset is adopted, when the user seeks with an epoch. Brokers
before Kafka 2.3 do not answer clients about this, and are trusted.

A topic that was deleted and created again under the same name is a different log, with a different id (KIP-516). A
position in the old log means nothing there, and the consumer has read nothing of it. So the consumer begins at the new
log's first record, whatever the reset policy, except "none". Kafka's client continues at the old position if the new
log has that offset, so it skips the records before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.events import INFO, EventStream, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend, Failure, FailureKind, Send
from muster.client.core.subscription_state import OffsetReset, PartitionState, PositionState, SubscriptionState
from muster.errors import (
    ErrorCode,
    KafkaError,
    LogTruncationError,
    UnsupportedVersionError,
    error_code,
)
from muster.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition
from muster.protocol.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from muster.protocol.messages import OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd
from muster.protocol.primitives import ZERO_UUID

CONSUMER_REPLICA_ID = -1
"""The replica id of a client, which is not a broker."""

_FIRST_FOR_CLIENTS = 3
_VALID = (PositionState.FETCHING, PositionState.AWAIT_VALIDATION)

_Asked = dict[TopicPartition, int]
"""The partitions of a request, with the epochs of their states."""


class PositionValidation:
    """Validates the positions of the assigned partitions."""

    def __init__(
        self, config: ConsumerConfig, subscription: SubscriptionState, metadata: ClusterMetadata, events: EventStream
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._events = events
        self._in_flight: dict[TopicPartition, int] = {}

    def poll(self, now: int) -> list[AnySend]:
        """Compare the leaders with those that the positions were validated for; returns the requests that are due."""
        by_node: dict[int, dict[TopicPartition, PartitionState]] = {}
        for partition, state in self._subscription.states():
            self._follow_leader(partition, state, now)
            if state.leader is not None and self._is_due(partition, state, now):
                by_node.setdefault(state.leader[0], {})[partition] = state
        return [self._ask(node_id, partitions) for node_id, partitions in by_node.items()]

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        times = [
            state.retry_at
            for partition, state in self._subscription.states()
            if state.state is PositionState.AWAIT_VALIDATION
            and state.leader is not None
            and self._in_flight.get(partition) != state.epoch
        ]
        return max(now, min(times)) if times else None

    def _follow_leader(self, partition: TopicPartition, state: PartitionState, now: int) -> None:
        if state.seen_version == self._metadata.version or state.state not in _VALID:
            return
        node_id = self._metadata.leader(partition)
        if node_id is None:
            return
        if self._is_another_topic(partition, state):
            self._restart(partition, state, now)
            return
        leader = (node_id, self._metadata.leader_epoch(partition))
        if self._is_behind(state, leader[1], now):
            if state.state is PositionState.FETCHING:
                state.validate()
                state.leader = None
            return
        state.seen_version = self._metadata.version
        if leader == state.leader:
            return
        state.leader = leader
        state.preferred_replica = None
        if NO_LEADER_EPOCH not in (state.leader_epoch, leader[1]):
            state.validate()
        else:
            state.state = PositionState.FETCHING

    def _is_another_topic(self, partition: TopicPartition, state: PartitionState) -> bool:
        found = self._metadata.topic_id(partition.topic)
        if ZERO_UUID not in (found, state.topic_id) and found != state.topic_id:
            return True
        if found != ZERO_UUID:
            state.topic_id = found
        return False

    def _restart(self, partition: TopicPartition, state: PartitionState, now: int) -> None:
        text = f"the topic of {partition} was deleted and recreated"
        if self._subscription.default_reset is not OffsetReset.NONE:
            self._events.append(Note(INFO, f"{text}; it is read from its beginning"))
            self._subscription.request_reset(partition, OffsetReset.EARLIEST)
            return
        if state.state is PositionState.FETCHING:
            state.validate()
            state.leader = None
        if state.retry_at <= now:
            state.retry_at = now + self._config.retry_backoff_max_ms
            self._events.fail(LogTruncationError(f"{text}, and auto_offset_reset=none: choose a position with seek()"))

    def _is_behind(self, state: PartitionState, epoch: int, now: int) -> bool:
        """Whether the metadata is older than the position, so that the leader it names may have been deposed.

        The metadata is fetched once more. If its epoch is still older then, the topic was created again.
        """
        if epoch == NO_LEADER_EPOCH or state.leader_epoch <= epoch:
            return False
        if state.awaited_refresh is None:
            state.awaited_refresh = self._metadata.refreshes + 1
            self._metadata.request_update(now)
        return self._metadata.refreshes < state.awaited_refresh

    def _is_due(self, partition: TopicPartition, state: PartitionState, now: int) -> bool:
        if state.state is not PositionState.AWAIT_VALIDATION or state.retry_at > now:
            return False
        return self._in_flight.get(partition) != state.epoch

    def _ask(self, node_id: int, partitions: dict[TopicPartition, PartitionState]) -> AnySend:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for partition, state in partitions.items():
            assert state.leader is not None
            topic = topics.setdefault(partition.topic, OffsetForLeaderTopic(partition.topic, []))
            topic.partitions.append(OffsetForLeaderPartition(partition.partition, state.leader[1], state.leader_epoch))
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values()))

        def build(version: int) -> OffsetForLeaderEpochRequest:
            if version < _FIRST_FOR_CLIENTS:
                raise UnsupportedVersionError("only brokers may ask this broker where an epoch ends")
            return request

        asked = {partition: state.epoch for partition, state in partitions.items()}
        self._in_flight |= asked
        return Send(node_id, OffsetForLeaderEpochRequest, build, partial(self._on_reply, asked))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_reply(self, asked: _Asked, reply: OffsetForLeaderEpochResponse | Failure, now: int) -> None:
        for partition, epoch in asked.items():
            if self._in_flight.get(partition) == epoch:
                del self._in_flight[partition]
        waiting = {
            partition: state
            for partition, epoch in asked.items()
            if (state := self._subscription.find(partition)) is not None
            and state.state is PositionState.AWAIT_VALIDATION
            and state.epoch == epoch
        }
        if isinstance(reply, Failure):
            self._on_failure(waiting.values(), reply, now)
            return
        answers = {
            TopicPartition(topic.topic, answer.partition): answer
            for topic in reply.topics
            for answer in topic.partitions
        }
        for partition, state in waiting.items():
            answer = answers.get(partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else error_code(answer.error_code)
            if answer is not None and code is ErrorCode.NONE:
                self._judge(partition, state, answer, now)
                continue
            state.retry_at = now + self._config.retry_backoff_ms
            self._metadata.request_update(now)
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                state.retry_at = now + self._config.retry_backoff_max_ms
                self._events.fail(KafkaError(code, f"topic {partition.topic} cannot be read"))

    def _on_failure(self, waiting: Iterable[PartitionState], failure: Failure, now: int) -> None:
        if failure.kind is FailureKind.UNSUPPORTED_VERSION:
            for state in waiting:
                state.state = PositionState.FETCHING
            return
        for state in waiting:
            state.retry_at = now + self._config.retry_backoff_ms
        self._metadata.request_update(now)
        if not failure.retriable:
            self._events.fail(failure.error())

    def _judge(self, partition: TopicPartition, state: PartitionState, answer: EpochEnd, now: int) -> None:
        known = answer.end_offset >= 0 and answer.leader_epoch >= 0
        if known and answer.end_offset >= state.position:
            state.state = PositionState.FETCHING
            return
        where = f"at offset {answer.end_offset}" if known else "somewhere before"
        text = f"{partition} was truncated {where}, but this consumer has read up to offset {state.position}"
        if self._subscription.default_reset is OffsetReset.NONE:
            state.retry_at = now + self._config.retry_backoff_max_ms
            divergent = OffsetAndMetadata(answer.end_offset, answer.leader_epoch) if known else None
            self._events.fail(
                LogTruncationError(f"{text}, and auto_offset_reset=none: choose a position with seek()", divergent)
            )
            return
        self._events.append(Note(INFO, f"{text}; reading continues from there"))
        if known:
            leader, version = state.leader, state.seen_version
            state.move_to(answer.end_offset, answer.leader_epoch)
            state.leader, state.seen_version = leader, version  # this leader has just returned the position
        else:
            self._subscription.request_reset(partition)
