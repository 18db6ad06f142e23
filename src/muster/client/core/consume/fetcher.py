"""Fetching records and handing them out in order.

Theory. Each broker that leads assigned partitions has at most one fetch in flight. Its answer is kept raw, in a queue
for each partition; batches are decoded when they are handed out. Fetching runs ahead of handing out: a partition is
left out of the next fetch only while `max.partition.fetch.bytes` of it are already waiting. So the network and the
user's code work at the same time, and memory stays bounded.

A leader may name a follower that is nearer (KIP-392, with `client.rack`). The consumer fetches from it for
`metadata.max.age.ms`, and returns to the leader as soon as it fails in any way. The leader may name the same follower
again, so it is asked only after a backoff.

The sequence that `PartitionState.epoch` guards against: a fetch is sent; the user seeks; the answer to the old fetch
arrives. It belongs to an older epoch and is dropped: its records are from the wrong offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from muster.client.config import ConsumerConfig
from muster.client.core.consume.fetch_session import (
    INITIAL_EPOCH,
    FetchSession,
    FetchSpec,
    all_have_ids,
)
from muster.client.core.consume.fetched import FetchedData, PartitionQueue, whole_batches
from muster.client.core.events import EventStream
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.refusals import SESSION_LOST, should_retry
from muster.client.core.sends import AnySend, Failure, send
from muster.client.core.subscription_state import PartitionState, PositionState, SubscriptionState
from muster.errors import CorruptRecordError, ErrorCode, KafkaError, MusterError, ProtocolError, error_code
from muster.model import ConsumerRecord, Node, TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.messages import FetchResponse, PartitionData
from muster.protocol.records.message_set import to_batches
from muster.protocol.records.record_batch import UnsupportedMagicError

T = TypeVar("T")

_NO_LIMIT = 1 << 62

_NEWEST_WITH_TOPIC_NAMES = 12

HELD_BACK_WAIT_MS = 20
"""How long a fetch may be parked at a broker while other partitions of that broker wait for the user to catch up.

