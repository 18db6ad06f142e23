"""C8: requests that cannot be answered yet wait until their condition is met or their time is over."""

from __future__ import annotations

from muster.coordinator.groups.effects import ExpiryKind, MemberExpired
from muster.coordinator.groups.group import GroupState
from muster.errors import ErrorCode
from tests.support.group_harness import GroupHarness


def expired(group: GroupHarness) -> list[ExpiryKind]:
    return [event.kind for event in group.events_of(MemberExpired)]


def test_a_delayed_join_completes_when_all_have_come(group: GroupHarness) -> None:
    """C8, and C4: the first to join creates it, and there is only one."""
    group.stable_with("a", "b", "c").join("a")
    made = group.group.join_deadline
    group.tick(1_000).join("b")
    assert group.group.join_deadline == made
    assert group.waits("a")
    assert group.waits("b")
    group.join("c")
    assert [group.joined(name)[0] for name in ("a", "b", "c")] == [2, 2, 2]
    assert expired(group) == []


def test_a_delayed_join_expires(group: GroupHarness) -> None:
    """C8: at the rebalance timeout it completes with the members that have joined. (The missing one has kept sending
    heartbeats.)"""
    group.stable_with("a", "b", session_timeout_ms=300_000).join("a", session_timeout_ms=300_000)
    group.tick(group.rebalance_timeout_ms - 1)
    assert group.waits("a")
    group.tick(1)
    assert group.joined("a") == (2, "a", ["a"])
    assert expired(group) == [ExpiryKind.REJOIN]


def test_a_sync_waits_for_the_leaders(group: GroupHarness) -> None:
    """C8: until the leader's SyncGroup comes, or another rebalance."""
    group.stable_with("a", "b").join("a").join("b").sync("b")
    assert group.waits("b")
    group.sync("a", {"b": b"share"})
    assert group.share("b") == b"share"
    group.join("a").join("b").sync("b")
    group.join("c")
    assert group.error("b") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_delayed_heartbeat_is_completed_by_the_next_and_else_expires(group: GroupHarness) -> None:
    """C8, H1: each heartbeat moves the deadline; when it passes, the member is removed from the group."""
    group.stable_with("a")
    for _ in range(3):
        group.tick(group.session_timeout_ms - 1)
        assert group.heartbeat("a") is ErrorCode.NONE
    group.tick(group.session_timeout_ms)
    assert expired(group) == [ExpiryKind.SESSION]
    assert group.state is GroupState.EMPTY


def test_nothing_that_waits_outlives_its_shard(group: GroupHarness) -> None:
    """C8, C3: a join, a sync, and every request is answered."""
    group.stable_with("a", "b").join("a").join("b").sync("b")
    group._take(group.shard.unload(ErrorCode.NOT_COORDINATOR))
    assert group.error("b") is ErrorCode.NOT_COORDINATOR
    assert group.open_tickets == set()
