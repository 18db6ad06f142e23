"""Converting the times in records between the rules' clock and the time of day."""

import pytest

from muster.coordinator.groups.wall_time import shifted
from muster.coordinator.shards.clocks import TOLERATED_MS, shift_between
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, OffsetCommits
from muster.protocol.messages import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue

LATEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("time", "by", "moved"),
    [(-1, 1000, -1), (-1, -1000, -1), (5, 1000, 1005), (1005, -1000, 5), (5, -1000, 0), (LATEST - 1, 1000, LATEST)],
)
def test_times_of_a_record_move_and_what_is_no_time_stays(time, by, moved):
    """A time that is not set stays unset after a step, and no time leaves the range of its field."""
    key = OffsetCommitKey("g", "t", 3)
    value = OffsetCommitValue(7, 2, "m", time, time, b"i" * 16)
    assert shifted(OffsetCommitRecord(key, value), by) == OffsetCommitRecord(
        key, OffsetCommitValue(7, 2, "m", moved, moved, b"i" * 16)
    )
    commits = OffsetCommits("g", "t", [(3, (7, 2, "m", time, time, b"i" * 16)), (4, (7, 2, "", time, -1, b"i" * 16))])
    assert shifted(commits, by) == OffsetCommits(
        "g", "t", [(3, (7, 2, "m", moved, moved, b"i" * 16)), (4, (7, 2, "", moved, -1, b"i" * 16))]
    )
    group = GroupMetadataRecord(GroupMetadataKey("g"), GroupMetadataValue("consumer", 4, current_state_timestamp=time))
    expected = GroupMetadataValue("consumer", 4, current_state_timestamp=moved)
    assert shifted(group, by) == GroupMetadataRecord(GroupMetadataKey("g"), expected)


@pytest.mark.parametrize("ahead", [0, 1, -1, TOLERATED_MS - 1, 1 - TOLERATED_MS])
def test_clocks_that_differ_by_little_are_one(ahead):
    assert shift_between(10_000, 10_000 + ahead) == 0


@pytest.mark.parametrize("ahead", [TOLERATED_MS, -TOLERATED_MS, 3_600_000])
def test_clocks_that_differ_by_more_are_two(ahead):
    assert shift_between(10_000, 10_000 + ahead) == ahead
