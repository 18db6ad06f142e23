"""Where logs begin and end now. Each broker is asked separately: one that hangs delays only its own partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import TopicDescription
from muster.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.history.sources.threads import each_in_threads
from muster.model import OffsetAndTimestamp, TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

_WIDTH = 8


class OffsetBounds(NamedTuple):
    """The offset of the first remaining record, and the one after the last."""

    start: int
    end: int


def known_bounds(
    admin: Admin, places: Collection[TopicPartition], warnings: ReaderWarnings
) -> dict[TopicPartition, OffsetBounds]:
    """The bounds of these partitions. A warning names those whose bounds the cluster does not return."""
    topics = admin.describe_topics(sorted({place.topic for place in places}), raise_errors=False) if places else {}
    described: list[TopicDescription] = []
    for name, topic in sorted(topics.items()):
        if isinstance(topic, TopicDescription):
            parts = [part for part in topic.partitions if TopicPartition(name, part.partition) in places]
            described.append(replace(topic, partitions=parts))
        else:
            warnings.add(f"the lag in topic {name} is not known: {topic.code.name}")
    answers = log_bounds(admin, described)
    found: dict[TopicPartition, OffsetBounds] = {}
    for place in sorted(places):
        bounds = answers.get(place)
        if isinstance(bounds, OffsetBounds):
            found[place] = bounds
        elif isinstance(topics[place.topic], TopicDescription):
            warnings.add(f"the lag in {place} is not known: {bounds or 'it has no leader, or does not exist'}")
    return found


def log_bounds(
    admin: Admin, topics: Iterable[TopicDescription], isolation_level: str = "read_uncommitted"
) -> dict[TopicPartition, OffsetBounds | KafkaError]:
    """The bounds of all partitions of these topics that have a leader, or why they are not known."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for part in topic.partitions:
            if part.leader_id >= 0:
                by_leader.setdefault(part.leader_id, []).append(TopicPartition(topic.name, part.partition))
    parts = each_in_threads(
        lambda places: _bounds_from_leader(admin, places, isolation_level), list(by_leader.values()), _WIDTH
    )
    return {place: found for part in parts for place, found in part.items()}


def _bounds_from_leader(
    admin: Admin, places: list[TopicPartition], isolation_level: str
) -> dict[TopicPartition, OffsetBounds | KafkaError]:
    try:
        starts = admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), raise_errors=False)
        ends = _ends(admin, places, isolation_level)
    except (KafkaTimeoutError, KafkaConnectionError) as error:
        return dict.fromkeys(places, error)
    found: dict[TopicPartition, OffsetBounds | KafkaError] = {}
    for place in places:
        start, end = starts[place], ends[place]
        if isinstance(start, KafkaError) or isinstance(end, KafkaError):
            found[place] = start if isinstance(start, KafkaError) else end  # type: ignore[assignment]
        else:
            assert start is not None
            assert end is not None
            found[place] = OffsetBounds(start.offset, end.offset)
    return found


def _ends(
    admin: Admin, places: list[TopicPartition], isolation_level: str
) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
    times = dict.fromkeys(places, LATEST_TIMESTAMP)
    try:
        return admin.list_offsets(times, isolation_level=isolation_level, raise_errors=False)
    except UnsupportedVersionError:  # before Kafka 0.11, which has no transactions
        return admin.list_offsets(times, raise_errors=False)
