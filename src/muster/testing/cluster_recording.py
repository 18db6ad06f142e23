"""A recording of what a group of any Kafka cluster has done, made afterwards from what the cluster keeps.

`__consumer_offsets` has each generation with its assignment, and each commit with its time; the topics have the
records. So no proxy is needed between a production service and its brokers to replay an incident. The file lacks what
the cluster does not keep: the errors in its responses, and when exactly a rebalance began. If a member comes back under
another member id, its session is assumed to have expired; if records were waiting for it, to have expired just before
its next commit, which is the worst moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import muster
from muster.clock import wall_clock_ms
from muster.errors import ConfigError, MusterError, ProtocolError
from muster.model import GROUP_METADATA_TOPIC, ConsumerRecord, TopicPartition
from muster.protocol.group_partitions import group_partition
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, decode_coordinated
from muster.protocol.subscription import decode_assignment
from muster.testing.kit import read_from
from muster.testing.recordings import recording

_READER = {"group_id": None, "isolation_level": "read_committed", "auto_offset_reset": "earliest"}
"""With a group_id the reader's auto commits would overwrite the offsets of a group without members."""


TimedLine = tuple[int, str, dict[str, Any]]
"""A line of the recording: `at_ms`, `what`, and its other fields."""


class CoordinatorRecord(NamedTuple):
    """A record about the group in `__consumer_offsets`, and when the coordinator wrote it."""

    at_ms: int
    record: OffsetCommitRecord | GroupMetadataRecord


def record_past(
    path: Path | str,
    group_id: str,
    settings: Mapping[str, Any],
    *,
    since_s: float,
    until_s: float = 0,
    topics: Collection[str] | None = None,
) -> Path:
    """Record what a group of a running cluster has done recently, for `Kafka.replay`.

    Args:
        settings: settings of a consumer that can reach the cluster (`bootstrap_servers`, security). Their `group_id` is
            not used: the consumer joins no group and commits nothing. It only reads `__consumer_offsets` and topics.
        since_s, until_s: how many seconds ago the recording begins and ends.
        topics: the topics whose records are recorded; None: those for which the group has committed offsets.

    Warns:
        UserWarning: the recording is incomplete, because it reached the largest size.

    Raises:
        MusterError: the cluster or the file cannot be used, or the cluster has nothing about the group in that time.
    """
    now = wall_clock_ms()
    since_ms, until_ms = now - round(since_s * 1000), now - round(until_s * 1000)
    if since_ms >= until_ms:
        raise ConfigError(f"since_s={since_s:g} must be greater than until_s={until_s:g}")
    path, cluster = Path(path), settings.get("bootstrap_servers") or settings.get("bootstrap.servers")
    with muster.Consumer({**settings, **_READER}) as reader:
        entries = [entry for entry in _entries(reader, group_id) if entry.at_ms <= until_ms]
        had = committed_before(entries, since_ms)
        lately = [entry for entry in entries if entry.at_ms > since_ms]
        if not lately:
            raise MusterError(f"{GROUP_METADATA_TOPIC} has no records about group {group_id} in that time")
        wanted = {topic for topic, _ in committed_before(entries, until_ms)} if topics is None else set(topics)
        places = {each: len(reader.partitions_for(each)) for each in sorted(wanted)}
        starts = _starts(reader, places, had, since_ms)
        records = (each for each in read_from(reader, starts) if each.timestamp <= until_ms)
        into = recording.Writer(path, f"group {group_id} on {cluster}", since_ms)
        for at_ms, what, fields in lines(group_id, places, had, lately, records, since_ms):
            into.write(at_ms, what, **fields)
        into.end()
    recording.check_ended(path, into.why)
    return path


def _entries(reader: muster.Consumer, group_id: str) -> Iterator[CoordinatorRecord]:
    count = len(reader.partitions_for(GROUP_METADATA_TOPIC))
    place = TopicPartition(GROUP_METADATA_TOPIC, group_partition(group_id, count))
    for each in read_from(reader, {place: reader.beginning_offsets([place])[place]}):
        try:
            record = decode_coordinated(each.key, each.value)
        except ProtocolError:
            continue
        if isinstance(record, OffsetCommitRecord | GroupMetadataRecord) and record.key.group == group_id:
            yield CoordinatorRecord(each.timestamp, record)


def _starts(
    reader: muster.Consumer,
    partitions: Mapping[str, int],
    had: Mapping[tuple[str, int], int],
    since_ms: int,
) -> dict[TopicPartition, int]:
    """The offset from which each partition is recorded: the group's committed offset when the recording begins, or
    without one, the first record of that time. Records that have been deleted since then are left out."""
    places = [TopicPartition(topic, index) for topic, count in partitions.items() for index in range(count)]
    oldest, ends = reader.beginning_offsets(places), reader.end_offsets(places)
    at = reader.offsets_for_times(dict.fromkeys(places, since_ms))
    by_time = {place: ends[place] if (first := at[place]) is None else first.offset for place in places}
    wanted = {
        place: min(had.get((place.topic, place.partition), offset), ends[place]) for place, offset in by_time.items()
    }
    return {place: max(oldest[place], offset) for place, offset in wanted.items()}


