"""A bucket of groups: what Spark keeps as state under one key, and what comes out when something is read.

The rules are the history's folds; here is only which state they are given, what is told besides, and what may be
forgotten. Pure: time comes in as `now_ms`, state goes in and out as bytes.

Between two batches each group is frozen (pickled), and thawed when something is read of it. At a tick all are: rows
that time alone makes final come out, and beside them how things stand: rows that would come out if this were the log's
end. These are told anew at each tick; `final` rows are told once.

A group is forgotten when it has nothing left: no generation under way, no offset committed, no row that waits. Else the
state would grow with each group that ever was, and there are tools that make up a name for each run.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from muster.history.chunks import chunks, no_commits
from muster.history.findings import View, findings
from muster.history.fold import finish, fold, start
from muster.history.group_state import GroupState
from muster.history.lag import CommitSeries, Committed, Standing, lag_rows, standing
from muster.history.model import (
    Chunk,
    Finding,
    GroupKind,
    Lag,
    LagSample,
    Limits,
    Rows,
    TopicPartition,
)

_REMEMBERED = 20_000
"""How many of a group's rows its findings are made of, at most."""


_NO_LIMITS = Limits()


class LogBounds(NamedTuple):
    """Where a partition's log begins and ends."""

    start: int
    end: int


class Stand(NamedTuple):
    """How things stand with a group: what it has committed, and when that expires."""

    group: str
    committed: dict[TopicPartition, Committed]
    standing: Standing


@dataclass(slots=True)
class _Group:
    """A group's state, what it has committed, and the time of its last record."""

    state: GroupState
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    last_ms: int = 0


@dataclass(slots=True)
class Told:
    """What a bucket has to tell: rows that are final, and how things stand."""

    final: Rows = field(default_factory=Rows)
    open: Rows = field(default_factory=Rows)
    stands: list[Stand] = field(default_factory=list)


class Bucket:
    """Groups of one log partition."""

    def __init__(self, limits: Limits, stored: bytes = b"") -> None:
        self._limits = limits
        self._frozen: dict[str, bytes] = pickle.loads(stored) if stored else {}
        self._thawed: dict[str, _Group] = {}
        self.told = Told()

    def store(self) -> bytes:
        """All that the next batch needs to know."""
        for name, group in self._thawed.items():
            self._frozen[name] = _freeze(group)
        self._thawed.clear()
        return pickle.dumps(self._frozen, pickle.HIGHEST_PROTOCOL) if self._frozen else b""

    def take(self) -> Told:
        """What there is to tell since this was last called."""
        told, self.told = self.told, Told()
        return told

    def read(self, entries: pa.Table) -> None:
        """Go on with these entries, which follow all that were read before."""
        for chunk in chunks(entries, None):
            group = self._group(chunk.group)
            self.told.final.extend(fold(group.state, chunk))
            if len(chunk.commits.offset):
                group.committed = CommitSeries(chunk.commits, group.committed).latest()
            group.last_ms = max(group.last_ms, _last_ms(chunk))

    def tick(self, now_ms: int) -> None:
        """All that was written before `now_ms` has been read: close what waits for that, and say how things stand."""
        for name in sorted(self._frozen.keys() | self._thawed.keys()):
            group = self._group(name)
            self.told.final.extend(fold(group.state, Chunk(name, (), no_commits(), now_ms)))
            frozen = _freeze(group)
            still_open = finish(self._thaw(frozen).state, now_ms)
            if self._told_all(name, group, still_open, now_ms):
                del self._thawed[name]

    def end(self, now_ms: int) -> None:
        """There is nothing behind what was read: all rows are final."""
        for name in sorted(self._frozen.keys() | self._thawed.keys()):
            group = self._group(name)
            rows = finish(group.state, now_ms)
            self.told.final.extend(rows)
            self.told.stands.append(_stand(name, group, rows))
        self._thawed.clear()

    def _told_all(self, name: str, group: _Group, rows: Rows, now_ms: int) -> bool:
        """Say how things stand with a group; whether it may be forgotten."""
        lives = group.committed or group.last_ms + self._limits.pattern_ms >= now_ms
        lives = lives or any(each.kind is not GroupKind.OFFSETS_ONLY for each in rows.generations)
        if lives or rows.rebalances or rows.notes:
            self.told.open.extend(rows)
            self.told.stands.append(_stand(name, group, rows))
            return False
        self.told.final.extend(rows)
        return True

    def _thaw(self, frozen: bytes) -> _Group:
        group: _Group = pickle.loads(frozen)
        group.state.limits = self._limits
        return group

    def _group(self, name: str) -> _Group:
        group = self._thawed.get(name)
        if group is None:
            frozen = self._frozen.pop(name, None)
            group = self._thaw(frozen) if frozen is not None else _Group(start(name, self._limits))
            self._thawed[name] = group
        return group


def _freeze(group: _Group) -> bytes:
    """A group as bytes, without the limits: they are the same for all, and may be others when it is thawed."""
    limits, group.state.limits = group.state.limits, _NO_LIMITS
    try:
        return pickle.dumps(group, pickle.HIGHEST_PROTOCOL)
    finally:
        group.state.limits = limits


def _stand(name: str, group: _Group, rows: Rows) -> Stand:
    return Stand(name, group.committed, standing(rows.generations[-1] if rows.generations else None))


def _last_ms(chunk: Chunk) -> int:
    commits = chunk.commits.timestamp_ms
    last = int(commits[-1]) if len(commits) else 0
    return max(last, chunk.entries[-1].at.timestamp_ms) if chunk.entries else last


def lag_of(
    stands: Iterable[Stand], bounds: Mapping[TopicPartition, LogBounds], at_ms: int, limits: Limits
) -> Iterator[Lag]:
    """How far groups are behind, in the partitions whose bounds are known at `at_ms`."""
    for group, committed, stands_so in stands:
        samples = [
            LagSample(at_ms, group, *place, bounds[place].start, bounds[place].end)
            for place in sorted(committed)
            if place in bounds
        ]
        yield from lag_rows(CommitSeries(no_commits(), committed), samples, stands_so, limits)


_FIRST = "generations"


class Views:
    """Keeps the last rows of each group, for what there is to say about it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: dict[str, dict[str, deque[Any]]] = {}

    def add(self, rows: Rows) -> None:
        """More rows."""
        self.add_table("generations", rows.generations)
        self.add_table("rebalances", rows.rebalances)
        self.add_table("notes", rows.notes)

    def add_table(self, name: str, rows: Iterable[Any]) -> None:
        """More rows of one table."""
        for row in rows:
            kept = self._kept.setdefault(row.group, {}).setdefault(name, deque(maxlen=_REMEMBERED))
            kept.append(row)

    def findings(self, now_ms: int) -> list[Finding]:
        """What there is to say."""
        return findings(self._view(group, tables, now_ms) for group, tables in sorted(self._kept.items()))

    def _view(self, group: str, tables: Mapping[str, deque[Any]], now_ms: int) -> View:
        generations = sorted(tables.get(_FIRST, ()), key=lambda row: row.at)
        by_time = {name: sorted(rows, key=lambda row: row.at_ms) for name, rows in tables.items() if name != _FIRST}
        rebalances, notes, lag = (by_time.get(name, ()) for name in ("rebalances", "notes", "lag"))
        return View(group, generations, rebalances, notes, lag, now_ms, self._limits)
