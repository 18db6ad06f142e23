"""The two sparse indexes of a segment, in Kafka's file layout (big-endian entries, without a header).

`.index`      (offset - base offset) int32, position int32: the last offset of a batch, and where in the `.log` the
              batch begins. One entry for about each `index_interval_bytes` of log.
`.timeindex`  timestamp int64, (offset - base offset) int32: the largest timestamp up to that offset, and the last
              offset of the first batch that has it. Timestamps rise strictly from entry to entry.

In memory an index is a pair of arrays, searched by bisection. `save` writes it whole, when the segment is sealed or the
log closed. So a file is complete as of one moment, or missing; code that loads a segment from it must know that nothing
has been appended since.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path

from muster.log.files import DISK, Files, put_whole

_TIME_ENTRY = struct.Struct(">qi")
_OFFSET_ENTRY_SIZE = 8


class OffsetIndex:
    """Offset to position."""

    __slots__ = ("_files", "_offsets", "_positions", "path")

    def __init__(self, path: Path, files: Files = DISK) -> None:
        self.path = path
        self._files = files
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def load(self, segment_size: int) -> bool:
        """Reads the file. Returns False, and the index is empty, if it is missing or cannot fit a segment of that
        size."""
        data = read_file(self.path)
        if data is None or len(data) % _OFFSET_ENTRY_SIZE:
            return False
        entries = array("i", data)
        if sys.byteorder == "little":
            entries.byteswap()
        offsets, positions = entries[0::2], entries[1::2]
        if not _rises(offsets) or not _rises(positions) or (positions and positions[-1] >= segment_size):
            return False
        self._offsets, self._positions = offsets, positions
        return True

    def append(self, relative_offset: int, position: int) -> None:
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def position_before(self, relative_offset: int) -> int:
        """The position of a batch at or before the one that holds the offset; 0 if the index has no better entry."""
        slot = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

    def last_position_until(self, position: int) -> int:
        """The last indexed position of a batch at or before `position`."""
        slot = bisect_right(self._positions, position) - 1
        return self._positions[slot] if slot >= 0 else 0

    def last_position_up_to(self, most: int, value_at: Callable[[int], int]) -> int:
        """The last indexed position whose `value_at` is at most `most`, 0 if there is none; values never fall."""
        slot = bisect_right(self._positions, most, key=value_at) - 1
        return self._positions[slot] if slot >= 0 else 0

    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def save(self) -> None:
        """Writes the file. It need not be synced: a file torn by a power cut is out of order, or its last entry does
        not lead to the segment's end; and missing entries only cost time. Raises OSError."""
        entries = array("i", bytes(_OFFSET_ENTRY_SIZE * len(self._offsets)))
        entries[0::2], entries[1::2] = self._offsets, self._positions
        if sys.byteorder == "little":
            entries.byteswap()
        put_whole(self._files, self.path, entries.tobytes(), sync=False)


class TimeIndex:
    """Timestamp to offset."""

    __slots__ = ("_files", "_offsets", "_timestamps", "path")

    def __init__(self, path: Path, files: Files = DISK) -> None:
        self.path = path
        self._files = files
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def load(self) -> bool:
        """Reads the file. Returns False, and the index is empty, if it is missing or out of order."""
        data = read_file(self.path)
        if data is None or len(data) % _TIME_ENTRY.size:
            return False
        timestamps, offsets = array("q"), array("i")
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            offsets.append(offset)
        if not _rises(timestamps) or not _rises(offsets):
            return False
        self._timestamps, self._offsets = timestamps, offsets
        return True

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry if its timestamp is larger than the last (Kafka's maybeAppend)."""
        if timestamp >= 0 and (not self._timestamps or timestamp > self._timestamps[-1]):
            self._timestamps.append(timestamp)
            self._offsets.append(relative_offset)

    def last(self) -> tuple[int, int] | None:
        """The last entry: timestamp, relative offset."""
        return (self._timestamps[-1], self._offsets[-1]) if self._offsets else None

    def offset_before(self, timestamp: int) -> int:
        """A relative offset before which no record is as late as `timestamp`."""
        slot = bisect_left(self._timestamps, timestamp)
        if slot < len(self._timestamps) and self._timestamps[slot] == timestamp:
            return self._offsets[slot]
        return self._offsets[slot - 1] if slot else 0

    def save(self, *, sync: bool) -> None:
        """Writes the file. A file that lost its last entries looks like a complete one, so it must be synced before it
        is trusted. Raises OSError."""
        data = b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._offsets))
        put_whole(self._files, self.path, data, sync=sync)


def read_file(path: Path) -> bytes | None:
    """The contents of an index, None if they cannot be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:  # missing, or unreadable: the index is rebuilt
        return None


def _rises(values: array[int]) -> bool:
    """Whether each value is larger than the one before and none is negative."""
    return all(map(int.__lt__, values, values[1:])) and not (values and values[0] < 0)
