"""The rows of the table `lag`: a group's committed offsets compared with where its partitions begin and end.

The lag itself is `lag.lag`. A row has more than this difference:

- Retention may move a log's start past the committed offset. Records before the start are lost, and counted separately.
- Offsets are not records: transaction markers take offsets, and compaction leaves gaps. If the records from the
  committed offset on were counted, `is_exact` says whether their number equals the lag; if there are none, `lag_ms` is
  0.
- Offsets expire. The coordinator deletes those of a group without members after offsets.retention.minutes, and the
  group then silently starts over according to its auto.offset.reset.

A sample may be from the past: the log's end at a time is the offset of the first record at or after that time
(ListOffsets by timestamp). It is compared with the offset committed at that time.

Sources: OffsetExpirationCondition and its callers in Apache Kafka 4.2 (ClassicGroup, ConsumerGroup).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from muster.history.lag import lag, lost_records
from muster.history.model import Commits, Generation, GroupKind, Lag, LagSample, Limits, TopicPartition

_DELETED = -1


class Committed(NamedTuple):
    """A committed offset, and when it was committed."""

    offset: int
    commit_ms: int


CommittedOf = dict[str, dict[TopicPartition, Committed]]
"""Committed offsets by group and partition."""


@dataclass(frozen=True, slots=True)
class ExpiryState:
    """What determines when a group's offsets expire: its kind, since when it has been empty, its subscription."""

    kind: GroupKind = GroupKind.OFFSETS_ONLY
    empty_since_ms: int | None = None
    topics: frozenset[str] | None = None
    """None: a member subscribes by a pattern, or its subscription is not known."""


def expiry_state(latest: Generation | None) -> ExpiryState:
    """The state after a group's latest generation; None for a group that only commits."""
    if latest is None:
        return ExpiryState()
    if not latest.members:
        return ExpiryState(latest.kind, latest.started_ms, frozenset())
    if latest.protocol_type != "consumer" or any(member.topic_regex or not member.topics for member in latest.members):
        return ExpiryState(latest.kind)
    return ExpiryState(latest.kind, None, frozenset(topic for member in latest.members for topic in member.topics))


class CommitSeries:
    """A group's commits, searchable by time. `earlier` has the offsets committed before these commits."""

    def __init__(self, commits: Commits, earlier: Mapping[TopicPartition, Committed] | None = None) -> None:
        self._earlier = dict(earlier or {})
        order = np.argsort(commits.partition, kind="stable")
        bounds = np.searchsorted(commits.partition[order], np.arange(len(commits.names) + 1))
        self._offset, self._commit_ms = commits.offset[order], commits.commit_ms[order]
        # Log order counts, not the clock: a running maximum makes the column searchable.
        time_ms = np.where(commits.offset == _DELETED, commits.timestamp_ms, commits.commit_ms)[order]
        self._time_ms = time_ms
        self._spans = {}
        for index, name in enumerate(commits.names):
            span = slice(int(bounds[index]), int(bounds[index + 1]))
            if span.start < span.stop:
                time_ms[span] = np.maximum.accumulate(time_ms[span])
                self._spans[name] = span

    def at(self, partition: TopicPartition, at_ms: int) -> Committed | None:
        """The partition's committed offset at that time."""
        span = self._spans.get(partition)
        if span is not None:
            index = span.start + int(np.searchsorted(self._time_ms[span], at_ms, side="right")) - 1
            if index >= span.start:
                offset = int(self._offset[index])
                return None if offset == _DELETED else Committed(offset, int(self._commit_ms[index]))
        return self._earlier.get(partition)

    def latest(self) -> dict[TopicPartition, Committed]:
        """The current committed offsets of all partitions."""
        found = dict(self._earlier)
        for name, span in self._spans.items():
            offset = int(self._offset[span.stop - 1])
            if offset == _DELETED:
                found.pop(name, None)
            else:
                found[name] = Committed(offset, int(self._commit_ms[span.stop - 1]))
        return found


def lag_rows(commits: CommitSeries, samples: Iterable[LagSample], state: ExpiryState, limits: Limits) -> list[Lag]:
    """One group's lag at each sample for which it had a committed offset, in the samples' order."""
    rows = []
    for sample in samples:
        committed = commits.at((sample.topic, sample.partition), sample.at_ms)
        if committed is not None:
            rows.append(_row(sample, committed, expires_ms(sample.topic, committed, state, limits)))
    return rows


def _row(sample: LagSample, committed: Committed, expires: int | None) -> Lag:
    behind = lag(committed.offset, sample.log_end_offset)
    row = Lag(
        group=sample.group,
        topic=sample.topic,
        partition=sample.partition,
        at_ms=sample.at_ms,
        committed_offset=committed.offset,
        committed_ms=committed.commit_ms,
        log_start_offset=sample.log_start_offset,
        log_end_offset=sample.log_end_offset,
        lag_records=behind,
        is_exact=behind <= 0,
        lag_ms=0 if behind <= 0 else None,
        lost_records=lost_records(committed.offset, sample.log_start_offset, sample.log_end_offset),
        expires_ms=expires,
    )
    return counted(row, sample.records, sample.oldest_ms)


def counted(row: Lag, records: int | None, oldest_ms: int | None) -> Lag:
    """A row once records were counted: how many there are (None: the count did not reach the end), and the timestamp of
    the first."""
    if row.lag_records <= 0:
        return row
    if row.log_start_offset >= row.log_end_offset:
        records = 0  # all were deleted
    waits_ms = None if oldest_ms is None else max(0, row.at_ms - oldest_ms)
    # They are counted after the end was looked up, so there may be more.
    is_exact = records is not None and records >= row.lag_records
    return replace(row, is_exact=is_exact, lag_ms=0 if records == 0 else waits_ms)


def expires_ms(topic: str, committed: Committed, state: ExpiryState, limits: Limits) -> int | None:
    """When the coordinator may delete the offset; None: not unless the group changes.

    The offsets of an empty classic group expire a retention time after it became empty, even those committed later.
    Those of a group without a group record, or of a topic to which no member subscribes, expire a retention time after
    their commit.
    """
    if state.kind is GroupKind.CLASSIC and state.empty_since_ms is not None:
        return state.empty_since_ms + limits.offsets_retention_ms
    if state.kind is GroupKind.OFFSETS_ONLY or (state.topics is not None and topic not in state.topics):
        return committed.commit_ms + limits.offsets_retention_ms
    return None
