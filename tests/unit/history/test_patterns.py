"""What several rebalances form together, with hand-written histories: patterns, stops, second phases."""

from __future__ import annotations

import pytest

from muster.history.model import Cause, Pattern, Rebalance
from tests.support.group_log import GroupLog, M
from tests.unit.history.test_causes import (
    ALL_A,
    A,
    B,
    S,
    epochs,
    last,
    running,
    second_phase,
    static_comes_back_with_another_assignor,
)


def _deploy(*names: str, static: bool = False) -> GroupLog:
    members = [M(f"{name}-1", f"t:{number}", instance=name if static else None) for number, name in enumerate(names)]
    log, number = running(*members), 1
    for at, each in enumerate(members):
        others = [one for one in members if one is not each]
        log.wait(1_000).commit(each.has).wait(500)
        if not static:
            number += 1
            log.generation(number, [others[0].with_(has=f"{others[0].has} {each.has}"), *others[1:]]).wait(4_000)
            number += 1
        members[at] = each.with_(id=f"{each.client_id}-2")
        log.generation(number, members).commits(" ".join(one.has for one in members), 20_000)
    return log


def rolls() -> GroupLog:
    return _deploy("a", "b", "c")


def rolls_under_one_name() -> GroupLog:
    """Three processes on one host with the same client id: no member flaps."""
    log, number = GroupLog().generation(0, []).wait(3_000), 1
    members = [M(f"x-{at}", f"t:{at}") for at in range(3)]
    log.generation(1, members).commits("t:0-2", 60_000)
    for at, each in enumerate(list(members)):
        others = [one for one in members if one is not each]
        log.wait(1_000).commit(each.has).wait(500).generation(number + 1, others).wait(4_000)
        members[at] = each.with_(id=f"x-{at + 7}")
        number += 2
        log.generation(number, members).commits("t:0-2", 20_000)
    return log


def rolls_with_instance_ids() -> GroupLog:
    return _deploy("a", "b", "c", static=True)


def rolls_with_new_names() -> GroupLog:
    """As with pods of a deployment, which have a new name and address after each start."""
    members = [M(f"pod{number}-1", f"t:{number}", host=f"/10.0.0.{number}") for number in range(3)]
    log, number = running(*members), 1
    for at, each in enumerate(list(members)):
        number += 1
        others = [one for one in members if one is not each]
        log.wait(1_000).commit(each.has).wait(500)
        log.generation(number, [others[0].with_(has=f"{others[0].has} {each.has}"), *others[1:]]).wait(4_000)
        members[at] = M(f"pod{at + 7}-1", each.has, host=f"/10.0.1.{at}")
        number += 1
        log.generation(number, members).commits(" ".join(one.has for one in members), 20_000)
    return log


def rolls_by_kills() -> GroupLog:
    """Each process is killed and restarted at once: the rebalance waits until its former member has expired."""
    members = [M(f"{name}-1", f"t:{at}") for at, name in enumerate("abc")]
    log = running(*members)
    for at, each in enumerate(list(members)):
        members[at] = each.with_(id=f"{each.client_id}-2")
        others = " ".join(one.has for one in members if one is not members[at])
        log.wait(3_000).commit(others).wait(S - 2_000).generation(at + 2, members).commits("t:0-2", 20_000)
    return log


def rolls_by_expiry() -> GroupLog:
    """Each process is killed and restarted a minute later, three of three."""
    members = [M(f"{name}-1", f"t:{at}") for at, name in enumerate("abc")]
    log, number = running(*members), 1
    for at, each in enumerate(list(members)):
        others = [one for one in members if one is not each]
        number += 2
        log.commits(" ".join(one.has for one in others), S + 1_000)
        log.generation(number - 1, [others[0].with_(has=f"{others[0].has} {each.has}"), others[1]]).wait(9_000)
        members[at] = each.with_(id=f"{each.client_id}-2")
        log.generation(number, members).commits("t:0-2", 20_000)
    return log


