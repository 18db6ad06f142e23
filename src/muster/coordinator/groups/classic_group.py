"""Classic groups: members and deadlines, with the rules that a shard needs from a group of any type."""

from __future__ import annotations

from muster.coordinator.groups import classic
from muster.coordinator.groups.classic import (
    COMMIT_BY_MEMBER,
    COMMIT_WITHOUT_GROUP,
    DELETE_GROUP,
    OFFSET_DELETE,
    check_generation,
)
from muster.coordinator.groups.effects import Effects, EventCause, GroupLoaded
from muster.coordinator.groups.group import ClassicGroupBase, GroupState
from muster.coordinator.groups.server_assignment import COORDINATOR_LEADS, STRATEGIES
from muster.coordinator.shards.clocks import NO_TIMESTAMP
from muster.errors import NONE, ErrorCode
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.messages import GroupMetadataKey, ListedGroup, OffsetCommitRequest, OffsetFetchRequestGroup

GROUP_TYPE = "classic"

_REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_RENEWED_BY_A_COMMIT = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)


class ClassicGroup(ClassicGroupBase):
    """A `Group` of the classic protocol. Its members' requests - join, sync, heartbeat, leave - are functions of
    `classic.py` and `classic_join.py`."""

    __slots__ = ()

    # -------------------------------------------------------------------------------------------------------- offsets

    def check_commit(self, request: OffsetCommitRequest, now: int) -> ErrorCode:
        """See `Group.check_commit`: members of this generation may commit, and any client if the group is empty."""
        state, generation_id = self.state, request.generation_id_or_member_epoch
        if state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and state is GroupState.EMPTY:
            return ErrorCode.NONE
        member_id, instance_id = request.member_id, request.group_instance_id
        if generation_id < 0 and not member_id and instance_id is None:
            return COMMIT_WITHOUT_GROUP[state]
        error = check_generation(self, member_id, instance_id, generation_id)
        if error is NONE:
            error = COMMIT_BY_MEMBER[state]
        if error is NONE and state in _RENEWED_BY_A_COMMIT:
            self.renew_session(self.members[member_id], now)
        return error

    def check_transactional_commit(self, generation_id: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """See `Group.check_transactional_commit`: a client from before KIP-447 names no member, and may commit in any
        state. A member may commit during a rebalance, and its session is not renewed."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        names_no_member = not member_id and instance_id is None
        if generation_id < 0 and (names_no_member or self.state is GroupState.EMPTY):
            return NONE
        return check_generation(self, member_id, instance_id, generation_id)

    def check_fetch(self, request: OffsetFetchRequestGroup) -> ErrorCode:
        """See `Group.check_fetch`: any client may read a classic group's offsets."""
        return NONE

    def check_offset_delete(self) -> ErrorCode:
        """See `Group.check_offset_delete`: which topics members other than consumers read is unknown."""
        return (OFFSET_DELETE if self.uses_consumer_protocol else DELETE_GROUP)[self.state]

    @property
    def is_empty(self) -> bool:
        """See `Group.is_empty`."""
        return self.state is GroupState.EMPTY

    @property
    def is_rebalancing(self) -> bool:
        """See `Group.is_rebalancing`."""
        return self.state in _REBALANCING

    @property
    def may_expire(self) -> bool:
        """See `Group.may_expire`: not during a rebalance."""
        if self.protocol_type is None or self.state is GroupState.EMPTY:
            return True
        known = self.uses_consumer_protocol and self.subscribed_topics is not None
        return known and self.state is GroupState.STABLE

    @property
    def emptied_at(self) -> int | None:
        """See `Group.emptied_at`. The oldest records do not contain it."""
        once_had_members = self.protocol_type is not None and self.state is GroupState.EMPTY
        return self.state_timestamp if once_had_members and self.state_timestamp != NO_TIMESTAMP else None

    # ----------------------------------------------------------------------------------------- list, delete

    def listed(self) -> ListedGroup:
        """See `Group.listed`."""
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value, GROUP_TYPE)

    def check_delete(self) -> ErrorCode:
        """See `Group.check_delete`: only an empty group may be deleted."""
        return DELETE_GROUP[self.state]

    def tombstones(self) -> list[GroupMetadataRecord]:
        """See `Group.tombstones`."""
        return [GroupMetadataRecord(GroupMetadataKey(self.group_id), None)]

    # ------------------------------------------------------------------------------------------------------ lifecycle

    def loaded(self, now: int) -> Effects:
        """See `Group.loaded`: the group continues with its generation (H1). It rebalances if it now has more members
        than allowed, so that some are refused; and, if the coordinator assigns or used to, when that setting or the
        partitions have changed."""
        effects = Effects()
        for member in self.members.values():
            self.renew_session(member, now)
        self.note_partitions()
        if self.members:
            broker_id, generation_id = self.config.node_id, self.generation_id
            effects.events.append(GroupLoaded(self.group_id, generation_id, len(self.members), broker_id))
        size, limit = len(self.members), self.config.group_max_size
        if self.state is not GroupState.STABLE:
            return effects
        if (self.leader_id == COORDINATOR_LEADS) != (self.assigner is not None):
            self._assigner_changed(now, effects)
        elif size > limit:
            reason = f"Freshly-loaded group {self.group_id} (size {size}) is over capacity {limit}."
            classic.prepare_rebalance(self, EventCause.OVER_CAPACITY, reason, None, now, effects)
        else:
            effects.merge((self.topics_changed(None, now),))
        return effects

    def _assigner_changed(self, now: int, effects: Effects) -> None:
        """The record was written when `server.assigned.groups` had a different value for this group."""
        cause, protocol = EventCause.ASSIGNER_CHANGED, self.protocol_name
        if self.assigner is None:
            classic.prepare_rebalance(self, cause, "a member leads the group from now on", None, now, effects)
        elif protocol in STRATEGIES:
            classic.prepare_rebalance(self, cause, "the coordinator assigns from now on", None, now, effects)
        else:
            # The record has only one protocol, with which no member may join: each starts over with those it supports.
            reason = f"the coordinator assigns from now on, but not by {protocol}"
            classic.dismiss(self, cause, reason, now, effects)

    def topics_changed(self, names: frozenset[str] | None, now: int) -> Effects:
        """Topics (any, if `names` is None) were created, deleted or changed: rebalance if that affects this group and
        its members do not watch topics themselves. A rebalancing group checks the topics when all have joined."""
        effects = Effects()
        topics = self.subscribed_topics
        if self.assigner is None or topics is None or self.state is not GroupState.STABLE:
            return effects
        if names is None or not names.isdisjoint(topics):
            cause = self.assigner.rebalance_cause(topics, [member.assignment for member in self.members.values()])
            if cause is not None:
                classic.prepare_rebalance(self, *cause, None, now, effects)
        return effects

    def on_deadline(self, now: int) -> Effects:
        """See `Group.on_deadline`."""
        return classic.on_deadline(self, now)

    def unload(self, error: ErrorCode) -> Effects:
        """See `Group.unload`."""
        return classic.unload(self, error)
