"""When a group's partitions were last committed, as numpy columns.

A topic holds thousands of commits for each generation, so nothing here handles one commit at a time. A chunk's commits
are compared with the previous ones once (`Commits` sorted by partition); the commits between two records of the group
are folded with a handful of array operations.

**Time.** Records are in log order; their times are from the brokers' clocks. `Clock` derives a time that never falls:
it stops where clocks differ by a little, and continues from where it was when a clock was set back by more, or the next
coordinator's clock is that far behind. It also stops where a record's time is outside the calendar. All rules compare
these times; rows show the records' own.

**Non-members.** A member that learns of a generation that revokes a partition commits it once more before it joins the
next one. So a commit by an owner in the previous generation does not count as one by a non-member. While a group is
empty, Kafka accepts commits from any client, such as an operator's tool; repeated ones come from a program.

**Tenure.** A commit does not name its member. It is attributed to the partition's owner from the assignment on. That is
the member's tenure: a rebalance in which it keeps the partition does not end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from muster.history.model import LAST_MS, CommitNote, Commits, How, TopicPartition

if TYPE_CHECKING:
    from muster.history.model import Int64s

SET_BACK_MS = 5_000
"""Synchronized brokers' clocks differ by less. One that falls by more was set back, or is another broker's: if the time
stood still until the clock caught up, every silence in between would be too short."""
_FARTHEST_MS = 1 << 61
"""However often a clock is set back, a time fits 64 bits."""
NEVER = -1


@dataclass(slots=True)
class Clock:
    """A time that never falls, from the times of records in log order."""

    high_ms: int | None = None
    offset_ms: int = 0

    def times(self, raw: Int64s) -> Int64s:
        """The times of the next records."""
        if not len(raw):
            return raw
        usual = int(raw.min()) >= 0 and int(raw.max()) <= LAST_MS
        high = (int(raw[0]) if usual else 0) if self.high_ms is None else self.high_ms
        if usual:
            risen = np.maximum.accumulate(np.maximum(raw, high))
            if int((risen - raw).max()) <= SET_BACK_MS:
                self.high_ms = int(risen[-1])
                return risen + self.offset_ms
        found = []
        for time in raw.tolist():
            if not 0 <= time <= LAST_MS:
                time = high
            if time < high - SET_BACK_MS and self.offset_ms < _FARTHEST_MS:
                self.offset_ms += high - time
                high = time
            high = max(high, time)
            found.append(high + self.offset_ms)
        self.high_ms = high
        return np.array(found, dtype=np.int64)

    def at(self, time_ms: int) -> int:
        """Converts a time by the latest record's clock to the group's clock."""
        return time_ms + self.offset_ms

    @property
    def now(self) -> int:
        return (self.high_ms or 0) + self.offset_ms


class Signs(NamedTuple):
    """The commits of some partitions by their owner during its tenure; times are by the group's clock."""

    commits: int
    last_ms: int
    moved_on_ms: int
    """When an offset last changed; both are -1 if there is no such commit."""
    longest_gap_ms: int
    """The interval between two commits of the same partition in one generation, which shows how regular they are. -1
    with fewer than two. An eager member commits nothing during a rebalance, however long others take to join."""
    last_how: How = How.UNKNOWN
    """How the last one was committed."""


NO_SIGNS = Signs(0, NEVER, NEVER, NEVER)

_LAST, _MOVED_ON, _COUNT, _LONGEST, _HOW, _OFFSET, _SINCE, _OWNED, _NOTED = range(9)
_SIGNS = 5
"""The first rows of the columns."""
_EMPTY = (NEVER, NEVER, 0, NEVER, int(How.UNKNOWN), NEVER, NEVER, 2, 0)
_NOW, _BEFORE, _UNOWNED = 2, 1, 0
"""The values of the column _OWNED: owned by a member now; by a member in the previous generation; by neither."""
_HABIT = 3
"""This many commits of a partition in an empty group come from a program, not from a reset."""


# Below, `columns[ROW][numbers]` instead of `columns[ROW, numbers]`: for a few numbers it takes a tenth of the time.


def _blank(size: int) -> Int64s:
    return np.repeat(np.array(_EMPTY, dtype=np.int64)[:, None], size, axis=1)


