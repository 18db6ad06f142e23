"""Folders for one process at a time: the lock is released when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from muster.errors import ConfigError


@contextlib.contextmanager
def alone(lock: Path, message: str) -> Iterator[None]:
    """Hold the lock of a file, which is created, within the block.

    Raises:
        ConfigError: another process holds it; `message` is its text.
    """
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(message) from None
        yield


@contextlib.contextmanager
def workplace(folder: Path, command: str) -> Iterator[None]:
    """An empty folder for a command's results, locked within the block. What an earlier run of the same command left is
    deleted.

    Raises:
        ConfigError: it has other files, or the command is running there.
    """
    marker = folder / f".{command.replace(' ', '-')}"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise ConfigError(f"{folder} has files that `{command}` did not write: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(marker, f"another `{command}` is running in {folder}: name another folder"):
        marker.write_text(f"Made by `{command}`, which empties this folder when it runs again.\n")
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()
        yield
