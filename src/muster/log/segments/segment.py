"""One segment of a log: a `.log` file of batches, named by its first offset in 20 digits, and its indexes.

Reading
    A read returns views of a memory map, so that a fetch copies nothing. The file of the active segment grows beyond
    its map: a large read beyond it maps the file again; a small read, such as that of a consumer at the end of the log,
    is a plain `pread`. A map lives as long as views of it do. muster never cuts a mapped file shorter than its map:
    touching a lost page would raise SIGBUS and end the process. Bytes of a failed append, which are cut off again, were
    never mapped. But another process may cut the file, and a disk may fail. So before a view is given out, the file's
    size is checked, and the system is asked to load the pages: this request fails with an error instead of SIGBUS.

Writing
    Each append is one `write` at the end of the segment known here. Bytes that a failed write left are cut off, by the
    next append at the latest.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from muster.log.files import DISK, FileCutError, Files, OpenFile
from muster.log.segments.aborted_index import AbortedIndex
from muster.log.segments.index import OffsetIndex, TimeIndex
from muster.model import FileRange
from muster.protocol.records.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header

_COPY_LIMIT = 64 * 1024
FILE_RANGE_MIN_BYTES = 128 * 1024
"""A read of at least this size comes with its range of the file."""
_BATCHES_AT_A_TIME = 256
_TOUCH_LIMIT = 4 * 1024 * 1024
"""How much of a view is loaded first. The rest goes from the map to a socket, where a bad page is only an error."""

_PAGE = mmap.PAGESIZE
_MADV_POPULATE_READ = 22  # Linux 5.14
_BATCH_POSITION = struct.Struct(">qi11xi")
"""base_offset, batch_length, (epoch, magic, crc, attributes), last_offset_delta."""


def _may_stay_open(file: OpenFile) -> bool:
    """Whether a file may stay open while a consumer does not read. The system assigns the lowest free descriptor, so
    such files leave the upper half to connections and to the logs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most == resource.RLIM_INFINITY or file.fileno() < most // 2


def segment_name(offset: int, suffix: str) -> str:
    """A file's name as Kafka writes it: 20 digits, suffix."""
    return f"{offset:020d}{suffix}"


