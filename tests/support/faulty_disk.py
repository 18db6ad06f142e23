"""A real disk that can fail or wait on request, for stores and brokers: `LogStore.open(…, files=disk)`, `Broker(config,
disk)`, `running(folder, files=disk)`."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.log import Files
from muster.log.files import Data


class FaultyDisk(Files):
    """Works until a fault is requested; `mend` ends the fault. For use from any thread."""

    def __init__(self) -> None:
        self.syncs = 0
        """Files that were synced, including failed attempts."""
        self._go_on = threading.Event()
        self._go_on.set()
        self._waiting = threading.Semaphore(0)
        self._sync_error = 0
        self._good_syncs = 0
        self._space: int | None = None
        self._no_descriptors = False
        self.refused = 0
        """Files and folders that could not be opened."""

    # ----------------------------------------------------------------------------------------------------------- faults

    def fail_syncs(self, error: int = errno.EIO, *, after: int = 0) -> None:
        """Each sync of a file or folder fails, except the first `after`."""
        self._sync_error = error
        self._good_syncs = after

    @contextmanager
    def held_syncs(self) -> Iterator[None]:
        """Syncs that begin in the block wait for its end. `wait_for_sync` returns when one has begun."""
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()

    def wait_for_sync(self, timeout_s: float = 60) -> None:
        """Returns when a sync is being held that was not reported yet. It blocks: an event loop must call it in a
        thread."""
        assert self._waiting.acquire(timeout=timeout_s), "no sync began"

    def fill_up(self, space: int = 0) -> None:
        """The disk is full except for some bytes: what does not fit is written in part, then ENOSPC. Removing a file
        frees its space."""
        self._space = space

    def use_up_descriptors(self) -> None:
        """Opening a file or folder fails with EMFILE."""
        self._no_descriptors = True

    def mend(self) -> None:
        """Everything works again."""
        self._sync_error = 0
        self._space = None
        self._no_descriptors = False

    # ------------------------------------------------------------------------------------------- the operations

    def open(self, path: Path, flags: int) -> int:
        if self._no_descriptors:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        if self._space == 0 and flags & os.O_CREAT and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().open(path, flags)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        if self._space is None:
            return super().pwrite(fd, data, position)
        fits = memoryview(data)[: self._space]
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._space -= len(fits)
        return super().pwrite(fd, fits, position)

    def unlink(self, path: Path) -> None:
        size = path.lstat().st_size
        super().unlink(path)
        if self._space is not None:
            self._space += size

    def sync(self, fd: int) -> None:
        self._before_sync()
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._before_sync()
        super().sync_folder(folder)

    def _before_sync(self) -> None:
        self.syncs += 1
        if not self._go_on.is_set():
            self._waiting.release()
            assert self._go_on.wait(60), "a sync was held and forgotten"
        self._good_syncs -= 1
        if self._sync_error and self._good_syncs < 0:
            raise OSError(self._sync_error, os.strerror(self._sync_error))
