"""JoinGroup: which members may join, what a join starts, which joins are answered immediately. Other rules:
`classic.py`.

Versions of JoinGroup that differ here:
  v1  rebalance_timeout_ms; in v0 the session timeout serves as both
  v4  a new member first gets its id, and then joins with it (MEMBER_ID_REQUIRED, KIP-394)
  v5  group_instance_id: static membership (KIP-345)
  v8  reason (KIP-800)
  v9  skip_assignment: a static leader that came back gets the members, but must not assign (KIP-814)
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.coordinator.groups.classic import (
    JOIN_BY_FOLLOWER,
    JOIN_BY_LEADER,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    check_member,
    joined,
    maybe_complete_join,
    prepare_rebalance,
    write_or_outgrow,
)
from muster.coordinator.groups.effects import Effects, EventCause, JoinRefused, MemberFenced, MemberJoined, Origin
from muster.coordinator.groups.error_responses import not_joined
from muster.coordinator.groups.group import (
    COMPLETING_REBALANCE,
    DEAD,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroupBase,
    ClassicMember,
    GroupState,
    Protocols,
    protocols_of,
    size_of,
)
from muster.coordinator.groups.server_assignment import ServerAssignment
from muster.errors import NONE, ErrorCode, KafkaError, ProtocolError
from muster.model import UNKNOWN_MEMBER_ID
from muster.protocol.messages import JoinGroupRequest, SyncGroupResponse
from muster.protocol.subscription import decode_subscription

MOST_METADATA_BYTES = 4 * 1024 * 1024
"""The limit on a member's metadata, for all its protocols together. A group's record has the metadata of one protocol
for each member, and Kafka limits the record to 1 MiB: a member with more than this does not fit into any group."""

UNCOUNTED_METADATA_BYTES = 64 * 1024
"""A member with no more metadata than this is accepted however much the others have: most members have a hundredth of
it."""


@dataclass(slots=True)
class _Join:
    """A JoinGroup that the rules are handling, independent of its version."""

    group: ClassicGroupBase
    request: JoinGroupRequest
    origin: Origin
    now: int
    effects: Effects
    protocols: Protocols
    rebalance_timeout_ms: int

    @property
    def reason(self) -> str:
        return self.request.reason or "not provided"

    def refuse(self, error: ErrorCode, member_id: str | None = None) -> None:
        answered_id = self.request.member_id if member_id is None else member_id
        self.effects.reply(self.origin.ticket, not_joined(error, answered_id))

    def add_refusal(self, why: str) -> None:
        """Add the event for a refused join."""
        client, host = self.origin.client_id, self.origin.client_host
        self.effects.events.append(JoinRefused(self.group.group_id, client, host, why))


def join(group: ClassicGroupBase, request: JoinGroupRequest, origin: Origin, now: int, effects: Effects) -> None:
    """Handle a JoinGroup for an existing group (the caller has created it if needed)."""
    attempt = _Join(
        group,
        request,
        origin,
        now,
        effects,
        protocols_of(request),
        request.rebalance_timeout_ms if origin.api_version >= 1 else request.session_timeout_ms,
    )
    member_id = request.member_id
    size = 0
    if member_id or origin.api_version < 4 or request.group_instance_id is not None:
        for _, metadata in attempt.protocols:  # a member that must come back with an id leaves no trace here yet
            size += len(metadata)
    if not _has_room_for(group, member_id):
        group.remove(member_id)
        attempt.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID)
        maybe_complete_join(group, now, effects)
    elif group.state is DEAD:
        attempt.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif size > UNCOUNTED_METADATA_BYTES and (error := _check_metadata(attempt, size)) is not None:
        attempt.refuse(error)
    elif group.assigner is not None and (refusal := _check_strategies(attempt, group.assigner)) is not None:
        attempt.refuse(refusal)
    elif group.assigner is None and not group.supports_protocols(request.protocol_type, attempt.protocols):
        attempt.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif member_id == UNKNOWN_MEMBER_ID:
        _join_as_new(attempt)
    elif member_id in group.pending_members:
        _join_as_pending(attempt)
    else:
        _join_again(attempt)


def _has_room_for(group: ClassicGroupBase, member_id: str) -> bool:
    """`group.max.size`. During the join phase only members that have joined count: if the setting was lowered below the
    group's size, the last members to join are refused."""
    state, most = group.state, group.config.group_max_size
    if state is PREPARING_REBALANCE:
        if group.awaiting_join_count < most:
            return True
        member = group.members.get(member_id)
        return member is not None and member.awaiting_join is not None
    if state is COMPLETING_REBALANCE or state is STABLE:
        return member_id in group.members or len(group.members) < most
    return True


