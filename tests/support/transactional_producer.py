"""A `ProducerHarness` with a `transactional_id`: its coordinators' requests wait in `asked` for the test.

FindCoordinator is answered automatically: node 7 coordinates the transactional id, node 8 the groups. Every request and
answer goes through its codec, in the version that a broker of the harness's protocol supports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from muster.client.core.produce.transactions import ProducerTransactions, TransactionCall
from muster.client.core.sends import AnySend, Failure, FailureKind
from muster.errors import ErrorCode, MusterError
from muster.model import GroupMetadata, OffsetAndMetadata, TopicPartition
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.primitives import Response
from tests.support.producer_harness import TOPIC, ProducerHarness

ID = "payments"
COORDINATOR, GROUP_COORDINATOR = 7, 8
GROUP = GroupMetadata("g", 3, "member-1")
PLACE = TopicPartition(TOPIC, 0)


@dataclass(eq=False)
class Asked:
    """A request to a coordinator that waits for its answer."""

    send: AnySend
    version: int
    request: Any


@dataclass
class TransactionalProducer(ProducerHarness):
    """See the top of this file. With `v2` the cluster has `transaction.version` 2."""

    v2: bool = True
    lookups: list[ErrorCode] = field(default_factory=list)
    """The errors of the next FindCoordinators; after that NONE."""
    init_version: int = 5

    def __post_init__(self) -> None:
        self.asked: list[Asked] = []
        self.looked_up = 0
        self.settings = {"transactional_id": ID} | self.settings
        super().__post_init__()
        if self.v2:
            self.metadata.learn_features(1, {"transaction.version": 2})

    @property
    def transactions(self) -> ProducerTransactions:
        """The core's transactions."""
        assert self.core.transactions is not None
        return self.core.transactions

    # --- actions of the test ------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Initialize the producer."""
        call = self.transactions.initialize()
        self.reply(self.ask(m.InitProducerIdRequest))
        assert call.done
        call.result()

    def begin(self) -> None:
        """Initialize and begin a transaction."""
        self.ready()
        self.transactions.begin()

    @classmethod
    def begun(cls, *values: bytes, **fields: Any) -> Self:
        """A producer in whose transaction these records are written."""
        made = cls(**fields)
        made.begin()
        if values:
            made.write(*values)
        return made

    def begin_with(self, *values: bytes, partition: int = 0) -> None:
        """Begin a transaction in which these records are written."""
        self.begin()
        self.write(*values, partition=partition)

    def write(self, *values: bytes, partition: int = 0) -> None:
        """Write records in the open transaction."""
        self.add(*values, partition=partition)
        if not self.v2 and self.asked:
            self.reply(self.ask(t.AddPartitionsToTxnRequest))
        for request in self.turn() or list(self.open):
            self.answer(request)
        self.turn()

    def commit(self) -> TransactionCall:
        """Call commit, and turn."""
        call = self.transactions.commit()
        self.turn()
        return call

    def abort(self) -> TransactionCall:
        """Call abort, and turn."""
        call = self.transactions.abort()
        self.turn()
        return call

    def send_offsets(self, offset: int = 5, group: GroupMetadata = GROUP) -> TransactionCall:
        """Send offsets of one partition, and turn."""
        call = self.transactions.send_offsets({PLACE: OffsetAndMetadata(offset)}, group)
        self.turn()
        return call

    def see(self) -> None:
        """Return the outcome of the last commit or abort."""
        call = self.transactions._call
        assert call is not None
        call.result()

    def ask(self, kind: type[Any]) -> Asked:
        """The only waiting request, after a turn."""
        self.turn()
        (found,) = self.asked
        assert isinstance(found.request, kind), found.request
        return found

    def reply(self, asked: Asked, code: ErrorCode = ErrorCode.NONE, **more: Any) -> None:
        """Answer a request."""
        self._reply(asked, _ANSWERS[type(asked.request)](asked, code, **more))

    def lose(self, asked: Asked, kind: FailureKind = FailureKind.DISCONNECTED) -> None:
        """Fail a request without an answer."""
        self._reply(asked, Failure(kind, f"scripted: {kind.value}"))

    # --- internals -------------------------------------------------------------------------------------------

    def _reply(self, asked: Asked, reply: Response | Failure) -> None:
        self.asked.remove(asked)
        if not isinstance(reply, Failure):
            frame = codec.encode(reply, asked.version)
            reply = codec.decode(type(reply), asked.version, frame)
        asked.send.on_reply(reply, self.now)
        self._collect()
        self.turn()

    def _take(self, send: AnySend) -> None:
        kind = send.request_type
        if kind is m.MetadataRequest or kind is m.ProduceRequest:
            super()._take(send)
        elif kind is m.FindCoordinatorRequest:
            self._find(send)
        else:
            version = self.init_version if kind is m.InitProducerIdRequest else kind.MAX_VERSION
            version = version if send.newest_version is None else min(version, send.newest_version)
            try:
                frame = codec.encode(send.build(version), version)
            except MusterError as error:
                send.on_reply(Failure(FailureKind.UNSUPPORTED_VERSION, str(error)), self.now)
                return
            assert len(self.asked) < 1, "one request in flight"
            expected = GROUP_COORDINATOR if kind is t.TxnOffsetCommitRequest else COORDINATOR
            assert send.node_id == expected
            self.asked.append(Asked(send, version, codec.decode(kind, version, frame)))

    def _find(self, send: AnySend) -> None:
        self.looked_up += 1
        request = send.build(m.FindCoordinatorRequest.MAX_VERSION)
        assert isinstance(request, m.FindCoordinatorRequest)
        code = self.lookups.pop(0) if self.lookups else ErrorCode.NONE
        assert request.coordinator_keys == [ID if request.key_type == 1 else "g"]
        node = COORDINATOR if request.key_type == 1 else GROUP_COORDINATOR
        found = m.Coordinator(request.coordinator_keys[0], node, "127.0.0.1", 9000 + node, code)
        send.on_reply(m.FindCoordinatorResponse(coordinators=[found]), self.now)


