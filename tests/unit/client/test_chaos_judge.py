"""The judge of the chaos test can fail: each kind of loss, repetition and disorder is reported, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from muster.model import RecordMetadata, TopicPartition
from tests.support.cluster_chaos import AWAY, Facts, Row, draw, judge, judge_unclean

Rows = list[Row]
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def good() -> Facts:
    """A run in which everything went well: member 2 continued where member 1 had not committed."""
    log = {ZERO: [(0, "a:0"), (1, "b:0"), (3, "a:2")], ONE: [(0, "a:1"), (1, "b:1")]}
    written = {value: RecordMetadata(*place, offset, 0) for place, rows in log.items() for offset, value in rows}
    runs = [(ZERO, log[ZERO][:2]), (ONE, [*log[ONE]]), (ZERO, log[ZERO][1:])]
    return Facts(log, written, runs={"g": runs}, ranges=[(ZERO, log[ZERO][:2]), (ZERO, log[ZERO][2:]), (ONE, [])])


def test_nothing_is_said_of_a_good_run():
    assert judge(good()) == []


def test_an_offset_need_not_be_reported():
    facts = good()
    facts.acknowledged["a:1"] = RecordMetadata("t", 1, -1, 0)
    assert judge(facts) == []


BAD: dict[str, Callable[[Facts], object]] = {
    r"a:9 was acknowledged at 7 and is lost": lambda f: f.acknowledged.update({"a:9": RecordMetadata("t", 0, 7, 0)}),
    r"a:1 was acknowledged at 1 and is at .*0\)": lambda f: f.acknowledged.update(
        {"a:1": RecordMetadata("t", 1, 1, 0)}
    ),
    r"a:7 failed: why": lambda f: f.failed.update({"a:7": "why"}),
    r"1 records were written twice": lambda f: f.log[ONE].append((2, "b:1")),
    r"a:2 is behind a:3 at 4": lambda f: f.log[ZERO].__setitem__(slice(2, 3), [(3, "a:3"), (4, "a:2")]),
    r"group g has not read 1 records, \['a:2'\]": lambda f: f.runs["g"].pop(),
    r"g read .*'b:0'.* of t-0": lambda f: f.runs["g"].append((ZERO, [(1, "b:0"), (1, "b:0")])),
    r"g read .*a:2.* of t-0": lambda f: f.runs["g"].append((ZERO, [(0, "a:0"), (3, "a:2")])),
    r"g read .*gone.*of t-1": lambda f: f.runs["g"].append((ONE, [(5, "gone")])),
    r"by range read .*of t-0": lambda f: f.ranges.append((ZERO, [(0, "a:0"), (3, "a:2")])),
    r"it broke": lambda f: f.errors.append("it broke"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_what_is_wrong_is_reported(wrong):
    facts = good()
    BAD[wrong](facts)
    assert any(re.search(wrong, line) for line in judge(facts)), judge(facts)


def of_epoch(rows: Rows, epoch: int) -> Rows:
    """The records that one leader wrote."""
    return [(offset, f"{value}@{epoch}") for offset, value in rows]


def lossy() -> Facts:
    """The leader of epoch 1 was lost with everything from offset 1 on: `b:0` is written again at its offset, `c:0` is
    not."""
    facts = good()
    facts.log = {ZERO: [(0, "a:0@1"), *of_epoch(facts.log[ZERO][1:], 2)], ONE: of_epoch(facts.log[ONE], 1)}
    before: Rows = [(1, "b:0@1"), (2, "c:0@1")]
    facts.runs = {"g": [(ZERO, [facts.log[ZERO][0], *before, *facts.log[ZERO][1:]]), (ONE, [*facts.log[ONE]])]}
    facts.acknowledged["c:0"] = RecordMetadata("t", 0, 2, 0)
    return facts


def test_after_an_unclean_election_only_what_may_be_lost_is_not_missed_and_the_rest_is_read_in_order():
    facts = lossy()
    assert judge_unclean(facts, {"c:0", "c:1"}) == []
    assert any("c:0 was acknowledged" in line for line in judge_unclean(facts, {"c:1"}))
    facts.acknowledged["b:0"] = RecordMetadata("t", 0, 7, 0)
    assert any("b:0 was acknowledged at 7" in line for line in judge_unclean(facts, {"c:0", "b:0"}))


def test_after_an_unclean_election_a_reader_that_went_back_too_far_is_reported():
    facts = lossy()
    rows = facts.runs["g"][0][1]
    rows.insert(3, rows[0])
    assert any("which the log has otherwise" in line for line in judge_unclean(facts, {"c:0"}))


def test_every_schedule_has_every_broker_away_and_the_seeds_have_all_there_is():
    schedules = [draw(seed) for seed in range(200)]
    assert all({step.node for step in schedule.steps} == {1, 2, 3} for schedule in schedules)
    assert {step.do for schedule in schedules for step in schedule.steps} == set(AWAY)
    assert len({schedule.assignor for schedule in schedules}) == 4
    assert draw(5) == draw(5)