def _check_metadata(attempt: _Join, size: int) -> ErrorCode | None:
    """Check that there is memory for a member's metadata, which is kept as long as the member is in the group. Kafka
    has no such limits."""
    config = attempt.group.config
    if size > MOST_METADATA_BYTES:
        attempt.add_refusal(f"its protocols take {size} bytes; the limit for a member is {MOST_METADATA_BYTES}")
        return config.record_too_large
    most, others = config.metadata_max_bytes, config.metadata_bytes - _counted_before(attempt)
    if not 0 <= most < others + size:
        return None
    attempt.add_refusal(
        f"its protocols take {size} bytes and those of all other members {others}, together more than "
        f"queued.max.request.bytes ({most})"
    )
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _counted_before(attempt: _Join) -> int:
    """The size of the same member's earlier metadata, which is dropped when it rejoins or is replaced."""
    group, request = attempt.group, attempt.request
    member = group.members.get(request.member_id or group.static_members.get(request.group_instance_id or "", ""))
    return size_of(member.protocols) if member is not None else 0


def _check_strategies(attempt: _Join, assigner: ServerAssignment) -> ErrorCode | None:
    """Reduce the member's protocols to those that the coordinator can use, or say why it can use none."""
    group, protocol_type = attempt.group, attempt.request.protocol_type
    try:
        attempt.protocols = assigner.accept(protocol_type, attempt.protocols)
        if not group.supports_protocols(protocol_type, attempt.protocols):
            others = "none of its strategies is supported by all other members of the group"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, others)
    except KafkaError as error:
        attempt.add_refusal(error.message or "")
        return error.code
    return None


# -------------------------------------------------------------------------------------------------------- new members


def _join_as_new(attempt: _Join) -> None:
    group, instance_id = attempt.group, attempt.request.group_instance_id
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known is None:
            _add_and_rebalance(attempt, attempt.origin.fresh_member_id)
        else:
            _take_over(attempt, group.members[known])
    elif attempt.origin.api_version >= 4:
        member_id = attempt.origin.fresh_member_id
        deadline = attempt.now + attempt.request.session_timeout_ms
        group.pending_members[member_id] = deadline
        group.session_ends_by(deadline)
        attempt.refuse(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    else:
        _add_and_rebalance(attempt, attempt.origin.fresh_member_id)


def _join_as_pending(attempt: _Join) -> None:
    if attempt.request.group_instance_id is not None:
        # Static members are never sent MEMBER_ID_REQUIRED, so this id was given to another member. Kafka fails too.
        attempt.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, UNKNOWN_MEMBER_ID)
    else:
        _add_and_rebalance(attempt, attempt.request.member_id)


