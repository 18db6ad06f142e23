"""Settings of a log, with Kafka's topic settings' names and defaults, and the errors that a log raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from muster.errors import ErrorCode, KafkaError
from muster.protocol.records.compression import Compression

NO_LIMIT = -1
DAY_MS = 86_400_000
MAX_OFFSETS_OF_A_SEGMENT = 2**31 - 1
"""Indexes hold offsets and positions in four bytes."""


class FsyncPolicy(StrEnum):
    """When an append counts as durable, and so may be acknowledged and read.

    INTERVAL: as soon as the operating system has it (it survives the death of the process). The broker calls
    `LogStore.flush` every second, so that a power cut costs at most that second.
    ALWAYS: after an fsync, which all waiting appends share. NEVER: like INTERVAL, but without any fsync."""

    INTERVAL = "interval"
    ALWAYS = "always"
    NEVER = "never"


class CleanupPolicy(StrEnum):
    """Kafka's `cleanup.policy`."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact,delete"
    NONE = ""
    """Records stay forever."""

    @property
    def compacts(self) -> bool:
        return self in (CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE)

    @property
    def deletes(self) -> bool:
        return self in (CleanupPolicy.DELETE, CleanupPolicy.COMPACT_AND_DELETE)


class TimestampType(IntEnum):
    """Kafka's `message.timestamp.type`: whether the producer or the broker sets a record's time."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(slots=True)
class LogConfig:
    """The settings of a topic that concern its log, in bytes and milliseconds. A retention of -1 means unlimited."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = NO_LIMIT
    max_message_bytes: int = 1024 * 1024 + 12
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    index_interval_bytes: int = 4096
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = 2**63 - 1
    producer_id_expiration_ms: int = DAY_MS
    transaction_partition_verification_enable: bool = True
    compression: Compression | None = None
    """The codec of stored batches; None keeps the producer's."""
    compression_level: int | None = None

    max_segment_ms: int = field(init=False)
    """The age at which a segment is closed: only closed ones are compacted (KIP-354)."""

    def __post_init__(self) -> None:
        compacts = self.cleanup_policy.compacts
        self.max_segment_ms = min(self.segment_ms, self.max_compaction_lag_ms) if compacts else self.segment_ms


class LogError(KafkaError):
    """A rejected append or read; `code` is the error code for the client. The log remains usable.

    `record_errors` has index and message of each record that made the batch invalid."""

    record_errors: Sequence[tuple[int, str]] = ()


class LogFailedError(LogError):
    """Reading or writing the disk failed. The log refuses appends until the store is opened again: after a failed write
    or fsync it is unknown what the disk holds."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
