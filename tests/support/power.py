"""Power cuts: a disk that records what is done to it, and the folders that a cut at any moment may leave.

    disk = RecordingDisk(root)          # a Files; what lies below `root` by then is durable
    …                                   # work on it
    for cut in cuts(disk, at=…): cut.lay_out(elsewhere)

What may be lost is described in muster/log/files.py: of a file, what was written since its last sync (all of it, the
end, or it reads as zeros); of a folder, individually, each name that was created, renamed or removed since its last
sync. `leave_out` names one place in the code whose syncs do nothing, to check that a test would notice.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from muster.log import Files
from muster.log.files import Data

ROOT = 0


class Write(NamedTuple):
    inode: int
    position: int
    data: bytes


class Truncate(NamedTuple):
    inode: int
    size: int


class Rename(NamedTuple):
    """Names of one folder that change together: with inode None, the name is removed."""

    folder: int
    names: tuple[tuple[str, int | None], ...]


class Sync(NamedTuple):
    inode: int


Operation = Write | Truncate | Rename | Sync


class Unsynced(Files):
    """The real disk without syncs, for tests that they would only slow down."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class RecordingDisk(Files):
    """Does what it is asked, except syncs, and records it."""

    def __init__(self, root: Path, leave_out: str | None = None) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.sites: dict[str, int] = {}
        """The places in the code that sync, and how often they did."""
        self.files: dict[int, bytes] = {}
        """Initial contents, by inode."""
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        """Initial names."""
        self.left_out: list[tuple[int, int]] = []
        """When a sync was left out, and for which inode."""
        self._leave_out = leave_out
        self._names: dict[int, dict[str, int]] = {}
        self._inodes: dict[int, int] = {}
        self._next = ROOT
        self._guard = threading.RLock()
        self._register(root, ROOT)
        self._names = {folder: dict(names) for folder, names in self.folders.items()}

    @property
    def now(self) -> int:
        """The moment, as a number of operations."""
        return len(self.operations)

    def _register(self, folder: Path, inode: int) -> None:
        self.folders[inode] = {}
        for path in sorted(folder.iterdir()):
            self._next += 1
            self.folders[inode][path.name] = here = self._next
            if path.is_dir():
                self._register(path, here)
            else:
                self.files[here] = path.read_bytes()

    def _folder(self, folder: Path) -> int:
        inode = ROOT
        for part in folder.relative_to(self.root).parts:
            inode = self._names[inode][part]
        return inode

    def _rename(self, folder: int, *names: tuple[str, int | None]) -> None:
        for name, inode in names:
            if inode is None:
                self._names[folder].pop(name, None)
            else:
                self._names[folder][name] = inode
        self.operations.append(Rename(folder, names))

    # ------------------------------------------------------------------------------------------- the operations

    def open(self, path: Path, flags: int) -> int:
        with self._guard:
            fd = super().open(path, flags)
            if flags & (os.O_RDWR | os.O_WRONLY):
                folder = self._folder(path.parent)
                inode = self._names[folder].get(path.name)
                if inode is None:
                    self._next += 1
                    inode = self._next
                    self._rename(folder, (path.name, inode))
                elif flags & os.O_TRUNC:
                    self.operations.append(Truncate(inode, 0))
                self._inodes[fd] = inode
            return fd

    def close(self, fd: int) -> None:
        with self._guard:
            self._inodes.pop(fd, None)
            super().close(fd)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        with self._guard:
            self.operations.append(Write(self._inodes[fd], position, bytes(data)))
            return super().pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        with self._guard:
            self.operations.append(Truncate(self._inodes[fd], size))
            super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        with self._guard:
            self._sync(self._inodes[fd], "file", sys._getframe(1))

    def sync_folder(self, folder: Path) -> None:
        with self._guard:
            self._sync(self._folder(folder), "folder", sys._getframe(1))

    def replace(self, source: Path, target: Path) -> None:
        with self._guard:
            super().replace(source, target)
            folder = self._folder(source.parent)
            assert target.parent == source.parent, "renames across folders are not played"
            self._rename(folder, (source.name, None), (target.name, self._names[folder][source.name]))

    def unlink(self, path: Path) -> None:
        with self._guard:
            super().unlink(path)
            self._rename(self._folder(path.parent), (path.name, None))

    def mkdir(self, path: Path) -> None:
        with self._guard:
            super().mkdir(path)
            self._next += 1
            self._names[self._next] = {}
            self._rename(self._folder(path.parent), (path.name, self._next))

    def rmdir(self, path: Path) -> None:
        with self._guard:
            super().rmdir(path)
            self._rename(self._folder(path.parent), (path.name, None))

    def _sync(self, inode: int, kind: str, frame: FrameType | None) -> None:
        callers: list[str] = []
        while frame is not None and len(callers) < (2 if kind == "file" else 1):
            if not frame.f_code.co_filename.endswith("files.py"):
                line = frame.f_lineno - frame.f_code.co_firstlineno
                callers.append(f"{frame.f_code.co_qualname}+{line}")
            frame = frame.f_back
        site = f"{kind}: {' < '.join(callers)}"
        self.sites[site] = self.sites.get(site, 0) + 1
        if site == self._leave_out:
            self.left_out.append((self.now, inode))
        else:
            self.operations.append(Sync(inode))

    def risky(self) -> set[int]:
        """The moments at which something may be lost because of the syncs that were left out: until the next sync of
        the same file or folder; the last of these moments are the riskiest."""
        found: set[int] = set()
        for at, inode in self.left_out:
            later = (i for i in range(at, self.now) if self.operations[i] == Sync(inode))
            end = next(later, self.now)
            found |= {*range(at, min(at + 8, end) + 1), *range(max(at, end - 6), end + 1)}
        return found


