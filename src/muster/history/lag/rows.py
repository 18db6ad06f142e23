"""The rows of the table `lag`: what a group had committed against where its partitions began and ended.

The lag itself is `lag.lag`. A row says more, of what the difference of two offsets does not tell:

- Retention moves a log's start past the committed offset. What lies before the start can no longer be read: those
  records are lost, and counted apart.
- Offsets are not records. Transaction markers take offsets, and compaction leaves holes. A look at the log may have
  counted the records from the committed offset on: `is_exact` says that there are as many as the lag, and without any
  record none waits, so `lag_ms` is 0.
- An offset means something only while it is kept. The coordinator deletes offsets of a group without members some time
  after (offsets.retention.minutes), and the group then begins anew by its reset policy, silently.

A sample may be of the past: the log's end at some time is the offset of the first record of that time or later, which
the cluster tells (ListOffsets by timestamp). It is compared with what had been committed then.

Sources: OffsetExpirationCondition and its callers in Apache Kafka 4.2 (ClassicGroup, ConsumerGroup); seed O4.
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
    """What a group had committed for one partition, and when."""

    offset: int
    commit_ms: int


CommittedOf = dict[str, dict[TopicPartition, Committed]]
"""What groups have committed, by group and partition."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides when a group's offsets expire: its kind, since when it has no members, what it subscribes to."""

    kind: GroupKind = GroupKind.OFFSETS_ONLY
    empty_since_ms: int | None = None
    topics: frozenset[str] | None = None
    """None: a member subscribes by an expression, or in a way that is not known here."""


def standing(latest: Generation | None) -> Standing:
    """Where a group stands after its latest generation; None for a group that only commits."""
    if latest is None:
        return Standing()
    if not latest.members:
        return Standing(latest.kind, latest.started_ms, frozenset())
    if latest.protocol_type != "consumer" or any(member.topic_regex or not member.topics for member in latest.members):
        return Standing(latest.kind)
    return Standing(latest.kind, None, frozenset(topic for member in latest.members for topic in member.topics))


class CommitSeries:
    """A group's commits, to be asked what was committed at a time.

    Offsets that were deleted are not committed from then on. `earlier` is what was committed before these commits.
    """

    def __init__(self, commits: Commits, earlier: Mapping[TopicPartition, Committed] | None = None) -> None:
        self._earlier = dict(earlier or {})
        order = np.argsort(commits.partition, kind="stable")
        bounds = np.searchsorted(commits.partition[order], np.arange(len(commits.names) + 1))
        self._offset, self._commit_ms = commits.offset[order], commits.commit_ms[order]
        # The log's order counts, not the clock's: the latest time so far makes the column one that can be searched.
        time_ms = np.where(commits.offset == _DELETED, commits.timestamp_ms, commits.commit_ms)[order]
        self._time_ms = time_ms
        self._spans = {}
        for index, name in enumerate(commits.names):
            span = slice(int(bounds[index]), int(bounds[index + 1]))
            if span.start < span.stop:
                time_ms[span] = np.maximum.accumulate(time_ms[span])
                self._spans[name] = span

    def at(self, partition: TopicPartition, at_ms: int) -> Committed | None:
        """What was committed for the partition at that time."""
        span = self._spans.get(partition)
        if span is not None:
            index = span.start + int(np.searchsorted(self._time_ms[span], at_ms, side="right")) - 1
            if index >= span.start:
                offset = int(self._offset[index])
                return None if offset == _DELETED else Committed(offset, int(self._commit_ms[index]))
        return self._earlier.get(partition)

    def latest(self) -> dict[TopicPartition, Committed]:
        """What is committed now, of all partitions."""
        found = dict(self._earlier)
        for name, span in self._spans.items():
            offset = int(self._offset[span.stop - 1])
            if offset == _DELETED:
                found.pop(name, None)
            else:
                found[name] = Committed(offset, int(self._commit_ms[span.stop - 1]))
        return found


def lag_rows(commits: CommitSeries, samples: Iterable[LagSample], stands: Standing, limits: Limits) -> list[Lag]:
    """The lag of one group at each sample for which it had committed something, in the samples' order."""
    rows = []
    for sample in samples:
        committed = commits.at((sample.topic, sample.partition), sample.at_ms)
        if committed is not None:
            rows.append(_row(sample, committed, expires_ms(sample.topic, committed, stands, limits)))
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
    """A row after a look at the log: how many records there are (None: the look did not reach the end), and the time
    of the first."""
    if row.lag_records <= 0:
        return row
    if row.log_start_offset >= row.log_end_offset:
        records = 0  # all of it is gone
    waits_ms = None if oldest_ms is None else max(0, row.at_ms - oldest_ms)
    # A count of a later look at the log can be above what there was room for.
    is_exact = records is not None and records >= row.lag_records
    return replace(row, is_exact=is_exact, lag_ms=0 if records == 0 else waits_ms)


def expires_ms(topic: str, committed: Committed, stands: Standing, limits: Limits) -> int | None:
    """When the coordinator may delete the offset; None: not while the group stays as it is.

    An empty classic group's offsets expire by the time at which it became empty, even one committed later. Offsets of
    a group without a record, and those of a topic to which no member subscribes, by the time of the commit.
    """
    if stands.kind is GroupKind.CLASSIC and stands.empty_since_ms is not None:
        return stands.empty_since_ms + limits.offsets_retention_ms
    if stands.kind is GroupKind.OFFSETS_ONLY or (stands.topics is not None and topic not in stands.topics):
        return committed.commit_ms + limits.offsets_retention_ms
    return None
