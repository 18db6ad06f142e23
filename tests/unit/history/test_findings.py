"""The doctor's sentences: each rule on the rows that call for it, and silent on those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.history.findings import RULES, View, findings
from muster.history.model import (
    Alternative,
    Cause,
    Change,
    CommitNote,
    Generation,
    GroupKind,
    Lag,
    Member,
    Moved,
    Place,
    Rebalance,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
SLOW = Member("slow-1", "slow", "/10.0.0.7", session_timeout_ms=45_000, rebalance_timeout_ms=300_000)
CALM = Member("calm-1", "calm", "/10.0.0.8", session_timeout_ms=45_000, rebalance_timeout_ms=300_000)
STATIC = replace(CALM, instance_id="pod-1")


def rebalance(cause: Cause, ago_ms: int = HOUR_MS, **fields: Any) -> Rebalance:
    usual: dict[str, Any] = {
        "group": "g",
        "generation": 2,
        "previous_generation": 1,
        "at_ms": NOW_MS - ago_ms,
        "duration_ms": 10,
        "duration_is": "at most",
        "members_before": 2,
        "members_after": 2,
        "joined": (),
        "left": (),
        "replaced": (),
        "resubscribed": (),
        "moved": (),
        "stopped_ms": (("orders", 0, 6_000), ("orders", 1, 4_000)),
        "cause": cause,
        "confidence": 0.9,
        "evidence": (),
        "alternatives": (),
    }
    return Rebalance(**{**usual, **fields})


def generation(*members: Member, protocol: str = "range") -> Generation:
    at = Place(0, 0, NOW_MS - DAY_MS, 0)
    kind = GroupKind.CLASSIC
    return Generation("g", 2, kind, NOW_MS - DAY_MS, None, None, None, "consumer", protocol, None, members, at)


def lag(partition: int = 0, **fields: int | None) -> Lag:
    usual: dict[str, Any] = {
        "at_ms": NOW_MS,
        "committed_offset": 50,
        "committed_ms": NOW_MS - 1_000,
        "log_start_offset": 0,
        "log_end_offset": 60,
        "lag_records": 10,
        "is_exact": True,
        "lag_ms": 500,
        "lost_records": 0,
        "expires_ms": None,
    }
    return Lag("g", "orders", partition, **{**usual, **fields})


def note(kind: str, offset: int, previous: int) -> CommitNote:
    return CommitNote("g", "orders", 0, NOW_MS - HOUR_MS, kind, offset, previous)


def view(*rebalances: Rebalance, latest: Generation | None = None, **lists: Any) -> View:
    usual: dict[str, Any] = {"generations": [latest] if latest else [], "notes": [], "lag": []}
    return View("g", rebalances=sorted(rebalances, key=lambda each: each.at_ms), now_ms=NOW_MS, **{**usual, **lists})


def times(number: int, cause: Cause, every_ms: int, **fields: Any) -> list[Rebalance]:
    return [rebalance(cause, ago_ms=(index + 1) * every_ms, **fields) for index in range(number)]


KEPT: dict[str, Any] = {"moved": ()}
NEEDLESS: dict[str, Any] = {"moved": tuple(Moved("orders", index, "a", "b", needless=True) for index in range(2))}
JOINED: dict[str, Any] = {"joined": (Change(CALM),)}
BACK: dict[str, Any] = {"joined": (Change(replace(CALM, member_id="calm-2"), CALM),)}

CASES = {
    "never_at_rest": view(*times(12, Cause.NOT_KNOWN, 30_000, left=(SLOW,))),
    "poll_interval_exceeded": view(rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW,))),
    "session_expired": view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW,))),
    "rolling_restart": view(*times(3, Cause.ROLLING_RESTART, 60_000, **BACK)),
    "flapping": view(*times(4, Cause.FLAPPING, 60_000, left=(SLOW,))),
    "members_come_and_go": view(*times(6, Cause.JOINED, 20_000, **JOINED)),
    "stops_the_world": view(*times(3, Cause.JOINED, 9 * HOUR_MS, **KEPT), latest=generation(CALM)),
    "needless_moves": view(*times(2, Cause.LEFT, 9 * HOUR_MS, **NEEDLESS), latest=generation(CALM)),
    "rejoins": view(*times(3, Cause.LEADER_REJOINED, HOUR_MS)),
    "coordinator_moved": view(rebalance(Cause.COORDINATOR_MOVED)),
    "session_above_poll_interval": view(latest=generation(replace(CALM, session_timeout_ms=400_000))),
    "lost_records": view(lag=[lag(lost_records=30, log_start_offset=80)]),
    "committed_beyond_end": view(lag=[lag(committed_offset=99)]),
    "stuck": view(lag=[lag(committed_ms=NOW_MS - HOUR_MS), lag(1)]),
    "offsets_expire": view(lag=[lag(expires_ms=NOW_MS + HOUR_MS)]),
    "rewinds": view(notes=[note("rewind", 10, 50)]),
    "commits_by_others": view(latest=generation(CALM), notes=[note("non_member", 50, 40)]),
}


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_speaks_of_its_own_case_only(rule: str) -> None:
    found = findings([CASES[rule]])
    assert [each.rule for each in found] == [rule]
    assert found[0].group == "g"
    assert found[0].since_ms <= NOW_MS


def test_every_rule_has_a_case() -> None:
    assert len(CASES) == len(RULES)


def test_a_quiet_group_has_nothing_to_say_about() -> None:
    quiet = view(
        rebalance(Cause.STARTED, ago_ms=DAY_MS, **JOINED),
        rebalance(Cause.JOINED, ago_ms=HOUR_MS, **JOINED),
        latest=generation(CALM, SLOW, protocol="cooperative-sticky"),
        lag=[lag(), lag(1, committed_ms=NOW_MS - 30_000)],
        notes=[note("deleted", -1, 40)],
    )
    assert findings([quiet]) == []


def test_the_advice_takes_its_value_from_what_was_seen() -> None:
    longest = (("orders", 0, 412_345),)
    (found,) = findings([view(rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW,), stopped_ms=longest))])
    assert "'slow' at 10.0.0.7 did not poll within max.poll.interval.ms (5.0 min)" in found.sentence
    assert "Set max.poll.interval.ms to 830000 " in found.advice


def test_a_short_session_is_told_from_a_crash() -> None:
    short = replace(SLOW, session_timeout_ms=6_000)
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(short,)))])
    assert "session.timeout.ms is 6000" in found.advice
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW,)))])
    assert "killed" in found.advice


def test_static_members_are_told_of_their_timeout() -> None:
    back = Change(replace(STATIC, member_id="m-2"), STATIC)
    (found,) = findings([view(rebalance(Cause.ROLLING_RESTART, joined=(back,)))])
    assert "static already" in found.advice
    (found,) = findings([view(rebalance(Cause.ROLLING_RESTART, **BACK))])
    assert "group.instance.id" in found.advice


@pytest.mark.parametrize(
    ("number", "every_ms", "cost"),
    [
        (1, 60_000, 10.0),  # 10 s within a day
        (3, 10_000, 720.0),  # 30 s within an hour, at least: times 24
        (4, 12 * HOUR_MS, 20.0),  # 40 s in two days
    ],
)
def test_costs_are_scaled_to_a_day(number: int, every_ms: int, cost: float) -> None:
    (found,) = findings([view(*times(number, Cause.FLAPPING, every_ms, left=(SLOW,)))])
    assert found.cost == cost


def test_why_a_group_rebalances_comes_before_how() -> None:
    stops = {"stopped_ms": (("t", 0, 900_000), ("t", 1, 900_000), ("t", 2, 900_000)), "left": (SLOW,)}
    seen = [*times(2, Cause.POLL_INTERVAL_EXCEEDED, 60_000, **stops), *times(3, Cause.JOINED, 10_000, **stops)]
    each = view(*seen, latest=generation(CALM))
    assert [found.rule for found in findings([each])] == ["poll_interval_exceeded", "stops_the_world"]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (Cause.POLL_INTERVAL_EXCEEDED, "slower than max.poll.interval.ms"),
        (Cause.SESSION_EXPIRED, "kill -9"),
        (Cause.LEFT, "a supervisor"),
        (Cause.NOT_KNOWN, "or its handler is too slow"),
    ],
)
def test_a_flapping_member_is_told_by_how_it_goes(cause: Cause, said: str) -> None:
    seen = times(4, Cause.FLAPPING, 60_000, left=(SLOW,), alternatives=(Alternative(cause, "x"),))
    (found,) = findings([view(*seen)])
    assert said in found.advice


def test_the_most_costly_comes_first() -> None:
    cheap = replace(CASES["flapping"], group="a")
    dear = replace(view(*times(9, Cause.FLAPPING, 60_000, left=(SLOW,))), group="b")
    assert [each.group for each in findings([cheap, dear])] == ["b", "a"]
