"""What a log answers with, and the notes it makes of itself."""

from __future__ import annotations

from typing import NamedTuple

from muster.log.segment import Segment


class AppendResult(NamedTuple):
    """Where an append went. `log_append_time` (milliseconds) is -1 with CreateTime. A duplicate of an idempotent
    producer was not written again and has the offsets of the first time."""

    base_offset: int
    last_offset: int
    log_append_time: int
    duplicate: bool


class ReadResult(NamedTuple):
    """Whole batches, perhaps none. The first may begin before the offset that was asked for. The view stays valid
    for as long as somebody holds it; `next_offset` is where to read on."""

    data: memoryview
    next_offset: int
    high_watermark: int
    log_start_offset: int


class Sealed(NamedTuple):
    """A segment that takes no more batches, and the snapshot of the producers as they were then."""

    segment: Segment
    snapshot_offset: int
    snapshot: bytes
