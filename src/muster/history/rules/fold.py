"""Folds one group's log: takes entries and commits in log order, and returns rows when they are final.

`ReplayedState` holds the group's current state: its open generation (classic) or epoch (KIP-848), the latest commits
(commit_times.py), rebalances that are not final yet (pending.py), and which member is which (patterns.py). The commits
before an entry are folded before it, so that the rules see the group as it was then; commits between two entries are
folded together. Nothing here depends on where a chunk ends: rows become final by the log's own time, before the entry
that passes that time is folded.

A log may begin anywhere and have gaps: a generation without a predecessor shows that, as does a number that jumps or
falls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.history.model import Chunk, Entry, Generation, GroupKind, Limits, Place, Rows
from muster.history.rules.causes import CoordinatorMove
from muster.history.rules.classic_fold import classic_record
from muster.history.rules.classic_generations import classic_generation, key_of, usual_generation, with_end
from muster.history.rules.commit_times import Stretches
from muster.history.rules.consumer_fold import consumer_record, epoch_row, own, seal
from muster.history.rules.generations import CONSUMER_KINDS, OTHER_EPOCHS, other_generation, other_kind, read
from muster.history.rules.group_state import ReplayedState
from muster.history.rules.patterns import MOST_TRACES
from muster.history.rules.query_batches import departures
from muster.history.sink_groups import is_of_sink
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.record_kinds import TypedRecord


def start(group: str, limits: Limits) -> ReplayedState:
    """The state of a group before anything has been read."""
    return ReplayedState(group, limits)


def fold(state: ReplayedState, chunk: Chunk) -> Rows:
    """Fold the next part of a group's log; returns the rows that are now final."""
    return _Fold(state, chunk).run()


def finish(state: ReplayedState, now_ms: int) -> Rows:
    """The log ends here: returns the rows that were still open. `now_ms` is when it was read, by its records' clock."""
    del now_ms  # rows only say what the log says; nothing is known about the time after its end
    rows = Rows()
    _finalize(state, rows, None)
    if state.current is not None:
        rows.generations.append(state.current)
    elif state.epoch is not None:
        rows.generations.append(epoch_row(state, state.epoch, None))
    elif state.others is not None:
        rows.generations.append(state.others)
    elif state.kind is GroupKind.OFFSETS_ONLY and state.first is not None:
        rows.generations.append(
            Generation(
                state.group, 0, state.kind, state.first.timestamp_ms, None, None, None, "", None, None, (), state.first
            )
        )
    return rows


# ------------------------------------------------------------------------------------------------------ chunk by chunk


class _Fold:
    """Folds one chunk into the state."""

    def __init__(self, state: ReplayedState, chunk: Chunk) -> None:
        self.state, self.chunk = state, chunk
        self.rows = Rows()
        self._notes = dict(chunk.commits.notes)

    def run(self) -> Rows:
        state, entries, commits = self.state, self.chunk.entries, self.chunk.commits
        cuts = np.searchsorted(commits.log_offset, np.array([each.at.offset for each in entries], dtype=np.int64))
        times = np.array([each.at.timestamp_ms for each in entries], dtype=np.int64)
        merged = state.clock.times(np.insert(commits.timestamp_ms, cuts, times))
        places = cuts + np.arange(len(cuts))
        self._begin(entries, cuts)
        stretches = Stretches(state.times, state.group, commits, np.delete(merged, places))
        taken, classic_key = 0, key_of(state.group) if entries else b""
        entry_times = merged[places].tolist()
        for entry, cut, at_ms in zip(entries, cuts.tolist(), entry_times, strict=True):
            self._commits(stretches, taken, cut)
            taken = cut
            _finalize(state, self.rows, at_ms)
            _heard(state, at_ms, entry.at.leader_epoch)
            _entry(state, entry, classic_key, at_ms, self.rows)
        self._commits(stretches, taken, len(commits.log_offset))
        now = state.clock.now
        if self.chunk.now_ms is not None:
            now = max(now, state.clock.at(self.chunk.now_ms))
        _finalize(state, self.rows, now)
        self.rows.notes += stretches.ordered_notes()
        state.times.forget_expired()
        return self.rows

    def _begin(self, entries: Sequence[Entry], cuts: np.ndarray) -> None:
        state, commits = self.state, self.chunk.commits
        if state.first is not None:
            return
        if len(commits.log_offset) and not (len(cuts) and cuts[0] == 0):
            time, epoch = int(commits.timestamp_ms[0]), int(commits.leader_epoch[0])
            state.first = Place(-1, int(commits.log_offset[0]), time, epoch)
        elif len(cuts):
            state.first = entries[0].at

    def _commits(self, stretches: Stretches, first: int, end: int) -> None:
        """Fold the commits between two entries."""
        if first == end:
            return
        state = self.state
        own(state)
        latest = state.pending[-1] if state.pending else None
        if latest is not None and latest.silent_since:
            awaited = {state.times.number(place): place for place in latest.silent_since}
            until = latest.at_ms + state.limits.pattern_ms
            for number, at_ms in stretches.firsts(first, end, until, awaited):
                latest.heard(awaited[number], at_ms)
        if state.watching:
            self._watch(stretches, first, end)
        epochs = self.chunk.commits.leader_epoch[first:end]
        if int(epochs[-1]) != state.leader_epoch:
            at = int(np.argmax(epochs > state.leader_epoch))
            if at:
                _heard(state, int(stretches.times[first + at - 1]), state.leader_epoch)
            _heard(state, int(stretches.times[first + at]), int(epochs[-1]))
        state.heard_ms = int(stretches.times[end - 1])
        stretches.take(first, end)
        if self.chunk.commits.notes:
            window = state.limits.pattern_ms
            cases = [(each.case, each.at_ms + window) for each in state.pending]
            state.queries.take(self.chunk.commits, stretches.times, range(first, end), cases)
        if self._notes or state.kind is GroupKind.SINK:
            self._detect_sink(first, end)

    def _detect_sink(self, first: int, end: int) -> None:
        """The latest offset of a group without members shows whether a sink uses the group to mark what it has
        written."""
        state = self.state
        without_members = state.kind is GroupKind.CLASSIC and not (state.current and state.current.members)
        live = np.flatnonzero(self.chunk.commits.offset[first:end] >= 0)
        if len(live) and (without_members or state.kind in (GroupKind.OFFSETS_ONLY, GroupKind.SINK)):
            if is_of_sink(state.group, [self._notes.get(first + int(live[-1]), "")]):
                state.kind = GroupKind.SINK
            elif state.kind is GroupKind.SINK:
                state.kind = GroupKind.OFFSETS_ONLY if state.current is None else GroupKind.CLASSIC

    def _watch(self, stretches: Stretches, first: int, end: int) -> None:
        """Check whether other members make progress on the partitions of those that were silent."""
        state = self.state
        for each in state.watching:
            numbers = [state.times.number(place) for place in each.places]
            each.resumed = stretches.has_progress(first, end, each.until_ms, numbers)
        now = int(stretches.times[end - 1])
        state.watching = [each for each in state.watching if not each.resumed and each.until_ms > now]


