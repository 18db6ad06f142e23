"""A broker's folder as a source of the history: Kafka's or muster's data directory, a partition's, or copied files.

Nothing is written or locked; see segments.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from muster.arrow import Decoder
from muster.errors import MusterError
from muster.history.sources import segments
from muster.history.sources.raw_records import DECODER_COLUMNS, OFFSETS_TOPIC, to_raw
from muster.history.sources.reader_warnings import ReaderWarnings

_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})\Z")
_SEGMENT = re.compile(r"(?P<base>[0-9]{20})\.log\Z")


class NotALogError(MusterError):
    """A folder that has no log of the topic."""


class FolderTopic:
    """The partitions of one topic in a folder, or in several folders of one broker."""

    def __init__(self, paths: Sequence[Path], topic: str, warnings: ReaderWarnings) -> None:
        """Raises NotALogError, OSError."""
        self._topic = topic
        self._warnings = warnings
        files: dict[int, list[Path]] = {}
        self.is_named = False
        """Whether a folder's name identifies it as a partition of the topic; copied files may be anything."""
        for path in paths:
            named = _named(path, topic)
            self.is_named |= bool(named)
            for partition, found in (named or _copied(path, topic)).items():
                if partition in files:
                    warnings.add(f"partition {partition} of {topic} was found more than once; {path} is left out")
                else:
                    files[partition] = found
        self._plans = {partition: segments.plan_log(_in_order(found), warnings) for partition, found in files.items()}

    @property
    def records(self) -> dict[int, int]:
        """How many records each partition has."""
        return {partition: plan.records for partition, plan in sorted(self._plans.items())}

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """One partition's records, in order of offset, as batches of schema RAW."""
        decoder = Decoder(self._topic, partition, DECODER_COLUMNS)
        for batch in segments.read(self._plans[partition], decoder, self._warnings):
            yield to_raw(batch, partition)


def missing(paths: Sequence[Path], topic: str) -> NotALogError:
    """The error for folders without a log."""
    names = ", ".join(map(str, paths))
    return NotALogError(
        f"no log of {topic} in {names}: give a broker's data directory, a folder {topic}-N, or a folder with .log files"
    )


def partition_files(paths: Iterable[Path], topic: str) -> dict[int, list[Path]]:
    """The segment files of each partition folder of a topic, by offset. If several folders have a partition, the first
    one counts.

    Raises:
        OSError: a folder cannot be read.
    """
    found: dict[int, list[Path]] = {}
    for path in paths:
        for partition, files in _named(path, topic).items():
            found.setdefault(partition, _in_order(files))
    return found


def _named(path: Path, topic: str) -> dict[int, list[Path]]:
    """The log files of each partition folder of the topic: this folder, or those in it."""
    if path.is_file():
        own = _partition_of(path.parent, topic)
        return {} if own is None else {own: [path]}
    entries = sorted(path.iterdir())
    own = _partition_of(path, topic)
    if own is not None:
        return {own: [entry for entry in entries if _is_log(entry)]}
    found: dict[int, list[Path]] = {}
    for entry in entries:
        partition = _partition_of(entry, topic)
        if partition is not None and entry.is_dir():
            found[partition] = [file for file in entry.iterdir() if _is_log(file)]
    return found


def _copied(path: Path, topic: str) -> dict[int, list[Path]]:
    """Files that were copied to a folder with another name, unless that is the name of another partition."""
    folder = path.parent if path.is_file() else path
    if topic != OFFSETS_TOPIC or _PARTITION.match(folder.resolve().name):
        return {}
    files = [path] if path.is_file() else [entry for entry in sorted(path.iterdir()) if _is_log(entry)]
    return {0: files} if files else {}


def _partition_of(path: Path, topic: str) -> int | None:
    match = _PARTITION.match(Path(os.path.realpath(path)).name)  # resolve() fails on a link to itself
    return int(match["partition"]) if match is not None and match["topic"] == topic else None


def _is_log(path: Path) -> bool:
    return path.suffix == ".log" and path.is_file()


def _in_order(files: list[Path]) -> list[Path]:
    """Segments by first offset, from their name, or from their content if copies were renamed."""

    def order(path: Path) -> tuple[int, str]:
        match = _SEGMENT.match(path.name)
        return (int(match["base"]) if match else _first_offset(path)), path.name

    return sorted(files, key=order)


def _first_offset(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return int.from_bytes(file.read(8), "big", signed=True)
    except OSError:
        return 0  # reading it will report the error
