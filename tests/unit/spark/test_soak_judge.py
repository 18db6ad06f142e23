"""The judge of the soak test can fail: each kind of loss and of forbidden repetition is reported, and nothing else
is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.schedules import ENDS, LEAVES, PEERS, End, Facts, Write, draw, judge

A0, A1, A2, B0, B1 = ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)
SIX = frozenset(range(6))

GOOD = Facts(
    acknowledged=SIX,
    sent=SIX,
    plans={A0: frozenset({0, 1}), A1: frozenset({2, 3}), A2: frozenset({4, 5})},
    ends=(End("a", 1, "stop", 2, 2),),
    writes=(Write(A0, 1, (0, 1)), Write(A1, 1, (2, 3)), Write(A2, 1, (4, 5))),
)
KILLED_IN_1 = (End("a", 1, "kill", 1, 0), End("a", 2, "stop", 2, 2))
AGAIN = (*GOOD.writes[:2], Write(A1, 2, (3, 2)), Write(A2, 2, (4, 5)))
SHARED = replace(
    GOOD,
    plans={A0: frozenset({0, 1}), A1: frozenset({2, 3}), B0: frozenset({2, 3}), B1: frozenset({4, 5})},
    writes=(Write(A0, 1, (0, 1)), Write(A1, 1, (2, 3)), Write(B0, 1, (2, 3)), Write(B1, 1, (4, 5))),
    ends=(End("b", 1, "stop", 1, 1),),
)


TWICE = replace(
    GOOD,
    plans={A0: frozenset({0, 1}), A1: frozenset({2, 3}), A2: frozenset({2, 3, 4, 5})},
    writes=(Write(A0, 1, (0, 1)), Write(A1, 1, (2, 3)), Write(A2, 2, (2, 3, 4, 5))),
)
LOST = (End("a", 1, "kill_source", 1, 1), End("a", 2, "stop", 2, 2))


def ended(facts, how, begun, done):
    return replace(facts, ends=(*facts.ends, End("a", 1, how, begun, done)))


@pytest.mark.parametrize(
    ("facts", "again", "shared"),
    [
        (GOOD, 0, 0),
        (replace(GOOD, ends=KILLED_IN_1, writes=AGAIN), 2, 0),
        # Killed after the write, before Spark's commit, and never started again: another member has the batch, too.
        (ended(SHARED, "kill", 1, 0), 0, 2),
        # Between Spark's commit and the group's commit.
        (ended(SHARED, "term", 1, 1), 0, 2),
        (replace(SHARED, shaken=frozenset({A1})), 0, 2),
        # The commit of batch 1 was lost, and another member had the partition before the query came back.
        (replace(TWICE, ends=(*LOST, End("b", 1, "stop", -1, -1))), 0, 2),
        (replace(GOOD, writes=(), copies=Counter(SIX)), 0, 0),
        (replace(GOOD, writes=(), copies=Counter([*SIX, 2, 3]), ends=KILLED_IN_1), 2, 0),
        (replace(GOOD, writes=(), copies=Counter([*SIX, 2, 3]), retried=frozenset({A1})), 2, 0),
    ],
)
def test_what_may_be(facts, again, shared):
    outcome = judge(facts)
    assert outcome.wrong == []
    assert (outcome.records, outcome.again, outcome.shared) == (6, again, shared)


@pytest.mark.parametrize(
    ("facts", "reported"),
    [
        (replace(GOOD, writes=GOOD.writes[:2]), "2 records are lost: 4, 5"),
        (replace(GOOD, writes=(), copies=Counter(SIX - {3})), "1 records are lost: 3"),
        (replace(GOOD, plans={**GOOD.plans, A2: frozenset({4})}), "1 records are in no batch: 5"),
        (replace(GOOD, sent=SIX - {5}, acknowledged=SIX - {5}), "1 records were never sent: 5"),
        (replace(GOOD, writes=AGAIN), r"\('a', 1\) was handed over 2 times, but interrupted fewer times"),
        (replace(GOOD, ends=KILLED_IN_1, writes=(*AGAIN, Write(A1, 3, (2, 3)))), r"\('a', 1\) was handed over 3 times"),
        (replace(GOOD, ends=KILLED_IN_1, writes=(*AGAIN, AGAIN[2])), "handed over twice in one run"),
        (replace(GOOD, ends=KILLED_IN_1, writes=(*GOOD.writes, Write(A1, 2, (2,)))), "run 2 that differ from its plan"),
        (replace(GOOD, writes=(*GOOD.writes[:2], Write(A2, 1, (4, 5, 5)))), "run 1 that differ from its plan"),
        (SHARED, r"2 records are in \(\('a', 1\), \('b', 0\)\): 2, 3"),
        # Stopped properly: what Spark has recorded as done is committed.
        (ended(SHARED, "stop", 1, 1), "2 records are in"),
        # A later batch was interrupted, not this one.
        (ended(SHARED, "kill", 2, 0), "2 records are in"),
        # A query that runs alone never has a record in two batches, whatever happens.
        (replace(TWICE, ends=LOST), r"2 records are in .*: 2, 3"),
        (replace(TWICE, ends=(End("a", 1, "stop", 2, 2), End("b", 1, "stop", -1, -1))), r"2 records are in .*: 2, 3"),
        (replace(GOOD, plans={**GOOD.plans, A2: SIX - {0, 1, 2}}, ends=KILLED_IN_1), r"1 records are in .*: 3"),
        (replace(GOOD, writes=(), copies=Counter([*SIX, 2])), "1 records were written too often: 2"),
        (replace(GOOD, writes=(), copies=Counter([*SIX, 4]), ends=KILLED_IN_1), "1 records were written too often: 4"),
    ],
)
def test_what_may_not_be(facts, reported):
    assert re.search(reported, "\n".join(judge(facts).wrong))


def test_schedules_follow_from_their_seeds_and_leave_nothing_out():
    schedules = [draw(seed) for seed in range(200)]
    assert schedules == [draw(seed) for seed in range(200)]
    assert {(each.peer, each.mode, each.sink) for each in schedules} == {
        (peer, mode, sink)
        for peer in ("muster", "cluster")
        for mode in ("group", "assign")
        for sink in ("batches", "topic")
    }
    done = {step.do for each in schedules for step in each.steps}
    assert done == {*ENDS, *PEERS["muster"], *PEERS["cluster"], *LEAVES, "join"}
    assert any(step.do == "grow" for each in schedules if each.peer == "muster" for step in each.steps)
    for each in schedules:
        there = {"a"}
        for step in each.steps:
            there |= {"b"} if step.do == "join" else set()
            assert step.who in there, "a query is ended that does not run"
            there -= {"b"} if step.do in LEAVES else set()
            assert each.mode == "group" or step.who == "a"
