"""The logs of the topics' partitions, and their settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any

from muster.broker.config import BrokerConfig
from muster.broker.identity import uuid_text
from muster.broker.settings import Value
from muster.broker.topics import settings as topic_settings
from muster.broker.topics.catalogue import Topic, TopicCatalogue
from muster.clock import wall_clock_ms
from muster.log import CleanupPolicy, LogConfig, LogStore, PartitionLog, TimestampType, Traffic
from muster.log.segments.positions import end_of_epoch
from muster.model import TopicPartition
from muster.protocol.records.compression import Compression

logger = logging.getLogger("muster.broker")

MOST_ZSTD_LEVEL = 19
"""Higher levels take ten times as long to save half a percent, and all topics' batches wait for one thread."""

NEWEST = 2**31 - 1
"""No leader epoch is newer."""


class Partitions:
    """The partitions that this broker leads, by topic and index. A standalone broker leads all."""

    def __init__(self, config: BrokerConfig, topics: TopicCatalogue, store: LogStore) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._open: dict[str, dict[int, PartitionLog]] = {}
        self.former = Traffic()
        """The traffic of partitions that this broker no longer leads."""
        self.is_doubtful: Callable[[], bool] | None = None
        """Whether another process may have taken this broker's place; None for a standalone broker."""

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """The log of a partition, None if it does not exist or this broker does not lead it."""
        if self.is_doubtful is not None and self.is_doubtful():
            return None
        found = self._open.get(topic)
        return found.get(index) if found is not None else None

    def __len__(self) -> int:
        return len(self._store.logs)

    def hosted(self) -> list[tuple[TopicPartition, PartitionLog]]:
        """All partitions whose records are here, including those that this broker does not lead now."""
        return list(self._store.logs.items())

    def has(self, partition: TopicPartition) -> bool:
        """Whether the records of a partition are here, even if this broker does not lead it now."""
        return partition in self._store.logs

    def is_offline(self, topic: str, index: int) -> bool:
        """Whether a partition is kept here and cannot be opened."""
        offline = self._store.offline  # checked for every partition in a Metadata response: nearly always empty
        return bool(offline) and TopicPartition(topic, index) in offline

    @property
    def offline(self) -> frozenset[tuple[str, int]]:
        """The partitions that are kept here and cannot be opened, by topic id and index."""
        found = ((self._topics.get(topic), index) for topic, index in self._store.offline)
        return frozenset((uuid_text(topic.topic_id), index) for topic, index in found if topic is not None)

    def take_offline(self, topic: Topic, index: int, error: OSError) -> None:
        """A partition cannot be led here: leave it alone from now on."""
        self._store.take_offline(TopicPartition(topic.name, index), error)

    def persist_log_starts(self, cut: Iterable[PartitionLog]) -> None:
        """Make the new start offsets durable after records were deleted; runs in a thread. On a full disk the records
        are removed immediately, not with the next housekeeping. Raises OSError."""
        if self._topics.reserve.released_for(self._store.write_checkpoints):
            for log in cut:
                log.enforce_retention(wall_clock_ms())
            self._topics.reserve.fill()

    def led(self) -> list[PartitionLog]:
        """The logs of all partitions that this broker leads."""
        return [log for name in sorted(self._open) for _, log in sorted(self._open[name].items())]

    def make_room(self, wanted: Iterable[TopicPartition]) -> None:
        """Set aside folders whose names new partitions need. Raises OSError if it cannot be done."""
        self._store.make_room(wanted)

    def opening(self, topic: Topic, first: int = 0) -> Generator[None, None, None]:
        """Open a topic's partitions from one on, or create them, one after another, until it is deleted."""
        config = log_config(topic.settings, self._config)
        for index in range(first, topic.partitions):
            if not self.is_current(topic):
                return
            if not self.is_offline(topic.name, index):
                log = self._store.create(TopicPartition(topic.name, index), config)
                self._open.setdefault(topic.name, {})[index] = log
            yield
        if self.is_current(topic):
            self.configure(topic)  # its settings may have been changed meanwhile

    def opened(self, topic: Topic, index: int) -> int:
        """Prepare to lead a partition; returns the newest epoch under which this broker is known to have led it, -1 if
        none. Raises OSError if something else is in its place, or it cannot be read."""
        partition = TopicPartition(topic.name, index)
        log = self._store.get(partition)
        if log is None:
            self._store.make_room([partition])
        written = end_of_epoch(log.segments, NEWEST)[0] if log is not None else None
        return max(topic.epochs.get(index, -1), -1 if written is None else written)

    def lead(self, topic: Topic, index: int, epoch: int) -> PartitionLog:
        """Lead a partition under an epoch, after `opened`: `get` finds its log, which is created the first time."""
        log = self._store.create(TopicPartition(topic.name, index), log_config(topic.settings, self._config))
        log.leader_epoch = epoch
        self._open.setdefault(topic.name, {})[index] = log
        return log

    def set_aside(self, topic: Topic, indices: Iterable[int]) -> list[str]:
        """Set partitions of a topic aside until the topic exists again with its id; returns the names of their folders.
        Raises OSError."""
        indices = list(indices)
        for index in indices:
            self.resign(topic.name, index)
        return self._store.set_aside([TopicPartition(topic.name, index) for index in indices], topic.topic_id)

    def has_aside(self, topic: Topic, index: int) -> bool:
        """Whether a partition of this topic was set aside."""
        return self._store.has_aside(TopicPartition(topic.name, index), topic.topic_id)

    def open_aside(self, topic: Topic, index: int) -> PartitionLog:
        """Open a partition that was set aside, for `put_back`; runs in a thread. Raises OSError."""
        config = log_config(topic.settings, self._config)
        return self._store.open_aside(TopicPartition(topic.name, index), topic.topic_id, config, wall_clock_ms())

    def put_back(self, log: PartitionLog) -> None:
        """Restore a partition that was set aside: it may be led again."""
        self._store.put_back(log)

    def delete_aside(self, topic_ids: Collection[bytes]) -> None:
        """Remove what was set aside from deleted topics. Raises OSError."""
        self._store.delete_aside(topic_ids)

    def configure(self, topic: Topic) -> None:
        """A topic's settings have changed: apply them to its logs, unless another topic has taken its name."""
        if not self.is_current(topic):
            return
        config = log_config(topic.settings, self._config)
        for log in self._open.get(topic.name, {}).values():
            log.config = config

    def configure_all(self) -> Generator[None, None, None]:
        """The broker's settings have changed: apply them to all logs, a topic at a time."""
        for topic in list(self._topics):
            self.configure(topic)
            yield

    def resign(self, topic: str, index: int) -> None:
        """Stop leading a partition: `get` no longer finds its log, which stays."""
        self._retire(self._open.get(topic, {}).pop(index, None))

    def is_current(self, topic: Topic) -> bool:
        """Whether a topic still exists."""
        return self._topics.get(topic.name) is topic

    def forget(self, topic: Topic) -> None:
        """A topic was deleted: `get` no longer finds its partitions."""
        for log in self._open.pop(topic.name, {}).values():
            self._retire(log)

    def _retire(self, log: PartitionLog | None) -> None:
        if log is not None:
            self.former.add(log.traffic)
            log.traffic = Traffic()

    def deleting(self, topics: Iterable[Topic]) -> Generator[None, None, set[TopicPartition]]:
        """Remove the folders of topics, a slice at a time. Returns those that could not be removed."""
        return (yield from self._store.deleting(each for topic in topics for each in topic.topic_partitions))

    def delete(self, topic: Topic) -> set[TopicPartition]:
        """Like `deleting`, without a break."""
        return self._store.delete_all(topic.topic_partitions)


