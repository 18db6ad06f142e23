"""Polls the lag of a cluster's groups through the admin API.

With Arrow installed (the extra `arrow`), the timestamp of the first uncommitted record is read if no earlier snapshot
shows when it was written: a few kilobytes each, for at most MOST_READ partitions per snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription, GroupListing, all_groups
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from muster.history.lag.groups import (
    GroupLag,
    LagSnapshot,
    LogEndTimes,
    PartitionLag,
    first_unread_offsets,
    with_seconds,
    without_seconds,
)
from muster.history.sink_groups import is_of_sink
from muster.history.sources.log_ends import OffsetBounds, known_bounds
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import CONSUMER_PROTOCOL_TYPE, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from muster.client.config import ClientConfig

MOST_READ = 100
_OTHER_KINDS = ("share", "streams")
_PROTOCOL_TYPES = (CONSUMER_PROTOCOL_TYPE, "")

CommittedOffsets = dict[TopicPartition, OffsetAndMetadata]


class LagWatch:
    """Polls the lag of a cluster's groups: of the named ones, or of all.

    Args:
        reading: the settings of a client that reads records for their timestamps; None: no records are read.
    """

    def __init__(self, admin: Admin, groups: Collection[str] = (), reading: ClientConfig | None = None) -> None:
        self._admin = admin
        self._groups = frozenset(groups)
        self._reading = reading if reading is not None and find_spec("pyarrow") and find_spec("numpy") else None
        self._ends = LogEndTimes()
        self._away: list[int] = []

    def poll(self) -> LagSnapshot:
        """Take one snapshot.

        Raises:
            KafkaTimeoutError: no broker answers.
            KafkaError: the cluster does not even list its groups.
        """
        begun, warnings, self._away = time.monotonic(), ReaderWarnings(), []
        brokers = self._brokers()
        described = self._described(warnings)
        offsets = self._committed(sorted(described), warnings)
        names = [
            name for name, committed in offsets.items() if name in self._groups or not _is_of_sink(name, committed)
        ]
        places = {place for name in names for place in offsets[name]}
        places |= {place for name in names for member in described[name].members for place in member.assignment}
        bounds = known_bounds(self._admin, places, warnings)
        at_ms = wall_clock_ms()
        groups = [_group(described[name], offsets[name], bounds) for name in names]
        found = LagSnapshot(at_ms, 0, brokers, groups)
        self._ends.add({place: ends.end for place, ends in bounds.items()}, at_ms)
        self._read_times(found)
        self._ends.keep_times(first_unread_offsets(found))
        took_ms = int((time.monotonic() - begun) * 1_000)
        return replace(
            with_seconds(found, self._ends), took_ms=took_ms, remarks=warnings.sentences(), brokers_away=self._away
        )

    def _brokers(self) -> int | None:
        try:
            return len(self._admin.describe_cluster().nodes)
        except UnsupportedVersionError:  # before Kafka 2.8
            return None

    def _described(self, warnings: ReaderWarnings) -> dict[str, GroupDescription]:
        found: dict[str, GroupDescription] = {}
        missing: list[str] = []
        # Named groups need only their coordinators.
        names = sorted(self._groups) or [name for name, group in self._listed(warnings).items() if _has_lag(group)]
        for name, answer in self._admin.describe_consumer_groups(names, raise_errors=False).items():
            if isinstance(answer, GroupDescription):
                if answer.protocol_type in _PROTOCOL_TYPES:
                    found[name] = answer
            elif name in self._groups and answer.code is ErrorCode.GROUP_ID_NOT_FOUND:
                missing.append(name)
            else:
                why = str(answer) if isinstance(answer, KafkaTimeoutError) else answer.code.name
                warnings.add(f"group {name} cannot be described: {why}")
        if missing:  # or it is another kind of group
            listed = self._listed(warnings)
            for name in missing:
                if name not in listed:
                    warnings.add(f"group {name} does not exist")
        return found

    def _listed(self, warnings: ReaderWarnings) -> dict[str, GroupListing]:
        """The groups of all brokers that answer, by id."""
        by_broker = self._admin.list_consumer_groups_by_broker()
        answers = {broker: listed for broker, listed in by_broker.items() if not isinstance(listed, KafkaError)}
        for broker, listed in by_broker.items():
            if answers and isinstance(listed, KafkaError):
                self._away.append(broker)
                warnings.add(f"the groups that broker {broker} coordinates are missing: {listed}")
        return {group.group_id: group for group in all_groups(answers or by_broker)}

    def _committed(self, groups: list[str], warnings: ReaderWarnings) -> dict[str, CommittedOffsets]:
        found: dict[str, CommittedOffsets] = {}
        for group, answers in self._admin.list_offsets_of_consumer_groups(groups, raise_errors=False).items():
            found[group] = {}
            if isinstance(answers, KafkaError):
                why = str(answers) if isinstance(answers, KafkaTimeoutError) else answers.code.name
                warnings.add(f"the offsets of group {group} could not be read: {why}")
            else:
                found[group] = {
                    place: position for place, position in answers.items() if not isinstance(position, KafkaError)
                }
        return found

    def _read_times(self, found: LagSnapshot) -> None:
        if self._reading is None:
            return
        from muster.history.sources.lag_samples import first_times

        parts = without_seconds(found, self._ends).items()
        spans = [(place, first, end) for place, some in parts for first, end in some.items()]
        for (place, first, _), at_ms in first_times(self._reading, spans[:MOST_READ]).items():
            if at_ms is not None:
                self._ends.set_time(place, first, at_ms)


def _has_lag(group: GroupListing) -> bool:
    return group.protocol_type in _PROTOCOL_TYPES and group.group_type.lower() not in _OTHER_KINDS


def _is_of_sink(group: str, committed: CommittedOffsets) -> bool:
    return is_of_sink(group, [position.metadata for position in committed.values()])


def _group(
    group: GroupDescription, committed: CommittedOffsets, bounds: dict[TopicPartition, OffsetBounds]
) -> GroupLag:
    owners = {place: member for member in group.members for place in member.assignment}
    parts = []
    for place in sorted({*owners, *committed}):
        owner, ends, position = owners.get(place), bounds.get(place), committed.get(place)
        parts.append(
            PartitionLag(
                place.topic,
                place.partition,
                committed_offset=position.offset if position is not None else None,
                log_start_offset=ends.start if ends is not None else None,
                log_end_offset=ends.end if ends is not None else None,
                consumer_id=owner.member_id if owner is not None else None,
                client_id=owner.client_id if owner is not None else None,
                host=owner.host if owner is not None else None,
            )
        )
    return GroupLag(group.group_id, group.state, len(group.members), _owned_first(parts))


def _owned_first(parts: Sequence[PartitionLag]) -> list[PartitionLag]:
    """By topic and partition, unassigned ones last."""
    return sorted(parts, key=lambda part: part.consumer_id is None)