def committed_before(entries: Iterable[CoordinatorRecord], at_ms: int) -> dict[tuple[str, int], int]:
    """The offsets that the group had committed at a time."""
    committed: dict[tuple[str, int], int] = {}
    for entry in entries:
        if isinstance(entry.record, OffsetCommitRecord) and entry.at_ms <= at_ms:
            key, value = entry.record
            if value is None:
                committed.pop((key.topic, key.partition), None)
            else:
                committed[key.topic, key.partition] = value.offset
    return committed


def lines(
    group_id: str,
    partitions: Mapping[str, int],
    had: Mapping[tuple[str, int], int],
    entries: Sequence[CoordinatorRecord],
    records: Iterable[ConsumerRecord],
    since_ms: int,
) -> Iterator[TimedLine]:
    """The lines of a recording, in order of time, except that each record comes before the commit that covers it."""
    for topic, count in partitions.items():
        yield 0, "topic", {"topic": topic, "partitions": count}
    timed: list[tuple[int, int, str, dict[str, Any]]] = []
    written: dict[tuple[str, int, int], int] = {}
    for each in records:
        at_ms = max(each.timestamp - since_ms, 0)
        last = written.get((each.topic, each.partition, each.offset - 1), 0)
        written[each.topic, each.partition, each.offset] = at_ms = max(at_ms, last)  # producers' clocks may differ
        timed.append((at_ms, 0, "record", recording.record_fields(each.topic, each.partition, each)))
    timed += [(0, 1, "had", {"group": group_id, "offsets": _nested(had)})] if had else []
    members = _Members(group_id)
    happened = [(entry.at_ms, what, fields) for entry in entries for what, fields in members.follow(entry.record)]
    done = dict(had)
    for at_ms, what, fields in _with_expired(happened):
        at_ms = max(at_ms - since_ms, 0)
        if what == "expired" and any(
            came <= at_ms and offset >= done.get((topic, partition), 0)
            for (topic, partition, offset), came in written.items()
        ):
            fields["before"] = "OffsetCommit"
        if what == "committed":
            for topic, offsets in fields["offsets"].items():
                for partition, offset in offsets.items():
                    at_ms = max(at_ms, written.get((topic, int(partition), offset - 1), 0))
                    done[topic, int(partition)] = offset
        timed.append((at_ms, 2, what, fields))
    timed.sort(key=lambda each: each[:2])  # stable: lines with the same time stay in order
    for at_ms, _, what, fields in timed:
        yield at_ms, what, fields


def _with_expired(happened: Sequence[TimedLine]) -> list[TimedLine]:
    """The lines, with "expired" in place of "left" for members that join again later."""
    result: list[TimedLine] = []
    joins_again: set[str] = set()
    for at_ms, what, fields in reversed(happened):
        if what == "joined":
            joins_again.add(fields["client"])
        result.append((at_ms, "expired" if what == "left" and fields["client"] in joins_again else what, fields))
    return result[::-1]


class _Members:
    """The group's members and their partitions, after each record."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._names: dict[str, str] = {}
        """The names of members in the file, by member id."""
        self._owners: dict[tuple[str, int], str] = {}

    def follow(self, record: OffsetCommitRecord | GroupMetadataRecord) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines for a record: the kind and the fields of each."""
        if isinstance(record, OffsetCommitRecord):
            if record.value is not None:
                place = record.key.topic, record.key.partition
                offsets = _nested({place: record.value.offset})
                yield "committed", {"group": self._group_id, "client": self._owners.get(place, ""), "offsets": offsets}
            return
        members = [] if record.value is None else record.value.members
        now = {member.member_id for member in members}
        for gone in [member_id for member_id in self._names if member_id not in now]:
            yield "left", {"group": self._group_id, "client": self._names.pop(gone)}
        for member in members:
            if member.member_id not in self._names:
                name = recording.free_name(member.client_id, self._names.values())
                self._names[member.member_id] = name
                yield "joined", {"group": self._group_id, "client": name}
        owned = {member.member_id: _partitions(member.assignment) for member in members}
        self._owners = {place: self._names[member_id] for member_id, places in owned.items() for place in places}
        yield (
            "generation",
            {
                "group": self._group_id,
                "generation": 0 if record.value is None else record.value.generation,
                "members": [
                    {"client": self._names[member_id], "partitions": _by_topic(places)}
                    for member_id, places in owned.items()
                ],
            },
        )


def _partitions(assignment: bytes) -> list[TopicPartition]:
    try:
        return decode_assignment(assignment).partitions
    except ProtocolError:  # of Kafka Connect, say
        return []


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _nested(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, for JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic
