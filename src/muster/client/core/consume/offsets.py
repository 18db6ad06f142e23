"""Looking up offsets: the reset of positions, and queries of the user (earliest, latest, by timestamp).

Both are ListOffsets requests to the leaders of the partitions. A reset continues until it succeeds or the partition is
gone; a query continues until it is answered or the caller gives up (`cancel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.checks import check_timestamps
from muster.client.core.events import EventStream
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.offset_requests import list_answers, list_request
from muster.client.core.refusals import is_retriable, should_retry
from muster.client.core.sends import AnySend, Failure, Send
from muster.client.core.subscription_state import OffsetReset, PositionState, SubscriptionState
from muster.errors import ErrorCode, KafkaError, MusterError
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

_RESET_TIMESTAMP = {OffsetReset.EARLIEST: EARLIEST_TIMESTAMP, OffsetReset.LATEST: LATEST_TIMESTAMP}


@dataclass(slots=True)
class OffsetQuery:
    """A query in progress. `results` holds None if no record is as recent as the requested timestamp."""

    open: dict[TopicPartition, int]
    isolation_level: int
    results: dict[TopicPartition, OffsetAndTimestamp | None] = field(default_factory=dict)
    error: MusterError | None = None
    in_flight: set[TopicPartition] = field(default_factory=set)
    retry_at: int = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.error is not None or not self.open


_Answer = OffsetAndTimestamp | MusterError | None
_OnPartition = Callable[[TopicPartition, _Answer, int], None]


class OffsetLookup:
    """Resets positions, and answers queries about offsets."""

    def __init__(
        self, config: ConsumerConfig, subscription: SubscriptionState, metadata: ClusterMetadata, events: EventStream
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._isolation_level = READ_COMMITTED if config.isolation_level == "read_committed" else READ_UNCOMMITTED
        self._resets_in_flight: set[TopicPartition] = set()
        self._queries: list[OffsetQuery] = []
        self._events = events

    def query(self, timestamps: Mapping[TopicPartition, int], isolation_level: int | None = None) -> OffsetQuery:
        """Look up the first offset at or after each timestamp (or `LATEST_TIMESTAMP`, `EARLIEST_TIMESTAMP`).

        The isolation level is the configured one, unless another is given."""
        checked = check_timestamps(timestamps)
        query = OffsetQuery(checked, self._isolation_level if isolation_level is None else isolation_level)
        self._metadata.add_interest({partition.topic for partition in checked})
        self._queries.append(query)
        return query

    def cancel(self, query: OffsetQuery) -> None:
        """Stop working on a query."""
        if query in self._queries:
            self._queries.remove(query)

    def poll(self, now: int) -> list[AnySend]:
        """The requests that are due."""
        return [
            *self._poll_resets(now),
            *(request for query in list(self._queries) for request in self._poll_query(query, now)),
        ]

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        # A partition without a known leader waits for metadata, whose answer calls `poll` anyway.
        times = [
            state.retry_at
            for partition, state in self._subscription.states()
            if state.state is PositionState.AWAIT_RESET
            and partition not in self._resets_in_flight
            and self._metadata.leader(partition) is not None
        ]
        times += [query.retry_at for query in self._queries if set(query.open) - query.in_flight]
        return max(now, min(times)) if times else None

    # --- resets ------------------------------------------------------------------------------------------------------

    def _poll_resets(self, now: int) -> Iterable[AnySend]:
        due: dict[TopicPartition, int] = {}
        strategies: dict[TopicPartition, OffsetReset] = {}
        for partition in self._subscription.needs_reset():
            state = self._subscription.state(partition)
            if partition not in self._resets_in_flight and state.retry_at <= now:
                due[partition] = _RESET_TIMESTAMP[state.reset]
                strategies[partition] = state.reset

        def finish(partition: TopicPartition, answer: _Answer, now: int) -> None:
            self._resets_in_flight.discard(partition)
            if answer is None:
                answer = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition} has no such offset")
            if not isinstance(answer, MusterError):
                self._subscription.finish_reset(partition, strategies[partition], answer.offset)
                return
            state = self._subscription.find(partition)
            is_transient = isinstance(answer, KafkaError) and should_retry(answer.code)
            if state is not None:
                backoff_ms = self._config.retry_backoff_ms if is_transient else self._config.retry_backoff_max_ms
                state.retry_at = now + backoff_ms
            if not is_transient:
                self._events.fail(answer)

        for request, partitions in self._requests(due, finish, now, self._isolation_level):
            self._resets_in_flight.update(partitions)
            yield request

    # --- queries -----------------------------------------------------------------------------------------------------

    def _poll_query(self, query: OffsetQuery, now: int) -> Iterable[AnySend]:
        if query.done:
            self.cancel(query)
            return
        if query.retry_at > now:
            return

        def finish(partition: TopicPartition, answer: _Answer, now: int) -> None:
            query.in_flight.discard(partition)
            if not isinstance(answer, MusterError):
                query.open.pop(partition, None)
                query.results[partition] = answer
            elif isinstance(answer, KafkaError) and answer.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                query.open.pop(partition, None)
                query.results[partition] = None  # records from before Kafka 0.10 have no timestamps
            elif isinstance(answer, KafkaError) and should_retry(answer.code):
                query.retry_at = now + self._config.retry_backoff_ms
            else:
                query.error = answer

        # A rebalance may have reset the interest to the group's topics.
        self._metadata.add_interest({partition.topic for partition in query.open})
        due = {p: timestamp for p, timestamp in query.open.items() if p not in query.in_flight}
        for request, partitions in self._requests(due, finish, now, query.isolation_level):
            query.in_flight.update(partitions)
            yield request
        if set(query.open) - query.in_flight:  # a leader is unknown: metadata comes first
            query.retry_at = now + self._config.retry_backoff_ms

    # --- requests ----------------------------------------------------------------------------------------------------

    def _requests(
        self, timestamps: Mapping[TopicPartition, int], finish: _OnPartition, now: int, isolation_level: int
    ) -> Iterable[tuple[AnySend, list[TopicPartition]]]:
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for partition, timestamp in timestamps.items():
            node_id = self._metadata.leader(partition)
            if node_id is None:
                self._metadata.request_update(now)
            else:
                by_node.setdefault(node_id, {})[partition] = timestamp
        for node_id, partitions in by_node.items():
            build = partial(
                list_request, partitions, isolation_level, self._config.request_timeout_ms, self._metadata.leader_epoch
            )
            on_reply = partial(self._on_reply, list(partitions), finish)
            yield Send(node_id, ListOffsetsRequest, build, on_reply), list(partitions)

    def _on_reply(
        self, asked: list[TopicPartition], finish: _OnPartition, reply: ListOffsetsResponse | Failure, now: int
    ) -> None:
        if isinstance(reply, Failure):
            self._metadata.request_update(now)
            for partition in asked:
                finish(partition, reply.error(), now)
            return
        for partition, answer in list_answers(reply, asked).items():
            if is_retriable(answer):
                self._metadata.request_update(now)
            finish(partition, answer, now)
