"""The doctor's findings: what is wrong with a group, since when, what it cost, and which setting to change to what.

A rule reads one group's rows and returns nothing or one finding (rebalances.py, offsets.py). A figure in its advice
comes from the evidence (how long a member was gone, the timeout that it requested), never only from a table of good
values.

Costs are observed upper bounds: a partition counts as stopped from its last commit before a rebalance to its first
commit after it, which includes the normal interval between two commits. The cost of a rebalance is counted under one
finding; other findings about the same rebalance (how a group rebalances, as opposed to why) refer to that one. A daily
rate is given only if the problem recurred over a day or longer: a single incident has no rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from muster.history.findings import offsets as offset_findings
from muster.history.findings import rebalances as rebalance_findings
from muster.history.findings.view import GroupView, RuleResult, stopped_ms, times
from muster.history.model import Finding
from muster.history.rules.wording import duration, listed

__all__ = ["RULES", "GroupView", "Rule", "findings"]

_DAY_MS = 86_400_000

Rule: TypeAlias = Callable[[GroupView], RuleResult | None]

RULES: tuple[Rule, ...] = (*rebalance_findings.RULES, *offset_findings.RULES)
"""If several rules report the same rebalances, the first one carries their cost."""

_HOW = frozenset({"never_at_rest", "stops_the_world", "needless_moves"})
"""Findings about how a group rebalances."""


def findings(views: Iterable[GroupView]) -> list[Finding]:
    """The findings about these groups, the group with the most costly finding first. Within a group, why it rebalances
    comes before how it does: the latter makes each rebalance more expensive, but is not what triggers it."""
    found = [finding for view in views for finding in _of_group(view)]
    highest_cost: dict[str, int] = {}
    for each in found:
        highest_cost[each.group] = max(each.stopped_partition_ms, highest_cost.get(each.group, 0))
    return sorted(
        found,
        key=lambda each: (
            -highest_cost[each.group],
            each.group,
            each.rule in _HOW,
            -each.stopped_partition_ms,
            each.rule,
        ),
    )


def _of_group(view: GroupView) -> list[Finding]:
    found = []
    counted: dict[int, str] = {}
    """The rule under which a rebalance's cost is counted, by the row's `id`."""
    for rule in RULES:
        result = rule(view)
        if result is None or (
            result.is_last_resort and 2 * sum(id(each) in counted for each in result.seen) > len(result.seen)
        ):
            continue
        found.append(_finding(view, result, counted))
        for each in (*result.seen, *result.back):
            counted.setdefault(id(each), result.rule)
    return found


def _finding(view: GroupView, result: RuleResult, counted: dict[int, str]) -> Finding:
    if not result.seen:
        cost, since_ms = result.stopped_partition_ms, result.since_ms
        until_ms = since_ms  # a lasting state has no rate
        sentence = f"{result.what}."
    else:
        since_ms, until_ms = result.seen[0].at_ms, result.seen[-1].at_ms
        whole = [*result.seen, *result.back]
        cost = stopped_ms(each for each in whole if id(each) not in counted)
        sentence = f"{result.what}: {times(view, result.seen)}{_stopped_for(cost)}."
        others = {counted[id(each)]: None for each in whole if id(each) in counted and each.stopped}
        if others:
            sentence += f" {'More' if cost else 'The'} cost is counted under {listed(others)}."
    if result.then:
        sentence += f" {result.then}"
    return Finding(
        group=view.group,
        rule=result.rule,
        since_ms=since_ms,
        sentence=sentence,
        stopped_partition_ms=cost,
        stopped_partition_ms_per_day=_a_day(cost, until_ms - since_ms, view.now_ms - since_ms),
        advice=result.advice,
    )


def _stopped_for(cost_ms: int) -> str:
    return f"; partitions were stopped for up to {duration(cost_ms)} in total" if cost_ms else ""


def _a_day(cost_ms: int, seen_ms: int, span_ms: int) -> int | None:
    """`seen_ms`: from the first to the last time; `span_ms`: from the first until now."""
    return cost_ms * _DAY_MS // span_ms if cost_ms and seen_ms >= _DAY_MS else None
