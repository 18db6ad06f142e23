"""What the doctor must find of each step of the demo."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.demo.examination import CAUSES, findings
from muster.demo.plan import Deed, Step
from muster.history.model import Cause, Rebalance
from tests.support.history_report import busy

AT_MS = 1_790_000_100_000
DEED = Deed(Step.KILL, AT_MS, AT_MS + 10_000)


def row(cause: Cause, at_ms: int = AT_MS + 5_000, source: str = "records") -> Rebalance:
    return replace(busy()[1][0], cause=cause, at_ms=at_ms, source=source)


def found(inferred: list[Rebalance], told: list[Rebalance]) -> bool:
    (only,) = findings([DEED, replace(DEED, step=Step.RESTART)], told, inferred)
    return only.ok


@pytest.mark.parametrize(
    ("inferred", "told", "expected"),
    [
        ([row(Cause.SESSION_EXPIRED)], [row(Cause.SESSION_EXPIRED, source="events")], True),
        ([row(Cause.SESSION_EXPIRED)], [row(Cause.SESSION_EXPIRED)], True),
        ([row(Cause.JOINED), row(Cause.SESSION_EXPIRED)], [], True),
        ([row(Cause.LEFT)], [row(Cause.SESSION_EXPIRED, source="events")], False),
        ([row(Cause.SESSION_EXPIRED)], [row(Cause.LEFT, source="events")], False),
        ([row(Cause.SESSION_EXPIRED, AT_MS - 1)], [], False),
        ([row(Cause.SESSION_EXPIRED, AT_MS + 10_001)], [], False),
        ([], [], False),
    ],
    ids=["both", "no events", "one of two", "inferred otherwise", "told otherwise", "before", "after", "nothing"],
)
def test_a_step_is_found_by_its_cause_in_its_time(
    inferred: list[Rebalance], told: list[Rebalance], expected: bool
) -> None:
    assert found(inferred, told) is expected


def test_every_step_but_the_broker_s_restart_has_a_cause() -> None:
    assert CAUSES.keys() == set(Step) - {Step.RESTART}
