"""Folds KIP-848's records: an epoch begins with the record of its number and lasts until the next one.

The records of a batch have this order: members that join (5) or leave (tombstones), the epoch (3), targets (7, 6),
current assignments (8). So at the epoch's record the table already has the members for which it was bumped, but not
their targets; `OpenEpoch` keeps the members as of the beginning of its epoch, and takes targets and current assignments
as they arrive.
"""

from __future__ import annotations

from dataclasses import replace

from muster.history.model import Generation, GroupKind, Member, Place, Rows
from muster.history.rules.causes import Case
from muster.history.rules.classic_generations import with_end
from muster.history.rules.commit_times import NEVER
from muster.history.rules.departures import Circumstances, Departure, departure
from muster.history.rules.generations import LEFT_FOR_A_WHILE, RecordEffect
from muster.history.rules.group_state import (
    OpenEpoch,
    ReplayedState,
    add,
    before_tombstone,
    ended,
    remember,
    silences,
    stayed_moved_on_ms,
)
from muster.history.rules.pending import Pending
from muster.history.rules.rebalances import Difference, difference
from muster.protocol.record_kinds import RecordKind, TypedRecord


def consumer_record(state: ReplayedState, record: TypedRecord, at: Place, at_ms: int, rows: Rows) -> None:
    """Fold a record of kinds 3 to 8 or 16."""
    state.kind = GroupKind.CONSUMER
    step = state.table.apply(record)
    state.owners_are_stale = True
    epoch = state.epoch
    if step is RecordEffect.EPOCH:
        _epoch(state, at, at_ms, rows)
    elif step is RecordEffect.GONE and epoch is not None:
        _close(state, epoch, at, at_ms)
        state.epoch = None
        ended(state, epoch_row(state, epoch, None), at, at_ms, rows)
    elif epoch is not None and record.value is not None:
        _in_epoch(state, epoch, record, at, at_ms)


def _in_epoch(state: ReplayedState, epoch: OpenEpoch, record: TypedRecord, at: Place, at_ms: int) -> None:
    """Fold a record that belongs to the open epoch."""
    table = state.table
    member_id = getattr(record.key, "member_id", "")
    if record.kind is RecordKind.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER and member_id in epoch.members:
        epoch.targets[member_id] = table.targets[member_id]
    elif record.kind is RecordKind.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA:
        assignors = set(table.assignors.values())
        epoch.assignor = assignors.pop() if len(assignors) == 1 else None
    elif record.kind is RecordKind.CONSUMER_GROUP_MEMBER_METADATA:
        state.heard_of[member_id] = at_ms
    elif record.kind is RecordKind.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT:
        _standing(state, epoch, member_id, at, at_ms)


def _standing(state: ReplayedState, epoch: OpenEpoch, member_id: str, at: Place, at_ms: int) -> None:
    table = state.table
    state.heard_of[member_id] = at_ms
    if member_id not in epoch.members:
        _taken_over(state, epoch, member_id, at, at_ms)
    if member_id in epoch.members:
        epoch.standings[member_id] = table.standings[member_id]
    if epoch.settled_ms is None and table.epoch == epoch.number and table.is_settled():
        epoch.settled_ms, epoch.settled_at_ms = at.timestamp_ms, at_ms


def _taken_over(state: ReplayedState, epoch: OpenEpoch, member_id: str, at: Place, at_ms: int) -> None:
    """A static member returned under a new id: the epoch does not change."""
    table = state.table
    member = table.members.get(member_id)
    if member is None or member.instance_id is None:
        return
    gone = [
        each
        for each in epoch.members.values()
        if each.instance_id == member.instance_id and each.member_id not in table.members
    ]
    if not gone:
        return
    before = epoch_row(state, epoch, None)
    former = gone[0]
    del epoch.members[former.member_id]
    epoch.members[member_id] = member
    epoch.targets[member_id] = table.targets.get(member_id, epoch.targets.get(former.member_id, ()))
    epoch.standings[member_id] = table.standings[member_id]
    after = replace(epoch_row(state, epoch, None), started_ms=at.timestamp_ms)
    state.times.rename(former.member_id, member_id)
    case = Case(after, before, difference(before.members, after.members), at_ms)
    if case.differs.replaced:
        add(state, case, 0, "exact", {})


def epoch_row(state: ReplayedState, epoch: OpenEpoch, ended_ms: int | None) -> Generation:
    """The row of an epoch."""
    return Generation(
        group=state.group,
        generation=epoch.number,
        kind=GroupKind.CONSUMER,
        started_ms=epoch.at.timestamp_ms,
        ended_ms=ended_ms,
        prepared_ms=epoch.at.timestamp_ms,
        settled_ms=epoch.settled_ms,
        protocol_type="consumer",
        protocol=epoch.assignor,
        leader=None,
        members=tuple(_row(state, epoch, member) for member in epoch.members.values()),
        at=epoch.at,
    )


def _row(state: ReplayedState, epoch: OpenEpoch, member: Member) -> Member:
    given, table = state.limits.topic_names, state.table
    standing = epoch.standings.get(member.member_id)
    return replace(
        member,
        assignment=table.named(epoch.targets.get(member.member_id, ()), given),
        owned=table.named(standing.held, given) if standing else (),
        epoch=standing.epoch if standing else None,
    )