def log_config(settings: dict[str, str], config: BrokerConfig) -> LogConfig:
    """The log settings of a topic with these settings."""
    values = topic_settings.values(settings, config)
    compression = _CODECS[str(values["compression.type"])]
    return LogConfig(
        segment_bytes=_number(values["segment.bytes"]),
        segment_ms=_number(values["segment.ms"]),
        retention_ms=_number(values["retention.ms"]),
        retention_bytes=_number(values["retention.bytes"]),
        max_message_bytes=_number(values["max.message.bytes"]),
        cleanup_policy=_cleanup_policy(str(values["cleanup.policy"])),
        delete_retention_ms=_number(values["delete.retention.ms"]),
        min_cleanable_dirty_ratio=float(values["min.cleanable.dirty.ratio"] or 0),
        min_compaction_lag_ms=_number(values["min.compaction.lag.ms"]),
        max_compaction_lag_ms=_number(values["max.compaction.lag.ms"]),
        index_interval_bytes=_number(values["index.interval.bytes"]),
        message_timestamp_type=_timestamp_type(values["message.timestamp.type"]),
        message_timestamp_after_max_ms=_number(values["message.timestamp.after.max.ms"]),
        message_timestamp_before_max_ms=_number(values["message.timestamp.before.max.ms"]),
        producer_id_expiration_ms=config.integer("producer.id.expiration.ms"),
        transaction_partition_verification_enable=config.flag("transaction.partition.verification.enable"),
        compression=compression,
        compression_level=_level(compression, values),
    )


def warn_of_unusable(topic: str, settings: dict[str, str]) -> None:
    """Log which of a topic's stored settings have a value that cannot be used."""
    for why in topic_settings.unusable(settings):
        logger.warning("topic %s: %s; the broker's value is used until the topic's is altered", topic, why)


_CODECS = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


def _level(codec: Compression | None, values: dict[str, Value]) -> int | None:
    """The level of a codec that has levels here; None means the codec's default."""
    if codec is Compression.ZSTD:
        return min(_number(values["compression.zstd.level"]), MOST_ZSTD_LEVEL)
    level = _number(values["compression.gzip.level"])
    return level if codec is Compression.GZIP and level >= 0 else None


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _cleanup_policy(text: str) -> CleanupPolicy:
    words = {word.strip() for word in text.split(",") if word.strip()}
    if words == {"compact", "delete"}:
        return CleanupPolicy.COMPACT_AND_DELETE
    return CleanupPolicy(words.pop()) if words else CleanupPolicy.NONE


def _timestamp_type(value: Any) -> TimestampType:
    return TimestampType.LOG_APPEND_TIME if value == "LogAppendTime" else TimestampType.CREATE_TIME
