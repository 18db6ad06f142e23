"""Examines the demo's groups: each step must be found, with its cause, in `__consumer_offsets`.

Two programs read the same records: the Spark job that makes the history of all groups, and the doctor. They must
agree. The causes of the steps are inferred from the records alone, as on any cluster. muster's broker also wrote
what it saw to `__group_events`; where it did, the inference is compared with that too, so that a cause is
not found for the wrong reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.client.admin.admin import Admin
from muster.client.config import AdminConfig
from muster.demo.run.cluster_access import ClusterAccess
from muster.demo.run.plan import CompletedStep, DemoStep
from muster.history import doctor
from muster.history.model import Cause, Rebalance
from muster.history.report import Report
from muster.history.sources.live import ReaderConfig

CAUSES = {
    DemoStep.JOIN: Cause.JOINED,
    DemoStep.KILL: Cause.SESSION_EXPIRED,
    DemoStep.DRIVER: Cause.SESSION_EXPIRED,
    DemoStep.LEAVE: Cause.LEFT,
}
"""The cause of each step. A killed executor and a restarted broker cause no rebalance: members survive them."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A step, and the cause expected in a group."""

    completed: CompletedStep
    group: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Row:
    """The relevant fields of a rebalance."""

    group: str
    generation: int
    at_ms: int
    cause: str
    source: str = "records"
    """`events` if the broker reported the cause."""
    alternatives: frozenset[str] = frozenset()
    """Other causes that the records allow: in an idle group, a member that left looks like one that expired."""


@dataclass(frozen=True, slots=True)
class StepFinding:
    """What was found for one step: the inferred causes, and those that the broker reported."""

    expected: Expected
    inferred: tuple[Row, ...]
    reported: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the cause was inferred, alone or among those that the records allow, and the broker agrees."""
        cause = self.expected.cause
        found = any(cause == row.cause or cause in row.alternatives for row in self.inferred)
        return found and (not self.reported or cause in self.reported)

    def __str__(self) -> str:
        return ", ".join(" or ".join([row.cause, *sorted(row.alternatives)]) for row in self.inferred) or "no rebalance"


@dataclass(frozen=True, slots=True)
class Examination:
    """The doctor's report on all groups, what was found for each step, and whether Spark and the doctor agree."""

    report: Report
    found: tuple[StepFinding, ...]
    rebalances: int
    """Rebalances of all groups in Spark's tables."""
    disagreements: tuple[str, ...]


def examine(access: ClusterAccess, groups: Sequence[str], tables: Path, expected: Iterable[Expected]) -> Examination:
    """Read the groups' history from the cluster, and compare it with `tables`, the rebalances that Spark's job wrote as
    lines of JSON."""
    config = ReaderConfig.of(access.settings(), client_id="muster-demo")
    with Admin(asdict(config.narrowed(AdminConfig))) as admin:
        seen = doctor.read_cluster(admin, config, doctor.Selection(list(groups)), None, _ignore)
    report, inferred = seen.report(), seen.report(with_events=False)
    spark = read_rows(tables.read_text(encoding="utf-8").splitlines())
    reported = [row for row in spark if row.source == "events"]
    found = findings(expected, [_row(each, with_alternatives=True) for each in inferred.rebalances], reported)
    return Examination(report, tuple(found), len(spark), tuple(differences(spark, map(_row, report.rebalances))))


def _ignore(_sentence: str) -> None:
    """The demo shows a summary; what could not be read is in the report's warnings."""


def _row(rebalance: Rebalance, *, with_alternatives: bool = False) -> Row:
    alternatives = frozenset(str(each.cause) for each in rebalance.alternatives if with_alternatives)
    return Row(
        rebalance.group, rebalance.generation, rebalance.at_ms, str(rebalance.cause), rebalance.source, alternatives
    )


def read_rows(lines: Iterable[str]) -> list[Row]:
    """The rows of Spark's table."""
    found = (json.loads(line) for line in lines)
    return [Row(row["group"], row["generation"], row["at_ms"], row["cause"], row["source"]) for row in found]


def findings(expected: Iterable[Expected], inferred: Sequence[Row], reported: Sequence[Row]) -> list[StepFinding]:
    """Each step with an expected cause, and the causes of its group's rebalances during the step."""
    return [
        StepFinding(each, _during(each, inferred), tuple(row.cause for row in _during(each, reported)))
        for each in expected
    ]


def _during(expected: Expected, rebalances: Sequence[Row]) -> tuple[Row, ...]:
    completed = expected.completed
    return tuple(
        row for row in rebalances if row.group == expected.group and completed.start_ms <= row.at_ms <= completed.end_ms
    )


def differences(spark: Iterable[Row], doctor: Iterable[Row]) -> list[str]:
    """Rebalances that only one of the two found, or for which they found different causes."""
    one, other = set(spark), set(doctor)
    alone = [(row, who) for rows, who in ((one - other, "Spark"), (other - one, "the doctor")) for row in rows]
    return sorted(
        f"{row.group} generation {row.generation}: {row.cause}, according to {who} only" for row, who in alone
    )
