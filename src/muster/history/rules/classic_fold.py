"""Folds the classic protocol's records: each is a new generation, an update of the current one, or the group's end."""

from __future__ import annotations

from dataclasses import replace

from muster.history.model import Generation, GroupKind, Member, Place, Rows
from muster.history.rules.causes import AT_ONCE_MS, CONNECT, Case
from muster.history.rules.classic_generations import with_end
from muster.history.rules.commit_times import NEVER, Signs
from muster.history.rules.departures import Circumstances, Departure, departure
from muster.history.rules.group_state import (
    ReplayedState,
    add,
    before_tombstone,
    ended,
    others,
    remember,
    signs_of_stayed,
    silences,
    stayed_moved_on_ms,
)
from muster.history.rules.pending import note_partition_changes, subscribed
from muster.history.rules.rebalances import Difference, difference, owners, withheld
from muster.history.rules.wording import listed

HELD_UP_MS = 5_000
"""How long a rebalance must wait for a member to be reported: longer than others take to learn of the rebalance."""
LOOKED_UP_MS = 10_000
"""The time after a generation within which its leader has fetched metadata of new topics, and all have rejoined."""


def classic_record(state: ReplayedState, after: Generation | None, at: Place, at_ms: int, rows: Rows) -> None:
    """Fold a generation, or None for a tombstone."""
    before = state.current
    if after is None:
        if before is not None:
            ended(state, before, at, at_ms, rows)
        state.current = None
        return
    if after.members or state.kind is not GroupKind.SINK:
        state.kind = GroupKind.CLASSIC
    if before is not None and _same_generation(state, before, after, at_ms):
        return
    if before is not None:
        rows.generations.append(with_end(before, at.timestamp_ms))
    case = Case(after, before, Difference(), at_ms, has_earlier_records=state.first is not None and state.first != at)
    if before is None:
        case.before, case.ended = before_tombstone(state, after, at_ms, GroupKind.CONSUMER)
        state.resettling = (
            "" if case.before is None else "The group was converted back to the classic protocol; its members rejoined."
        )
    elif after.generation <= before.generation and (after.members or after.generation < before.generation):
        case.before, case.ended = None, "fell"
    else:
        case.missed = max(0, after.generation - before.generation - 1)
    earlier = case.before
    continues = earlier is not None and (bool(earlier.members) or after.generation > earlier.generation)
    if after.members or continues or case.ended == "fell":
        _classic_rebalance(state, case)
    else:
        _without_members(state, after, at_ms)
    state.current, state.current_ms = after, at_ms


def _without_members(state: ReplayedState, after: Generation, at_ms: int) -> None:
    """At the beginning of the log or of a group: Kafka 4 writes a generation 0 when it creates a group."""
    state.times.own({}, at_ms, after.generation)
    state.resettling = ""
    state.strange_topics = frozenset()


def _same_generation(state: ReplayedState, before: Generation, after: Generation, at_ms: int) -> bool:
    """Whether a record only updates the generation, as when a static member is replaced."""
    if after.generation != before.generation:
        return False
    found = difference(before.members, after.members)
    if found.left or found.joined or any(not change.member.instance_id for change in found.replaced):
        return False
    row = replace(after, started_ms=before.started_ms, prepared_ms=before.prepared_ms, at=before.at)
    if found.replaced:
        _taken_over(state, before, after, found, at_ms)
    state.current = row
    return True


def _taken_over(state: ReplayedState, before: Generation, after: Generation, found: Difference, at_ms: int) -> None:
    """A static member returned under a new id; the group does not change."""
    for change in found.replaced:
        if change.before is not None:
            state.times.rename(change.before.member_id, change.member.member_id)
    case = Case(after, before, found, at_ms)
    add(state, case, 0, "exact", {})


def _classic_rebalance(state: ReplayedState, case: Case) -> None:
    after, before, at_ms = case.after, case.before, case.at_ms
    case.differs = difference(before.members if before is not None else (), after.members)
    note_partition_changes(case, state.counts)
    _note_phase(state, case)
    signs = {member.member_id: state.times.signs(member.assignment) for member in case.differs.gone}
    latest = max((each.last_ms for each in signs.values()), default=NEVER)
    case.departures = [
        _classic_departure(state, case, member, signs[member.member_id], latest) for member in case.differs.gone
    ]
    _note_wait(state, case)
    duration_ms, duration_is = _classic_duration(state, case)
    silent = silences(state, before, at_ms)
    add(state, case, duration_ms, duration_is, silent)
    state.withheld = withheld(before, after)
    state.strange_topics = _strange_topics(before, after)
    remember(state, after)
    state.times.own(owners(after.members), at_ms, after.generation)
    if after.protocol_type != "consumer" and after.members:
        state.times.disown()


