"""A group's state in the log: a classic group's generations (classic_generations.py), a KIP-848 group's epochs.

**Classic.** One record (GroupMetadata) holds a whole generation. It is written when the leader has sent the assignment,
when the last member is gone (generation + 1, without members), and again under the same generation when a static member
returns under a new id. Its `currentStateTimestamp` is the time when all members had joined.

**KIP-848.** A group is spread over records that are written on each change, several in one batch: members (5), the
epoch (3) when a new assignment is required, the target assignment of each member (7) and its epoch (6), each member's
current assignment (8), what a regular expression matches (16), partitions of topics (4, before Kafka 4.1; since then a
hash of them in 3). A tombstone deletes its key's state. `ConsumerTable` is that state; an epoch's row has the target
assignment.

Assignments name topics by id. Names come from the cluster (`Limits.topic_names`), from kind 4, or by elimination: an id
that is assigned to members stands for a topic that all of them subscribe to.

A group is converted between the two protocols by one batch: tombstones of one kind and records of the other, with the
same number as generation and epoch.

What cannot be read (broken bytes, a future version) is skipped; members of protocol types other than `consumer` have no
topics, because their bytes mean something else.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Any, TypeAlias

from muster.errors import ProtocolError
from muster.history.model import Entry, Generation, GroupKind, Member, Place, TopicPartition, fixed
from muster.protocol.group_records import GroupMetadataRecord, decode_record
from muster.protocol.record_kinds import RecordKind, TypedRecord

STABLE = 0
LEFT_FOR_A_WHILE = -2
"""The epoch of a static member that left temporarily."""


def read(entry: Entry) -> GroupMetadataRecord | TypedRecord | None:
    """The record of an entry; None if it cannot be read or its kind is unknown."""
    try:
        record = decode_record(entry.key, entry.value)
    except ProtocolError:
        return None
    return record if isinstance(record, GroupMetadataRecord | TypedRecord) else None


# ------------------------------------------------------------------------------------------------------------ KIP-848

Ids: TypeAlias = tuple[TopicPartition, ...]
"""Partitions by topic id in hexadecimal digits."""


@fixed
class Standing:
    """A member's current assignment, on its way to the target."""

    epoch: int
    state: int
    assigned: Ids
    pending: Ids

    @property
    def held(self) -> Ids:
        return (*self.assigned, *self.pending)


class RecordEffect(Enum):
    """What a record changed in a group."""

    EPOCH = auto()
    GONE = auto()
    MEMBER = auto()
    STANDING = auto()
    OTHER = auto()


