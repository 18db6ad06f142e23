"""Disk failures that a test can switch on: a full disk, slow syncs, failing syncs."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from muster.errors import ConfigError
from muster.log import Files
from muster.log.files import Data


class FaultyDisk(Files):
    """The files of a broker, which fail as `change` says. Called from the broker's threads."""

    def __init__(self) -> None:
        self._full = False
        self._sync_delay_s = 0.0
        self._sync_error = 0

    def change(self, *, full: bool | None = None, sync_delay_ms: int | None = None, fail: bool | None = None) -> None:
        """Set whether the disk is full, how much longer each sync takes, and whether syncs fail. None: unchanged."""
        if sync_delay_ms is not None and sync_delay_ms < 0:
            raise ConfigError(f"sync_delay_ms={sync_delay_ms}: it must be 0 or more")
        if full is not None:
            self._full = full
        if sync_delay_ms is not None:
            self._sync_delay_s = sync_delay_ms / 1000
        if fail is not None:
            self._sync_error = errno.EIO if fail else 0

    def open(self, path: Path, flags: int) -> int:
        """See `os.open`."""
        if self._full and flags & os.O_CREAT and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().open(path, flags)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        """See `os.pwrite`."""
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, position)

    def sync(self, fd: int) -> None:
        """See `os.fsync`."""
        self._before_sync()
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        """See `Files.sync_folder`."""
        self._before_sync()
        super().sync_folder(folder)

    def _before_sync(self) -> None:
        time.sleep(self._sync_delay_s)
        if self._sync_error:
            raise OSError(self._sync_error, os.strerror(self._sync_error))
