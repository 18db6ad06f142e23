"""The data folder itself: its lock, and what the files and folders in it are.

    TOPIC-PARTITION                    a partition: nothing but the files that a log makes
    TOPIC-PARTITION.HEX-delete         a partition that is being deleted; removed at the next start
    TOPIC-PARTITION.HEX-stray          a partition that no topic of the catalogue has, set aside for inspection

HEX is 32 digits: random, or the id of the topic, which gets its partition back if it exists again. A topic's name is
cut if the whole name would be too long for a file, as in Kafka. Everything else in the folder is left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from pathlib import Path

from muster.errors import MusterError
from muster.model import TopicPartition

LOCK_FILE = ".lock"
DELETED = "-delete"
STRAY = "-stray"
_MAX_NAME_BYTES = 255
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})\Z")
_SET_ASIDE = re.compile(r".+-[0-9]+\.[0-9a-f]{32}(-delete|-stray)\Z")
_OWN_FILE = re.compile(r"\.lock|\.kafka_cleanshutdown|muster-|meta\.properties|[a-z-]+-checkpoint")
_LOG_FILE = re.compile(r"[0-9]{20}\.log\Z")
_PARTITION_FILE = re.compile(
    r"([0-9]{20}\.(log|index|timeindex|txnindex|snapshot)(\.[a-z0-9]+)*"
    r"|partition\.metadata|leader-epoch-checkpoint)\Z"
)


class StoreLockedError(MusterError):
    """Another process has the data folder open."""


class FolderLock:
    """Held while a process has the data folder open; the system releases it when the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, root: Path) -> FolderLock:
        """Raises StoreLockedError, OSError."""
        fd = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            whose = f" (process {owner})" if owner else ""
            raise StoreLockedError(
                f"the data directory {root} is in use by another process{whose}: stop it or use another directory"
            ) from None
        except OSError:
            os.close(fd)
            raise
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError:
            pass  # the disk is full: the process id is for people; the lock holds without it
        return cls(fd)

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def parse_partition(name: str) -> TopicPartition | None:
    """The partition whose folder has this name; None if it is not a partition's name."""
    found = _PARTITION.match(name)
    return TopicPartition(found[1], int(found[2])) if found else None


def is_own_file(name: str) -> bool:
    """Whether a file of this name belongs to muster, other than the partitions' folders."""
    return _OWN_FILE.match(name) is not None or set_aside_suffix(name) is not None


def set_aside_suffix(name: str) -> str | None:
    """DELETED or STRAY if the folder was set aside by a broker, otherwise None."""
    found = _SET_ASIDE.match(name)
    return found[1] if found else None


def set_aside_name(topic_partition: TopicPartition, suffix: str, topic_id: bytes | None = None) -> str:
    """A new name for a partition that is set aside (Kafka's UnifiedLog.logDeleteDirName); with the topic's id always
    the same one, so that it is found again."""
    end = f"-{topic_partition.partition}.{(topic_id or uuid.uuid4().bytes).hex()}{suffix}"
    return topic_partition.topic[: _MAX_NAME_BYTES - len(end)] + end


def is_partition_folder(folder: Path) -> bool:
    """Whether the folder has segments of a log, and otherwise only files that a log or Kafka puts there. Raises
    OSError."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        names = [entry.name if entry.is_file(follow_symlinks=False) else "" for entry in entries]
    return any(map(_LOG_FILE.match, names)) and all(map(_PARTITION_FILE.match, names))
