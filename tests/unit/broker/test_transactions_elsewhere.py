"""Transactions whose coordinator or partitions are on other brokers: which ones this broker asks, and how it uses the
answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.broker.config import BrokerConfig
from muster.broker.links.links import Links, Purpose
from muster.broker.transactions.marker_routes import MOST_AT_ONCE, MarkerRoutes
from muster.broker.transactions.markers import MarkerWriter
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.broker.transactions.service import TransactionService
from muster.broker.transactions.verification import SupportedOperation, Verifier
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC, Node, TopicPartition
from muster.protocol import transaction_messages as t
from muster.protocol.records.control_records import TxnMarker

HERE, THERE, THIRD = Node(1, "here", 1), Node(2, "there", 2), Node(3, "third", 3)
T0, T1, T2, GONE = (TopicPartition("t", index) for index in (0, 1, 2, 9))
SLOT = TopicPartition(GROUP_METADATA_TOPIC, 63)
MARKER = TxnMarker(7, 2, True, 5, 2)


class World:
    """The leaders of partitions; requests to other brokers wait in `asked`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Node, Purpose, Any, Any]] = []
        self.written: list[tuple[TxnMarker, TopicPartition]] = []
        self.leaders: dict[str, Mapping[int, int]] = {"t": {0: 1, 1: 2, 2: 3}}
        self.slots: dict[int, Node | None] = {63: THERE}
        self.node = HERE
        self.coordinating: Node | None = THERE
        self.verifies = True
        self.is_there = True
        self.may_have: set[str] = set()

    # a ClusterView, a TopicCatalogue, a Coordination
    slots_without_topic = 64

    def leadership(self, topic: str, index: int) -> Any:
        return SimpleNamespace(leader=self.leaders[topic][index], leader_epoch=4)

    def node_of(self, number: int) -> Node | None:
        return {1: HERE, 2: THERE, 3: THIRD}.get(number)

    def may_have_topic(self, topic: str) -> bool:
        return topic in self.may_have

    def partition_count(self, topic: str) -> int:
        return len(self.leaders.get(topic, ()))

    def owner(self, slot: int) -> Node | None:
        return self.slots.get(slot)

    # Links, a MarkerWriter, Transactions
    def ask(self, node: Node, purpose: Purpose, request: Any, oldest: int, done: Any) -> None:
        self.asked.append((node, purpose, request, done))

    def write_all(self, marker: TxnMarker, places: Sequence[TopicPartition], done: Any) -> None:
        self.written += [(marker, where) for where in places]
        done([ErrorCode.NONE] * len(places))

    def ensure(self) -> bool:
        return self.is_there

    def coordinator(self, transactional_id: str) -> Node | None:
        return self.coordinating

    def places(self) -> PartitionLocator:
        any_of: Any = self
        return PartitionLocator(any_of, any_of, any_of)

    def routes(self) -> MarkerRoutes:
        return MarkerRoutes(cast(MarkerWriter, self), self.places(), cast(Links, self))

    def verifier(self) -> Verifier:
        config = BrokerConfig({})
        return Verifier(config, cast(TransactionService, self), self.places(), cast(Links, self))


def sent(world: World, *partitions: TopicPartition) -> dict[TopicPartition, ErrorCode]:
    found: dict[TopicPartition, ErrorCode] = {}
    world.routes().write(MARKER, partitions, found.update)
    return found


def marked(errors: Iterable[tuple[str, int, ErrorCode]]) -> t.WriteTxnMarkersResponse:
    topics = [
        t.WritableTxnMarkerTopicResult(topic, [t.WritableTxnMarkerPartitionResult(index, error)])
        for topic, index, error in errors
    ]
    return t.WriteTxnMarkersResponse([t.WritableTxnMarkerResult(7, topics)])


