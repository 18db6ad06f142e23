"""The folder that a history is written to: whether a job may go on there.

`DIR/_history.json` says which form the tables, the checkpoint and the state in it have. A folder is on any file system
that Hadoop knows, and is asked through it.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from muster.errors import ConfigError, MusterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

MARK = "_history.json"
FORMAT = 5
"""Counts up when another version cannot go on from what this one has written."""


_OF_PATTERNS = frozenset("{}[]*?\\")
"""In a path these make a pattern, for Spark's readers (SparkHadoopUtil.isGlobPath), but not for its writers."""


class Place:
    """A folder, through Hadoop's file system."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Raises ConfigError: it is on no file system that is known, or Spark could not read it."""
        odd = sorted(_OF_PATTERNS.intersection(folder))
        if odd:
            raise ConfigError(
                f"{folder} has {' '.join(odd)} in it, which Spark reads as a pattern: name another folder"
            )
        self._jvm: Any = spark._jvm
        self._folder = folder.rstrip("/") or "/"
        try:
            path = self._path("")
            self._files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise ConfigError(f"{folder}: {_said(error)}") from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}" if name else self._folder)

    def full(self, name: str) -> str:
        """A name in the folder as Spark takes it."""
        return f"{self._folder}/{name}"

    def local(self, name: str) -> str | None:
        """A name in the folder as the system takes it; None on another file system than this machine's."""
        path = self._files.makeQualified(self._path(name)).toUri()
        return str(path.getPath()) if path.getScheme() == "file" else None

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def listed(self, name: str) -> list[str]:
        """What is in a folder; nothing, where there is none."""
        if not self.exists(name):
            return []
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._path(name)))

    def size(self, name: str) -> int:
        """The bytes of all files in a folder."""
        return int(self._files.getContentSummary(self._path(name)).getLength())

    def rename(self, name: str, other: str) -> None:
        """Give a folder another name, where nothing is yet.

        Raises:
            OSError: that cannot be done.
        """
        self._files.mkdirs(self._path(other).getParent())
        if not self._files.rename(self._path(name), self._path(other)):
            raise OSError(f"{self.full(name)} cannot become {self.full(other)}")

    def delete(self, name: str) -> None:
        """Delete a folder with all that is in it, if it is there."""
        self._files.delete(self._path(name), True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other job write to the folder, as far as this machine can tell: one on another file system, or whose
        system locks no folders, is not held.

        Raises:
            ConfigError: another job writes there.
            MusterError: it cannot be made.
        """
        self._make()
        local = self.local("")
        held = None if local is None else os.open(local, os.O_RDONLY)
        try:
            if held is not None:
                _lock(held, self._folder)
            yield
        finally:
            if held is not None:
                os.close(held)

    def _make(self) -> None:
        try:
            if not self._files.mkdirs(self._path("")):
                raise MusterError(f"{self._folder} cannot be made")
        except Py4JJavaError as error:
            raise MusterError(f"{self._folder} cannot be written: {_said(error)}") from None

    def claim(self, checkpoint: str | None, tables: Iterable[str]) -> None:
        """Make the folder if it is not there, and see that a job may begin or go on in it.

        Raises:
            ConfigError: it was written by another version, or has tables and no checkpoint.
            MusterError: it cannot be written.
        """
        self._make()
        try:
            self._claim(checkpoint, [*tables])
        except Py4JJavaError as error:
            raise MusterError(f"{self._folder} cannot be written: {_said(error)}") from None

    def _claim(self, checkpoint: str | None, tables: list[str]) -> None:
        begun = checkpoint is not None and self.exists(checkpoint)
        written = any(map(self.exists, tables))
        found = self._read_mark()
        if found is None and (begun or written):
            found = 0  # of before there were marks
        if found is not None and found != FORMAT:
            raise ConfigError(
                f"{self._folder} was written by {'an older' if found < FORMAT else 'a newer'} version of muster, which "
                "kept other things of each group: go on with that version, or begin in another folder"
            )
        if checkpoint is not None and written and not begun:
            raise ConfigError(
                f"{self._folder} has tables, but not where the job that wrote them was ({checkpoint}): to begin anew "
                "would write their rows again, so move the tables away, or name another folder"
            )
        if found is None:
            self.write(MARK, json.dumps({"format": FORMAT}))

    def _read_mark(self) -> int | None:
        try:
            return int(json.loads(self.read(MARK) or "")["format"])
        except (ValueError, KeyError, TypeError):
            return None  # a kill while it was written

    def read(self, name: str) -> str | None:
        """The text of a small file, None where there is none."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readNBytes(1_000)).decode("utf-8", "replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small file, in place of one that is there."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


def _lock(held: int, folder: str) -> None:
    """Lock a folder for as long as it is open: a kill gives it back."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another job writes to {folder}: wait until it has ended, or name another folder") from None
    except OSError:
        pass  # NFS locks no folders


def _said(error: Py4JJavaError) -> str:
    """What a Java exception says, in one line."""
    cause = error.java_exception
    return str(cause.getMessage() or cause.getClass().getSimpleName()).strip().partition("\n")[0]