def _heard(state: ReplayedState, at_ms: int, leader_epoch: int) -> None:
    """Note that the coordinator wrote a record."""
    if leader_epoch > state.leader_epoch >= 0:
        state.move = CoordinatorMove(state.heard_ms, at_ms)
    state.leader_epoch = max(state.leader_epoch, leader_epoch)
    state.heard_ms = at_ms


def _finalize(state: ReplayedState, rows: Rows, now_ms: int | None) -> None:
    """Make the rows of rebalances that are a window old (None: of all rebalances)."""
    window = state.limits.pattern_ms
    made = 0
    for each in state.pending:
        overfull = len(state.pending) - made > MOST_TRACES
        if now_ms is not None and each.at_ms + window >= now_ms and not overfull:
            break
        if each.is_open and state.epoch is not None:
            seal(state, state.epoch, each, None)
        each.case.batches += departures(each.case)
        now = state.clock.now if now_ms is None else now_ms
        found, phase = each.judged(state.traces, window, state.verdict, now)
        rows.rebalances.append(each.row(found, phase))
        state.verdict = found
        made += 1
    if made:
        del state.pending[:made]
        oldest = (state.pending[0].at_ms if state.pending else state.heard_ms) - window
        state.traces = [each for each in state.traces if each.at_ms >= oldest]


# ------------------------------------------------------------------------------------------------------ entry by entry


def _entry(state: ReplayedState, entry: Entry, classic_key: bytes, at_ms: int, rows: Rows) -> None:
    at, value = entry.at, entry.value
    if value is not None and entry.key == classic_key:
        usual = usual_generation(state.group, value, at)
        if usual is not None:
            classic_record(state, usual, at, at_ms, rows)
            return
    record = read(entry)
    if isinstance(record, GroupMetadataRecord):
        after = None if record.value is None else classic_generation(state.group, record.value, at)
        classic_record(state, after, at, at_ms, rows)
    elif record is not None and record.kind in CONSUMER_KINDS:
        consumer_record(state, record, at, at_ms, rows)
    elif record is not None:
        _other(state, record, at, rows)


def _other(state: ReplayedState, record: TypedRecord, at: Place, rows: Rows) -> None:
    """Fold a record of a share or streams group: its kind and epochs."""
    kind = state.kind = OTHER_EPOCHS.get(record.kind) or other_kind(record.kind)
    if record.kind not in OTHER_EPOCHS:
        return
    if state.others is not None:
        rows.generations.append(with_end(state.others, at.timestamp_ms))
    epoch = getattr(record.value, "epoch", None)
    state.others = None if epoch is None else other_generation(state.group, kind, epoch, at)
