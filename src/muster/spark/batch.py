"""Batch reads: the offsets are looked up once, when the read is planned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from muster.client.plain.cluster import Cluster
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.protocol.api import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from muster.spark.offsets import Claim, Claims
from muster.spark.options import OffsetChoice, Offsets, SourceOptions


def find_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    """The partitions that the options name.

    Raises:
        KafkaError: a named topic does not exist.
        ConfigError: a named partition does not exist.
    """
    if options.pattern is not None:
        topics = {name: found for name, found in cluster.topics().items() if re.fullmatch(options.pattern, name)}
    else:
        topics = cluster.topics([*options.topics, *(partition.topic for partition in options.partitions)])
    there = [TopicPartition(topic, index) for topic in sorted(topics) for index in topics[topic]]
    if options.partitions:
        missing = set(options.partitions) - set(there)
        if missing:
            raise ConfigError(f"assign names {min(missing)}, which does not exist")
        return sorted(options.partitions)
    return there


def plan(cluster: Cluster, options: SourceOptions) -> Claims:
    """What a batch read reads."""
    partitions = find_partitions(cluster, options)
    starting = _choose(options.starting or Offsets.EARLIEST, partitions, "startingOffsets")
    if options.starting is Offsets.COMMITTED:
        assert options.group_id is not None
        starting |= cluster.committed(options.group_id, partitions)
    ending = _choose(options.ending or Offsets.LATEST, partitions, "endingOffsets")
    starts = _resolve(cluster, starting, options)
    ends = _resolve(cluster, ending, options)
    return {partition: Claim(starts[partition], max(starts[partition], ends[partition])) for partition in partitions}


def _choose(choice: OffsetChoice, partitions: Iterable[TopicPartition], name: str) -> dict[TopicPartition, int]:
    """An offset, EARLIEST_TIMESTAMP or LATEST_TIMESTAMP for each partition."""
    if not isinstance(choice, dict):
        offset = LATEST_TIMESTAMP if choice is Offsets.LATEST else EARLIEST_TIMESTAMP
        return dict.fromkeys(partitions, offset)
    wanted = set(partitions)
    if strangers := set(choice) - wanted:
        raise ConfigError(f"{name} names {min(strangers)}, which is not among the partitions to be read")
    if forgotten := wanted - set(choice):
        raise ConfigError(f"{name} does not name {min(forgotten)}; as JSON it has to name every partition that is read")
    return dict(choice)


def _resolve(
    cluster: Cluster, chosen: Mapping[TopicPartition, int], options: SourceOptions
) -> dict[TopicPartition, int]:
    times = {partition: offset for partition, offset in chosen.items() if offset < 0}
    return {**chosen, **cluster.list_offsets(times, 1 if options.read_committed else 0)}
