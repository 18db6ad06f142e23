"""A bucket of groups: what Spark keeps as state under one key, and the rows that result when something is read.

The rules are the history's folds; this module decides which state they get, what else is emitted, and what may be
forgotten. Pure: time comes in as `now_ms`, state goes in and out as bytes.

Between two batches each group is frozen (pickled), and thawed when one of its records is read. At a tick all are
thawed: rows that time alone makes final are emitted, and also open rows: those that would be final if this were the
log's end. Open rows are emitted again at each tick, `final` rows once.

A group is forgotten when nothing of it remains: no current generation, no committed offset, no pending row. Otherwise
the state would grow with every group that ever existed, and some tools invent a name for each run.

Events that a broker reports about its groups (`__group_events`, which muster's has) are recorded before the records of
the same time are folded; each rebalance row gets the broker's explanation before it is emitted. For groups that are not
in any log, the events themselves become records (event_history.py) and are folded, at a tick or at the end: by then the
events of several partitions are in time order.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from muster.history.entries.chunks import chunks, no_commits
from muster.history.entries.decode import decode
from muster.history.entries.synthetic_records import SyntheticRecords
from muster.history.event_history import ToldGroup
from muster.history.findings import GroupView, findings
from muster.history.lag.over_time import CommitTimeline
from muster.history.lag.rows import CommitSeries, Committed, ExpiryState, expiry_state
from muster.history.model import (
    Chunk,
    Finding,
    Generation,
    GroupKind,
    Limits,
    Rows,
    TopicPartition,
)
from muster.history.rules.event_explanations import Event, Heard, event_at, explained
from muster.history.rules.fold import finish, fold, start
from muster.history.rules.group_state import ReplayedState

_REMEMBERED = 20_000
"""The maximum number of a group's rows from which its findings are made."""


_NO_LIMITS = Limits()


class GroupStatus(NamedTuple):
    """A group's current state: what it has committed, and when that expires."""

    group: str
    committed: dict[TopicPartition, Committed]
    expiry: ExpiryState
    kind: GroupKind


@dataclass(slots=True)
class _Group:
    """A group's fold state, its committed offsets, and the time of its last record."""

    state: ReplayedState
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    last_ms: int = 0
    told: ToldGroup | None = None
    """For a group that is not in any log: its history from events."""
    told_to: dict[int, int] = field(default_factory=dict)
    """The offset up to which that history has the events of each partition."""


@dataclass(slots=True)
class BucketOutput:
    """What a bucket emits: final rows, open rows, and the state of its groups."""

    final: Rows = field(default_factory=Rows)
    open: Rows = field(default_factory=Rows)
    statuses: list[GroupStatus] = field(default_factory=list)


class Bucket:
    """Groups of one log partition."""

    def __init__(self, limits: Limits, stored: bytes = b"") -> None:
        self._limits = limits
        self._frozen: dict[str, bytes]
        self._heard: dict[str, Heard]
        self._frozen, self._heard = pickle.loads(stored) if stored else ({}, {})
        self._thawed: dict[str, _Group] = {}
        self.output = BucketOutput()
        self.timeline: CommitTimeline | None = None
        """What groups have committed over time, if wanted; it is not stored."""

    def store(self) -> bytes:
        """The state for the next batch."""
        for name, group in self._thawed.items():
            self._frozen[name] = _freeze(group)
        self._thawed.clear()
        kept = self._frozen, self._heard
        return pickle.dumps(kept, pickle.HIGHEST_PROTOCOL) if any(kept) else b""

    def take(self) -> BucketOutput:
        """What has accumulated since the last call."""
        output, self.output = self.output, BucketOutput()
        return output

    def read(self, entries: pa.Table) -> None:
        """Fold these entries, which follow all that were read before."""
        for chunk in chunks(entries, None):
            group = self._group(chunk.group)
            self._emit(chunk.group, fold(group.state, chunk))
            if len(chunk.commits.offset):
                if self.timeline is not None and group.state.kind is not GroupKind.SINK:
                    self.timeline.add(chunk.group, chunk.commits)
                group.committed = CommitSeries(chunk.commits, group.committed).latest()
            group.last_ms = max(group.last_ms, _last_ms(chunk))
            self._forget_events(chunk.group, group, group.last_ms)

    def add_events(self, events: pa.Table, *, is_all: bool = False) -> None:
        """Record what brokers reported (rows of EVENTS). `is_all`: these groups are not in any log."""
        for name, rows in _by_group(events).items():
            heard = self._heard.setdefault(name, Heard(is_all=is_all))
            heard.add(rows)

    def _fold_events(self, *, is_last: bool = False) -> None:
        """Fold the events of groups that are not in any log."""
        for name, heard in self._heard.items():
            if heard.is_all:
                group = self._group(name)
                fresh = [each for each in heard.waiting if each.offset > group.told_to.get(each.partition, -1)]
                group.told = group.told or ToldGroup(name)
                written = SyntheticRecords()
                group.told.take([each.fields for each in fresh], written, is_last=is_last)
                for each in fresh:
                    group.told_to[each.partition] = max(each.offset, group.told_to.get(each.partition, -1))
                    group.last_ms = max(group.last_ms, each.at_ms)
                for piece in written.read(0):
                    self.read(decode(pa.Table.from_batches([piece])).entries)

    def tick(self, now_ms: int) -> None:
        """Everything written before `now_ms` has been read: close what waits for that, and emit open rows and
        states."""
        self._fold_events()
        for name in sorted(self._frozen.keys() | self._thawed.keys()):
            group = self._group(name)
            self._emit(name, fold(group.state, Chunk(name, (), no_commits(), now_ms)))
            self._forget_events(name, group, now_ms)
            frozen = _freeze(group)
            still_open = self._explained(name, finish(self._thaw(frozen).state, now_ms))
            if self._emit_open(name, group, still_open, now_ms):
                del self._thawed[name]
        for name in self._heard.keys() - self._thawed.keys():
            self._forget_events(name, None, now_ms)

    def end(self, now_ms: int) -> None:
        """Nothing follows what was read: all rows are final."""
        self._fold_events(is_last=True)
        for name in sorted(self._frozen.keys() | self._thawed.keys()):
            group = self._group(name)
            rows = self._emit(name, finish(group.state, now_ms))
            self.output.statuses.append(_status(name, group, rows))
        self._thawed.clear()

    def _emit(self, name: str, rows: Rows) -> Rows:
        """Emit final rows, with explanations; returns them."""
        if not self._is_of_sink(name):
            self.output.final.extend(self._explained(name, rows))
        return rows

    def _is_of_sink(self, name: str) -> bool:
        """A group in which a sink marks what it has written has a state, but no rows (sink_groups.py)."""
        group = self._thawed.get(name)
        return group is not None and group.state.kind is GroupKind.SINK

    def _explained(self, name: str, rows: Rows) -> Rows:
        heard, group = self._heard.get(name), self._thawed.get(name)
        if group is not None and group.told is not None:
            rows.rebalances = group.told.rows(rows.rebalances)
        if heard is not None and rows.rebalances:
            rows.rebalances = explained(rows.rebalances, {name: heard.labels()})
        return rows

    def _forget_events(self, name: str, group: _Group | None, now_ms: int) -> None:
        """Forget events that no future row can need."""
        heard = self._heard.get(name)
        if heard is not None:
            pending = () if group is None else group.state.pending
            before_ms = min((now_ms, *(each.at_ms for each in pending))) - 2 * self._limits.pattern_ms
            heard.forget(before_ms)
            if group is not None and group.told is not None:
                group.told.began = {each for each in group.told.began if each[1] >= before_ms}
            if heard.is_empty and group is None:
                del self._heard[name]

    def _emit_open(self, name: str, group: _Group, rows: Rows, now_ms: int) -> bool:
        """Emit a group's open rows and state; returns whether it may be forgotten."""
        lives = group.committed or group.last_ms + self._limits.pattern_ms >= now_ms
        lasting = [each for each in rows.generations if _lasts(each, group)]
        lives = lives or any(each.kind is not GroupKind.OFFSETS_ONLY for each in lasting)
        lives = lives or (group.told is not None and group.told.is_rebalancing)
        if lives or rows.rebalances:
            if not self._is_of_sink(name):
                self.output.open.extend(rows)
            self.output.statuses.append(_status(name, group, rows))
            return False
        if not self._is_of_sink(name):
            self.output.final.extend(rows)
        if group.told is not None:
            del self._heard[name]  # all its events have been folded
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


