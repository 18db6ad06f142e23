"""The small engine: one pass over each log partition in this process, with Arrow and the same rules as Spark's.

A partition is read in pieces. Each is decoded, sorted by group and folded; only the groups' states and the rows are
kept. So memory is bounded by a piece, the groups' current state, and the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from muster.history.entries.chunks import chunks, no_commits
from muster.history.entries.decode import BROKEN, decode
from muster.history.findings import GroupView, findings
from muster.history.lag.over_time import CommitTimeline
from muster.history.lag.rows import CommitSeries, CommittedOf, expiry_state, lag_rows
from muster.history.model import (
    LAST_MS,
    Commits,
    Counts,
    Generation,
    GroupKind,
    Lag,
    LagSample,
    Limits,
    Rows,
)
from muster.history.report import Report, by_group
from muster.history.rules import fold as rules
from muster.history.rules.event_explanations import event_of, explained
from muster.history.rules.event_rebalances import by_group as labels_by_group
from muster.history.rules.group_state import ReplayedState
from muster.history.sources.reading import TopicSource, side_by_side
from muster.protocol.record_kinds import KIND_NAMES

if TYPE_CHECKING:
    from muster.history.model import Int64s

PIECE_ROWS = 1 << 19
PIECE_BYTES = 64 << 20


@dataclass(slots=True)
class GroupHistory:
    """The contents of `__consumer_offsets`."""

    rows: Rows = field(default_factory=Rows)
    committed: CommittedOf = field(default_factory=dict)
    kinds: dict[str, GroupKind] = field(default_factory=dict)
    timeline: CommitTimeline = field(default_factory=CommitTimeline)
    """The committed offsets over time."""
    counts: Counts = field(default_factory=dict)
    from_ms: int | None = None
    until_ms: int | None = None
    """The times of the first and the latest record."""

    def add(self, other: GroupHistory) -> None:
        """Add the history of other groups."""
        self.rows.extend(other.rows)
        self.committed |= other.committed
        self.kinds |= other.kinds
        known = [ms for ms in (self.from_ms, self.until_ms, other.from_ms, other.until_ms) if ms is not None]
        self.from_ms, self.until_ms = min(known, default=None), max(known, default=None)

    def leave_out_sinks(self, named: Collection[str]) -> None:
        """Leave out groups in which a Spark sink records what it has written, except the kinds of those in `named`."""
        sinks = {group for group, kind in self.kinds.items() if kind is GroupKind.SINK}
        rows = self.rows
        rows.generations = [row for row in rows.generations if row.group not in sinks]
        rows.rebalances = [row for row in rows.rebalances if row.group not in sinks]
        rows.notes = [row for row in rows.notes if row.group not in sinks]
        self.committed = {group: own for group, own in self.committed.items() if group not in sinks}
        self.timeline.leave_out(sinks)
        self.kinds = {group: kind for group, kind in self.kinds.items() if group not in sinks or group in named}


def read_history(
    topic: TopicSource, limits: Limits, groups: Collection[str] | None, now_ms: int | None
) -> GroupHistory:
    """Read all partitions of a source, and close what is open at the end.

    `now_ms` is when a log that is still being written was read; None: the log ends with its latest record. If `groups`
    is given, only the names of other groups are kept.
    """
    found = GroupHistory(timeline=CommitTimeline(limits.since_ms))
    for _, batches in side_by_side(topic, list(topic.records)):
        _Partition(found, limits, groups).read(batches, now_ms)
    return found


class _Partition:
    """One pass over one log partition."""

    def __init__(self, found: GroupHistory, limits: Limits, groups: Collection[str] | None) -> None:
        self._found, self._limits = found, limits
        self._groups = None if groups is None else pa.array(sorted(groups), pa.string())
        self._states: dict[str, ReplayedState] = {}
        self._now_ms: int | None = None

    def read(self, batches: Iterable[pa.RecordBatch], now_ms: int | None) -> None:
        for piece in _pieces(batches):
            self._take(piece)
        if self._now_ms is None:
            return
        end_ms = self._now_ms if now_ms is None else max(now_ms, self._now_ms)
        for group, state in self._states.items():
            rows = rules.finish(state, end_ms)
            self._found.rows.extend(rows)
            self._found.kinds[group] = state.kind

    def _take(self, piece: pa.Table) -> None:
        decoded = decode(piece)
        for place, number in decoded.counts.items():
            self._found.counts[place] = self._found.counts.get(place, 0) + number
        self._note_times(piece.column("timestamp_ms"))
        entries = decoded.entries
        if self._groups is not None:
            entries = self._only_wanted(entries)
        for chunk in chunks(entries, self._now_ms):
            state = self._states.get(chunk.group)
            if state is None:
                state = self._states[chunk.group] = rules.start(chunk.group, self._limits)
            self._found.rows.extend(rules.fold(state, chunk))
            self._note_commits(chunk.group, chunk.commits)

    def _only_wanted(self, entries: pa.Table) -> pa.Table:
        assert self._groups is not None
        for name in pc.unique(entries.column("group")).to_pylist():
            self._found.kinds.setdefault(str(name), GroupKind.OFFSETS_ONLY)
        return entries.filter(pc.is_in(entries.column("group"), value_set=self._groups))

    def _note_times(self, column: pa.ChunkedArray[Any]) -> None:
        found, times = self._found, span(column.to_numpy())
        if times is None:
            return
        first, last = times
        self._now_ms = max(last, self._now_ms or 0)
        found.until_ms = max(last, found.until_ms or 0)
        found.from_ms = first if found.from_ms is None else min(first, found.from_ms)

    def _note_commits(self, group: str, commits: Commits) -> None:
        if commits.names:
            self._found.timeline.add(group, commits)
            earlier = self._found.committed.get(group)
            self._found.committed[group] = CommitSeries(commits, earlier).latest()


def span(times_ms: Int64s) -> tuple[int, int] | None:
    """The first and the last of these times; None: none of them is valid."""
    known = times_ms[(times_ms >= 0) & (times_ms <= LAST_MS)]
    return (int(known.min()), int(known.max())) if known.size else None


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches combined into pieces large enough for a round of the rules."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


# --- the report ------------------------------------------------------------------------------------------------------


def report(
    found: GroupHistory,
    source: str,
    until_ms: int,
    samples: Iterable[LagSample] = (),
    events: Iterable[Any] = (),
    limits: Limits | None = None,
    since_ms: int | None = None,
    over_time: Iterable[Lag] = (),
) -> Report:
    """Put everything together: causes from the broker's events, lag at these samples, findings.

    With `since_ms` only what happened since then. The lag is always the one at the end.
    """
    limits = limits or Limits()
    rows = found.rows
    rows.generations.sort(key=lambda row: (row.group, row.at.partition, row.at.offset))
    rows.rebalances.sort(key=lambda row: (row.group, row.at_ms))
    rebalances = explained(rows.rebalances, labels_by_group(events))
    made = Report(
        source=source,
        from_ms=found.from_ms,
        until_ms=until_ms,
        generations=rows.generations,
        rebalances=rebalances,
        notes=sorted(rows.notes, key=lambda row: (row.group, row.at_ms)),
        counts=dict(sorted(found.counts.items())),
        kinds=dict(sorted(found.kinds.items())),
        warnings=_not_decoded(found.counts),
    )
    made.lag = _lag(found.committed, made.generations, samples, limits)
    made.lag_over_time = list(over_time)
    if since_ms is not None:
        made = made.since(since_ms)
    made.findings = findings(_views(made, limits))
    return made


def _lag(
    committed: CommittedOf, generations: list[Generation], samples: Iterable[LagSample], limits: Limits
) -> list[Lag]:
    latest = {generation.group: generation for generation in generations}
    found: list[Lag] = []
    for group, own in sorted(by_group(samples).items()):
        series = CommitSeries(no_commits(), committed.get(group, {}))
        found += lag_rows(series, own, expiry_state(latest.get(group)), limits)
    return found


def _views(made: Report, limits: Limits) -> Iterator[GroupView]:
    """Each group's rows."""
    generations, rebalances = by_group(made.generations), by_group(made.rebalances)
    notes, lag = by_group(made.notes), by_group(made.lag)
    for group in made.kinds:
        own = (generations.get(group, []), rebalances.get(group, []), notes.get(group, []), lag.get(group, []))
        yield GroupView(group, *own, made.until_ms, limits)


def _not_decoded(counts: Counts) -> list[str]:
    """Sentences about records that were not decoded."""
    known = frozenset(KIND_NAMES.values())
    sentences = []
    for (kind, version), number in sorted(counts.items()):
        records = f"{number} record{'s' if number > 1 else ''}"
        if kind not in known:
            sentences.append(f"{records} of {kind} skipped: unknown kind of record")
        elif version == BROKEN:
            sentences.append(f"{records} of {kind} skipped: {'they' if number > 1 else 'it'} could not be decoded")
    return sentences


def events_of(topic: TopicSource, groups: Collection[str] = ()) -> list[Any]:
    """The values of `__group_events`, decoded, without those that are not JSON. A record's key is its group's name."""
    wanted = pa.array([group.encode("utf-8", "replace") for group in groups], pa.binary())
    found = []
    for _, batches in side_by_side(topic, list(topic.records)):
        for batch in batches:
            some = batch.filter(pc.is_in(batch.column("key"), value_set=wanted)) if groups else batch
            found += [event for value in some.column("value").to_pylist() if (event := event_of(value)) is not None]
    return found
