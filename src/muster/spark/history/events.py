"""`__group_events` alongside `__consumer_offsets`: which of its records a batch reads, and where they go.

muster's brokers write there why a group rebalances. Each batch reads the topic to its end before the batch's
other records are looked up: the events of a rebalance that becomes final are then known, since that takes ten
minutes of log time. Without such a topic, or without permission to read it, every cause is inferred.

In the source's offset: `"events": {"of": 50, "read": {"0": [120, 180]}}` says that the batch reads offsets 120 to 179
of its partition 0, and that `__consumer_offsets` has 50 partitions, which decides where a group's records are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from muster.client.plain.cluster import Cluster
from muster.client.plain.fetch import FetchSettings
from muster.errors import KafkaConnectionError, KafkaError
from muster.history.sources.raw_records import EVENTS_TOPIC, OFFSETS_TOPIC, to_raw
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.group_partitions import group_partition
from muster.spark.history.packed import pack_events
from muster.spark.offsets import Claim
from muster.spark.source.ranges import ReadTask, read_range, tasks

log = logging.getLogger("muster.spark.history")

EventRanges = dict[str, Any]
"""The events' part of the source's offset; empty if there is nothing to read."""


class EventsTask(ReadTask):
    """Reads events, for a `__consumer_offsets` with `log_partitions` partitions."""

    def __init__(self, task: ReadTask, log_partitions: int) -> None:
        super().__init__(task.ranges)
        self.log_partitions = log_partitions


def next_ranges(cluster: Cluster, before: Mapping[str, Any]) -> EventRanges:
    """The ranges after those of the last batch; everything if `before` is empty.

    Raises:
        KafkaConnectionError: no broker answers.
    """
    read = before.get("read", {})
    try:
        led = sorted(cluster.led([EVENTS_TOPIC], internal=True))
        if not led and not read:
            return {}  # Apache Kafka has none; one that a user created is not trusted
        ends = cluster.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
        fresh = [place for place in led if ends[place] < _end(read, place)]  # including recreated ones
        starts = cluster.list_offsets(dict.fromkeys(fresh, EARLIEST_TIMESTAMP))
        of = len(cluster.topics([OFFSETS_TOPIC])[OFFSETS_TOPIC])
    except KafkaConnectionError:
        raise
    except KafkaError as error:
        _refused(error)
        return _kept(before)
    ranges = {str(place.partition): [starts.get(place, _end(read, place)), ends[place]] for place in led}
    return {"of": of, "read": _kept(before).get("read", {}) | ranges}


def _kept(before: Mapping[str, Any]) -> EventRanges:
    """Read nothing beyond what was read before."""
    read = {partition: [end, end] for partition, (_, end) in before.get("read", {}).items()}
    return {"of": before["of"], "read": read} if read else {}


def _end(read: Mapping[str, list[int]], place: TopicPartition) -> int:
    """Up to where a partition has been read."""
    found = read.get(str(place.partition))
    return 0 if found is None else found[1]


def tasks_of(events: Mapping[str, Any]) -> list[EventsTask]:
    """The tasks that read these events."""
    pieces = [
        (TopicPartition(EVENTS_TOPIC, int(partition)), Claim(start, end))
        for partition, (start, end) in events.get("read", {}).items()
        if start < end
    ]
    return [EventsTask(task, events["of"]) for task in tasks(pieces, lambda _: "", None)]


def read_events(settings: FetchSettings, task: EventsTask, groups: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Run a task. Records that retention has deleted since are skipped."""
    patient = replace(settings, isolation_level=0, fail_on_data_loss=False)
    batches = read_range(patient, task)
    try:
        for batch in batches:
            if batch.num_rows:
                place_of = partial(_place_of, task.log_partitions, groups)
                yield pack_events(to_raw(batch, int(batch.column("partition")[0].as_py())), place_of)
    except KafkaConnectionError:
        raise
    except KafkaError as error:
        _refused(error)


def _refused(error: KafkaError) -> None:
    log.warning("cannot read %s, so causes are inferred: %s", EVENTS_TOPIC, error)


def _place_of(log_partitions: int, groups: frozenset[str], group: str) -> int | None:
    return None if groups and group not in groups else group_partition(group, log_partitions)


def in_folder(batches: Iterator[pa.RecordBatch], log_partition: int, seen: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """The events in a folder about the groups of one of its log partitions."""
    place_of: Callable[[str], int | None] = dict.fromkeys(seen, log_partition).get
    for batch in batches:
        if batch.num_rows:
            yield pack_events(batch, place_of)
