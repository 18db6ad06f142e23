"""Polls groups through the admin API, for clusters in which `__consumer_offsets` is not readable.

The results are converted to the records that the coordinator would have written: a generation when the members or their
partitions change, a commit when an offset does. So the same rules make the same tables. A warning states what polling
cannot show: the time before, intermediate changes between two polls, and the members' timeouts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import GroupDescription, GroupListing, MemberDescription
from muster.clock import wall_clock_ms
from muster.errors import ErrorCode, KafkaError, KafkaTimeoutError
from muster.history.engine import GroupHistory, read_history
from muster.history.entries.synthetic_records import SyntheticRecords
from muster.history.model import GroupKind, Limits, Rebalance
from muster.history.sources.reader_warnings import ReaderWarnings
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord
from muster.protocol.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription

INTERVAL_MS = 1_000
SAMPLED_CONFIDENCE = 0.6
"""The factor for the confidence of a cause that is inferred from polls instead of records."""

_SESSION_MS, _POLL_MS = 45_000, 300_000
"""Kafka's defaults, because the admin API does not report these."""
_AT_REST = frozenset({"Stable", "Empty"})
_KINDS = {"share": GroupKind.SHARE, "streams": GroupKind.STREAMS}

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(slots=True)
class _GroupAtRest:
    """A group as of the last poll that found it at rest."""

    signature: object = None
    generation: int = 0
    unrest_ms: int | None = None
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    kind: GroupKind = GroupKind.CLASSIC
    was_there: bool = False
    """It existed at the very first poll: its state did not begin then."""


class SampledRecords(SyntheticRecords):
    """What polling has shown so far, as the records of a log."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, _GroupAtRest] = {}
        self._has_polled = False
        self._initial_generations: dict[str, int] = {}
        """The generations that groups already had when they were first seen at rest."""

    @property
    def kinds(self) -> dict[str, GroupKind]:
        """Each group's protocol."""
        return {group: seen.kind for group, seen in self._groups.items()}

    def began(self, row: Rebalance) -> bool:
        """Whether a rebalance was seen, as opposed to the one that led to the state in which a group was first seen."""
        return row.previous_generation is not None or self._initial_generations.get(row.group) != row.generation

    def add_poll(self, group: GroupDescription, offsets: Offsets, at_ms: int) -> None:
        """Record one poll of a group."""
        seen = self._groups.setdefault(group.group_id, _GroupAtRest(was_there=not self._has_polled))
        if group.epoch is not None:
            seen.kind = GroupKind.CONSUMER
        self._add_offsets(group.group_id, seen, offsets, at_ms)
        if group.state not in _AT_REST:
            seen.unrest_ms = seen.unrest_ms or at_ms
            return
        signature = (group.epoch, [(member.member_id, member.topics, member.assignment) for member in group.members])
        if signature != seen.signature or seen.unrest_ms is not None:
            seen.generation = group.epoch if group.epoch is not None else seen.generation + 1
            self.write(_generation(group, seen, at_ms), at_ms)
            if seen.was_there and group.group_id not in self._initial_generations:
                self._initial_generations[group.group_id] = seen.generation
        seen.signature, seen.unrest_ms = signature, None

    def set_existing(self, groups: Collection[str], at_ms: int) -> None:
        """Record which groups exist now; the others are gone."""
        self._has_polled = True
        for group, seen in self._groups.items():
            if group not in groups and seen.signature is not None:
                self._add_offsets(group, seen, {}, at_ms)
                self.write(GroupMetadataRecord(GroupMetadataKey(group), None), at_ms)
                seen.signature = None

    def _add_offsets(self, group: str, seen: _GroupAtRest, offsets: Offsets, at_ms: int) -> None:
        for place, position in offsets.items():
            if seen.offsets.get(place) != position:
                value = OffsetCommitValue(position.offset, position.leader_epoch, position.metadata, at_ms)
                self.write(OffsetCommitRecord(OffsetCommitKey(group, place.topic, place.partition), value), at_ms)
        for place in seen.offsets.keys() - offsets.keys():
            self.write(OffsetCommitRecord(OffsetCommitKey(group, place.topic, place.partition), None), at_ms)
        seen.offsets = dict(offsets)


