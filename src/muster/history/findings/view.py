"""One group's rows as the doctor's rules read them, and the result of a rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.history.model import Cause, CommitNote, Generation, GroupKind, Lag, Limits, Member, Pattern, Rebalance
from muster.history.rules.rebalances import identity
from muster.history.rules.wording import count, duration, listed, named


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group's rows, each list in order of time, and the end of the history."""

    group: str
    generations: Sequence[Generation]
    rebalances: Sequence[Rebalance]
    notes: Sequence[CommitNote]
    lag: Sequence[Lag]
    now_ms: int
    limits: Limits = field(default_factory=Limits)

    def of(self, *causes: Cause) -> list[Rebalance]:
        """Its rebalances with one of these causes, except those that are part of a pattern."""
        return [each for each in self.real if each.cause in causes and each.pattern is None]

    def part_of(self, kind: Pattern) -> list[Rebalance]:
        """Its rebalances that are part of this pattern."""
        return [each for each in self.real if each.pattern is not None and each.pattern.kind is kind]

    @property
    def real(self) -> list[Rebalance]:
        """Its rebalances, without rows in which only a static member was replaced."""
        return [each for each in self.rebalances if each.generation != each.previous_generation]

    @property
    def within(self) -> list[Rebalance]:
        """Its rebalances with members before and after, except those of a stop of the group."""
        return [each for each in self.real if each.members_before and each.members_after and not each.is_stop]

    @property
    def latest(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def lag_now(self) -> list[Lag]:
        """The latest lag of each partition."""
        found = {(each.topic, each.partition): each for each in self.lag}
        return list(found.values())

    @property
    def is_modern(self) -> bool:
        """Whether it uses the KIP-848 protocol."""
        return self.latest is not None and self.latest.kind is GroupKind.CONSUMER

    @property
    def assignor(self) -> str | None:
        """The latest known assignor: a generation without members has none."""
        return next((each.protocol for each in reversed(self.generations) if each.protocol), None)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule's result. Its sentence is `what`; how often, when and at what cost, if it is about rebalances; `then`."""

    rule: str
    what: str
    advice: str
    seen: Sequence[Rebalance] = ()
    then: str = ""
    back: Sequence[Rebalance] = ()
    """Rebalances in which members that left in `seen` returned: their cost is included, but they are not counted."""
    is_last_resort: bool = False
    """Reported only if no other finding covers most of these rebalances."""
    since_ms: int = 0
    """Its time, if it is not about rebalances."""
    stopped_partition_ms: int = 0
    """Its time, if it is not about rebalances."""


# ------------------------------------------------------------------------------------------- members that left


def distinct(members: Iterable[Member]) -> str:
    """The members' names, each once."""
    return listed(dict.fromkeys(map(named, members)))


class Absence(NamedTuple):
    """A member that left, and the rebalance in which it, or another with its name, returned; None: it did not."""

    member: Member
    went: Rebalance
    back: Rebalance | None

    @property
    def away_ms(self) -> int | None:
        """How long the group was without the member."""
        return None if self.back is None else self.back.at_ms - self.went.at_ms


def gone(rebalances: Iterable[Rebalance]) -> list[Member]:
    """The members that left in these rebalances, including those that were back immediately."""
    return [member for each in rebalances for member in went(each)]


def went(row: Rebalance) -> list[Member]:
    """The members that left in a rebalance, including those that were back immediately."""
    return [*row.left, *(change.before for change in row.replaced if change.before is not None)]


def absences(view: GroupView, seen: Iterable[Rebalance]) -> list[Absence]:
    """The members that left in these rebalances, and when they returned."""
    arrivals = _Arrivals(view.real)
    found: list[Absence] = []
    for row in sorted(seen, key=lambda row: row.at_ms):
        found += [Absence(change.before, row, row) for change in row.replaced if change.before is not None]
        until_ms = row.at_ms + view.limits.pattern_ms
        found += [Absence(member, row, arrivals.take(member, row.at_ms, until_ms)) for member in row.left]
    return found


class _Arrivals:
    """Members that joined, each matched at most once with one that had left. Query it in order of time."""

    def __init__(self, rebalances: Iterable[Rebalance]) -> None:
        self._came: dict[str | tuple[str, ...], deque[tuple[int, Rebalance]]] = {}
        self._taken: set[int] = set()
        rows = sorted(rebalances, key=lambda row: row.at_ms)
        came = ((change.member, row) for row in rows for change in (*row.joined, *row.replaced))
        for number, (member, row) in enumerate(came):
            for key in (member.member_id, identity(member)):
                self._came.setdefault(key, deque()).append((number, row))

    def take(self, member: Member, after_ms: int, until_ms: int) -> Rebalance | None:
        """The first rebalance after this in which the same member, or one with its name, joined; marks it as taken."""
        first = [self._first(key, after_ms) for key in (member.member_id, identity(member))]
        number, row = min((each for each in first if each is not None), default=(0, None), key=lambda each: each[0])
        if row is None or row.at_ms > until_ms:
            return None
        self._taken.add(number)
        return row

    def _first(self, key: str | tuple[str, ...], after_ms: int) -> tuple[int, Rebalance] | None:
        came = self._came.get(key, deque())
        while came and (came[0][1].at_ms <= after_ms or came[0][0] in self._taken):
            came.popleft()
        return came[0] if came else None


def returns(view: GroupView, away: Iterable[Absence]) -> list[Rebalance]:
    """The rebalances in which nothing happened except that these members returned."""
    back: dict[int, int] = {}
    for each in away:
        if each.back is not None and each.back is not each.went:
            back[id(each.back)] = back.get(id(each.back), 0) + 1
    joins = (Cause.JOINED, Cause.COORDINATOR_MOVED)
    return [row for row in view.of(*joins) if row.joined and back.get(id(row), 0) >= len(row.joined)]


# ------------------------------------------------------------------------------------- how often, when, at what cost


def stopped_ms(rebalances: Iterable[Rebalance]) -> int:
    """Milliseconds for which partitions were stopped, summed over partitions."""
    return sum(each.stopped_partition_ms for each in rebalances)


def rounds(rebalances: Iterable[Rebalance]) -> list[Rebalance]:
    """The rebalances without second phases (a cooperative rebalance counts once, although it takes two generations) and
    without replaced static members (nothing rebalances)."""
    return [each for each in rebalances if each.phase == 1 and not each.is_takeover]


def times(view: GroupView, seen: Sequence[Rebalance]) -> str:
    """`3 times within 2.0 h, the last 25.0 min ago`."""
    first, last = seen[0].at_ms, seen[-1].at_ms
    ago = f"{duration(view.now_ms - last)} ago" if view.now_ms - last >= 1_000 else "just now"
    number = max(1, len(rounds(seen)))
    if number == 1:
        return f"once, {ago}"
    return f"{count(number, 'time')} within {duration(max(last - first, 1))}, the last {ago}"
