"""How far groups are behind now: what `muster lag` shows, as values and rules; nothing is read here.

The lag in seconds is the age of the first record that is not committed: how long it has been in the log. Look after
look a log's end is seen to pass more offsets, which tells about when the record at each was written: `Ends` keeps what
was seen, and takes a straight line between two looks. What was written before the first look is not known from this;
`known` takes the time of a record that was read for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.history.lag import first_unread, lag, total
from muster.metrics.families import Family, gauge
from muster.model import TopicPartition

MOST_SEEN = 120
"""Looks that are kept of a partition; where there are more, every second of the older half is forgotten."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group; None is what is not known, or not there."""

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
        """How far the group is behind, in offsets."""
        return lag(self.committed_offset, self.log_end_offset)

    @property
    def first_unread(self) -> int | None:
        """The first offset that the group has not read and can."""
        return (
            None if self.committed_offset is None else first_unread(self.committed_offset, self.log_start_offset or 0)
        )


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group, with the partitions that it has committed or that members have."""

    group: str
    state: str
    members: int
    partitions: Sequence[PartitionLag] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """All that one look has brought. `remarks` say what could not be seen."""

    at_ms: int
    took_ms: int = 0
    brokers: int | None = None
    groups: Sequence[GroupLag] = ()
    remarks: Sequence[str] = field(default=())


# --- seconds ---------------------------------------------------------------------------------------------------------


class Ends:
    """Where logs ended at each look, and so when the record at an offset was written."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, list[tuple[int, int]]] = {}
        """For each partition (end offset, time), both rising."""
        self._known: dict[tuple[TopicPartition, int], int] = {}

    def see(self, ends: Mapping[TopicPartition, int], at_ms: int) -> None:
        """Take in one look. Partitions that are not in it are kept: their leader may only be away."""
        for place, end in ends.items():
            seen = self._seen.setdefault(place, [])
            if seen and (end < seen[-1][0] or at_ms < seen[-1][1]):
                seen.clear()  # another log under that name, or one that has lost its end
                self._known = {key: at for key, at in self._known.items() if key[0] != place}
            if len(seen) > 1 and seen[-1][0] == seen[-2][0] == end:
                seen.pop()  # of a log that rests, the first and the last look will do
            seen.append((end, at_ms))
            if len(seen) > MOST_SEEN:
                half = len(seen) // 2
                seen[1:half] = seen[1:half:2]

    def known(self, place: TopicPartition, offset: int, at_ms: int) -> None:
        """The record at this offset, or the first behind it, says that it was written then."""
        self._known[place, offset] = at_ms

    def keep(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        """Forget all other records whose times are `known`."""
        kept = set(wanted)
        self._known = {key: at for key, at in self._known.items() if key in kept}

    def written_ms(self, place: TopicPartition, offset: int) -> int | None:
        """About when the record at an offset was written; None if that was before the first look, or is to come."""
        seen = self._seen.get(place, ())
        after = bisect_right(seen, offset, key=lambda one: one[0])
        if after == 0:
            return self._known.get((place, offset))
        if after == len(seen):
            return None
        (end, at_ms), (next_end, next_ms) = seen[after - 1], seen[after]
        return at_ms + (next_ms - at_ms) * (offset - end) // (next_end - end)


def with_seconds(look: Look, ends: Ends) -> Look:
    """The same look with the lag in seconds, where that is known."""
    return replace(look, groups=[_timed(group, ends, look.at_ms) for group in look.groups])


def _timed(group: GroupLag, ends: Ends, at_ms: int) -> GroupLag:
    return replace(group, partitions=[replace(part, seconds=_seconds(part, ends, at_ms)) for part in group.partitions])


def _seconds(part: PartitionLag, ends: Ends, at_ms: int) -> float | None:
    if part.lag is None or part.first_unread is None:
        return None
    if part.lag <= 0:
        return 0.0
    written = ends.written_ms(part.place, part.first_unread)
    return None if written is None else max(0.0, (at_ms - written) / 1_000)


def untimed(look: Look, ends: Ends) -> dict[TopicPartition, dict[int, int]]:
    """Of partitions with a lag whose age is not known: the offsets to be looked at, and where the logs end."""
    found: dict[TopicPartition, dict[int, int]] = {}
    for group in look.groups:
        for part in group.partitions:
            if part.lag is None or part.lag <= 0 or _seconds(part, ends, look.at_ms) is not None:
                continue
            assert part.first_unread is not None
            assert part.log_end_offset is not None
            if part.first_unread < part.log_end_offset:
                found.setdefault(part.place, {})[part.first_unread] = part.log_end_offset
    return found


def wanted(look: Look) -> Iterable[tuple[TopicPartition, int]]:
    """The records whose times this look has use for."""
    for group in look.groups:
        for part in group.partitions:
            if part.first_unread is not None:
                yield part.place, part.first_unread


# --- as families -----------------------------------------------------------------------------------------------------


def families(look: Look | None, *, failures: int = 0) -> list[Family]:
    """What an exporter serves; None: the cluster does not answer, and old values are no longer served.

    Names are those of kafka_exporter, for seconds those of kafka-lag-exporter where they fit to the others."""
    up = gauge("muster_lag_up", "1 while the cluster answers.").add(0 if look is None else 1)
    failed = gauge("muster_lag_failed_looks", "Looks that have failed since the last that did not.").add(failures)
    if look is None:
        return [up, failed]
    brokers = gauge("kafka_brokers", "Brokers of the cluster.")
    if look.brokers is not None:
        brokers.add(look.brokers)
    return [
        up,
        failed,
        brokers,
        gauge("muster_lag_look_timestamp_seconds", "When the groups were looked at.").add(look.at_ms / 1_000),
        gauge("muster_lag_look_duration_seconds", "How long that took.").add(look.took_ms / 1_000),
        *_of_logs(look),
        *_of_groups(look),
        *_of_partitions(look),
    ]


def _of_logs(look: Look) -> list[Family]:
    end = gauge("kafka_topic_partition_current_offset", "Where a log ends, of partitions that groups read.")
    start = gauge("kafka_topic_partition_oldest_offset", "Where a log begins, of partitions that groups read.")
    found = {part.place: part for group in look.groups for part in group.partitions}
    for place, part in sorted(found.items()):
        labels = {"topic": place.topic, "partition": str(place.partition)}
        if part.log_end_offset is not None and part.log_start_offset is not None:
            end.add(part.log_end_offset, **labels)
            start.add(part.log_start_offset, **labels)
    return [end, start]


def _of_groups(look: Look) -> list[Family]:
    members = gauge("kafka_consumergroup_members", "Members of a group.")
    states = gauge("kafka_consumergroup_state", "Always 1; the group's state is a label.")
    most = gauge("kafka_consumergroup_max_lag", "The largest lag of a group's partitions, in records.")
    oldest = gauge("kafka_consumergroup_max_lag_seconds", "The same in seconds, of partitions of which it is known.")
    for group in look.groups:
        members.add(group.members, consumergroup=group.group)
        states.add(1, consumergroup=group.group, state=group.state)
        lags = [part.lag for part in group.partitions if part.lag is not None]
        seconds = [part.seconds for part in group.partitions if part.seconds is not None]
        if lags:
            most.add(max(lags), consumergroup=group.group)
        if seconds:
            oldest.add(max(seconds), consumergroup=group.group)
    return [members, states, most, oldest]


def _of_partitions(look: Look) -> list[Family]:
    start = "kafka_consumergroup_"
    offset = gauge(f"{start}current_offset", "What a group has committed.")
    offsets = gauge(f"{start}current_offset_sum", "The same, of all partitions of a topic.")
    lag = gauge(f"{start}lag", "How far a group is behind the end of a log, in records.")
    lags = gauge(f"{start}lag_sum", "The same, of all partitions of a topic; a negative lag counts as 0.")
    seconds = gauge(f"{start}lag_seconds", "How long the first record that is not committed has been there.")
    for group in look.groups:
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


def as_json(look: Look) -> dict[str, object]:
    """A look as JSON has it."""
    return {
        "at_ms": look.at_ms,
        "brokers": look.brokers,
        "groups": [
            {
                "group": group.group,
                "state": group.state,
                "members": group.members,
                "partitions": [_part_as_json(part) for part in group.partitions],
            }
            for group in look.groups
        ],
        "remarks": list(look.remarks),
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
