"""The simulated nodes' records: topics, their logs in memory, and the few requests about them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from muster.errors import ErrorCode
from muster.log.config import LogError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP
from muster.protocol.messages import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from muster.protocol.messages import OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd
from muster.protocol.primitives import ZERO_UUID, Response
from muster.protocol.records.compression import Compression
from muster.protocol.records.record_batch import read_header
from tests.simulator.clock import VirtualClock
from tests.simulator.log import SimLog

Reply = Callable[[Any], None]


class Leaders(Protocol):
    """Which node leads which partition."""

    node_ids: list[int]

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """The node that leads a partition now, -1 if none can, and the leader epoch."""


class SimTopics:
    """The topics, their ids, and the log of each partition."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.logs: dict[TopicPartition, SimLog] = {}
        self.counts: dict[str, int] = {}
        self._made: dict[str, int] = {}
        self.leader_of: Callable[[TopicPartition], tuple[int, int]] = lambda _partition: (0, 0)
        """The node that leads a partition, -1 if none does, and its epoch."""
        for name, count in topics.items():
            self.grow(name, count)

    def grow(self, name: str, count: int) -> None:
        """Set a topic's number of partitions; create it if it does not exist."""
        if name not in self.counts:
            self._made[name] = self._made.get(name, 0) + 1
        for number in range(self.counts.get(name, 0), count):
            self.logs[TopicPartition(name, number)] = SimLog()
        self.counts[name] = max(count, self.counts.get(name, 0))

    def delete(self, name: str) -> None:
        """Delete a topic with its records. If it is created again with its name, it has another id."""
        for number in range(self.counts.pop(name)):
            del self.logs[TopicPartition(name, number)]

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic, 0 if it does not exist."""
        return self.counts.get(topic, 0)

    def is_gone(self, topic: str) -> bool:
        """Whether no topic has that name."""
        return topic not in self.counts

    def led_partitions(self, topic: str) -> list[int]:
        """The partitions of a topic that have a leader."""
        led = self.leader_of
        return [number for number in range(self.partition_count(topic)) if led(TopicPartition(topic, number))[0] >= 0]

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, derived from its name and how often it was created."""
        return f"{topic}#{self._made[topic]}".encode().rjust(16, b"#")[-16:] if topic in self.counts else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic name for an id."""
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def next_record(self, partition: TopicPartition, offset: int) -> int:
        """See `SimLog.next_record`."""
        log = self.logs.get(partition)
        return offset if log is None else log.next_record(offset)

    def log_starts(self, partition: TopicPartition) -> list[int]:
        """See `SimLog.log_starts`."""
        log = self.logs.get(partition)
        return [0] if log is None else log.log_starts


class SimRecords:
    """Answers requests about topics and records, for all nodes."""

    def __init__(self, clock: VirtualClock, leaders: Leaders, topics: SimTopics, rng: Random) -> None:
        self.topics = topics
        self.compression = Compression.NONE
        self.gaps: Random | None = None
        """If set, records are written as compaction leaves them, with some missing."""
        self._clock = clock
        self._leaders = leaders
        self._rng = rng
        self._producer_ids = 0
        self._parked: list[tuple[FetchRequest, int, Reply]] = []

    def handle(self, request: Any, node_id: int, reply: Reply) -> bool:
        """Answer a request that a node has read, now or later; False if it is not one of these."""
        match request:
            case MetadataRequest():
                reply(self._metadata(request))
            case ListOffsetsRequest():
                reply(self._list_offsets(request, node_id))
            case OffsetForLeaderEpochRequest():
                reply(self._epoch_ends(request, node_id))
            case FetchRequest():
                self._fetch(request, node_id, reply)
            case ProduceRequest():
                reply(self._produce(request, node_id))
            case InitProducerIdRequest():
                self._producer_ids += 1
                reply(InitProducerIdResponse(producer_id=self._producer_ids, producer_epoch=0))
            case _:
                return False
        return True

    # --- metadata ----------------------------------------------------------------------------------------------------

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = sorted(self.topics.counts) if request.topics is None else [topic.name or "" for topic in request.topics]
        nodes = self._leaders.node_ids
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node, host(node), 9092) for node in nodes],
            cluster_id="simulated",
            controller_id=nodes[0],
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        count, nodes = self.topics.partition_count(name), self._leaders.node_ids
        if not count:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = []
        for number in range(count):
            leader, epoch = self._leaders.leader(TopicPartition(name, number))
            error = ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
            partitions.append(MetadataResponsePartition(error, number, leader, epoch, nodes, nodes))
        return MetadataResponseTopic(ErrorCode.NONE, name, self.topics.topic_id(name), False, partitions)

    def _list_offsets(self, request: ListOffsetsRequest, node_id: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.name, asked.partition_index)
                leader, epoch = self._leaders.leader(partition)
                log = self.topics.logs.get(partition)
                if log is None or leader != node_id:
                    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else ErrorCode.NOT_LEADER_OR_FOLLOWER
                    found.append(ListOffsetsPartitionResponse(asked.partition_index, gone))
                    continue
                offset = log.log_start_offset if asked.timestamp == EARLIEST_TIMESTAMP else log.log_end_offset
                found.append(ListOffsetsPartitionResponse(asked.partition_index, 0, -1, offset, epoch))
            topics.append(ListOffsetsTopicResponse(topic.name, found))
        return ListOffsetsResponse(topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest, node_id: int) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            ends = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.topic, asked.partition)
                log = self.topics.logs.get(partition)
                if log is None or self._leaders.leader(partition)[0] != node_id:
                    ends.append(EpochEnd(ErrorCode.NOT_LEADER_OR_FOLLOWER, asked.partition))
                else:
                    ends.append(EpochEnd(0, asked.partition, *log.end_of_epoch(asked.leader_epoch)))
            topics.append(OffsetForLeaderTopicResult(topic.topic, ends))
        return OffsetForLeaderEpochResponse(topics=topics)

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, partition: TopicPartition, count: int) -> None:
        """Append records; fetches that wait for them are answered."""
        log = self.topics.logs[partition]
        epoch = self._leaders.leader(partition)[1]
        log.write(count, self._clock.now, leader_epoch=epoch, compression=self.compression, gaps=self.gaps)
        self._wake()

    def _wake(self) -> None:
        parked, self._parked = self._parked, []
        for request, node_id, reply in parked:
            self._try_fetch(request, node_id, reply)

    def _produce(self, request: ProduceRequest, node_id: int) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            name = topic.name or self.topics.topic_name(topic.topic_id) or ""
            parts = [
                self._append(TopicPartition(name, part.index), bytearray(part.records), node_id)
                for part in topic.partition_data
                if part.records is not None and not isinstance(part.records, list)
            ]
            topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts))
        self._wake()
        return ProduceResponse(responses=topics)

    def _append(self, partition: TopicPartition, records: bytearray, node_id: int) -> PartitionProduceResponse:
        number, log = partition.partition, self.topics.logs.get(partition)
        if log is None:
            return PartitionProduceResponse(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        if self._leaders.leader(partition)[0] != node_id:
            return PartitionProduceResponse(number, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        header = read_header(records)
        try:
            earlier = log.producers.check(header) if header.has_producer_id else None
        except LogError as error:
            return PartitionProduceResponse(number, error.code, -1)
        if earlier is not None:
            return PartitionProduceResponse(number, 0, earlier.first_offset)
        base = log.log_end_offset
        log.append(records, now=self._clock.now, leader_epoch=self._leaders.leader(partition)[1])
        return PartitionProduceResponse(number, 0, base)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, request: FetchRequest, node_id: int, reply: Callable[[Response], None]) -> None:
        if not self._try_fetch(request, node_id, reply):
            self._clock.call_later(request.max_wait_ms, self._fetch_wait_is_over, reply)

    def _try_fetch(self, request: FetchRequest, node_id: int, reply: Callable[[Response], None]) -> bool:
        response, has_news = self._read(request, node_id)
        if has_news or not request.max_wait_ms:
            reply(response)
            return True
        self._parked.append((request, node_id, reply))
        return False

    def _fetch_wait_is_over(self, reply: Reply) -> None:
        found = next((parked for parked in self._parked if parked[2] is reply), None)
        if found is not None:
            self._parked.remove(found)
            reply(self._read(found[0], found[1])[0])

    def _read(self, request: FetchRequest, node_id: int) -> tuple[FetchResponse, bool]:
        has_news = False
        topics = []
        for topic in request.topics:
            name = topic.topic or self.topics.topic_name(topic.topic_id)
            parts = []
            for asked in topic.partitions:
                data = self._read_partition(name, asked.partition, asked.fetch_offset, node_id)
                has_news = has_news or bool(data.records) or bool(data.error_code)
                parts.append(data)
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
        return FetchResponse(responses=topics), has_news  # no session: every fetch names all its partitions

    def _read_partition(self, topic: str | None, number: int, offset: int, node_id: int) -> PartitionData:
        if topic is None:
            return PartitionData(number, ErrorCode.UNKNOWN_TOPIC_ID)
        partition = TopicPartition(topic, number)
        log = self.topics.logs.get(partition)
        if log is None:
            return PartitionData(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._leaders.leader(partition)[0] != node_id:
            return PartitionData(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        end = log.high_watermark
        if not log.log_start_offset <= offset <= end:
            return PartitionData(number, ErrorCode.OFFSET_OUT_OF_RANGE)
        return PartitionData(number, 0, end, end, log.log_start_offset, records=log.read(offset, 65_536).data)


def host(node_id: int) -> str:
    """The address of a node."""
    return f"node{node_id}"
