"""Polls the lag of a cluster's groups through the admin API.

With Arrow installed (the extra `arrow`), the timestamp of the first uncommitted record is read if no earlier snapshot
shows when it was written: some kilobytes for each, for at most MOST_READ partitions a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription
from muster.errors import KafkaError, UnsupportedVersionError
from muster.history.lag.groups import Ends, GroupLag, LagSnapshot, PartitionLag, untimed, wanted, with_seconds
from muster.history.sink_groups import is_of_sink
from muster.history.sources.log_ends import Bounds, known_bounds
from muster.history.sources.remarks import Remarks
from muster.model import CONSUMER_PROTOCOL_TYPE, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from muster.client.config import ClientConfig

MOST_READ = 100
_OTHER_KINDS = ("share", "streams")

Committed = dict[TopicPartition, OffsetAndMetadata]


class LagWatch:
    """Polls the lag of a cluster's groups: of the named ones, or of all.

    Args:
        reading: the settings of a client that reads records for their timestamps; None: none are read.
    """

    def __init__(self, admin: Admin, groups: Collection[str] = (), reading: ClientConfig | None = None) -> None:
        self._admin = admin
        self._groups = frozenset(groups)
        self._reading = reading if reading is not None and find_spec("pyarrow") and find_spec("numpy") else None
        self._ends = Ends()

    def look(self) -> LagSnapshot:
        """LagSnapshot once.

        Raises:
            KafkaTimeoutError: no broker answers.
            KafkaError: the cluster does not even list its groups.
        """
        begun, remarks = time.monotonic(), Remarks()
        brokers = self._brokers()
        described = self._described(remarks)
        offsets = self._committed(sorted(described), remarks)
        names = [
            name for name, committed in offsets.items() if name in self._groups or not _is_of_sink(name, committed)
        ]
        places = {place for name in names for place in offsets[name]}
        places |= {place for name in names for member in described[name].members for place in member.assignment}
        bounds = known_bounds(self._admin, places, remarks)
        at_ms = time.time_ns() // 1_000_000
        groups = [_group(described[name], offsets[name], bounds) for name in names]
        found = LagSnapshot(at_ms, 0, brokers, groups)
        self._ends.see({place: ends.end for place, ends in bounds.items()}, at_ms)
        self._read_times(found)
        self._ends.keep(wanted(found))
        took_ms = int((time.monotonic() - begun) * 1_000)
        return replace(with_seconds(found, self._ends), took_ms=took_ms, remarks=remarks.sentences())

    def _brokers(self) -> int | None:
        try:
            return len(self._admin.describe_cluster().nodes)
        except UnsupportedVersionError:  # before Kafka 2.8
            return None

    def _described(self, remarks: Remarks) -> dict[str, GroupDescription]:
        listed = self._admin.list_consumer_groups()
        for name in sorted(self._groups - {one.group_id for one in listed}):
            remarks.add(f"there is no group {name}")
        asked = [
            one.group_id
            for one in listed
            if (not self._groups or one.group_id in self._groups)
            and one.protocol_type in (CONSUMER_PROTOCOL_TYPE, "")
            and one.group_type.lower() not in _OTHER_KINDS
        ]
        found: dict[str, GroupDescription] = {}
        for name, answer in self._admin.describe_consumer_groups(asked, raise_errors=False).items():
            if isinstance(answer, GroupDescription):
                found[name] = answer
            else:
                remarks.add(f"group {name} cannot be described: {answer.code.name}")
        return found

    def _committed(self, groups: list[str], remarks: Remarks) -> dict[str, Committed]:
        found: dict[str, Committed] = {}
        for group, answers in self._admin.list_offsets_of_consumer_groups(groups, raise_errors=False).items():
            found[group] = {}
            if isinstance(answers, KafkaError):
                remarks.add(f"the offsets of group {group} could not be read: {answers.code.name}")
            else:
                found[group] = {place: said for place, said in answers.items() if not isinstance(said, KafkaError)}
        return found

    def _read_times(self, found: LagSnapshot) -> None:
        if self._reading is None:
            return
        from muster.history.sources.lag_samples import first_times

        parts = untimed(found, self._ends).items()
        asked = [(place, first, end) for place, some in parts for first, end in some.items()]
        for (place, first, _), at_ms in first_times(self._reading, asked[:MOST_READ]).items():
            if at_ms is not None:
                self._ends.known(place, first, at_ms)


def _is_of_sink(group: str, committed: Committed) -> bool:
    return is_of_sink(group, [position.metadata for position in committed.values()])


def _group(group: GroupDescription, committed: Committed, bounds: dict[TopicPartition, Bounds]) -> GroupLag:
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
