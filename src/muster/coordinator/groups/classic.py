"""The rules of the classic protocol (scheme 3): heartbeat, sync, leave, deadlines, and the phases of a rebalance.

Joining, which has the most cases, is in `classic_join.py`; members and deadlines are kept in `group.py`.

Theory of operation
===================

A group distributes its partitions in two phases, each of which waits for its members (J3, J4):

                       a member joins, leaves, changes, or the leader asks
                  .----------------------------<-----------------------------.
                  |                                                          |
    EMPTY ---> PREPARING_REBALANCE ---> COMPLETING_REBALANCE ---> STABLE ----'
      ^   first   |        ^    all joined        |     |   leader synced
      |   join    |        |                      |     |
      '-----------'        '----------------------'     '---> (others may sync until the rebalance timeout)
       none is left         as above, before it is done

*Join phase* (PREPARING_REBALANCE). Every JoinGroup waits in `member.awaiting_join`. `complete_join` ends the phase: as
soon as all members have joined, otherwise at `join_deadline`. Members still missing at that point are removed, except
static ones, which stay until their session ends. An empty group first waits `group.initial.rebalance.delay.ms`, and
again while more members keep joining: otherwise many members that start together would each cause a rebalance. Then the
generation is incremented, a protocol that all members support is chosen, and every JoinGroup is answered. Only the
leader's answer carries the members.

*Sync phase* (COMPLETING_REBALANCE). The SyncGroups wait in `member.awaiting_sync` until the leader's arrives with the
assignment. (If the coordinator assigns, no SyncGroup has to wait: server_assignment.py.) The assignment is written as
one GroupMetadata record; applying it makes the group STABLE. The other members then get their assignments, immediately
or when their SyncGroup arrives. A member that has not sent its SyncGroup by `sync_deadline` is removed.

*What starts a rebalance*: see `EventCause`. It always goes through `prepare_rebalance`, which makes members whose
SyncGroup is waiting join again. In every other state a request is answered immediately; the tables below say how.

*Sessions* (H1). Every request that shows that the member is alive postpones `session_deadline`. A member whose request
waits here cannot be expected to send one, so its deadline then passes without effect, and is reset when the request is
answered.

*What is written, and when*. A record is added to `Effects.records` and applied in one step (`write`), so that the state
never contains anything that the log will not contain. If the append fails, the whole shard is dropped and read again,
so nothing here is ever undone. A record is written when a group is created, becomes stable or becomes empty, and when a
static member is replaced. A generation that never became stable is not written. After a restart the group is back at
the last generation that did; its members rejoin, and the number of an unwritten generation may be used again. No member
completed that generation the first time, so no member sees its number twice.

*Tickets*. Each is answered exactly once. Kafka leaves two kinds of request unanswered: one superseded by a retry of the
same member, and a SyncGroup whose member was removed while it waited. Both are answered here, so that no connection
hangs.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.coordinator.groups.effects import (
    Effects,
    EventCause,
    ExpiryKind,
    MemberExpired,
    MemberLeft,
    Origin,
    RebalanceCompleted,
    RebalanceStarted,
)
from muster.coordinator.groups.error_responses import not_joined
from muster.coordinator.groups.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroupBase,
    ClassicMember,
    GroupState,
)
from muster.coordinator.shards.clocks import NEVER
from muster.coordinator.shards.served_shard import Ticket
from muster.errors import NONE, ErrorCode
from muster.model import UNKNOWN_MEMBER_ID
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.messages import (
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member's JoinGroup may wait. A client that gives up during a long rebalance comes back as another
member, because it never learned its first id. Without this limit its abandoned members would pile up."""

# --------------------------------------------------------------------------------------------------------- the tables
# How a group in each state answers a request that has passed the guards: the group exists, the member is known and not
# fenced, the generation is the group's. None: the request waits.

Answers = Mapping[GroupState, ErrorCode | None]

HEARTBEAT: Mapping[GroupState, ErrorCode] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    # Members may send heartbeats as soon as their JoinGroup is answered.
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

JOIN_BY_FOLLOWER: Answers = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: None,
    # It may have missed the answer to its JoinGroup, and gets it again.
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""For a known member that is not the leader and whose metadata is unchanged (C5)."""

JOIN_BY_LEADER: Answers = {**JOIN_BY_FOLLOWER, GroupState.STABLE: None}
"""A leader's JoinGroup starts a rebalance: topics may have changed, which its metadata does not show (C5)."""

SYNC_BY_FOLLOWER: Answers = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.COMPLETING_REBALANCE: None,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

SYNC_BY_LEADER: Answers = {**SYNC_BY_FOLLOWER, GroupState.COMPLETING_REBALANCE: ErrorCode.NONE}

