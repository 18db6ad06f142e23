"""Records in the log carry the wall-clock time; the rules use a monotonic clock.

A monotonic clock is never set, so no member expires because the wall clock was corrected. Times are shifted when a
record is written to the log, and back when it is read; `clocks.shift_between` says by how much.
"""

from __future__ import annotations

from muster.coordinator.shards.clocks import shift_time
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, OffsetCommits, Written
from muster.protocol.messages import GroupMetadataValue, OffsetCommitValue


def shifted(record: Written, by: int) -> Written:
    """The record with its times shifted by `by` ms; unset times stay unset."""
    if not by:
        return record
    if isinstance(record, OffsetCommits):
        values = [
            (partition, (offset, epoch, metadata, shift_time(at, by), shift_time(expires, by), topic_id))
            for partition, (offset, epoch, metadata, at, expires, topic_id) in record.values
        ]
        return OffsetCommits(record.group, record.topic, values)
    if isinstance(record, OffsetCommitRecord) and record.value is not None:
        return OffsetCommitRecord(record.key, _shifted_commit(record.value, by))
    if isinstance(record, GroupMetadataRecord) and record.value is not None:
        old = record.value
        fields = {name: getattr(old, name) for name in GroupMetadataValue.__slots__}
        fields["current_state_timestamp"] = shift_time(old.current_state_timestamp, by)
        return GroupMetadataRecord(record.key, GroupMetadataValue(**fields))
    return record


def _shifted_commit(value: OffsetCommitValue, by: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        value.offset,
        value.leader_epoch,
        value.metadata,
        shift_time(value.commit_timestamp, by),
        shift_time(value.expire_timestamp, by),
        value.topic_id,
    )