def _lasts(generation: Generation, group: _Group) -> bool:
    """Whether this generation keeps its group from being forgotten. A log says when an empty group is deleted; no event
    does."""
    return bool(generation.members) or group.told is None


def _freeze(group: _Group) -> bytes:
    """A group as bytes, without the limits: all groups share them, and they may differ when it is thawed."""
    limits, group.state.limits = group.state.limits, _NO_LIMITS
    try:
        return pickle.dumps(group, pickle.HIGHEST_PROTOCOL)
    finally:
        group.state.limits = limits


def _by_group(events: pa.Table) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for group, partition, offset, value in zip(*(column.to_pylist() for column in events.columns), strict=True):
        event = event_at(partition, offset, value)
        if event is not None and event.fields.get("group_id") == group:
            found.setdefault(group, []).append(event)
    return found


def _status(name: str, group: _Group, rows: Rows) -> GroupStatus:
    latest = rows.generations[-1] if rows.generations else None
    return GroupStatus(name, group.committed, expiry_state(latest), group.state.kind)


def _last_ms(chunk: Chunk) -> int:
    commits = chunk.commits.timestamp_ms
    last = int(commits[-1]) if len(commits) else 0
    return max(last, chunk.entries[-1].at.timestamp_ms) if chunk.entries else last


_FIRST = "generations"


class GroupViews:
    """Keeps the last rows of each group, for its findings."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: dict[str, dict[str, deque[Any]]] = {}

    def add(self, rows: Rows) -> None:
        """Add rows."""
        self.add_table("generations", rows.generations)
        self.add_table("rebalances", rows.rebalances)
        self.add_table("notes", rows.notes)

    def add_table(self, name: str, rows: Iterable[Any]) -> None:
        """Add rows of one table."""
        for row in rows:
            kept = self._kept.setdefault(row.group, {}).setdefault(name, deque(maxlen=_REMEMBERED))
            kept.append(row)

    def behind(self) -> dict[TopicPartition, int]:
        """The ends of the partitions in which a group is behind."""
        lag = (row for tables in self._kept.values() for row in tables.get("lag", ()))
        return {(row.topic, row.partition): row.log_end_offset for row in lag if row.lag_records > 0}

    def findings(self, now_ms: int) -> list[Finding]:
        """The findings."""
        return findings(self._view(group, tables, now_ms) for group, tables in sorted(self._kept.items()))

    def _view(self, group: str, tables: Mapping[str, deque[Any]], now_ms: int) -> GroupView:
        generations = sorted(tables.get(_FIRST, ()), key=lambda row: row.at)
        by_time = {name: sorted(rows, key=lambda row: row.at_ms) for name, rows in tables.items() if name != _FIRST}
        rebalances, notes, lag = (by_time.get(name, ()) for name in ("rebalances", "notes", "lag"))
        return GroupView(group, generations, rebalances, notes, lag, now_ms, self.limits)