def test_each_broker_gets_the_markers_of_its_partitions() -> None:
    world = World()
    found = sent(world, T0, T1, T2, SLOT)
    assert world.written == [(MARKER, T0)]
    assert found == {T0: ErrorCode.NONE}
    assert [(node, purpose) for node, purpose, *_ in world.asked] == [
        (THERE, Purpose.MARKERS),
        (THIRD, Purpose.MARKERS),
    ]
    (_, _, request, done), _ = world.asked
    assert isinstance(request, t.WriteTxnMarkersRequest)
    (message,) = request.markers
    ids = (message.producer_id, message.producer_epoch, message.transaction_result)
    assert (*ids, message.coordinator_epoch, message.transaction_version) == MARKER
    assert [(topic.name, topic.partition_indexes) for topic in message.topics] == [("t", [1]), (SLOT.topic, [63])]
    done(marked([("t", 1, ErrorCode.NONE), (SLOT.topic, 63, ErrorCode.NOT_LEADER_OR_FOLLOWER)]))
    assert found == {T0: ErrorCode.NONE, T1: ErrorCode.NONE, SLOT: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_broker_is_asked_for_no_more_markers_than_it_takes_in_one_request() -> None:
    world, count = World(), 2 * MOST_AT_ONCE + 1
    world.leaders = {"t": dict.fromkeys(range(count), 2)}
    found = sent(world, *(TopicPartition("t", index) for index in range(count)))
    assert not found
    parts = [topic.partition_indexes for _, _, request, _ in world.asked for topic in request.markers[0].topics]
    assert [len(part) for part in parts] == [MOST_AT_ONCE, MOST_AT_ONCE, 1]
    for part, (*_, done) in zip(parts, world.asked, strict=True):
        done(marked(("t", index, ErrorCode.NONE) for index in part))
    assert found == {TopicPartition("t", index): ErrorCode.NONE for index in range(count)}


@pytest.mark.parametrize("response", [None, t.WriteTxnMarkersResponse([])])
def test_a_marker_without_an_answer_is_not_written(response: Any) -> None:
    world = World()
    found = sent(world, T1)
    world.asked[0][3](response)
    assert found == {T1: ErrorCode.NETWORK_EXCEPTION}


def test_a_partition_without_a_leader_waits_and_a_deleted_one_needs_no_marker() -> None:
    world = World()
    world.leaders = {"t": {0: -1}}
    world.slots = {}
    assert sent(world, T0) == {T0: ErrorCode.LEADER_NOT_AVAILABLE}
    assert sent(world, SLOT) == {SLOT: ErrorCode.LEADER_NOT_AVAILABLE}
    assert sent(world, GONE) == {GONE: ErrorCode.NONE}
    world.may_have = {"t"}
    assert sent(world, GONE) == {GONE: ErrorCode.LEADER_NOT_AVAILABLE}, "this broker may not have heard of it yet"
    assert not world.asked


def answers(code: ErrorCode, *, whole: bool = False) -> t.AddPartitionsToTxnResponse:
    if whole:
        return t.AddPartitionsToTxnResponse(error_code=code)
    partitions = [t.AddPartitionsToTxnPartitionResult(1, code), t.AddPartitionsToTxnPartitionResult(2, ErrorCode.NONE)]
    return t.AddPartitionsToTxnResponse(
        results_by_transaction=[t.AddPartitionsToTxnResult("x", [t.AddPartitionsToTxnTopicResult("t", partitions)])]
    )


ONE = [
    (SupportedOperation.VERIFY, answers(ErrorCode.NONE), {}),
    (SupportedOperation.VERIFY, answers(ErrorCode.PRODUCER_FENCED), {T1: ErrorCode.INVALID_PRODUCER_EPOCH}),
    (SupportedOperation.VERIFY, answers(ErrorCode.TRANSACTION_ABORTABLE), {T1: ErrorCode.TRANSACTION_ABORTABLE}),
    (
        SupportedOperation.VERIFY_WITH_OLD_ERRORS,
        answers(ErrorCode.TRANSACTION_ABORTABLE),
        {T1: ErrorCode.INVALID_TXN_STATE},
    ),
    (SupportedOperation.ADD, answers(ErrorCode.CONCURRENT_TRANSACTIONS), {T1: ErrorCode.CONCURRENT_TRANSACTIONS}),
    (
        SupportedOperation.ADD,
        answers(ErrorCode.NOT_COORDINATOR, whole=True),
        dict.fromkeys((T1, T2), ErrorCode.NOT_COORDINATOR),
    ),
    (SupportedOperation.ADD, None, dict.fromkeys((T1, T2), ErrorCode.NETWORK_EXCEPTION)),
    (SupportedOperation.ADD, t.AddPartitionsToTxnResponse(), dict.fromkeys((T1, T2), ErrorCode.UNKNOWN_SERVER_ERROR)),
]


@pytest.mark.parametrize(("operation", "answer", "errors"), ONE)
async def test_another_broker_is_asked_as_a_broker_asks(
    operation: SupportedOperation, answer: Any, errors: Any
) -> None:
    world = World()
    found: list[Any] = []
    world.verifier().ask("x", ProducerIdentity(7, 2), frozenset((T1, T2)), operation, found.append)
    [(node, purpose, request, done)] = world.asked
    assert (node, purpose) == (THERE, Purpose.VERIFICATION)
    assert isinstance(request, t.AddPartitionsToTxnRequest)
    [asked] = request.transactions
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("x", 7, 2)
    assert asked.verify_only is (operation is not SupportedOperation.ADD)
    assert [(topic.name, topic.partitions) for topic in asked.topics] == [("t", [1, 2])]
    assert found == []
    done(answer)
    assert found == [errors]


@pytest.mark.parametrize("is_there", [True, False])
async def test_without_a_coordinator_nobody_is_asked(is_there: bool) -> None:
    world = World()
    found: list[Any] = []
    world.coordinating, world.is_there = None, is_there
    world.verifier().ask("x", ProducerIdentity(7, 2), frozenset((T1,)), SupportedOperation.ADD, found.append)
    assert found == [{T1: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert not world.asked


async def test_a_coordinator_that_is_finishing_the_last_transaction_is_asked_again() -> None:
    world = World()
    found: list[Any] = []
    world.verifier().ask(
        "x", ProducerIdentity(7, 2), frozenset((T1, T2)), SupportedOperation.ADD, found.append, patient=True
    )
    world.asked[0][3](answers(ErrorCode.CONCURRENT_TRANSACTIONS))
    assert found == []
    async with asyncio.timeout(120):
        while len(world.asked) < 2:
            await asyncio.sleep(0.005)
    world.asked[1][3](answers(ErrorCode.NONE))
    assert found == [{}]
