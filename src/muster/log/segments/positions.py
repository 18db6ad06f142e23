"""Finds the position of an offset in the segments, and remembers the offsets that consumers will ask for next."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from muster.log.segments.segment import Segment

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
        """The offset after the batch that ends at `end`; remembered, as a consumer will ask for it next."""
        # The next batch's base is larger than the last offset + 1 only where compaction left a gap.
        last = end == segment.size
        next_offset = segment.next_offset if last else int.from_bytes(segment.view(end, end + 8), "big")
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[next_offset] = (segment, end)
        return next_offset


def readable(segment: Segment, segments: tuple[Segment, ...]) -> Segment:
    """Map a sealed segment once before it is read: by the next time its file may be closed, or deleted."""
    if segment is not segments[-1]:
        segment.map_whole()
    return segment


def position_of_end(segment: Segment, offset: int) -> int:
    """The position in a segment at which batches that reach `offset` begin."""
    return segment.size if segment.next_offset <= offset else segment.position_of(offset)
