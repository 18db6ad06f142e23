"""Produce (0): batches into the log.

v5: log_start_offset. v8: errors of individual records (KIP-467). v10: the current leader. v13: topic ids, not names.

acks=0 is not answered. Because there is one replica, acks=1 and acks=all both wait until the log reports the records as
durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from muster.broker.cluster_view import LEADER_ELSEWHERE, ClusterView, LeaderHint
from muster.broker.net.calls import NO_RESPONSE, Call, CloseConnectionError
from muster.broker.net.side_thread import SideThread
from muster.broker.topics.catalogue import TopicCatalogue
from muster.broker.topics.durability import AppendWait, Durability
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.verification import SupportedOperation, Verifier, of_produce
from muster.clock import wall_clock_ms
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode, KafkaError
from muster.log import LogError
from muster.log.batches import validation
from muster.log.batches.recompression import recompressed
from muster.model import INTERNAL_TOPICS, TopicPartition
from muster.protocol.messages import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    TopicProduceData,
    TopicProduceResponse,
)
from muster.protocol.primitives import Buffer
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL_FLAG, BatchHeader

if TYPE_CHECKING:
    from muster.log import PartitionLog

log = logging.getLogger("muster.broker")

_SIZE = Struct(">i")
_INT8 = Struct(">b")
_FIRST_LOOK = Struct(">i4xb4xh")
_MAGIC = 16
_MAGIC_2 = 2
_ATTRIBUTES = 22
_SMALLEST = 14
"""Bytes of the smallest record of the oldest format: a batch must not be smaller."""

_ZSTD_SINCE = 7
_LEADERS_SINCE = 10


Waits = list[tuple[AppendWait, PartitionProduceResponse]]
"""Appends that are not durable yet, each with its part of the answer."""

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka allows to write to internal topics. Any client may use it, so reads check records."""

ACKS = (-1, 0, 1)
"""Replicas that a producer may wait for: all, none, the leader."""

_UNREPORTED = "a produce with acks=0 failed; closing the connection is the only way to report it"


class Append:
    """A partition's batch on its way into the log. `result` is its part of the answer."""

    __slots__ = ("batch", "examined", "guard", "log", "result")

    def __init__(self, log: PartitionLog, batch: Buffer, result: PartitionProduceResponse) -> None:
        self.log = log
        self.batch = batch
        self.result = result
        self.examined: validation.Examined | LogError | None = None
        self.guard: int | None = None
        """The first batch here of a transaction, which must be verified first."""

    def examine(self, now: int, *, at_once: bool) -> None:
        """Examine the batch. With `at_once` a batch that would take a long time is left for the thread."""
        try:
            config = self.log.config
            examined = validation.examine(self.batch, config, now, "client", self.log.topic_partition, at_once=at_once)
            if config.compression is not None:
                self.batch, examined = recompressed(self.batch, examined, config, at_once=at_once)
            self.examined = examined
        except validation.CostlyError:
            pass
        except LogError as error:
            self.examined = error
        except Exception:
            log.exception("a batch for %s could not be checked", self.log.topic_partition)
            self.examined = LogError(ErrorCode.UNKNOWN_SERVER_ERROR)


class ProduceNeeds(NamedTuple):
    """The parts of the broker that Produce uses."""

    cluster: ClusterView
    topics: TopicCatalogue
    partitions: Partitions
    durability: Durability
    fetches: ParkedFetches
    side_thread: SideThread
    verifier: Verifier


Write: TypeAlias = Callable[
    [ProduceNeeds, ProduceRequest, Call, ProduceResponse, list["Append"]], ProduceResponse | None
]


