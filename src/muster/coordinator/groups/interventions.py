"""What a test does to a group from outside: it expires members, keeps others alive, starts a rebalance. Pure.

Each changes only what the passage of time, or a member's request, could have changed: the rules of `classic.py` then do
the rest, with the same events and records.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.coordinator.groups import classic
from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.effects import Effects, EventCause
from muster.coordinator.groups.group import EMPTY, PREPARING_REBALANCE, ClassicMember
from muster.coordinator.shards.clocks import NEVER

Wanted = Callable[[ClassicMember], bool]


def expire(group: ClassicGroup, wanted: Wanted, now: int) -> Effects:
    """End the session of each `wanted` member now, unless its JoinGroup or SyncGroup is waiting."""
    for member in group.members.values():
        if wanted(member) and not member.heartbeat_is_satisfied():
            member.session_deadline = now
            group.session_ends_by(now)
    return classic.on_deadline(group, now)


def keep(group: ClassicGroup, wanted: Wanted, extra_ms: int) -> None:
    """Extend the session of each `wanted` member by `extra_ms`: that much time is about to be skipped, and a live
    member would have sent heartbeats in it."""
    for member in group.members.values():
        if wanted(member) and member.session_deadline != NEVER:
            member.session_deadline += extra_ms


def rebalance(group: ClassicGroup, reason: str, now: int) -> Effects:
    """Make all members rejoin, as if their leader had. Does nothing while they rejoin, or without members."""
    effects = Effects()
    if group.state not in (EMPTY, PREPARING_REBALANCE):
        leader = group.members.get(group.leader_id or "")
        classic.prepare_rebalance(group, EventCause.LEADER_REJOINED, reason, leader, now, effects)
    return effects
