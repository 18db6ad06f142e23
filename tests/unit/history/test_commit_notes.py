"""Whose commits are noted as those of a non-member: not those of possible members, nor those of operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.history.model import CommitNote, How, Limits
from muster.history.rules.fold import finish, fold, start
from tests.support.group_log import GroupLog, M

A, B = M("a-1", "t:0-1"), M("b-1", "t:2-3")
GIVES_UP = A.with_(has="t:0")
"""a-1, from which t:1 is taken."""


def begun(*members: M, number: int = 1) -> GroupLog:
    log = GroupLog().generation(0, []).wait(3_000) if number == 1 else GroupLog()
    return log.generation(number, members, protocol="cooperative-sticky").commits("t:0-3", 20_000)


def gives_up(protocol: str = "cooperative-sticky") -> GroupLog:
    """The first phase of a cooperative rebalance: the former owner commits the partition that it gives up."""
    log = begun(A, B).generation(2, [GIVES_UP, B, M("c-1")], protocol=protocol)
    return log.wait(500).commit("t:1")


def commits_in_the_second_phase() -> GroupLog:
    log = gives_up().generation(3, [GIVES_UP, B, M("c-1", "t:1")], protocol="cooperative-sticky")
    return log.wait(500).commit("t:0-3")


def commits_two_generations_later() -> GroupLog:
    """t:1 is assigned to nobody for two generations."""
    return gives_up().generation(3, [GIVES_UP, B], protocol="cooperative-sticky").wait(500).commit("t:1")


def commits_what_nobody_ever_had() -> GroupLog:
    return begun(A, B).commit("t:9").wait(500).commit("t:9")


def commits_what_nobody_has_in_two_generations() -> GroupLog:
    log = commits_what_nobody_ever_had().generation(2, [A, B], protocol="cooperative-sticky")
    return log.wait(500).commit("t:9")


def the_log_begins_and_nobody_takes_it() -> GroupLog:
    log = begun(GIVES_UP, B, number=7).generation(8, [GIVES_UP, B], protocol="cooperative-sticky")
    return log.wait(500).commit("t:1")


def a_generation_is_missing() -> GroupLog:
    """Kafka writes no generation that did not become stable, and compaction removes others."""
    return begun(A, B).generation(3, [GIVES_UP, B], protocol="cooperative-sticky").wait(500).commit("t:8")


def an_operator_resets_an_empty_group() -> GroupLog:
    log = begun(A, B).generation(2, []).wait(5_000).commit("t:0-3", by=1_000)
    return log.wait(60_000).commit("t:0-3", by=1_000)


def modern(number: int, *members: M) -> Callable[[GroupLog], GroupLog]:
    def write(log: GroupLog) -> GroupLog:
        for each in members:
            log.member(each)
        return log.epoch(number).target(number, members).standing(number, *members)

    return write


def a_modern_member_gives_up() -> GroupLog:
    """It has reported that it gave up t:1, and others appear, before its last commit of it."""
    log = modern(1, A, B)(GroupLog()).commits("t:0-3", 20_000)
    log = modern(2, GIVES_UP, B, M("c-1", "t:1"))(log)
    log.gone(M("c-1")).standing(2, B)
    return log.wait(100).commit("t:1")


def a_modern_group_and_a_stranger() -> GroupLog:
    log = modern(1, A, B)(GroupLog()).commits("t:0-3", 20_000)
    return log.commit("t:9").standing(1, A).wait(100).commit("t:9")


CASES: dict[str, tuple[Callable[[], GroupLog], list[int]]] = {
    "gives up": (gives_up, []),
    "gives up again and again": (lambda: gives_up().wait(500).commit("t:1").wait(500).commit("t:1"), []),
    "commits in the second phase": (commits_in_the_second_phase, []),
    "commits two generations later": (commits_two_generations_later, [1]),
    "commits what nobody ever had": (commits_what_nobody_ever_had, [9]),
    "commits what nobody has in two generations": (commits_what_nobody_has_in_two_generations, [9, 9]),
    # The owner of t:1 in generation 6 is no longer in the log
    "the log begins between two phases": (lambda: begun(GIVES_UP, B.with_(has="t:2-3"), number=7), []),
    "the log begins and nobody takes it": (the_log_begins_and_nobody_takes_it, [1]),
    "a generation is missing": (a_generation_is_missing, []),
    "an operator resets an empty group": (an_operator_resets_an_empty_group, []),
    "a program commits in an empty group": (lambda: begun(A, B).generation(2, []).commits("t:0-1", 60_000), [0, 1]),
    "offsets alone": (lambda: GroupLog().commits("t:0-1", 60_000), []),
    "a modern member gives up": (a_modern_member_gives_up, []),
    "a modern group and a stranger": (a_modern_group_and_a_stranger, [9]),
}


@pytest.mark.parametrize(("story", "strange"), CASES.values(), ids=CASES)
def test_whose_commits_are_a_strangers_wherever_a_chunk_ends(story: Callable[[], GroupLog], strange: list[int]) -> None:
    log = story()
    state = start(log.group, Limits())
    notes: list[CommitNote] = []
    for at in range(log.offset + 1):
        notes += fold(state, log.chunk(at, at + 1)).notes
    notes += finish(state, log.now).notes
    assert notes == log.history().notes
    assert [note.partition for note in notes if note.kind == "non_member"] == strange


@pytest.mark.parametrize("how", How)
def test_a_note_says_whether_the_commit_was_in_a_transaction(how: How) -> None:
    log = begun(A, B)
    log.how = how
    log.commit("t:9").commit("t:0", by=-5)
    known = None if how is How.UNKNOWN else how is How.TRANSACTIONAL
    assert [(each.kind, each.is_transactional) for each in log.history().notes] == [
        ("non_member", known),
        ("rewind", known),
    ]


def test_the_third_commit_in_an_empty_group_is_the_one_that_is_noted() -> None:
    log = begun(A, B).generation(2, []).commits("t:0", 60_000, every=5_000)
    empty_ms = log.now - 60_000
    assert [note.at_ms - empty_ms for note in log.history().notes] == [15_000]
