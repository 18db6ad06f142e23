"""What groups had committed over time, and how far behind they were: the lag at the steps of a grid of times.

While the log is read, of each partition's commits the last one of each step is kept. A step is a minute, and as soon as
what was read spans more than `STEPS` steps, twice as long: of two steps the last commit is that of the second, so what
is kept stays exact. Memory is bounded: with more than `MOST_KEPT` commits steps become longer, too.

Where a log ended at a time in the past, the cluster tells by time: the offset of the first record of that time or
later. So the lag at that time is the difference. It is in offsets: transaction markers and what compaction took are
among them. Its age is known to a step: what was committed then, was the log's end at some earlier step.

- Times are the records': of a topic with the producers' times (CreateTime) the end is as right as these are.
- Of the time before a log's start of today nothing is known: records of then are gone. Such steps are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from muster.history.lag import lag
from muster.history.model import LAST_MS, Commits, Lag, TopicPartition

STEPS = 128
"""The most steps that a history spans; it spans at least half as many."""
MINUTE_MS = 60_000
MOST_KEPT = 2_000_000
MOST_ASKED = 20_000
"""How many ends are asked for, at most: of each partition at each time."""
FEWEST_TIMES = 16
"""Of more partitions than can be asked so often, some are left out."""
_DELETED = -1


class Kept(NamedTuple):
    """The last commit of a step; the step's number, which is its end in steps since the epoch."""

    step: int
    offset: int
    commit_ms: int


