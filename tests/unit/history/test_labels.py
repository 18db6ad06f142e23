"""The causes in a broker's events, each translated to the history's vocabulary: from the coordinator's own rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.coordinator.groups.effects import EventCause as Said
from muster.history.model import Cause
from muster.history.rules.event_rebalances import MOVED_WITHIN_MS, Label, by_group, labels
from muster.model import TopicPartition
from muster.protocol.subscription import Subscription, encode_subscription
from tests.support.told_group import Reported

LONG: dict[str, Any] = {"session_timeout_ms": 300_000}


@pytest.fixture
def group() -> Reported:
    group = Reported()
    group.stable_with("a", "b")
    return group


def reads(*topics: str, owns: tuple[int, ...] = ()) -> dict[str, bytes]:
    return {"range": encode_subscription(Subscription(list(topics), [TopicPartition("t", number) for number in owns]))}


def settled(group: Reported) -> Label:
    """The last rebalance, after all remaining members have joined again."""
    for name in group.members:
        group.join(name)
    group.sync_all()
    return group.labels[-1]


def test_the_first_members_start_it(group: Reported) -> None:
    (first,) = group.labels
    assert (first.cause, first.others, first.generation, first.members) == (Cause.STARTED, (Cause.JOINED,), 1, 2)
    assert (first.finished_ms or 0) - first.started_ms == 6_000
    assert (first.group, first.member, first.client_id) == ("g", "a-1", "client-a")
    assert [event["event"] for event in first.events] == [
        "MemberJoined",
        "RebalanceStarted",
        "MemberJoined",
        "RebalanceCompleted",
    ]


def test_one_more_joins(group: Reported) -> None:
    group.join("c", reason="more work")
    found = settled(group)
    assert (found.cause, found.others, found.generation, found.members) == (Cause.JOINED, (), 2, 3)
    assert "more work" in (found.reason or "")


@pytest.mark.parametrize(("instance", "sure"), [(None, True), ("i2", False)])
def test_one_that_expires_may_have_been_too_slow_if_it_has_an_instance_id(instance: str | None, sure: bool) -> None:
    """A client with an instance id does not leave when it is too slow: it stops its heartbeats (KIP-345)."""
    group = Reported()
    group.join("a", **LONG).join("b", instance=instance)
    group.tick(10_000).sync_all().tick(group.session_timeout_ms + 1)
    found = settled(group)
    assert (found.cause, found.is_sure) == (Cause.SESSION_EXPIRED, sure)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("the consumer is being closed", Cause.LEFT),
        (None, Cause.LEFT),
        ("consumer poll timeout has expired.", Cause.POLL_INTERVAL_EXCEEDED),
    ],
)
def test_one_leaves_and_may_say_why(group: Reported, reason: str | None, cause: Cause) -> None:
    group.leave("b", reason=reason)
    found = settled(group)
    assert (found.cause, found.others, found.members) == (cause, (), 1)
    assert found.is_sure == (reason is not None)
    assert found.member == group.ids["b"]
    assert reason is None or found.reason == reason


def test_the_last_one_leaves_and_the_group_starts_again(group: Reported) -> None:
    group.leave("a").leave("b", reason="consumer poll timeout has expired.")
    group.join("c").tick(3_000).sync_leader()
    _, emptied, again = group.labels
    # The second member left while the first one's rebalance waited for it.
    assert (emptied.cause, emptied.others) == (Cause.LEFT, (Cause.POLL_INTERVAL_EXCEEDED,))
    assert (emptied.members, again.cause, again.generation) == (0, Cause.STARTED, 3)


def test_a_member_that_does_not_join_in_time_is_slow(group: Reported) -> None:
    """It sends heartbeats, so its process lives; its handler takes longer than its poll interval."""
    group.join("a", **LONG).join("b", **LONG).sync_all()
    group.join("c", **LONG).join("a", **LONG).tick(60_000)
    found = settled(group)
    assert (found.cause, found.others) == (Cause.JOINED, (Cause.POLL_INTERVAL_EXCEEDED,))


def expires(group: Reported) -> None:
    group.tick(9_000).heartbeat("a")
    group.tick(1_000)


def more_partitions(group: Reported) -> None:
    group.topics.partitions["t"] = 6
    group.join("a")


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (expires, Cause.SESSION_EXPIRED),
        # b-1 does not send SyncGroup
        (lambda group: group.join("a", **LONG).join("b", **LONG).sync("a").tick(60_000), Cause.SESSION_EXPIRED),
        (lambda group: group.join("b", protocols=reads("t", "u")), Cause.SUBSCRIPTION_CHANGED),
        (more_partitions, Cause.PARTITIONS_ADDED),
        # a leader that notices them before its coordinator
        (lambda group: group.join("a", reason="cached metadata has changed: t"), Cause.PARTITIONS_ADDED),
        (lambda group: group.join("a"), Cause.LEADER_REJOINED),
    ],
)
def test_what_begins_a_rebalance(group: Reported, act: Callable[[Reported], object], cause: Cause) -> None:
    act(group)
    found = settled(group)
    assert (found.cause, found.others) == (cause, ())


def test_the_second_phase_of_a_cooperative_rebalance_has_the_cause_of_the_first() -> None:
    group = Reported()
    group.join("a", protocols=reads("t", owns=(0, 1, 2, 3))).tick(3_000).sync_leader()
    group.join("b", protocols=reads("t")).join("a", protocols=reads("t", owns=(0, 1, 2, 3))).sync_all()
    group.join("a", protocols=reads("t", owns=(0, 1))).join("b", protocols=reads("t")).sync_all()
    assert [(each.cause, each.phase) for each in group.labels] == [
        (Cause.STARTED, 1),
        (Cause.JOINED, 1),
        (Cause.JOINED, 2),
    ]


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    group = Reported()
    group.join("a", instance="i").tick(3_000).sync_leader()
    group.join("again", instance="i")
    group.leave("again").join("c").tick(3_000).sync_leader()
    assert [(each.cause, each.rebalanced, each.generation) for each in group.labels] == [
        (Cause.STARTED, True, 1),
        (Cause.STATIC_MEMBER_REPLACED, False, 1),
        (Cause.LEFT, True, 2),
        (Cause.STARTED, True, 3),
    ]


def test_a_static_member_comes_back_with_other_protocols() -> None:
    group = Reported()
    group.join("a", instance="i", protocols={"range": b"", "sticky": b""}).tick(3_000).sync_leader()
    group.join("again", instance="i", protocols={"sticky": b""})
    group.sync_leader()
    found = group.labels[-1]
    assert (found.cause, found.rebalanced, found.generation) == (Cause.STATIC_MEMBER_REPLACED, True, 2)


def test_the_coordinator_moves(group: Reported) -> None:
    """A group that continues has no rebalance; members that rejoin soon after the move do so because of it."""
    group.moved_to(2)
    moved = group.labels[-1]
    assert (moved.cause, moved.rebalanced, moved.generation) == (Cause.COORDINATOR_MOVED, False, 1)
    group.join("a")
    found = settled(group)
    assert (found.cause, found.others) == (Cause.COORDINATOR_MOVED, (Cause.LEADER_REJOINED,))


def test_what_happens_after_the_coordinator_has_moved_has_its_own_cause(group: Reported) -> None:
    group.moved_to(2).join("c")
    found = settled(group)
    assert (found.cause, found.others) == (Cause.JOINED, (Cause.COORDINATOR_MOVED,))
    group.moved_to(3)
    for _ in range(MOVED_WITHIN_MS // 5_000 + 1):
        group.tick(5_000)
        for name in group.members:
            group.heartbeat(name)
    group.join("a")
    assert settled(group).cause is Cause.LEADER_REJOINED


def test_a_coordinator_that_dies_in_a_rebalance(group: Reported) -> None:
    """The group continues with its generation; its members rejoin, and the cause is the one that began the
    rebalance."""
    group.join("c")
    group.moved_to(2).join("a").join("b").sync_all()
    found = group.labels[-1]
    assert (found.cause, found.generation) == (Cause.JOINED, 2)
    assert found.others == (Cause.COORDINATOR_MOVED, Cause.LEADER_REJOINED)


def test_one_that_is_not_done_is_reported_last(group: Reported) -> None:
    group.join("c")
    found = group.labels[-1]
    assert (found.cause, found.generation, found.finished_ms) == (Cause.JOINED, None, None)


def test_a_rebalance_that_begins_again_is_one(group: Reported) -> None:
    """Generations that never became stable are not in the records either."""
    group.join("c").join("a").join("b")
    group.join("d").join("a").join("b").join("c").sync_all()
    found = group.labels[-1]
    assert (found.cause, found.others, found.generation) == (Cause.JOINED, (), 3)


def test_every_cause_of_the_coordinator_is_known() -> None:
    """Except those that have no name here: about limits, an operator's settings, partitions without leaders."""
    nameless = {Said.OVER_CAPACITY, Said.TOO_LARGE, Said.LEADERS_LOST, Said.TOPIC_DELETED, Said.ASSIGNER_CHANGED}
    start = {"v": 1, "event": "RebalanceStarted", "at_ms": 1, "group_id": "g", "state": "Stable"}
    found = {said: labels([{**start, "cause": said.value}])[0].cause for said in Said}
    assert {said for said, cause in found.items() if cause is Cause.NOT_KNOWN} == nameless


def test_values_of_others_are_skipped_and_groups_distinguished(group: Reported) -> None:
    mixed: list[Any] = [None, 5, {"v": 2, "event": "?", "group_id": "g"}, {"group_id": "g"}]
    for event in reversed(group.written):  # of several partitions
        mixed += [event, {**event, "group_id": "h"}]
    found = by_group(mixed)
    assert sorted(found) == ["g", "h"]
    assert [each.cause for each in found["h"]] == [Cause.STARTED]
