"""A topic's settings, with Kafka's names and ranges; settings that a topic does not have come from the broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from muster.broker.config import CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES, BrokerConfig
from muster.broker.settings import INT_MAX, LONG_MAX, Setting, SettingType, Source, Value, show, split_list
from muster.errors import ConfigError

S, K = Setting, SettingType
_SETTINGS = (
    S("cleanup.policy", K.LIST, "delete", "What to do with old records: `delete`, `compact` or both.",
      choices=CLEANUP_POLICIES, synonym="log.cleanup.policy"),
    S("compression.gzip.level", K.INT, -1, "Level of gzip; -1 is gzip's default.", 1, 9, apart=-1,
      synonym="compression.gzip.level"),
    S("compression.lz4.level", K.INT, 9, "Level of lz4 (unused).", 1, 17, synonym="compression.lz4.level"),
    S("compression.type", K.STRING, "producer", "The codec of stored batches; `producer`: as they were sent.",
      choices=COMPRESSION_TYPES, synonym="compression.type"),
    S("compression.zstd.level", K.INT, 3, "Level of zstd.", -131_072, 22, synonym="compression.zstd.level"),
    S("delete.retention.ms", K.LONG, 86_400_000, "How long compaction keeps a tombstone.", 0,
      synonym="log.cleaner.delete.retention.ms"),
    S("file.delete.delay.ms", K.LONG, 60_000, "How long a deleted segment stays on disk (unused).", 0,
      synonym="log.segment.delete.delay.ms"),
    S("flush.messages", K.LONG, LONG_MAX, "Records between flushes of the log to disk (unused).", 1,
      synonym="log.flush.interval.messages"),
    S("flush.ms", K.LONG, LONG_MAX, "Milliseconds after which the log is flushed to disk (unused).", 0),
    S("follower.replication.throttled.replicas", K.LIST, "", "Replicas with throttled replication (unused)."),
    S("index.interval.bytes", K.INT, 4_096, "Bytes of log between entries of the offset index.", 0,
      synonym="log.index.interval.bytes"),
    S("leader.replication.throttled.replicas", K.LIST, "", "Replicas with throttled replication (unused)."),
    S("local.retention.bytes", K.LONG, -2, "Tiered storage, which is off.", -2, synonym="log.local.retention.bytes"),
    S("local.retention.ms", K.LONG, -2, "Tiered storage, which is off.", -2, synonym="log.local.retention.ms"),
    S("max.compaction.lag.ms", K.LONG, LONG_MAX, "Maximum time that a record stays uncompacted.", 1,
      synonym="log.cleaner.max.compaction.lag.ms"),
    S("max.message.bytes", K.INT, 1_048_588, "The largest record batch, as compressed by the producer.", 0,
      synonym="message.max.bytes"),
    S("message.timestamp.after.max.ms", K.LONG, 3_600_000, "How far in the future a timestamp may be.", 0,
      synonym="log.message.timestamp.after.max.ms"),
    S("message.timestamp.before.max.ms", K.LONG, LONG_MAX, "How far in the past a timestamp may be.", 0,
      synonym="log.message.timestamp.before.max.ms"),
    S("message.timestamp.type", K.STRING, "CreateTime",
      "Whether records have the producer's timestamp or the time of the append.",
      choices=TIMESTAMP_TYPES, synonym="log.message.timestamp.type"),
    S("min.cleanable.dirty.ratio", K.DOUBLE, 0.5, "Share of the log that must be dirty to be compacted.", 0, 1,
      synonym="log.cleaner.min.cleanable.ratio"),
    S("min.compaction.lag.ms", K.LONG, 0, "Minimum time that a record stays uncompacted.", 0,
      synonym="log.cleaner.min.compaction.lag.ms"),
    S("min.insync.replicas", K.INT, 1, "Replicas that must have a record before acks=all is acknowledged (unused).", 1,
      synonym="min.insync.replicas"),
    S("preallocate", K.BOOLEAN, False, "Whether to preallocate new segments (unused).", synonym="log.preallocate"),
    S("remote.log.copy.disable", K.BOOLEAN, False, "Tiered storage, which is off."),
    S("remote.log.delete.on.disable", K.BOOLEAN, False, "Tiered storage, which is off."),
    S("remote.storage.enable", K.BOOLEAN, False, "Tiered storage, which is off."),
    S("retention.bytes", K.LONG, -1, "Maximum size of a partition; -1 means unlimited.", -1,
      synonym="log.retention.bytes"),
    S("retention.ms", K.LONG, 604_800_000, "Minimum time to keep a record; -1 means forever.", -1,
      synonym="log.retention.ms"),
    S("segment.bytes", K.INT, 1_073_741_824, "Size at which a segment file is closed.", 1_048_576, INT_MAX,
      synonym="log.segment.bytes"),
    S("segment.index.bytes", K.INT, 10_485_760, "The largest index file (unused).", 4,
      synonym="log.index.size.max.bytes"),
    S("segment.jitter.ms", K.LONG, 0,
      "Random amount subtracted from the age at which a segment is closed (unused).", 0),
    S("segment.ms", K.LONG, 604_800_000, "Age at which a segment is closed.", 1, synonym="log.roll.ms"),
    S("unclean.leader.election.enable", K.BOOLEAN, False, "Whether an out-of-sync replica may become leader (unused).",
      synonym="unclean.leader.election.enable"),
)  # fmt: skip

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _SETTINGS}
"""Every setting of a topic, by name."""

_IN_HOURS = {"retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
             "segment.ms": ("log.roll.ms", "log.roll.hours")}  # fmt: skip


_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_REPLICA_LIST = re.compile(r"|\*|\d+:\d+(,\d+:\d+)*")
_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    """One operation; it has a value unless it is DELETE."""

    name: str
    operation: AlterOperation
    value: str


def altered(settings: Mapping[str, str], changes: Iterable[SettingChange]) -> dict[str, str]:
    """A topic's settings after some operations, checked as a whole.

    Raises:
        ConfigError: an operation that the setting does not allow, an unknown name or an invalid value; in Kafka's
            words.
    """

    def refusal(change: SettingChange) -> Exception:
        return ConfigError(f"Can't {change.operation.name} to key {change.name} because its type is not LIST.")

    return check(apply(settings, changes, SETTINGS, refusal).items())


def apply(
    settings: Mapping[str, str],
    changes: Iterable[SettingChange],
    known: Mapping[str, Setting],
    refusal: Callable[[SettingChange], Exception],
) -> dict[str, str]:
    """Settings after some operations. Raises a `refusal` of an operation that the setting does not allow, or whose
    setting is unknown."""
    found = dict(settings)
    for change in changes:
        name, operation, value = change
        if operation is AlterOperation.DELETE:
            found.pop(name, None)
        elif operation is AlterOperation.SET:
            found[name] = value
        else:
            setting = known.get(name)
            if setting is None or setting.kind is not SettingType.LIST:
                raise refusal(change)
            found[name] = joined(found.get(name, show(setting.default) or ""), operation, value)
    return found


def joined(text: str, operation: AlterOperation, value: str) -> str:
    """A list after APPEND or SUBTRACT."""
    words = split_list(text)
    # Splits as Java does: empty text is one empty word, and trailing empty words are left out.
    given = [word.strip() for word in value.rstrip(",").split(",")] if value.strip(",") or not value else []
    if operation is AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*words, *given]))
    return ",".join(word for word in words if word not in given)


def check(given: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The settings that a client passes for a topic, checked. The last value of a name wins.

    Raises:
        ConfigError: an unknown name or a wrong value, in Kafka's words.
    """
    last: dict[str, str] = {}
    for name, value in given:
        if value is None:
            raise ConfigError(f"Null value not supported for topic configs: {name}")
        last[name] = value
    found = {}
    for name, value in last.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"Unknown topic config name: {name}")
        found[name] = show(setting.parse(value)) or ""
        if name in _REPLICAS and not _REPLICA_LIST.fullmatch(found[name]):
            raise ConfigError(
                f"Invalid value [{', '.join(split_list(value))}] for configuration {name}: {name} must be the literal "
                "'*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )
    least, most = (int(found.get(name, str(SETTINGS[name].default))) for name in _LAGS)
    if least > most:
        raise ConfigError(f"conflict topic config setting {_LAGS[0]} ({least}) > {_LAGS[1]} ({most})")
    if found.get("remote.storage.enable") == "true":
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return found


class Effective(NamedTuple):
    """The effective value of a setting, and where it comes from."""

    value: Value
    source: Source


def effective(name: str, topic: Mapping[str, str], broker: BrokerConfig) -> Effective:
    """The value of a topic's setting: its own, otherwise the broker's, otherwise the default.

    A stored value may have become invalid: the range has changed, or it was written into ZooKeeper. That must not keep
    the broker from starting: such a value counts as not set, and `unusable` reports it.
    """
    setting = SETTINGS[name]
    if name in topic:
        with suppress(ConfigError):
            return Effective(setting.parse(topic[name]), Source.TOPIC)
    if name == "retention.ms":
        return Effective(broker.retention_ms, min(map(broker.source, _IN_HOURS[name])))
    if name == "segment.ms":
        return Effective(broker.roll_ms, min(map(broker.source, _IN_HOURS[name])))
    if setting.synonym is not None:
        return Effective(broker[setting.synonym], broker.source(setting.synonym))
    return Effective(setting.default, Source.DEFAULT)


def unusable(topic: Mapping[str, str]) -> list[str]:
    """Why the values that `effective` ignores are invalid, one sentence for each."""
    found = []
    for name, text in topic.items():
        try:
            if name in SETTINGS:
                SETTINGS[name].parse(text)
        except ConfigError as error:
            found.append(str(error))
    return found


def values(topic: Mapping[str, str], broker: BrokerConfig) -> dict[str, Value]:
    """Every setting of a topic with its effective value."""
    return {name: effective(name, topic, broker).value for name in SETTINGS}
