"""What the history must contain about each step of the demo, and that Spark's and the doctor's are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.demo.run.examination import CAUSES, Expected, Row, differences, findings, read_rows
from muster.demo.run.plan import CompletedStep, DemoStep
from muster.history.model import Cause

AT_MS = 1_790_000_100_000
EXPECTED = Expected(CompletedStep(DemoStep.KILL, AT_MS, AT_MS + 10_000), "delays", Cause.SESSION_EXPIRED)


def row(cause: Cause, at_ms: int = AT_MS + 5_000, group: str = "delays") -> Row:
    return Row(group, 7, at_ms, cause)


def found(inferred: list[Row], reported: list[Row]) -> bool:
    (only,) = findings([EXPECTED], inferred, reported)
    return only.ok


@pytest.mark.parametrize(
    ("inferred", "reported", "expected"),
    [
        ([row(Cause.SESSION_EXPIRED)], [row(Cause.SESSION_EXPIRED)], True),
        ([row(Cause.SESSION_EXPIRED)], [], True),
        ([row(Cause.JOINED), row(Cause.SESSION_EXPIRED)], [], True),
        ([row(Cause.LEFT)], [row(Cause.SESSION_EXPIRED)], False),
        ([row(Cause.SESSION_EXPIRED)], [row(Cause.LEFT)], False),
        ([row(Cause.SESSION_EXPIRED, AT_MS - 1)], [], False),
        ([row(Cause.SESSION_EXPIRED, AT_MS + 10_001)], [], False),
        ([row(Cause.SESSION_EXPIRED, group="other")], [], False),
        ([replace(row(Cause.LEFT), alternatives=frozenset(["session_expired"]))], [], True),
        ([replace(row(Cause.LEFT), alternatives=frozenset(["joined"]))], [], False),
        ([], [], False),
    ],
    ids=[
        "both",
        "no events",
        "one of two",
        "inferred otherwise",
        "reported otherwise",
        "before",
        "after",
        "other",
        "allowed",
        "not allowed",
        "nothing",
    ],
)
def test_a_step_is_found_by_its_cause_in_its_time_and_group(
    inferred: list[Row], reported: list[Row], expected: bool
) -> None:
    assert found(inferred, reported) is expected


def test_every_step_that_takes_a_member_away_or_adds_one_has_a_cause() -> None:
    assert CAUSES.keys() == set(DemoStep) - {DemoStep.RESTART, DemoStep.EXECUTOR}


def test_a_rebalance_that_one_of_the_two_has_not_or_explains_otherwise_is_a_difference() -> None:
    one = row(Cause.LEFT)
    assert differences([one], [one]) == []
    assert differences([one], []) == ["delays generation 7: left, according to Spark only"]
    assert differences([one], [replace(one, cause=Cause.JOINED)]) == [
        "delays generation 7: joined, according to the doctor only",
        "delays generation 7: left, according to Spark only",
    ]


def test_rows_of_spark_are_read_from_lines_of_json() -> None:
    line = '{"group":"delays","generation":7,"at_ms":1790000105000,"cause":"left","confidence":0.9,"source":"records"}'
    assert read_rows([line]) == [row(Cause.LEFT)]
