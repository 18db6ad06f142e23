"""A broker that is a list of batches, for tests of the fetcher."""

from __future__ import annotations

from typing import Any, Self

from muster.client.config import ConsumerConfig
from muster.client.core.consume.fetcher import Fetcher
from muster.client.core.events import EventStream
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import AnySend
from muster.client.core.subscription_state import SubscriptionState
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support.written import build_batch

TOPIC_ID = bytes(range(16))

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class OneBroker:
    """Answers metadata and fetches as a broker would, from batches in memory."""

    def __init__(self, batch_sizes: dict[TopicPartition, list[int]], *, max_batches: int = 1, **config: Any) -> None:
        self.config = ConsumerConfig.of(config)
        self.metadata = ClusterMetadata(self.config)
        self.subscription = SubscriptionState(self.config.auto_offset_reset)
        self.events = EventStream()
        self.fetcher = Fetcher(self.config, self.subscription, self.metadata, self.events)
        self.logs = {p: self._log(sizes) for p, sizes in batch_sizes.items()}
        self.max_batches = max_batches
        self.session: dict[TopicPartition, m.FetchPartition] = {}
        self.session_epoch = 0
        self.requests: list[m.FetchRequest] = []
        self.now = 0
        self._learn()
        self.subscription.assign(batch_sizes)
        for partition in batch_sizes:
            self.subscription.seek(partition, 0)

    @classmethod
    def fetched(cls, batch_sizes: dict[TopicPartition, list[int]], **config: Any) -> Self:
        """A broker whose reader has fetched once."""
        made = cls(batch_sizes, **config)
        made.exchange()
        return made

    @staticmethod
    def _log(sizes: list[int]) -> list[tuple[int, int, bytes]]:
        log, offset = [], 0
        for size in sizes:
            records: list[Any] = [(offset + i, None, str(offset + i).encode(), []) for i in range(size)]
            log.append((offset, offset + size, bytes(build_batch(records, base_offset=offset))))
            offset += size
        return log

    def _learn(self) -> None:
        self.metadata.set_interest({p.topic for p in self.logs})
        [send] = self.metadata.poll(self.now)
        partitions = [m.MetadataResponsePartition(0, p.partition, 1, 0) for p in self.logs]
        topic = m.MetadataResponseTopic(0, "t", TOPIC_ID, partitions=partitions)
        send.on_reply(m.MetadataResponse(brokers=[m.MetadataResponseBroker(1, "h", 9092)], topics=[topic]), self.now)

    def poll(self) -> list[AnySend]:
        return self.fetcher.poll(self.now)

    def exchange(self) -> bool:
        """Deliver and answer the fetcher's requests. False if it sends none."""
        sends = self.poll()
        for send in sends:
            send.on_reply(self.answer(send.build(13)), self.now)
        return bool(sends)

    def answer(self, request: Any, errors: dict[TopicPartition, ErrorCode] | None = None) -> m.FetchResponse:
        self.requests.append(request)
        assert request.session_epoch in (0, self.session_epoch)
        if request.session_epoch == 0:
            self.session = {}
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                del self.session[TopicPartition("t", number)]
        for asked in request.topics:
            assert asked.topic_id == TOPIC_ID
            for part in asked.partitions:
                self.session[TopicPartition("t", part.partition)] = part
        self.session_epoch = request.session_epoch + 1
        data = [self._read(p, part.fetch_offset, (errors or {}).get(p)) for p, part in self.session.items()]
        return m.FetchResponse(session_id=77, responses=[m.FetchableTopicResponse("", TOPIC_ID, data)])

    def _read(self, partition: TopicPartition, offset: int, error: ErrorCode | None) -> m.PartitionData:
        end = self.logs[partition][-1][1]
        if error is None and offset > end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            return m.PartitionData(partition.partition, error)
        batches = [batch for _, after, batch in self.logs[partition] if after > offset][: self.max_batches]
        return m.PartitionData(partition.partition, 0, end, end, 0, records=b"".join(batches))

    def drain(self, max_records: int = 500) -> dict[TopicPartition, list[int]]:
        """Exchange and collect until nothing is left; returns the offsets handed out."""
        seen: dict[TopicPartition, list[int]] = {p: [] for p in self.logs}
        while any(state.position < self.logs[p][-1][1] for p, state in self.subscription.states()):
            self.exchange()
            for partition, records in self.fetcher.collect(max_records).items():
                assert len(records) <= max_records
                assert all(int(r.value or b"") == r.offset for r in records)
                seen[partition] += [record.offset for record in records]
        return seen


def flipped(broker: OneBroker, partition: TopicPartition, index: int, at: int = -1) -> None:
    """Damage one batch of a log."""
    first, after, batch = broker.logs[partition][index]
    turned = bytearray(batch)
    turned[at] ^= 0xFF
    broker.logs[partition][index] = (first, after, bytes(turned))
