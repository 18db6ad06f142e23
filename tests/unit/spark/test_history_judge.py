"""The judge of the history's soak test can fail: each row that is lost, doubled or different is reported, and nothing
else is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from muster.history.model import Cause, CommitNote, Generation, GroupKind, Lag, Place, Rebalance
from tests.support.history_schedules import (
    BROKER,
    BY_ITSELF,
    ENDS,
    LAST,
    LATE,
    ROWS,
    WAYS,
    End,
    Facts,
    Tables,
    draw,
    judge,
)


def generation(number: int, **other: Any) -> Generation:
    at = Place(0, 10 * number, 1_000 * number, 0)
    found = Generation(
        "g", number, GroupKind.CLASSIC, 1_000 * number, None, None, None, "consumer", "range", None, (), at
    )
    return replace(found, **other)


def rebalance(number: int, **other: Any) -> Rebalance:
    at_ms, nothing = 1_000 * number, ((), (), (), (), (), ())
    found = Rebalance("g", number, number - 1, at_ms, 5, "exact", 1, 2, *nothing, Cause.JOINED, 0.9, ("e",), ())
    return replace(found, **other)


def note(number: int, **other: Any) -> CommitNote:
    return replace(CommitNote("g", "t", 0, 1_000 * number, "rewind", 3, 5), **other)


def lag(partition: int, **other: Any) -> Lag:
    return replace(Lag("g", "t", partition, 99, 4, 90, 0, 7, 3, True, 12, 0, None), **other)


WHOLE = Tables(
    generations=(generation(1), generation(2)),
    rebalances=(rebalance(1), rebalance(2)),
    notes=(note(1), note(2)),
    counts={("GroupMetadata", 4): 2, ("OffsetCommit", 1): 40},
    lag=(lag(0), lag(1)),
)
TRACEBACK = "Traceback (most recent call last):\n"
LOOKS = {3: (lag(0), lag(1)), 4: (lag(0), lag(1))}
GOOD = Facts(WHOLE, WHOLE, (End(1, "term", 0), End(2, LAST, 0)), LOOKS, (Tables(), Tables(notes=(note(1),))))


def written(**other: Any) -> Facts:
    return replace(GOOD, written=replace(WHOLE, **other))


def ended(how: str, code: int, said: str = "", *, shaken: bool = False) -> Facts:
    return replace(GOOD, ends=(End(1, how, code, said, shaken), *GOOD.ends))


@pytest.mark.parametrize(
    "facts",
    [
        GOOD,
        # Only the time of the sample differs.
        written(lag=(lag(0, at_ms=50, lag_ms=None), lag(1))),
        ended("kill", -9),
        ended("kill_driver", -9),
        ended("interrupt", 0),
        ended("term_all", 0),
        ended("kill_jvm", 1, "muster: Spark is gone"),
        ended("term_all", 0, "SparkException\n\tat org.apache.spark"),
        ended("term", 0, f'{TRACEBACK}  File "pyspark/daemon.py", line 1\nBrokenPipeError'),
        ended("kill_worker", 1, "muster: a task failed"),
        ended(BY_ITSELF, 1, "muster: no broker answers", shaken=True),
        ended(BY_ITSELF, 1, f"muster: Python {LATE}."),
    ],
)
def test_what_may_be(facts):
    outcome = judge(facts)
    assert outcome.wrong == []
    assert (outcome.rows, outcome.records) == (6, 42)


@pytest.mark.parametrize("table", ROWS)
def test_a_row_that_is_lost_or_doubled_or_made_up_is_seen_in_each_table(table):
    rows = getattr(WHOLE, table)
    made = {"generations": generation, "rebalances": rebalance, "notes": note}[table]
    for other, reported in (
        (rows[:1], "is lost"),
        ((), "is lost"),
        ((*rows, rows[0]), "is there 2 times and should be 1 times"),
        ((*rows, made(3)), "should not be"),
        ((*rows, made(3), made(3)), "is there 2 times and should be 0 times"),
        ((rows[0], made(3)), "is lost"),
    ):
        assert any(reported in said for said in judge(written(**{table: other})).wrong), (other, reported)
    twice = written(**{table: (*rows, rows[0])})
    assert judge(replace(twice, fresh=twice.written)).wrong == []
    assert len(judge(replace(GOOD, fresh=twice.written)).wrong) == 1


@pytest.mark.parametrize(
    ("facts", "reported"),
    [
        (written(rebalances=(rebalance(1), rebalance(2, confidence=0.5))), "g 2 2000 is another: confidence is 0.5"),
        (written(generations=(generation(1), generation(2, leader="m"))), "g 0 20 is another: leader is 'm'"),
        (written(notes=(note(1), note(2, previous_offset=4))), "is another: previous_offset is 4, should be 5"),
        # The same row of the topic twice, closed and open.
        (
            written(generations=(*WHOLE.generations, generation(1, ended_ms=9))),
            "g 0 10 is there 1 times and should not",
        ),
        (written(counts={("GroupMetadata", 4): 2, ("OffsetCommit", 1): 41}), "41 records of OffsetCommit 1 .* of 40"),
        (written(counts={("OffsetCommit", 1): 40}), "0 records of GroupMetadata 4 are counted, of 2"),
        (written(counts={**WHOLE.counts, ("GroupMetadata", 3): 1}), "1 records of GroupMetadata 3 are counted, of 0"),
        (written(lag=(lag(0),)), "has no lag of .*'t', 1"),
        (written(lag=(lag(0), lag(1), lag(2))), "has a lag of .*'t', 2"),
        (written(lag=(lag(0), lag(1, committed_offset=3))), "'t', 1.* is another: committed_offset is 3"),
        (replace(GOOD, looks={**LOOKS, 5: (lag(0), lag(0, at_ms=7))}), "batch 5 has the lag of .*'t', 0.* twice"),
        (replace(GOOD, earlier=(Tables(notes=(note(7),)), Tables())), "was final when run 1 ended, and is gone"),
        (ended("term", 1), r"run 1 \(term\) ended with 1"),
        (ended("interrupt", -2), r"run 1 \(interrupt\) ended with -2"),
        (ended(LAST, 1, "muster: it cannot go on"), "it cannot go on"),
        (ended("kill", 0), r"run 1 \(kill\) ended with 0"),
        (ended("kill_jvm", 1, f'{TRACEBACK}  File "muster/x.py", line 1'), "Traceback"),
        (ended("term_all", 0, f'{TRACEBACK}  File "pyspark/daemon.py", line 1\n{TRACEBACK}  File "x.py"'), "Traceback"),
        (ended("interrupt", 0, "StackOverflowError\n\tat java.util.regex.Pattern"), "StackOverflow"),
        (ended("kill_source", 0), r"run 1 \(kill_source\) ended with 0"),
        (ended(BY_ITSELF, 1, "muster: no broker answers"), "no broker answers"),
        (ended(BY_ITSELF, 0, shaken=True), r"run 1 \(itself\) ended with 0"),
    ],
)
def test_what_may_not_be(facts, reported):
    assert re.search(reported, "\n".join(judge(facts).wrong))


def test_schedules_follow_from_their_seeds_and_leave_nothing_out():
    schedules = [draw(seed) for seed in range(200)]
    assert schedules == [draw(seed) for seed in range(200)]
    assert {(each.peer, each.ending, each.beside) for each in schedules} == {
        (peer, ending, beside)
        for peer in ("muster", "kafka")
        for ending in ("once", "follow")
        for beside in ("tables", "job", "small")
    }
    assert {step.do for each in schedules for step in each.steps} == {*ENDS, *BROKER}
    for each in schedules:
        assert any(step.do in ENDS for step in each.steps)
        assert ("next" in each.groups) == (each.peer == "kafka")
    assert {way for each in schedules for way in each.groups} == {*WAYS, "next"}