class Segment:
    """A segment whose size and end are known. `next_offset` follows its last batch; timestamps are in milliseconds."""

    __slots__ = (
        "_bytes_since_index",
        "_fd",
        "_map",
        "_torn",
        "_view",
        "aborted",
        "base_offset",
        "created_ms",
        "files",
        "first_timestamp",
        "index",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "path",
        "size",
        "time_index",
    )

    def __init__(self, directory: Path, base_offset: int, now: int, suffix: str = "", files: Files = DISK) -> None:
        self.files = files
        self.base_offset = base_offset
        self.path = directory / segment_name(base_offset, ".log" + suffix)
        self.index = OffsetIndex(directory / segment_name(base_offset, ".index"), files)
        self.time_index = TimeIndex(directory / segment_name(base_offset, ".timeindex"), files)
        self.aborted = AbortedIndex(directory / segment_name(base_offset, ".txnindex"), files)
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = -1
        self.first_timestamp = -1
        self.created_ms = now
        self._bytes_since_index = 0
        self._fd = -1
        self._torn = False
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    # ---------------------------------------------------------------------------------------------- writing

    def create(self) -> None:
        """Makes the file, empty. Raises OSError."""
        self._fd = self.files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open_for_append(self) -> None:
        """Opens the file, unless it is open. Raises OSError."""
        if self._fd < 0:
            self._fd = self.files.open(self.path, os.O_RDWR)

    def fileno(self) -> int:
        """The file's descriptor; the file must be open for appending."""
        return self._fd

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes `data` after the end; `note` then records it. Raises OSError; then none of it is kept. FileCutError:
        there would be a hole before it."""
        if self._fd < 0:
            self.open_for_append()
        self._check_size()
        if self._torn:
            self._cut_back()
        pwrite = self.files.pwrite
        try:
            written = pwrite(self._fd, data, self.size)
            while written < len(data):
                written += pwrite(self._fd, memoryview(data)[written:], self.size + written)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):
                self._cut_back()
            raise

    def _cut_back(self) -> None:
        """Removes the bytes that a failed write left after the end."""
        self.files.truncate(self._fd, self.size)
        self._torn = False

    def note(self, header: BatchHeader, index_interval_bytes: int) -> None:
        """Records the batch that was written at the end: size, times, and an index entry if one is due."""
        last_offset, latest = header.base_offset + header.last_offset_delta, header.max_timestamp
        if latest > self.max_timestamp:
            self.max_timestamp = latest
            self.offset_of_max_timestamp = last_offset
        if self.first_timestamp < 0:
            self.first_timestamp = latest
        size = header.batch_length + LOG_OVERHEAD
        if self._bytes_since_index > index_interval_bytes:
            self.index.append(last_offset - self.base_offset, self.size)
            self._note_time()
            self._bytes_since_index = 0
        self._bytes_since_index += size
        self.next_offset = last_offset + 1
        self.size += size

    def _note_time(self) -> None:
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def seal(self) -> None:
        """Finishes the indexes of a segment that takes no more batches."""
        self._note_time()

    def save_indexes(self, *, sync: bool) -> None:
        """Writes the indexes. With `sync`, `load` can tell after a power cut whether they are usable. Raises
        OSError."""
        replaces = self.index.path.exists()
        self.time_index.save(sync=sync)
        if (self.aborted.save(sync=sync) or replaces) and sync:
            # `load` looks for later times only after the last entry of the offset index. With a new offset index and
            # the time index of the last shutdown it would miss the times between them. And without an index of aborted
            # transactions it assumes that none was aborted.
            self.files.sync_folder(self.path.parent)
        self.index.save()

    def sync(self) -> None:
        """fsync, if the file is open for writing. Raises OSError, FileCutError."""
        if self._fd >= 0:
            self._check_size()
            self.files.sync(self._fd)

    def _check_size(self) -> None:
        # `size` is read before the file's end. In the other order, in a sync in another thread, an append could happen
        # in between, and the file would seem too short.
        written = self.size
        if os.lseek(self._fd, 0, os.SEEK_END) < written:
            raise self._cut_by_another()

    def _cut_by_another(self) -> FileCutError:
        return FileCutError(errno.EIO, f"the file is shorter than the {self.size} bytes written to it", str(self.path))

    def close_file(self) -> None:
        """Closes the file for writing; views and reads still work."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.files.close(fd)

    def close(self) -> None:
        """Closes the file and releases the map, which ends with the last view of it."""
        self.close_file()
        self._map = self._view = None

    def delete(self) -> None:
        """Removes the files. Views stay valid."""
        self.close()
        for path in (self.index.path, self.time_index.path, self.aborted.path, self.path):
            self.files.unlink_if_exists(path)

    # ---------------------------------------------------------------------------------------------- loading

    def load(self, end_hint: int | None = None) -> bool:
        """Loads a segment from its files after a clean shutdown, without reading more than its end.

        Returns False if that is impossible (no valid indexes, or a torn end): then it must be recovered."""
        self.size = self.path.stat().st_size
        if not self.index.load(self.size) or not self.time_index.load():
            return False
        if last := self.time_index.last():
            self.max_timestamp, self.offset_of_max_timestamp = last[0], self.base_offset + last[1]
        position = self.index.last_position()
        if not self.size:
            return self.aborted.load(self.base_offset, self.base_offset)
        end, header = position, None
        for end, header in self.headers(position):  # noqa: B007 - the last one is wanted
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        if header is None or end + header.size != self.size:
            return False
        self.next_offset = header.next_offset
        self.first_timestamp = read_header(self.view(0, HEADER_SIZE)).max_timestamp
        self._bytes_since_index = self.size - position
        sound = self.aborted.load(self.base_offset, self.next_offset)
        return sound and (end_hint is None or self.next_offset <= end_hint)

    def reset(self) -> None:
        """Forgets everything but the file, for recovery to note each batch again."""
        self.size = 0
        self.next_offset = self.base_offset
        self.max_timestamp = self.offset_of_max_timestamp = self.first_timestamp = -1
        self._bytes_since_index = 0
        self.index = OffsetIndex(self.index.path, self.files)
        self.time_index = TimeIndex(self.time_index.path, self.files)
        self.aborted = AbortedIndex(self.aborted.path, self.files)

    # ---------------------------------------------------------------------------------------------- reading

    def view(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, which must have been written. Raises OSError."""
        view = self._view
        if view is None or end > len(view):
            if end - start <= _COPY_LIMIT and self._fd >= 0:
                data = os.pread(self._fd, end - start, start)
                if len(data) < end - start:
                    raise self._cut_by_another()
                return memoryview(data)
            view = self._remap()
        self._populate(start, end)
        return view[start:end]

    def file_range(self, start: int, data: memoryview) -> FileRange | None:
        """The range of the file that a view beginning at `start` shows. None if the file cannot be opened again, or
        should not be: consumers that do not read keep their ranges open."""
        try:
            # Opened for each range: if kept open, it would be one more open file for every partition that was ever
            # read.
            file = OpenFile(os.dup(self._fd) if self._fd >= 0 else self.files.open(self.path, os.O_RDONLY), self.files)
        except OSError:
            return None
        return FileRange(file, start, data) if _may_stay_open(file) else None

    def _remap(self) -> memoryview:
        fd = self._fd if self._fd >= 0 else self.files.open(self.path, os.O_RDONLY)
        try:
            self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ)
        except ValueError:  # longer than the file
            raise self._cut_by_another() from None
        finally:
            if fd != self._fd:
                self.files.close(fd)
        self._view = memoryview(self._map)
        return self._view

    def _populate(self, start: int, end: int) -> None:
        """Makes sure that the pages can be read. Raises OSError."""
        assert self._map is not None
        if self._map.size() < end:
            raise self._cut_by_another()
        first = start - start % _PAGE
        try:
            self._map.madvise(_MADV_POPULATE_READ, first, min(end, start + _TOUCH_LIMIT) - first)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: an older system that does not support this
                raise OSError(errno.EIO, "the disk cannot read the file", str(self.path)) from None

    @property
    def is_mapped(self) -> bool:
        """Whether reads no longer need the file."""
        return self._view is not None and len(self._view) >= self.size

    def map_whole(self) -> None:
        """Maps a segment that no longer grows."""
        if self.size and not self.is_mapped:
            self._remap()

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each complete batch from `position` on; stops at a torn end."""
        end = self.size if end is None else end
        window, start = memoryview(b""), position
        while end - position >= HEADER_SIZE:
            if position + HEADER_SIZE > start + len(window):
                start, window = position, self.view(position, min(end, position + _PAGE))
            header = read_header(window, position - start)
            size = header.batch_length + LOG_OVERHEAD
            if position + size > end:
                return
            yield position, header
            position += size

    def position_of(self, offset: int) -> int:
        """The position of the first batch whose last offset is not below `offset`; `size` if there is none."""
        return self.next_batch(self.index.position_before(offset - self.base_offset), offset)

    def next_batch(self, position: int, offset: int) -> int:
        """Like `position_of`, searching from a position at which a batch is known to begin."""
        size, window, start = self.size, memoryview(b""), position
        while position < size:
            if position + HEADER_SIZE > start + len(window):
                start, window = position, self.view(position, min(size, position + _COPY_LIMIT))
            base, length, delta = _BATCH_POSITION.unpack_from(window, position - start)
            if base + delta >= offset:
                return position
            position += length + LOG_OVERHEAD
        return size

    def end_of_read(self, position: int, max_bytes: int, limit: int) -> int:
        """The end of the last complete batch within `max_bytes` from `position` and not beyond `limit`; `position` if
        none fits."""
        wanted = position + max_bytes
        if wanted >= limit:
            return limit
        end = max(position, self.index.last_position_until(wanted))
        window, start = memoryview(b""), end
        while end < limit:
            if end + LOG_OVERHEAD > start + len(window):
                start, window = end, self.view(end, min(self.size, end + 4096))
            following = end + int.from_bytes(window[end - start + 8 : end - start + 12], "big") + LOG_OVERHEAD
            if following > wanted:
                break
            end = following
        return end

    def batch_size(self, position: int) -> int:
        """The size in bytes of the batch that begins at `position`."""
        return int.from_bytes(self.view(position + 8, position + 12), "big") + LOG_OVERHEAD

    def position_before_time(self, timestamp: int, start_offset: int) -> int:
        """The position from which to search for the first record from `start_offset` on not earlier than
        `timestamp`."""
        return self.index.position_before(
            max(self.time_index.offset_before(timestamp), start_offset - self.base_offset)
        )

    def batch_for_timestamp(
        self, position: int, end: int, timestamp: int, start_offset: int
    ) -> tuple[memoryview | None, int]:
        """The next batch before `end` that may hold such a record, and its end. Only a few batches from `position` on
        are searched; if it is not among them, None and the end of the last one."""
        stop = position
        for start, header in islice(self.headers(position, end), _BATCHES_AT_A_TIME):
            stop = start + header.size
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                return self.view(start, stop), stop
        return None, stop
