"""The disk of a simulated broker: it dies during a write, refuses writes, and loses what was not synced."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

from muster.log.files import Data
from tests.support.power import Luck, Player, RecordingDisk


class Killed(KeyboardInterrupt):
    """The process is dead. A KeyboardInterrupt, because no code that continues handles one."""


class LifeDisk(RecordingDisk):
    """The disk of one process, from its start to its end; `kill_after` and `refused` count down with each write."""

    def __init__(self, root: Path, rng: Random) -> None:
        super().__init__(root)
        self._rng = rng
        self._open: set[int] = set()
        self.is_dead = False
        self.kill_after: int | None = None
        """The process dies at the write after this many: before it, after it, or during it."""
        self.refused = 0
        """This many writes fail for lack of space."""
        self.writes = 0

    def open(self, path: Path, flags: int) -> int:
        self._check()
        fd = super().open(path, flags)
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            super().close(fd)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        self._check()
        self.writes += 1
        if self.refused:
            self.refused -= 1
            raise OSError(errno.ENOSPC, "no space left on device")
        if self.kill_after is None:
            return super().pwrite(fd, data, position)
        if self.kill_after:
            self.kill_after -= 1
            return super().pwrite(fd, data, position)
        written = self._rng.choice((0, self._rng.randint(0, len(data)), len(data)))
        super().pwrite(fd, memoryview(data)[:written], position)
        self.is_dead = True
        raise Killed

    def truncate(self, fd: int, size: int) -> None:
        self._check()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._check()
        super().sync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._check()
        super().sync_folder(folder)

    def replace(self, source: Path, target: Path) -> None:
        self._check()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._check()
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._check()
        super().mkdir(path)

    def _check(self) -> None:
        if self.is_dead:
            raise Killed

    def end(self) -> None:
        """The process is dead: its open files are closed."""
        self.is_dead = True
        for fd in sorted(self._open):
            self.close(fd)

    def cut_power(self) -> None:
        """After the end: leave on disk what survives a power cut."""
        player = Player(self)
        player.go_to(self.now)
        data, names = self._rng.choice(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.3), (0.5, 0.8)))
        player.cut(Luck(data, names, self._rng)).lay_out(self.root)