def _add_and_rebalance(attempt: _Join, member_id: str) -> None:
    group, request, origin = attempt.group, attempt.request, attempt.origin
    member = ClassicMember(
        member_id,  # positional arguments take half the time
        request.group_instance_id,
        origin.client_id,
        origin.client_host,
        attempt.rebalance_timeout_ms,
        request.session_timeout_ms,
        attempt.protocols,
    )
    member.awaiting_join = origin.ticket
    member.is_new = True
    member.session_deadline = attempt.now + NEW_MEMBER_JOIN_TIMEOUT_MS
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.state is PREPARING_REBALANCE and group.is_initial_rebalance:
        group.new_member_added = True
    group.add(member)
    group.session_ends_by(member.session_deadline)
    attempt.effects.events.append(
        MemberJoined(
            group.group_id, member_id, member.client_id, member.client_host, member.group_instance_id, request.reason
        )
    )
    if group.state is PREPARING_REBALANCE:
        maybe_complete_join(group, attempt.now, attempt.effects)
        return
    instance = request.group_instance_id
    reason = f"Adding new member {member_id} with group instance id {instance}; client reason: {attempt.reason}"
    prepare_rebalance(group, EventCause.MEMBER_JOINED, reason, member, attempt.now, attempt.effects)


# ------------------------------------------------------------------------------------------------------ known members


def _join_again(attempt: _Join) -> None:
    group, request = attempt.group, attempt.request
    error = check_member(group, request.member_id, request.group_instance_id)
    if error is not NONE:
        attempt.refuse(error)
        return
    member = group.members[request.member_id]
    leads = member.member_id == group.leader_id
    answer = (JOIN_BY_LEADER if leads else JOIN_BY_FOLLOWER)[group.state]
    changed = member.protocols != attempt.protocols
    if answer is None or (changed and answer is NONE):
        _update_and_rebalance(attempt, member)
    elif answer is NONE:
        attempt.effects.reply(attempt.origin.ticket, joined(group, member))
    else:
        attempt.refuse(answer)


def _update_and_rebalance(attempt: _Join, member: ClassicMember) -> None:
    group, state = attempt.group, attempt.group.state
    if state is PREPARING_REBALANCE:
        _update(attempt, member)
        maybe_complete_join(group, attempt.now, attempt.effects)
        return
    cause = _rejoin_cause(group, member, attempt.protocols)
    _update(attempt, member)
    if state is STABLE and member.member_id == group.leader_id:
        what = f"Leader {member.member_id} re-joining group during {state}"
    else:
        what = f"Updating metadata for member {member.member_id} during {state}"
    reason = f"{what}; client reason: {attempt.reason}"
    prepare_rebalance(group, cause, reason, member, attempt.now, attempt.effects)


def _update(attempt: _Join, member: ClassicMember) -> None:
    group = attempt.group
    group.update(member, attempt.protocols, attempt.rebalance_timeout_ms, attempt.request.session_timeout_ms)
    earlier = group.park_join(member, attempt.origin.ticket)
    if earlier is not None:
        # The client dropped its connection and sent the request again on another; the first is still parked.
        error = ErrorCode.REBALANCE_IN_PROGRESS
        attempt.effects.reply(earlier, not_joined(error, member.member_id))


# ----------------------------------------------------------------------------------------------------- static members


def _take_over(attempt: _Join, member: ClassicMember) -> None:
    """A join without a member id but with a known instance id: it is that member, restarted (KIP-345)."""
    group, now, effects = attempt.group, attempt.now, attempt.effects
    old_member_id, old_leader = member.member_id, group.leader_id
    old_metadata = member.metadata(group.protocol_name)
    new_member_id = attempt.origin.fresh_member_id
    _fence(attempt, member, new_member_id)
    group.rename(member, new_member_id)
    group.renew_session(member, now)
    _update(attempt, member)
    match group.state:
        case GroupState.STABLE if _keeps_its_share(group, member, old_metadata):
            if write_or_outgrow(group, group.record(), now, effects):
                _answer_takeover(attempt, member, old_leader)
        case GroupState.STABLE:
            what = f"Group's selectedProtocol will change because static member {new_member_id} with instance id"
            if group.assigner is not None:
                what = f"The assignment will change because static member {new_member_id} with instance id"
            reason = (
                f"{what} {member.group_instance_id} joined with change of protocol; client reason: {attempt.reason}"
            )
            prepare_rebalance(group, EventCause.STATIC_MEMBER_REPLACED, reason, member, now, effects)
        case GroupState.COMPLETING_REBALANCE:
            # The leader may know only the old id: it would assign to that, and the new id would get nothing.
            what = f"Updating metadata for static member {new_member_id} with instance id {member.group_instance_id}"
            reason = f"{what} (was {old_member_id}); client reason: {attempt.reason}"
            prepare_rebalance(group, EventCause.STATIC_MEMBER_REPLACED, reason, member, now, effects)
        case _:
            maybe_complete_join(group, now, effects)