@dataclass(slots=True)
class CommitTimes:
    """The latest commits of each partition of a group, and the member that owns it."""

    index: dict[TopicPartition, int] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    owners_known: bool = False
    has_strangers: bool = False
    """Whether there are partitions that no member owns."""
    generation: int = NEVER
    """The generation of the owners."""
    others: int = _UNOWNED
    """The state of unknown partitions: `_BEFORE` if the log lacks the previous generation."""
    began_ms: int = NEVER
    """When the owners were last set: the beginning of the generation."""
    columns: Int64s = field(default_factory=lambda: _blank(8))
    lists: list[list[int]] | None = None
    """The columns of the signs as lists, which are faster for a few numbers; None once a column has changed."""

    def number(self, place: TopicPartition) -> int:
        """The column of a partition."""
        found = self.index.get(place)
        if found is None:
            found = self.index[place] = len(self.index)
            if found >= self.columns.shape[1]:
                self.columns = np.concatenate([self.columns, _blank(max(8, found))], axis=1)
                self.lists = None
            self.columns[_OWNED][found] = self.others if self.owners_known else _NOW
            self.has_strangers |= self.owners_known
        return found

    def own(self, owners: dict[TopicPartition, str], now_ms: int, generation: int) -> None:
        """Set which member owns what from now on, possibly more than once in a generation."""
        former = self.owners
        changed = [self.number(place) for place, member_id in owners.items() if former.get(place) != member_id]
        dropped = [self.number(place) for place in former if place not in owners]
        columns = self.columns
        if changed or dropped:
            numbers = np.array(changed + dropped, dtype=np.int64)
            columns[_SINCE][numbers] = now_ms
            columns[_COUNT][numbers] = 0
            columns[_LONGEST][numbers] = NEVER
            self.lists = None
        owned = columns[_OWNED]
        if not self.owners_known or generation != self.generation:
            follows = generation == self.generation + 1 if self.owners_known else generation <= 1
            self.others = _UNOWNED if follows or not owners else _BEFORE
            owned[(owned != _NOW) | (not self.owners_known)] = self.others
        owned[dropped] = _BEFORE if owners else _UNOWNED
        owned[changed if self.owners_known else [self.index[place] for place in owners]] = _NOW
        if self.has_strangers and generation != self.generation:
            columns[_NOTED] = 0
        self.owners, self.owners_known = owners, True
        self.generation, self.began_ms = generation, now_ms
        self.has_strangers = len(owners) < len(self.index)

    def disown(self) -> None:
        """The owners are not known from now on, so commits by non-members cannot be detected."""
        self.owners = {}
        self.owners_known = self.has_strangers = False
        self.columns[_NOTED] = 0

    def rename(self, before: str, after: str) -> None:
        """A member continues under another id."""
        self.owners = {place: after if owner == before else owner for place, owner in self.owners.items()}

    def signs(self, places: Iterable[TopicPartition]) -> Signs:
        """The commits of these partitions, which have the same owner."""
        index = self.index
        lasts, moved_on, counts, longest, how = self._lists()
        shown = [number for place in places if (number := index.get(place)) is not None and counts[number]]
        if not shown:
            return NO_SIGNS
        last, last_how = max([(lasts[number], how[number]) for number in shown])
        return Signs(
            max([counts[number] for number in shown]),
            last,
            max([moved_on[number] for number in shown]),
            max([longest[number] for number in shown]),
            How(last_how),
        )

    def _lists(self) -> list[list[int]]:
        if self.lists is None:
            self.lists = self.columns[:_SIGNS].tolist()
        return self.lists

    def lasts(self, places: Iterable[TopicPartition]) -> list[int]:
        """When each of these partitions was last committed, or -1."""
        index, last = self.index, self._lists()[_LAST]
        return [last[index[place]] if place in index else NEVER for place in places]

    def topics(self) -> set[str]:
        """The topics that have been committed."""
        last = self.columns[_LAST]
        return {topic for (topic, _), number in self.index.items() if last[number] != NEVER}

    def forget_expired(self) -> None:
        """Drop partitions that have neither an offset nor an owner, once they are the majority."""
        self.lists = None
        if len(self.index) < 64:
            return
        offsets, lasts = self.columns[_OFFSET].tolist(), self.columns[_LAST].tolist()
        kept = [
            place
            for place, number in self.index.items()
            if offsets[number] != NEVER or lasts[number] == NEVER or place in self.owners
        ]
        if 2 * len(kept) > len(self.index):
            return
        columns = _blank(max(8, len(kept)))
        columns[:, : len(kept)] = self.columns[:, [self.index[place] for place in kept]]
        self.columns, self.index = columns, {place: number for number, place in enumerate(kept)}
        self.has_strangers = self.owners_known and len(self.owners) < len(kept)