def flaps() -> GroupLog:
    log, number = running(A, B), 1
    for start in range(3):
        number += 1
        log.commits("t:0-1", S + 1_000).generation(number, [ALL_A]).commits("t:0-3", 10_000)
        number += 1
        log.generation(number, [A, B.with_(id=f"b-{start + 2}")]).commits("t:0-3", 20_000)
    return log


def rolls_by_kills_848() -> GroupLog:
    """Three of four processes are killed and restarted at once; their former members expire later."""
    dead = [M(f"{name}-1", f"t:{at}") for at, name in enumerate("abc")]
    anew = [each.with_(id=f"{each.client_id}-2") for each in dead]
    log = epochs(*dead, M("d-1", "t:3"))
    for at, each in enumerate(anew):
        log.commits("t:3", 3_000, every=1_000).member(each).epoch(at + 2).target(at + 2, [each.with_(has="")])
    log.commits("t:3", S - 11_000)
    for at, (former, each) in enumerate(zip(dead, anew, strict=True)):
        log.commits("t:3", 3_000, every=1_000).gone(former).epoch(at + 5).target(at + 5, [each]).standing(at + 5, each)
    return log


# -------------------------------------------------------------------------------------------------------- patterns

ROLLS, FLAPS = Pattern.ROLLING_RESTART, Pattern.FLAPPING
IN_TURN = [Cause.LEFT, Cause.JOINED] * 3
PATTERNS = [
    (rolls, ROLLS, 0.9, IN_TURN),
    (rolls_under_one_name, ROLLS, 0.9, IN_TURN),
    (rolls_with_new_names, ROLLS, 0.6, IN_TURN),
    (rolls_by_kills, ROLLS, 0.7, [Cause.JOINED] * 3),
    (rolls_by_expiry, ROLLS, 0.7, [Cause.SESSION_EXPIRED, Cause.JOINED] * 3),
    (rolls_by_kills_848, ROLLS, 0.7, [Cause.JOINED] * 3 + [Cause.SESSION_EXPIRED] * 3),
    (flaps, FLAPS, 0.9, [Cause.SESSION_EXPIRED, Cause.JOINED] * 3),
]


