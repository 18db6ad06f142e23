"""Hand-written histories that records describe only in part: the cause with low confidence, and the alternatives; and
patterns over several rebalances that were first found in recordings made by someone who did not know the rules.
"""

from __future__ import annotations

import pytest

from muster.history.model import Cause, How, Pattern, Rebalance
from tests.support.group_log import GroupLog, M
from tests.unit.history.test_causes import (
    ALL_A,
    A,
    B,
    P,
    S,
    dies,
    dies_848,
    epochs,
    handles_for_too_long,
    last,
    running,
)

C = M("c-1", "t:4-5")
P_SHORT = 90_000
SILENT = {Cause.LEFT, Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED}


def causes_of(row: Rebalance) -> set[Cause]:
    return {row.cause, *(each.cause for each in row.alternatives)}


# ------------------------------------------------------------------------------------------------ silence proves little


def goes_long_after_the_topic_came_to_rest() -> GroupLog:
    return running(A, B).wait(P + 60_000).generation(2, [ALL_A])


def handles_for_too_long_alone() -> GroupLog:
    return running(ALL_A).wait(P).generation(2, [])


def stands_still_long_after_the_topic_did() -> GroupLog:
    """An eager member that stays commits once more as it rejoins: the same offsets as before."""
    log = running(A.with_(poll_ms=P_SHORT), B.with_(poll_ms=P_SHORT)).wait(P_SHORT - 500).commit("t:0-1", by=0)
    return log.wait(500).generation(2, [ALL_A])


def leaves_to_one_that_commits_all_it_has() -> GroupLog:
    """Some clients commit at each interval, whether they have handled anything or not."""
    log = dies()
    for _ in range(20):
        log.wait(3_000).commit("t:0-1").commit("t:2-3", by=0)
    return log


def closes_at_rest_848() -> GroupLog:
    """Not long after its last commit, and too late for that to have been its last act; the other one never had a
    record."""
    log = GroupLog().member(A).member(B).epoch(1).target(1, [A, B]).standing(1, A, B).commits("t:2-3", 80_000)
    return log.wait(S - 3_500).gone(B).epoch(2).target(2, [ALL_A])


def dies_between_transactions() -> GroupLog:
    return running(A, B).commits("t:0-1", S - 1_500).generation(2, [ALL_A])


def silent_for_almost_a_session_since_a_transaction() -> GroupLog:
    return commits_as(How.TRANSACTIONAL, A, B).commits("t:0-1", S - 9_000).generation(2, [ALL_A])


def commits_each_minute() -> GroupLog:
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [A, B])
    return log.commits("t:0-3", 300_000, every=60_000).wait(50_000).generation(2, [ALL_A])


def dies_before_its_first_commit() -> GroupLog:
    log = running(A, B).wait(1_000).commit("t:0-3").generation(2, [ALL_A]).commits("t:0-3", 20_000)
    return log.generation(3, [A, B.with_(id="b-2")]).commits("t:0-1", S + 1_000).generation(4, [ALL_A])


def dies_as_the_topic_grows() -> GroupLog:
    return running(A, B).commits("t:0-1", S + 1_000).generation(2, [ALL_A.with_(has="t:0-5")])


def one_of_three_is_lost_with_the_coordinator() -> GroupLog:
    log = running(A, B, C).wait(4_000)
    log.leader_epoch += 1
    return log.commit("t:0-1 t:4-5").commits("t:0-1 t:4-5", S + 500).generation(2, [ALL_A, C])


def static_member_goes_almost_a_session_after_its_leave() -> GroupLog:
    b = B.with_(instance="i2")
    log = epochs(A, b).wait(1_000).commit("t:2-3").standing(-2, b)
    return log.commits("t:0-1", S - 2_000).gone(b).epoch(2).target(2, [ALL_A])


