"""When a segment is full, when it is due for deletion, and when compaction is due: rules without files."""

from __future__ import annotations

from collections.abc import Sequence

from muster.log.config import MAX_OFFSETS_OF_A_SEGMENT, NO_LIMIT, LogConfig
from muster.log.segments.segment import Segment
from muster.protocol.records.record_batch import BatchHeader


def is_full(active: Segment, size: int, placed: Sequence[BatchHeader], config: LogConfig, now: int) -> bool:
    """Whether batches of `size` bytes begin the next segment, by Kafka's rules for size, age and offsets."""
    latest = placed[0].max_timestamp if len(placed) == 1 else max(header.max_timestamp for header in placed)
    waited = latest - active.first_timestamp if active.first_timestamp >= 0 else now - active.created_ms
    return active.size > 0 and (
        active.size + size > config.segment_bytes
        or waited > config.max_segment_ms
        or placed[-1].last_offset - active.base_offset > MAX_OFFSETS_OF_A_SEGMENT
    )


def deletable(
    segments: Sequence[Segment], config: LogConfig, now: int, start: int, high_watermark: int, end: int
) -> int:
    """How many of the oldest segments may be deleted: those before the log's `start` and, if the policy deletes, those
    beyond the retention by time or size. Never a segment that reaches beyond `high_watermark`."""
    count = 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    limited = config.retention_bytes != NO_LIMIT
    # A segment ends where the next begins, not with its last batch: compaction may have left none, and consumers may
    # still have positions there.
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    for segment, segment_end in zip(segments, ends, strict=False):
        excess -= segment.size
        too_old = 0 <= config.retention_ms < now - _latest(segment)
        unwanted = config.cleanup_policy.deletes and (too_old or (limited and excess >= 0))
        if segment_end > start and not unwanted:
            break
        if segment_end > high_watermark or (segment is segments[-1] and not segment.size):
            break
        count += 1
    return count


def _latest(segment: Segment) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms


def is_dirty(sealed: Sequence[Segment], config: LogConfig, cleaned_to: int, now: int) -> bool:
    """Whether the uncompacted share of the sealed segments is as large as the settings require, or one of those
    segments has waited for as long as the settings allow (KIP-354; its age is that of its first batch)."""
    total = sum(segment.size for segment in sealed)
    dirty = [segment for segment in sealed if segment.next_offset > cleaned_to]
    size = sum(segment.size for segment in dirty)
    begun = (segment.first_timestamp for segment in dirty if segment.first_timestamp > 0)
    late = min(begun, default=now) < now - config.max_compaction_lag_ms
    return size > 0 and (late or size >= config.min_cleanable_dirty_ratio * total)
