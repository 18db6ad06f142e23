"""The executor's side: reads a fixed range of one partition, as Arrow record batches.

It knows nothing about groups (rule 10 of `claims`): every task that reads the range reads the same records. The next
fetch is under way while the current one is decoded. The topic is named by its id if that is known: a topic that was
deleted and created again has other records at the same offsets. A leader that an answer names (KIP-951) is used
immediately. After other transient errors (a broker that restarts) the reader waits and tries again; the wait is
bounded, and counts from the last progress.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from muster.arrow import COLUMNS, Decoder, Fetched
from muster.client.config import ClientConfig
from muster.client.plain.cluster import Cluster, Leader, RetriableError, RetryTimer, connect
from muster.client.plain.wire import PlainConnection
from muster.errors import (
    CorruptRecordError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    MusterError,
    ProtocolError,
    error_code,
)
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED
from muster.protocol.messages import FetchPartition, FetchRequest, FetchTopic, PartitionData
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.compression import Buffer
from muster.protocol.records.message_set import to_batches
from muster.protocol.records.record_batch import BatchHeader, UnsupportedMagicError, iter_headers

log = logging.getLogger("muster.spark")

_NEWEST_BY_NAME = 12  # from 13 on topics are named by id
_MAX_OTHER_TOPIC_ANSWERS = 5
"""After this many answers in a row with another topic id, the topic counts as recreated. There is a backoff between
them, as after other errors."""

MAX_BYTES = 8 * 1024 * 1024


class NoTopicError(RetriableError):
    """The topic or partition does not exist, or the broker is just starting."""


class MovedError(RetriableError):
    """The leader has moved, and the answer says where."""


class AnotherTopicError(RetriableError):
    """The topic with this name is not the one that the query has read. A broker with old metadata says so too."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How ranges are read; goes to the executors with each task.

    `client` has the settings of connections. `timeout_s` is how long a task waits without progress before it fails
    (Spark then tries it again elsewhere).
    """

    client: ClientConfig
    columns: tuple[str, ...] = COLUMNS
    isolation_level: int = 0
    fail_on_data_loss: bool = True
    timeout_s: float = 120.0
    max_bytes: int = MAX_BYTES
    max_wait_ms: int = 500
    check_crcs: bool = True


class DataLossError(MusterError):
    """Records of the range are gone: retention or a truncated log took them before they were read."""

    what = ""
    """What is gone, as a sentence without its full stop; the message also says what to do."""


LOG_BEGINS = "its log begins at"
"""Part of the message about a loss that a longer retention would have prevented."""


def data_loss(what: str, *, by_retention: bool = False) -> DataLossError:
    """The error for a loss; `what` is a sentence without its full stop. `by_retention`: a longer retention would have
    prevented it (not if the log was truncated or its topic deleted).
    """
    longer = ", or lengthen the topic's retention so that records are kept until they are read" if by_retention else ""
    error = DataLossError(f"{what}. Set failOnDataLoss to false to continue without what is gone{longer}")
    error.what = what
    return error


@dataclass(slots=True)
class _InFlight:
    """A request that was sent: on which connection, for which offset."""

    connection: PlainConnection
    node_id: int
    offset: int


class RangeReader:
    """Reads `[start, end)` of one partition. Use it once: iterate over `batches()`."""

    def __init__(
        self, settings: FetchSettings, partition: TopicPartition, start: int, end: int, topic_id: bytes = b""
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._topic_id = topic_id or ZERO_UUID
        self._position = start
        self._end = end
        self._cluster: Cluster = connect(settings.client)
        self._decoder = Decoder(partition.topic, partition.partition, settings.columns)
        self._retry = RetryTimer(settings.timeout_s)
        self._in_flight: _InFlight | None = None
        self._other_topic_answers = 0

    def begin(self) -> None:
        """Send the first request ahead. A retriable error is ignored: it recurs when the answer is needed."""
        if self._in_flight is None and self._position < self._end:
            with contextlib.suppress(RetriableError):
                self._in_flight = self._send()

    def batches(self, at_last: Callable[[], None] | None = None) -> Iterator[pa.RecordBatch]:
        """The records, in order of offset. `at_last` is called when no further request is needed, before the records
        of the last answer are handed out.

        Raises:
            DataLossError: some are gone, and `fail_on_data_loss` is set.
            KafkaConnectionError: no progress for too long.
            CorruptRecordError: a batch is damaged; with `fail_on_data_loss` off, only if nothing says where it ends.
            KafkaError, ProtocolError: the broker refuses, or its response is invalid.
        """
        self._retry.reset()
        try:
            while self._position < self._end:
                try:
                    data = self._fetch()
                except MovedError:
                    continue  # each hint must be newer than the last, so this loop ends
                except RetriableError as error:
                    self.close()
                    self._cluster.forget_leader(self._partition)
                    self._pause(error)
                    continue
                if data is not None:
                    yield from self._decode(data, at_last)
        finally:
            self.close()

    def _pause(self, error: RetriableError) -> None:
        """Wait before the next try. A topic that is gone is a loss once there is no time left for another try, or once
        enough answers have shown that another topic has its name."""
        if isinstance(error, AnotherTopicError):
            self._other_topic_answers += 1
            if self._other_topic_answers >= _MAX_OTHER_TOPIC_ANSWERS:
                self._lose(f"{error}: offsets {self._position} to {self._end - 1} are gone with it", self._end)
                return
        try:
            self._retry.pause(error)
        except KafkaConnectionError:
            if not isinstance(error, NoTopicError):
                raise
            self._lose(f"{error}: offsets {self._position} to {self._end - 1} are gone", self._end)

    def _fetch(self) -> PartitionData | None:
        """The next piece with records; None if there is nothing to decode this time."""
        in_flight = self._in_flight or self._send()
        self._in_flight = None
        try:
            response = in_flight.connection.receive()
        except (OSError, ProtocolError) as error:
            in_flight.connection.close()
            self._cluster.mark_failed(in_flight.node_id)
            raise RetriableError(f"the fetch from broker {in_flight.node_id} was interrupted: {error}") from error
        self._cluster.give_back(in_flight.node_id, in_flight.connection)
        code = error_code(response.error_code)
        if code is ErrorCode.NONE and response.responses and response.responses[0].partitions:
            data: PartitionData = response.responses[0].partitions[0]
            if data.error_code and self._cluster.follow(self._partition, data.current_leader, response.node_endpoints):
                raise MovedError(f"{self._partition} has moved")
            return self._judge(data)
        raise RetriableError(f"broker {in_flight.node_id} did not answer the fetch of {self._partition}: {code.name}")

    def _judge(self, data: PartitionData) -> PartitionData | None:
        code = error_code(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
            return None
        if code.retriable:  # UNKNOWN_TOPIC_OR_PARTITION as well: a broker that is just starting says so
            raise RetriableError(f"{self._partition} cannot be fetched: {code.name}")
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"{self._partition} cannot be fetched")
        if not data.records:
            if 0 <= data.high_watermark < self._end:
                self._behind(data.high_watermark)
            else:
                self._retry.pause(RetriableError(f"{self._partition} returned no records at offset {self._position}"))
            return None
        return data

    def _decode(self, data: PartitionData, at_last: Callable[[], None] | None = None) -> Iterator[pa.RecordBatch]:
        aborted = None
        if self._settings.isolation_level == READ_COMMITTED:
            aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()]
        assert isinstance(data.records, bytes | bytearray | memoryview)
        start, records = self._position, data.records
        try:
            decoded = self._begin_decoding(records, aborted)
        except UnsupportedMagicError:  # of a broker or a producer from before Kafka 0.11
            records, decoded = self._decode_sets(records, aborted)
        except CorruptRecordError as error:
            records, decoded = self._before_damage(records, aborted, error)
        batches = decoded.batches
        if decoded.next_offset == start:
            self._retry.pause(RetriableError(f"{self._partition} returned no complete batch at offset {start}"))
            return
        self._position = decoded.next_offset
        self._retry.reset()
        if self._position < self._end:
            self.begin()
        elif at_last is not None:
            at_last()
        try:
            yield from batches
        except CorruptRecordError as error:
            self._position = start
            self._before_damage(records, aborted, error)
        self._retry.reset()  # the time that the caller spent on the records does not count as waiting

    def _begin_decoding(self, records: Buffer, aborted: list[tuple[int, int]] | None) -> Fetched:
        decoded = self._decoder.decode(records, self._position, self._end, aborted, self._settings.check_crcs)
        # Decoding is lazy, while the next request is on its way. But if damage is skipped, it must be known
        # before anything is handed out.
        return decoded if self._settings.fail_on_data_loss else decoded._replace(batches=iter(list(decoded.batches)))

    def _decode_sets(self, records: Buffer, aborted: list[tuple[int, int]] | None) -> tuple[Buffer, Fetched]:
        """Convert message sets to batches, and decode them."""
        made, damage = to_batches(records)
        if damage is not None and not made:
            return self._before_damage(made, aborted, damage)
        try:
            return made, self._begin_decoding(made, aborted)
        except CorruptRecordError as error:
            return self._before_damage(made, aborted, error)

    # --- damaged batches ---------------------------------------------------------------------------------------------

    def _before_damage(
        self, records: Buffer, aborted: list[tuple[int, int]] | None, error: CorruptRecordError
    ) -> tuple[Buffer, Fetched]:
        """The records before the first damaged batch, and the offset after that batch, where reading continues.

        The records after it are fetched again: only a response that begins there says which transactions were
        aborted.

        Raises:
            CorruptRecordError: as the consumer's poll does, unless damage should be skipped.
        """
        found = self._find_damage(records)
        if found is None:  # the bytes are not batches at all: nothing says where the next one begins
            raise CorruptRecordError(f"{self._partition} is damaged after offset {self._position}: {error}") from error
        position, header, following = found
        first, last = max(header.base_offset, self._position), following - 1
        self._lose_damaged(f"offsets {first} to {last} of {self._partition} are damaged ({error})", error)
        good = memoryview(records)[:position]
        decoded = self._decoder.decode(good, self._position, self._end, aborted, self._settings.check_crcs)
        return good, Fetched(decoded.batches, min(following, self._end))

    def _find_damage(self, records: Buffer) -> tuple[int, BatchHeader, int] | None:
        """The first damaged batch: where it is, its header, and the offset after it."""
        found: tuple[int, BatchHeader] | None = None
        try:
            for position, header in iter_headers(records):
                if found is not None:
                    return *found, max(header.base_offset, found[1].base_offset + 1)
                if self._is_damaged(memoryview(records)[position : position + header.size]):
                    found = position, header
        except CorruptRecordError:
            pass  # after the damaged one, if there is one
        # Only its own header says where it ends, and that may be damaged too.
        return None if found is None else (*found, max(found[1].next_offset, found[1].base_offset + 1))

    def _is_damaged(self, batch: Buffer) -> bool:
        try:
            for _ in self._decoder.decode(batch, self._position, self._end, None, self._settings.check_crcs).batches:
                pass
        except CorruptRecordError:
            return True
        return False

    def _lose_damaged(self, what: str, error: CorruptRecordError) -> None:
        if self._settings.fail_on_data_loss:
            raise CorruptRecordError(f"{what}; set failOnDataLoss to false to continue after them") from error
        log.warning("%s; reading continues after them, because failOnDataLoss is false", what)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _leader(self) -> Leader:
        """The leader of the partition, if the topic still has the expected id."""
        try:
            leader = self._cluster.leader(self._partition)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoTopicError(f"{self._partition} no longer exists") from error
            raise
        now = self._cluster.topic_id(self._partition.topic)
        if ZERO_UUID not in (now, self._topic_id) and now != self._topic_id:
            raise AnotherTopicError(f"the topic of {self._partition} was deleted and recreated")
        self._other_topic_answers = 0
        return leader

    def _send(self) -> _InFlight:
        leader = self._leader()
        connection = self._cluster.take(leader.node_id)
        settings = self._settings
        wanted = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self._position,
            partition_max_bytes=settings.max_bytes,
        )
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=1,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation_level,
            topics=[FetchTopic(topic=self._partition.topic, topic_id=self._topic_id, partitions=[wanted])],
        )
        try:
            connection.send(request, _NEWEST_BY_NAME if self._topic_id == ZERO_UUID else None)
        except OSError as error:
            connection.close()
            raise RetriableError(f"the fetch could not be sent to broker {leader.node_id}: {error}") from error
        return _InFlight(connection, leader.node_id, self._position)

    def close(self) -> None:
        """Give up a request that was sent ahead; safe to call twice."""
        if self._in_flight is not None:
            self._in_flight.connection.close()
            self._in_flight = None

    # --- records that are gone ---------------------------------------------------------------------------------------

    def _out_of_range(self) -> None:
        """The log begins after the position, or ends before it."""
        first = self._cluster.list_offsets({self._partition: EARLIEST_TIMESTAMP})[self._partition]
        if first <= self._position:
            last = self._cluster.list_offsets({self._partition: LATEST_TIMESTAMP})[self._partition]
            self._behind(last)
            return
        gone = f"offsets {self._position} to {min(first, self._end) - 1} of {self._partition} are gone"
        self._lose(f"{gone}: {LOG_BEGINS} {first} now", min(first, self._end), by_retention=True)

    def _behind(self, log_end: int) -> None:
        """The log ends before the range does: its tail was lost, or the broker is still recovering it."""
        missing = f"{self._partition} ends at offset {log_end}, and offsets up to {self._end} were there before"
        try:
            self._retry.pause(RetriableError(missing))
        except KafkaConnectionError:
            self._lose(f"{missing}: they are gone", self._end)

    def _lose(self, what: str, position: int, *, by_retention: bool = False) -> None:
        if self._settings.fail_on_data_loss:
            raise data_loss(what, by_retention=by_retention)
        log.warning("%s; reading continues without them, because failOnDataLoss is false", what)
        self._position = position
        self._retry.reset()
