"""From files to segments: after a clean shutdown by their indexes, after a crash by reading every batch.

What a crash can leave, and what is done about it:
- a torn or corrupt batch at the end: the segment is cut behind the last good batch, later segments are deleted;
- indexes that are missing, old or cut off: built again while the batches are read;
- `.cleaned` files of a compaction that did not finish: deleted, the old segments are still there;
- a `.swap` file: compaction was done and only the exchange was interrupted; it is finished (see compaction.py);
- a producer snapshot that is torn or from behind the new end: ignored, the state is built from older ones and the log.
"""

from __future__ import annotations

import logging
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import CorruptRecordError
from muster.log import compaction
from muster.log.config import LogConfig
from muster.log.files import DISK, Files
from muster.log.producer_state import CorruptSnapshotError, ProducerState
from muster.log.segment import Segment, segment_name
from muster.protocol.record_batch import check_batch, read_header

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """What a partition's folder holds."""

    segments: list[Segment] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)


def load(
    directory: Path,
    config: LogConfig,
    *,
    now: int,
    clean: bool,
    recovery_point: int,
    sync: bool,
    files: Files = DISK,
) -> Loaded:
    """Segments and producers of the partition in `directory`, which need not exist. Segments that end before
    `recovery_point` were synced before the crash and are believed like those of a clean shutdown. With `sync` the
    others are synced now: a killed process may have left them in the system's memory only. Raises OSError."""
    loaded = Loaded()
    names = _names(directory)
    if not names:
        return loaded
    compaction.finish_swaps(files, directory, names)
    names = _names(directory)
    bases = sorted(_offset(name) for name in names if name.endswith(".log"))
    for at, base in enumerate(bases):
        segment = Segment(directory, base, now, files=files)
        segment.created_ms = int(segment.path.stat().st_mtime * 1000)
        is_last = at + 1 == len(bases)
        end = None if is_last else bases[at + 1]
        believed = clean or (end is not None and end <= recovery_point)
        loaded.segments.append(segment)
        if believed and _load(segment, end):
            continue
        whole = recover(segment, config, sync=sync)
        if not whole:
            _delete_from(files, directory, bases[at + 1 :], now)
            break
        if not is_last:
            segment.seal()
    _delete_strays(files, directory, names, {segment.base_offset for segment in loaded.segments})
    _load_producers(files, directory, loaded)
    return loaded


def _load(segment: Segment, end: int | None) -> bool:
    try:
        return segment.load(end)
    except CorruptRecordError:
        return False


def recover(segment: Segment, config: LogConfig, *, sync: bool = False) -> bool:
    """Reads the whole segment, builds its indexes and cuts it behind the last good batch. False if it was cut."""
    file_size = segment.path.stat().st_size
    segment.reset()
    problem = None
    if file_size:
        with open(segment.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                _note_all(segment, view, config)
            except CorruptRecordError as error:
                problem = str(error)
            finally:
                view.release()
    if segment.size != file_size:
        logger.warning("%s: cut from %d to %d bytes: %s", segment.path, file_size, segment.size, problem)
        segment.truncate_file()
    if sync:
        segment.open_for_append()
        segment.sync()
        segment.close_file()
    return segment.size == file_size


def _note_all(segment: Segment, view: memoryview, config: LogConfig) -> None:
    while segment.size < len(view):
        header = read_header(view, segment.size)
        check_batch(view, segment.size, header)
        if header.base_offset < segment.next_offset:
            raise CorruptRecordError(f"offset {header.base_offset} follows {segment.next_offset - 1}")
        segment.note(header, config.index_interval_bytes)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _offset(name: str) -> int:
    return int(name[:20])


def _delete_from(files: Files, directory: Path, bases: list[int], now: int) -> None:
    for base in bases:
        logger.warning("%s: deleted, because the segment before it was cut", directory / segment_name(base, ".log"))
        Segment(directory, base, now, files=files).delete()


def _delete_strays(files: Files, directory: Path, names: list[str], bases: set[int]) -> None:
    """Indexes without a segment, and what was being written when the process died."""
    for name in names:
        is_index = name.endswith((".index", ".timeindex"))
        if name.endswith((".tmp", ".deleted")) or (is_index and _offset(name) not in bases):
            files.unlink_if_there(directory / name)


def _load_producers(files: Files, directory: Path, loaded: Loaded) -> None:
    if not loaded.segments:
        return
    end = loaded.segments[-1].next_offset
    start = 0
    snapshots = sorted((_offset(name) for name in _names(directory) if name.endswith(".snapshot")), reverse=True)
    for offset in snapshots:
        path = directory / segment_name(offset, ".snapshot")
        try:
            if offset <= end:
                loaded.producers = ProducerState.decode(path.read_bytes())
                start = offset
                break
        except CorruptSnapshotError as error:
            logger.warning("%s: %s", path, error)
        files.unlink(path)
    for segment in loaded.segments:
        if segment.next_offset <= start or not segment.size:
            continue
        for _, header in segment.headers(segment.position_of(start)):
            if header.producer_id >= 0:
                loaded.producers.note(header)
