"""The result of reading the history once: the rows of all groups, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from muster.history.lag import total
from muster.history.model import CommitNote, Counts, Finding, Generation, GroupKind, Lag, LagSample, Rebalance

Row = TypeVar("Row", Generation, Rebalance, CommitNote, Lag, LagSample, Finding)


@dataclass(slots=True)
class Report:
    """The rows of all groups, each list in order of time within a group; findings ranked."""

    source: str
    """Where it was read, for people: `the cluster at localhost:9092`."""
    from_ms: int | None
    """The time of the first record that was read; None if there was none."""
    until_ms: int
    generations: list[Generation] = field(default_factory=list)
    rebalances: list[Rebalance] = field(default_factory=list)
    notes: list[CommitNote] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)
    lag_over_time: list[Lag] = field(default_factory=list)
    """At steps over the time that was read, in offsets: the committed offsets against the logs' ends at that time."""
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)
    kinds: dict[str, GroupKind] = field(default_factory=dict)
    """Every group that was seen, with its protocol, including those without generations."""
    since_ms: int | None = None
    """Everything before this time is left out; None: nothing is."""
    warnings: list[str] = field(default_factory=list)
    """What was not read or not decoded, and what that means for the rows."""

    def of(self, group: str) -> Report:
        """The report on one group."""
        return self.of_groups([group])

    def of_groups(self, groups: Iterable[str]) -> Report:
        """The report on some groups."""
        wanted = frozenset(groups)
        return replace(
            self,
            generations=[each for each in self.generations if each.group in wanted],
            rebalances=[each for each in self.rebalances if each.group in wanted],
            notes=[each for each in self.notes if each.group in wanted],
            lag=[each for each in self.lag if each.group in wanted],
            lag_over_time=[each for each in self.lag_over_time if each.group in wanted],
            findings=[each for each in self.findings if each.group in wanted],
            kinds={group: kind for group, kind in self.kinds.items() if group in wanted},
        )

    def since(self, since_ms: int) -> Report:
        """The report since a time: generations that had not ended by then, and later rebalances and notes."""
        return replace(
            self,
            since_ms=since_ms,
            generations=[each for each in self.generations if each.ended_ms is None or each.ended_ms >= since_ms],
            rebalances=[each for each in self.rebalances if each.at_ms >= since_ms],
            notes=[each for each in self.notes if each.at_ms >= since_ms],
            lag_over_time=[each for each in self.lag_over_time if each.at_ms >= since_ms],
        )


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group at the end of the history."""

    group: str
    kind: GroupKind
    protocol_type: str
    """`consumer`; `connect`, `sr` or another for clients that assign something else. "" if not known."""
    generation: int | None
    members: int
    rebalances: int
    lag_records: int | None
    """Summed over its partitions; None if no log's end is known."""
    is_exact: bool
    findings: int
    last_rebalance_ms: int | None

    @property
    def protocol_label(self) -> str:
        """Its protocol, with the protocol type if the members are not consumers."""
        other = self.protocol_type not in ("", "consumer", self.kind.value)
        return f"{self.kind.value} ({self.protocol_type})" if other else self.kind.value


def summaries(report: Report) -> list[GroupSummary]:
    """Every group: groups with findings first, then those that rebalanced most."""
    generations, rebalances = by_group(report.generations), by_group(report.rebalances)
    lags, found = by_group(report.lag), by_group(report.findings)
    rows = [
        _summary(
            group,
            kind,
            generations.get(group, []),
            rebalances.get(group, []),
            lags.get(group),
            len(found.get(group, [])),
        )
        for group, kind in report.kinds.items()
    ]
    return sorted(rows, key=lambda row: (-row.findings, -row.rebalances, row.group))


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each group, in the given order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def _summary(
    group: str,
    kind: GroupKind,
    generations: Sequence[Generation],
    rebalances: Sequence[Rebalance],
    lag: Sequence[Lag] | None,
    findings: int,
) -> GroupSummary:
    latest = generations[-1] if generations else None
    now = {(each.topic, each.partition): each for each in lag or ()}.values()
    return GroupSummary(
        group=group,
        kind=kind,
        protocol_type=next((each.protocol_type for each in reversed(generations) if each.protocol_type), ""),
        generation=latest.generation if latest else None,
        members=len(latest.members) if latest and latest.ended_ms is None else 0,
        rebalances=sum(row.is_rebalance for row in rebalances),
        lag_records=total(each.lag_records for each in now) if lag is not None else None,
        is_exact=all(each.is_exact for each in now),
        findings=findings,
        last_rebalance_ms=next((row.at_ms for row in reversed(rebalances) if row.is_rebalance), None),
    )
