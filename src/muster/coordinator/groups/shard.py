"""One shard: the groups whose ids hash to one partition of `__consumer_offsets`. Routes requests, applies records.

A shard is used by one thread. Each handler takes a request, its origin and the time, and returns Effects whose records
are already applied. `apply` on an empty shard, record by record, and then `loaded`, restore it from its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from muster.coordinator.groups import classic, offsets
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.classic_join import join
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import Effects, Origin
from muster.coordinator.groups.error_responses import error_for_lost, not_joined
from muster.coordinator.groups.group import GroupState
from muster.coordinator.groups.group_pattern import GroupPattern
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.groups.offsets import Granted, OffsetStore
from muster.coordinator.groups.pending_offsets import PendingOffsets
from muster.coordinator.groups.server_assignment import ServerAssignment
from muster.coordinator.groups.topics import TopicResolver
from muster.coordinator.groups.wall_time import shifted
from muster.coordinator.shards.clocks import NEVER, NO_TIMESTAMP
from muster.coordinator.shards.served_shard import Reply, Ticket
from muster.errors import NONE, ErrorCode
from muster.protocol.admin_messages import OffsetDeleteRequest, OffsetDeleteResponse
from muster.protocol.group_records import (
    GroupMetadataRecord,
    OffsetCommitRecord,
    OffsetCommits,
    UnknownRecord,
    Written,
    append_records,
    decode_coordinated,
)
from muster.protocol.messages import (
    DeletableGroupResult,
    DescribedGroup,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    OffsetCommitRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.records.record_batch import BatchBuilder
from muster.protocol.transaction_messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

MAX_NAME_LENGTH = 8_000
"""The longest name in characters that a record can hold: its strings have at most 32,767 bytes. Requests can carry
longer ones."""


class GroupCounts:
    """Counters of all shards of a coordinator since it started: for operators, unused by the rules.

    Plain integers, updated with every commit. `offsets_deleted` counts offsets of deleted topics.
    """

    __slots__ = ("offsets_committed", "offsets_deleted", "offsets_expired")

    def __init__(self) -> None:
        self.offsets_committed = self.offsets_expired = self.offsets_deleted = 0


class GroupShard:
    """Groups and offsets of one partition."""

    __slots__ = (
        "_alarms",
        "_assigned_groups",
        "_assignment",
        "_expiry_check_at",
        "config",
        "counts",
        "first_alarm",
        "groups",
        "offsets",
        "pending",
        "topics",
    )

    def __init__(self, config: GroupConfig, topics: TopicResolver, counts: GroupCounts | None = None) -> None:
        self.config = config
        self.topics = topics
        self.groups: dict[str, AnyGroup] = {}
        self.offsets = OffsetStore()
        self.pending = PendingOffsets()
        self.counts = GroupCounts() if counts is None else counts
        self._assigned_groups = GroupPattern(config.server_assigned_groups)
        self._assignment = ServerAssignment(topics)
        # (time, group id): when to check each group next. Outdated entries are skipped.
        self._alarms: list[tuple[int, str]] = []
        self._expiry_check_at = NEVER
        self.first_alarm = NEVER
        """A time no later than the next deadline; exact after a call of `next_deadline`."""

    # ----------------------------------------------------------------------------------------------------- membership

    def join(self, request: JoinGroupRequest, origin: Origin, now: int) -> Effects:
        """JoinGroup. The first join without a member id creates the group."""
        effects = Effects()
        error = self._check_join(request, origin)
        if error is not NONE:
            return effects.reply(origin.ticket, not_joined(error, request.member_id))
        group = self.groups.get(request.group_id)
        if group is None:
            self._write(self._new_group(request.group_id, now).record(), effects)
            group = self.groups[request.group_id]
        if type(group) is not ClassicGroup:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return effects.reply(origin.ticket, not_joined(error, request.member_id))
        join(group, request, origin, now, effects)
        self._arm(group)
        return effects

    def _new_group(self, group_id: str, now: int = NO_TIMESTAMP) -> ClassicGroup:
        assigner = self._assignment if self._assigned_groups.matches(group_id) else None
        return ClassicGroup(group_id, self.config, now, assigner, self.topics.partition_count)

    def _check_join(self, request: JoinGroupRequest, origin: Origin) -> ErrorCode:
        longest, together = MAX_NAME_LENGTH, f"{request.group_id}{request.protocol_type}{origin.client_id}"
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if len(together) > longest:  # rare
            if len(request.group_id) > longest:
                return ErrorCode.INVALID_GROUP_ID
            if len(request.protocol_type) > longest or len(origin.client_id) > longest:
                return ErrorCode.INVALID_REQUEST
        if request.group_instance_id is not None and len(request.group_instance_id) > longest:
            return ErrorCode.INVALID_REQUEST
        for protocol in request.protocols:
            if len(protocol.name) > longest:
                return ErrorCode.INVALID_REQUEST
        config = self.config
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.member_id and request.group_id not in self.groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return NONE

    def sync(self, request: SyncGroupRequest, origin: Origin, now: int) -> Effects:
        """SyncGroup. Since version 5 it must name the protocol that the member believes was chosen (KIP-559)."""
        group = self.groups.get(request.group_id)
        if origin.api_version >= 5 and None in (request.protocol_type, request.protocol_name):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif not request.group_id:  # a group with an empty id may exist, of consumers that only commit
            error = ErrorCode.INVALID_GROUP_ID
        elif type(group) is not ClassicGroup:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            effects = classic.sync(group, request, origin, now)
            self._arm(group)
            return effects
        return Effects().reply(origin.ticket, SyncGroupResponse(error_code=error))

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now: int
    ) -> ErrorCode:
        """The fast path: without a request object and without effects."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if type(group) is not ClassicGroup:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = classic.heartbeat(group, generation_id, member_id, group_instance_id, now)
        if group.wake_at < group.armed_at:
            self._arm(group)
        return error

    def leave(self, request: LeaveGroupRequest, origin: Origin, now: int) -> Effects:
        """LeaveGroup. Up to version 2 for one member, later for several (KIP-345)."""
        if origin.api_version < 3:
            member = MemberIdentity(request.member_id)
            request = LeaveGroupRequest(request.group_id, request.member_id, [member])
        group = self.groups.get(request.group_id)
        if not request.group_id:
            response = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return Effects().reply(origin.ticket, response)
        if type(group) is not ClassicGroup:
            effects, error, unknown = Effects(), ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
            members = [MemberResponse(m.member_id, m.group_instance_id, unknown) for m in request.members]
        else:
            error, members, effects = classic.leave(group, request, now)
            self._arm(group)
        if origin.api_version < 3 and members:
            error, members = ErrorCode(members[0].error_code), []
        return effects.reply(origin.ticket, LeaveGroupResponse(error_code=error, members=members))

    # -------------------------------------------------------------------------------------------------------- offsets

    def commit(self, request: OffsetCommitRequest, origin: Origin, now: int) -> Effects:
        """OffsetCommit. A commit without membership creates the group (a simple consumer, J7)."""
        version = origin.api_version
        error = self._check_commit(request, version, now)
        response, records = offsets.commit(request, error, self.config, self.topics, version, now)
        for record in records:
            self.apply(record)
            self.counts.offsets_committed += len(record.values)
        effects = Effects().reply(origin.ticket, response)
        effects.records += records
        return effects

    def plain_commit(
        self, request: OffsetCommitRequest, version: int, now: int, *columns: Sequence[int]
    ) -> OffsetCommits | None:
        """The fast path: what a commit for partitions of one topic writes. None if any part is refused."""
        error = self._check_commit(request, version, now)
        return offsets.plain_commit(request, error, self.config, self.topics, version, now, *columns)

    def commit_all(self, commits: OffsetCommits, ticket: Ticket, granted: Granted) -> Effects:
        """Apply and acknowledge what `plain_commit` returned."""
        self.apply(commits)
        self.counts.offsets_committed += len(granted.partitions)
        return Effects([Reply(ticket, granted)], [commits])

    def _check_commit(self, request: OffsetCommitRequest, version: int, now: int) -> ErrorCode:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id_or_member_epoch < 0:
                return ErrorCode.NONE if len(request.group_id) <= MAX_NAME_LENGTH else ErrorCode.INVALID_GROUP_ID
            return ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        error = group.check_commit(request, now)
        if group.wake_at < group.armed_at:
            self._arm(group)
        return error

    def transactional_commit(
        self, request: TxnOffsetCommitRequest, error: ErrorCode, now: int
    ) -> tuple[TxnOffsetCommitResponse, list[OffsetCommits]]:
        """The answer to a TxnOffsetCommit, and what it writes; nothing is applied yet, because the log may refuse the
        producer. `error`: the transaction's own error."""
        group = self.groups.get(request.group_id)
        if not request.group_id or len(request.group_id) > MAX_NAME_LENGTH:
            error = ErrorCode.INVALID_GROUP_ID
        elif error is NONE and group is not None:
            who = (request.generation_id, request.member_id, request.group_instance_id)
            error = group.check_transactional_commit(*who)
        elif error is NONE and request.generation_id >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
        return offsets.transactional_commit(request, error, self.config, self.topics, now)

    def apply_transactional(self, producer_id: int, commits: OffsetCommits) -> None:
        """A producer's commit is in the log: it is pending until `end_transaction`."""
        if commits.group not in self.groups:
            self.groups[commits.group] = self._new_group(commits.group)
        self.pending.add(producer_id, commits)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker is in the log: the producer's pending offsets become the groups', or are dropped."""
        for (group_id, topic, partition), value in self.pending.end(producer_id, committed):
            self.offsets.commit(OffsetCommits(group_id, topic, [(partition, value)]))
            self.counts.offsets_committed += 1

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, version: int, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """One group of an OffsetFetch. A nonexistent group has no committed offsets; that is not an error.

        `require_stable` (KIP-447): an offset that a transaction may still change is an error."""
        if request.member_id is not None and (group := self.groups.get(request.group_id)) is not None:
            error = group.check_fetch(request)
            if error is not NONE:
                return OffsetFetchResponseGroup(request.group_id, error_code=error)
        unstable = self.pending.of_group(request.group_id) if require_stable else None
        return offsets.fetch(self.offsets.of_group(request.group_id), request, self.topics, version, unstable)

    def delete_offsets(self, request: OffsetDeleteRequest, origin: Origin, now: int) -> Effects:
        """OffsetDelete (KIP-496): remove committed offsets of topics that no member reads."""
        group = self.groups.get(request.group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_offset_delete()
        if not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        if group is None or error is not NONE:
            return Effects().reply(origin.ticket, OffsetDeleteResponse(error))
        committed, pending = self.offsets.of_group(group.group_id), self.pending.of_group(group.group_id)
        response, tombstones = offsets.delete(request, group, committed, pending, self.topics)
        effects = Effects().reply(origin.ticket, response)
        self._write_all(tombstones, effects)
        return effects

    def forget_offsets(self, group_id: str, topic: str, partitions: Iterable[int]) -> Effects:
        """Remove a group's committed offsets for a deleted topic."""
        effects = Effects()
        committed = self.offsets.of_group(group_id).get(topic, {})
        for partition in partitions:
            if partition in committed or self.pending.is_open(group_id, topic, partition):
                self.counts.offsets_deleted += 1
                self._write(offsets.tombstone(group_id, topic, partition), effects)
        return effects

    def topics_changed(self, names: frozenset[str] | None, now: int) -> Effects:
        """Topics were created or deleted, or their partitions or leaders changed; None means any topic. Server-assigned
        groups rebalance if this affects them."""
        effects = Effects()
        for group in self.groups.values():
            if type(group) is ClassicGroup:
                effects.merge((group.topics_changed(names, now),))
                self._arm(group)
        return effects

    # ----------------------------------------------------------------------------------------- describe, list, delete

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """One group of a DescribeGroups; a nonexistent one is Dead, and since version 6 an error (KIP-1043)."""
        group = self.groups.get(group_id)
        if group is not None:
            return group.described()
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= 6:
            dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            dead.error_message = f"Group {group_id} not found."
        return dead

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """The groups with any of the requested states and types; an empty filter means all (KIP-518)."""
        wanted = {state.strip().lower() for state in states}
        wanted_types = {name.strip().lower() for name in types}
        return [
            listed
            for listed in [group.listed() for group in self.groups.values()]
            if (not wanted or listed.group_state.lower() in wanted)
            and (not wanted_types or listed.group_type in wanted_types)
        ]

    def delete_group(self, group_id: str) -> tuple[DeletableGroupResult, Effects]:
        """One group of a DeleteGroups: only an empty one may be deleted, with all its offsets."""
        effects = Effects()
        group = self.groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is not None and error is ErrorCode.NONE:
            self._delete(group, effects)
        return DeletableGroupResult(group_id, error), effects

    def _delete(self, group: AnyGroup, effects: Effects) -> None:
        group_id = group.group_id
        for found in (self.offsets.of_group(group_id), self.pending.of_group(group_id)):
            places = [(topic, partition) for topic, partitions in found.items() for partition in partitions]
            for topic, partition in places:
                self._write(offsets.tombstone(group_id, topic, partition), effects)
        self._write_all(group.tombstones(), effects)

    # -------------------------------------------------------------------------------------------- records and loading

    def replay(self, key: bytes | None, value: bytes | None, shift: int) -> bool:
        """Apply a record of the log, its times shifted by `shift` ms. Returns False for a record of an unknown kind."""
        record = decode_coordinated(key, value)
        self.apply(shifted(record, shift))
        return type(record) is not UnknownRecord

    def replay_transactional(self, key: bytes | None, value: bytes | None, shift: int, producer_id: int) -> bool:
        """Like `replay`, for a record of a transaction."""
        record = shifted(decode_coordinated(key, value), shift)
        if not isinstance(record, OffsetCommitRecord):
            return False
        group_id, topic, partition, of = record.key.group, record.key.topic, record.key.partition, record.value
        if of is None:
            self.pending.add_void(producer_id, (group_id, topic, partition))
        else:
            times = (of.commit_timestamp, of.expire_timestamp)
            committed = (of.offset, of.leader_epoch, of.metadata, *times, of.topic_id)
            self.apply_transactional(producer_id, OffsetCommits(group_id, topic, [(partition, committed)]))
        return True

    def write_down(self, records: list[Written], batch: BatchBuilder, timestamp: int, shift: int) -> None:
        """Add records to a batch, their times shifted by `shift` ms."""
        for record in records:
            append_records(batch, timestamp, shifted(record, shift) if shift else record)

    def error_for_lost(self, answer: Any, error: ErrorCode) -> Any:
        """The answer to send instead of one whose records were lost."""
        return error_for_lost(answer, error)

    def apply(self, record: Written) -> None:
        """Apply a record: when it is written, and when the log is loaded."""
        if isinstance(record, OffsetCommits):
            if record.group not in self.groups:
                self.groups[record.group] = self._new_group(record.group)
            self.offsets.commit(record)
            if self.pending.by_producer:
                self.pending.supersede(record.group, record.topic, [partition for partition, _ in record.values])
        elif isinstance(record, OffsetCommitRecord):
            key, value = record
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = self._new_group(key.group)
            self.offsets.apply(key, value)
            if value is None:
                self.pending.forget(key.group, key.topic, key.partition)
            elif self.pending.by_producer:
                self.pending.supersede(key.group, key.topic, [key.partition])
        elif isinstance(record, GroupMetadataRecord):
            self._apply_group(record)

    def _apply_group(self, record: GroupMetadataRecord) -> None:
        group_id = record.key.group
        if record.value is None:
            if (gone := self.groups.pop(group_id, None)) is not None:
                gone.unload(ErrorCode.GROUP_ID_NOT_FOUND)  # it is empty: no request waits in it
            return
        group = self.groups.get(group_id)
        if type(group) is not ClassicGroup:
            group = self.groups[group_id] = self._new_group(group_id)
        group.apply(record.value)

    def loaded(self, now: int) -> Effects:
        """All records have been applied: sessions start now, and groups continue with their generation (H1).

        A classic group may then have to rebalance (`ClassicGroup.loaded`). Offsets of topics that were deleted while
        the shard was not loaded are removed.
        """
        effects = Effects()
        for group_id, topic, partition, value in list(self.offsets):
            topic_id = self.topics.topic_id(topic)
            if self.topics.is_gone(topic) or offsets.is_of_another_topic(value, topic_id):
                self._write(offsets.tombstone(group_id, topic, partition), effects)
        for group_id, topic, partition in self.pending.open_keys():
            if self.topics.is_gone(topic):
                self._write(offsets.tombstone(group_id, topic, partition), effects)
        self._expiry_check_at = now + self.config.offsets_retention_check_interval_ms
        for group in self.groups.values():
            effects.merge((group.loaded(now),))
            self._arm(group)
        self.next_deadline()
        return effects

    def unload(self, error: ErrorCode) -> Effects:
        """The shard is being dropped: waiting requests are answered with `error`, and members look up the
        coordinator."""
        return Effects().merge(group.unload(error) for group in self.groups.values())

    def _write(self, record: Written, effects: Effects) -> None:
        effects.records.append(record)
        self.apply(record)

    def _write_all(self, records: Iterable[Written], effects: Effects) -> None:
        for record in records:
            self._write(record, effects)

    # ------------------------------------------------------------------------------------------------------ deadlines

    def _arm(self, group: AnyGroup) -> None:
        if group.wake_at < group.armed_at:
            wake_at = group.armed_at = group.wake_at
            heappush(self._alarms, (wake_at, group.group_id))
            if wake_at < self.first_alarm:
                self.first_alarm = wake_at

    def next_deadline(self) -> int | None:
        """When to call `on_deadline`; nothing is due before."""
        while self._alarms and self._is_outdated(*self._alarms[0]):
            heappop(self._alarms)
        self.first_alarm = min(self._alarms[0][0] if self._alarms else NEVER, self._expiry_check_at)
        return None if self.first_alarm == NEVER else self.first_alarm

    def _is_outdated(self, at: int, group_id: str) -> bool:
        group = self.groups.get(group_id)
        return group is None or group.armed_at != at

    def on_deadline(self, now: int) -> Effects:
        """Do everything that is due. Afterwards `next_deadline()` is later than `now`."""
        effects = Effects()
        while self._alarms and self._alarms[0][0] <= now:
            at, group_id = heappop(self._alarms)
            if self._is_outdated(at, group_id):
                continue
            group = self.groups[group_id]
            group.armed_at = NEVER
            effects.merge((group.on_deadline(now),))
            self._arm(group)
        if self._expiry_check_at <= now:
            self._expiry_check_at = now + max(self.config.offsets_retention_check_interval_ms, 1)
            self._expire_offsets(now, effects)
        self.next_deadline()
        return effects

    def intervene(self, group: AnyGroup, decide: Callable[[AnyGroup, int], Effects], now: int) -> Effects:
        """Change a group from outside."""
        effects = decide(group, now)
        self._arm(group)
        return effects

    def _expire_offsets(self, now: int, effects: Effects) -> None:
        """Remove expired offsets, and empty groups that have no offsets left."""
        for group in list(self.groups.values()):
            committed = self.offsets.of_group(group.group_id)
            pending, retention_ms = self.pending.of_group(group.group_id), self.config.offsets_retention_ms
            tombstones, none_left = offsets.expired(group, committed, pending, retention_ms, now)
            self.counts.offsets_expired += len(tombstones)
            self._write_all(tombstones, effects)
            if none_left and group.is_empty:
                self._write_all(group.tombstones(), effects)
