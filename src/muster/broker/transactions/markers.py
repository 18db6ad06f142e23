"""Markers, which end a transaction in each of its partitions: written here, and sent by the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from muster.broker.clock import now_ms
from muster.broker.groups.service import Groups
from muster.broker.topics.durability import Durability
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions
from muster.coordinator.transactions.effects import Markers
from muster.errors import ErrorCode
from muster.log import PartitionLog
from muster.model import GROUP_METADATA_TOPIC, TopicPartition

log = logging.getLogger("muster.transactions")

RETRY_S = 0.1
"""Seconds after which a marker that a partition cannot take now is sent again."""

Done = Callable[[ErrorCode], None]


class Marker(NamedTuple):
    """What is written into a partition."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class _Wait(NamedTuple):
    """A marker that must be durable before it counts."""

    log: PartitionLog
    end: int

    @property
    def over(self) -> bool:
        """Whether it is, or never will be."""
        return self.log.high_watermark >= self.end or self.log.failed is not None or self.log.closed


_NOT_READY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class MarkerWriter:
    """Writes markers into this broker's partitions. `written` is called after appends that no request has made."""

    def __init__(
        self,
        partitions: Partitions,
        groups: Groups,
        durability: Durability,
        fetches: ParkedFetches,
        written: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._groups = groups
        self._durability = durability
        self._fetches = fetches
        self._written = written

    def write(self, marker: Marker, where: TopicPartition, done: Done) -> None:
        """Write a marker; `done` is called once it is durable, or with the reason why not. Offsets of groups that were
        part of the transaction are committed, or dropped, before that (KAFKA-17507)."""
        if where.topic == GROUP_METADATA_TOPIC:
            self._write_for_groups(marker, where, done)
            return
        found = self._partitions.get(*where)
        if found is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        result = found.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            now=now_ms(),
        )
        if result.error is not ErrorCode.NONE:
            done(result.error)
            return
        end = result.base_offset + 1
        self._fetches.appended(*where, result.size, end)
        wait = _Wait(found, end)
        if wait.over:
            self._durable(wait, done)
        else:
            self._durability.wait([wait], partial(self._durable, wait, done))
        self._written()

    @staticmethod
    def _durable(wait: _Wait, done: Done) -> None:
        if wait.log.high_watermark >= wait.end:
            done(ErrorCode.NONE)
        else:
            done(ErrorCode.KAFKA_STORAGE_ERROR if wait.log.failed is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _write_for_groups(self, marker: Marker, where: TopicPartition, done: Done) -> None:
        def reply(error: ErrorCode) -> None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_READY else error)

        if self._partitions.get(*where) is None or not self._groups.serving:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        self._groups.runtime.write_marker(
            where.partition,
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            reply=reply,
        )


class Coordinator(Protocol):
    """The transactions whose markers are sent (coordinator/transaction_runtime.py)."""

    def marked(self, markers: Markers, partitions: frozenset[TopicPartition]) -> None: ...

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool: ...

    def epoch_of(self, transactional_id: str) -> int: ...


GONE_FOR_GOOD = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A partition that refuses a marker so has seen a newer one: repeating it cannot help."""

WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})


class MarkerSender:
    """The ticket of `Markers`: has each of them written until every partition has its own."""

    def __init__(self, writer: MarkerWriter, exists: Callable[[TopicPartition], bool]) -> None:
        self.coordinator: Coordinator
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._exists = exists

    def __call__(self, due: Any) -> None:
        """The decision is durable; or it was lost with its shard, which is loaded again."""
        if isinstance(due, Markers):
            self._loop.call_soon(self._send, due)

    def _send(self, due: Markers) -> None:
        marker = Marker(
            due.producer_id,
            due.producer_epoch,
            due.committed,
            self.coordinator.epoch_of(due.transactional_id),
            due.client_version,
        )
        if not due.partitions:
            self.coordinator.marked(due, frozenset())
        for partition in sorted(due.partitions):
            self._write(due, marker, partition)

    def _write(self, due: Markers, marker: Marker, partition: TopicPartition) -> None:
        if self.coordinator.awaits(due, partition):
            self._writer.write(marker, partition, partial(self._written, due, marker, partition))

    def _written(self, due: Markers, marker: Marker, partition: TopicPartition, error: ErrorCode) -> None:
        if error in WRITTEN or not self._exists(partition):
            self.coordinator.marked(due, frozenset((partition,)))
        elif error in GONE_FOR_GOOD:
            log.error(
                "the transaction of %s stays unfinished: %s refuses the marker of producer %d, epoch %d with %s",
                due.transactional_id,
                partition,
                due.producer_id,
                due.producer_epoch,
                error.name,
            )
        else:
            self._loop.call_later(RETRY_S, self._write, due, marker, partition)
