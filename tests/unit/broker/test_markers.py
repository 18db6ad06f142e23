"""The sender of markers: each partition gets its marker, whatever is in the way, or the reason is logged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, cast

import pytest

from muster.broker.transactions.markers import Marker, MarkerSender, MarkerWriter
from muster.coordinator.transactions.effects import Markers, MarkersLost
from muster.errors import ErrorCode
from muster.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Partitions:
    """Partitions that answer what the test says, and the transaction that waits for them."""

    def __init__(self, *answers: ErrorCode) -> None:
        self.answers = deque(answers)
        self.written: list[tuple[Marker, TopicPartition]] = []
        self.marked_ones: set[TopicPartition] = set()
        self.existing = {T0, T1}
        self.heard = asyncio.Event()

    def write(self, marker: Marker, where: TopicPartition, done: Any) -> None:
        self.written.append((marker, where))
        self.heard.set()
        done(self.answers.popleft() if self.answers else ErrorCode.NONE)

    def marked(self, markers: Markers, partitions: frozenset[TopicPartition]) -> None:
        self.marked_ones |= partitions
        self.heard.set()

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool:
        return partition not in self.marked_ones

    def epoch_of(self, transactional_id: str) -> int:
        return 3

    def sender(self) -> MarkerSender:
        sender = MarkerSender(cast(MarkerWriter, self), lambda where: where in self.existing)
        sender.coordinator = self
        return sender


def due(*partitions: TopicPartition) -> Markers:
    return Markers("x", 9, 1, True, 2, frozenset(partitions))


async def until(partitions: Partitions, *marked: TopicPartition) -> None:
    async with asyncio.timeout(10):
        while partitions.marked_ones != set(marked):
            partitions.heard.clear()
            await partitions.heard.wait()


async def test_every_partition_gets_the_marker_of_the_decision() -> None:
    partitions = Partitions()
    partitions.sender()(due(T0, T1))
    await until(partitions, T0, T1)
    marker = Marker(9, 1, True, coordinator_epoch=3, transaction_version=2)
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


async def test_a_partition_that_is_gone_needs_none() -> None:
    partitions = Partitions(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partitions.existing.clear()
    partitions.sender()(due(T0))
    await until(partitions, T0)
    assert len(partitions.written) == 1


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
async def test_a_partition_that_has_seen_a_newer_one_is_logged(
    error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = Partitions(error)
    with caplog.at_level(logging.ERROR):
        partitions.sender()(due(T0, T1))
        await until(partitions, T1)
    assert len(partitions.written) == 2
    assert error.name in caplog.text
    assert "t-0" in caplog.text


async def test_a_decision_that_was_lost_sends_nothing() -> None:
    partitions = Partitions()
    sender = partitions.sender()
    sender(MarkersLost("x"))
    sender(due(T1))
    await until(partitions, T1)
    assert [where for _, where in partitions.written] == [T1]
