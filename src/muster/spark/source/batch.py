"""Batch reads: offsets are looked up once, when the read is planned."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from muster.client.plain.cluster import Cluster
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.protocol.api import LATEST_TIMESTAMP
from muster.spark.offsets import Claim, Claims
from muster.spark.source.choices import OffsetChoice, OffsetOrTime
from muster.spark.source.options import SourceOptions

log = logging.getLogger("muster.spark")


def find_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    """The partitions that the options name, regardless of the share.

    Raises:
        KafkaError: a named topic does not exist.
        ConfigError: a named partition does not exist.
    """
    if options.pattern is not None:
        topics = {name: found for name, found in cluster.topics().items() if re.fullmatch(options.pattern, name)}
    else:
        topics = cluster.topics([*options.topics, *(partition.topic for partition in options.partitions)])
    existing = [TopicPartition(topic, index) for topic in sorted(topics) for index in topics[topic]]
    if options.partitions:
        missing = set(options.partitions) - set(existing)
        if missing:
            raise ConfigError(f"assign names {min(missing)}, which does not exist")
        return sorted(options.partitions)
    return existing


def plan(cluster: Cluster, options: SourceOptions) -> Claims:
    """The ranges that a batch read reads.

    Raises:
        ConfigError: the read would end before it starts, or options name partitions that are not read.
    """
    existing = find_partitions(cluster, options)
    partitions = options.share.of(existing)
    options.starting.check_named_partitions(existing)
    options.ending.check_named_partitions(existing)
    starting = _spots(options.starting, partitions)
    if options.starting.committed:
        assert options.group_id is not None
        committed = cluster.committed(options.group_id, partitions)
        starting |= {partition: OffsetOrTime(position.offset) for partition, position in committed.items()}
    starts = _resolve(cluster, starting, options, options.starting)
    ends = _resolve(cluster, _spots(options.ending, partitions), options, options.ending)
    for partition in partitions:
        if starts[partition] > ends[partition]:
            _refuse(partition, starts[partition], ends[partition], options)
    return {partition: Claim(starts[partition], max(starts[partition], ends[partition])) for partition in partitions}


def _refuse(partition: TopicPartition, start: int, end: int, options: SourceOptions) -> None:
    what = (
        f"{partition} would be read from offset {start} ({options.starting.option}) "
        f"to {end} ({options.ending.option}), which is lower"
    )
    if options.fail_on_data_loss:
        raise ConfigError(what)
    log.warning("%s; it is not read, since failOnDataLoss is false", what)


def _spots(choice: OffsetChoice, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetOrTime]:
    if warning := choice.left_out_warning(partitions):
        log.warning(warning)
    return {partition: choice.spot(partition) for partition in partitions}


def _resolve(
    cluster: Cluster, spots: Mapping[TopicPartition, OffsetOrTime], options: SourceOptions, choice: OffsetChoice
) -> dict[TopicPartition, int]:
    isolation_level = 1 if options.read_committed else 0
    times = {partition: spot.time for partition, spot in spots.items() if spot.offset is None}
    found = cluster.list_offsets(times, isolation_level)
    none = sorted(partition for partition, offset in found.items() if offset < 0)
    if none and not choice.latest_if_none:
        raise choice.no_record(none[0])
    found |= cluster.list_offsets(dict.fromkeys(none, LATEST_TIMESTAMP), isolation_level)
    return {partition: found[partition] if spot.offset is None else spot.offset for partition, spot in spots.items()}