class Stretches:
    """A chunk's commits and the previous state, for folding one stretch after another."""

    def __init__(self, known: CommitTimes, group: str, commits: Commits, times: Int64s) -> None:
        self._known, self._group, self._commits = known, group, commits
        self.times = times
        numbers = np.array([known.number(place) for place in commits.names], dtype=np.int64)
        self.numbers = numbers[commits.partition] if len(times) else commits.partition
        self._places = commits.names
        self._compare()
        self.notes: list[tuple[int, CommitNote]] = []

    def _compare(self) -> None:
        """Compare each commit with the previous one of the same partition."""
        offsets, numbers = self._commits.offset, self.numbers
        size = len(offsets)
        self._live = offsets >= 0
        self._all_live = bool(self._live.all()) if size else True
        self._previous = np.empty(size, dtype=np.int64)
        previous_times = np.empty(size, dtype=np.int64)
        if not size:
            self._gap = self._odd = previous_times
            return
        order = np.argsort(numbers, kind="stable")
        by_partition = numbers[order]
        is_first = np.empty(size, dtype=bool)
        is_first[0] = True
        np.not_equal(by_partition[1:], by_partition[:-1], out=is_first[1:])
        before_offset, before_time = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        before_offset[1:], before_time[1:] = offsets[order][:-1], self.times[order][:-1]
        firsts = by_partition[is_first]
        columns = self._known.columns
        before_offset[is_first], before_time[is_first] = columns[_OFFSET][firsts], columns[_LAST][firsts]
        self._previous[order], previous_times[order] = before_offset, before_time
        known = (self._previous >= 0) & (previous_times >= 0)
        self._gap = np.where(known, self.times - previous_times, NEVER)
        self._odd = np.flatnonzero((offsets < self._previous) & (self._previous >= 0) | ~self._live)

    def take(self, first: int, end: int) -> None:
        """Fold the commits [first, end)."""
        known, span = self._known, slice(first, end)
        numbers, times, offsets = self.numbers[span], self.times[span], self._commits.offset[span]
        how = self._commits.how[span]
        self._note(first, end)
        columns = known.columns
        known.lists = None
        columns[_OFFSET][numbers] = offsets  # of several for one partition, numpy keeps the last
        if not self._all_live:
            live = self._live[span]
            if not live.any():
                return
            numbers, times, offsets, how = numbers[live], times[live], offsets[live], how[live]
            gap, previous = self._gap[span][live], self._previous[span][live]
        else:
            gap, previous = self._gap[span], self._previous[span]
        columns[_LAST][numbers] = times
        columns[_HOW][numbers] = how
        moved_on = offsets != previous
        columns[_MOVED_ON][numbers[moved_on]] = times[moved_on]
        within = (gap >= 0) & (times - gap >= np.maximum(columns[_SINCE][numbers], known.began_ms))
        np.maximum.at(columns[_LONGEST], numbers[within], gap[within])
        np.add.at(columns[_COUNT], numbers, 1)

    def _note(self, first: int, end: int) -> None:
        offsets = self._commits.offset[first:end]
        for at in self._odd[slice(*np.searchsorted(self._odd, (first, end)))].tolist() if len(self._odd) else ():
            kind = "deleted" if self._commits.offset[at] < 0 else "rewind"
            self.notes.append((at, self._row(at, kind)))
        known = self._known
        if not known.has_strangers:
            return
        columns, numbers = known.columns, self.numbers[first:end]
        fewest = 1 if known.owners else _HABIT
        strange = (columns[_OWNED][numbers] == _UNOWNED) & (columns[_NOTED][numbers] < fewest) & (offsets >= 0)
        if not strange.any():
            return
        found = np.flatnonzero(strange)
        found = found[np.argsort(numbers[found], kind="stable")]
        of, begins, counts = np.unique(numbers[found], return_index=True, return_counts=True)
        wanted = fewest - columns[_NOTED][of] - 1
        for at in (found[(begins + wanted)[counts > wanted]] + first).tolist():
            self.notes.append((at, self._row(at, "non_member")))
        columns[_NOTED][of] = np.minimum(columns[_NOTED][of] + counts, fewest)

    def _row(self, at: int, kind: str) -> CommitNote:
        topic, partition = self._places[int(self._commits.partition[at])]
        time, offset = int(self._commits.timestamp_ms[at]), int(self._commits.offset[at])
        how = int(self._commits.how[at])
        is_transactional = None if how == How.UNKNOWN else how == How.TRANSACTIONAL
        return CommitNote(self._group, topic, partition, time, kind, offset, int(self._previous[at]), is_transactional)

    def firsts(self, first: int, end: int, until_ms: int, awaited: Iterable[int]) -> list[tuple[int, int]]:
        """For these partitions' columns the first commit in [first, end), if it is not later than `until_ms`."""
        span = slice(first, end)
        numbers, times = self.numbers[span], self.times[span]
        if not self._all_live:
            numbers, times = numbers[self._live[span]], times[self._live[span]]
        found = np.full(self._known.columns.shape[1], NEVER, dtype=np.int64)
        found[numbers[::-1]] = times[::-1]
        return [(number, time) for number in awaited if 0 <= (time := int(found[number])) <= until_ms]

    def has_progress(self, first: int, end: int, until_ms: int, numbers: Sequence[int]) -> bool:
        """Whether one of these partitions' columns has a commit of a new offset, no later than `until_ms`."""
        span = slice(first, end)
        other = (self._commits.offset[span] != self._previous[span]) & self._live[span]
        return bool(np.isin(self.numbers[span][other & (self.times[span] <= until_ms)], numbers).any())

    def ordered_notes(self) -> list[CommitNote]:
        """The notes on the folded commits, in log order."""
        return [note for _, note in sorted(self.notes, key=lambda found: found[0])]