def _keeps_its_share(group: ClassicGroupBase, member: ClassicMember, old_metadata: bytes) -> bool:
    """Whether a stable group stays stable. A leader would check the other members' topics later; the coordinator, if it
    assigns, does it now."""
    if group.select_protocol() != group.protocol_name:
        return False
    return group.assigner is None or member.metadata(group.protocol_name) == old_metadata


def _fence(attempt: _Join, member: ClassicMember, new_member_id: str) -> None:
    """A request that still waits under the old id comes from a duplicate of the new member, and is fenced."""
    group, effects = attempt.group, attempt.effects
    ticket = group.unpark_join(member)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    if ticket is not None:
        effects.reply(ticket, not_joined(fenced, member.member_id))
    if member.awaiting_sync is not None:
        effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=fenced))
        member.awaiting_sync = None
    who = (member.member_id, member.client_id, member.client_host, member.group_instance_id)
    effects.events.append(MemberFenced(group.group_id, *who, new_member_id))


def _answer_takeover(attempt: _Join, member: ClassicMember, old_leader: str | None) -> None:
    """In a stable group the new member takes over the old assignment without a rebalance."""
    group = attempt.group
    group.unpark_join(member)
    response = joined(group, member)
    if attempt.origin.api_version >= 9:
        response.skip_assignment = member.member_id == group.leader_id
    else:
        # An older client that sees itself as leader would compute an assignment that the group does not wait for. So it
        # gets the previous leader's id; if that was its own old id, no member has that id now.
        response.leader = old_leader or ""
        response.members = []
    attempt.effects.reply(attempt.origin.ticket, response)


# --------------------------------------------------------------------------------------- why a member has rejoined
# Only for the events: the rules of a rebalance never decode a subscription. But a member that rejoins starts a
# rebalance, and the difference from its last JoinGroup says why: different topics; fewer owned partitions, as in the
# second phase of a cooperative rebalance (KIP-429); or no difference, and then the partitions of a leader's topics may
# have changed since the generation began. Two subscriptions are decoded for a rebalance: the old and the new one of the
# member that started it.


def _rejoin_cause(group: ClassicGroupBase, member: ClassicMember, protocols: Protocols) -> EventCause:
    """Why a member starts a rebalance with these protocols; `member` still has those of its last join."""
    leads = group.state is STABLE and member.member_id == group.leader_id
    plain = EventCause.LEADER_REJOINED if leads else EventCause.MEMBER_REJOINED
    if not group.uses_consumer_protocol:
        return plain
    after = dict(protocols).get(group.protocol_name or "")
    if after is None:
        return plain
    changed = _cause_of_change(member.metadata(group.protocol_name), after)
    if changed is None and leads and _partitions_changed(group):
        return EventCause.PARTITIONS_CHANGED
    return changed or plain


def _cause_of_change(before: bytes, after: bytes) -> EventCause | None:
    if before == after:
        return None
    try:
        was, now = decode_subscription(before), decode_subscription(after)
    except ProtocolError:
        return None
    if set(was.topics) != set(now.topics):
        return EventCause.SUBSCRIPTION_CHANGED
    if not set(was.owned_partitions) <= set(now.owned_partitions):
        return EventCause.PARTITIONS_REVOKED
    return None


def _partitions_changed(group: ClassicGroupBase) -> bool:
    count = group.partition_count
    return count is not None and any(count(topic) != before for topic, before in group.partition_counts.items())
