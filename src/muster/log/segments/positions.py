"""Lookups across the segments of a log: the position of an offset, and where the records of a leader epoch end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from muster.log.segments.segment import Segment
from muster.protocol.records.record_batch import HEADER_SIZE, read_header

_REMEMBERED = 64


class Positions:
    """The positions of one log. They are cleared when segments are replaced or deleted."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Segment, int]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def find(self, segments: tuple[Segment, ...], offset: int) -> tuple[Segment, int] | None:
        """Segment and position of the first batch whose last offset is not below `offset`. Compaction leaves gaps, so
        that may be in a later segment. Raises OSError."""
        if (known := self._known.get(offset)) and known[1] < known[0].size:
            return known
        at = max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)
        for segment in segments[at:]:
            position = readable(segment, segments).position_of(offset)
            if position < segment.size:
                return segment, position
        return None

    def offset_at(self, segment: Segment, end: int) -> int:
        """The offset after the batch that ends at `end`; remembered, because a consumer will request it next."""
        # The next batch's base is larger than the last offset + 1 only where compaction left a gap.
        last = end == segment.size
        next_offset = segment.next_offset if last else int.from_bytes(segment.view(end, end + 8), "big")
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[next_offset] = (segment, end)
        return next_offset


def readable(segment: Segment, segments: tuple[Segment, ...]) -> Segment:
    """Map a sealed segment once before it is read: its file may be closed or deleted before the next read."""
    if segment is not segments[-1]:
        segment.map_whole()
    return segment


def position_of_end(segment: Segment, offset: int) -> int:
    """The position of the first batch in a segment whose last offset is not below `offset`; its end if there is
    none."""
    return segment.size if segment.next_offset <= offset else segment.position_of(offset)


# ------------------------------------------------------------------------------------------------------- leader epochs
# Each batch carries the epoch of the leader that wrote it, and epochs never decrease from one batch to the next. So the
# end of an epoch is found by bisection: over the segments, then over the index of one segment. Kafka keeps a list of
# epochs in a file; muster has no such file, so it cannot differ from the log after a crash.


def end_of_epoch(segments: tuple[Segment, ...], epoch: int) -> tuple[int | None, int | None]:
    """The last epoch up to `epoch` that has a batch, and the first offset of the first batch of a later epoch; each
    None if there is none. Raises OSError."""
    filled: Sequence[Segment] = [readable(segment, segments) for segment in segments if segment.size]
    later = bisect_right(filled, epoch, key=_first_epoch)
    last = None
    if later:
        segment = filled[later - 1]
        start = segment.index.last_position_up_to(epoch, lambda position: _header(segment, position)[0])
        for _, header in segment.headers(start):
            if header.partition_leader_epoch > epoch:
                return last, header.base_offset
            last = header.partition_leader_epoch
    return last, _header(filled[later], 0)[1] if later < len(filled) else None


def _first_epoch(segment: Segment) -> int:
    return _header(segment, 0)[0]


def _header(segment: Segment, position: int) -> tuple[int, int]:
    """Epoch and first offset of the batch at a position."""
    header = read_header(segment.view(position, position + HEADER_SIZE))
    return header.partition_leader_epoch, header.base_offset
