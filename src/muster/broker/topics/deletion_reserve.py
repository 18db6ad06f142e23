"""Space that is kept for deletions: on a full disk they need some before they free any.

The file's bytes are written, so that the disk has allocated them, and are random, because a file system that compresses
would allocate nothing for zeros. A deletion that finds the disk full removes the file and tries once more. The next
housekeeping or start recreates the file if there is space for it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from muster.log import Files, put_whole

log = logging.getLogger("muster.broker")

FILE, SIZE = "muster-reserve", 2 << 20
"""Twice the size of a catalogue with ten thousand topics: a file is replaced by one written next to it."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """The reserve of a data folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / FILE
        self._files = files

    def fill(self) -> None:
        """Create the file if it is missing and the disk has space for it."""
        if not self._path.exists():
            with contextlib.suppress(OSError):
                put_whole(self._files, self._path, os.urandom(SIZE), sync=False)

    def released_for(self, deletion: Callable[[], None]) -> bool:
        """Take the first step of a deletion, on a full disk with the reserve's space. Returns whether the reserve was
        needed. Raises OSError."""
        try:
            deletion()
        except OSError as error:
            if error.errno not in _FULL or not self._path.exists():
                raise
            self._files.unlink(self._path)
            log.warning("the disk is full: the space of %s is released for a deletion", self._path)
            deletion()
            return True
        return False