def _note_phase(state: ReplayedState, case: Case) -> None:
    assigned = {place for member in case.after.members for place in member.assignment}
    case.handed_out = state.withheld & assigned
    same = case.differs.same_members and bool(case.after.members) and case.before is not None
    case.is_second_phase = same and bool(case.handed_out)
    if same and state.resettling and case.after.kind is GroupKind.CLASSIC and case.before is state.current:
        case.is_second_phase, case.second_of = True, state.resettling
    if same and _looked_up(state, case):
        case.is_second_phase = True
        topics = listed(sorted(state.strange_topics))
        case.second_of = (
            f"Second phase: the previous rebalance changed whether the group reads {topics}; "
            "its leader fetched their metadata."
        )
    if same and case.after.protocol_type == CONNECT and case.before is state.current:
        case.is_second_phase = case.at_ms - state.current_ms <= LOOKED_UP_MS
        case.second_of = "Second phase: the workers rejoined, as they do to hand over what they revoked."
    if case.before is state.current or case.before is None:
        state.resettling = ""


def _looked_up(state: ReplayedState, case: Case) -> bool:
    """Whether the only change is one that a leader discovers after members have added or removed topics that it does
    not read itself: the Java client's leader fetches metadata of the group's topics, and rejoins if it has changed."""
    soon = case.at_ms - state.current_ms <= LOOKED_UP_MS
    only_these = all(topic in state.strange_topics and had == 0 for topic, (had, _) in case.grown.items())
    return soon and only_these and bool(state.strange_topics) and case.before is state.current


def _strange_topics(before: Generation | None, after: Generation) -> frozenset[str]:
    """Topics that the group started or stopped reading with this generation, and that its leader does not read."""
    leader = next((each for each in after.members if each.member_id == after.leader), None)
    if leader is None:
        return frozenset()
    return frozenset((subscribed(before) if before is not None else set()) ^ subscribed(after)) - set(leader.topics)


def _note_wait(state: ReplayedState, case: Case) -> None:
    """Find out whether all waited for members that joined late.

    An eager member commits when it joins a rebalance, and then not until it has ended. So one that commits right before
    all had joined, after a long silence, was busy; the others had stopped by then, if they commit regularly.
    """
    if not case.differs.stayed or "cooperative" in (case.after.protocol or ""):
        return
    members = [change.member for change in case.differs.stayed]
    shown = [pair for pair in zip(members, signs_of_stayed(state, case), strict=True) if pair[1].commits]
    all_joined_ms = case.began_by_ms
    late = [(member, signs) for member, signs in shown if all_joined_ms - signs.last_ms <= AT_ONCE_MS]
    others = [signs for _, signs in shown if all_joined_ms - signs.last_ms > AT_ONCE_MS]
    if not late or not others:
        return
    latest = max(others, key=lambda signs: signs.last_ms)
    stopped_ms = max(latest.last_ms, state.current_ms)
    waited_ms = min(signs.last_ms for _, signs in late) - stopped_ms
    surely_ms = waited_ms - latest.longest_gap_ms
    is_regular = latest.commits >= 3 and 0 <= latest.longest_gap_ms <= surely_ms
    busy_ms = min(signs.longest_gap_ms for _, signs in late)
    if is_regular and HELD_UP_MS <= surely_ms <= busy_ms:
        case.waited_ms, case.waited_for = min(waited_ms, busy_ms), tuple(member for member, _ in late)


def _classic_departure(state: ReplayedState, case: Case, member: Member, signs: Signs, latest_ms: int) -> Departure:
    """Why one member is gone.

    For the member that triggered the rebalance, the others' last commits show when it began. If another member, or one
    that joined, may have triggered it, it is only certain that this one was gone when all had joined.
    """
    alone = not case.differs.came and signs.last_ms == latest_ms
    until, gap = others(state, case) if alone else (NEVER, NEVER)
    return departure(
        Circumstances(
            member=member,
            signs=signs,
            joined_ms=state.current_ms,
            began_by_ms=case.began_by_ms,
            others_until_ms=until,
            others_gap_ms=gap,
            others_moved_on_ms=stayed_moved_on_ms(state, case),
            before_it_ms=max(state.times.lasts(member.assignment), default=NEVER),
            is_replaced=member.instance_id is None and all(left is not member for left in case.differs.left),
            session_ms=member.session_timeout_ms,
            poll_ms=member.rebalance_timeout_ms,
        )
    )


def _classic_duration(state: ReplayedState, case: Case) -> tuple[int | None, str]:
    """The time since the first remaining member stopped committing; otherwise the time that the leader took to
    assign."""
    before = case.before
    if before is not None and case.differs.stayed and "cooperative" not in (case.after.protocol or ""):
        earliest = case.at_ms - state.limits.pattern_ms
        signs = signs_of_stayed(state, case)
        shown = [each.last_ms for each in signs if each.commits and each.last_ms >= earliest]
        if shown:
            return case.at_ms - min(shown), "at most"
    return case.at_ms - case.began_by_ms, "at least"
