"""The file system, as all code that writes to the data folder sees it: a few operations and combinations of them.

`DISK` is the real disk. Tests pass another in its place: one that records every operation to simulate power cuts, or
whose syncs wait or fail.

A power cut may undo the following, and the rest of this package allows for that:
- data written to a file and not synced since: all of it or its end is missing, or reads as zeros;
- a name that was created, renamed or removed, until its folder is synced: each change separately, in any order.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

Data = bytes | bytearray | memoryview
_sync = getattr(os, "fdatasync", os.fsync)


class FileCutError(OSError):
    """Another process has truncated a file that is open here: data is lost."""


class Files:
    """The operations, named as in `os`. All raise OSError."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        """Returns the number of bytes written, which may be less."""
        return os.pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Makes the file's data durable; its name may not be."""
        _sync(fd)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def unlink_if_exists(self, path: Path) -> None:
        """Removes the name if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)

    def make_folders(self, folder: Path) -> None:
        """Creates the folder and its parents if they are missing."""
        if not folder.is_dir():
            self.make_folders(folder.parent)
            self.mkdir(folder)

    def sync_folder(self, folder: Path) -> None:
        """Makes the names that were created, renamed and removed in the folder durable."""
        fd = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


DISK = Files()


class OpenFile:
    """A file to be read, which is closed when nothing refers to it."""

    __slots__ = ("_fd", "_files")

    def __init__(self, fd: int, files: Files) -> None:
        self._fd = fd
        self._files = files

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._fd

    def __del__(self) -> None:
        self._files.close(self._fd)


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Replaces a small file so that kill -9 or a power cut leaves the old or the new one; durable when this returns.
    Raises OSError; then the old file is as it was."""
    put_whole(files, path, data, sync=True)
    files.sync_folder(path.parent)


def put_whole(files: Files, path: Path, data: bytes, *, sync: bool) -> None:
    """Like `write_whole`, but after a power cut the old file may be back, and without `sync` even a damaged one. For
    files that can be lost. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            view, position = memoryview(data), 0
            while position < len(view):
                position += files.pwrite(fd, view[position:], position)
            if sync:
                files.sync(fd)
        finally:
            files.close(fd)
        files.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)  # on a full disk it would take up the remaining space
        raise


def remove_tree(files: Files, folder: Path) -> None:
    """Removes a folder with its contents; links are removed and not followed. Raises OSError; then some of it is
    left."""
    if folder.is_symlink():
        files.unlink(folder)
        return
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(files, Path(entry.path))
            else:
                files.unlink(Path(entry.path))
    files.rmdir(folder)
