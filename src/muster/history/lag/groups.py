"""The current lag of groups: what `muster lag` shows, as values and rules, without I/O.

The lag in seconds is the age of the first uncommitted record. Successive snapshots show a log's end passing more
offsets, and so show roughly when the record at each offset was written: `LogEndTimes` keeps them and interpolates
between two. Records written before the first snapshot cannot be dated this way; `set_time` takes the timestamp of a
record that was read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.history.lag import first_unread, lag, total
from muster.metrics.families import Family, gauge
from muster.model import TopicPartition

MOST_SNAPSHOTS = 120
"""Snapshots kept of a partition; beyond that, every second one of the older half is dropped."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group; None means not known, or absent."""

    topic: str
    partition: int
    committed_offset: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    seconds: float | None = None
    consumer_id: str | None = None
    client_id: str | None = None
    host: str | None = None

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def lag(self) -> int | None:
        """The lag in offsets."""
        return lag(self.committed_offset, self.log_end_offset)

    @property
    def first_unread(self) -> int | None:
        """The first offset that the group has not read and that still exists."""
        return (
            None if self.committed_offset is None else first_unread(self.committed_offset, self.log_start_offset or 0)
        )


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group, with its committed and its assigned partitions."""

    group: str
    state: str
    members: int
    partitions: Sequence[PartitionLag] = ()


@dataclass(frozen=True, slots=True)
class LagSnapshot:
    """The lag of all groups at one time. `remarks` are sentences about what could not be read; `brokers_away` are those
    that did not list their groups, which are therefore missing."""

    at_ms: int
    took_ms: int = 0
    brokers: int | None = None
    groups: Sequence[GroupLag] = ()
    remarks: Sequence[str] = field(default=())
    brokers_away: Sequence[int] = ()


# --- seconds ---------------------------------------------------------------------------------------------------------


class LogEndTimes:
    """Where logs ended at each snapshot, and so when the record at an offset was written."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, list[tuple[int, int]]] = {}
        """(end offset, time) pairs of each partition, both increasing."""
        self._times: dict[tuple[TopicPartition, int], int] = {}

    def add(self, ends: Mapping[TopicPartition, int], at_ms: int) -> None:
        """Add a snapshot. Partitions that it lacks are kept: their leader may be away only for a while."""
        for place, end in ends.items():
            seen = self._ends.setdefault(place, [])
            if seen and (end < seen[-1][0] or at_ms < seen[-1][1]):
                seen.clear()  # the topic was recreated, or its log truncated
                self._times = {key: at for key, at in self._times.items() if key[0] != place}
            if len(seen) > 1 and seen[-1][0] == seen[-2][0] == end:
                seen.pop()  # for an idle log, the first and the last snapshot suffice
            seen.append((end, at_ms))
            if len(seen) > MOST_SNAPSHOTS:
                half = len(seen) // 2
                seen[1:half] = seen[1:half:2]

    def set_time(self, place: TopicPartition, offset: int, at_ms: int) -> None:
        """Set the timestamp of the record at this offset, or of the first one after it."""
        self._times[place, offset] = at_ms

    def keep_times(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        """Forget the times of all other records."""
        kept = set(wanted)
        self._times = {key: at for key, at in self._times.items() if key in kept}

    def written_ms(self, place: TopicPartition, offset: int) -> int | None:
        """About when the record at an offset was written; None if before the first snapshot, or not yet."""
        seen = self._ends.get(place, ())
        after = bisect_right(seen, offset, key=lambda one: one[0])
        if after == 0:
            return self._times.get((place, offset))
        if after == len(seen):
            return None
        (end, at_ms), (next_end, next_ms) = seen[after - 1], seen[after]
        return at_ms + (next_ms - at_ms) * (offset - end) // (next_end - end)


def with_seconds(snapshot: LagSnapshot, ends: LogEndTimes) -> LagSnapshot:
    """The same snapshot with the lag in seconds, where known."""
    return replace(snapshot, groups=[_timed(group, ends, snapshot.at_ms) for group in snapshot.groups])


def _timed(group: GroupLag, ends: LogEndTimes, at_ms: int) -> GroupLag:
    return replace(group, partitions=[replace(part, seconds=_seconds(part, ends, at_ms)) for part in group.partitions])


def _seconds(part: PartitionLag, ends: LogEndTimes, at_ms: int) -> float | None:
    if part.lag is None or part.first_unread is None:
        return None
    if part.lag <= 0:
        return 0.0
    written = ends.written_ms(part.place, part.first_unread)
    return None if written is None else max(0.0, (at_ms - written) / 1_000)


def without_seconds(snapshot: LagSnapshot, ends: LogEndTimes) -> dict[TopicPartition, dict[int, int]]:
    """For partitions whose lag in seconds is not known: the offsets of records to read, and where the logs end."""
    found: dict[TopicPartition, dict[int, int]] = {}
    for group in snapshot.groups:
        for part in group.partitions:
            if part.lag is None or part.lag <= 0 or _seconds(part, ends, snapshot.at_ms) is not None:
                continue
            assert part.first_unread is not None
            assert part.log_end_offset is not None
            if part.first_unread < part.log_end_offset:
                found.setdefault(part.place, {})[part.first_unread] = part.log_end_offset
    return found


def first_unread_offsets(snapshot: LagSnapshot) -> Iterable[tuple[TopicPartition, int]]:
    """The records whose timestamps this snapshot needs."""
    for group in snapshot.groups:
        for part in group.partitions:
            if part.first_unread is not None:
                yield part.place, part.first_unread


# --- as families -----------------------------------------------------------------------------------------------------


def families(snapshot: LagSnapshot | None, *, failures: int = 0) -> list[Family]:
    """What an exporter serves. None means that the cluster does not answer: the last values are not served again.

    Names are those of kafka_exporter; those in seconds follow kafka-lag-exporter where these fit."""
    up = gauge("muster_lag_up", "1 while the cluster answers.").add(0 if snapshot is None else 1)
    failed = gauge("muster_lag_failed_looks", "Readings that have failed since the last successful one.").add(failures)
    if snapshot is None:
        return [up, failed]
    brokers = gauge("kafka_brokers", "Brokers of the cluster.")
    if snapshot.brokers is not None:
        brokers.add(snapshot.brokers)
    return [
        up,
        failed,
        brokers,
        gauge("muster_lag_look_timestamp_seconds", "When the lag was last read.").add(snapshot.at_ms / 1_000),
        gauge("muster_lag_look_duration_seconds", "How long that reading took.").add(snapshot.took_ms / 1_000),
        *_of_logs(snapshot),
        *_of_groups(snapshot),
        *_of_partitions(snapshot),
    ]


def _of_logs(snapshot: LagSnapshot) -> list[Family]:
    end = gauge("kafka_topic_partition_current_offset", "The end offset of a log, for partitions that groups read.")
    start = gauge("kafka_topic_partition_oldest_offset", "The start offset of a log, for partitions that groups read.")
    found = {part.place: part for group in snapshot.groups for part in group.partitions}
    for place, part in sorted(found.items()):
        labels = {"topic": place.topic, "partition": str(place.partition)}
        if part.log_end_offset is not None and part.log_start_offset is not None:
            end.add(part.log_end_offset, **labels)
            start.add(part.log_start_offset, **labels)
    return [end, start]


def _of_groups(snapshot: LagSnapshot) -> list[Family]:
    members = gauge("kafka_consumergroup_members", "Members of a group.")
    states = gauge("kafka_consumergroup_state", "Always 1; the group's state is a label.")
    most = gauge("kafka_consumergroup_max_lag", "The largest lag among a group's partitions, in records.")
    oldest = gauge(
        "kafka_consumergroup_max_lag_seconds", "The largest lag among a group's partitions, in seconds, where known."
    )
    for group in snapshot.groups:
        members.add(group.members, consumergroup=group.group)
        states.add(1, consumergroup=group.group, state=group.state)
        lags = [part.lag for part in group.partitions if part.lag is not None]
        seconds = [part.seconds for part in group.partitions if part.seconds is not None]
        if lags:
            most.add(max(lags), consumergroup=group.group)
        if seconds:
            oldest.add(max(seconds), consumergroup=group.group)
    return [members, states, most, oldest]


def _of_partitions(snapshot: LagSnapshot) -> list[Family]:
    start = "kafka_consumergroup_"
    offset = gauge(f"{start}current_offset", "The offset that a group has committed.")
    offsets = gauge(
        f"{start}current_offset_sum", "The offsets that a group has committed, summed over the partitions of a topic."
    )
    lag = gauge(f"{start}lag", "A group's lag in a partition, in records.")
    lags = gauge(f"{start}lag_sum", "A group's lag in a topic, in records; a negative lag counts as 0.")
    seconds = gauge(f"{start}lag_seconds", "The age of the first uncommitted record.")
    for group in snapshot.groups:
        committed: dict[str, int] = {}
        behind: dict[str, list[int]] = {}
        for part in group.partitions:
            labels = {"consumergroup": group.group, "topic": part.topic, "partition": str(part.partition)}
            if part.committed_offset is not None:
                offset.add(part.committed_offset, **labels)
                committed[part.topic] = committed.get(part.topic, 0) + part.committed_offset
            if part.lag is not None:
                lag.add(part.lag, **labels)
                behind.setdefault(part.topic, []).append(part.lag)
            if part.seconds is not None:
                seconds.add(part.seconds, **labels)
        lag_of = {topic: total(found) for topic, found in behind.items()}
        for family, sums in ((offsets, committed), (lags, lag_of)):
            for topic, found_sum in sums.items():
                family.add(found_sum, consumergroup=group.group, topic=topic)
    return [offset, offsets, lag, lags, seconds]


def as_json(snapshot: LagSnapshot) -> dict[str, object]:
    """A snapshot as JSON."""
    return {
        "at_ms": snapshot.at_ms,
        "brokers": snapshot.brokers,
        "groups": [
            {
                "group": group.group,
                "state": group.state,
                "members": group.members,
                "partitions": [_part_as_json(part) for part in group.partitions],
            }
            for group in snapshot.groups
        ],
        "remarks": list(snapshot.remarks),
    }


def _part_as_json(part: PartitionLag) -> dict[str, object]:
    return {name: getattr(part, name) for name in (*_FIELDS[:5], "lag", *_FIELDS[5:])}


_FIELDS = (
    "topic",
    "partition",
    "committed_offset",
    "log_start_offset",
    "log_end_offset",
    "seconds",
    "consumer_id",
    "client_id",
    "host",
)
