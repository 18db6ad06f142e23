"""Notifies the process that runs the query's member, from Spark's driver, that a batch is done, and whether the
query keeps state, which only the driver knows.

A source learns of a finished batch only when Spark asks for the next one, which may be an hour later, or never if
the query is stopped. Spark's driver knows immediately: a `StreamingQueryListener` is called for each batch once it is
in the commit log. So `session()` and `register()` install one. It sends the digest of the batch's end offset to the
query's socket; that offset contains the query's name. The sockets are in a folder that only this user can enter.
Without a socket, or if driver and source run on different machines, nothing is lost: the batch is committed at the next
trigger.
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
    """A digest of an offset, the same for the dict that the source returned and for Spark's text of it."""
    return hashlib.sha256(json.dumps(offset, sort_keys=True).encode()).hexdigest()


def socket_path(query: str) -> Path | None:
    """The socket of the query with this name; None if no private folder can be created."""
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


class BatchDoneSocket:
    """Listens for one query, in a running event loop. `on_done` is called with each digest, and whether the query keeps
    state."""

    def __init__(self, query: str, on_done: Callable[[str, bool], None]) -> None:
        self._on_done = on_done
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
            log.info("finished batches are committed at the next trigger: cannot create a socket (%s)", error)
            return
        listening.setblocking(False)
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._read)

    def _read(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):
            while message := self._socket.recv(_LONGEST):
                offset_digest, _, more = message.decode("ascii", "replace").partition(" ")
                self._on_done(offset_digest, more == _STATE)

    def close(self) -> None:
        """Stop listening. The socket of a later process of the same query is left alone."""
        if self._socket is None or self._path is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def notify(end: dict[str, Any], keeps_state: bool = False) -> bool:
    """Report that the batch with this end offset is done. Returns whether the query's process was reached."""
    path = socket_path(str(end.get("query", "")))
    if path is None or not end.get("query"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto((f"{digest(end)} {_STATE}" if keeps_state else digest(end)).encode(), str(path))
        except OSError:
            return False
    return True