@pytest.mark.parametrize(("life", "kind", "sure", "causes"), PATTERNS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_pattern_is_listed_with_the_cause_of_each_of_its_rebalances(life, kind, sure, causes):
    rows = life().history().rebalances[1:]
    assert [row.cause for row in rows] == causes
    for row in rows:
        assert row.pattern is not None, row
        assert (row.pattern.kind, row.pattern.confidence >= sure) == (kind, True), row
        assert row.pattern.members
        assert Cause.NOT_KNOWN not in row.pattern.went, row


def at_rest(*steps: list[M]) -> list[Rebalance]:
    """Generations of a group that commits nothing, each for longer than a session."""
    log = GroupLog().generation(0, []).wait(3_000)
    for number, members in enumerate(steps, 1):
        log.generation(number, members).wait(S + 15_000)
    return log.history().rebalances


def test_members_that_went_for_a_reason_that_nothing_shows_make_no_rolling_restart():
    a, b = A.with_(id="a-2"), B.with_(id="b-2")
    rows = at_rest([A, B], [B], [B, a], [a], [a, b])
    assert [row.pattern for row in rows] == [None] * 5
    assert [row.cause for row in rows if row.joined] == [Cause.STARTED, Cause.JOINED, Cause.JOINED]
    assert rows[2].confidence == rows[4].confidence == 0.97


def test_a_group_of_which_each_member_went_in_turn_at_rest_may_have_crashed():
    c = M("c-1", "t:4")
    anew = [each.with_(id=f"{each.client_id}-2") for each in (A, B, c)]
    rows = at_rest([A, B, c], [B, c], [B, c, anew[0]], [c, anew[0]], [c, *anew[:2]], anew[:2], anew)
    assert [row.cause for row in rows if row.left] == [Cause.MEMBER_GONE] * 3
    assert [row.pattern for row in rows] == [None] * 7


def test_members_with_other_names_that_come_and_go_at_rest_make_no_rolling_restart():
    one, two, three = (M(f"{name}-1") for name in ("one", "two", "three"))
    rows = at_rest([one], [one, two], [one], [one, three], [one], [])
    assert [row.pattern for row in rows] == [None] * 6
    assert [row.cause for row in rows][::2] == [Cause.STARTED, rows[2].cause, rows[4].cause]
    assert [row.cause for row in rows if row.joined] == [Cause.STARTED, Cause.JOINED, Cause.JOINED]


def stopped_one_by_one(log: GroupLog, *members: M) -> list[Rebalance]:
    """All close, in quick succession; returns the rows of that."""
    number = log.history().generations[-1].generation
    for at, each in enumerate(members, 1):
        log.wait(500).commit(each.has).wait(300).generation(number + at, members[at:])
    return log.history().rebalances[-len(members) :]


@pytest.mark.parametrize("life", [rolls, rolls_with_new_names, flaps])
def test_the_stop_of_a_group_is_part_of_no_pattern(life):
    log = life().wait(60_000)
    members = log.history().generations[-1].members
    log.commits("t:0-3", 10_000)
    before = [row.pattern for row in log.history().rebalances]
    rows = stopped_one_by_one(log, *(M(each.member_id, host=each.host, has="t:0") for each in members))
    assert [(row.cause, row.pattern, row.is_rebalance) for row in rows] == [(Cause.LEFT, None, False)] * len(rows)
    assert [row.pattern for row in log.history().rebalances][: len(before)] == before


def test_static_members_that_take_their_places_again_make_nothing_rebalance():
    rows = rolls_with_instance_ids().history().rebalances
    assert [row.cause for row in rows] == [Cause.STARTED, *[Cause.STATIC_MEMBER_REPLACED] * 3]
    assert [row.is_rebalance for row in rows] == [True, False, False, False]
    assert [(row.moved, row.pattern) for row in rows[1:]] == [(0, None)] * 3


def test_a_static_member_that_comes_back_to_another_generation_keeps_what_it_had():
    row = last(static_comes_back_with_another_assignor())
    assert (row.moved, row.is_rebalance) == (0, True)


def test_a_cooperative_rebalance_is_one_though_it_takes_two_generations():
    rows = second_phase().history().rebalances
    assert [(row.cause, row.phase, row.is_rebalance) for row in rows[-2:]] == [
        (Cause.JOINED, 1, True),
        (Cause.JOINED, 2, False),
    ]


U_TOO = M("c-1", "u:0-1", topics="t u")


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        ([[A, B], [A, B, U_TOO.with_(has="")], [A, B, U_TOO]], [1, 2]),
        ([[A, B, U_TOO], [A, B], [A, B]], [1, 2]),
        ([[A, B], [A, B, U_TOO.with_(has="")], [A, B.with_(has="t:2-4"), U_TOO]], [1, 1]),
        ([[A.with_(topics="t u"), B], [A.with_(topics="t u"), B, U_TOO], [A.with_(topics="t u"), B, U_TOO]], [1, 1]),
    ],
    ids=["brings a topic", "takes one with it", "another topic grows", "the leader reads it itself"],
)
def test_a_leader_that_looks_up_the_topics_of_others_joins_again_for_the_same_cause(steps, phases):
    log = running(*steps[0]).wait(1_000)
    for number, members in enumerate(steps[1:], 2):
        log.commit(" ".join(each.has for each in steps[0])).wait(500).generation(number, members)
    rows = log.history().rebalances[1:]
    assert [row.phase for row in rows] == phases
    assert (rows[0].cause is rows[1].cause) == (phases == [1, 2])


def test_a_leader_that_joins_again_later_has_not_looked_up_topics():
    log = running(A, B).wait(1_000).generation(2, [A, B, U_TOO]).wait(60_000)
    assert [row.phase for row in log.generation(3, [A, B, U_TOO]).history().rebalances] == [1, 1, 1]


