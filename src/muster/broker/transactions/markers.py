"""Markers, which end a transaction in each of its partitions: written here, and sent by the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from muster.broker.groups.service import Groups
from muster.broker.net.slices import Slices
from muster.broker.topics.durability import AppendWait, Durability
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.clock import wall_clock_ms
from muster.coordinator.parts import Gather
from muster.coordinator.transactions.effects import Markers
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC, TopicPartition
from muster.protocol.records.control_records import TxnMarker

log = logging.getLogger("muster.transactions")

RETRY_S = 0.1
"""Seconds after which a marker that a partition cannot take now is sent again."""

Done = Callable[[ErrorCode], None]


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
        locator: PartitionLocator,
        groups: Groups,
        durability: Durability,
        fetches: ParkedFetches,
        written: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._locator = locator
        self._groups = groups
        self._durability = durability
        self._fetches = fetches
        self._slices = Slices(asyncio.get_running_loop(), written)

    def write_all(
        self, marker: TxnMarker, partitions: Sequence[TopicPartition], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Write a marker into each of these, a slice at a time: a transaction may have thousands of partitions, and
        other requests are answered in between. `done` is called with an error for each, as for `write`."""
        gather = Gather(len(partitions), done)
        self._slices.add(self._writing(marker, partitions, gather), wanted=lambda: True)

    def _writing(
        self, marker: TxnMarker, partitions: Sequence[TopicPartition], gather: Gather
    ) -> Generator[None, None, None]:
        for i, where in enumerate(partitions):
            self.write(marker, where, gather.part(i))
            yield

    def write(self, marker: TxnMarker, where: TopicPartition, done: Done) -> None:
        """Write a marker; `done` is called once it is durable, or with the error. Offsets of groups that were
        part of the transaction are committed, or dropped, before that (KAFKA-17507)."""
        if where.topic == GROUP_METADATA_TOPIC:
            self._write_for_groups(marker, where, done)
            return
        found = self._partitions.get(*where)
        if found is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        result = found.append_marker(marker, now=wall_clock_ms())
        if result.error is not ErrorCode.NONE:
            done(result.error)
            return
        end = result.base_offset + 1
        self._fetches.appended(*where, result.size, end)
        wait = AppendWait(found, end)
        if wait.over:
            self._durable(wait, done)
        else:
            self._durability.wait([wait], partial(self._durable, wait, done))

    @staticmethod
    def _durable(wait: AppendWait, done: Done) -> None:
        if wait.log.high_watermark >= wait.end:
            done(ErrorCode.NONE)
        else:
            done(ErrorCode.KAFKA_STORAGE_ERROR if wait.log.failed is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _write_for_groups(self, marker: TxnMarker, where: TopicPartition, done: Done) -> None:
        def reply(error: ErrorCode) -> None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_READY else error)

        is_there = self._locator.is_slot(where) or self._partitions.get(*where) is not None
        if not is_there or not self._groups.serving:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        self._groups.before_request()
        self._groups.runtime.write_marker(where.partition, marker, reply)


class TransactionCoordinator(Protocol):
    """The transactions whose markers are sent (coordinator/transaction_runtime.py)."""

    def marked(self, markers: Markers, partitions: frozenset[TopicPartition]) -> None: ...

    def awaits(self, markers: Markers, partition: TopicPartition) -> bool: ...

    def epoch_of(self, transactional_id: str) -> int: ...


WRITTEN = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        # The transaction has already ended in the partition: an operator ended it, or a power failure has taken the
        # coordinator's last records. In Kafka the transactional id would stay blocked.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


Write = Callable[[TxnMarker, Iterable[TopicPartition], Callable[[Mapping[TopicPartition, ErrorCode]], None]], None]
"""Writes a marker into partitions, on this broker or others (marker_routes.py)."""


class MarkerSender:
    """The ticket of `Markers`: sends each of them until every partition has its own."""

    def __init__(self, write: Write) -> None:
        self.coordinator: TransactionCoordinator
        self._refused: dict[tuple[str, TopicPartition], Markers] = {}
        self._loop = asyncio.get_running_loop()
        self._write_to = write

    def __call__(self, markers: Any) -> None:
        """The decision is durable; or it was lost with its shard, which is loaded again."""
        if isinstance(markers, Markers):
            self._send(markers)

    @property
    def refused(self) -> int:
        """Markers that a partition has permanently refused and that are still needed. Their transactional ids stay as
        they are until the coordinator loads them again, as in Kafka (`TransactionMarkerRequestCompletionHandler`)."""
        self._refused = {
            key: markers for key, markers in self._refused.items() if self.coordinator.awaits(markers, key[1])
        }
        return len(self._refused)

    def _send(self, markers: Markers) -> None:
        epoch = self.coordinator.epoch_of(markers.transactional_id)
        marker = TxnMarker(
            markers.producer_id, markers.producer_epoch, markers.committed, epoch, markers.client_version
        )
        if markers.partitions:
            self._write_to(marker, sorted(markers.partitions), partial(self._written, markers, marker))
        else:
            self.coordinator.marked(markers, frozenset())

    def _write_again(self, markers: Markers, marker: TxnMarker, partitions: Iterable[TopicPartition]) -> None:
        if self.coordinator.epoch_of(markers.transactional_id) != marker.coordinator_epoch:
            return  # the id was loaded again under a newer epoch, and its markers were sent again
        awaited = [partition for partition in partitions if self.coordinator.awaits(markers, partition)]
        for partition in awaited:
            self._refused.pop((markers.transactional_id, partition), None)
        self._write_to(marker, awaited, partial(self._written, markers, marker))

    def _written(self, markers: Markers, marker: TxnMarker, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        written = [partition for partition, error in errors.items() if error in WRITTEN]
        if written:
            self.coordinator.marked(markers, frozenset(written))
        later = []
        for partition, error in errors.items():
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                log.error(
                    "%s refuses the marker of the transaction of %s (producer %d, epoch %d) with %s: it has ended",
                    partition,
                    markers.transactional_id,
                    markers.producer_id,
                    markers.producer_epoch,
                    error.name,
                )
            elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                self._is_refused(markers, partition, error)
            elif error not in WRITTEN:
                later.append(partition)
        if later:
            self._loop.call_later(RETRY_S, self._write_again, markers, marker, later)

    def _is_refused(self, markers: Markers, partition: TopicPartition, error: ErrorCode) -> None:
        if self.coordinator.awaits(markers, partition):
            self._refused[markers.transactional_id, partition] = markers
            log.error(
                "the transaction of %s stays unfinished until this broker starts again: %s refuses the marker of"
                " producer %d, epoch %d with %s",
                markers.transactional_id,
                partition,
                markers.producer_id,
                markers.producer_epoch,
                error.name,
            )