def produce(here: ProduceNeeds, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append each partition's batch; answer when they are durable.

    A thread examines any batch that takes a long time. The connection waits for that, as it would with Kafka: later
    requests must not overtake it.
    """
    appends: list[Append] = []
    partitions = 0
    response = ProduceResponse()
    for requested in request.topic_data:
        name = _topic_name(here, requested, call.version)
        results = [
            _accept(here, name, partition, request, call, appends, response) for partition in requested.partition_data
        ]
        response.responses.append(TopicProduceResponse(requested.name, bytes(requested.topic_id), results))
        partitions += len(results)
    now, costly, transactional = wall_clock_ms(), False, 0
    if len(appends) < partitions:  # some are refused already
        transactional = _has_transactional(request)
    for append in appends:
        transactional |= append.batch[_ATTRIBUTES] & TRANSACTIONAL_FLAG
        append.examine(now, at_once=True)
        costly = costly or append.examined is None
    write = _verify if transactional else _write
    if not costly:
        return write(here, request, call, response, appends)
    _examine_beside(here, request, call, response, appends, write)
    return None


def _has_transactional(request: ProduceRequest) -> int:
    """Whether any batch is part of a transaction, even one for a partition that is not here: then Kafka requires a
    transactional id first."""
    batches = (each.records for topic in request.topic_data for each in topic.partition_data)
    sent = (
        batch for batch in batches if batch is not None and not isinstance(batch, list) and len(batch) > _ATTRIBUTES
    )
    return any(batch[_MAGIC] == _MAGIC_2 and batch[_ATTRIBUTES] & TRANSACTIONAL_FLAG for batch in sent)


def _examine_beside(
    here: ProduceNeeds,
    request: ProduceRequest,
    call: Call,
    response: ProduceResponse,
    appends: list[Append],
    write_all: Write,
) -> None:
    """Let the thread examine the remaining batches, and then write them all."""
    call.blocks = True

    def examine() -> Generator[None, None, None]:
        for append in appends:
            if append.examined is None:
                append.examine(wall_clock_ms(), at_once=False)
                yield

    def write() -> None:
        _answer(call, lambda: write_all(here, request, call, response, appends))

    topic = appends[0].log.topic_partition.topic
    here.side_thread.run(call, topic, examine(), write, unanswered=request.acks == 0)


def _answer(call: Call, write: Callable[[], ProduceResponse | None]) -> None:
    """Write after the handler has returned, and reply."""
    try:
        answer = write()
    except CloseConnectionError as error:
        call.close(str(error))
    else:
        if answer is not None:
            call.reply(answer)


# -------------------------------------------------------------------------------------------------------- transactions


def _verify(
    here: ProduceNeeds, request: ProduceRequest, call: Call, response: ProduceResponse, appends: list[Append]
) -> ProduceResponse | None:
    """Write batches, some of which are part of a transaction. If it is not open yet in a partition, the coordinator is
    asked first; the connection waits, so that no later request overtakes this one."""
    if request.transactional_id is None:
        return _refuse_all(request, response, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    headers = {
        append: header
        for append in appends
        if isinstance(append.examined, validation.Examined)
        for header in append.examined.headers[:1]
        if header.is_transactional and header.producer_id >= 0  # without one the flag means nothing, as in Kafka
    }
    producers = {ProducerIdentity(header.producer_id, header.producer_epoch) for header in headers.values()}
    if len(producers) > 1:
        return _refuse_all(request, response, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    operation = of_produce(call.version)
    requested = _to_be_verified(headers, operation)
    if not requested:
        return _write(here, request, call, response, _accepted(appends))

    def verified(errors: Mapping[TopicPartition, ErrorCode]) -> None:
        for partition, error in errors.items():
            _not_verified(requested[partition].result, error, operation)
        if not call.over:  # the batches are in the memory of its connection
            _answer(call, lambda: _write(here, request, call, response, _accepted(appends)))

    call.blocks = True
    transactional_id, partitions = request.transactional_id, frozenset(requested)
    here.verifier.ask(transactional_id, producers.pop(), partitions, operation, verified, patient=True)
    return None


def _to_be_verified(
    headers: Mapping[Append, BatchHeader], operation: SupportedOperation
) -> dict[TopicPartition, Append]:
    """Begin to verify the batches whose transaction is not open in their partition."""
    requested = {}
    for append, header in headers.items():
        producer = (header.producer_id, header.producer_epoch, header.base_sequence)
        try:
            append.guard = append.log.begin_verification(
                *producer, tv2=operation is SupportedOperation.ADD, now=wall_clock_ms()
            )
        except LogError as error:
            _not_verified(append.result, error.code, operation)
        if append.guard is not None:
            requested[append.log.topic_partition] = append
    return requested


def _accepted(appends: list[Append]) -> list[Append]:
    return [append for append in appends if not append.result.error_code]


def _refuse_all(request: ProduceRequest, response: ProduceResponse, error: ErrorCode) -> ProduceResponse:
    if request.acks == 0:
        raise CloseConnectionError(_UNREPORTED)
    for topic in response.responses:
        topic.partition_responses = [
            PartitionProduceResponse(each.index, error, base_offset=-1) for each in topic.partition_responses
        ]
    response.node_endpoints = []
    return response


_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def _not_verified(result: PartitionProduceResponse, error: ErrorCode, operation: SupportedOperation) -> None:
    """Clients retry after NOT_ENOUGH_REPLICAS, even those that do not expect the coordinator's errors here."""
    result.error_code = error
    concurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS and operation is not SupportedOperation.ADD
    if error in _COORDINATOR_ERRORS or concurrent:
        result.error_code = ErrorCode.NOT_ENOUGH_REPLICAS
        text = "Unable to verify the partition has been added to the transaction. Underlying error: "
        result.error_message = text + error.name
    elif error is ErrorCode.INVALID_TXN_STATE:
        result.error_message = "Partition was not added to the transaction"


def _write(
    here: ProduceNeeds, request: ProduceRequest, call: Call, response: ProduceResponse, appends: list[Append]
) -> ProduceResponse | None:
    waits: Waits = []
    now = wall_clock_ms()
    for append in appends:
        _append(here, append, request, waits, now)
    if request.acks == 0:
        # No request waits for these records, but with fsync=always they cannot be read before they are synced.
        here.durability.want()
        if any(result.error_code for topic in response.responses for result in topic.partition_responses):
            raise CloseConnectionError(_UNREPORTED)
        return NO_RESPONSE  # type: ignore[return-value]
    if not waits or all(wait.over for wait, _ in waits):
        return response
    here.durability.wait([wait for wait, _ in waits], lambda: _durable(waits, response, call))
    return None


def _durable(waits: Waits, response: ProduceResponse, call: Call) -> None:
    for wait, result in waits:
        if wait.log.high_watermark < wait.end:
            result.base_offset = -1
            if wait.log.failed is None:  # closed: the topic was deleted
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = "The records could not be written to disk."
    call.reply(response)


def _topic_name(here: ProduceNeeds, requested: TopicProduceData, version: int) -> str | None:
    """The topic's name, None for an id that no topic has."""
    return requested.name if version < 13 else here.topics.topic_name(bytes(requested.topic_id))


def _add_leader_hint(hint: LeaderHint, result: PartitionProduceResponse, response: ProduceResponse) -> None:
    """Add the partition's leader to the answer (KIP-951): the producer need not fetch metadata."""
    leader, epoch, node = hint
    result.current_leader = ProduceResponseLeaderIdAndEpoch(leader, epoch)
    if node is not None and all(known.node_id != leader for known in response.node_endpoints):
        response.node_endpoints.append(ProduceResponseNodeEndpoint(*node))


def _accept(
    here: ProduceNeeds,
    name: str | None,
    requested: PartitionProduceData,
    request: ProduceRequest,
    call: Call,
    appends: list[Append],
    response: ProduceResponse,
) -> PartitionProduceResponse:
    """Kafka's first checks of a partition's data; data that passes is added to `appends`."""
    result = PartitionProduceResponse(requested.index, base_offset=-1)
    found = here.partitions.get(name, requested.index) if name is not None else None
    if found is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        if name is not None:
            result.error_code = here.cluster.not_led_error(name, requested.index)
            if result.error_code in LEADER_ELSEWHERE and call.version >= _LEADERS_SINCE:
                _add_leader_hint(here.cluster.leader_hint(name, requested.index), result, response)
        return result
    if requested.records is None or isinstance(requested.records, list):
        result.error_code = ErrorCode.INVALID_RECORD
        return result
    try:
        size = check_batches(requested.records, call.version)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    if request.acks not in ACKS:
        result.error_code = ErrorCode.INVALID_REQUIRED_ACKS
        return result
    if name in INTERNAL_TOPICS and call.client_id != ADMIN_CLIENT_ID and _is_internal(here, name):
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        return result
    # Bytes after the batch that are not a batch are ignored, as in Kafka.
    batch = requested.records if size == len(requested.records) else memoryview(requested.records)[:size]
    appends.append(Append(found, batch, result))
    return result


def _is_internal(here: ProduceNeeds, name: str) -> bool:
    topic = here.topics.get(name)
    return topic is not None and topic.internal


def _append(here: ProduceNeeds, append: Append, request: ProduceRequest, waits: Waits, now: int) -> None:
    partition_log, result = append.log, append.result
    try:
        if isinstance(append.examined, LogError):
            raise append.examined
        appended = partition_log.append(append.batch, now=now, examined=append.examined, guard=append.guard)
    except KafkaError as error:
        refused(here, result, error, partition_log, request.transactional_id)
        return
    end = appended.last_offset + 1
    here.fetches.appended(partition_log.topic_partition.topic, result.index, len(append.batch), end)
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.log_append_time
    result.log_start_offset = partition_log.log_start_offset
    if partition_log.high_watermark < end:
        waits.append((AppendWait(partition_log, end), result))


def check_batches(records: Buffer, version: int) -> int:
    """The size of the one batch for a partition: of magic 2, and with a codec that the request's version allows.

    Raises:
        KafkaError: INVALID_RECORD, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE.
    """
    if len(records) >= HEADER_SIZE:
        length, magic, attributes = _FIRST_LOOK.unpack_from(records, 8)
        if length + LOG_OVERHEAD == len(records) and magic == _MAGIC_2 and attributes & 7 < Compression.ZSTD:
            return len(records)
    size = _batch_size(records, 0)
    if size is None or records[_MAGIC] != _MAGIC_2:
        raise KafkaError(ErrorCode.INVALID_RECORD)
    if size < HEADER_SIZE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
    if records[_ATTRIBUTES] & 7 == Compression.ZSTD and version < _ZSTD_SINCE:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if _batch_size(records, size) is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD)
    return size