def _init(asked: Asked, code: ErrorCode, producer_id: int = 1000, epoch: int | None = None) -> m.InitProducerIdResponse:
    if code is not ErrorCode.NONE:
        return m.InitProducerIdResponse(0, code)
    return m.InitProducerIdResponse(0, code, producer_id, asked.request.producer_epoch + 1 if epoch is None else epoch)


def _added(asked: Asked, code: ErrorCode, **each: ErrorCode) -> t.AddPartitionsToTxnResponse:
    topics = [
        t.AddPartitionsToTxnTopicResult(
            topic.name,
            [t.AddPartitionsToTxnPartitionResult(number, each.get(f"p{number}", code)) for number in topic.partitions],
        )
        for topic in asked.request.v3_and_below_topics
    ]
    return t.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)


def _committed(asked: Asked, code: ErrorCode) -> t.TxnOffsetCommitResponse:
    topics = [
        t.TxnOffsetCommitResponseTopic(
            topic.name, [t.TxnOffsetCommitResponsePartition(part.partition_index, code) for part in topic.partitions]
        )
        for topic in asked.request.topics
    ]
    return t.TxnOffsetCommitResponse(0, topics)


def _ended(asked: Asked, code: ErrorCode) -> t.EndTxnResponse:
    if code is not ErrorCode.NONE or asked.version < 5:
        return t.EndTxnResponse(0, code)
    return t.EndTxnResponse(0, code, asked.request.producer_id, asked.request.producer_epoch + 1)


_ANSWERS: dict[type[Any], Any] = {
    m.InitProducerIdRequest: _init,
    t.AddPartitionsToTxnRequest: _added,
    t.AddOffsetsToTxnRequest: lambda _asked, code: t.AddOffsetsToTxnResponse(0, code),
    t.TxnOffsetCommitRequest: _committed,
    t.EndTxnRequest: _ended,
}