LEAVE: Mapping[GroupState, ErrorCode] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.NONE,
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

COMMIT_BY_MEMBER: Mapping[GroupState, ErrorCode] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    # Eager members commit what they processed before they give up their partitions.
    GroupState.PREPARING_REBALANCE: ErrorCode.NONE,
    GroupState.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

COMMIT_WITHOUT_GROUP: Mapping[GroupState, ErrorCode] = {
    GroupState.EMPTY: ErrorCode.NONE,
    GroupState.PREPARING_REBALANCE: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.COMPLETING_REBALANCE: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.STABLE: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.DEAD: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""For commits with generation -1 and no member id: from consumers with manual assignment (J7), and from tools."""

DELETE_GROUP: Mapping[GroupState, ErrorCode] = {
    GroupState.EMPTY: ErrorCode.NONE,
    GroupState.PREPARING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    GroupState.COMPLETING_REBALANCE: ErrorCode.NON_EMPTY_GROUP,
    GroupState.STABLE: ErrorCode.NON_EMPTY_GROUP,
    GroupState.DEAD: ErrorCode.GROUP_ID_NOT_FOUND,
}

OFFSET_DELETE = {**dict.fromkeys(GroupState, ErrorCode.NONE), GroupState.DEAD: ErrorCode.GROUP_ID_NOT_FOUND}
"""For topics that no member reads. Members that are not consumers do not report which topics they read: their group
must be empty, as for DeleteGroups."""

TABLES: dict[str, Answers] = {
    "Heartbeat": HEARTBEAT,
    "JoinGroup by a member, unchanged": JOIN_BY_FOLLOWER,
    "JoinGroup by the leader": JOIN_BY_LEADER,
    "SyncGroup by a member": SYNC_BY_FOLLOWER,
    "SyncGroup by the leader": SYNC_BY_LEADER,
    "LeaveGroup": LEAVE,
    "OffsetCommit by a member": COMMIT_BY_MEMBER,
    "OffsetCommit without membership": COMMIT_WITHOUT_GROUP,
    "DeleteGroups": DELETE_GROUP,
    "OffsetDelete, of other topics": OFFSET_DELETE,
}
"""All tables, for the documentation and for the test that covers every cell."""


# --------------------------------------------------------------------------------------------------------- the guards


def check_member(group: ClassicGroupBase, member_id: str, group_instance_id: str | None) -> ErrorCode:
    """Check that the group knows the member, and that no newer member has taken its instance id (KIP-345)."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_generation(
    group: ClassicGroupBase, member_id: str, group_instance_id: str | None, generation_id: int
) -> ErrorCode:
    """Like `check_member`, and the generation must be the group's."""
    error = check_member(group, member_id, group_instance_id)
    if error is NONE and generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return error


# ---------------------------------------------------------------------------------------------------------- heartbeat


def heartbeat(
    group: ClassicGroupBase, generation_id: int, member_id: str, group_instance_id: str | None, now: int
) -> ErrorCode:
    """The rule that runs most often: renews the member's session and reports the group's state (H1)."""
    if group.state is DEAD:
        return HEARTBEAT[DEAD]
    error = check_generation(group, member_id, group_instance_id, generation_id)
    if error is not NONE:
        return error
    group.renew_session(group.members[member_id], now)
    return HEARTBEAT[group.state]


# --------------------------------------------------------------------------------------------------------------- sync


def sync(group: ClassicGroupBase, request: SyncGroupRequest, origin: Origin, now: int) -> Effects:
    """A member asks for its assignment; the leader sends those of all members (J4)."""
    effects = Effects()
    error = _check_sync(group, request)
    if error is not NONE:
        return effects.reply(origin.ticket, SyncGroupResponse(error_code=error))
    member = group.members[request.member_id]
    answer = (SYNC_BY_LEADER if member.member_id == group.leader_id else SYNC_BY_FOLLOWER)[group.state]
    if answer is not None and answer is not NONE:
        return effects.reply(origin.ticket, SyncGroupResponse(error_code=answer))
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        group.sync_deadline = NEVER
    if group.state is STABLE:
        return effects.reply(origin.ticket, _share(group, member))
    _park_sync(member, origin.ticket, effects)
    if answer is NONE:
        _become_stable(group, {each.member_id: each.assignment for each in request.assignments}, now, effects)
    return effects


def _check_sync(group: ClassicGroupBase, request: SyncGroupRequest) -> ErrorCode:
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    if error is not NONE:
        return error
    # KIP-559: a member says which protocol it believes was chosen.
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return NONE


