"""Rules at their thresholds: how much makes a finding, which of several is named, and how certain a cause is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.history.findings import findings
from muster.history.model import Cause, Change, Generation, Moved
from tests.support.group_log import GroupLog, M
from tests.unit.history.test_causes import ALL_A, A, B, P, S, epochs, last, running
from tests.unit.history.test_findings import (
    BACK_LATE,
    CALM,
    FLAPS,
    HOUR_MS,
    INVOICES,
    NOW_MS,
    ORDERS,
    RESTARTED,
    ROLLS,
    SLOW,
    generation,
    note,
    rebalance,
    times,
    view,
)


def rules(*rebalances: Any, **lists: Any) -> list[str]:
    return [each.rule for each in findings([view(*rebalances, **lists)])]


@pytest.mark.parametrize(("moves", "said"), [(4, ["needless_moves"]), (5, []), (40, [])])
def test_a_few_needless_moves_of_many_are_not_a_finding(moves: int, said: list[str]) -> None:
    moved = tuple(Moved("orders", at, "a", "b", needless=at == 0) for at in range(moves))
    assert rules(*times(3, Cause.LEFT, 9 * HOUR_MS, moved_partitions=moved), latest=generation(CALM)) == said


@pytest.mark.parametrize(
    ("session_ms", "said"), [(29_999, []), (30_000, []), (30_001, ["session_above_poll_interval"])]
)
def test_a_session_as_long_as_the_poll_interval_is_fine(session_ms: int, said: list[str]) -> None:
    """So is aiokafka's, whose rebalance timeout is its session timeout."""
    assert rules(latest=generation(replace(CALM, session_timeout_ms=session_ms, rebalance_timeout_ms=30_000))) == said


@pytest.mark.parametrize(("apart_hours", "said"), [(4, []), (6, ["shared_group_id"])])
def test_applications_that_share_a_group_for_less_than_half_of_the_time_are_not_a_finding(
    apart_hours: int, said: list[str]
) -> None:
    began_ms = NOW_MS - 10 * HOUR_MS
    until_ms = began_ms + apart_hours * HOUR_MS
    both = replace(generation(ORDERS, INVOICES), started_ms=began_ms, ended_ms=until_ms)
    one: Generation = replace(generation(ORDERS), generation=3, started_ms=until_ms)
    assert rules(generations=[both, one]) == said


@pytest.mark.parametrize(("number", "said"), [(1, ["flapping"]), (2, ["rolling_restart", "flapping"])])
def test_one_rebalance_is_not_a_restart_member_by_member(number: int, said: list[str]) -> None:
    """As if the other restarts were those of a member that flaps."""
    rolls = times(number, Cause.LEFT, 60_000, pattern=ROLLS, **RESTARTED)
    assert sorted(rules(*rolls, *times(4, Cause.LEFT, 90_000, left=(SLOW,), pattern=FLAPS))) == sorted(said)


def test_the_longest_wait_is_reported() -> None:
    rows = [rebalance(Cause.JOINED, ago, waited_ms=ms, waited_for=(SLOW,)) for ago, ms in ((9_000, 8_000), (1, 21_700))]
    (found,) = findings([view(*rows)])
    assert "for up to 21.7 s" in found.sentence


def test_the_farthest_rewind_is_reported() -> None:
    notes = [replace(note("rewind", offset, 50), partition=at) for at, offset in enumerate((45, 10, 49))]
    (found,) = findings([view(notes=notes)])
    assert "furthest in orders-1, from 50 to 10: members that start there process 46 records" in found.sentence


@pytest.mark.parametrize(("more", "cost_ms"), [((), 20_000), ((Change(replace(CALM, member_id="calm-9")),), 10_000)])
def test_a_return_in_which_others_came_too_costs_nothing_of_the_departure(
    more: tuple[Change, ...], cost_ms: int
) -> None:
    back = replace(BACK_LATE, joined=(*BACK_LATE.joined, *more))
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW,)), back)])
    assert found.stopped_partition_ms == cost_ms


def test_the_shortest_session_is_that_of_the_members_that_expired() -> None:
    """The advice on a short session is for the member that has it."""
    short = replace(CALM, session_timeout_ms=6_000)
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW, short)))])
    assert "session.timeout.ms is 6000" in found.advice


# ----------------------------------------------------------------------------------------------------------- confidence


def test_of_one_that_left_and_one_that_joined_at_once_neither_is_sure() -> None:
    log = running(A, B).wait(2_000).commit("t:2-3").wait(100).commit("t:0-1").wait(900)
    row = last(log.generation(2, [A, M("c-1", "t:2-3")]))
    assert (row.cause, row.confidence < 0.6) == (Cause.LEFT, True)
    assert Cause.JOINED in {each.cause for each in row.alternatives}


def test_each_member_that_went_is_in_the_evidence() -> None:
    """This includes a member that left for a reason other than the one given as the cause."""
    a, b, c = A.with_(has="t:0"), B.with_(has="t:1"), M("c-1", "t:2")
    row = last(running(a, b, c).wait(1_000).commit("t:1").wait(S - 500).generation(2, [a.with_(has="t:0-2")]))
    assert {row.cause, *(each.cause for each in row.alternatives)} >= {Cause.LEFT, Cause.SESSION_EXPIRED}
    assert all(any(f"'{name}'" in sentence for sentence in row.evidence) for name in "bc")


def _static_members_after_a_move(instance: str | None) -> GroupLog:
    a, b = A.with_(instance=instance and "i1"), B.with_(instance=instance and "i2")
    log = running(a, b)
    log.leader_epoch += 1
    return log.wait(S + 1_000).generation(3, [a.with_(id="a-2"), b.with_(id="b-2")])


@pytest.mark.parametrize("instance", ["i", None])
def test_a_static_member_under_a_new_id_was_restarted_whatever_the_coordinator_did(instance: str | None) -> None:
    row = last(_static_members_after_a_move(instance))
    assert (row.cause is Cause.COORDINATOR_MOVED) is (instance is None)


def test_a_static_member_of_kip_848_leaves_as_soon_as_its_poll_interval_is_over() -> None:
    """A classic one stops its heartbeats then, and expires a session later (KIP-345)."""
    b = B.with_(instance="i2")
    row = last(epochs(A, b).commits("t:0-1", P).gone(b).epoch(2).target(2, [ALL_A]).standing(2, ALL_A))
    assert row.cause is Cause.POLL_INTERVAL_EXCEEDED


def test_a_cause_across_generations_that_left_no_record_is_less_sure() -> None:
    followed, skipped = (last(running(A).wait(400).generation(number, [A, B])) for number in (2, 4))
    assert (followed.cause, skipped.cause) == (Cause.JOINED, Cause.JOINED)
    assert skipped.confidence < 0.9 * followed.confidence


def test_one_that_joins_while_another_is_too_slow_is_a_guess() -> None:
    a, b, c = (each.with_(session_ms=60_000, poll_ms=20_000) for each in (A, B, M("c-1", "t:2-3")))
    log = running(a, b).wait(1_000).commit("t:0-1").wait(19_500)
    row = last(log.generation(2, [a, c]))
    assert row.confidence < 0.6
    assert Cause.JOINED in {row.cause, *(each.cause for each in row.alternatives)}
