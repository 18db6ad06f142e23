"""The word that a batch is done, from Spark's driver to the process that holds the query's member, and whether the
query keeps state, which only the driver knows.

A source learns of a finished batch only when Spark asks it for the next one, which may be an hour later, or never if
the query is stopped. Spark's driver knows at once: a `StreamingQueryListener` is called for each batch when it is in
the commit log. So `session()` and `register()` install one. It sends the digest of the batch's end offset to the
query's socket; the query's name is in that offset. The sockets are in a folder that only this user can enter. Without a
socket, or if driver and source run on different machines, nothing is lost: the batch is committed at the next trigger.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger("muster.spark")

_LONGEST = 512
_STATE = "state"


def digest(offset: dict[str, Any]) -> str:
    """A digest of an offset: the same for the dict that the source returned and for Spark's text of it."""
    return hashlib.sha256(json.dumps(offset, sort_keys=True).encode()).hexdigest()


def socket_path(query: str) -> Path | None:
    """The socket of the query with this name; None if there is no folder that other users cannot enter."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    folder = Path(tempfile.gettempdir()) / f"muster-spark-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None
    return folder / f"{hashlib.sha256(query.encode()).hexdigest()[:24]}.sock"


class Ear:
    """Listens for one query, in a running event loop. `heard` is called with each digest, and whether the query keeps
    state."""

    def __init__(self, query: str, heard: Callable[[str, bool], None]) -> None:
        self._heard = heard
        self._path = socket_path(query)
        self._socket: socket.socket | None = None
        if self._path is None:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._path.unlink(missing_ok=True)  # an earlier process of the query was killed
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            self._inode = self._path.stat().st_ino
        except OSError as error:  # a path that is too long for a socket, a full disk
            listening.close()
            log.info("finished batches are committed at the next trigger: no socket can be made (%s)", error)
            return
        listening.setblocking(False)
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._read)

    def _read(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            while said := self._socket.recv(_LONGEST):
                word, _, more = said.decode("ascii", "replace").partition(" ")
                self._heard(word, more == _STATE)

    def close(self) -> None:
        """Stop listening. If a later process of the same query has its socket there, that is left alone."""
        if self._socket is None or self._path is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def tell(end: dict[str, Any], keeps_state: bool = False) -> bool:
    """Say that the batch with this end offset is done. Returns whether the query's process got the word."""
    path = socket_path(str(end.get("query", "")))
    if path is None or not end.get("query"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
        speaking.setblocking(False)
        try:
            speaking.sendto((f"{digest(end)} {_STATE}" if keeps_state else digest(end)).encode(), str(path))
        except OSError:
            return False
    return True