def goes(log: GroupLog, number: int, members: list[M], at: int, *, expires: bool) -> None:
    """The member with this index leaves and is back 10 s later; the others keep committing."""
    others = [each for each in members if each is not members[at]]
    if expires:
        log.commits(" ".join(each.has for each in others), S + 1_000)
    else:
        log.wait(1_000).commit(members[at].has).wait(500)
    log.generation(number, others).wait(10_000)
    members[at] = members[at].with_(id=f"{members[at].client_id}-{number}")
    log.generation(number + 1, members).commits("t:0-3", 20_000)


@pytest.mark.parametrize(
    ("order", "rolled"),
    [
        ([(0, True), (0, False), (1, False), (2, False)], [False, True, True, True]),
        ([(0, False), (1, False), (2, False), (0, True)], [True, True, True, False]),
        ([(0, True), (1, True), (2, False), (3, False)], [False] * 4),
        ([(0, True), (1, True), (0, True), (2, True)], [False] * 4),
        ([(0, True), (1, True), (2, True), (3, True)], [True] * 4),
    ],
    ids=["freezes before a deploy", "dies after one", "two of four stood still", "one dies twice", "all die in turn"],
)
def test_a_member_that_expired_is_not_part_of_a_rolling_restart_of_others(order, rolled):
    members = [
        M(f"{name}-1", f"t:{at}") for at, name in enumerate("abcd" if len({at for at, _ in order}) > 3 else "abc")
    ]
    log = running(*members, for_ms=100_000)
    for turn, (at, expires) in enumerate(order):
        goes(log, 2 * turn + 2, members, at, expires=expires)
    rows = log.history().rebalances[1:]
    said = [row.pattern is not None and row.pattern.kind is ROLLS for row in rows]
    assert said == [each for each in rolled for _ in range(2)]


def test_members_that_go_a_while_before_the_others_stop_are_not_part_of_the_stop():
    c = M("c-1", "t:4")
    log = running(A, B, c).wait(500).commit("t:2-3").wait(300).generation(2, [A, c])
    log.commits("t:0-1", 90_000).wait(500).commit("t:4").wait(300).generation(3, [A])
    rows = log.wait(500).commit("t:0-1").wait(300).generation(4, []).history().rebalances
    assert [row.is_rebalance for row in rows] == [True, True, False, False]
    assert [row.is_stop for row in rows] == [False, False, True, True]


def test_one_that_flaps_alone_is_reported_though_the_group_is_empty_each_time():
    log, number = running(ALL_A), 1
    for start in range(4):
        log.wait(S + 2_000).generation(number + 1, []).wait(5_000)
        log.generation(number + 2, [ALL_A.with_(id=f"a-{start + 2}")]).commits("t:0-3", 30_000)
        number += 2
    rows = log.history().rebalances[1:]
    assert {row.pattern and row.pattern.kind for row in rows} == {FLAPS}


def test_members_that_come_and_go_in_turns_replace_nobody():
    """A group of two that is repeatedly scaled out and in by one, with a new name each time."""
    log, number = running(A, B, for_ms=700_000), 1
    for start in range(4):
        visitor = M(f"v{start}-1", "t:3")
        log.wait(1_000).generation(number + 1, [A, B.with_(has="t:2"), visitor]).commits("t:0-3", 20_000)
        log.wait(1_000).commit("t:3").wait(500).generation(number + 2, [A, B]).commits("t:0-3", 20_000)
        number += 2
    rows = log.history().rebalances[1:]
    assert [(row.cause, row.pattern) for row in rows] == [(Cause.JOINED, None), (Cause.LEFT, None)] * 4


def test_a_group_that_grows_while_visitors_come_and_go_is_not_restarted():
    """Equally many members leave and join for good, alternately, and none of the original ones is replaced."""
    members = [M("a-1", "t:0")]
    log, number = running(*members), 1

    def work(log: GroupLog) -> GroupLog:
        return log.commits(" ".join(each.has for each in members), 10_000)

    for at in range(1, 6):
        work(log.wait(1_000).generation(number + 1, [*members, M(f"v{at}-1", "t:9")]))
        log.commit("t:9").wait(500).generation(number + 2, members)
        members.append(M(f"n{at}-1", f"t:{at}"))
        work(work(log).wait(1_000).generation(number + 3, members))
        number += 3
    rows = log.history().rebalances[1:]
    assert [(row.cause, row.pattern) for row in rows] == [(cause, None) for cause in (Cause.JOINED, *IN_TURN[:2])] * 5