def _differ(named: str | None, chosen: str | None) -> bool:
    return named != chosen and named is not None and chosen is not None


def _park_sync(member: ClassicMember, ticket: Ticket, effects: Effects) -> None:
    # The client dropped its connection and sent the request again on another; the first is still parked.
    if member.awaiting_sync is not None:
        effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = ticket


def _become_stable(group: ClassicGroupBase, assignments: Mapping[str, bytes], now: int, effects: Effects) -> None:
    """The assignment has arrived, from the leader or the coordinator itself: the group becomes stable."""
    if not write_or_outgrow(group, group.record(assignments), now, effects):
        return
    for member in group.members.values():
        if member.awaiting_sync is not None:
            effects.reply(member.awaiting_sync, _share(group, member))
            member.awaiting_sync = None
            group.renew_session(member, now)
    _rebalance_completed(group, now, effects)


def write_or_outgrow(group: ClassicGroupBase, record: GroupMetadataRecord, now: int, effects: Effects) -> bool:
    """Write a group that has members, if its store accepts it. If not, the waiting members are refused; the others
    start over, and fewer of them may fit."""
    if group.config.record_fits(record):
        write(group, record, effects)
        return True
    error = group.config.record_too_large
    for member in group.members.values():
        ticket = group.unpark_join(member)
        if ticket is not None:
            effects.reply(ticket, not_joined(error, member.member_id))
        _answer_sync(group, member, error, now, effects)
    dismiss(group, EventCause.TOO_LARGE, "The group and its assignment are too large for their store", now, effects)
    return False


def _share(group: ClassicGroupBase, member: ClassicMember) -> SyncGroupResponse:
    return SyncGroupResponse(0, NONE, group.protocol_type, group.protocol_name, member.assignment)


# -------------------------------------------------------------------------------------------------------------- leave


def leave(
    group: ClassicGroupBase, request: LeaveGroupRequest, now: int
) -> tuple[ErrorCode, list[MemberResponse], Effects]:
    """Members leave, or an operator removes static ones by their instance ids.

    Returns the error for the whole request, an answer for each member, and the other effects.
    """
    effects = Effects()
    if group.state is DEAD:
        return LEAVE[DEAD], [], effects
    responses: list[MemberResponse] = []
    left: list[ClassicMember] = []
    for identity in request.members:
        error = _leave_one(group, identity, left, effects)
        responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
    gone = [response.member_id for response in responses if response.error_code == NONE]
    if gone:
        reason = f"explicit `LeaveGroup` request for ({', '.join(gone)}) members."
        _after_leaving(group, left, reason, now, effects)
    return NONE, responses, effects


def _leave_one(
    group: ClassicGroupBase, identity: MemberIdentity, left: list[ClassicMember], effects: Effects
) -> ErrorCode:
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        known = group.static_members.get(identity.group_instance_id or "")
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = known
    elif member_id in group.pending_members:
        group.remove(member_id)
        return NONE
    else:
        error = check_member(group, member_id, identity.group_instance_id)
        if error is not NONE:
            return error
    member = group.members[member_id]
    _remove(group, member, effects)
    left.append(member)
    effects.events.append(
        MemberLeft(
            group.group_id, member_id, member.client_id, member.client_host, member.group_instance_id, identity.reason
        )
    )
    return NONE


def _after_leaving(group: ClassicGroupBase, left: list[ClassicMember], reason: str, now: int, effects: Effects) -> None:
    # A group that lost only pending member ids has lost no member, but in Kafka it rebalances anyway.
    if group.state in (STABLE, COMPLETING_REBALANCE):
        who = left[0] if left else None
        prepare_rebalance(group, EventCause.MEMBER_LEFT, reason, who, now, effects)
    elif group.state is PREPARING_REBALANCE:
        maybe_complete_join(group, now, effects)


# ---------------------------------------------------------------------------------------------------------- deadlines


def on_deadline(group: ClassicGroupBase, now: int) -> Effects:
    """Do everything that is due. Afterwards `group.wake_at` is later than `now`."""
    effects = Effects()
    sessions_end = group.sessions_at <= now
    if sessions_end:
        due = [(m.session_deadline, m.member_id) for m in group.members.values() if m.session_deadline <= now]
        due += [(deadline, member_id) for member_id, deadline in group.pending_members.items() if deadline <= now]
        for _, member_id in sorted(due):
            _expire_session(group, member_id, now, effects)
    if group.join_deadline <= now:
        _join_deadline_passed(group, now, effects)
    if group.sync_deadline <= now:
        _expire_pending_sync(group, now, effects)
    if sessions_end:
        group.sessions_at = min(group.sessions(), default=NEVER)
    group.wake_at = min(group.join_deadline, group.sync_deadline, group.sessions_at)
    return effects


