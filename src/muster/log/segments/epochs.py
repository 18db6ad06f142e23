"""Which records of a log were written under which leader epoch, read from the batches themselves.

Each batch carries the epoch of the leader that wrote it, and epochs never decrease from one batch to the next. So the
end of an epoch is found by bisection: over the segments, then over the index of one. Kafka keeps a list of epochs in a
file; muster has none, so none can differ from the log after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from muster.log.segments.positions import readable
from muster.log.segments.segment import Segment
from muster.protocol.records.record_batch import HEADER_SIZE, read_header


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
