"""One `ProducerCore` with brokers played by the test: time is a number, and each answer is given by hand.

Metadata and producer ids are answered automatically. Produce requests wait in `open` for the test. Every request and
answer goes through its codec, in the version that the harness was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from muster.client.config import ProducerConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.produce.accumulator import OutgoingRecord
from muster.client.core.produce.producer import ProducerCore
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.errors import ErrorCode, MusterError
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.records.record_batch import BatchHeader, read_header, read_records, record_size

TOPIC = "flights"
TOPIC_ID = bytes(range(16))
NEWEST = m.ProduceRequest.MAX_VERSION


@dataclass
class Sent:
    """A batch as a broker receives it."""

    partition: TopicPartition
    header: BatchHeader
    values: list[bytes | None]
    size: int


@dataclass(eq=False)
class OpenProduce:
    """A Produce request that waits for its answer."""

    send: AnySend
    version: int
    acks: int
    batches: list[Sent]

    @property
    def node_id(self) -> int:
        return self.send.node_id

    @property
    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches for value in batch.values]


@dataclass
class Outcome:
    """What happened to one record: its offset, or an error."""

    partition: TopicPartition
    offset: int = -1
    timestamp: int = -1
    error: MusterError | None = None


@dataclass
class ProducerHarness:
    """See the top of this file. `leaders` has the leader of each partition of `TOPIC`; None for none. `others` are
    topics like it, for versions that name topics."""

    leaders: list[int | None] = field(default_factory=lambda: [1])
    version: int = NEWEST
    others: tuple[str, ...] = ()
    topic_exists: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    partitioner: Any = None
    topic_error: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producer_ids: list[tuple[int, int] | ErrorCode] = field(default_factory=lambda: [(1000 + n, 0) for n in range(99)])

    def __post_init__(self) -> None:
        self.now = 1_000_000
        self.leader_epoch = 5
        self.open: list[OpenProduce] = []
        self.done: dict[Any, Outcome] = {}
        self.metadata_requests = 0
        self.metadata_broken: Failure | None = None
        defaults = {"linger_ms": 0, "retry_backoff_ms": 100, "retry_backoff_max_ms": 100}
        self.config = ProducerConfig.of(defaults | self.settings)
        self.metadata = ClusterMetadata(self.config, on_demand=True)
        self.core = ProducerCore(self.config, self.metadata, self.partitioner)
        self.turn()

    # --- actions of the test ------------------------------------------------------------------------------------------

    def give(self, value: bytes, key: bytes | None = None, partition: int | None = None, topic: str = TOPIC) -> None:
        """Pass the core a record; its value is its receipt. Nothing is sent before `turn`."""
        size = record_size(key, value, ())
        record = OutgoingRecord(topic, partition, key, value, (), self.now, value, size)
        self.core.append(record, self.now)

    def put(self, *values: bytes, partition: int = 0) -> OpenProduce:
        """Give records and turn: returns the request that was sent."""
        sent = self.add(*values, partition=partition)
        assert sent, "nothing went out"
        return sent[-1]

    def hold(self, *values: bytes, partition: int = 0) -> None:
        """Give records and turn: no request may be sent."""
        sent = self.add(*values, partition=partition)
        assert not sent, f"went out: {sent[0].values}"

    def warm(self, *partitions: int) -> None:
        """Make the brokers acknowledge one record in each partition (default: 0): the very first batch is sent
        alone."""
        for partition in partitions or (0,):
            self.add(b"warm %d" % partition, partition=partition)
            for request in self.tick(self.config.linger_ms) or list(self.open):
                self.answer(request)
        self.done.clear()

    @classmethod
    def warmed(cls, **fields: Any) -> Self:
        """A harness that has been `warm` in its first partition."""
        made = cls(**fields)
        made.warm()
        return made

    def add(self, *values: bytes, partition: int = 0) -> list[OpenProduce]:
        """Give records and turn: returns the requests that were sent."""
        for value in values:
            self.give(value, partition=partition)
        return self.turn()

    def turn(self) -> list[OpenProduce]:
        """Poll until nothing more is due; returns the Produce requests that were sent."""
        began = len(self.open)
        for _ in range(100):
            sends = [*self.metadata.poll(self.now), *self.core.poll(self.now)]
            for send in sends:
                self._take(send)
            self._collect()
            if not any(send.request_type is not m.ProduceRequest for send in sends):
                return self.open[began:]
        raise AssertionError("the core does not come to rest")

    def tick(self, ms: int) -> list[OpenProduce]:
        """Advance the time, stopping wherever the cores asked to be polled."""
        until = self.now + ms
        began = list(self.open)
        while True:
            times = [when for core in (self.metadata, self.core) if (when := core.next_deadline(self.now)) is not None]
            soonest = min(times, default=until)
            self.now = min(until, max(self.now + 1, soonest))
            self.turn()
            if self.now >= until:
                return [request for request in self.open if request not in began]

    def answer(self, request: OpenProduce, code: ErrorCode = ErrorCode.NONE, base_offset: int = 0, **more: Any) -> None:
        """Answer all batches of a request alike."""
        self.answer_each(request, [self.part(batch, code, base_offset, **more) for batch in request.batches])

    def part(self, batch: Sent, code: ErrorCode, base_offset: int = -1, **more: Any) -> m.PartitionProduceResponse:
        """The answer to one batch."""
        given = base_offset if code is ErrorCode.NONE else -1
        return m.PartitionProduceResponse(batch.partition.partition, code, given, **more)

    def answer_each(
        self,
        request: OpenProduce,
        parts: list[m.PartitionProduceResponse],
        endpoints: list[m.ProduceResponseNodeEndpoint] | None = None,
    ) -> None:
        """Answer the batches of a request one by one."""
        self._finish(request, self.response(request, parts, endpoints))

    def response(
        self,
        request: OpenProduce,
        parts: list[m.PartitionProduceResponse],
        endpoints: list[m.ProduceResponseNodeEndpoint] | None = None,
    ) -> m.ProduceResponse:
        """The complete answer as a message."""
        by_name = request.version <= 12
        topic = m.TopicProduceResponse(TOPIC if by_name else "", ZERO_UUID if by_name else TOPIC_ID, parts)
        response = m.ProduceResponse([topic], 0, endpoints or [])
        frame = codec.encode(response, request.version)
        return codec.decode(m.ProduceResponse, request.version, frame)

    def hint(self, leader_id: int, port: int) -> tuple[dict[str, Any], list[m.ProduceResponseNodeEndpoint]]:
        """The additional fields of a KIP-951 answer."""
        current = m.ProduceResponseLeaderIdAndEpoch(leader_id, self.leader_epoch + 1)
        return {"current_leader": current}, [m.ProduceResponseNodeEndpoint(leader_id, "127.0.0.1", port)]

    def fail(self, request: OpenProduce, kind: FailureKind = FailureKind.DISCONNECTED) -> None:
        """Fail a request without an answer."""
        self._finish(request, Failure(kind, f"scripted: {kind.value}"))

    def offsets(self) -> dict[Any, int]:
        """Offsets of the records that were acknowledged."""
        return {receipt: outcome.offset for receipt, outcome in self.done.items() if outcome.error is None}

    def error(self, receipt: bytes) -> MusterError:
        """Why a record failed."""
        error = self.done[receipt].error
        assert error is not None
        return error

    # --- internals -------------------------------------------------------------------------------------------

    def _finish(self, request: OpenProduce, reply: m.ProduceResponse | Failure) -> None:
        self.open.remove(request)
        request.send.on_reply(reply, self.now)
        self._collect()

    def _collect(self) -> None:
        for completion in self.core.take_events():
            for index, receipt in enumerate(completion.receipts):
                assert receipt not in self.done, f"{receipt} was completed twice"
                outcome = Outcome(completion.partition, timestamp=completion.log_append_time_ms)
                outcome.error = completion.record_errors.get(index, completion.error)
                if outcome.error is None and completion.base_offset >= 0:
                    outcome.offset = completion.base_offset + index
                self.done[receipt] = outcome

    def _take(self, send: AnySend) -> None:
        if send.request_type is m.MetadataRequest:
            self._answer_metadata(send)
        elif send.request_type is m.InitProducerIdRequest:
            built = send.build(4)
            assert isinstance(built, m.InitProducerIdRequest)
            assert built.transactional_id is None
            next_id = self.producer_ids.pop(0)
            code, (producer_id, epoch) = (next_id, (-1, -1)) if isinstance(next_id, ErrorCode) else (0, next_id)
            send.on_reply(m.InitProducerIdResponse(0, code, producer_id, epoch), self.now)
        else:
            version = self.version if send.newest_version is None else min(self.version, send.newest_version)
            request = codec.decode(m.ProduceRequest, version, codec.encode(send.build(version), version))
            batches = [
                self._sent(TopicPartition(topic.name or TOPIC, part.index), part.records)
                for topic in request.topic_data
                for part in topic.partition_data
            ]
            found = OpenProduce(send, version, request.acks, batches)
            assert send.expects_reply == (request.acks != 0)
            self.open.append(found)

    def _sent(self, partition: TopicPartition, records: Any) -> Sent:
        header = read_header(records)
        assert header.size == len(records), "one batch for each partition"
        return Sent(partition, header, [record.value for record in read_records(records)], len(records))

    def _answer_metadata(self, send: AnySend) -> None:
        self.metadata_requests += 1
        if self.metadata_broken is not None:
            send.on_reply(self.metadata_broken, self.now)
            return
        request = send.build(12)
        assert isinstance(request, m.MetadataRequest)
        assert request.topics is not None
        topics = [self._describe(topic.name or "") for topic in request.topics]
        ids = sorted({leader for leader in self.leaders if leader is not None} | {1})
        brokers = [m.MetadataResponseBroker(node_id, "127.0.0.1", 9000 + node_id) for node_id in ids]
        send.on_reply(m.MetadataResponse(0, brokers, "cluster", 1, topics), self.now)

    def _describe(self, name: str) -> m.MetadataResponseTopic:
        if name not in (TOPIC, *self.others) or not self.topic_exists:
            return m.MetadataResponseTopic(self.topic_error, name)
        partitions = [
            m.MetadataResponsePartition(
                ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
                index,
                -1 if leader is None else leader,
                self.leader_epoch,
            )
            for index, leader in enumerate(self.leaders)
        ]
        return m.MetadataResponseTopic(0, name, TOPIC_ID if self.version > 12 else ZERO_UUID, False, partitions)
