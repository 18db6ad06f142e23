"""Commits and lookups of a member of scheme 2, if answers are late, or do not match the request."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.core.sends import FailureKind
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError, MusterError
from muster.protocol import messages as m
from muster.zookeeper.server_assigned.states import ServerAssignedState
from tests.support.draft_solo import P0, P1, Solo
from tests.support.draft_world import TOPIC

E = ErrorCode


def committing(solo: Solo) -> list[MusterError | None]:
    outcomes: list[MusterError | None] = []
    solo.member.commit({P0: 8}, lambda error, _: outcomes.append(error), solo.now + 60_000)
    solo.turn()
    return outcomes


@pytest.mark.parametrize("kind", [m.OffsetCommitRequest, m.OffsetFetchRequest])
def test_a_request_to_a_former_coordinator_that_fails_late_loses_no_other(kind: type[Any]) -> None:
    solo = Solo(enable_auto_commit=False).stable()
    solo.finds_offsets = False
    committing(solo)
    solo.member.offsets.fetch([P0], lambda found, now: None)
    solo.turn()
    solo.finds_coordinator = False
    solo.beat(E.NOT_COORDINATOR)
    solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=6, host="d", port=9))
    assert solo.coordinator() == 6
    assert solo.find(kind).node_id == 5
    solo.fail(kind, FailureKind.DISCONNECTED)
    assert solo.coordinator() == 6


def test_a_partition_that_the_answer_does_not_name_is_not_committed() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    outcomes = committing(solo)
    solo.answer(m.OffsetCommitRequest, m.OffsetCommitResponse(topics=[]))
    assert [error.code for error in outcomes if isinstance(error, KafkaError)] == [E.UNKNOWN_SERVER_ERROR]


def test_nothing_is_read_before_all_offsets_are_known() -> None:
    """One partition's offset has arrived, the other's has not: starting without it would skip or repeat records."""
    solo = Solo()
    solo.finds_offsets = False
    solo.stable()
    found = [m.OffsetFetchResponsePartition(0, 7), m.OffsetFetchResponsePartition(1, -1)]
    found[1].error_code = E.COORDINATOR_LOAD_IN_PROGRESS
    solo.answer(m.OffsetFetchRequest, m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(TOPIC, found)]))
    assert solo.fetched is None
    assert not solo.asks(m.OffsetFetchRequest), "not without a back-off"
    solo.finds_offsets = True
    solo.turn(2_000)
    assert solo.fetched == {P0: 7, P1: None}


def test_a_commit_that_is_refused_for_now_is_sent_again_after_a_back_off() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    outcomes = committing(solo)
    solo.answer_commit(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert not solo.asks(m.OffsetCommitRequest)
    due = solo.member.offsets.next_deadline(solo.now)
    assert due is not None
    assert due > solo.now
    solo.turn(due - solo.now).answer_commit(E.NONE)
    assert outcomes == [None]


def test_a_look_up_of_the_user_has_its_time() -> None:
    solo = Solo()
    solo.stable()
    solo.finds_offsets = False
    found: list[Any] = []
    solo.member.offsets.fetch([P0], lambda outcome, now: found.append(outcome), solo.now + 1_000)
    solo.turn()
    assert solo.member.next_deadline(solo.now) == solo.now + 1_000
    solo.turn(999)
    assert found == []
    solo.turn(1)
    assert [type(outcome) for outcome in found] == [KafkaTimeoutError]


def test_a_member_that_leaves_learns_when_it_must_look_again() -> None:
    """The coordinator does not answer the LeaveGroup: only its timeout ends it."""
    solo = Solo(enable_auto_commit=False).stable()
    left: list[int] = []
    solo.member.leave(solo.now, solo.now + 700, lambda: left.append(solo.now))
    solo.turn()
    assert solo.asks(m.LeaveGroupRequest)
    assert solo.state is ServerAssignedState.CLOSED
    assert solo.member.next_deadline(solo.now) == solo.now + 700
    solo.turn(700)
    assert left == [solo.now]


# --- the coordinator -------------------------------------------------------------------------------------------------


def test_a_coordinator_that_came_back_at_another_address_is_another_one() -> None:
    solo = Solo().stable()
    solo.finds_coordinator = False
    solo.member.search.check()
    solo.turn()
    solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=5, host="elsewhere", port=1))
    assert solo.disconnected == [5]
    assert (solo.coordinator(), solo.member.nodes.brokers[5].host) == (5, "elsewhere")


def test_a_coordinator_that_refuses_again_and_again_is_looked_for_with_pauses() -> None:
    solo = Solo().stable()
    solo.finds_coordinator = False
    for round_ in range(3):
        solo.beat(E.NOT_COORDINATOR)
        assert solo.asks(m.FindCoordinatorRequest) is (round_ == 0), "at once after the first loss only"
        solo.turn(10_000)
        solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=5, host="c", port=9))
    solo.beat(E.NONE)
    solo.beat(E.NOT_COORDINATOR)
    assert solo.asks(m.FindCoordinatorRequest), "a successful response was in between"
