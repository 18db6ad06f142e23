"""The producer's rules: from a record to its acknowledgement, without I/O.

The life of a record. `append` puts it into its partition's open batch; while its topic is not known, it is parked, for
at most `max.block.ms`. A batch is ready when it is full, when it has lingered, when memory is short, or during a flush.
`poll` collects, for each broker, the ready batches that may be sent into one Produce request. The answer completes a
batch, returns it to the head of its queue for a retry, or splits it. A batch is given up `delivery.timeout.ms` after
its first record arrived, wherever it is. `take_events` returns the completions.

The order of records within a partition is kept: always with idempotence (see `sequences`), and without it when
`max.in.flight.requests.per.connection` is 1.

With `transactional.id`, records are taken only within a transaction (`transactions`), and a batch is not sent before
its partition belongs to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.client.config import ProducerConfig
from muster.client.core.backoff import Backoff
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import (
    Accumulator,
    Completion,
    Outgoing,
    OutgoingBatch,
    ProducerBatch,
    Unsettled,
)
from muster.client.core.produce.partitioner import Partitioner
from muster.client.core.produce.placement import Placement
from muster.client.core.produce.produce_requests import ProduceCall, batch_error, produce_call, record_errors
from muster.client.core.produce.producer_id import ProducerId
from muster.client.core.produce.sequences import Sequences, TransactionSequences
from muster.client.core.produce.transaction_coordination import TransactionCoordination
from muster.client.core.produce.transaction_requests import PRODUCE_BEFORE_V2
from muster.client.core.produce.transactions import ProducerTransactions
from muster.client.core.refusals import NOT_WRITTEN, PRODUCER_FATAL
from muster.client.core.seeded_random import SeededRandom
from muster.client.core.sends import AnySend, Failure, FailureKind, Send
from muster.errors import (
    ClosedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
    error_code,
)
from muster.model import Node, TopicPartition
from muster.protocol.messages import PartitionProduceResponse, ProduceRequest, ProduceResponse
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE


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
        self._random = SeededRandom(seed)
        self._compression = Compression[config.compression_type.upper()]
        self._level = _level(config, self._compression)
        is_transactional = config.transactional_id is not None
        self._accumulator = Accumulator(config.batch_size, self._compression, is_transactional)
        self._placement = Placement(config, metadata, self._accumulator, partitioner, self._random)
        self.transactions: ProducerTransactions | None = None
        """The transactions of a producer with a `transactional_id`; they begin and end here."""
        self.coordination: TransactionCoordination | None = None
        self._sequences: Sequences | None = None
        self._ids: ProducerId | TransactionCoordination | None = None
        if is_transactional:
            sequences = self._sequences = TransactionSequences()
            self.transactions = ProducerTransactions(metadata, sequences, self._end)
            self._ids = self.coordination = TransactionCoordination(self.transactions, config, metadata, seed)
        elif config.idempotent:
            self._sequences = Sequences()
            self._ids = ProducerId(config, self._sequences, self.abort, self._end, seed)
        self._under_way: dict[int, list[list[ProducerBatch]]] = {}
        self._muted: set[TopicPartition] = set()
        self._unsettled = Unsettled()
        self._flushing = 0
        self._completions: list[Completion] = []
        self._deadline: int | None = None

    # --- taking records ----------------------------------------------------------------------------------------------

    def append(self, record: Outgoing, now: int) -> bool:
        """Accept a record or an encoded batch. Returns whether that gives `poll` something to do.

        The caller must check `fatal`, `check_size` and `has_room` first.

        Raises:
            Exception: the user's partitioner raised it; the record was not accepted.
            MusterError: no transaction is open, or it can no longer be committed.
        """
        if self.transactions is not None:
            self.transactions.check_send()
        record.era = self._unsettled.era
        needs_poll = self._placement.append(record, now)
        self._unsettled.add(record.count if record.__class__ is OutgoingBatch else 1)
        self.buffered_bytes += record.size
        return needs_poll

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

    # --- polling -----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> list[AnySend]:
        """The requests that are due."""
        self._deadline = None
        if self.fatal is not None:
            self.abort(self.fatal)
            return []
        for record, error in self._placement.place_parked(now):
            self._fail_parked(record, error)
        self._expire(now)
        if self.transactions is not None and (dropping := self.transactions.dropping) is not None:
            self._drop(dropping)
        if self._sequences is not None:
            self._sequences.settle()
        sends: list[AnySend] = []
        while chosen := self._collect(now):
            sends += [self._produce(node_id, batches) for node_id, batches in chosen.items()]
        if self._ids is not None:
            sends += self._ids.poll(now, self.buffered_bytes > 0)
        self._placement.forget_idle_topics(now)
        return sends

    def look_up(self, topic: str, now: int) -> None:
        """Fetch metadata of a topic that no record waits for."""
        self._placement.look_up(topic, now)

    def next_deadline(self, now: int) -> int | None:
        """When `poll` has something to do, if nothing happens earlier."""
        due = self._ids.next_deadline(now) if self._ids is not None else None
        times = [when for when in (self._deadline, self._placement.deadline, due) if when is not None]
        return max(now, min(times)) if times else None

    def _note_deadline(self, when: int) -> None:
        if self._deadline is None or when < self._deadline:
            self._deadline = when

    def _complete_parked(self, record: Outgoing, error: MusterError) -> None:
        partition = TopicPartition(record.topic, -1 if record.partition is None else record.partition)
        count = record.count if isinstance(record, OutgoingBatch) else 1
        fields = [record.receipt] * count, [record.timestamp] * count, record.size, [record.era] * count
        self._complete(Completion(partition, *fields, error=error))

    def _fail_parked(self, record: Outgoing, error: MusterError) -> None:
        self._complete_parked(record, error)
        if self.transactions is not None:
            self.transactions.failed(error, leaves_gap=False)

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _expire(self, now: int) -> None:
        timeout = self._config.delivery_timeout_ms
        for queue in self._accumulator.queues.values():
            while queue and queue[0].created_ms + timeout <= now:
                self._give_up(queue.popleft(), now)
            if queue:
                self._note_deadline(queue[0].created_ms + timeout)
        for requests in self._under_way.values():
            for batch in (batch for request in requests for batch in request if not batch.done):
                if batch.created_ms + timeout <= now:
                    batch.maybe_written = True
                    self._give_up(batch, now)
                else:
                    self._note_deadline(batch.created_ms + timeout)

    def _lose(self, batch: ProducerBatch, error: MusterError) -> None:
        """A batch was not written, or it is not known whether it was."""
        if self._sequences is not None:
            self._sequences.failed(batch)
        if self.transactions is not None:
            self.transactions.failed(error, batch.has_sequence)

    def _give_up(self, batch: ProducerBatch, now: int) -> None:
        waited = now - batch.created_ms
        why = f": {self._metadata.last_error}" if self._metadata.last_error else ""
        text = f"{batch.count} records for {batch.partition} were not acknowledged within {waited} ms{why}"
        error = KafkaTimeoutError(text)
        self._lose(batch, error)
        self._finish(batch, error=error)

    def _drop(self, error: MusterError) -> None:
        """The transaction is failing: batches that need not be sent are no longer sent."""
        assert self.transactions is not None
        for queue in self._accumulator.queues.values():
            waiting = list(queue)
            queue.clear()
            for batch in waiting:
                if self.transactions.must_settle(batch):
                    queue.append(batch)
                else:
                    self._lose(batch, error)
                    self._finish(batch, error=error)
        for record in self._placement.take_parked():
            self._complete_parked(record, error)

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
        if self.transactions is not None:
            self.transactions.end(error)

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
        immediately = self._flushing > 0 or self.room_wanted
        current = self.transactions
        if current is not None:
            immediately |= current.is_ending
        for partition, queue in self._accumulator.waiting():
            batch = queue[0]
            if current is not None and not current.may_send(partition):
                continue
            if not self._is_ready(batch, queue, immediately, now) or partition in self._muted:
                continue
            node_id = self._metadata.leader(partition)
            if node_id is None:
                self._metadata.add_interest((partition.topic,))
                if partition.topic in self._metadata.topics:
                    self._metadata.request_update(now)
                continue
            if len(self._under_way.get(node_id, ())) >= self._config.max_in_flight_requests_per_connection:
                self._placement.stalled_since.setdefault(node_id, now)
                continue
            self._take(partition, queue, node_id, chosen, sizes)
            self._placement.stalled_since.pop(node_id, None)
        return chosen

    def _is_ready(self, batch: ProducerBatch, queue: deque[ProducerBatch], immediately: bool, now: int) -> bool:
        if batch.retry_at > now:
            # The batch was refused by another leader: the new one is tried without a backoff (KIP-951).
            if self._metadata.leader_epoch(batch.partition) > batch.leader_epoch >= 0:
                return True
            self._note_deadline(batch.retry_at)
            return False
        if immediately or self._accumulator.is_full(batch, queue):
            return True
        if now >= batch.created_ms + self._config.linger_ms:
            return True
        self._note_deadline(batch.created_ms + self._config.linger_ms)
        return False

    def _take(
        self,
        partition: TopicPartition,
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
        self._accumulator.take(partition)
        try:
            self._accumulator.encode(batch, self._level)
        except Exception as error:  # a codec refuses its level or lacks memory
            self._fail(batch, ErrorCode.INVALID_RECORD, MusterError(f"the batch cannot be encoded: {error!r}"))
            return
        batch.leader_epoch = self._metadata.leader_epoch(partition)
        chosen.setdefault(node_id, []).append(batch)
        sizes[node_id] = size + batch.size
        if self._config.max_in_flight_requests_per_connection == 1:
            self._muted.add(partition)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _end(self, error: MusterError) -> None:
        """Records can no longer be sent. The first cause is the error that every call raises."""
        if self.fatal is not None:
            return
        error.fatal, error.abortable = True, False
        self.fatal = error
        if self.transactions is not None:
            self.transactions.end(error)

    def _produce(self, node_id: int, batches: list[ProducerBatch]) -> AnySend:
        config, newest = self._config, None
        if self.transactions is not None and not self.transactions.is_v2:
            newest = PRODUCE_BEFORE_V2
        acks = config.required_acks
        call = produce_call(
            batches, self._metadata.topic_id, acks, config.request_timeout_ms, config.transactional_id, newest
        )
        self._under_way.setdefault(node_id, []).append(batches)
        self.metrics.requests += 1
        for batch in batches:
            self._count_sent(batch)
        return Send(
            node_id,
            ProduceRequest,
            call.build,
            lambda reply, now: self._on_produced(node_id, batches, call, reply, now),
            newest_version=call.newest,
            expects_reply=acks != 0,
        )

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_produced(
        self,
        node_id: int,
        batches: list[ProducerBatch],
        call: ProduceCall,
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
        answers = call.answers(reply)
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
            self._fail(batch, code, batch_error(batch, code, answer), answer)

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
        wait = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms, self._random.below(1 << 30))
        wait.failures = batch.attempts
        batch.retry_at = now + wait.next_wait_ms()
        batch.attempts += 1
        self._requeue(batch)

    def _requeue(self, batch: ProducerBatch) -> None:
        """Put a batch back into its queue, in order."""
        queue = self._accumulator.queues[batch.partition]
        index = 0
        while index < len(queue) and queue[index].order < batch.order:
            index += 1
        queue.insert(index, batch)

    def _split(self, batch: ProducerBatch) -> None:
        pieces = batch.split()
        batch.done = True
        self.metrics.splits += 1
        self._accumulator.forget_ratio(batch.partition.topic)
        if self._sequences is not None:
            self._sequences.split(batch, pieces)
        for piece in pieces:
            self._accumulator.encode(piece, self._level)  # no record may be added that makes it too large again
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
        if self._sequences is not None and code in PRODUCER_FATAL:
            self._end(error)
        self._lose(batch, error)
        self._finish(batch, error=error, record_errors=record_errors(code, answer))

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
