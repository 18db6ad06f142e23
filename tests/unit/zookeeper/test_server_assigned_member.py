"""The rules of a member of scheme 2: each answer in each state, time, races."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.client.core.sends import Channel, Failure, FailureKind
from muster.errors import CommitFailedError, ErrorCode, KafkaError, KafkaTimeoutError, MusterError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol import messages as m
from muster.protocol.draft_api import DRAFT_REQUESTS
from muster.protocol.draft_messages import DraftAssignedTopic, DraftJoinGroupRequest, DraftJoinGroupResponse
from muster.zookeeper.server_assigned.offsets import MemberOfGeneration
from muster.zookeeper.server_assigned.states import (
    COORDINATOR_TRANSITIONS,
    TRANSITIONS,
    CoordinatorState,
    ServerAssignedEvent,
    ServerAssignedState,
)
from tests.support.draft_solo import P0, P1, SESSION_MS, Solo, any_answer
from tests.support.draft_world import GROUP, TOPIC, refused
from tests.support.scale import examples

S, E = ServerAssignedState, ErrorCode


# --- joining ------------------------------------------------------------------------------------------------------


def test_a_member_joins_reads_after_the_committed_offsets_and_heartbeats() -> None:
    solo = Solo().begin()
    join = solo.request(DraftJoinGroupRequest)
    assert (join.group_id, join.consumer_id, join.topics) == (GROUP, "", [TOPIC])
    assert (join.session_timeout, join.partition_assignment_strategy) == (SESSION_MS, "range")
    solo.given(0, 1)
    assert solo.state is S.STABLE
    assert solo.fetched == {P0: 7, P1: None}
    assert solo.member.standing == MemberOfGeneration(1, "m")
    assert not solo.asks(m.HeartbeatRequest)
    solo.turn(3_000)
    beat = solo.request(m.HeartbeatRequest)
    assert (beat.group_id, beat.generation_id, beat.member_id) == (GROUP, 1, "m")
    assert solo.beat(E.NONE).state is S.STABLE


def test_a_member_without_partitions_is_idle_and_stays_a_member() -> None:
    solo = Solo().begin().given()
    assert solo.state is S.STABLE
    assert solo.fetched == {}
    assert not solo.asks(m.OffsetFetchRequest)
    assert solo.turn(3_000).asks(m.HeartbeatRequest)


def test_it_asks_another_server_after_each_failure_and_waits_in_between() -> None:
    solo = Solo()
    solo.finds_coordinator = False
    solo.begin()
    seen = []
    for failure in (
        Failure(FailureKind.UNREACHABLE, "away"),
        m.FindCoordinatorResponse(error_code=E.COORDINATOR_NOT_AVAILABLE, node_id=-1, port=-1),
        m.FindCoordinatorResponse(node_id=-1, host="", port=-1),
        Failure(FailureKind.TIMEOUT, "frozen"),
    ):
        seen.append(solo.find(m.FindCoordinatorRequest).node_id)
        solo.answer(m.FindCoordinatorRequest, failure)
        assert solo.member.search.state is CoordinatorState.UNKNOWN
        assert not solo.asks(m.FindCoordinatorRequest)
        due = solo.member.next_deadline(solo.now)
        assert due is not None
        solo.turn(due - solo.now)
    assert seen in ([-2, -3, -2, -3], [-3, -2, -3, -2])
    assert solo.errors == []


def test_an_answer_that_stays_is_reported_and_the_next_poll_tries_again() -> None:
    solo = Solo()
    solo.finds_coordinator = False
    solo.begin()
    denied = m.FindCoordinatorResponse(error_code=E.GROUP_AUTHORIZATION_FAILED, node_id=-1, port=-1)
    solo.answer(m.FindCoordinatorRequest, denied)
    assert solo.state is S.FAILED
    assert [error.code for error in solo.errors if isinstance(error, KafkaError)] == [E.GROUP_AUTHORIZATION_FAILED]
    solo.turn(60_000)
    assert not solo.waiting
    solo.begin().turn(60_000)
    assert solo.asks(m.FindCoordinatorRequest)


# --- every answer in every state -------------------------------------------------------------------------------------

RETRIED = (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.NETWORK_EXCEPTION)
LOSE = (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)


def expected_of_join(code: ErrorCode) -> ServerAssignedState:
    if code is E.NONE:
        return S.STABLE
    again = code.retriable or code in (E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS, E.UNKNOWN_MEMBER_ID)
    return S.JOINING if again else S.FAILED


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not E.NONE])
def test_every_answer_to_a_join(code: ErrorCode) -> None:
    solo = Solo().begin().given(0, member_id="m")
    solo.beat(E.ILLEGAL_GENERATION)
    if solo.asks(m.OffsetCommitRequest):
        solo.answer_commit(E.NONE)
    assert solo.request(DraftJoinGroupRequest).consumer_id == "m"
    solo.finds_coordinator = False
    solo.answer(DraftJoinGroupRequest, DraftJoinGroupResponse(code, -1, "m"))
    assert solo.state is expected_of_join(code)
    assert (solo.member.search.node_id is None) is (code in LOSE)
    assert bool(solo.errors) is (solo.state is S.FAILED)
    if solo.state is S.JOINING:
        assert not solo.asks(DraftJoinGroupRequest), "not without a back-off"
        solo.finds_coordinator = True
        solo.turn(2_000)
        while solo.asks(m.FindCoordinatorRequest):
            solo.turn(2_000)
        known = "" if code is E.UNKNOWN_MEMBER_ID else "m"
        assert solo.request(DraftJoinGroupRequest).consumer_id == known


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_answer_to_a_heartbeat(code: ErrorCode) -> None:
    solo = Solo().stable()
    solo.positions = {P0: 9, P1: 3}
    solo.finds_coordinator = False
    solo.beat(code)
    if code in (E.ILLEGAL_GENERATION, E.REBALANCE_IN_PROGRESS):
        expected = S.RELEASING
    elif code is E.UNKNOWN_MEMBER_ID:
        expected = S.JOINING
    else:
        expected = S.STABLE if code is E.NONE or code.retriable else S.FAILED
    assert solo.state is expected
    assert (solo.fetched is None) is (expected is not S.STABLE), "who is told of a rebalance stops fetching"
    assert solo.asks(m.OffsetCommitRequest) is (expected is S.RELEASING)
    assert solo.asks(DraftJoinGroupRequest) is (code is E.UNKNOWN_MEMBER_ID)
    assert (solo.member.search.node_id is None) is (code in LOSE)
    assert bool(solo.errors) is (expected is S.FAILED)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_answer_to_the_commit_before_a_join(code: ErrorCode) -> None:
    solo = Solo().releasing()
    commit = solo.request(m.OffsetCommitRequest)
    assert (commit.generation_id_or_member_epoch, commit.member_id) == (1, "m")
    assert [(p.partition_index, p.committed_offset) for p in commit.topics[0].partitions] == [(0, 9), (1, 3)]
    solo.answer_commit(code)
    again = code in (E.COORDINATOR_LOAD_IN_PROGRESS, *LOSE, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID)
    again = again or code in (E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION)
    assert solo.state is (S.RELEASING if again else S.JOINING)
    if not again:
        expected = "" if code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID) else "m"
        assert solo.request(DraftJoinGroupRequest).consumer_id == expected
    else:
        solo.turn(1_300)
        assert solo.asks(m.OffsetCommitRequest)
        solo.turn(SESSION_MS)
        assert solo.state is S.JOINING, "the others do not wait forever"
        assert solo.request(DraftJoinGroupRequest).consumer_id == "m"
    assert not solo.errors


@pytest.mark.parametrize("code", [E.COORDINATOR_LOAD_IN_PROGRESS, *LOSE, E.GROUP_AUTHORIZATION_FAILED])
def test_answers_to_the_look_up_of_offsets(code: ErrorCode) -> None:
    solo = Solo()
    solo.finds_offsets = False
    solo.stable()
    solo.answer(m.OffsetFetchRequest, refused(solo.request(m.OffsetFetchRequest), code))
    assert solo.fetched is None
    if code is E.GROUP_AUTHORIZATION_FAILED:
        assert solo.state is S.FAILED
        return
    solo.turn(2_000)
    solo.finds_offsets = True
    assert solo.turn().fetched == {P0: 7, P1: None}


# --- a rebalance -----------------------------------------------------------------------------------------------------


def test_a_rebalance_commits_then_joins_with_the_same_id() -> None:
    solo = Solo().releasing()
    assert solo.state is S.RELEASING
    assert not solo.asks(DraftJoinGroupRequest)
    solo.answer_commit(E.NONE)
    assert solo.request(DraftJoinGroupRequest).consumer_id == "m"
    solo.committed = {P1: 3}
    solo.given(1, generation=2)
    assert solo.fetched == {P1: 3}
    assert solo.member.standing == MemberOfGeneration(2, "m")


def test_what_is_committed_already_is_not_committed_before_the_join() -> None:
    solo = Solo().stable()
    solo.positions = {P0: 7}
    solo.beat(E.ILLEGAL_GENERATION)
    assert not solo.asks(m.OffsetCommitRequest)
    assert solo.asks(DraftJoinGroupRequest)


def test_without_auto_commit_nothing_is_committed() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    solo.positions = {P0: 9}
    solo.turn(60_000)
    assert not solo.asks(m.OffsetCommitRequest)
    solo.beat(E.ILLEGAL_GENERATION)
    assert solo.asks(DraftJoinGroupRequest)
    assert not solo.asks(m.OffsetCommitRequest)


def test_a_commit_of_the_user_that_waits_goes_before_the_join() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    outcomes: list[MusterError | None] = []
    solo.member.commit({P0: 8}, lambda error, _: outcomes.append(error), solo.now + 60_000)
    solo.turn()
    solo.turn(3_000).beat(E.ILLEGAL_GENERATION)
    assert solo.state is S.RELEASING
    solo.answer_commit(E.NONE)
    assert outcomes == [None]
    assert solo.asks(DraftJoinGroupRequest)


def test_a_commit_is_refused_when_the_partitions_are_given_up() -> None:
    solo = Solo().stable()
    outcomes: list[MusterError | None] = []

    def commit(positions: dict[TopicPartition, int]) -> None:
        solo.member.commit(positions, lambda error, _: outcomes.append(error), solo.now + 60_000)
        solo.turn()

    commit({TopicPartition("other", 0): 1})
    assert len(outcomes) == 1, "the coordinator would grant it"
    assert not solo.asks(m.OffsetCommitRequest)
    commit({P0: 8})
    solo.answer_commit(E.UNKNOWN_MEMBER_ID)
    assert solo.state is S.JOINING
    commit({})
    assert [type(error) for error in outcomes] == [CommitFailedError] * 3


def test_a_commit_has_its_time() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    outcomes: list[MusterError | None] = []
    solo.member.commit({P0: 8}, lambda error, _: outcomes.append(error), solo.now + 1_000)
    solo.turn()
    assert solo.member.next_deadline(solo.now) == solo.now + 1_000
    solo.turn(1_000)
    assert [type(error) for error in outcomes] == [KafkaTimeoutError]
    solo.answer_commit(E.NONE)
    assert len(outcomes) == 1


def test_two_commits_travel_one_after_the_other() -> None:
    solo = Solo(enable_auto_commit=False).stable()
    outcomes: list[MusterError | None] = []
    for offset in (8, 9):
        solo.member.commit({P0: offset}, lambda error, _: outcomes.append(error), solo.now + 60_000)
    solo.turn()
    assert [send.request_type for send in solo.waiting] == [m.OffsetCommitRequest]
    assert solo.request(m.OffsetCommitRequest).topics[0].partitions[0].committed_offset == 8
    solo.answer_commit(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert not solo.asks(m.OffsetCommitRequest), "the second does not overtake the first"
    solo.turn(1_300)
    assert solo.request(m.OffsetCommitRequest).topics[0].partitions[0].committed_offset == 8
    solo.answer_commit(E.NONE).answer_commit(E.NONE)
    assert outcomes == [None, None]


def test_auto_commits_come_at_their_interval_and_one_at_a_time() -> None:
    solo = Solo(heartbeat_interval_ms=9_999).stable()
    solo.positions = {P0: 9}
    solo.turn(4_999)
    assert not solo.asks(m.OffsetCommitRequest)
    solo.turn(1)
    assert solo.request(m.OffsetCommitRequest).topics[0].partitions[0].committed_offset == 9
    solo.positions = {P0: 12}
    solo.turn(4_998)
    solo.answer_commit(E.NONE)
    assert not solo.asks(m.OffsetCommitRequest)
    solo.turn(2)
    assert solo.request(m.OffsetCommitRequest).topics[0].partitions[0].committed_offset == 12
    solo.answer_commit(E.NONE)
    solo.turn(20_000)
    assert not solo.asks(m.OffsetCommitRequest), "nothing has moved"


def test_the_commit_before_a_join_has_half_a_session() -> None:
    """The coordinator waits for a whole one, and then continues without the member."""
    solo = Solo().releasing()
    solo.turn(SESSION_MS // 2 - 1)
    assert not solo.asks(DraftJoinGroupRequest)
    assert solo.member.next_deadline(solo.now) == solo.now + 1
    solo.turn(1)
    assert solo.asks(DraftJoinGroupRequest)


# --- losing the coordinator ------------------------------------------------------------------------------------------


def test_a_member_without_a_coordinator_stays_one_and_heartbeats_at_the_next() -> None:
    solo = Solo().stable()
    solo.turn(3_000)
    solo.finds_coordinator = False
    solo.fail(m.HeartbeatRequest)
    assert solo.disconnected == [5]
    assert solo.state is S.STABLE
    assert solo.fetched == {P0: 7, P1: None}, "it reads on"
    solo.turn(10 * SESSION_MS)
    solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=6, host="d", port=9))
    assert solo.find(m.HeartbeatRequest).node_id == 6, "at once, with a whole session timeout"
    assert solo.request(m.HeartbeatRequest).generation_id == 1
    assert solo.beat(E.NONE).state is S.STABLE
    assert not solo.asks(DraftJoinGroupRequest)


def test_the_next_coordinator_gets_a_heartbeat_at_once_though_none_is_due() -> None:
    """The coordinator has loaded the member, and counts its session from then on."""
    solo = Solo().stable()
    solo.beat(E.NONE).turn(3_000)
    solo.finds_coordinator = False
    solo.fail(m.HeartbeatRequest).turn(1)
    solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=6, host="d", port=9))
    assert solo.find(m.HeartbeatRequest).node_id == 6


def test_no_good_heartbeat_for_the_session_timeout_loses_the_coordinator() -> None:
    solo = Solo().stable()
    solo.turn(3_000)
    solo.finds_coordinator = False
    solo.turn(SESSION_MS - 3_001)
    assert solo.coordinator() == 5
    solo.turn(1)
    assert solo.coordinator() is None
    assert solo.asks(m.FindCoordinatorRequest)
    assert solo.state is S.STABLE
    solo.answer(m.HeartbeatRequest, m.HeartbeatResponse(error_code=E.UNKNOWN_MEMBER_ID))
    assert solo.state is S.STABLE, "an answer of the coordinator that is lost is void"


def test_a_join_that_is_parked_at_a_lost_coordinator_is_sent_again_and_its_answer_is_void() -> None:
    solo = Solo().begin()
    parked = solo.find(DraftJoinGroupRequest)
    solo.turn(SESSION_MS)  # it asks whether the coordinator is still the same
    assert not solo.disconnected
    solo.finds_coordinator = False
    solo.turn(SESSION_MS)
    solo.answer(m.FindCoordinatorRequest, m.FindCoordinatorResponse(node_id=6, host="d", port=9))
    assert solo.disconnected == [5]
    later = [send for send in solo.waiting if send.request_type is DraftJoinGroupRequest and send is not parked]
    assert [send.node_id for send in later] == [6]
    parked.on_reply(DraftJoinGroupResponse(0, 9, "ghost", [DraftAssignedTopic(TOPIC, [0])]), solo.now)
    assert solo.turn().state is S.JOINING


def test_offsets_of_an_earlier_look_up_set_nothing_back() -> None:
    solo = Solo()
    solo.finds_offsets = False
    solo.stable()
    early = solo.find(m.OffsetFetchRequest)
    solo.waiting.remove(early)
    solo.beat(E.ILLEGAL_GENERATION)
    solo.given(0, 1)  # the same assignment of the same generation again
    solo.finds_offsets = True
    solo.turn()
    solo.positions = {P0: 50}
    found = [m.OffsetFetchResponsePartition(number, 7) for number in (0, 1)]
    early.on_reply(m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(TOPIC, found)]), solo.now)
    assert solo.turn().positions == {P0: 50}


# --- leaving ---------------------------------------------------------------------------------------------------------


def test_a_member_commits_what_is_handled_and_leaves() -> None:
    solo = Solo().stable()
    solo.positions = {P0: 9}
    left: list[bool] = []
    solo.member.leave(solo.now, solo.now + 1_000, lambda: left.append(True))
    solo.turn()
    assert solo.state is S.CLOSED
    assert not solo.asks(m.LeaveGroupRequest)
    solo.answer_commit(E.NONE)
    leave = solo.request(m.LeaveGroupRequest)
    assert (leave.group_id, leave.member_id) == (GROUP, "m")
    assert not left
    solo.answer(m.LeaveGroupRequest, m.LeaveGroupResponse())
    assert left == [True]


@pytest.mark.parametrize("where", ["outside", "joining", "commits are not answered", "leaving is not answered"])
def test_leaving_takes_no_longer_than_it_may(where: str) -> None:
    solo = Solo()
    if where == "joining":
        solo.begin()
    elif where != "outside":
        solo.stable()
        solo.positions = {P0: 9} if where.startswith("commits") else {}
    left: list[bool] = []
    solo.member.leave(solo.now, solo.now + 1_000, lambda: left.append(True))
    solo.turn()
    assert bool(left) is (where in ("outside", "joining"))
    solo.turn(1_000)
    assert left == [True]


def test_a_member_that_waits_in_a_join_leaves_by_another_connection() -> None:
    solo = Solo().releasing().answer_commit(E.NONE)
    assert solo.find(DraftJoinGroupRequest).channel is Channel.COORDINATOR
    solo.member.leave(solo.now, solo.now + 1_000, lambda: None)
    solo.turn()
    assert solo.find(m.LeaveGroupRequest).channel is Channel.DATA


# --- any answers -----------------------------------------------------------------------------------------------------

CODES = st.sampled_from(
    [E.NONE, E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, *RETRIED, E.REBALANCE_IN_PROGRESS, E.INVALID_SESSION_TIMEOUT]
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 5), CODES, st.integers(0, 12_000)), max_size=60))
def test_whatever_is_answered_the_member_asks_on_and_owns_only_while_it_is_in(
    story: list[tuple[int, ErrorCode, int]],
) -> None:
    solo = Solo()
    solo.finds_coordinator = solo.finds_offsets = False
    solo.begin()
    generation = 0
    for which, code, after in story:
        if solo.waiting:
            send = solo.waiting[which % len(solo.waiting)]
            generation += 1
            solo.tell(send, any_answer(solo, send, code, generation))
        solo.turn(after)
        if solo.state is S.FAILED:
            solo.begin()
        assert (solo.fetched is not None) <= (solo.state is S.STABLE)
        assert bool(solo.member.partitions) <= (solo.state in (S.STABLE, S.RELEASING))
        parked = [send for send in solo.waiting if send.request_type is DraftJoinGroupRequest and send.node_id == 5]
        assert solo.waiting or solo.member.next_deadline(solo.now) is not None, "it would never ask again"
        assert len(parked) <= len(story)
    solo.finds_coordinator = solo.finds_offsets = True
    for _ in range(20):  # everything is fine again
        for send in list(solo.waiting):
            solo.tell(send, any_answer(solo, send, E.NONE, generation))
        solo.turn(3_000)
    assert solo.state is S.STABLE
    assert solo.fetched == {P0: 7, P1: None}


# --- the tables ------------------------------------------------------------------------------------------------------


def test_every_state_is_reached_and_left_but_the_last() -> None:
    reached = {S.OUTSIDE, *TRANSITIONS.values()}
    assert reached == set(S)
    assert {state for state, _ in TRANSITIONS} == set(S)
    assert {happening for _, happening in TRANSITIONS} == set(ServerAssignedEvent)
    assert {state for state, _ in COORDINATOR_TRANSITIONS} == set(CoordinatorState)
    assert set(COORDINATOR_TRANSITIONS.values()) == set(CoordinatorState)


def test_only_what_the_drafts_had_is_sent() -> None:
    assert set(DRAFT_REQUESTS.values()) == {
        m.OffsetCommitRequest,
        m.OffsetFetchRequest,
        m.FindCoordinatorRequest,
        DraftJoinGroupRequest,
        m.HeartbeatRequest,
        m.LeaveGroupRequest,
    }


def test_a_look_up_of_the_user_gets_its_answer() -> None:
    solo = Solo().stable()
    found: list[Any] = []
    solo.member.offsets.fetch([P0, P1], lambda answer, _: found.append(answer), solo.now + 1_000)
    solo.turn()
    assert found == [{P0: OffsetAndMetadata(7, -1, ""), P1: None}]
