"""The doctor's findings: each rule fires for the rows that call for it, and not for those that do not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from muster.history.findings import RULES, findings
from muster.history.findings.view import GroupView, absences
from muster.history.model import (
    Alternative,
    Cause,
    Change,
    CommitNote,
    Generation,
    GroupKind,
    Lag,
    Limits,
    Member,
    Moved,
    OpenTransaction,
    Pattern,
    PatternSeen,
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
        "moved_partitions": (),
        "stopped": (("orders", 0, 6_000), ("orders", 1, 4_000)),
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


def opened(*, at: int = 50, transactional_id: str | None = "billing-1", hangs: bool = False) -> OpenTransaction:
    return OpenTransaction(at, at, 7, 3, transactional_id, NOW_MS - HOUR_MS, hangs)


def note(kind: str, offset: int, previous: int, is_transactional: bool | None = None) -> CommitNote:
    return CommitNote("g", "orders", 0, NOW_MS - HOUR_MS, kind, offset, previous, is_transactional)


def view(*rebalances: Rebalance, latest: Generation | None = None, **lists: Any) -> GroupView:
    usual: dict[str, Any] = {"generations": [latest] if latest else [], "notes": [], "lag": []}
    return GroupView(
        "g", rebalances=sorted(rebalances, key=lambda each: each.at_ms), now_ms=NOW_MS, **{**usual, **lists}
    )


def times(number: int, cause: Cause, every_ms: int, **fields: Any) -> list[Rebalance]:
    return [rebalance(cause, ago_ms=(index + 1) * every_ms, **fields) for index in range(number)]


KEPT: dict[str, Any] = {"moved_partitions": ()}
NEEDLESS: dict[str, Any] = {
    "moved_partitions": tuple(Moved("orders", index, "a", "b", needless=True) for index in range(2))
}
JOINED: dict[str, Any] = {"joined": (Change(CALM),)}

RESTARTED: dict[str, Any] = {"replaced": (Change(replace(CALM, member_id="calm-2"), CALM),)}
GOES: dict[str, Any] = {"left": (SLOW,)}
ORDERS, INVOICES = replace(CALM, topics=("orders",)), replace(SLOW, topics=("invoices",))

ROLLS = PatternSeen(Pattern.ROLLING_RESTART, 0.9, ("x",), ("'calm' at 10.0.0.7",), (Cause.LEFT,) * 3)
FLAPS = PatternSeen(Pattern.FLAPPING, 0.9, ("x",), ("'slow' at 10.0.0.7",), (Cause.SESSION_EXPIRED,) * 4)


def vanishes(number: int) -> list[Rebalance]:
    """A member leaves and is back 10 s later, again and again."""
    gone = times(number, Cause.MEMBER_GONE, 60_000, left=(CALM,))
    return [*gone, *(replace(each, cause=Cause.JOINED, at_ms=each.at_ms + 10_000, left=(), **JOINED) for each in gone)]


def takeovers(number: int, every_ms: int, pod: str = "pod-1") -> list[Rebalance]:
    taken = Change(replace(STATIC, member_id="calm-2", instance_id=pod), STATIC)
    return times(number, Cause.STATIC_MEMBER_REPLACED, every_ms, replaced=(taken,), generation=1)


CASES = {
    "never_at_rest": view(
        *times(12, Cause.NOT_KNOWN, 30_000, left=(SLOW,)), latest=generation(CALM, protocol="cooperative-sticky")
    ),
    "poll_interval_exceeded": view(rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW,))),
    "session_expired": view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW,))),
    "members_vanish": view(*vanishes(3)),
    "rolling_restart": view(*times(3, Cause.LEFT, 60_000, pattern=ROLLS, **RESTARTED)),
    "flapping": view(*times(4, Cause.SESSION_EXPIRED, 60_000, left=(SLOW,), pattern=FLAPS)),
    "instance_id_contested": view(*takeovers(4, 60_000)),
    "members_come_and_go": view(*times(6, Cause.JOINED, 20_000, **JOINED)),
    "stops_the_world": view(*times(6, Cause.NOT_KNOWN, 9 * HOUR_MS, **KEPT), latest=generation(CALM)),
    "needless_moves": view(*times(3, Cause.LEFT, 9 * HOUR_MS, **NEEDLESS), latest=generation(CALM)),
    "shared_group_id": view(latest=generation(ORDERS, INVOICES, protocol="cooperative-sticky")),
    "held_up": view(rebalance(Cause.JOINED, waited_ms=21_700, waited_for=(SLOW,))),
    "rejoins": view(*times(3, Cause.LEADER_REJOINED, HOUR_MS)),
    "coordinator_moved": view(rebalance(Cause.COORDINATOR_MOVED)),
    "session_above_poll_interval": view(latest=generation(replace(CALM, session_timeout_ms=400_000))),
    "lost_records": view(lag=[lag(lost_records=30, log_start_offset=80)]),
    "committed_beyond_end": view(lag=[lag(committed_offset=99)]),
    "stuck": view(lag=[lag(committed_ms=NOW_MS - HOUR_MS, lag_ms=HOUR_MS), lag(1)]),
    "offsets_expire": view(lag=[lag(expires_ms=NOW_MS + HOUR_MS)]),
    "rewinds": view(notes=[note("rewind", 10, 50)]),
    "hanging_transaction": view(lag=[lag()], limits=Limits(open_transactions={("orders", 0): opened(hangs=True)})),
    "open_transaction": view(lag=[lag(), lag(1)], limits=Limits(open_transactions={("orders", 0): opened()})),
    "commits_by_others": view(latest=generation(CALM), notes=[note("non_member", 50, 40)]),
}


EAGER, COOPERATIVE = generation(CALM), generation(CALM, protocol="cooperative-sticky")
MODERN = replace(generation(CALM, protocol="uniform"), kind=GroupKind.CONSUMER)


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_speaks_of_its_own_case_only(rule: str) -> None:
    found = findings([CASES[rule]])
    assert [each.rule for each in found] == [rule]
    assert found[0].group == "g"
    assert found[0].since_ms <= NOW_MS


def test_a_transaction_that_hangs_comes_with_the_command_that_ends_it() -> None:
    limits = Limits(open_transactions={("orders", 0): opened(at=40, transactional_id=None, hangs=True)})
    (found,) = findings([view(lag=[lag()], limits=limits)])
    assert (
        "hangs in orders-0: producer 7, epoch 3 opened it at offset 40, its last batch was 60.0 min ago"
        in found.sentence
    )
    assert "nothing from offset 40 on (20 offsets)" in found.sentence
    assert "muster transactions abort --topic orders --partition 0 --start-offset 40" in found.advice


@pytest.mark.parametrize(("stable", "lag_records", "is_said"), [(50, 10, True), (51, 10, False), (50, 0, False)])
def test_a_lag_waits_for_a_transaction_only_if_all_before_it_is_committed(
    stable: int, lag_records: int, is_said: bool
) -> None:
    limits = Limits(open_transactions={("orders", 0): opened(at=stable)})
    found = findings([view(lag=[lag(lag_records=lag_records)], limits=limits)])
    assert [each.rule for each in found] == ["open_transaction"] * is_said
    assert all(
        "from 50 on are held back by a transaction of billing-1 (producer 7, epoch 3)" in each.sentence
        for each in found
    )


@pytest.mark.parametrize(
    ("how", "said", "advice"),
    [
        ([None], "1 time, furthest", ["no operator", "KIP-447"]),
        ([False], "1 time, furthest", ["no operator"]),
        ([True], "1 time, in a transaction, furthest", ["KIP-447"]),
        ([True, True], "2 times, all of them in transactions, furthest", ["KIP-447"]),
        ([True, False], "2 times, 1 of them in a transaction, furthest", ["no operator", "KIP-447"]),
        ([True, True, None], "3 times, 2 of them in transactions, furthest", ["no operator", "KIP-447"]),
    ],
)
def test_offsets_that_went_back_in_transactions_were_not_reset(
    how: list[bool | None], said: str, advice: list[str]
) -> None:
    (found,) = findings([view(notes=[note("rewind", 10, 50, each) for each in how])])
    assert said in found.sentence
    assert [each for each in ("no operator", "KIP-447") if each in found.advice] == advice


@pytest.mark.parametrize(
    ("how", "said", "advice"),
    [
        ([None], "no member owned: ", ["manually", "transactional producer"]),
        ([False], "no member owned: ", ["manually"]),
        ([True], "no member owned, in a transaction: ", ["transactional producer"]),
        ([False, True], "no member owned, 1 of them in a transaction: ", ["manually", "transactional producer"]),
    ],
)
def test_what_others_commit_in_transactions_is_a_producers(
    how: list[bool | None], said: str, advice: list[str]
) -> None:
    notes = [note("non_member", 50, 40, each) for each in how]
    (found,) = findings([view(latest=generation(CALM), notes=notes)])
    assert said in found.sentence
    assert [each for each in ("manually", "transactional producer") if each in found.advice] == advice


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


BACK_LATE = rebalance(Cause.JOINED, ago_ms=HOUR_MS - 90_000, joined=(Change(replace(SLOW, member_id="slow-2")),))


def test_the_poll_interval_follows_from_how_long_the_member_was_away() -> None:
    gone = rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW,))
    (found,) = findings([view(gone, BACK_LATE)])
    assert "'slow' at 10.0.0.7 did not poll within max.poll.interval.ms (5.0 min) and had to leave" in found.sentence
    assert "rejoined 90.0 s after it had to leave, so its handler took about 6.5 min" in found.sentence
    assert (
        "max.poll.interval.ms above the longest handling time, for example to 490000;" in found.advice
    )  # 390 s and a quarter


@pytest.mark.parametrize("change", [{"left": (SLOW,)}, {"replaced": (Change(replace(SLOW, member_id="s-2"), SLOW),)}])
def test_no_value_is_made_up_where_the_member_was_not_seen_to_come_back_later(change: dict[str, Any]) -> None:
    (found,) = findings([view(rebalance(Cause.POLL_INTERVAL_EXCEEDED, **change))])
    assert "is not known" in found.sentence
    assert "more than 5.0 min" in found.advice
    assert not re.search(r"\d{5}", found.advice)


def test_a_member_that_is_back_at_once_does_not_show_how_long_it_handled_records() -> None:
    gone = rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW,))
    (found,) = findings([view(gone, rebalance(Cause.JOINED, ago_ms=HOUR_MS - 4, joined=(Change(SLOW),)))])
    assert "is not known" in found.sentence
    assert not re.search(r"\d{5}", found.advice)


def test_each_absence_ends_with_a_return_of_its_own() -> None:
    """Two members with one name leave; one comes back."""
    other = replace(SLOW, member_id="slow-9")
    gone = rebalance(Cause.POLL_INTERVAL_EXCEEDED, left=(SLOW, other))
    assert absences(view(gone, BACK_LATE), [gone]) == [(SLOW, gone, BACK_LATE), (other, gone, None)]


def test_a_member_that_keeps_its_id_is_back_each_time() -> None:
    gone = [rebalance(Cause.LEFT, ago_ms=ago_ms, left=(SLOW,)) for ago_ms in (50_000, 30_000)]
    back = [rebalance(Cause.JOINED, ago_ms=ago_ms, joined=(Change(SLOW),)) for ago_ms in (40_000, 20_000)]
    assert [each.away_ms for each in absences(view(*gone, *back), gone)] == [10_000, 10_000]


def test_a_group_that_rebalances_without_end_is_read_in_one_go() -> None:
    """Each row is examined a few times, however many there are within a window."""
    looks = 0

    class Counted(Rebalance):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name in ("at_ms", "joined")
            return super().__getattribute__(name)

    def seen(number: int) -> list[Rebalance]:
        turns = ({"left": (SLOW,)}, {"joined": (Change(CALM),)})
        rows = [rebalance(Cause.LEFT, ago_ms=index, **turns[index % 2]) for index in range(number)]
        return [Counted(**{name: getattr(row, name) for name in row.__dataclass_fields__}) for row in rows]

    def cost(number: int) -> int:
        nonlocal looks
        rows = seen(number)
        each, looks = view(*rows), 0
        assert len(absences(each, rows)) == number // 2
        return looks

    assert cost(2_000) <= 12 * cost(200)


def test_members_that_vanish_and_stay_away_are_accused_of_nothing() -> None:
    assert findings([view(*times(3, Cause.MEMBER_GONE, 20_000, left=(CALM,)))]) == []


def test_members_that_vanish_again_and_again_are_reported_with_what_distinguishes_a_crash_from_a_leave() -> None:
    (found,) = findings([CASES["members_vanish"]])
    assert "'calm' at 10.0.0.8" in found.sentence
    assert "3 times" in found.sentence
    assert found.stopped_partition_ms == 60_000, "of its returns, too"
    assert "has failed, removing it" in found.advice
    assert "SIGTERM" in found.advice


@pytest.mark.parametrize(("cause", "said"), [(Cause.JOINED, []), (Cause.NOT_KNOWN, ["stops_the_world"])])
def test_a_group_that_only_grows_has_nothing_to_say_about(cause: Cause, said: list[str]) -> None:
    seen = times(6, cause, 9 * HOUR_MS, joined=(Change(CALM),), **KEPT)
    assert [found.rule for found in findings([view(*seen, latest=generation(CALM))])] == said


def test_a_short_session_is_distinguished_from_a_crash() -> None:
    short = replace(SLOW, session_timeout_ms=6_000)
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(short,)))])
    assert "session.timeout.ms is 6000" in found.advice
    (found,) = findings([view(rebalance(Cause.SESSION_EXPIRED, left=(SLOW,)))])
    assert "killed" in found.advice


def test_a_rolling_restart_is_reported_with_how_long_restarts_took() -> None:
    names = [replace(CALM, member_id=f"calm-{index}") for index in range(3)]
    seen = []
    for index, member in enumerate(names):
        ago_ms = HOUR_MS - index * 100_000
        seen.append(rebalance(Cause.LEFT, ago_ms, left=(member,), pattern=ROLLS))
        back = Change(replace(member, member_id=f"{member.member_id}-again"))
        seen.append(rebalance(Cause.JOINED, ago_ms - 31_000, joined=(back,), pattern=ROLLS))
    (found,) = findings([view(*seen)])
    assert found.sentence.startswith(
        "The group was restarted member by member and rebalanced each time: 6 times within 3.9 min"
    )
    assert "group.instance.id" in found.advice
    assert "(the slowest restart took about 31.0 s), for example to 62000:" in found.advice


def late_static(*whose: str, pattern: PatternSeen | None = ROLLS) -> list[Rebalance]:
    """Static members: these were away for longer than their session of 45 s, and others were not."""
    rows = takeovers(3, HOUR_MS)
    for number, pod in enumerate(whose):
        member, ago_ms = replace(STATIC, instance_id=pod, member_id=pod), HOUR_MS // 2 - number * 100_000
        rows.append(rebalance(Cause.SESSION_EXPIRED, ago_ms, left=(member,), pattern=pattern))
        back = Change(replace(member, member_id=f"{pod}-again"))
        rows.append(rebalance(Cause.JOINED, ago_ms - 15_000, joined=(back,), pattern=pattern))
    return rows


def test_static_members_are_advised_on_their_timeout() -> None:
    (found,) = findings([view(*late_static("pod-1", "pod-2"))])
    assert (found.rule, found.stopped_partition_ms) == ("rolling_restart", 40_000)
    assert "4 times within" in found.sentence
    assert "static already" in found.advice
    assert "(the slowest restart took about 60.0 s), for example to 120000." in found.advice
    (modern,) = findings([view(*late_static("pod-1", "pod-2"), latest=MODERN)])
    above = "for example to 120000 (brokers allow 60000 unless group.consumer.max.session.timeout.ms is raised)."
    assert above in modern.advice


def test_static_members_that_were_back_in_time_are_not_a_restart() -> None:
    assert findings([view(*late_static())]) == []


def test_a_single_late_static_member_is_reported_by_itself() -> None:
    (found,) = findings([view(*late_static("pod-2", pattern=None))])
    assert (found.rule, found.stopped_partition_ms) == ("session_expired", 20_000)
    assert "once" in found.sentence


def test_static_members_that_are_stopped_have_not_crashed() -> None:
    stop = rebalance(Cause.SESSION_EXPIRED, left=(STATIC, replace(STATIC, instance_id="pod-2")), members_after=0)
    assert findings([view(stop)]) == []
    one = replace(stop, left=(STATIC,), members_after=1, is_stop=True)
    assert findings([view(one)]) == []
    (found,) = findings([view(replace(stop, left=(STATIC, SLOW)))])
    assert found.rule == "session_expired"


def test_the_return_of_a_member_is_part_of_its_departure() -> None:
    gone = rebalance(Cause.SESSION_EXPIRED, left=(SLOW,))
    (found,) = findings([view(gone, BACK_LATE)])
    assert found.stopped_partition_ms == 20_000
    assert "once" in found.sentence


@pytest.mark.parametrize(
    ("number", "every_ms", "a_day"),
    [
        (1, 2 * DAY_MS, None),  # one incident, however long ago
        (3, 10_000, None),
        (4, 7 * HOUR_MS, None),  # over 21 hours
        (5, 12 * HOUR_MS, 20_000),  # 50 s in the two and a half days since the first
    ],
)
def test_a_rate_is_given_for_what_came_back_over_a_day(number: int, every_ms: int, a_day: int | None) -> None:
    (found,) = findings([view(*times(number, Cause.SESSION_EXPIRED, every_ms, left=(SLOW,), pattern=FLAPS))])
    assert found.stopped_partition_ms == number * 10_000
    assert found.stopped_partition_ms_per_day == a_day


def test_the_cost_of_a_rebalance_is_in_one_finding() -> None:
    stops: dict[str, Any] = {"stopped": tuple(("t", partition, 50_000) for partition in range(4)), **NEEDLESS}
    seen = times(12, Cause.POLL_INTERVAL_EXCEEDED, 30_000, left=(SLOW,), **stops)
    found = findings([view(*seen, latest=generation(CALM))])
    assert [each.rule for each in found] == ["poll_interval_exceeded", "needless_moves", "stops_the_world"]
    assert [each.stopped_partition_ms for each in found] == [12 * 200_000, 0, 0]
    assert all("The cost is counted under poll_interval_exceeded." in each.sentence for each in found[1:])


def test_a_cost_that_is_in_part_in_another_finding_is_not_counted_twice() -> None:
    stops: dict[str, Any] = {"stopped": (("t", 0, 10_000), ("t", 1, 10_000))}
    one = rebalance(Cause.SESSION_EXPIRED, left=(SLOW,), **stops)
    found = findings([view(one, *times(5, Cause.NOT_KNOWN, 100_000, **stops), latest=generation(CALM))])
    assert [(each.rule, each.stopped_partition_ms) for each in found] == [
        ("session_expired", 20_000),
        ("stops_the_world", 100_000),
    ]
    assert "up to 100.0 s in total. More cost is counted under session_expired." in found[1].sentence


def in_turns(number: int, **fields: Any) -> list[Rebalance]:
    """Members that leave and join alternately, a minute apart, each in two phases."""
    return [
        rebalance((Cause.JOINED, Cause.LEFT)[index % 2], 60_000 * index + 10_000 - 5_000 * phase, phase=phase, **fields)
        for index in range(number)
        for phase in (1, 2)
    ]


def test_a_second_phase_is_not_another_rebalance() -> None:
    assert findings([view(*in_turns(5), latest=COOPERATIVE)]) == []
    (found,) = findings([view(*in_turns(6), latest=COOPERATIVE)])
    assert (found.rule, found.stopped_partition_ms) == ("members_come_and_go", 120_000)
    assert "6 times within" in found.sentence


def one_by_one(number: int, cause: Cause, every_ms: int) -> list[Rebalance]:
    return times(number, cause, every_ms, stopped=())


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (one_by_one(9, Cause.JOINED, 90_000), []),  # it grows
        (one_by_one(9, Cause.LEFT, 90_000), []),  # it is scaled in
        (one_by_one(5, Cause.JOINED, 20_000), []),
        (one_by_one(6, Cause.JOINED, 20_000), ["members_come_and_go"]),  # they could have come at once
        ([replace(row, members_after=0) for row in in_turns(9, stopped=())], []),  # all stop, and start
    ],
)
def test_a_group_that_grows_or_is_stopped_has_no_members_that_come_and_go(
    seen: list[Rebalance], said: list[str]
) -> None:
    assert [found.rule for found in findings([view(*seen, latest=EAGER)])] == said


def restless(until_ago_ms: int) -> list[Rebalance]:
    return [rebalance(Cause.NOT_KNOWN, ago_ms=until_ago_ms + index * 20_000) for index in range(12)]


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (view(*restless(30_000), latest=COOPERATIVE), ["never_at_rest"]),
        (view(*restless(25 * 60_000), latest=COOPERATIVE), []),  # it is over
        (view(*restless(30_000), latest=generation(protocol="cooperative-sticky")), []),  # all members are gone
        (view(*restless(9 * 60_000)[:9], latest=COOPERATIVE), []),
    ],
)
def test_a_group_that_has_come_to_rest_is_not_called_restless(each: GroupView, said: list[str]) -> None:
    assert [found.rule for found in findings([each])] == said


@pytest.mark.parametrize(
    ("latest", "named", "unnamed"),
    [
        (EAGER, ["cooperative-sticky", "group.protocol=consumer"], []),
        (COOPERATIVE, ["group.protocol=consumer"], ["cooperative-sticky"]),
        (MODERN, [], ["cooperative-sticky", "group.protocol", "initial.rebalance"]),
    ],
)
def test_nobody_is_advised_to_use_what_the_group_uses(latest: Generation, named: list[str], unnamed: list[str]) -> None:
    seen = [rebalance((Cause.JOINED, Cause.LEFT)[index % 2], ago_ms=120_000 * index, stopped=()) for index in range(9)]
    (found,) = findings([view(*seen, latest=latest)])
    assert found.rule == "members_come_and_go"
    assert all(each in found.advice for each in named)
    assert not any(each in found.advice for each in unnamed)


def test_a_modern_group_has_a_session_timeout_of_its_own() -> None:
    modern = replace(SLOW, session_timeout_ms=None)
    gone = rebalance(Cause.SESSION_EXPIRED, left=(modern,))
    limits = Limits(session_timeouts_ms={"g": 7_000})
    (found,) = findings([replace(view(gone, latest=MODERN), limits=limits)])
    assert "the session timeout of 7.0 s" in found.sentence
    assert found.advice.startswith("consumer.session.timeout.ms of the group is 7000:")


OWNED = replace(SLOW, assignment=(("orders", 0),))
HANGING = replace(OWNED, rebalance_timeout_ms=DAY_MS)


@pytest.mark.parametrize(
    ("latest", "waited_ms", "lag_ms", "said"),
    [
        (generation(OWNED), 3 * 60_000, 3 * 60_000, None),  # the client finds out for itself
        (generation(HANGING), 3 * 60_000, 3 * 60_000, "restart the process. Its max.poll.interval.ms is 24.0 h"),
        (generation(HANGING), 3 * 60_000, 30_000, None),  # there was nothing to read until half a minute ago
        (generation(HANGING), 90_000, 90_000, None),
        (generation(OWNED), HOUR_MS, HOUR_MS, "Either a record cannot be handled, or the partition is paused"),
        (generation(OWNED), HOUR_MS, None, "Either a record cannot be handled, or the partition is paused"),
        (generation(CALM), HOUR_MS, HOUR_MS, "a record cannot be handled, or the partition is paused"),
        (generation(replace(CALM, assignment=(("orders", 1),))), HOUR_MS, HOUR_MS, "It is not assigned to any member"),
        (None, HOUR_MS, HOUR_MS, "a record cannot be handled, or the partition is paused"),
    ],
)
def test_a_stuck_partition_is_reported_with_its_owner(
    latest: Generation | None, waited_ms: int, lag_ms: int | None, said: str | None
) -> None:
    waiting = lag(committed_ms=NOW_MS - waited_ms, lag_ms=lag_ms)
    found = findings([view(latest=latest, lag=[waiting, lag(1, committed_ms=NOW_MS)])])
    if said is None:
        assert found == []
        return
    (stuck,) = found
    assert said in stuck.advice
    owned = latest is not None and bool(latest.members[0].assignment) and latest.members[0].client_id == "slow"
    assert ("orders-0 of 'slow' at 10.0.0.7 for" in stuck.sentence) == owned
    assert stuck.stopped_partition_ms == waited_ms
    assert stuck.since_ms == NOW_MS - waited_ms


def test_why_a_group_rebalances_comes_before_how() -> None:
    stops = {"stopped": (("t", 0, 900_000), ("t", 1, 900_000), ("t", 2, 900_000)), "left": (SLOW,)}
    seen = [*times(2, Cause.POLL_INTERVAL_EXCEEDED, 60_000, **stops), *times(6, Cause.NOT_KNOWN, 10_000, **stops)]
    each = view(*seen, latest=generation(CALM))
    assert [found.rule for found in findings([each])] == ["poll_interval_exceeded", "stops_the_world"]


def test_all_that_flap_are_named() -> None:
    one = replace(FLAPS, members=("'a' at h",))
    seen = [*times(4, Cause.LEFT, 60_000, **GOES, pattern=one)]
    seen += times(3, Cause.LEFT, 59_000, **GOES, pattern=replace(one, members=("'b' at h",)))
    seen += times(1, Cause.LEFT, 58_000, **GOES, pattern=replace(one, members=("'c' at h",)))
    (found,) = findings([view(*seen)])
    assert found.sentence.startswith("The clients 'a' at h and 'b' at h join and leave again and again")


@pytest.mark.parametrize("cause", [Cause.SESSION_EXPIRED, Cause.POLL_INTERVAL_EXCEEDED])
def test_a_cause_that_is_not_sure_is_reported_as_such(cause: Cause) -> None:
    doubt = rebalance(
        cause, left=(SLOW,), confidence=0.5, alternatives=(Alternative(Cause.LEFT, "the log of brokers"),)
    )
    (found,) = findings([view(doubt)])
    assert found.sentence.startswith("Most likely 'slow' at 10.0.0.7")
    assert found.sentence.endswith(" The cause may also be left; to find out, check the log of brokers.")
    (found,) = findings([view(doubt, rebalance(cause, ago_ms=60_000, left=(SLOW,)))])
    assert found.sentence.startswith("'slow' at")
    assert "may also" not in found.sentence


def test_a_member_that_all_waited_for_is_named() -> None:
    row = rebalance(Cause.JOINED, waited_ms=21_700, waited_for=(SLOW,))
    (found,) = findings([view(row, latest=EAGER)])
    assert found.sentence == (
        "Members waited in a rebalance for 'slow' at 10.0.0.7, busy handling records, for up to 21.7 s: once, 60.0 min "
        "ago; partitions were stopped for up to 10.0 s in total."
    )


BOTH = replace(CALM, member_id="both", topics=("invoices", "orders"))
BY_PATTERN = replace(CALM, topics=(), topic_regex="o.*")


@pytest.mark.parametrize(
    ("members", "number"),
    [
        ((ORDERS, ORDERS, INVOICES, INVOICES), 2),
        ((ORDERS, INVOICES, replace(CALM, topics=("audit",))), 3),
        ((ORDERS, INVOICES, BOTH), 0),  # one member reads what both read
        ((ORDERS, INVOICES, BY_PATTERN), 0),
        ((ORDERS, CALM), 0),  # it is not known what a member reads
        ((ORDERS, ORDERS), 0),
    ],
)
def test_applications_are_distinguished_by_their_topics(members: tuple[Member, ...], number: int) -> None:
    found = findings([view(latest=generation(*members, protocol="cooperative-sticky"))])
    assert [each.rule for each in found] == ["shared_group_id"] * (number > 0)
    assert not found or found[0].sentence.startswith(f"{number} applications with no topic in common")


def lives(*lengths: tuple[int, tuple[Member, ...]]) -> list[Generation]:
    """Generations that lasted this long, up to now."""
    at_ms, found = NOW_MS - sum(length for length, _ in lengths), []
    for number, (length, members) in enumerate(lengths, 1):
        row = replace(generation(*members), generation=number, started_ms=at_ms, ended_ms=at_ms + length)
        found.append(row)
        at_ms += length
    return found


@pytest.mark.parametrize(
    ("generations", "said"),
    [
        (lives((HOUR_MS, (ORDERS,)), (90_000, (ORDERS, INVOICES)), (HOUR_MS, (INVOICES,))), False),  # one after another
        (lives((30_000, (ORDERS, INVOICES))), False),
        (lives((90_000, (ORDERS, INVOICES)), (DAY_MS, ())), True),  # all were stopped
    ],
)
def test_a_program_that_takes_the_place_of_another_shares_nothing(generations: list[Generation], said: bool) -> None:
    assert bool(findings([view(generations=generations)])) == said


def test_what_two_applications_cost_each_other_is_counted_once() -> None:
    seen = in_turns(8, generation=2)
    latest = generation(ORDERS, INVOICES, protocol="cooperative-sticky")
    one, other = findings([view(*seen, latest=latest)])
    assert (one.rule, one.stopped_partition_ms) == ("shared_group_id", 160_000)
    assert (other.rule, other.stopped_partition_ms) == ("members_come_and_go", 0)


@pytest.mark.parametrize(("latest", "said"), [("range", True), ("sticky", False), ("cooperative-sticky", False)])
def test_an_assignor_that_keeps_what_it_can_is_not_blamed(latest: str, said: bool) -> None:
    seen = times(3, Cause.NOT_KNOWN, HOUR_MS, **NEEDLESS)
    found = findings([view(*seen, latest=generation(CALM, protocol=latest))])
    assert [each.rule for each in found] == ["needless_moves"] * said


def test_the_most_costly_comes_first() -> None:
    cheap = replace(CASES["flapping"], group="a")
    dear = replace(view(*times(9, Cause.SESSION_EXPIRED, 60_000, left=(SLOW,), pattern=FLAPS)), group="b")
    assert [each.group for each in findings([cheap, dear])] == ["b", "a"]