def test_two_of_many_that_are_started_again_are_not_a_restart_of_the_group():
    members = [M(f"{name}-1", f"t:{at}") for at, name in enumerate("abcde")]
    log, number = running(*members), 1
    for at in (0, 1):
        others = [each for each in members if each is not members[at]]
        log.wait(1_000).commit(members[at].has).wait(500).generation(number + 1, others).wait(4_000)
        members[at] = members[at].with_(id=f"{members[at].client_id}-2")
        log.generation(number + 2, members).commits("t:0-4", 20_000)
        number += 2
    assert [row.pattern for row in log.history().rebalances] == [None] * 5


def _killed_848(size: int, lives: list[int]) -> GroupLog:
    """In a group of this size, these processes are killed one after another and restarted at once."""
    members = [M(f"{'abcde'[at]}-1", f"t:{at}") for at in range(size)]
    log, epoch = epochs(*members), 1
    for life, at in enumerate(lives, 2):
        dead, anew = members[at], members[at].with_(id=f"{members[at].client_id}-{life}")
        others = " ".join(each.has for each in members if each is not dead)
        log.commits(others, 2_000, every=1_000).member(anew).epoch(epoch + 1).target(epoch + 1, [anew.with_(has="")])
        log.commits(others, S - 2_000, every=1_000)
        log.gone(dead).epoch(epoch + 2).target(epoch + 2, [anew]).standing(epoch + 2, anew)
        log.commits(" ".join(each.has for each in members), 20_000)
        members[at], epoch = anew, epoch + 2
    return log


@pytest.mark.parametrize(
    ("size", "lives", "rolled"),
    [
        (2, [0, 1], True),
        (3, [0, 1, 2], True),
        (4, [0, 1, 2], True),
        (5, [0, 1], False),
        (3, [0, 1], False),
        (2, [0, 0], False),
        (3, [1, 1], False),
    ],
)
def test_processes_that_crash_are_not_a_restart_of_the_group(size, lives, rolled):
    """A supervisor that restarts a crashed process at once does to it what a deploy does to all of them."""
    rows = _killed_848(size, lives).history().rebalances[1:]
    assert [row.cause for row in rows] == [Cause.JOINED, Cause.SESSION_EXPIRED] * len(lives)
    assert {row.pattern is not None and row.pattern.kind is ROLLS for row in rows} == {rolled}


@pytest.mark.parametrize(
    ("after_ms", "kind", "phases"),
    [(1_000, "connect", [1, 1, 2]), (60_000, "connect", [1, 1, 1]), (1_000, "sr", [1, 1, 1])],
)
def test_workers_join_once_more_to_hand_over_what_they_gave_up(after_ms, kind, phases):
    """Kafka Connect's rebalances come in two halves, like a consumer's with cooperative-sticky."""
    log = GroupLog().generation(0, []).wait(3_000).generation(1, [A], protocol_type=kind).wait(60_000)
    log.generation(2, [A, B], protocol_type=kind).wait(after_ms).generation(3, [A, B], protocol_type=kind)
    rows = log.history().rebalances
    assert [row.phase for row in rows] == phases
    again = rows[-1]
    assert again.cause is (Cause.JOINED if again.phase == 2 else Cause.LEADER_REJOINED)
    assert any("worker" in each for each in again.evidence) is (kind == "connect")


def test_one_that_has_come_again_before_it_expired_is_not_back_later():
    """The next crash and start of the same process does not end an absence: it was there all the time."""
    rows = _killed_848(3, [1, 1]).history().rebalances[1:]
    said = [sentence for row in rows for sentence in row.evidence]
    assert [sentence for sentence in said if "back" in sentence] == []
