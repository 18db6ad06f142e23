"""The producer's rules: from a record to its acknowledgement, without sockets, threads or a clock.

The life of a record. `append` puts it into its partition's open batch; while its topic is not known, it is parked, for
at most `max.block.ms`. A batch is ready when it is full, when it has lingered, when memory is short, or during a flush.
`poll` collects, for each broker, the ready batches that may be sent into one Produce request. The answer completes a
batch, returns it to the head of its queue for a retry, or splits it. A batch is given up `delivery.timeout.ms` after
its first record came, wherever it is. `take_events` returns the completions.

The order of records within a partition is kept: always with idempotence (see `sequences`), and without it when
`max.in.flight.requests.per.connection` is 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.client.config import ProducerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.chance import Chance
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import Accumulator, Completion, Outgoing, OutgoingBatch, ProducerBatch
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.placement import Placement
from muster.client.core.produce.sequences import Sequences
from muster.client.core.produce.unsettled import Unsettled
from muster.client.core.refusals import LIMITS, NOT_WRITTEN, PRODUCER_ENDS
from muster.client.core.sends import LEAST_LOADED, AnySend, Failure, FailureKind, Send
from muster.errors import (
    ClosedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
    UnsupportedVersionError,
    error_code,
)
from muster.model import Node, TopicPartition
from muster.protocol.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE

_LAST_VERSION_BY_NAME = 12
_MAX_INT = 2**31 - 1


@dataclass(slots=True)
class ProducerMetrics:
    """Counted since the start."""

    records_sent: int = 0
    """Counted each time it is sent."""
    records_acknowledged: int = 0
    records_retried: int = 0
    batches_sent: int = 0
    bytes_sent: int = 0
    requests: int = 0
    retries: int = 0
    splits: int = 0
    records_failed: int = 0
    leader_hints: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)
    """`records_sent` of each topic."""


class ProducerCore:
    """One producer. `receipt`s are the caller's own and come back, in order, in completions."""

    def __init__(
        self,
        config: ProducerConfig,
        metadata: ClusterMetadata,
        partitioner: Partitioner | None = None,
        seed: int = 0,
    ) -> None:
        self.metrics = ProducerMetrics()
        self.buffered_bytes = 0
        """Bytes of records waiting or in flight, by `record_size`."""
        self.fatal: MusterError | None = None
        self.room_wanted = False
        """Set while a caller waits for room: batches are then sent without lingering."""
        self._config = config
        self.largest_record = min(config.max_request_size, config.buffer_memory) - HEADER_SIZE
        """The `record_size` up to which `check_size` accepts a record without a closer look."""
        self._metadata = metadata
        self._chance = Chance(seed)
        self._compression = Compression[config.compression_type.upper()]
        self._level = _level(config, self._compression)
        self._accumulator = Accumulator(config.batch_size, self._compression)
        self._placement = Placement(config, metadata, self._accumulator, partitioner, self._chance)
        self._sequences = Sequences() if config.idempotent else None
        self._under_way: dict[int, list[list[ProducerBatch]]] = {}
        self._muted: set[TopicPartition] = set()
        self._unsettled = Unsettled()
        self._flushing = 0
        self._completions: list[Completion] = []
        self._init_in_flight = False
        self._init_not_before = 0
        self._init_backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, seed)
        self._deadline: int | None = None

    # --- taking records ----------------------------------------------------------------------------------------------

    def append(self, record: Outgoing, now: int) -> bool:
        """Accept a record or an encoded batch. Returns whether that gives `poll` something to do.

        The caller must check `fatal`, `check_size` and `has_room` first.

        Raises:
            Exception: the user's partitioner raised it; the record was not accepted.
        """
        record.era = self._unsettled.era
        news = self._placement.append(record, now)
        self._unsettled.add(record.count if record.__class__ is OutgoingBatch else 1)
        self.buffered_bytes += record.size
        return news

    def check_size(self, topic: str, size: int) -> MusterError | None:
        """The error of a record, or of an `OutgoingBatch`, that is too large to be sent; otherwise None."""
        if size <= self.largest_record:
            return None
        whole = size + HEADER_SIZE
        for name, limit in (
            ("max_request_size", self._config.max_request_size),
            ("buffer_memory", self._config.buffer_memory),
        ):
            if whole > limit:
                text = f"the record for topic {topic} takes {whole} bytes; {name} of this producer allows {limit}"
                return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return None

    def has_room(self, size: int) -> bool:
        """Whether `buffer.memory` has room for a record of this `record_size`."""
        return self.buffered_bytes + size <= self._config.buffer_memory

    # --- the round ---------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The requests that are due."""
        self._deadline = None
        if self.fatal is not None:
            self.abort(self.fatal)
            return []
        for record, error in self._placement.place_parked(now):
            self._complete_parked(record, error)
        self._expire(now)
        if self._sequences is not None:
            self._sequences.settle()
        sends = self._init_producer_id(now)
        while chosen := self._collect(now):
            sends += [self._produce(node_id, batches) for node_id, batches in chosen.items()]
        self._placement.forget_idle_topics(now)
        return sends

    def look_up(self, topic: str, now: int) -> None:
        """Ask for a topic without a record for it."""
        self._placement.look_up(topic, now)

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing happens earlier."""
        times = [when for when in (self._deadline, self._placement.deadline) if when is not None]
        return max(now, min(times)) if times else None

    def _look_at(self, when: int) -> None:
        if self._deadline is None or when < self._deadline:
            self._deadline = when

    def _complete_parked(self, record: Outgoing, error: MusterError) -> None:
        place = TopicPartition(record.topic, -1 if record.partition is None else record.partition)
        count = record.count if isinstance(record, OutgoingBatch) else 1
        told = [record.receipt] * count, [record.timestamp] * count, record.size, [record.era] * count
        self._complete(Completion(place, *told, error=error))

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _expire(self, now: int) -> None:
        timeout = self._config.delivery_timeout_ms
        for queue in self._accumulator.queues.values():
            while queue and queue[0].created_ms + timeout <= now:
                self._give_up(queue.popleft(), now)
            if queue:
                self._look_at(queue[0].created_ms + timeout)
        for requests in self._under_way.values():
            for batch in (batch for request in requests for batch in request if not batch.done):
                if batch.created_ms + timeout <= now:
                    batch.maybe_written = True
                    self._give_up(batch, now)
                else:
                    self._look_at(batch.created_ms + timeout)

    def _give_up(self, batch: ProducerBatch, now: int) -> None:
        if self._sequences is not None:
            self._sequences.failed(batch)
        waited = now - batch.created_ms
        why = f": {self._metadata.last_error}" if self._metadata.last_error else ""
        text = f"{batch.count} records for {batch.partition} were not acknowledged within {waited} ms{why}"
        self._finish(batch, error=KafkaTimeoutError(text))

    def abort(self, error: MusterError) -> None:
        """Give up everything unfinished: the producer is closed immediately, or cannot continue."""
        for queue in self._accumulator.queues.values():
            while queue:
                self._finish(queue.popleft(), error=error)
        for requests in self._under_way.values():
            for request in requests:
                for batch in request:
                    self._finish(batch, error=error)
        for record in self._placement.take_parked():
            self._complete_parked(record, error)

    def close(self) -> None:
        """Fail everything unfinished with ClosedError; later answers are ignored."""
        self.abort(ClosedError("the producer was closed before the record was acknowledged"))

    # --- flushing ----------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Callable[[], bool]:
        """Send all waiting records without lingering. Returns a function that says whether all records accepted before
        are settled.

        A record is settled when `take_events` has returned it.
        """
        self._flushing += 1
        return self._unsettled.begin_flush()

    def end_flush(self) -> None:
        """A flush has ended."""
        self._flushing -= 1

    # --- collecting what is ready ------------------------------------------------------------------------------------

    def _collect(self, now: int) -> dict[int, list[ProducerBatch]]:
        chosen: dict[int, list[ProducerBatch]] = {}
        sizes: dict[int, int] = {}
        hurry = self._flushing > 0 or self.room_wanted
        for place, queue in self._accumulator.waiting():
            batch = queue[0]
            if not self._is_ready(batch, queue, hurry, now) or place in self._muted:
                continue
            node_id = self._metadata.leader(place)
            if node_id is None:
                self._metadata.add_interest((place.topic,))
                if place.topic in self._metadata.topics:
                    self._metadata.request_update(now)
                continue
            if len(self._under_way.get(node_id, ())) >= self._config.max_in_flight_requests_per_connection:
                self._placement.stalled_since.setdefault(node_id, now)
                continue
            self._take(place, queue, node_id, chosen, sizes)
            self._placement.stalled_since.pop(node_id, None)
        return chosen

    def _is_ready(self, batch: ProducerBatch, queue: deque[ProducerBatch], hurry: bool, now: int) -> bool:
        if batch.retry_at > now:
            # The batch was refused by another leader: the new one is tried without a backoff (KIP-951).
            if self._metadata.leader_epoch(batch.partition) > batch.leader_epoch >= 0:
                return True
            self._look_at(batch.retry_at)
            return False
        if hurry or self._accumulator.is_full(batch, queue):
            return True
        if now >= batch.created_ms + self._config.linger_ms:
            return True
        self._look_at(batch.created_ms + self._config.linger_ms)
        return False

    def _take(
        self,
        place: TopicPartition,
        queue: deque[ProducerBatch],
        node_id: int,
        chosen: dict[int, list[ProducerBatch]],
        sizes: dict[int, int],
    ) -> None:
        batch = queue[0]
        size = sizes.get(node_id, 0)
        if size and size + batch.size > self._config.max_request_size:
            return
        if self._sequences is not None:
            if not self._sequences.may_send(batch):
                return
            self._sequences.assign(batch)
        self._accumulator.take(place)
        try:
            self._accumulator.encode(batch, self._level)
        except Exception as error:  # a codec refuses its level or lacks memory
            self._fail(batch, ErrorCode.INVALID_RECORD, MusterError(f"the batch cannot be encoded: {error!r}"))
            return
        batch.leader_epoch = self._metadata.leader_epoch(place)
        chosen.setdefault(node_id, []).append(batch)
        sizes[node_id] = size + batch.size
        if self._config.max_in_flight_requests_per_connection == 1:
            self._muted.add(place)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _init_producer_id(self, now: int) -> list[AnySend]:
        if self._sequences is None or not self._sequences.needs_producer_id or self._init_in_flight:
            return []
        if not self.buffered_bytes:
            return []  # nothing to send yet
        if now < self._init_not_before:
            self._look_at(self._init_not_before)
            return []
        self._init_in_flight = True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_MAX_INT)
        return [Send(LEAST_LOADED, InitProducerIdRequest, lambda _: request, self._on_producer_id)]

    def _on_producer_id(self, reply: InitProducerIdResponse | Failure, now: int) -> None:
        self._init_in_flight = False
        assert self._sequences is not None
        if isinstance(reply, Failure):
            if reply.kind is FailureKind.AUTHENTICATION:
                self.abort(reply.error())  # the next record tries again
            elif not reply.retriable:
                text = f"{reply.message}; an idempotent producer needs it: set enable_idempotence to False"
                self._end(UnsupportedVersionError(text))
        elif reply.error_code == ErrorCode.NONE:
            self._sequences.set_producer_id(reply.producer_id, reply.producer_epoch)
            return
        elif not error_code(reply.error_code).retriable:
            self._end(KafkaError(reply.error_code, "the broker returned no producer id"))
        self._init_not_before = now + self._init_backoff.next_wait_ms()

    def _end(self, error: MusterError) -> None:
        """Records can no longer be sent."""
        error.fatal = True
        self.fatal = error

    def _produce(self, node_id: int, batches: list[ProducerBatch]) -> AnySend:
        by_topic: dict[str, list[ProducerBatch]] = {}
        for batch in batches:
            by_topic.setdefault(batch.partition.topic, []).append(batch)
        ids = {topic: self._metadata.topic_id(topic) for topic in by_topic}
        newest = _LAST_VERSION_BY_NAME if ZERO_UUID in ids.values() else None
        acks = self._config.required_acks
        timeout_ms = self._config.request_timeout_ms

        def build(version: int) -> ProduceRequest:
            by_name = version <= _LAST_VERSION_BY_NAME
            return ProduceRequest(
                acks=acks,
                timeout_ms=timeout_ms,
                topic_data=[
                    TopicProduceData(
                        name=topic if by_name else "",
                        topic_id=ZERO_UUID if by_name else ids[topic],
                        partition_data=[PartitionProduceData(b.partition.partition, b.encoded) for b in parts],
                    )
                    for topic, parts in by_topic.items()
                ],
            )

        self._under_way.setdefault(node_id, []).append(batches)
        self.metrics.requests += 1
        for batch in batches:
            self._count_sent(batch)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        return Send(
            node_id,
            ProduceRequest,
            build,
            lambda reply, now: self._on_produced(node_id, batches, names, reply, now),
            newest_version=newest,
            expects_reply=acks != 0,
        )

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_produced(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        names: dict[bytes, str],
        reply: ProduceResponse | Failure,
        now: int,
    ) -> None:
        under_way = self._under_way[node_id]
        under_way[:] = [request for request in under_way if request is not batches]
        self._muted.difference_update(batch.partition for batch in batches)
        if isinstance(reply, Failure):
            for batch in batches:
                self._on_failure(batch, reply, now)
            return
        if self._config.required_acks == 0:
            for batch in batches:
                self._acknowledge(batch, -1, -1)
            return
        answers: dict[TopicPartition, PartitionProduceResponse] = {}
        for topic in reply.responses:
            name = topic.name or names.get(topic.topic_id, "")
            answers |= {TopicPartition(name, part.index): part for part in topic.partition_responses}
        nodes = {node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in reply.node_endpoints}
        for batch in batches:
            answer = answers.get(batch.partition)
            if answer is None:
                self._on_failure(
                    batch,
                    Failure(FailureKind.GARBLED, f"the broker's response does not mention {batch.partition}"),
                    now,
                )
            else:
                self._on_answer(batch, answer, nodes, now)

    def _on_failure(self, batch: ProducerBatch, failure: Failure, now: int) -> None:
        if batch.done:
            return
        if failure.kind in (FailureKind.UNREACHABLE, FailureKind.AUTHENTICATION):
            # Nothing was sent, so this does not count as an attempt; the driver waits before it reconnects.
            batch.retry_at = now + self._config.retry_backoff_ms
            self._requeue(batch)
            return
        batch.maybe_written |= failure.retriable
        if not failure.retriable:
            too_old = failure.kind is FailureKind.UNSUPPORTED_VERSION
            code = ErrorCode.UNSUPPORTED_VERSION if too_old else ErrorCode.INVALID_REQUEST
            self._fail(batch, code, failure.error())
        elif batch.attempts < self._config.retries:
            self._retry(batch, now)
        else:
            self._fail(batch, ErrorCode.NETWORK_EXCEPTION, KafkaConnectionError(failure.message))

    def _on_answer(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, nodes: dict[int, Node], now: int
    ) -> None:
        code = error_code(answer.error_code)
        if code.stale_metadata:
            self._learn_leader(batch.partition, answer, nodes)
            self._metadata.request_update(now)
        if batch.done:
            return
        batch.maybe_written |= code not in NOT_WRITTEN
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            # A duplicate whose offset the broker no longer knows is in the log: success without an offset.
            known = code is ErrorCode.NONE
            self._acknowledge(batch, answer.base_offset if known else -1, answer.log_append_time_ms)
        elif code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE) and batch.count > 1:
            self._split(batch)
        elif batch.attempts < self._config.retries and self._can_retry(batch, code, answer):
            self._retry(batch, now)
        else:
            self._fail(batch, code, _refusal(batch, code, answer), answer)

    def _can_retry(self, batch: ProducerBatch, code: ErrorCode, answer: PartitionProduceResponse) -> bool:
        if self._sequences is None:
            return code.retriable
        return self._sequences.can_retry(batch, code, answer.log_start_offset)

    def _learn_leader(
        self, partition: TopicPartition, answer: PartitionProduceResponse, nodes: dict[int, Node]
    ) -> None:
        leader = answer.current_leader
        if leader is None or leader.leader_id == -1 or leader.leader_epoch == -1:
            return
        hint = nodes.get(leader.leader_id)
        if self._metadata.update_leader(partition, leader.leader_id, leader.leader_epoch, hint):
            self.metrics.leader_hints += 1

    def _retry(self, batch: ProducerBatch, now: int) -> None:
        wait = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._chance.below(1 << 30))
        wait.failures = batch.attempts
        batch.retry_at = now + wait.next_wait_ms()
        batch.attempts += 1
        self._requeue(batch)

    def _requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back at its place in its queue."""
        queue = self._accumulator.queues[batch.partition]
        place = 0
        while place < len(queue) and queue[place].order < batch.order:
            place += 1
        queue.insert(place, batch)

    def _split(self, batch: ProducerBatch) -> None:
        pieces = batch.split()
        batch.done = True
        self.metrics.splits += 1
        self._accumulator.forget_ratio(batch.partition.topic)
        if self._sequences is not None:
            self._sequences.split(batch, pieces)
        for piece in pieces:
            self._accumulator.encode(piece, self._level)  # no record may be added and make it too large again
            piece.attempts = batch.attempts
            self._requeue(piece)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _count_sent(self, batch: ProducerBatch) -> None:
        counted, topic = self.metrics, batch.partition.topic
        if batch.attempts:
            counted.retries += 1
            counted.records_retried += batch.count
        counted.batches_sent += 1
        counted.bytes_sent += batch.size
        counted.records_sent += batch.count
        counted.by_topic[topic] = counted.by_topic.get(topic, 0) + batch.count

    def _acknowledge(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        if batch.done:
            return
        if self._sequences is not None:
            self._sequences.completed(batch)
        self.metrics.records_acknowledged += batch.count
        self._finish(batch, base_offset=base_offset, log_append_time_ms=log_append_time_ms)

    def _fail(
        self,
        batch: ProducerBatch,
        code: ErrorCode,
        error: MusterError,
        answer: PartitionProduceResponse | None = None,
    ) -> None:
        if self._sequences is not None:
            self._sequences.failed(batch)
            if code in PRODUCER_ENDS:
                self._end(error)
        self._finish(batch, error=error, record_errors=_record_errors(code, answer))

    def _finish(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
        error: MusterError | None = None,
        record_errors: dict[int, MusterError] | None = None,
    ) -> None:
        if batch.done:
            return
        batch.done = True
        self._complete(
            Completion(
                batch.partition,
                batch.receipts,
                batch.timestamps,
                batch.memory,
                batch.eras,
                base_offset,
                log_append_time_ms,
                error,
                record_errors or {},
            )
        )

    def _complete(self, completion: Completion) -> None:
        self.buffered_bytes -= completion.memory
        if completion.error is not None:
            self.metrics.records_failed += len(completion.receipts)
        self._completions.append(completion)

    def take_events(self) -> list[Completion]:
        """The completions since the last call, in order for each partition."""
        completions, self._completions = self._completions, []
        for completion in completions:
            self._unsettled.settle(completion.eras)
        return completions


def _level(config: ProducerConfig, compression: Compression) -> int | None:
    if compression is Compression.ZSTD:
        return config.compression_zstd_level
    if compression is Compression.GZIP and config.compression_gzip_level >= 0:
        return config.compression_gzip_level
    return None


def _refusal(batch: ProducerBatch, code: ErrorCode, answer: PartitionProduceResponse) -> KafkaError:
    limit = LIMITS.get(code)
    if limit is None:
        return KafkaError(code, answer.error_message)
    what = "record" if batch.count == 1 else f"batch of {batch.count} records"
    text = f"the {what} for {batch.partition} takes {batch.size} bytes, more than {limit} allows"
    return KafkaError(code, f"{text}: {answer.error_message}" if answer.error_message else text)


def _record_errors(code: ErrorCode, answer: PartitionProduceResponse | None) -> dict[int, MusterError]:
    """The broker's errors for single records (KIP-467); the other records of the batch fail because of them."""
    if answer is None or not answer.record_errors:
        return {}
    single = len(answer.record_errors) == 1
    return {
        found.batch_index: KafkaError(
            code if single else ErrorCode.INVALID_RECORD, found.batch_index_error_message or answer.error_message
        )
        for found in answer.record_errors
    }
