"""Which member read which partition when: the events that members report, and what is computed from them.

Theory. A member reports what it reads whenever that changes, as it believes, which may be out of date. So two
members can hold a partition at the same time, and the recorder looks for that. A frozen member reads nothing, whatever
it believes; its partitions have no owner then, unless another member has taken over. All times are milliseconds of one
clock, which all processes of the machine share.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Owns(NamedTuple):
    """From now on a member reads these partitions, and no others."""

    at_ms: int
    member: str
    partitions: frozenset[int]


class Gone(NamedTuple):
    """A member has left or was killed: it no longer reads anything."""

    at_ms: int
    member: str


class Frozen(NamedTuple):
    """A member is paused."""

    at_ms: int
    member: str


class Awake(NamedTuple):
    """A paused member continues."""

    at_ms: int
    member: str


class Handled(NamedTuple):
    """A member has handled the records from offset `first` to `last` of a partition."""

    at_ms: int
    member: str
    partition: int
    first: int
    last: int


OwnershipEvent = Owns | Gone | Frozen | Awake


class Hold(NamedTuple):
    """How long a member believed it held a partition."""

    partition: int
    member: str
    start_ms: int
    end_ms: int


class Period(NamedTuple):
    """An interval of time."""

    start_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        """Its length."""
        return self.end_ms - self.start_ms


class Double(NamedTuple):
    """A period in which two or more members read one partition."""

    partition: int
    members: tuple[str, ...]
    start_ms: int
    end_ms: int


class OwnershipState:
    """The group as its members see it now: takes their events one by one."""

    def __init__(self) -> None:
        self.owned: dict[str, frozenset[int]] = {}
        self.frozen: set[str] = set()
        self.reported_at: dict[str, int] = {}
        """When each member last reported what it reads."""

    def take(self, event: OwnershipEvent) -> None:
        """Take an event into account."""
        match event:
            case Owns():
                self.owned[event.member] = event.partitions
                self.reported_at[event.member] = event.at_ms
            case Gone():
                self.owned.pop(event.member, None)
                self.frozen.discard(event.member)
                self.reported_at.pop(event.member, None)
            case Frozen():
                self.frozen.add(event.member)
            case Awake():
                self.frozen.discard(event.member)

    def shared(self, members: Iterable[str], partitions: int, since_ms: int | None = None) -> bool:
        """Whether these members, and no others that are awake, share all partitions evenly, one owner each.

        With `since_ms` each of them must have reported since then.
        """
        expected = set(members)
        if self.owned.keys() - self.frozen != expected:
            return False
        if since_ms is not None and any(self.reported_at[member] < since_ms for member in expected):
            return False
        counts = sorted(len(self.owned[member]) for member in expected)
        held = [partition for member in expected for partition in self.owned[member]]
        return sorted(held) == list(range(partitions)) and (not counts or counts[-1] - counts[0] <= 1)


def holds(events: Iterable[OwnershipEvent], end_ms: int) -> list[Hold]:
    """Each time that a member held a partition, in the order of their ends; those still open end at `end_ms`."""
    found: list[Hold] = []
    since: dict[tuple[str, int], int] = {}
    for event in sorted(events, key=lambda event: event.at_ms):
        if not isinstance(event, Owns | Gone):
            continue
        now = event.partitions if isinstance(event, Owns) else frozenset()
        before = {partition for member, partition in since if member == event.member}
        for partition in sorted(before - now):
            start = since.pop((event.member, partition))
            found.append(Hold(partition, event.member, start, event.at_ms))
        for partition in now - before:
            since[event.member, partition] = event.at_ms
    found += [Hold(partition, member, start, end_ms) for (member, partition), start in sorted(since.items())]
    return [hold for hold in found if hold.start_ms < hold.end_ms]


def naps(events: Iterable[OwnershipEvent], end_ms: int) -> dict[str, list[Period]]:
    """The times in which each member was paused."""
    found: dict[str, list[Period]] = defaultdict(list)
    asleep: dict[str, int] = {}
    for event in sorted(events, key=lambda event: event.at_ms):
        if isinstance(event, Frozen):
            asleep.setdefault(event.member, event.at_ms)
        elif isinstance(event, Awake | Gone) and event.member in asleep:
            found[event.member].append(Period(asleep.pop(event.member), event.at_ms))
    for member, start in asleep.items():
        found[member].append(Period(start, end_ms))
    return dict(found)


def awake(held: Iterable[Hold], asleep: dict[str, list[Period]]) -> list[Hold]:
    """The parts of the holds in which their members were not paused."""
    found = []
    for hold in held:
        start = hold.start_ms
        for nap in asleep.get(hold.member, ()):
            if nap.end_ms > start and nap.start_ms < hold.end_ms:
                found.append(hold._replace(start_ms=start, end_ms=nap.start_ms))
                start = nap.end_ms
        found.append(hold._replace(start_ms=start))
    return [hold for hold in found if hold.start_ms < hold.end_ms]


def ownerless_ms(held: Iterable[Hold], partitions: int, during: Period) -> int:
    """How long no member read a partition, summed over the partitions."""
    covered = 0
    for stretches in _by_partition(held).values():
        covered += sum(span.length_ms for span in _union(_clip(stretches, during)))
    return partitions * during.length_ms - covered


def doubles(held: Iterable[Hold]) -> list[Double]:
    """The periods in which a partition had two or more owners, each as long as the owners stayed the same."""
    found: list[Double] = []
    for partition, stretches in sorted(_by_partition(held).items()):
        moments = sorted({moment for hold in stretches for moment in (hold.start_ms, hold.end_ms)})
        for start, end in pairwise(moments):
            members = tuple(sorted({hold.member for hold in stretches if hold.start_ms <= start < hold.end_ms}))
            if len(members) < 2:
                continue
            last = found[-1] if found else None
            if last is not None and last[:2] == (partition, members) and last.end_ms == start:
                found[-1] = last._replace(end_ms=end)
            else:
                found.append(Double(partition, members, start, end))
    return sorted(found, key=lambda double: double.start_ms)


def union_ms(spans: Iterable[Period]) -> int:
    """How much time at least one of these periods covers."""
    return sum(span.length_ms for span in _union(spans))


class Offsets:
    """A set of offsets, as runs from a first to a last one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        """The offset after the last one of each run, in order. Runs do not touch."""

    def add(self, first: int, last: int) -> int:
        """Add a run. Returns how many of its offsets were in the set before."""
        end = last + 1
        begin = bisect_right(self._ends, first - 1)
        stop = bisect_right(self._starts, end)
        known = 0
        for start, until in zip(self._starts[begin:stop], self._ends[begin:stop], strict=True):
            known += max(0, min(end, until) - max(first, start))
        if begin < stop:
            first, end = min(first, self._starts[begin]), max(end, self._ends[stop - 1])
        self._starts[begin:stop], self._ends[begin:stop] = [first], [end]
        return known

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def until(self) -> int:
        """The first offset, from 0 on, that is not in the set."""
        return self._ends[0] if self._starts and self._starts[0] <= 0 else 0


