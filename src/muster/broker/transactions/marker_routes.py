"""Markers on their way to the leaders of their partitions, on this broker and on others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from muster.broker.links.links import Links, Purpose
from muster.broker.transactions.markers import MarkerWriter
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.errors import ErrorCode, error_code
from muster.model import Node, TopicPartition
from muster.protocol.records.control_records import TxnMarker
from muster.protocol.transaction_messages import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Errors = Mapping[TopicPartition, ErrorCode]

OLDEST_VERSION = 1
"""The oldest WriteTxnMarkers that is sent. A broker that does not support v2 checks a marker by the rules of older
producers."""

MOST_AT_ONCE = 1_000
"""Partitions in one WriteTxnMarkers. A transaction may have more than a broker accepts in one request: it would close
the connection again and again, and the transaction would never end."""


class MarkerRoutes:
    """Sends markers to the brokers that lead their partitions now."""

    def __init__(self, writer: MarkerWriter, locator: PartitionLocator, links: Links) -> None:
        self._writer = writer
        self._locator = locator
        self._links = links

    def write(self, marker: TxnMarker, partitions: Iterable[TopicPartition], done: Callable[[Errors], None]) -> None:
        """Write a marker into partitions. `done` is called for each broker, with an error for each partition: once the
        marker is durable, or cannot be written now. A deleted partition needs no marker."""
        by_node: dict[Node | None, list[TopicPartition]] = {}
        for where in partitions:
            by_node.setdefault(self._locator.leader(where), []).append(where)
        for node, some in by_node.items():
            if node is None:
                gone = {where for where in some if self._locator.is_gone(where)}
                done({where: ErrorCode.NONE if where in gone else ErrorCode.LEADER_NOT_AVAILABLE for where in some})
            elif self._locator.is_here(node):
                self._writer.write_all(marker, some, partial(_written, some, done))
            else:
                for at in range(0, len(some), MOST_AT_ONCE):
                    part = some[at : at + MOST_AT_ONCE]
                    request = WriteTxnMarkersRequest([_as_message(marker, part)])
                    self._links.ask(node, Purpose.MARKERS, request, OLDEST_VERSION, partial(_answered, part, done))


def _written(partitions: list[TopicPartition], done: Callable[[Errors], None], errors: list[ErrorCode]) -> None:
    done(dict(zip(partitions, errors, strict=True)))


def _as_message(marker: TxnMarker, partitions: Iterable[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, WritableTxnMarkerTopic] = {}
    for topic, index in partitions:
        topics.setdefault(topic, WritableTxnMarkerTopic(topic)).partition_indexes.append(index)
    return WritableTxnMarker(
        marker.producer_id,
        marker.producer_epoch,
        marker.committed,
        list(topics.values()),
        marker.coordinator_epoch,
        marker.transaction_version,
    )


def _answered(
    partitions: list[TopicPartition], done: Callable[[Errors], None], response: WriteTxnMarkersResponse | None
) -> None:
    errors = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
    for marker in response.markers if response is not None else ():
        for topic in marker.topics:
            for each in topic.partitions:
                errors[TopicPartition(topic.name, each.partition_index)] = error_code(each.error_code)
    done({where: errors[where] for where in partitions})