def seal(state: ReplayedState, epoch: OpenEpoch, pending: Pending, ended_ms: int | None) -> None:
    """Complete an epoch's rebalance; `ended_ms` is when the next epoch began, if any."""
    if epoch.settled_at_ms is not None:
        duration_ms: int | None = epoch.settled_at_ms - epoch.at_ms
        duration_is = "exact"
    else:
        duration_ms, duration_is = (None if ended_ms is None else ended_ms - epoch.at_ms), "at least"
    pending.seal(epoch_row(state, epoch, None), duration_ms, duration_is)


def own(state: ReplayedState) -> None:
    """Update which member owns what, if that may have changed."""
    if state.owners_are_stale and state.epoch is not None:
        state.times.own(state.table.owners(state.limits.topic_names), state.heard_ms, state.epoch.number)
    state.owners_are_stale = False


# ------------------------------------------------------------------------------------------- from epoch to epoch


def _close(state: ReplayedState, epoch: OpenEpoch, at: Place, at_ms: int) -> None:
    """End the epoch."""
    for each in state.pending:
        if each.is_open:
            seal(state, epoch, each, at_ms)
    remember(state, epoch_row(state, epoch, at.timestamp_ms))


def _epoch(state: ReplayedState, at: Place, at_ms: int, rows: Rows) -> None:
    table, earlier = state.table, state.epoch
    number = table.epoch or 0
    if table.candidates:
        table.match(state.times.topics())
    if earlier is not None and number == earlier.number:
        earlier.metadata_hash = table.metadata_hash
        return
    epoch = OpenEpoch(number, at, at_ms, dict(table.members), dict(table.regexes), table.metadata_hash)
    epoch.counts = dict(table.counts)
    epoch.targets = {each: ids for each, ids in table.targets.items() if each in epoch.members}
    epoch.standings = {each: found for each, found in table.standings.items() if each in epoch.members}
    epoch.assignor = None if earlier is None else earlier.assignor
    case = Case(
        epoch_row(state, epoch, None),
        None,
        Difference(),
        at_ms,
        has_earlier_records=state.first is not None and state.first.offset < at.offset and earlier is None,
    )
    if earlier is None:
        _close_classic(state, at, at_ms, rows)
        case.before, case.ended = before_tombstone(state, case.after, at_ms, GroupKind.CLASSIC)
    else:
        _close(state, earlier, at, at_ms)
        case.before = epoch_row(state, earlier, None)
        rows.generations.append(with_end(case.before, at.timestamp_ms))
        if number < earlier.number:
            case.before, case.ended = None, "fell"
        else:
            case.missed = number - earlier.number - 1
    _rebalance(state, earlier, epoch, case)
    state.epoch = epoch
    state.heard_of = {each: ms for each, ms in state.heard_of.items() if each in table.members}


def _close_classic(state: ReplayedState, at: Place, at_ms: int, rows: Rows) -> None:
    """End a classic generation whose tombstone is missing."""
    if state.current is not None:
        ended(state, state.current, at, at_ms, rows)
        state.current = None


def _rebalance(state: ReplayedState, earlier: OpenEpoch | None, epoch: OpenEpoch, case: Case) -> None:
    before = case.before
    case.differs = difference(before.members if before is not None else (), case.after.members)
    if before is not None and before.kind is GroupKind.CLASSIC and case.differs.same_members and before.members:
        remember(state, before)
        return  # converted: the members and their partitions are the same
    if earlier is not None:
        _note_metadata_changes(state, earlier, epoch, case)
    case.departures = [_departure(state, earlier, case, member) for member in case.differs.gone]
    add(state, case, None, "at least", silences(state, before, case.at_ms), is_open=True)


def _note_metadata_changes(state: ReplayedState, earlier: OpenEpoch, epoch: OpenEpoch, case: Case) -> None:
    """Note what has changed about the topics that members subscribe to."""
    case.metadata_changed = epoch.metadata_hash != earlier.metadata_hash or epoch.regexes != earlier.regexes
    case.metadata_changed |= epoch.counts != earlier.counts
    patterns = {member.topic_regex for member in case.after.members if member.topic_regex}
    known = {each for each in patterns if each in earlier.regexes}
    grew = {topic for each in known for topic in set(epoch.regexes.get(each, ())) - set(earlier.regexes[each])}
    case.regex_grew = tuple(sorted(grew))
    if case.regex_grew or not case.differs.same_members:
        return
    resolved = [each for each in patterns - known if each in epoch.regexes]
    if resolved:
        case.is_second_phase = True
        case.second_of = "Second phase: the coordinator resolved the members' regular expression."


def _departure(state: ReplayedState, earlier: OpenEpoch | None, case: Case, member: Member) -> Departure:
    standing = None if earlier is None else earlier.standings.get(member.member_id)
    held = {*member.assignment, *member.owned}
    limits = state.limits
    session_ms = limits.session_timeouts_ms.get(state.group, limits.consumer_session_timeout_ms)
    return departure(
        Circumstances(
            member=member,
            signs=state.times.signs(held),
            joined_ms=state.heard_of.get(member.member_id, NEVER),
            began_by_ms=case.at_ms,
            others_moved_on_ms=stayed_moved_on_ms(state, case),
            before_it_ms=max(state.times.lasts(held), default=NEVER),
            session_ms=member.session_timeout_ms or session_ms,
            poll_ms=member.rebalance_timeout_ms,
            commits_renew_session=False,
            took_leave=standing is not None and standing.epoch == LEFT_FOR_A_WHILE,
        )
    )