The sequence: enough of partition A waits, so only B is fetched; B is at its end, so the broker parks the fetch for
`fetch.max.wait.ms`; the user handles the records of A; and A cannot be fetched, because one fetch is already in flight.
"""


@dataclass(slots=True)
class _NodeState:
    session: FetchSession = field(default_factory=FetchSession)
    in_flight: bool = False
    retry_at: int = 0


_Sent = dict[TopicPartition, tuple[int, int]]
"""What a request asked for: partition -> (state epoch, fetch offset)."""


class Fetcher:
    """Fetches the assigned partitions and hands their records out."""

    def __init__(
        self, config: ConsumerConfig, subscription: SubscriptionState, metadata: ClusterMetadata, events: EventStream
    ) -> None:
        self.fetched_bytes = 0
        self._config = config
        self._subscription = subscription
        self._metadata = metadata
        self._isolation_level = READ_COMMITTED if config.isolation_level == "read_committed" else READ_UNCOMMITTED
        self._nodes: dict[int, _NodeState] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._turn: deque[TopicPartition] = deque()
        """The partitions in the order in which their records are handed out: they take turns."""
        self._events = events

    # --- asking ------------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The fetches that are due: one for each leader without one in flight."""
        self._drop_stale_queues()
        sends: list[AnySend] = []
        for node_id, wanted in self._wanted(now).items():
            node = self._nodes.setdefault(node_id, _NodeState())
            if not node.in_flight and node.retry_at <= now:
                sends.append(self._fetch(node_id, node, wanted, now))
        return sends

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing arrives earlier."""
        times: list[int] = []
        for partition, state in self._subscription.states():
            if not self._fetchable(partition, state):
                continue
            node_id = self._source(partition, state, now)
            node = self._nodes.get(node_id) if node_id is not None else None
            if node_id is not None and not (node and node.in_flight):
                times.append(max(state.retry_at, node.retry_at if node else 0))
        return max(now, min(times)) if times else None

    def closing_sends(self) -> list[AnySend]:
        """Requests that close the sessions at the brokers, so that their cache does not keep them."""
        sends: list[AnySend] = []
        for node_id, node in self._nodes.items():
            request = node.session.closing_request()
            if request is not None:
                sends.append(send(node_id, request, lambda _reply, _now: None))
            node.session.reset()
        return sends

    def _wanted(self, now: int) -> dict[int, dict[TopicPartition, FetchSpec]]:
        wanted: dict[int, dict[TopicPartition, FetchSpec]] = {}
        for partition, state in self._subscription.states():
            if not self._fetchable(partition, state) or state.retry_at > now:
                continue
            node_id = self._source(partition, state, now)
            if node_id is None:
                self._metadata.request_update(now)
                continue
            topic_id = self._metadata.topic_id(partition.topic)
            spec = FetchSpec(topic_id, state.fetch_position, self._metadata.leader_epoch(partition))
            wanted.setdefault(node_id, {})[partition] = spec
        return wanted

    def _source(self, partition: TopicPartition, state: PartitionState, now: int) -> int | None:
        """The broker to fetch from: the preferred replica while there is one, otherwise the leader."""
        preferred = state.preferred_replica
        if preferred is not None and now < state.preferred_until and self._metadata.has_replica(partition, preferred):
            return preferred
        return self._metadata.leader(partition)

    def _fetchable(self, partition: TopicPartition, state: PartitionState) -> bool:
        if state.state is not PositionState.FETCHING or state.paused or state.pending_revocation:
            return False
        queue = self._queues.get(partition)
        return queue is None or (queue.error is None and queue.waiting_bytes < self._config.max_partition_fetch_bytes)

    def _holds_back(self, node_id: int, now: int) -> bool:
        """Whether partitions of this broker are left out because enough of their data waits already."""
        limit = self._config.max_partition_fetch_bytes
        return any(
            queue.waiting_bytes >= limit
            and self._source(partition, self._subscription.state(partition), now) == node_id
            for partition, queue in self._queues.items()
        )

    def _fetch(self, node_id: int, node: _NodeState, wanted: dict[TopicPartition, FetchSpec], now: int) -> AnySend:
        request = node.session.request(wanted, self._config.max_partition_fetch_bytes)
        request.max_wait_ms = self._config.fetch_max_wait_ms
        if self._holds_back(node_id, now):
            request.max_wait_ms = min(request.max_wait_ms, HELD_BACK_WAIT_MS)
        request.min_bytes = self._config.fetch_min_bytes
        request.max_bytes = self._config.fetch_max_bytes
        request.isolation_level = self._isolation_level
        request.rack_id = self._config.client_rack
        sent = {p: (self._subscription.state(p).epoch, spec.offset) for p, spec in wanted.items()}
        node.in_flight = True
        newest = None if all_have_ids(wanted) else _NEWEST_WITH_TOPIC_NAMES
        on_reply = partial(self._on_reply, node_id, node, sent)
        return send(node_id, request, on_reply, newest_version=newest)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_reply(self, node_id: int, node: _NodeState, sent: _Sent, reply: FetchResponse | Failure, now: int) -> None:
        node.in_flight = False
        if isinstance(reply, Failure):
            node.session.reset()
            node.retry_at = now + self._config.retry_backoff_ms
            self._metadata.request_update(now)
            self._leave_replica(node_id, now)
            if not reply.retriable:
                self._events.fail(reply.error())
            return
        error = error_code(reply.error_code)
        opened = node.session.epoch == INITIAL_EPOCH
        node.session.on_response(error, reply.session_id)
        if error is not ErrorCode.NONE:
            if opened or error not in SESSION_LOST:  # a broker that refuses even a fresh session gets a backoff
                node.retry_at = now + self._config.retry_backoff_ms
            if error.stale_metadata or error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR:
                self._metadata.request_update(now)
            return
        self._process_partitions(sent, reply, self._update_leaders(reply), now)

    def _leave_replica(self, node_id: int, now: int) -> None:
        """A broker does not answer: fetch the partitions for which it was the preferred replica from their leaders."""
        for _, state in self._subscription.states():
            if state.preferred_replica == node_id:
                self._leave_preferred(state, now)

    def _leave_preferred(self, state: PartitionState, now: int) -> None:
        state.preferred_replica = None
        # The leader may name the same replica again.
        state.retry_at = max(state.retry_at, now + self._config.retry_backoff_ms)

    def _process_partitions(self, sent: _Sent, reply: FetchResponse, moved: set[TopicPartition], now: int) -> None:
        for topic in reply.responses:
            name = topic.topic or self._metadata.topic_name(topic.topic_id)
            if name is None:
                continue
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                request = sent.get(partition)
                state = self._subscription.find(partition)
                if request is not None and state is not None and _is_next(state, request):
                    self._on_partition(partition, state, data, request[1], now)
                    if partition in moved:
                        state.retry_at = 0  # its new leader is known: there is nothing to wait for

    def _update_leaders(self, reply: FetchResponse) -> set[TopicPartition]:
        """The partitions for which a response names a newer leader than was known (KIP-951)."""
        moved: set[TopicPartition] = set()
        nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in reply.node_endpoints}
        for topic in reply.responses:
            name = topic.topic or self._metadata.topic_name(topic.topic_id)
            for data in topic.partitions:
                leader = data.current_leader
                if name is not None and leader is not None and leader.leader_id >= 0:
                    partition = TopicPartition(name, data.partition_index)
                    node = nodes.get(leader.leader_id)
                    if self._metadata.update_leader(partition, leader.leader_id, leader.leader_epoch, node):
                        moved.add(partition)
        return moved

    def _on_partition(
        self, partition: TopicPartition, state: PartitionState, data: PartitionData, offset: int, now: int
    ) -> None:
        waiting = self._queues.get(partition)
        if waiting is not None and waiting.error is not None:
            return  # fetched before the error was found; nothing may come after the error
        error = error_code(data.error_code)
        if error is ErrorCode.NONE:
            self._update_ends(state, data)
            self._enqueue(partition, state, data, offset)
            if data.preferred_read_replica >= 0:
                self._prefer(partition, state, data.preferred_read_replica, now)
        elif error is ErrorCode.OFFSET_OUT_OF_RANGE and state.preferred_replica is not None:
            self._leave_preferred(state, now)  # a follower may lag; the leader knows
        elif error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._on_out_of_range(partition, state, offset, now)
        elif error is ErrorCode.CORRUPT_MESSAGE:
            state.retry_at = now + self._config.retry_backoff_max_ms
            self._fail(partition, state, KafkaError(error, f"{partition} is damaged at offset {offset}"))
        elif should_retry(error):
            # UNKNOWN_LEADER_EPOCH: the broker does not know the new epoch yet. Other errors: the leader has moved.
            self._leave_preferred(state, now)
            self._metadata.request_update(now)
        else:
            state.retry_at = now + self._config.retry_backoff_max_ms
            self._fail(partition, state, KafkaError(error, f"{partition} cannot be fetched"))

    def _update_ends(self, state: PartitionState, data: PartitionData) -> None:
        if data.high_watermark >= 0:
            state.high_watermark = data.high_watermark
        if data.last_stable_offset >= 0:
            state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset

    def _prefer(self, partition: TopicPartition, state: PartitionState, node_id: int, now: int) -> None:
        """The leader names a replica to fetch from."""
        if not self._metadata.has_replica(partition, node_id):
            self._metadata.request_update(now)
            self._leave_preferred(state, now)
        elif state.preferred_replica != node_id or state.preferred_until <= now:
            state.preferred_replica = node_id
            state.preferred_until = now + self._config.metadata_max_age_ms

    def _on_out_of_range(self, partition: TopicPartition, state: PartitionState, offset: int, now: int) -> None:
        if state.position != offset and self._queues.get(partition):
            # What is fetched but not handed out is still good: hand it out first, then ask again from its end.
            state.retry_at = now + self._config.retry_backoff_ms
            return
        if not self._subscription.request_reset(partition):
            state.retry_at = now + self._config.retry_backoff_ms
            message = (
                f"{partition} no longer has offset {offset}, and auto.offset.reset=none: choose a position with seek()"
            )
            self._fail(partition, state, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message))

    def _enqueue(self, partition: TopicPartition, state: PartitionState, data: PartitionData, offset: int) -> None:
        records = data.records
        if not records or isinstance(records, list):
            return
        self.fetched_bytes += len(records)
        end, last, damage = whole_batches(records)
        if isinstance(damage, UnsupportedMagicError):  # from a broker or a producer older than Kafka 0.11
            records, damaged_set = to_batches(records)
            end, last, damage = whole_batches(records)
            damage = damage or damaged_set
        if last is not None and last.next_offset <= offset:
            damage = CorruptRecordError(f"its batches end at offset {last.next_offset}")
            last = None
        if last is not None:
            aborted = None
            if self._isolation_level == READ_COMMITTED:
                aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()]
            whole = records if damage is None else memoryview(records)[:end]
            fetched = FetchedData(whole, offset, last.next_offset, last.partition_leader_epoch, aborted=aborted)
            self._queue(partition, state).add(fetched)
            state.fetch_position = last.next_offset
        if damage is not None:
            self._queue(partition, state).damaged(state.fetch_position, damage)
        elif last is None:
            # Only brokers from before Kafka 0.10.1 cut even the first batch (KIP-74); otherwise its length is damaged.
            message = (
                f"{partition} has a batch at offset {offset} too large for any response; seek() past it to continue"
            )
            self._fail(partition, state, KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message), lasting=True)

    def _queue(self, partition: TopicPartition, state: PartitionState) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = PartitionQueue(partition, state.epoch, check_crcs=self._config.check_crcs)
            self._queues[partition] = queue
            self._turn.append(partition)
        return queue

    def _fail(
        self, partition: TopicPartition, state: PartitionState, error: MusterError, *, lasting: bool = False
    ) -> None:
        self._queue(partition, state).fail(error, lasting=lasting)

    # --- handing out -------------------------------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether `collect` would return records, or raise."""
        return any(self._may_hand_out(partition) for partition in self._turn)

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the end of what can be read; None while that is unknown."""
        state = self._subscription.state(partition)
        end = state.last_stable_offset if self._isolation_level == READ_COMMITTED else state.high_watermark
        return None if end < 0 or state.position < 0 else max(0, end - state.position)

    def collect(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `max_records` records, in order for each partition; their positions move past them.

        Raises:
            CorruptRecordError: the partition next in turn is damaged; raised again at its next turn.
            KafkaError: the partition next in turn cannot be fetched.
        """
        return self._hand_out(PartitionQueue.take, max_records)

    def collect_raw(self) -> dict[TopicPartition, list[FetchedData]]:
        """Everything that waits, as fetched; the positions move past it. Raises as `collect` does."""
        return self._hand_out(lambda queue, state, _room: queue.take_raw(state), _NO_LIMIT)

    def refuse_raw(self, partition: TopicPartition, offset: int, error: ProtocolError) -> None:
        """What `collect_raw` returned is damaged from `offset` on: the position returns there."""
        state = self._subscription.find(partition)
        if state is not None:
            state.go_back(offset)  # not `move_to`: a new validation would void the queue, and the error with it
            self._drop_stale_queues()
            self._queue(partition, state).damaged(offset, error)

    def _hand_out(
        self, take: Callable[[PartitionQueue, PartitionState, int], list[T]], room: int
    ) -> dict[TopicPartition, list[T]]:
        """Serve the partitions in turn. An error is raised only if no records were taken before it in this call,
        because they would be lost. Otherwise its partition has the first turn of the next call, and after that the last
        one, so that a partition that fails every time does not keep the others waiting.
        """
        self._drop_stale_queues()
        taken: dict[TopicPartition, list[T]] = {}
        failing: list[TopicPartition] = []
        for _ in range(len(self._turn)):
            if room <= 0:
                break
            partition = self._turn.popleft()
            queue, found = self._queues[partition], []
            if self._may_hand_out(partition):
                found = take(queue, self._subscription.state(partition), room)
                room -= len(found)
                if found:
                    taken[partition] = found
                elif queue.error is not None and not queue.has_records:
                    if not taken:
                        raise self._take_error(queue)
                    failing.append(partition)
                    continue
            if not queue:
                del self._queues[partition]
            elif room > 0:
                self._turn.append(partition)
            else:  # the limit was reached: the partition keeps its turn, so that its batch is completed first
                self._turn.appendleft(partition)
        self._turn.extendleft(reversed(failing))
        return taken

    def _take_error(self, queue: PartitionQueue) -> MusterError:
        error = queue.take_error()
        if queue:
            self._turn.append(queue.partition)
        else:
            del self._queues[queue.partition]
        return error

    def _may_hand_out(self, partition: TopicPartition) -> bool:
        state = self._subscription.find(partition)
        queue = self._queues.get(partition)
        if state is None or not queue or queue.epoch != state.epoch:
            return False
        return not state.paused and not state.pending_revocation

    def _drop_stale_queues(self) -> None:
        void = [
            p
            for p, queue in self._queues.items()
            if (s := self._subscription.find(p)) is None or s.epoch != queue.epoch
        ]
        for partition in void:
            del self._queues[partition]
            self._turn.remove(partition)


def _is_next(state: PartitionState, request: tuple[int, int]) -> bool:
    """Whether an answer continues where the previous one ended.

    When the leader moves, two brokers may be asked for the same offset: the second answer comes too late.
    """
    return request == (state.epoch, state.fetch_position)