def _batch_size(records: Buffer, position: int) -> int | None:
    """The size of the batch at a position; None if there is no complete batch."""
    left = len(records) - position
    if left < LOG_OVERHEAD:
        return None
    (size,) = _SIZE.unpack_from(records, position + 8)
    if size < _SMALLEST:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"Record size {size} is less than the minimum record overhead ({_SMALLEST})"
        )
    if left <= _MAGIC:
        return None
    (magic,) = _INT8.unpack_from(records, position + _MAGIC)
    if not 0 <= magic <= 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    return int(size) + LOG_OVERHEAD if left >= size + LOG_OVERHEAD else None


_KNOWN_START = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Errors that Kafka finds inside the log, and so reports together with the log start offset."""


def refused(
    here: ProduceNeeds,
    result: PartitionProduceResponse,
    error: KafkaError,
    log: PartitionLog,
    transactional_id: str | None,
) -> None:
    result.error_code = error.code
    log.traffic.refused_appends += 1
    if result.error_code in _KNOWN_START:
        result.log_start_offset = log.log_start_offset
    if isinstance(error, LogError) and error.record_errors:
        result.record_errors = [BatchIndexAndErrorMessage(index, text) for index, text in error.record_errors]
        result.error_message = error.message
    elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
        result.error_message = error.message