@dataclass
class Cut:
    """The contents of the disk after a cut."""

    at: int
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)

    def lay_out(self, root: Path) -> None:
        """Creates the folder; its former contents are removed."""
        shutil.rmtree(root, ignore_errors=True)
        self._lay_out(root, ROOT)

    def _lay_out(self, path: Path, inode: int) -> None:
        path.mkdir()
        for name, inside in self.folders[inode].items():
            if inside in self.folders:
                self._lay_out(path / name, inside)
            else:
                (path / name).write_bytes(self.files[inside])

    def key(self) -> tuple[object, ...]:
        """Equal for equal folders."""
        return self._key(ROOT)

    def _key(self, inode: int) -> tuple[object, ...]:
        names = sorted(self.folders[inode].items())
        return tuple((name, self._key(i) if i in self.folders else hash(self.files[i])) for name, i in names)


class Luck:
    """What a cut spares. `data` and `names` are the probabilities that unsynced changes survive: 0 everything is lost,
    1 everything is kept."""

    def __init__(self, data: float, names: float, rng: random.Random) -> None:
        self._data = data
        self._names = names
        self._rng = rng

    def keeps_name(self) -> bool:
        return self._rng.random() < self._names

    def spares(self, content: bytes, pending: list[Write | Truncate]) -> bytes:
        """The content of a file if only the first few of its pending operations (or none, or all) happened."""
        certain = self._data in (0, 1)
        count = len(pending) * int(self._data) if certain else self._rng.randint(0, len(pending))
        for operation in pending[:count]:
            content = _apply(content, operation)
        if count < len(pending) and self._data and isinstance(torn := pending[count], Write):
            # Often near the end: small files are torn there as well.
            kept = self._rng.randint(self._rng.choice((0, max(len(torn.data) - 8, 0))), len(torn.data))
            rest = bytes(len(torn.data) - kept) if self._rng.random() < 0.5 else b""
            content = _apply(content, torn._replace(data=torn.data[:kept] + rest))
        return content


def _apply(content: bytes, operation: Write | Truncate) -> bytes:
    if isinstance(operation, Truncate):
        return content[: operation.size].ljust(operation.size, b"\0")
    end = operation.position + len(operation.data)
    return content[: operation.position].ljust(operation.position, b"\0") + operation.data + content[end:]


class Player:
    """Replays a recording, operation by operation, and cuts at given moments."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._operations = disk.operations
        self._at = 0
        self._files = dict(disk.files)
        self._folders = {inode: dict(names) for inode, names in disk.folders.items()}
        self._pending_data: dict[int, list[Write | Truncate]] = {}
        self._pending_names: dict[int, list[Rename]] = {}
        self._made = {inode for operation in disk.operations for inode in _folders_made(disk, operation)}

    def go_to(self, at: int) -> None:
        """Replays until this many operations have happened."""
        for operation in self._operations[self._at : at]:
            self._play(operation)
        self._at = at

    def _play(self, operation: Operation) -> None:
        if isinstance(operation, Rename):
            self._pending_names.setdefault(operation.folder, []).append(operation)
            for _, inode in operation.names:
                if inode in self._made:
                    self._folders.setdefault(inode, {})
                elif inode is not None:
                    self._files.setdefault(inode, b"")
        elif not isinstance(operation, Sync):
            self._pending_data.setdefault(operation.inode, []).append(operation)
        elif operation.inode in self._folders:
            for rename in self._pending_names.pop(operation.inode, []):
                _change(self._folders[operation.inode], rename)
        else:
            for written in self._pending_data.pop(operation.inode, []):
                self._files[operation.inode] = _apply(self._files[operation.inode], written)

    def cut(self, luck: Luck) -> Cut:
        """A cut at this moment."""
        cut = Cut(self._at, dict(self._files), {inode: dict(names) for inode, names in self._folders.items()})
        for inode, data in self._pending_data.items():
            cut.files[inode] = luck.spares(cut.files[inode], data)
        for folder, renames in self._pending_names.items():
            for rename in renames:
                if luck.keeps_name():
                    _change(cut.folders[folder], rename)
        return cut


def _folders_made(disk: RecordingDisk, operation: Operation) -> Iterator[int]:
    if isinstance(operation, Rename):
        for _, inode in operation.names:
            if inode is not None and inode in disk._names:
                yield inode


def _change(names: dict[str, int], rename: Rename) -> None:
    for name, inode in rename.names:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def cuts(
    disk: RecordingDisk, rng: random.Random, *, each: int = 4, moments: Iterable[int] | None = None
) -> Iterator[Cut]:
    """Cuts before the first operation, after the last and between (or at these `moments`): at each moment the four
    extremes and `each` random ones, without those that leave the same."""
    player = Player(disk)
    for at in range(disk.now + 1) if moments is None else sorted(moments):
        player.go_to(at)
        seen = set()
        chances = [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]
        for data, names in [*chances, *[(0.5, rng.choice((0.3, 0.5, 0.8)))] * each]:
            cut = player.cut(Luck(data, names, rng))
            if (key := cut.key()) not in seen:
                seen.add(key)
                yield cut
