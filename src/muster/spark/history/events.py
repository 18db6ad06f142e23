"""`__group_events` beside `__consumer_offsets`: which of its records a batch reads, and where they go.

muster's brokers write there why a group rebalances. In each batch the topic is read to its end, before the batch's
other records are looked for: what happened to a rebalance that becomes final is then known, since that takes ten
minutes of the log. Where there is no such topic, or it may not be read, every cause is inferred.

In the source's offset: `"events": {"of": 50, "read": {"0": [120, 180]}}` says that the batch reads offsets 120 to 179
of its partition 0, and that `__consumer_offsets` has 50 partitions, which decides where a group's records stand.
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
from muster.history.sources.raw import EVENTS_TOPIC, OFFSETS_TOPIC, to_raw
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.protocol.group_partitions import group_partition
from muster.spark.history.packed import pack_events
from muster.spark.offsets import Claim
from muster.spark.source.ranges import ReadTask, read_range, tasks

log = logging.getLogger("muster.spark.history")

Events = dict[str, Any]
"""What stands in the source's offset; empty where there is nothing to read."""


class EventsTask(ReadTask):
    """Reads events, for a topic `__consumer_offsets` with so many partitions."""

    def __init__(self, task: ReadTask, log_partitions: int) -> None:
        super().__init__(task.ranges)
        self.log_partitions = log_partitions


def look(cluster: Cluster, before: Mapping[str, Any]) -> Events:
    """What there is behind the ranges of the last batch; all, where `before` is empty.

    Raises:
        KafkaConnectionError: no broker answers.
    """
    read = before.get("read", {})
    try:
        led = sorted(cluster.led([EVENTS_TOPIC], internal=True))
        if not led and not read:
            return {}  # Apache Kafka has none; one that a user has made is not believed
        ends = cluster.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP))
        fresh = [place for place in led if ends[place] < _end(read, place)]  # also those that were made anew
        starts = cluster.list_offsets(dict.fromkeys(fresh, EARLIEST_TIMESTAMP))
        of = len(cluster.topics([OFFSETS_TOPIC])[OFFSETS_TOPIC])
    except KafkaConnectionError:
        raise
    except KafkaError as error:
        _refused(error)
        return _kept(before)
    ranges = {str(place.partition): [starts.get(place, _end(read, place)), ends[place]] for place in led}
    return {"of": of, "read": _kept(before).get("read", {}) | ranges}


def _kept(before: Mapping[str, Any]) -> Events:
    """Nothing more than what was read before."""
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
    """Run a task. What retention has taken meanwhile is passed over."""
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
    log.warning("causes are inferred, since %s cannot be read: %s", EVENTS_TOPIC, error)


def _place_of(log_partitions: int, groups: frozenset[str], group: str) -> int | None:
    return None if groups and group not in groups else group_partition(group, log_partitions)


def in_folder(batches: Iterator[pa.RecordBatch], log_partition: int, seen: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Events in a folder, those of groups that one of its log partitions has."""
    place_of: Callable[[str], int | None] = dict.fromkeys(seen, log_partition).get
    for batch in batches:
        if batch.num_rows:
            yield pack_events(batch, place_of)
