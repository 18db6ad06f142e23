"""The options of `format("muster")`, with the names of Spark's own Kafka source where they mean the same.

Spark passes option names in lower case. Options that begin with `kafka.` are consumer settings,
under Kafka's names; those that the source decides itself are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster.arrow import COLUMNS, EXTRA, HEADERS
from muster.client.config import ClientConfig, ConsumerConfig
from muster.client.plain.fetch import MAX_BYTES, FetchSettings
from muster.errors import ConfigError
from muster.model import TopicPartition
from muster.spark.offsets import ALL, Share
from muster.spark.option_values import KnownOptions, OptionValues, with_option_names
from muster.spark.source.choices import ENDING, OffsetChoice, ending, overruled, starting
from muster.spark.source.claims import ReplayMode, ResumeMode

DEFAULT_MAX_ROWS = 2_000_000
"""Rows of a batch if `maxOffsetsPerTrigger` is not set: a drain waits for a batch, so a batch must not be endless."""

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000

_NAMED_HERE = {
    "partition_assignment_strategy": "assignor",
    "isolation_level": "isolationLevel",
    "group_id": "groupId",
    "group_instance_id": "group.instance.id",
}
"""Consumer settings that are options without `kafka.`."""

COMMITS_TOPIC = "__consumer_offsets"

KNOWN = (
    "kafka.bootstrap.servers",
    "bootstrap",
    "subscribe",
    "subscribePattern",
    "assign",
    "mode",
    "share",
    "groupId",
    "group.id",
    "kafka.group.id",
    "group.instance.id",
    "kafka.group.instance.id",
    "assignor",
    "groupIdPrefix",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "isolationLevel",
    "kafka.isolation.level",
    "resume",
    "replay",
    "drain.timeout",
    "join.timeout",
    "checkpointLocation",
    "kafkaConsumer.pollTimeoutMs",
    "path",
)
"""All options but consumer settings. `path`, which `load(path)` sets, is refused."""

_DECIDED_HERE = {
    "kafka.enable.auto.commit": "offsets are committed when Spark has finished a batch",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are binary; cast them in the query",
    "kafka.value.deserializer": "values are binary; cast them in the query",
    "kafka.max.poll.records": "use maxOffsetsPerTrigger",
    "kafka.partition.assignment.strategy": "use assignor",
    "kafka.interceptor.classes": "interceptors are Java classes, and records are read without Java",
    "fetchoffset.numretries": "offset lookups are retried until join.timeout",
    "fetchoffset.retryintervalms": "offset lookups are retried until join.timeout",
    "topic": "it is for writing: use subscribe, subscribePattern or assign",
    "decode": "values are binary; parse JSON in the query, with from_json",
    "path": "name topics with subscribe, not in load()",
}

NAMES = KnownOptions("source", KNOWN, _DECIDED_HERE)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A reader's options. Times are in milliseconds."""

    bootstrap: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    partitions: tuple[TopicPartition, ...]
    grouped: bool
    """Whether the query is a member of its group; if not, it reads all partitions of its share."""
    share: Share
    group_id: str | None
    group_prefix: str | None
    """If no group is named: the prefix of the name of the query's own group."""
    starting: OffsetChoice
    ending: OffsetChoice
    fail_on_data_loss: bool
    min_rows: int | None
    max_rows: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_partitions: int | None
    max_records: int | None
    """Of one task."""
    columns: tuple[str, ...]
    read_committed: bool
    resume: ResumeMode
    replay: ReplayMode
    drain_timeout_ms: int
    join_timeout_ms: int
    poll_timeout_ms: int
    checkpoint: str | None
    consumer: dict[str, str]
    notes: tuple[str, ...] = ()
    """Warnings for the user: options that are ignored."""

    def in_group_of(self, query: str) -> SourceOptions:
        """The options with the query's own group, if it is named after the query; otherwise unchanged."""
        if self.group_prefix is None or self.group_id is not None:
            return self
        return replace(self, group_id=f"{self.group_prefix}-{query}")

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that are named, with or without partitions."""
        return tuple(dict.fromkeys([*self.topics, *(partition.topic for partition in self.partitions)]))

    @property
    def feeds_itself(self) -> bool:
        """Whether each commit to the group would be a record that the query reads."""
        return self.group_id is not None and COMMITS_TOPIC in self.named_topics

    @property
    def commits(self) -> bool:
        """Whether finished batches are committed to a group. A member must commit, or no other member could take
        over."""
        return self.group_id is not None and (self.grouped or not self.feeds_itself)

    def fetch_settings(self) -> FetchSettings:
        """How the executors read."""
        config = self.consumer_config()
        return FetchSettings(
            client=config.narrowed(ClientConfig),
            columns=self.columns,
            isolation_level=1 if self.read_committed else 0,
            fail_on_data_loss=self.fail_on_data_loss,
            timeout_s=self.poll_timeout_ms / 1000,
            max_bytes=max(config.max_partition_fetch_bytes, 1),
            max_wait_ms=config.fetch_max_wait_ms,
            check_crcs=config.check_crcs,
        )

    def consumer_config(self) -> ConsumerConfig:
        """The settings of the member on the driver.

        Raises:
            ConfigError: a `kafka.` option is unknown or not valid.
        """
        settings: dict[str, Any] = {"client_id": "muster-spark", "max_partition_fetch_bytes": MAX_BYTES}
        settings |= {name.replace(".", "_"): value for name, value in self.consumer.items()}
        try:
            return ConsumerConfig.of(
                settings,
                bootstrap_servers=self.bootstrap,
                group_id=self.group_id,
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                isolation_level="read_committed" if self.read_committed else "read_uncommitted",
            )
        except ConfigError as error:
            raise ConfigError(with_option_names(str(error), ConsumerConfig, set(settings), _NAMED_HERE)) from None


def parse_options(raw: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Parse a reader's options. None for `streaming` checks what applies to both streams and batch reads.

    Raises:
        ConfigError: something is unknown, missing, contradictory or invalid. The message is written for the user.
    """
    options = OptionValues(raw, NAMES)
    options.check_names()
    topics, pattern, partitions = _what_to_read(options)
    group_id = options.one_of("groupId", "group.id", "kafka.group.id") or None
    share = _share(options)
    alone = partitions or options.get("share") is not None or not streaming
    mode = options.choice("mode", ("group", "assign"), "assign" if alone else "group")
    prefix = options.get("groupIdPrefix") or None
    if streaming:
        _check_streaming(options, mode, group_id or prefix, bool(partitions))
    columns = _columns(options)
    parsed = SourceOptions(
        bootstrap=options.bootstrap(),
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        grouped=bool(streaming) and mode == "group",
        share=share,
        group_id=group_id,
        group_prefix=prefix if streaming else None,
        starting=starting(options, streaming),
        ending=ending(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_rows=options.number("minOffsetsPerTrigger", None, 1),
        max_rows=_max_rows(options),
        max_trigger_delay_ms=options.duration("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        min_partitions=options.number("minPartitions", None, 1),
        max_partitions=options.number("maxPartitions", None, 1),
        max_records=options.number("maxRecordsPerPartition", None, 1),
        columns=columns,
        read_committed=_read_committed(options),
        resume=options.member("resume", ResumeMode, ResumeMode.MAX),
        replay=options.member("replay", ReplayMode, ReplayMode.STRICT),
        drain_timeout_ms=options.duration("drain.timeout", 60_000),
        join_timeout_ms=options.duration("join.timeout", 60_000),
        poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", 120_000, 1) or 1,
        checkpoint=options.get("checkpointLocation"),
        consumer=_consumer_settings(options),
        notes=tuple(_notes(options, streaming, group_id)),
    )
    parsed.consumer_config()
    if parsed.max_partitions is not None and parsed.max_partitions < (parsed.min_partitions or 1):
        raise ConfigError("maxPartitions must not be less than minPartitions")
    if parsed.max_partitions is not None and parsed.max_records is not None:
        raise ConfigError("maxPartitions and maxRecordsPerPartition cannot be combined: set only one of them")
    if parsed.starting.committed and group_id is None:
        raise ConfigError('startingOffsets is "committed", which needs groupId')
    return parsed


def _read_committed(options: OptionValues) -> bool:
    ours, sparks = "isolationLevel", "kafka.isolation.level"
    options.one_of(ours, sparks)  # refuses different values
    name = sparks if options.get(ours) is None else ours
    return options.choice(name, ("read_uncommitted", "read_committed")) == "read_committed"


def _check_streaming(options: OptionValues, mode: str, group_id: str | None, by_hand: bool) -> None:
    if mode == "group" and group_id is None:
        raise ConfigError(
            'a streaming query is a member of a group: set groupId, or set mode to "assign" to read without a group'
        )
    if mode == "group" and by_hand:
        raise ConfigError("assign names partitions, but a group assigns partitions itself: use subscribe, or omit mode")
    if mode == "group" and options.get("share") is not None:
        raise ConfigError(
            "share fixes which partitions the query reads, but a group assigns partitions itself: omit mode"
        )
    for name in ENDING:
        if options.get(name) is not None:
            raise ConfigError(f"{name} applies to batch reads only; a streaming query has no end")


def _max_rows(options: OptionValues) -> int | None:
    least = options.number("minOffsetsPerTrigger", None, 1) or 1
    most = options.number("maxOffsetsPerTrigger", None, 1)
    if most is not None and most < least:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) is more than maxOffsetsPerTrigger ({most})")
    return max(DEFAULT_MAX_ROWS, least) if most is None else most


def _notes(options: OptionValues, streaming: bool | None, group_id: str | None) -> list[str]:
    """Messages about options that are set but ignored."""
    notes = overruled(options)
    if group_id is not None and options.get("groupIdPrefix") is not None:
        notes.append("groupIdPrefix is ignored, since a group is named")
    of_triggers = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay") if streaming is False else ()
    return notes + [f"{name} is ignored in a batch read" for name in of_triggers if options.get(name) is not None]


def _what_to_read(options: OptionValues) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.get(name) is not None]
    if len(ways) != 1:
        found = f"{' and '.join(ways)} are set" if ways else "none is set"
        raise ConfigError(f"set exactly one of subscribe, subscribePattern or assign; {found}")
    value = options.get(ways[0]) or ""
    if ways[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise ConfigError("subscribe names no topic; it must look like topic1,topic2")
        return topics, None, ()
    if ways[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(f"subscribePattern {value!r} is not a regular expression: {error}") from None
        return (), value, ()
    return (), None, tuple(sorted(_assigned(value)))


def _assigned(value: str) -> list[TopicPartition]:
    try:
        named = json.loads(value)
        return [TopicPartition(topic, int(index)) for topic, indexes in named.items() for index in indexes]
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f'assign is {value!r}; it must look like {{"topic":[0,1]}}') from None


def _share(options: OptionValues) -> Share:
    value = options.get("share")
    if value is None:
        return ALL
    if options.get("assign") is not None:
        raise ConfigError("share and assign cannot be combined: set only one of them")
    found = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", value)
    share = Share(*map(int, found.groups())) if found else None
    if share is None or share.number >= share.shares:
        raise ConfigError(f"share is {value!r}; it must look like 0/3, the first of three shares (the last is 2/3)")
    return share


def _columns(options: OptionValues) -> tuple[str, ...]:
    known = {name.lower(): name for name in (*COLUMNS, *EXTRA)}
    value = options.get("columns")
    headers = options.flag("includeHeaders", False)
    if value is None:
        return (*COLUMNS, HEADERS) if headers else COLUMNS
    chosen = tuple(part.strip() for part in value.split(",") if part.strip())
    for name in chosen:
        if name.lower() not in known:
            raise ConfigError(
                f"columns names {name!r}, which is not a column; the columns are {', '.join(known.values())}"
            )
    found = tuple(dict.fromkeys(known[name.lower()] for name in chosen))
    if not found:
        raise ConfigError("columns is empty; name at least one column, for example value")
    return (*found, HEADERS) if headers and HEADERS not in found else found


def _consumer_settings(options: OptionValues) -> dict[str, str]:
    settings = {
        name.removeprefix("kafka."): value
        for name, value in options.all.items()
        if name.startswith("kafka.") and name not in options.known
    }
    instance = options.one_of("group.instance.id", "kafka.group.instance.id")
    if instance is not None:
        settings["group.instance.id"] = instance
    settings["partition.assignment.strategy"] = options.get("assignor") or "cooperative-sticky"
    return settings
