"""The marker sender: each partition gets its marker, whatever goes wrong, or the reason is logged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from muster.broker.config import BrokerConfig
from muster.broker.links.links import Purpose
from muster.broker.net import slices
from muster.broker.transactions.marker_routes import MarkerRoutes
from muster.broker.transactions.markers import RETRY_S, MarkerSender
from muster.broker.transactions.verification import SupportedOperation, Verifier
from muster.coordinator.transactions.effects import Markers, MarkersLost
from muster.coordinator.transactions.rules import ProducerIdentity
from muster.errors import ErrorCode
from muster.model import Node, TopicPartition
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.transaction_messages import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.support.brokers import running

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Partitions:
    """Partitions that answer as the test says, and the transaction that waits for them."""

    def __init__(self, *answers: ErrorCode) -> None:
        self.answers = deque(answers)
        self.written: list[tuple[TxnMarker, TopicPartition]] = []
        self.marked_ones: set[TopicPartition] = set()
        self.epoch = 3
        self.heard = asyncio.Event()

    def write(self, marker: TxnMarker, partitions: Iterable[TopicPartition], done: Any) -> None:
        for where in partitions:
            self.written.append((marker, where))
            self.heard.set()
            done({where: self.answers.popleft() if self.answers else ErrorCode.NONE})

    def marked(self, markers: Markers, partitions: frozenset[TopicPartition]) -> None:
        self.marked_ones |= partitions
        self.heard.set()

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool:
        return partition not in self.marked_ones

    def epoch_of(self, transactional_id: str) -> int:
        return self.epoch

    def sender(self) -> MarkerSender:
        sender = MarkerSender(self.write)
        sender.coordinator = self
        return sender


def due(*partitions: TopicPartition) -> Markers:
    return Markers("x", 9, 1, True, 2, frozenset(partitions))


async def until(partitions: Partitions, *marked: TopicPartition) -> None:
    async with asyncio.timeout(120):
        while partitions.marked_ones != set(marked):
            partitions.heard.clear()
            await partitions.heard.wait()


async def test_every_partition_gets_the_marker_of_the_decision() -> None:
    partitions = Partitions()
    partitions.sender()(due(T0, T1))
    await until(partitions, T0, T1)
    marker = TxnMarker(9, 1, True, coordinator_epoch=3, transaction_version=2)
    assert partitions.written == [(marker, T0), (marker, T1)]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
async def test_a_partition_that_cannot_take_it_now_gets_it_later(error: ErrorCode) -> None:
    partitions = Partitions(error, error)
    partitions.sender()(due(T0))
    await until(partitions, T0)
    assert len(partitions.written) == 3


async def test_markers_of_an_epoch_that_is_over_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence: a partition cannot take a marker; the coordinator's slot is loaded again with a newer epoch, which
    sends all markers again."""
    partitions = Partitions(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    write = partitions.write

    def write_and_load(marker: TxnMarker, where: Iterable[TopicPartition], done: Any) -> None:
        write(marker, where, done)
        partitions.epoch = 4

    monkeypatch.setattr(partitions, "write", write_and_load)
    sender = partitions.sender()
    sender(due(T0))
    async with asyncio.timeout(120):
        await partitions.heard.wait()
    assert len(partitions.written) == 1
    sender(due(T1))
    await until(partitions, T1)
    await asyncio.sleep(2 * RETRY_S)
    assert [(marker.coordinator_epoch, where) for marker, where in partitions.written] == [(3, T0), (4, T1)]


async def test_a_marker_that_is_no_longer_awaited_is_not_repeated() -> None:
    """The sequence: a partition cannot take a marker; the coordinator's slot is loaded again with the same epoch, which
    sends all markers again; the partition takes that one, and the producer's next transaction begins there. In v1 it
    has the same epoch, so repeating the first marker would end it."""
    partitions = Partitions(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    sender = partitions.sender()
    sender(due(T0))
    sender(due(T0))
    await until(partitions, T0)
    await asyncio.sleep(2 * RETRY_S)
    assert len(partitions.written) == 2


async def test_a_partition_that_has_seen_a_newer_coordinator_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    partitions = Partitions(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    sender = partitions.sender()
    with caplog.at_level(logging.ERROR):
        sender(due(T0, T1))
        await until(partitions, T1)
    assert len(partitions.written) == 2
    assert sender.refused == 1
    assert "TRANSACTION_COORDINATOR_FENCED" in caplog.text
    assert "t-0" in caplog.text
    sender(due(T0))  # its shard was loaded again
    await until(partitions, T0, T1)
    assert sender.refused == 0


async def test_a_partition_that_has_seen_a_newer_epoch_of_the_producer_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The transaction has already ended there: repeating the marker cannot help, and the id must not stay blocked."""
    partitions = Partitions(ErrorCode.INVALID_PRODUCER_EPOCH)
    sender = partitions.sender()
    with caplog.at_level(logging.ERROR):
        sender(due(T0, T1))
        await until(partitions, T0, T1)
    assert len(partitions.written) == 2
    assert sender.refused == 0
    assert (
        "t-0 refuses the marker of the transaction of x (producer 9, epoch 1) with INVALID_PRODUCER_EPOCH"
        in caplog.text
    )


async def test_a_decision_that_was_lost_sends_nothing() -> None:
    partitions = Partitions()
    sender = partitions.sender()
    sender(MarkersLost("x"))
    sender(due(T1))
    await until(partitions, T1)
    assert [where for _, where in partitions.written] == [T1]


async def test_markers_for_many_partitions_are_written_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0)  # one marker in each turn of the loop
    partitions, turns = [TopicPartition("t", index) for index in range(20)], 0
    found: list[list[ErrorCode]] = []
    async with running(tmp_path) as broker:
        broker.changes.create_topic("t", len(partitions), {})
        broker.transactions.writer.write_all(TxnMarker(9, 1, True, 0, 2), partitions, found.append)
        while not found:
            await asyncio.sleep(0)
            turns += 1
    assert found == [[ErrorCode.NONE] * len(partitions)]
    assert turns >= len(partitions)


OTHER = Node(2, "other", 9092)
NEWER = 32_000
"""An error of a newer Kafka."""


class OtherBroker:
    """The broker that leads the partitions and coordinates the transactions, as a link's other end: it answers each
    request with one error."""

    verifies = True

    def __init__(self, error: int) -> None:
        self._error = error

    def leader(self, where: TopicPartition) -> Node:
        return OTHER

    def coordinator(self, transactional_id: str) -> Node:
        return OTHER

    def ensure(self) -> bool:
        return True

    def is_here(self, node: Node) -> bool:
        return False

    def ask(self, node: Node, purpose: Purpose, request: Any, oldest: int, done: Any) -> None:
        if isinstance(request, WriteTxnMarkersRequest):
            partitions = [WritableTxnMarkerPartitionResult(0, self._error)]
            topics = [WritableTxnMarkerTopicResult("t", partitions)]
            done(WriteTxnMarkersResponse([WritableTxnMarkerResult(9, topics)]))
        else:
            results = [AddPartitionsToTxnPartitionResult(0, self._error)]
            topic_results = [AddPartitionsToTxnTopicResult("t", results)]
            done(AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult("x", topic_results)]))


async def test_an_error_of_a_newer_broker_is_an_unknown_one():
    """An exception in the link's callback would leave the transaction and the producer without an answer."""
    other: Any = OtherBroker(NEWER)
    answers: list[Any] = []
    MarkerRoutes(other, other, other).write(TxnMarker(9, 1, True, 3, 2), [T0], answers.append)
    Verifier(BrokerConfig(), other, other, other).ask(
        "x", ProducerIdentity(9, 1), frozenset([T0]), SupportedOperation.ADD, answers.append
    )
    assert answers == [{T0: ErrorCode.UNKNOWN_SERVER_ERROR}] * 2