def _expire_session(group: ClassicGroupBase, member_id: str, now: int, effects: Effects) -> None:
    if member_id in group.pending_members:
        group.remove(member_id)
        if group.state is PREPARING_REBALANCE and group.all_members_joined:
            complete_join(group, now, effects)
        return
    member = group.members.get(member_id)
    if member is None or member.session_deadline > now:
        return  # another member's expiry completed the join, which answered or removed this member
    if member.heartbeat_is_satisfied():
        member.session_deadline = NEVER
        return
    _remove(group, member, effects)
    if member.is_new:
        _expired(group, member, ExpiryKind.NEW, NEW_MEMBER_JOIN_TIMEOUT_MS, effects)
    else:
        _expired(group, member, ExpiryKind.SESSION, member.session_timeout_ms, effects)
    reason = f"removing member {member_id} on heartbeat expiration."
    if group.state in (STABLE, COMPLETING_REBALANCE):
        prepare_rebalance(group, EventCause.MEMBER_EXPIRED, reason, member, now, effects)
    elif group.state is PREPARING_REBALANCE and group.all_members_joined:
        complete_join(group, now, effects)


def _join_deadline_passed(group: ClassicGroupBase, now: int, effects: Effects) -> None:
    remaining = group.initial_remaining_ms
    if group.is_initial_rebalance and group.new_member_added and remaining > 0:
        delay = min(group.config.group_initial_rebalance_delay_ms, remaining)
        group.new_member_added = False
        group.initial_remaining_ms = max(remaining - max(group.initial_delay_ms, 1), 0)
        group.initial_delay_ms = delay
        # Kafka waits even with a delay of 0: otherwise, of a thousand members, the first few hundred would join twice.
        _set_join_deadline(group, now + max(delay, 1))
    else:
        complete_join(group, now, effects)


def _expire_pending_sync(group: ClassicGroupBase, now: int, effects: Effects) -> None:
    """Remove the members that learned the generation but never asked for their assignment."""
    group.sync_deadline = NEVER
    missing = [member for member_id, member in group.members.items() if member_id in group.pending_sync]
    if not missing:
        return
    timeout = group.rebalance_timeout_ms
    for member in missing:
        _remove(group, member, effects)
        _expired(group, member, ExpiryKind.SYNC, timeout, effects)
    names = ", ".join(member.member_id for member in missing)
    reason = f"Removing [{names}] on pending sync request expiration"
    prepare_rebalance(group, EventCause.MEMBER_DID_NOT_SYNC, reason, missing[0], now, effects)


def _expired(
    group: ClassicGroupBase, member: ClassicMember, kind: ExpiryKind, timeout_ms: int, effects: Effects
) -> None:
    who = (member.member_id, member.client_id, member.client_host, member.group_instance_id)
    effects.events.append(MemberExpired(group.group_id, *who, kind, timeout_ms))


# ---------------------------------------------------------------------------------------------------- the transitions


def write(group: ClassicGroupBase, record: GroupMetadataRecord, effects: Effects) -> None:
    """Add a record to the effects and apply it: always both."""
    effects.records.append(record)
    if record.value is not None:
        group.apply(record.value)


def prepare_rebalance(
    group: ClassicGroupBase, cause: EventCause, reason: str, who: ClassicMember | None, now: int, effects: Effects
) -> None:
    """Start the join phase (C4). Allowed when the group is empty, stable, or in its sync phase."""
    if group.state is COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
            _answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, now, effects)
    group.pending_sync.clear()
    group.sync_deadline = NEVER
    group.is_initial_rebalance = group.state is EMPTY
    if group.rebalance_started_at is None:
        group.rebalance_started_at = now
    effects.events.append(_rebalance_started(group, cause, reason, who))
    group.transition_to(PREPARING_REBALANCE, now)
    if group.is_initial_rebalance:
        delay = group.config.group_initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay, 0)
        _set_join_deadline(group, now + delay)
    elif group.all_members_joined:
        complete_join(group, now, effects)
    else:
        _set_join_deadline(group, now + max(group.rebalance_timeout_ms, 1))


def maybe_complete_join(group: ClassicGroupBase, now: int, effects: Effects) -> None:
    """End the join phase if no member is missing. An initial rebalance waits its full delay, because more members may
    join (C8)."""
    if group.state is PREPARING_REBALANCE and not group.is_initial_rebalance and group.all_members_joined:
        complete_join(group, now, effects)


