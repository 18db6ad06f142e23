"""The demo looked at by the doctor: what was done to the group must be found, with its cause, in `__consumer_offsets`.

The causes are inferred from the records alone, as on any cluster. muster's broker wrote what it saw to `__group_events`
as well; where it did, what was inferred is held against that too, so that a cause is not found for a wrong reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from muster.client.admin import Admin
from muster.client.config import AdminConfig
from muster.demo.plan import Deed, Step
from muster.demo.way import Way
from muster.history import look
from muster.history.live import ReaderConfig
from muster.history.model import Cause, Rebalance
from muster.history.report import Report

CAUSES = {Step.JOIN: Cause.JOINED, Step.KILL: Cause.SESSION_EXPIRED, Step.LEAVE: Cause.LEFT}
"""What each step must be found as. The broker's restart is none: members outlive it without a rebalance."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the doctor made of one step: the causes that it inferred, and those that the broker told."""

    step: Step
    expected: Cause
    inferred: tuple[Cause, ...]
    told: tuple[Cause, ...]

    @property
    def ok(self) -> bool:
        """Whether the cause is there, and the broker saw it so."""
        return self.expected in self.inferred and (not self.told or self.expected in self.told)


@dataclass(frozen=True, slots=True)
class Examination:
    """The group's history, with the broker's own word where there is one, and what was found of each step."""

    report: Report
    found: tuple[Found, ...]


def examine(way: Way, group: str, deeds: Iterable[Deed]) -> Examination:
    """Read the group's history from the cluster, while it still runs."""
    config = ReaderConfig.of(way.settings(), client_id="muster-demo")
    with Admin(asdict(config.narrowed(AdminConfig))) as admin:
        seen = look.at_cluster(admin, config, look.Asked([group]), None, _unheard)
    report, inferred = seen.report(), seen.report(with_events=False)
    return Examination(report, tuple(findings(deeds, report.rebalances, inferred.rebalances)))


def _unheard(_sentence: str) -> None:
    """The demo shows a summary; what could not be read stands among the report's warnings."""


def findings(deeds: Iterable[Deed], rebalances: Iterable[Rebalance], inferred: Sequence[Rebalance]) -> list[Found]:
    """Each step that must cause a rebalance, with the causes of the rebalances while it was done: those that a broker
    told among `rebalances`, and those inferred."""
    told = [row for row in rebalances if row.source == "events"]
    return [
        Found(deed.step, CAUSES[deed.step], _during(deed, inferred), _during(deed, told))
        for deed in deeds
        if deed.step in CAUSES
    ]


def _during(deed: Deed, rebalances: Sequence[Rebalance]) -> tuple[Cause, ...]:
    return tuple(row.cause for row in rebalances if deed.start_ms <= row.at_ms <= deed.end_ms)
