"""The durable log: segments and indexes in Kafka's own file layout, recovery, retention and compaction.

It knows batches, not groups: bytes go in with `PartitionLog.append` and come out of `PartitionLog.read` as they are.
"""

from muster.log.config import CleanupPolicy, FsyncPolicy, LogConfig, LogError, LogFailedError, TimestampType
from muster.log.partition import AppendResult, PartitionLog, ReadResult
from muster.log.store import FlushResult, LogStore, StoreLockedError

__all__ = [
    "AppendResult",
    "CleanupPolicy",
    "FlushResult",
    "FsyncPolicy",
    "LogConfig",
    "LogError",
    "LogFailedError",
    "LogStore",
    "PartitionLog",
    "ReadResult",
    "StoreLockedError",
    "TimestampType",
]