class HandledRecords:
    """What was handled, and how much of it again."""

    def __init__(self) -> None:
        self._offsets: dict[int, Offsets] = defaultdict(Offsets)
        self.twice: list[tuple[int, str, int]] = []
        """When records were handled again, by which member, and how many."""

    def take(self, handled: Handled) -> None:
        """Take what a member has handled into account."""
        again = self._offsets[handled.partition].add(handled.first, handled.last)
        if again:
            self.twice.append((handled.at_ms, handled.member, again))

    @property
    def distinct(self) -> int:
        """How many records were handled, each counted once."""
        return sum(len(offsets) for offsets in self._offsets.values())

    def reached(self, ends: dict[int, int]) -> bool:
        """Whether all records before these offsets are handled."""
        return all(self._offsets[partition].until() >= end for partition, end in ends.items())

    def lost(self, ends: dict[int, int]) -> int:
        """How many records before these offsets were never handled."""
        return sum(ends.values()) - self.distinct

    def twice_during(self, during: Period) -> int:
        """How many were handled again in that time."""
        return sum(count for at, _, count in self.twice if during.start_ms <= at < during.end_ms)


def _by_partition(held: Iterable[Hold]) -> dict[int, list[Hold]]:
    found: dict[int, list[Hold]] = defaultdict(list)
    for hold in held:
        found[hold.partition].append(hold)
    return found


def _clip(held: Sequence[Hold], during: Period) -> list[Period]:
    spans = [Period(max(hold.start_ms, during.start_ms), min(hold.end_ms, during.end_ms)) for hold in held]
    return [span for span in spans if span.length_ms > 0]


def _union(spans: Iterable[Period]) -> list[Period]:
    found: list[Period] = []
    for span in sorted(spans):
        if found and span.start_ms <= found[-1].end_ms:
            found[-1] = Period(found[-1].start_ms, max(found[-1].end_ms, span.end_ms))
        else:
            found.append(span)
    return found
