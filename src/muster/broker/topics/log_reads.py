"""Reads the records for a fetch, as they are in the log.

How many (KIP-74): at most max_bytes in all and partition_max_bytes of each partition. But the first partition that has
records gives at least one batch, however large.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from muster.broker.cluster_view import LEADER_ELSEWHERE, ClusterView
from muster.broker.topics.catalogue import TopicCatalogue
from muster.broker.topics.fetch_sessions import SLICE, FetchedPartition, FetchPlan
from muster.broker.topics.partitions import Partitions
from muster.errors import ErrorCode, KafkaError
from muster.log import PartitionLog
from muster.model import NO_LEADER_EPOCH
from muster.protocol.api import READ_COMMITTED
from muster.protocol.messages import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    PartitionData,
)
from muster.protocol.primitives import ZERO_UUID

Result = tuple[FetchedPartition, PartitionData]

_NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class LogReader:
    """Reads partitions for fetches, at most `max_bytes` for one fetch."""

    def __init__(self, cluster: ClusterView, topics: TopicCatalogue, partitions: Partitions, max_bytes: int) -> None:
        self._cluster = cluster
        self._topics = topics
        self._partitions = partitions
        self._max_bytes = max_bytes

    def topic_name(self, partition: FetchedPartition) -> str | None:
        """The name of a partition's topic, which may be given by its id."""
        if partition.topic_id == ZERO_UUID:
            return partition.topic
        return self._topics.topic_name(partition.topic_id)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic."""
        return self._topics.topic_id(topic)

    def log_of(self, partition: FetchedPartition) -> PartitionLog | None:
        """The log of a partition, None if there is no such partition."""
        name = self.topic_name(partition)
        return self._partitions.get(name, partition.requested.partition) if name is not None else None

    def read(self, plan: FetchPlan, request: FetchRequest) -> Generator[None, None, tuple[list[Result], int, bool]]:
        """The records that each partition has now, their total size, and whether the answer has to go out immediately.

        A failed partition is reported immediately. But as in Kafka, a nonexistent one does not end the wait for the
        others: otherwise a consumer of a deleted topic would fetch in a busy loop.
        """
        room = min(request.max_bytes, self._max_bytes)
        aborted: list[object] | None = [] if request.isolation_level == READ_COMMITTED else None
        results: list[Result] = []
        size, failed, is_any_there = 0, False, False
        for count, partition in enumerate(list(plan.partitions.values()), 1):
            data = PartitionData(partition.requested.partition, high_watermark=-1, records=b"")
            data.aborted_transactions = aborted  # type: ignore[assignment]
            results.append((partition, data))
            try:
                got = self._read_one(partition, data, room, size == 0, request.isolation_level)
            except KafkaError as error:
                got = 0
                data.error_code = error.code
                data.aborted_transactions = [] if error.code in _NOT_THERE else None
                failed = failed or error.code not in _NOT_THERE
                self._count_refusal(partition)
            else:
                is_any_there = True
            size, room = size + got, max(room - got, 0)
            if not count % SLICE:
                yield
        return results, size, failed or not is_any_there

    def _count_refusal(self, partition: FetchedPartition) -> None:
        log = self.log_of(partition)
        if log is not None:
            log.traffic.refused_reads += 1

    def add_leader_hints(self, results: Iterable[Result], response: FetchResponse) -> None:
        """Add the leaders of partitions that other brokers lead (KIP-951): the reader need not fetch metadata."""
        for partition, data in results:
            if data.error_code in LEADER_ELSEWHERE:
                name = self.topic_name(partition) or ""
                leader, epoch, node = self._cluster.leader_hint(name, partition.requested.partition)
                data.current_leader = FetchResponseLeaderIdAndEpoch(leader, epoch)
                if node is not None and all(known.node_id != leader for known in response.node_endpoints):
                    response.node_endpoints.append(FetchResponseNodeEndpoint(*node))

    def _read_one(
        self,
        partition: FetchedPartition,
        data: PartitionData,
        room: int,
        at_least_one: bool,
        isolation_level: int,
    ) -> int:
        """Fill in the partition's records. Returns their size in bytes. Raises KafkaError if they cannot be read."""
        requested = partition.requested
        name = self.topic_name(partition)
        if name is None:
            raise KafkaError(self._why_gone(partition))
        partition.name = name
        log = self._partitions.get(name, requested.partition)
        if log is None:
            raise KafkaError(self._cluster.not_led_error(name, requested.partition))
        known = requested.current_leader_epoch
        self._cluster.check_leader_epoch(
            name, requested.partition, known if known > NO_LEADER_EPOCH else NO_LEADER_EPOCH
        )
        if requested.last_fetched_epoch >= log.leader_epoch and (diverging := _diverging(log, requested)) is not None:
            data.diverging_epoch = diverging
            data.high_watermark, data.log_start_offset = log.high_watermark, log.log_start_offset
            data.last_stable_offset = log.readable_end(READ_COMMITTED)
            data.aborted_transactions = None
            return 0
        limit = min(requested.partition_max_bytes, room)
        log.traffic.reads += 1
        found = log.read(
            requested.fetch_offset,
            limit if limit > 0 else 0,
            min_one=at_least_one or limit < 0,
            isolation_level=isolation_level,
        )
        if limit < 0 and found.data:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka notices this when it reads
        data.high_watermark = found.high_watermark
        data.last_stable_offset = found.last_stable_offset
        data.log_start_offset = found.log_start_offset
        if found.aborted:
            data.aborted_transactions = [AbortedTransaction(*one) for one in found.aborted]
        # A message's records are typed as bytes in memory; for sending, their place in a file is enough.
        data.records = found.file_range or found.data  # type: ignore[assignment]
        size = len(found.data)
        log.traffic.bytes_out += size
        return size

    def _why_gone(self, partition: FetchedPartition) -> ErrorCode:
        """The error for an id without a topic. In a session it is the error for the name that the id had, as in
        Kafka."""
        if partition.name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self._partitions.get(partition.name, partition.requested.partition) is not None:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        return self._cluster.not_led_error(partition.name, partition.requested.partition)

    def not_sent(self, results: Iterable[Result]) -> None:
        """The fetch for which these records were read waits for more, and then reads again."""
        for partition, data in results:
            log = self.log_of(partition)
            if log is not None and data.records:
                log.traffic.bytes_out -= len(data.records)


def _diverging(log: PartitionLog, requested: FetchPartition) -> FetchResponseEpochEndOffset | None:
    """Where the last epoch that the reader has read ends in the leader's log, if that is before its position (KIP-595).
    Called only for epochs not older than the leader's, so no batches are read; no consumer names an older one.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE; the epoch has not begun, or the position is before the log.
    """
    epoch, end = log.end_of_epoch(requested.last_fetched_epoch)
    if epoch == NO_LEADER_EPOCH or requested.fetch_offset < log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return FetchResponseEpochEndOffset(epoch, end) if end < requested.fetch_offset else None
