"""The results of a log's operations."""

from __future__ import annotations

from typing import NamedTuple

from muster.errors import ErrorCode
from muster.log.segments.segment import Segment
from muster.model import FileRange


class AppendResult(NamedTuple):
    """The offsets of an append. `log_append_time` (milliseconds) is -1 with CreateTime. A duplicate of an idempotent
    producer was not written again, and has the offsets of the first write."""

    base_offset: int
    last_offset: int
    log_append_time: int
    duplicate: bool


class MarkerResult(NamedTuple):
    """The result of writing a marker: where it is and how many bytes it takes, or why it was refused."""

    error: ErrorCode
    base_offset: int = -1
    size: int = 0
    message: str = ""


class ReadResult(NamedTuple):
    """Complete batches, perhaps none. The first may begin before the offset that was asked for. The view stays valid as
    long as it is referred to; `next_offset` is where to continue reading. For a large read, `file_range` says where in
    the file the bytes are. `aborted` has producer id and first offset of each aborted transaction among them; None for
    READ_UNCOMMITTED."""

    data: memoryview
    next_offset: int
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    file_range: FileRange | None = None
    aborted: list[tuple[int, int]] | None = None


class Traffic:
    """The traffic of a log since this process opened it. The log counts writes, its users the rest, with plain
    additions: this runs for every record."""

    __slots__ = ("appends", "bytes_in", "bytes_out", "reads", "records_in", "refused_appends", "refused_reads")

    def __init__(self) -> None:
        self.appends = self.records_in = self.bytes_in = self.refused_appends = 0
        self.reads = self.bytes_out = self.refused_reads = 0

    def add(self, other: Traffic) -> None:
        """Add another log's traffic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Sealed(NamedTuple):
    """A sealed segment, and the snapshot of the producers when it was sealed."""

    segment: Segment
    snapshot_offset: int
    snapshot: bytes