class Past:
    """The commits of groups, thinned out."""

    def __init__(self, since_ms: int = 0) -> None:
        self.step_ms = MINUTE_MS
        self.kept: dict[str, dict[TopicPartition, list[Kept]]] = {}
        self._since_ms = since_ms
        self._first_ms: int | None = None
        self._last_ms = 0
        self._size = 0

    def add(self, group: str, commits: Commits) -> None:
        """Add these commits of a group, which follow all earlier ones."""
        if not len(commits.offset):
            return
        order = np.argsort(commits.partition, kind="stable")
        partition, offset, commit_ms = commits.partition[order], commits.offset[order], commits.commit_ms[order]
        time_ms = np.where(offset == _DELETED, commits.timestamp_ms[order], commit_ms)
        time_ms = np.clip(time_ms, self._since_ms, LAST_MS)
        self._reach(int(time_ms.min()), int(time_ms.max()))
        steps = -(-time_ms // self.step_ms)
        is_last = np.append((steps[1:] != steps[:-1]) | (partition[1:] != partition[:-1]), True)
        columns = (column[is_last].tolist() for column in (partition, steps, offset, commit_ms))
        own = self.kept.setdefault(group, {})
        for index, *found in zip(*columns, strict=True):
            self._keep(own.setdefault(commits.names[index], []), Kept(*found))
        while self._size > MOST_KEPT:
            self._coarsen()

    def reach(self, until_ms: int, step_ms: int = 0) -> int:
        """Extend the history up to then. Returns the length of its steps, which is at least `step_ms`."""
        if self._first_ms is not None:
            self._reach(self._first_ms, until_ms)
        while self.step_ms < step_ms:
            self._coarsen()
        return self.step_ms

    def merge(self, other: Past) -> None:
        """Take in what another has of other groups."""
        if other._first_ms is None:
            return
        step_ms = max(self.step_ms, other.step_ms)
        for one in (self, other):
            while one.step_ms < step_ms:
                one._coarsen()
        for group, own in other.kept.items():
            self.kept.setdefault(group, {}).update(own)
        self._size += other._size
        self._reach(other._first_ms, other._last_ms)

    def only(self, place: TopicPartition) -> Past:
        """That of one partition."""
        found = Past(self._since_ms)
        found.step_ms, found._first_ms, found._last_ms = self.step_ms, self._first_ms, self._last_ms
        found.kept = {group: {place: own[place]} for group, own in self.kept.items() if place in own}
        return found

    def _reach(self, first_ms: int, last_ms: int) -> None:
        self._first_ms = first_ms if self._first_ms is None else min(first_ms, self._first_ms)
        self._last_ms = max(last_ms, self._last_ms)
        while self._last_ms - self._first_ms > STEPS * self.step_ms:
            self._coarsen()

    def _keep(self, kept: list[Kept], found: Kept) -> None:
        """The log's order counts, not the clock's: no commit is of an earlier step than the one before it."""
        if kept and kept[-1].step >= found.step:
            kept[-1] = found._replace(step=kept[-1].step)
        else:
            kept.append(found)
            self._size += 1

    def _coarsen(self) -> None:
        self.step_ms *= 2
        self._size = 0
        for places in self.kept.values():
            for name, kept in places.items():
                thin: list[Kept] = []
                places[name] = thin
                for each in kept:
                    self._keep(thin, each._replace(step=-(-each.step // 2)))

    def times(self, until_ms: int) -> list[int]:
        """The ends of the steps that have passed by then; extends the history, with longer steps if it must."""
        if self._first_ms is None:
            return []
        self.reach(until_ms)
        first, last = -(-self._first_ms // self.step_ms), until_ms // self.step_ms
        return [step * self.step_ms for step in range(first, last + 1)]


def committed_at(kept: Sequence[Kept], times: Sequence[int], step_ms: int) -> list[Kept | None]:
    """What was committed at each of these times, which rise; None: nothing."""
    found: list[Kept | None] = []
    at = 0
    for time in times:
        while at < len(kept) and kept[at].step * step_ms <= time:
            at += 1
        latest = kept[at - 1] if at else None
        found.append(None if latest is None or latest.offset == _DELETED else latest)
    return found


class Asked(NamedTuple):
    """Of which partitions the ends are asked for, and at which times."""

    places: list[TopicPartition]
    times: list[int]
    left_out: int


def places_of(past: Past, behind: Mapping[TopicPartition, int] | None = None) -> list[TopicPartition]:
    """The partitions that have been committed; those that are behind now first."""
    known = behind or {}
    found = sorted({place for own in past.kept.values() for place in own})
    return sorted(found, key=lambda each: -known.get(each, 0))


def plan(places: Sequence[TopicPartition], times: Sequence[int], most: int = MOST_ASKED) -> Asked:
    """What to ask the cluster for: of many partitions at fewer times, and of the last ones nothing where these are too
    many still."""
    times = list(times)
    while len(times) >= 2 * FEWEST_TIMES and len(times) * len(places) > most:
        times = times[::-1][::2][::-1]
    taken = most // max(1, len(times))
    return Asked(list(places[:taken]), times, max(0, len(places) - taken))


Ends = Mapping[TopicPartition, Sequence[int | None]]
"""Where logs ended at each of some times; None where that is not known."""


def lag_over_time(past: Past, times: Sequence[int], ends: Ends) -> list[Lag]:
    """The lag of each group at each of these times, by group, partition and time."""
    return [
        row
        for group, own in sorted(past.kept.items())
        for place, kept in sorted(own.items())
        if place in ends
        for row in _rows(group, place, committed_at(kept, times, past.step_ms), times, ends[place])
    ]


def _rows(
    group: str,
    place: TopicPartition,
    committed: Iterable[Kept | None],
    times: Sequence[int],
    ends: Sequence[int | None],
) -> Iterable[Lag]:
    for at_ms, found, end in zip(times, committed, ends, strict=True):
        if found is not None and end is not None:
            # The end of then is known by the records' times. The log had what was committed then, whatever these say.
            records = lag(found.offset, max(end, found.offset))
            yield Lag(
                group=group,
                topic=place[0],
                partition=place[1],
                at_ms=at_ms,
                committed_offset=found.offset,
                committed_ms=found.commit_ms,
                log_start_offset=0,
                log_end_offset=end,
                lag_records=records,
                is_exact=records == 0,
                lag_ms=0 if records == 0 else _age(found.offset, at_ms, times, ends),
                lost_records=0,
                expires_ms=None,
            )


def _age(offset: int, at_ms: int, times: Sequence[int], ends: Sequence[int | None]) -> int | None:
    """How long the record at an offset has waited, at most: the log did not have it at some earlier time."""
    before = [
        time for time, end in zip(times, ends, strict=True) if time <= at_ms and end is not None and end <= offset
    ]
    return at_ms - before[-1] if before else None