def _generation(group: GroupDescription, seen: _GroupAtRest, at_ms: int) -> GroupMetadataRecord:
    return GroupMetadataRecord(
        GroupMetadataKey(group.group_id),
        GroupMetadataValue(
            protocol_type=group.protocol_type,
            generation=seen.generation,
            protocol=group.assignor or None,
            leader=None,
            current_state_timestamp=seen.unrest_ms or at_ms,
            members=[_member(member) for member in group.members],
        ),
    )


def _member(member: MemberDescription) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.host,
        rebalance_timeout=_POLL_MS,
        session_timeout=_SESSION_MS,
        subscription=encode_subscription(Subscription(topics=member.topics, owned_partitions=member.owned)),
        assignment=encode_assignment(member.assignment),
    )


# --- polling ---------------------------------------------------------------------------------------------------------


def sample(admin: Admin, groups: Collection[str], duration_ms: int, warnings: ReaderWarnings) -> GroupHistory:
    """Poll groups for this long; all of them if none is named.

    Raises:
        KafkaTimeoutError: no broker answers.
        KafkaError: the groups cannot be listed.
    """
    watch, others = SampledRecords(), dict[str, GroupKind]()
    until = time.monotonic() + duration_ms / 1000
    while True:
        begun = time.monotonic()
        _poll(admin, watch, groups, others, warnings)
        pause = min(begun + INTERVAL_MS / 1000, until) - time.monotonic()
        if time.monotonic() >= until:
            break
        time.sleep(max(0.0, pause))
    now_ms = wall_clock_ms()
    found = read_history(watch, Limits(), None, now_ms)
    _mark_as_sampled(found, watch)
    sinks = {group: kind for group, kind in found.kinds.items() if kind is GroupKind.SINK}
    found.kinds = {**others, **found.kinds, **watch.kinds, **sinks}
    found.counts = {}
    warnings.add(
        f"observed by polling the admin API about every {INTERVAL_MS} ms for {duration_ms / 1000:g} s: nothing before "
        "that is known; of several changes between two polls only the last is seen; times are those of the polls; "
        "classic generations are counted from 1; causes are less certain, because members' timeouts are not known"
    )
    return found


def _poll(
    admin: Admin, watch: SampledRecords, groups: Collection[str], others: dict[str, GroupKind], warnings: ReaderWarnings
) -> None:
    listed = {one.group_id: one for one in admin.list_consumer_groups() if not groups or one.group_id in groups}
    to_describe = []
    for name, one in listed.items():
        if one.group_type.lower() in _KINDS:
            others[name] = _KINDS[one.group_type.lower()]
            warnings.add(f"group {name} is a {one.group_type.lower()} group: its members are not read")
        elif _is_consumer_group(one):
            to_describe.append(name)
    described = admin.describe_consumer_groups(to_describe, raise_errors=False)
    there = set()
    for name, answer in described.items():
        if isinstance(answer, GroupDescription):
            offsets = offsets_of(admin, name, warnings)
            if offsets is not None:
                watch.add_poll(answer, offsets, wall_clock_ms())
            there.add(name)
        elif answer.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            warnings.add(f"group {name} cannot be described: {answer.code.name}")
            there.add(name)
    watch.set_existing(there, wall_clock_ms())


def _is_consumer_group(one: GroupListing) -> bool:
    return one.protocol_type in ("consumer", "")


def offsets_of(admin: Admin, group: str, warnings: ReaderWarnings) -> Offsets | None:
    """A group's committed offsets; None if they are not available this time."""
    try:
        answers = admin.list_consumer_group_offsets(group, raise_errors=False)
    except KafkaTimeoutError:
        raise
    except KafkaError as error:
        warnings.add(f"the offsets of group {group} cannot be read: {error.code.name}")
        return {} if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED else None
    return {place: found for place, found in answers.items() if not isinstance(found, KafkaError)}


def _mark_as_sampled(found: GroupHistory, watch: SampledRecords) -> None:
    """Mark each row as sampled, with less confidence, and drop those that no poll has shown."""
    rows, kinds = found.rows, watch.kinds
    rows.generations = [replace(row, kind=kinds.get(row.group, row.kind)) for row in rows.generations]
    rows.rebalances = [
        replace(row, confidence=round(SAMPLED_CONFIDENCE * row.confidence, 3), source="samples")
        for row in rows.rebalances
        if watch.began(row)
    ]