def complete_join(group: ClassicGroupBase, now: int, effects: Effects) -> None:
    """End the join phase: remove missing members, start the next generation, answer every JoinGroup (J3)."""
    group.join_deadline = NEVER
    timeout = group.rebalance_timeout_ms
    for member in [m for m in group.members.values() if m.awaiting_join is None and not m.is_static]:
        _remove(group, member, effects)
        _expired(group, member, ExpiryKind.REJOIN, timeout, effects)
    if group.members and not group.elect_joined_leader():
        # Only static members are left and none has joined yet: wait until they join or their sessions end.
        _set_join_deadline(group, now + max(group.rebalance_timeout_ms, 1))
        return
    group.is_initial_rebalance = False
    group.next_generation(now)
    if not group.members:
        write(group, group.record(), effects)
        _rebalance_completed(group, now, effects)
        return
    if group.assigner is not None:
        members = [(m.member_id, m.group_instance_id, m.metadata(group.protocol_name)) for m in group.members.values()]
        _become_stable(group, group.assigner.assign(group.protocol_name or "", members), now, effects)
        if not group.members:
            return  # too large for its store
    group.pending_sync.update(group.members)
    for member in group.members.values():
        ticket = group.unpark_join(member)
        if ticket is not None:
            effects.reply(ticket, joined(group, member))
        group.renew_session(member, now)
        member.is_new = False
    group.sync_deadline = now + max(group.rebalance_timeout_ms, 1)
    group.wake_by(group.sync_deadline)


def joined(group: ClassicGroupBase, member: ClassicMember) -> JoinGroupResponse:
    """The answer to a JoinGroup that succeeded; the leader's carries the members (J3)."""
    leader, member_id = group.leader_id or "", member.member_id
    members = group.joined_members() if member_id == leader else []
    # Positional arguments take half the time: a rebalance makes one for each member.
    return JoinGroupResponse(
        0, NONE, group.generation_id, group.protocol_type, group.protocol_name, leader, False, member_id, members
    )


def dismiss(group: ClassicGroupBase, cause: EventCause, reason: str, now: int, effects: Effects) -> None:
    """Remove all members of a group, at the end of a rebalance or after it. Live members learn of it from their next
    request, and start over."""
    for member in list(group.members.values()):
        _remove(group, member, effects)
    prepare_rebalance(group, cause, reason, None, now, effects)


def unload(group: ClassicGroupBase, error: ErrorCode) -> Effects:
    """The group is deleted or its shard is dropped: answer every waiting request (C3)."""
    effects = Effects()
    group.state = DEAD
    group.uncount_metadata()
    for member in group.members.values():
        join_ticket = group.unpark_join(member)
        if join_ticket is not None:
            effects.reply(join_ticket, not_joined(error, member.member_id))
        if member.awaiting_sync is not None:
            effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=error))
            member.awaiting_sync = None
    return effects


def _remove(group: ClassicGroupBase, member: ClassicMember, effects: Effects) -> None:
    # Its JoinGroup or SyncGroup may still be waiting: a new member can expire while it waits, and an operator can
    # remove a waiting member. A live member starts over when it gets UNKNOWN_MEMBER_ID.
    ticket = group.unpark_join(member)
    if ticket is not None:
        effects.reply(ticket, not_joined(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID))
    if member.awaiting_sync is not None:
        effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        member.awaiting_sync = None
    group.remove(member.member_id)


def _answer_sync(group: ClassicGroupBase, member: ClassicMember, error: ErrorCode, now: int, effects: Effects) -> None:
    if member.awaiting_sync is not None:
        effects.reply(member.awaiting_sync, SyncGroupResponse(error_code=error))
        member.awaiting_sync = None
        group.renew_session(member, now)


def _set_join_deadline(group: ClassicGroupBase, deadline: int) -> None:
    group.join_deadline = deadline
    group.wake_by(deadline)


def _rebalance_started(
    group: ClassicGroupBase, cause: EventCause, reason: str, who: ClassicMember | None
) -> RebalanceStarted:
    """The event; called before the group changes its state."""
    identity = (
        (who.member_id, who.client_id, who.group_instance_id) if who is not None else (UNKNOWN_MEMBER_ID, "", None)
    )
    return RebalanceStarted(group.group_id, group.generation_id, cause, reason, *identity, group.state.value)


def _rebalance_completed(group: ClassicGroupBase, now: int, effects: Effects) -> None:
    started = now if group.rebalance_started_at is None else group.rebalance_started_at
    group.rebalance_started_at = None
    effects.events.append(
        RebalanceCompleted(
            group.group_id,
            group.generation_id,
            len(group.members),
            now - started,
            group.protocol_name,
            group.leader_id,
        )
    )
