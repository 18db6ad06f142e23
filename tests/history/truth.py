"""The causes that the rules infer only from records, compared with those in the events of muster's broker.

A row belongs to the label (history/rules/event_rebalances.py) of its generation. The patterns that it is part of are
derived from all events, by the definitions in docs/reference/history.md: a member that leaves or dies three times
within ten minutes flaps; three or more members that leave and return on their own one after another within ten minutes
are a rolling restart, as are those for which a script says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from muster.history.model import DEPARTURES, Cause, Limits, Pattern, Rebalance
from muster.history.rules.event_explanations import EVENTS, explained
from muster.history.rules.event_rebalances import Label, by_group

WINDOW_MS = Limits().pattern_ms
SLACK_MS = 50
IN_TURN = 3


@dataclass(frozen=True)
class Script:
    """A cause or a pattern that was played on purpose: in this time, with members of these names (any, if empty)."""

    played: str
    begin_ms: int
    end_ms: int
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Judged:
    """A row of the history, and why the group really rebalanced."""

    row: Rebalance
    cause: Cause
    also: frozenset[Cause]
    """What else happened in that rebalance."""
    patterns: frozenset[Pattern]
    """The patterns that it is part of."""

    @property
    def right(self) -> bool:
        return self.row.cause is self.cause or (self.row.cause is Cause.MEMBER_GONE and self.cause in DEPARTURES)

    @property
    def near(self) -> bool:
        """Whether it names something that happened in that rebalance, as its cause or as an alternative."""
        named = {self.row.cause, *(each.cause for each in self.row.alternatives)}
        return self.right or self.cause in named or self.row.cause in self.also


@dataclass(frozen=True)
class _Leg:
    """A member's absence. `back_ms` is not after `left_ms` if its process was restarted before the member had
    expired."""

    name: str
    left_ms: int
    back_ms: int | None
    planned: bool


def judged(
    rows: Sequence[Rebalance], events: Iterable[Mapping[str, Any]], scripts: Sequence[Script] = ()
) -> Iterator[Judged]:
    """Each row that the broker's events explain. The second phases of cooperative rebalances are left out: they have
    the cause of the first."""
    told = [dict(event) for event in events]
    labels = by_group(told)
    legs = {group: _legs([event for event in told if event.get("group_id") == group]) for group in labels}
    for row in rows:
        label = _label_of(row, labels.get(row.group, []))
        if label is not None and label.phase == 1:
            yield _judge(row, label, legs[row.group], scripts)


def _label_of(row: Rebalance, labels: Sequence[Label]) -> Label | None:
    if row.generation == row.previous_generation:  # a restarted static member
        near = [each for each in labels if each.cause is Cause.STATIC_MEMBER_REPLACED and not each.rebalanced]
        return min(near, key=lambda each: abs(each.started_ms - row.at_ms), default=None)
    [known] = explained([row], {row.group: labels})
    if known.source != EVENTS:
        return None
    near = [each for each in labels if each.rebalanced and each.generation == row.generation]
    return min(near, key=lambda each: abs((each.finished_ms or 0) - row.at_ms))


def _judge(row: Rebalance, label: Label, legs: Sequence[_Leg], scripts: Sequence[Script]) -> Judged:
    also, cause = {*label.others, label.cause}, label.cause
    names = _names(label, legs)
    for script in scripts:  # without a reason, or with an instance id, the events of a slow client look the same
        if cause in _UNSURE and script.played == Cause.POLL_INTERVAL_EXCEEDED and not label.is_sure:
            cause = Cause.POLL_INTERVAL_EXCEEDED if _plays(script, label, names) else cause
    also.add(cause)
    patterns = set(_by_definition(label, names, legs))
    played = [each.played for each in scripts if _plays(each, label, names | _joined(label))]
    patterns |= {each for each in Pattern if each in played}
    return Judged(row, cause, frozenset(also), frozenset(patterns))


_UNSURE = (Cause.LEFT, Cause.SESSION_EXPIRED)


def _plays(script: Script, label: Label, names: set[str]) -> bool:
    within = script.begin_ms - SLACK_MS <= label.started_ms <= script.end_ms + SLACK_MS
    return within and (not script.names or bool(script.names & names))


def _names(label: Label, legs: Sequence[_Leg]) -> set[str]:
    """The members that left or died, or were back."""
    went = {event["client_id"] for event in label.events if event["event"] in ("MemberFenced", *_GOES)}
    joined = _joined(label)
    return went | {leg.name for leg in legs if leg.name in joined and leg.left_ms <= (label.finished_ms or 0)}


def _joined(label: Label) -> set[str]:
    return {event["client_id"] for event in label.events if event["event"] == "MemberJoined"}


def _by_definition(label: Label, names: set[str], legs: Sequence[_Leg]) -> Iterator[Pattern]:
    at_ms = label.started_ms
    near = [leg for leg in legs if abs(leg.left_ms - at_ms) <= WINDOW_MS]
    mine = {leg.name for leg in near if leg.name in names}
    if any(sum(leg.name == name for leg in near) >= 3 for name in mine):
        yield Pattern.FLAPPING
    restarts = [leg for leg in near if leg.planned and leg.back_ms is not None and leg.back_ms <= at_ms + WINDOW_MS]
    rolled: set[str] = set()
    for one, other in pairwise(restarts):
        if one.name != other.name and one.back_ms is not None and one.back_ms <= other.left_ms:
            rolled |= {one.name, other.name}
    if len(rolled) >= IN_TURN and mine & rolled:
        yield Pattern.ROLLING_RESTART


_GOES = ("MemberLeft", "MemberExpired")


def _legs(events: Sequence[Mapping[str, Any]]) -> list[_Leg]:
    """Which members left or died, when, and when they were back, in the order of their departures."""
    found: list[_Leg] = []
    living: dict[str, int] = {}
    for at, event in enumerate(events):
        name, at_ms, kind = event.get("client_id", ""), event["at_ms"], event["event"]
        if kind == "MemberJoined":
            living[name] = living.get(name, 0) + 1
        elif kind == "MemberFenced":
            found.append(_Leg(name, at_ms, at_ms, False))  # which causes no rebalance
        elif kind in _GOES:
            living[name] = living.get(name, 1) - 1
            back_ms = at_ms if living[name] > 0 else _back_ms(events[at:], name, at_ms)
            planned = kind == "MemberLeft" and "poll timeout" not in str(event.get("reason"))
            static = kind == "MemberExpired" and event.get("group_instance_id") is not None
            found.append(_Leg(name, at_ms, back_ms, planned or static or back_ms == at_ms))
    return found


def _back_ms(events: Sequence[Mapping[str, Any]], name: str, left_ms: int) -> int | None:
    joins = (event for event in events if event["event"] == "MemberJoined" and event["client_id"] == name)
    back = next(joins, None)
    return back["at_ms"] if back is not None and back["at_ms"] - left_ms <= WINDOW_MS else None
