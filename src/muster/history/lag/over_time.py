"""The lag of groups over time: at regular steps of the history.

While the log is read, the last commit of each step is kept for each partition. A step is a minute; whenever the history
spans more than `STEPS` steps, or more than `MOST_KEPT` commits are kept, the step length doubles. Two merged steps keep
the last commit of the second, so what is kept stays exact.

A log's end at a past time is the offset of the first record at or after that time (ListOffsets by timestamp). The lag
at that time is the difference from the committed offset, in offsets: transaction markers and gaps left by compaction
are included. Its age is accurate to one step: the committed offset was the log's end at some earlier step.

- These are record timestamps: with CreateTime the result is as accurate as the producers' clocks.
- Nothing is known from before the log's current start, because the records are gone. Such steps are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from muster.history.lag import lag
from muster.history.model import LAST_MS, Commits, Lag, TopicPartition

STEPS = 128
"""The maximum number of steps of a history, which has at least half of that."""
MINUTE_MS = 60_000
MOST_KEPT = 2_000_000
MOST_LOOKUPS = 20_000
"""The most log ends to look up, for all partitions and times together."""
FEWEST_TIMES = 16
"""With too many partitions for this many times, some partitions are left out."""
_DELETED = -1


class StepCommit(NamedTuple):
    """The last commit of a step. The step's number is its end, in steps since the epoch."""

    step: int
    offset: int
    commit_ms: int


class CommitTimeline:
    """The commits of groups over time: for each partition the last one of each step."""

    def __init__(self, since_ms: int = 0) -> None:
        self.step_ms = MINUTE_MS
        self.commits: dict[str, dict[TopicPartition, list[StepCommit]]] = {}
        self._since_ms = since_ms
        self._first_ms: int | None = None
        self._last_ms = 0
        self._size = 0

    def add(self, group: str, commits: Commits) -> None:
        """Add a group's commits, which follow all earlier ones."""
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
        own = self.commits.setdefault(group, {})
        for index, *found in zip(*columns, strict=True):
            self._keep(own.setdefault(commits.names[index], []), StepCommit(*found))
        while self._size > MOST_KEPT:
            self._coarsen()

    def reach(self, until_ms: int, step_ms: int = 0) -> int:
        """Extend the history up to a time. Returns its step length, which is at least `step_ms`."""
        if self._first_ms is not None:
            self._reach(self._first_ms, until_ms)
        while self.step_ms < step_ms:
            self._coarsen()
        return self.step_ms

    def merge(self, other: CommitTimeline) -> None:
        """Add the commits of other groups."""
        if other._first_ms is None:
            return
        step_ms = max(self.step_ms, other.step_ms)
        for one in (self, other):
            while one.step_ms < step_ms:
                one._coarsen()
        for group, own in other.commits.items():
            self.commits.setdefault(group, {}).update(own)
        self._size += other._size
        self._reach(other._first_ms, other._last_ms)

    def leave_out(self, groups: Iterable[str]) -> None:
        """Forget these groups."""
        for group in groups:
            self._size -= sum(map(len, self.commits.pop(group, {}).values()))

    def only(self, place: TopicPartition) -> CommitTimeline:
        """The commits of one partition."""
        found = CommitTimeline(self._since_ms)
        found.step_ms, found._first_ms, found._last_ms = self.step_ms, self._first_ms, self._last_ms
        found.commits = {group: {place: own[place]} for group, own in self.commits.items() if place in own}
        return found

    def _reach(self, first_ms: int, last_ms: int) -> None:
        self._first_ms = first_ms if self._first_ms is None else min(first_ms, self._first_ms)
        self._last_ms = max(last_ms, self._last_ms)
        while self._last_ms - self._first_ms > STEPS * self.step_ms:
            self._coarsen()

    def _keep(self, kept: list[StepCommit], found: StepCommit) -> None:
        """Log order counts, not the clock: no commit belongs to an earlier step than the one before it."""
        if kept and kept[-1].step >= found.step:
            kept[-1] = found._replace(step=kept[-1].step)
        else:
            kept.append(found)
            self._size += 1

    def _coarsen(self) -> None:
        self.step_ms *= 2
        self._size = 0
        for places in self.commits.values():
            for name, kept in places.items():
                thin: list[StepCommit] = []
                places[name] = thin
                for each in kept:
                    self._keep(thin, each._replace(step=-(-each.step // 2)))

    def times(self, until_ms: int) -> list[int]:
        """The ends of the steps up to a time. Extends the history, with longer steps if necessary."""
        if self._first_ms is None:
            return []
        self.reach(until_ms)
        first, last = -(-self._first_ms // self.step_ms), until_ms // self.step_ms
        return [step * self.step_ms for step in range(first, last + 1)]


def committed_at(kept: Sequence[StepCommit], times: Sequence[int], step_ms: int) -> list[StepCommit | None]:
    """What was committed at each of these increasing times; None: nothing."""
    found: list[StepCommit | None] = []
    at = 0
    for time in times:
        while at < len(kept) and kept[at].step * step_ms <= time:
            at += 1
        latest = kept[at - 1] if at else None
        found.append(None if latest is None or latest.offset == _DELETED else latest)
    return found


class EndLookups(NamedTuple):
    """The partitions and times for which to look up log ends."""

    places: list[TopicPartition]
    times: list[int]
    left_out: int


def committed_partitions(
    timeline: CommitTimeline, behind: Mapping[TopicPartition, int] | None = None
) -> list[TopicPartition]:
    """The committed partitions, those with the most lag first."""
    known = behind or {}
    found = sorted({place for own in timeline.commits.values() for place in own})
    return sorted(found, key=lambda each: -known.get(each, 0))


def plan_lookups(places: Sequence[TopicPartition], times: Sequence[int], most: int = MOST_LOOKUPS) -> EndLookups:
    """What to look up in the cluster: fewer times if there are many partitions, and if that is still too much, without
    the last partitions."""
    times = list(times)
    while len(times) >= 2 * FEWEST_TIMES and len(times) * len(places) > most:
        times = times[::-1][::2][::-1]
    taken = most // max(1, len(times))
    return EndLookups(list(places[:taken]), times, max(0, len(places) - taken))


LogEnds = Mapping[TopicPartition, Sequence[int | None]]
"""Where logs ended at each of some times; None: not known."""


def lag_over_time(timeline: CommitTimeline, times: Sequence[int], ends: LogEnds) -> list[Lag]:
    """The lag of each group at each of these times, by group, partition and time."""
    return [
        row
        for group, own in sorted(timeline.commits.items())
        for place, kept in sorted(own.items())
        if place in ends
        for row in _rows(group, place, committed_at(kept, times, timeline.step_ms), times, ends[place])
    ]


def _rows(
    group: str,
    place: TopicPartition,
    committed: Iterable[StepCommit | None],
    times: Sequence[int],
    ends: Sequence[int | None],
) -> Iterable[Lag]:
    for at_ms, found, end in zip(times, committed, ends, strict=True):
        if found is not None and end is not None:
            # Record timestamps may be wrong, but the log had what was committed.
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
    """The longest that the record at an offset can have waited: the log did not have it at some earlier time."""
    before = [
        time for time, end in zip(times, ends, strict=True) if time <= at_ms and end is not None and end <= offset
    ]
    return at_ms - before[-1] if before else None