@dataclass(slots=True)
class ConsumerTable:
    """A KIP-848 group's state after its records."""

    epoch: int | None = None
    metadata_hash: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions by topic, from kind 4."""
    members: dict[str, Member] = field(default_factory=dict)
    target_epoch: int | None = None
    targets: dict[str, Ids] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    regexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    assignors: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    candidates: dict[str, frozenset[str]] = field(default_factory=dict)
    behind: set[str] | None = None
    """Members that do not have this epoch's assignment yet; None: must be computed again."""

    def apply(self, record: TypedRecord) -> RecordEffect:
        """Apply a record of kinds 3 to 8 and 16."""
        return _APPLY[record.kind](self, record.key, record.value)

    def _group(self, _key: Any, value: Any) -> RecordEffect:
        self.behind = None
        if value is None:
            self.epoch = None
            return RecordEffect.GONE
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        return RecordEffect.EPOCH

    def _partitions(self, _key: Any, value: Any) -> RecordEffect:
        self.counts = {} if value is None else {topic.topic_name: topic.num_partitions for topic in value.topics}
        if value is not None:
            self.names.update({topic.topic_id.hex(): topic.topic_name for topic in value.topics})
        return RecordEffect.OTHER

    def _member(self, key: Any, value: Any) -> RecordEffect:
        if value is None:
            self.members.pop(key.member_id, None)
            self.assignors.pop(key.member_id, None)
            self._update_behind(key.member_id)
            return RecordEffect.MEMBER
        classic = value.classic_member_metadata
        self.members[key.member_id] = Member(
            member_id=key.member_id,
            client_id=value.client_id,
            host=value.client_host,
            instance_id=value.instance_id,
            topics=tuple(sorted(set(value.subscribed_topic_names))),
            topic_regex=value.subscribed_topic_regex or None,
            session_timeout_ms=None if classic is None else classic.session_timeout_ms,
            rebalance_timeout_ms=value.rebalance_timeout_ms if value.rebalance_timeout_ms >= 0 else None,
        )
        self.assignors.pop(key.member_id, None)
        if value.server_assignor:
            self.assignors[key.member_id] = value.server_assignor
        self._update_behind(key.member_id)
        return RecordEffect.MEMBER

    def _target_epoch(self, _key: Any, value: Any) -> RecordEffect:
        self.target_epoch = None if value is None else value.assignment_epoch
        return RecordEffect.OTHER

    def _target(self, key: Any, value: Any) -> RecordEffect:
        if value is None:
            self.targets.pop(key.member_id, None)
        else:
            self.targets[key.member_id] = found = _ids(value.topic_partitions)
            self._narrow(key.member_id, found)
        return RecordEffect.OTHER

    def _standing(self, key: Any, value: Any) -> RecordEffect:
        if value is None:
            self.standings.pop(key.member_id, None)
            self._update_behind(key.member_id)
            return RecordEffect.OTHER
        assigned, pending = _ids(value.assigned_partitions), _ids(value.partitions_pending_revocation)
        self.standings[key.member_id] = Standing(value.member_epoch, value.state, assigned, pending)
        self._update_behind(key.member_id)
        return RecordEffect.STANDING

    def _regex(self, key: Any, value: Any) -> RecordEffect:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = tuple(sorted(value.topics))
        return RecordEffect.OTHER

    # --- names of topics

    def subscribed(self, member: Member) -> frozenset[str]:
        """The topics that a member is known to subscribe to."""
        return frozenset(member.topics) | frozenset(self.regexes.get(member.topic_regex or "", ()))

    def _narrow(self, member_id: str, places: Ids) -> None:
        """Narrow down the names of topic ids by a member's assignment."""
        member = self.members.get(member_id)
        topics = frozenset() if member is None else self.subscribed(member)
        if not topics:
            return
        for topic_id in {topic for topic, _ in places} - self.names.keys():
            possible = self.candidates.get(topic_id)
            self.candidates[topic_id] = (possible & topics if possible else topics) or topics
        self._settle_names()

    def _settle_names(self) -> None:
        settled = True
        while settled:
            taken = set(self.names.values())
            settled = False
            for topic_id, possible in sorted(self.candidates.items()):
                left = possible - taken or possible  # a recreated topic has the name of an id that is gone
                if len(left) == 1:
                    self.names[topic_id] = next(iter(left))
                    del self.candidates[topic_id]
                    settled = True
                    break

    def match(self, committed: set[str]) -> None:
        """Learn from commits: if one id has no name yet and one of its candidates is committed, it is that topic."""
        taken = set(self.names.values())
        if len(self.candidates) == 1:
            ((topic_id, possible),) = self.candidates.items()
            seen = (possible & committed) - taken
            if len(seen) == 1:
                self.names[topic_id] = next(iter(seen))
                del self.candidates[topic_id]

    def named(self, places: Ids, given: Mapping[str, str]) -> tuple[TopicPartition, ...]:
        """Partitions by name; by id, as Kafka prints it, if the name is not known."""
        return tuple(sorted({(self._name(topic, given), partition) for topic, partition in places}))

    def _name(self, topic_id: str, given: Mapping[str, str]) -> str:
        return given.get(topic_id) or self.names.get(topic_id) or _printed(topic_id)

    def is_settled(self) -> bool:
        """Whether every member has this epoch's assignment."""
        if self.target_epoch != self.epoch:
            return False
        if self.behind is None:
            self.behind = {member_id for member_id in self.members if self._is_behind(member_id)}
        return not self.behind

    def _is_behind(self, member_id: str) -> bool:
        found = self.standings.get(member_id)
        if found is None or found.epoch == LEFT_FOR_A_WHILE:
            return found is None
        return found.epoch != self.epoch or found.state != STABLE

    def _update_behind(self, member_id: str) -> None:
        """Update `behind` for a member that changed. Checking all members each time would be quadratic."""
        if self.behind is None:
            return
        if member_id in self.members and self._is_behind(member_id):
            self.behind.add(member_id)
        else:
            self.behind.discard(member_id)

    def owners(self, given: Mapping[str, str]) -> dict[TopicPartition, str]:
        """Which member may commit which partition: its target, and what it has not revoked yet."""
        found = {
            place: member_id
            for member_id, ids in self.targets.items()
            if member_id in self.members
            for place in self.named(ids, given)
        }
        for member_id, standing in self.standings.items():
            if member_id in self.members:
                found.update(dict.fromkeys(self.named(standing.held, given), member_id))
        return found


def _ids(found: Iterable[Any]) -> Ids:
    return tuple((topic.topic_id.hex(), partition) for topic in found for partition in topic.partitions)


@lru_cache(maxsize=4096)
def _printed(topic_id: str) -> str:
    return urlsafe_b64encode(bytes.fromhex(topic_id)).rstrip(b"=").decode()


_APPLY = {
    RecordKind.CONSUMER_GROUP_METADATA: ConsumerTable._group,
    RecordKind.CONSUMER_GROUP_PARTITION_METADATA: ConsumerTable._partitions,
    RecordKind.CONSUMER_GROUP_MEMBER_METADATA: ConsumerTable._member,
    RecordKind.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: ConsumerTable._target_epoch,
    RecordKind.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: ConsumerTable._target,
    RecordKind.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: ConsumerTable._standing,
    RecordKind.CONSUMER_GROUP_REGULAR_EXPRESSION: ConsumerTable._regex,
}
CONSUMER_KINDS = frozenset(_APPLY)
OTHER_EPOCHS = {
    RecordKind.SHARE_GROUP_METADATA: GroupKind.SHARE,
    RecordKind.STREAMS_GROUP_METADATA: GroupKind.STREAMS,
}


def other_kind(kind: RecordKind) -> GroupKind:
    """Share or streams, for a record that belongs to neither a classic nor a consumer group."""
    return GroupKind.SHARE if kind < RecordKind.CONSUMER_GROUP_REGULAR_EXPRESSION else GroupKind.STREAMS


def other_generation(group: str, kind: GroupKind, epoch: int, at: Place) -> Generation:
    """The row of an epoch of a share or streams group: its kind and number, nothing else."""
    return Generation(group, epoch, kind, at.timestamp_ms, None, None, None, str(kind), None, None, (), at)