@pytest.mark.parametrize(
    ("life", "cause", "most", "others"),
    [
        (goes_long_after_the_topic_came_to_rest, Cause.MEMBER_GONE, 0.95, {Cause.LEFT, Cause.SESSION_EXPIRED}),
        # leaves soon after the topic went idle: as if the rebalance had begun then, and waited for a slow member
        (lambda: running(A, B).wait(S + 60_000).generation(2, [ALL_A]), Cause.LEFT, 0.55, {Cause.SESSION_EXPIRED}),
        # dies alone: there is no other member to show that records were still coming
        (lambda: running(ALL_A).wait(S + 2_000).generation(2, []), Cause.SESSION_EXPIRED, 0.55, {Cause.LEFT}),
        (handles_for_too_long_alone, Cause.POLL_INTERVAL_EXCEEDED, 0.5, {Cause.LEFT, Cause.SESSION_EXPIRED}),
        (stands_still_long_after_the_topic_did, Cause.POLL_INTERVAL_EXCEEDED, 0.5, {Cause.SESSION_EXPIRED}),
        # leaves as its partitions go idle: a client that commits what it handled, and nothing more as it closes: the
        # others' partitions have records
        (lambda: dies().commits("t:0-1", 60_000), Cause.MEMBER_GONE, 0.95, SILENT),
        # leaves before its partitions have records again
        (lambda: dies().commits("t:0-1", S + 10_000).commits("t:0-3", 60_000), Cause.MEMBER_GONE, 0.95, SILENT),
        (leaves_to_one_that_commits_all_it_has, Cause.MEMBER_GONE, 0.95, SILENT),
        (dies, Cause.SESSION_EXPIRED, 0.55, {Cause.LEFT}),  # nothing has been seen yet of what follows
        # leaves a whole poll interval after its partitions came to rest
        (lambda: handles_for_too_long().commits("t:0-1", P + 10_000), Cause.MEMBER_GONE, 0.95, SILENT),
        (handles_for_too_long, Cause.POLL_INTERVAL_EXCEEDED, 0.55, {Cause.LEFT, Cause.SESSION_EXPIRED}),
        # leaves as its partitions come to rest 848
        (lambda: dies_848().commits("t:0-1", 60_000), Cause.MEMBER_GONE, 0.95, SILENT),
        (closes_at_rest_848, Cause.SESSION_EXPIRED, 0.55, {Cause.LEFT}),
        (dies_between_transactions, Cause.LEFT, 0.55, {Cause.SESSION_EXPIRED}),
        (silent_for_almost_a_session_since_a_transaction, Cause.LEFT, 0.55, {Cause.SESSION_EXPIRED}),
        (commits_each_minute, Cause.SESSION_EXPIRED, 0.55, {Cause.LEFT}),
        (dies_before_its_first_commit, Cause.SESSION_EXPIRED, 0.6, {Cause.LEFT}),
        (dies_as_the_topic_grows, Cause.SESSION_EXPIRED, 0.8, {Cause.PARTITIONS_ADDED}),
        (one_of_three_is_lost_with_the_coordinator, Cause.SESSION_EXPIRED, 0.55, {Cause.COORDINATOR_MOVED}),
        (static_member_goes_almost_a_session_after_its_leave, Cause.SESSION_EXPIRED, 0.7, {Cause.LEFT}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_both_causes_are_named_with_little_confidence(life, cause, most, others):
    row = last(life())
    assert row.cause is cause, row
    assert row.confidence <= most, row
    assert others <= causes_of(row), row
    assert all(each.told_apart_by for each in row.alternatives)


# --------------------------------------------------------------------------------------------- how the member committed


def commits_as(how: How, *members: M) -> GroupLog:
    log = GroupLog(how=how).generation(0, []).wait(3_000).generation(1, members)
    return log.commits(" ".join(each.has for each in members), 60_000)


@pytest.mark.parametrize(
    ("how", "silent_ms", "cause", "sure", "may_be_expired"),
    [
        (How.PLAIN, S - 1_500, Cause.LEFT, 0.8, False),
        (How.UNKNOWN, S - 1_500, Cause.LEFT, 0.55, True),
        (How.TRANSACTIONAL, S - 1_500, Cause.SESSION_EXPIRED, 0.9, True),
        (How.TRANSACTIONAL, S - 3_900, Cause.SESSION_EXPIRED, 0.9, True),
        (How.TRANSACTIONAL, S - 4_100, Cause.LEFT, 0.55, True),
        (How.TRANSACTIONAL, S * 2 // 3 + 100, Cause.LEFT, 0.55, True),
        (How.TRANSACTIONAL, S * 2 // 3 - 100, Cause.LEFT, 0.8, False),
        (How.PLAIN, S + 1_500, Cause.SESSION_EXPIRED, 0.9, True),
        (How.TRANSACTIONAL, S + 1_500, Cause.SESSION_EXPIRED, 0.9, True),
        (How.TRANSACTIONAL, 3_000, Cause.LEFT, 0.95, False),
    ],
)
def test_a_commit_proves_as_much_of_a_member_as_the_way_it_was_made(how, silent_ms, cause, sure, may_be_expired):
    """Only a plain commit renews the session: after one in a transaction, it expires up to a heartbeat interval
    sooner."""
    log = commits_as(how, A, B)
    every = 1_000 if silent_ms < 10_000 else 5_000
    log.commits("t:0-1", silent_ms, every=every).generation(2, [ALL_A]).commits("t:0-3", S)
    (row,) = [row for row in log.history().rebalances if row.left]
    assert (row.cause, row.confidence) == (cause, sure), row
    assert (Cause.SESSION_EXPIRED in causes_of(row)) == may_be_expired
    said = "in a transaction" in row.evidence[0]
    assert said == (how is How.TRANSACTIONAL), row.evidence


@pytest.mark.parametrize(
    ("first", "wait_ms", "second", "cause"),
    [
        (How.TRANSACTIONAL, 100, How.PLAIN, Cause.LEFT),
        (How.PLAIN, 100, How.TRANSACTIONAL, Cause.SESSION_EXPIRED),
        (How.PLAIN, 0, How.TRANSACTIONAL, Cause.SESSION_EXPIRED),
        (How.TRANSACTIONAL, 0, How.PLAIN, Cause.SESSION_EXPIRED),
    ],
)
def test_the_latest_commit_of_a_member_decides_how_it_committed(first, wait_ms, second, cause):
    """Of two at the same time, the one in a transaction decides, because it proves less."""
    log = commits_as(first, A, B).wait(1_000).commit("t:3")
    log.wait(wait_ms).how = second
    log.commit("t:2").commits("t:0-1", S - 1_500).generation(2, [ALL_A]).commits("t:0-3", S)
    (row,) = [row for row in log.history().rebalances if row.left]
    assert row.cause is cause, row


@pytest.mark.parametrize("after_ms", [0, 4_000, 15_000])
def test_a_member_is_dead_for_sure_once_another_one_gets_on_with_its_partitions(after_ms):
    """Records came while it was silent. This is equally certain if the group rebalances again at once."""
    log = dies().wait(after_ms).generation(3, [A, C.with_(has="t:2-3")]).commits("t:0-3", 6_000)
    (row,) = [row for row in log.history().rebalances if row.left]
    assert (row.cause, row.confidence) == (Cause.SESSION_EXPIRED, 0.9)


@pytest.mark.parametrize("behind_ms", [-600_000, -40_000, -6_000, -1_000, 0, 1_000])
@pytest.mark.parametrize("moves", [True, False])
def test_a_silence_is_as_long_whatever_the_clock_of_the_next_coordinator_says(behind_ms, moves):
    """Or whatever the same broker's clock says after it was set. A step forward looks like a pause."""
    log = running(A, B).wait(behind_ms)
    log.leader_epoch += moves
    row = last(log.commits("t:0-3", 20_000).commits("t:0-1", S + 1_500).generation(2, [ALL_A]).commits("t:2-3", 10_000))
    assert (row.cause, row.confidence) == (Cause.SESSION_EXPIRED, 0.9)


def test_a_static_member_needs_no_such_proof():
    """It never sends LeaveGroup."""
    a, b = A.with_(instance="i1"), B.with_(instance="i2")
    row = last(running(a, b).commits("t:0-1", S + 1_500).wait(700).generation(2, [ALL_A]))
    assert (row.cause, row.confidence) == (Cause.SESSION_EXPIRED, 0.9)


@pytest.mark.parametrize(
    ("others", "deleted"), [("t", True), ("t u", False)], ids=["nobody reads it any more", "another one does"]
)
def test_a_topic_without_subscribers_may_have_been_deleted(others, deleted):
    a, b = A.with_(topics="t u", has="t:0-1 u:0"), B.with_(topics=others)
    row = last(running(a, b).wait(400).generation(2, [A, b]))
    assert row.cause is Cause.SUBSCRIPTION_CHANGED
    assert (row.confidence < 0.6) == deleted
    assert any("deleted" in sentence and "u" in sentence.split() for sentence in row.evidence) == deleted
    assert "whether u was deleted" in row.alternatives[0].told_apart_by


def test_a_follower_may_have_asked_for_the_rebalance():
    row = last(running(A, B).wait(400).generation(2, [A, B]))
    assert any("enforceRebalance" in sentence for sentence in row.evidence)


# ----------------------------------------------------------------------------------------------- regular expressions


def by_expression(member: M, has: str) -> M:
    return member.with_(topics="", regex="t.*", has=has)


def test_what_an_expression_matches_at_the_start_was_not_added():
    a = by_expression(A, "t:0-3")
    log = GroupLog().member(a).epoch(1).target(1, []).regex("t.*", "t").epoch(2, metadata_hash=2)
    first, second = log.target(2, [a]).standing(2, a).commits("t:0-3", 60_000).history().rebalances
    assert (first.cause, second.cause, second.phase) == (Cause.STARTED, Cause.STARTED, 2)


def test_a_member_with_another_expression():
    a, b = by_expression(A, "t:0-1"), by_expression(B, "t:2-3")
    log = GroupLog().member(a).member(b).epoch(1).target(1, []).regex("t.*", "t").epoch(2, metadata_hash=2)
    log.target(2, [a, b]).standing(2, a, b).commits("t:0-3", 60_000)
    b = b.with_(regex="t")
    row = last(log.member(b).regex("t", "t").epoch(3, metadata_hash=3).target(3, [a, b]).standing(3, a, b))
    assert (row.cause, row.phase) == (Cause.SUBSCRIPTION_CHANGED, 1)


# --------------------------------------------------------------------------------------------------------- patterns


def stopped_and_started_twice() -> GroupLog:
    log, number = running(A, B), 1
    for start in (2, 3):
        log.wait(1_000).commit("t:2-3").wait(200).generation(number + 1, [ALL_A.with_(id=f"a-{start - 1}")])
        log.wait(500).commit("t:0-3").wait(200).generation(number + 2, []).wait(20_000)
        a, b = A.with_(id=f"a-{start}"), B.with_(id=f"b-{start}")
        log.generation(number + 3, [a.with_(has="t:0-3")]).wait(500).generation(number + 4, [a, b])
        log.commits("t:0-3", 20_000)
        number += 4
    return log


def test_a_group_that_is_stopped_as_a_whole_does_not_roll():
    rows = stopped_and_started_twice().history().rebalances
    assert {row.cause for row in rows} == {Cause.STARTED, Cause.LEFT, Cause.JOINED}
    assert {row.pattern for row in rows} == {None}


def test_members_that_are_away_at_the_same_time_do_not_roll():
    log = running(A, B, C).wait(1_000).commit("t:0-5").wait(200).generation(2, [B, C]).wait(2_000).commit("t:2-5")
    log.wait(200).generation(3, [C]).wait(4_000).generation(4, [A.with_(id="a-2"), C]).wait(2_000)
    log.generation(5, [A.with_(id="a-2"), B.with_(id="b-2"), C])
    rows = log.history().rebalances[1:]
    assert [(row.cause, row.pattern) for row in rows] == [(Cause.LEFT, None)] * 2 + [(Cause.JOINED, None)] * 2


def test_members_of_which_each_went_before_the_last_was_back_do_not_roll():
    a, b, c = (each.with_(id=f"{each.client_id}-2") for each in (A, B, C))
    log = running(A, B, C)
    steps = [("t:0-1", [B, C]), ("t:2-3", [C]), ("", [C, a]), ("t:4-5", [a]), ("", [a, b]), ("", [a, b, c])]
    for number, (where, members) in enumerate(steps, 2):
        log.wait(2_000).commit(where).wait(200).generation(number, members)
    rows = log.commits("t:0-5", 20_000).history().rebalances[1:]
    assert [row.pattern for row in rows] == [None] * 6


def test_a_deploy_of_two_at_a_time():
    members = [M(f"{name}-1", f"t:{at}") for at, name in enumerate("abcd")]
    log, number = running(*members), 1
    for first in (0, 2):
        for at in (first, first + 1):
            log.wait(1_000).commit("t:0-3").wait(100)
            number += 1
            log.generation(number, [each for each in members if each not in members[first : at + 1]])
        members[first : first + 2] = [each.with_(id=f"{each.client_id}-2") for each in members[first : first + 2]]
        number += 1
        log.wait(4_000).generation(number, members).commits("t:0-3", 20_000)
    rows = log.history().rebalances[1:]
    assert [row.cause for row in rows] == [Cause.LEFT, Cause.LEFT, Cause.JOINED] * 2
    assert [row.pattern and row.pattern.kind for row in rows] == [Pattern.ROLLING_RESTART] * 6


def test_a_deploy_that_starts_new_processes_first_under_one_name():
    members = [M(f"x-{at}", f"t:{at}") for at in range(3)]
    log, number = GroupLog().generation(0, []).wait(3_000).generation(1, members).commits("t:0-3", 60_000), 1
    for at in range(3):
        members.append(M(f"x-{at + 7}", f"t:{at}"))
        log.generation(number + 1, members).commits("t:0-3", 10_000)
        members.pop(0)
        log.wait(1_000).commit("t:0-3").wait(300).generation(number + 2, members).commits("t:0-3", 10_000)
        number += 2
    rows = log.history().rebalances[1:]
    assert [row.cause for row in rows] == [Cause.JOINED, Cause.LEFT] * 3
    assert [row.pattern and row.pattern.kind for row in rows] == [Pattern.ROLLING_RESTART] * 6


def test_a_process_that_is_back_before_it_has_expired_again_and_again():
    """KIP-848: the group does not wait for the dead member."""
    log, number, former = epochs(A, B), 1, B
    for life in range(4):
        number += 1
        again = B.with_(id=f"b-{life + 2}")
        log.wait(2_000).member(again).epoch(number).target(number, [A, again.with_(has="")])
        number += 1
        log.commits("t:0-1", S - 5_000).gone(former).epoch(number).target(number, [A, again]).standing(number, again)
        log.commit("t:2-3").wait(1_000)
        former = again
    rows = log.history().rebalances[1:]
    assert {row.pattern and row.pattern.kind for row in rows} == {Pattern.FLAPPING}
    assert [row.cause for row in rows] == [Cause.JOINED, Cause.SESSION_EXPIRED] * 4


def test_a_group_without_members_that_is_converted_did_not_rebalance():
    log = running(ALL_A).wait(1_000).commit("t:0-3").generation(2, []).tombstone().member(A).epoch(3).target(3, [ALL_A])
    log.standing(3, ALL_A).commits("t:0-3", 60_000).gone(A).epoch(4).wait(5_000).epoch(None)
    rows = log.generation(0, []).wait(3_000).generation(1, [ALL_A]).history().rebalances
    assert all(row.members_before or row.members_after for row in rows)
    assert rows[-1].cause is Cause.STARTED


def test_a_member_that_comes_back_is_said_to():
    log = dies().wait(30_000).commit("t:0-3").wait(1_000).generation(3, [A, B.with_(id="b-2")])
    died, back = log.history().rebalances[-2:]
    assert any("was back" in sentence for sentence in died.evidence)
    assert any("rejoined" in sentence for sentence in back.evidence)
