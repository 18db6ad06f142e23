"""The durable log: segments and indexes in Kafka's own file layout, recovery, retention and compaction.

It knows batches, not groups: bytes go in with `PartitionLog.append` and come out of `PartitionLog.read` unchanged.
"""

from muster.log.compaction import CompactionStopped
from muster.log.config import CleanupPolicy, FsyncPolicy, LogConfig, LogError, LogFailedError, TimestampType
from muster.log.files import DISK, Files, put_whole, write_whole
from muster.log.folder import FolderLock, StoreLockedError
from muster.log.partition import PartitionLog
from muster.log.producers.transactions import OngoingTransaction
from muster.log.results import AppendResult, MarkerResult, ReadResult, Traffic
from muster.log.store import FlushResult, LogStore

__all__ = [
    "DISK",
    "AppendResult",
    "CleanupPolicy",
    "CompactionStopped",
    "Files",
    "FlushResult",
    "FolderLock",
    "FsyncPolicy",
    "LogConfig",
    "LogError",
    "LogFailedError",
    "LogStore",
    "MarkerResult",
    "OngoingTransaction",
    "PartitionLog",
    "ReadResult",
    "StoreLockedError",
    "TimestampType",
    "Traffic",
    "put_whole",
    "write_whole",
]
