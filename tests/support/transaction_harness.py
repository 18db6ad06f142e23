"""A shard of transactional ids, used by name, with access to every answer and marker."""

from __future__ import annotations

from itertools import count
from typing import Any

from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.effects import EntryRecord, Markers, TransactionEffects
from muster.coordinator.transactions.entry import Transaction, TransactionState
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.coordinator.transactions.shard import TransactionShard
from muster.errors import ErrorCode, KafkaError
from muster.model import TopicPartition
from muster.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from muster.protocol.records.record_batch import BatchBuilder, read_tuples
from muster.protocol.transaction_messages import EndTxnRequest, EndTxnResponse

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
MINUTE = 60_000


class TransactionHarness:
    """One shard with a clock. `version` is the broker's transaction.version, `client` the producers'."""

    def __init__(self, version: int = 2, client: int = 2, name: str = "x") -> None:
        self.config = TransactionConfig(transaction_version=version)
        self.client = client
        self.name = name
        self.now = 1_000_000
        self.has_ids = True
        self._ids = count(1000)
        self.shard = TransactionShard(self.config, self.new_id, "markers")
        self.shard.loaded(self.now)
        self.markers: list[Markers] = []
        self.written: list[EntryRecord] = []
        self.events: list[Any] = []
        self.log: list[tuple[bytes | None, bytes | None]] = []

    def new_id(self) -> int:
        if not self.has_ids:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return next(self._ids)

    @property
    def entry(self) -> Transaction:
        return self.shard.entries[self.name]

    @property
    def state(self) -> TransactionState:
        return self.entry.state

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.entry.producer_id, self.entry.producer_epoch)

    def take(self, effects: TransactionEffects) -> Any:
        """Carry out the effects; returns the answer to the only request, None if there was none."""
        answer = None
        for reply in effects.replies:
            if reply.ticket == "markers":
                self.markers.append(reply.response)
            else:
                assert reply.ticket == "asked"
                answer = reply.response
        self.written += effects.records
        self.events += effects.events
        if effects.records:
            batch = BatchBuilder()
            self.shard.write_down(effects.records, batch, self.now, 0)
            self.log += [(key, value) for _, _, key, value, _ in read_tuples(batch.build())]
        return answer

    # ------------------------------------------------------------------------------------------------------- requests

    def init(
        self, known: ProducerIdentity | None = None, *, timeout_ms: int = MINUTE, version: int = 5
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(self.name, timeout_ms, *(known or (-1, -1)))
        answer: InitProducerIdResponse = self.take(self.shard.init_producer_id(request, version, "asked", self.now))
        return answer

    def add(self, *partitions: TopicPartition, producer: ProducerIdentity | None = None) -> ErrorCode:
        producer = producer or self.producer
        effects = self.shard.add_partitions(self.name, producer, frozenset(partitions), self.client, "asked", self.now)
        code: ErrorCode = self.take(effects)
        return code

    def verify(
        self, *partitions: TopicPartition, producer: ProducerIdentity | None = None
    ) -> dict[TopicPartition, ErrorCode]:
        effects = self.shard.verify_partitions(self.name, producer or self.producer, frozenset(partitions), "asked")
        return dict(self.take(effects))

    def end(
        self, commit: bool, producer: ProducerIdentity | None = None, *, version: int | None = None
    ) -> EndTxnResponse:
        version = version if version is not None else 5 if self.client == 2 else 4
        request = EndTxnRequest(self.name, *(producer or self.producer), commit)
        answer: EndTxnResponse = self.take(self.shard.end(request, version, "asked", self.now))
        return answer

    def mark(self, markers: Markers | None = None) -> None:
        """All partitions of the last decision (or of the given one) get their markers."""
        due = markers or self.markers[-1]
        self.take(self.shard.marked(due, due.partitions, self.now))

    def wait(self, ms: int) -> None:
        """Time passes, and what is due is carried out."""
        until = self.now + ms
        while (at := self.shard.next_deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.take(self.shard.on_deadline(self.now))
        self.now = until

    # --------------------------------------------------------------------------------------------------------- states

    def to(self, state: TransactionState) -> TransactionHarness:
        """Bring the id to a state with requests."""
        self.init()
        if state is TransactionState.EMPTY:
            return self
        self.add(T0)
        if state is not TransactionState.ONGOING:
            self.end(state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT))
            if state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
                self.mark()
        assert self.state is state
        return self

    def put(self, **changes: Any) -> None:
        """Change the entry in a way that no request could in reasonable time."""
        self.shard.entries[self.name] = self.entry._replace(**changes)

    def replayed(self) -> TransactionShard:
        """A new shard that has read everything that this one wrote."""
        shard = TransactionShard(self.config, self.new_id, "markers")
        for key, value in self.log:
            shard.replay(key, value, 0)
        return shard
