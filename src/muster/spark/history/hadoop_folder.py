"""A folder through Hadoop's file system, and whether a job that writes a history may continue there.

`DIR/_history.json` has the format of the tables, the checkpoint and the state. The folder may be on any file system
that Hadoop supports.
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
FORMAT = 6
"""Incremented when a version cannot continue from what the previous one wrote."""


_OF_PATTERNS = frozenset("{}[]*?\\")
"""These make a path a glob for Spark's readers (SparkHadoopUtil.isGlobPath), but not for its writers."""


class HadoopFolder:
    """A folder, through Hadoop's file system."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Raises ConfigError: the file system is unknown, or Spark could not read the path."""
        odd = sorted(_OF_PATTERNS.intersection(folder))
        if odd:
            raise ConfigError(
                f"{folder} contains {' '.join(odd)}, which Spark reads as a glob pattern: name another folder"
            )
        self._jvm: Any = spark._jvm
        self._folder = folder.rstrip("/") or "/"
        try:
            path = self._path("")
            self._files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise ConfigError(f"{folder}: {_message(error)}") from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}" if name else self._folder)

    def full(self, name: str) -> str:
        """A name in the folder as a path for Spark."""
        return f"{self._folder}/{name}"

    def local(self, name: str) -> str | None:
        """A name in the folder as a local path; None on a remote file system."""
        path = self._files.makeQualified(self._path(name)).toUri()
        return str(path.getPath()) if path.getScheme() == "file" else None

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def listed(self, name: str) -> list[str]:
        """The names in a folder; empty if it does not exist."""
        if not self.exists(name):
            return []
        return sorted(str(each.getPath().getName()) for each in self._files.listStatus(self._path(name)))

    def size(self, name: str) -> int:
        """The total size of all files in a folder."""
        return int(self._files.getContentSummary(self._path(name)).getLength())

    def rename(self, name: str, other: str) -> None:
        """Rename a folder to a name that does not exist.

        Raises:
            OSError: it cannot be renamed.
        """
        self._files.mkdirs(self._path(other).getParent())
        if not self._files.rename(self._path(name), self._path(other)):
            raise OSError(f"cannot rename {self.full(name)} to {self.full(other)}")

    def delete(self, name: str) -> None:
        """Delete a folder with its contents, if it exists."""
        self._files.delete(self._path(name), True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other jobs from writing to the folder, where this machine can: a folder on a remote file system, or one
        that cannot be locked, is not protected.

        Raises:
            ConfigError: another job is writing there.
            MusterError: it cannot be created.
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
                raise MusterError(f"{self._folder} cannot be created")
        except Py4JJavaError as error:
            raise MusterError(f"{self._folder} cannot be written: {_message(error)}") from None

    def claim(self, checkpoint: str | None, tables: Iterable[str]) -> None:
        """Create the folder if needed, and check that a job may start or continue in it.

        Raises:
            ConfigError: another version wrote it, or it has tables but no checkpoint.
            MusterError: it cannot be written.
        """
        self._make()
        try:
            self._claim(checkpoint, [*tables])
        except Py4JJavaError as error:
            raise MusterError(f"{self._folder} cannot be written: {_message(error)}") from None

    def _claim(self, checkpoint: str | None, tables: list[str]) -> None:
        begun = checkpoint is not None and self.exists(checkpoint)
        written = any(map(self.exists, tables))
        found = self._read_mark()
        if found is None and (begun or written):
            found = 0  # from before this file existed
        if found is not None and found != FORMAT:
            raise ConfigError(
                f"{self._folder} was written by {'an older' if found < FORMAT else 'a newer'} version of muster in "
                "another format: continue with that version, or start in another folder"
            )
        if checkpoint is not None and written and not begun:
            raise ConfigError(
                f"{self._folder} has tables, but not the checkpoint of the job that wrote them ({checkpoint}): "
                "starting over would write their rows again, so move the tables away, or name another folder"
            )
        if found is None:
            self.write(MARK, json.dumps({"format": FORMAT}))

    def _read_mark(self) -> int | None:
        try:
            return int(json.loads(self.read(MARK) or "")["format"])
        except (ValueError, KeyError, TypeError):
            return None  # the writer was killed

    def read(self, name: str) -> str | None:
        """The text of a small file; None if it does not exist."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readNBytes(1_000)).decode("utf-8", "replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small file, replacing an existing one."""
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


def _lock(held: int, folder: str) -> None:
    """Lock a folder for as long as it is open: a kill releases it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another job is writing to {folder}: wait until it ends, or name another folder") from None
    except OSError:
        pass  # NFS cannot lock folders


def _message(error: Py4JJavaError) -> str:
    """A Java exception's message, in one line."""
    cause = error.java_exception
    return str(cause.getMessage() or cause.getClass().getSimpleName()).strip().partition("\n")[0]
