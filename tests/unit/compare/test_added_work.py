"""The work of members in a step: of everything they ever did, the part that was added."""

from __future__ import annotations

from muster.compare.rules.results import Work
from muster.compare.trial import _added


def test_only_what_was_added_in_a_step_is_counted() -> None:
    before = {"m1": Work(3, 4, 1, {"JoinGroup": 3}), "m2": Work(1, 1, 0, {})}
    after = {"m1": Work(4, 6, 1, {"JoinGroup": 4}), "m2": Work(1, 1, 0, {}), "m3": Work(1, 1, 0, {"JoinGroup": 2})}
    assert _added(before, after) == Work(2, 3, 0, {"JoinGroup": 3})
    assert _added(after, after) == Work()


def test_requests_that_come_with_time_are_none_of_a_change() -> None:
    requests = {"JoinGroup": 2, "SyncGroup": 2, "LeaveGroup": 1}
    steady = {"Heartbeat": 50, "OffsetCommit": 7, "OffsetFetch": 3, "FindCoordinator": 1}
    assert Work(requests={**requests, **steady}).joins == 5
