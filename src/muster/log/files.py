"""The disk, as all that writes into the data folder sees it: the few operations, and the few ways to combine them.

`DISK` is the real one, and costs nothing: its methods are those of `os`. Tests give another in its place: one that
notes every operation to play power cuts, or whose syncs wait or fail.

What a power cut may take back, and so what the rest of this package is written against:
- what was written to a file and not synced since: all of it, its end, or it reads as zeros;
- a name that was made, renamed or removed, until its folder is synced: each of them by itself, in any order.
"""

from __future__ import annotations

import os
from pathlib import Path


class Files:
    """The operations. All raise OSError."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pwrite = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(getattr(os, "fdatasync", os.fsync))
    """What was written to the file is durable; its name may not be."""
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    def sync_folder(self, folder: Path) -> None:
        """What was made, renamed and removed in the folder until now is durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


DISK = Files()


def write_whole(files: Files, path: Path, data: bytes) -> None:
    """Puts a small file in place so that kill -9 and a power cut leave the old one or the new one; durable when this
    returns. Raises OSError; then the old file is as it was."""
    put_whole(files, path, data, sync=True)
    files.sync_folder(path.parent)


def put_whole(files: Files, path: Path, data: bytes, *, sync: bool) -> None:
    """As `write_whole`, but after a power cut the old file may be there; without `sync` also a damaged one. For what
    can be done without. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view, position = memoryview(data), 0
        while position < len(view):
            position += files.pwrite(fd, view[position:], position)
        if sync:
            files.sync(fd)
    finally:
        files.close(fd)
    files.replace(temporary, path)


def remove_tree(files: Files, folder: Path) -> None:
    """Removes a folder and what is in it; links are removed and not followed. Raises OSError, with what is left."""
    if folder.is_symlink():
        files.unlink(folder)
        return
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(files, Path(entry.path))
            else:
                files.unlink(entry.path)
    files.rmdir(folder)
