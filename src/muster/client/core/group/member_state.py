"""The states of a member in its group. `membership.py` has the transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from muster.model import UNKNOWN_GENERATION_ID, UNKNOWN_MEMBER_ID


class MemberState(Enum):
    """The member's state in its group. See the head of `membership.py`."""

    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"

    @property
    def has_joined(self) -> bool:
        """Whether the group has answered the join, so that heartbeats are due."""
        return self in (MemberState.COMPLETING_REBALANCE, MemberState.STABLE)

    def to(self, after: MemberState) -> MemberState:
        """The state that follows. Raises AssertionError if it does not follow this one."""
        if (self, after) not in TRANSITIONS:
            raise AssertionError(f"a member cannot go from {self.value} to {after.value}")
        return after


TRANSITIONS: Final[Mapping[tuple[MemberState, MemberState], str]] = {
    (MemberState.UNJOINED, MemberState.PREPARING_REBALANCE): "JoinGroup is sent",
    (
        MemberState.PREPARING_REBALANCE,
        MemberState.PREPARING_REBALANCE,
    ): "JoinGroup was refused or lost, and is sent again",
    (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE): "JoinGroup is answered with a generation",
    (
        MemberState.COMPLETING_REBALANCE,
        MemberState.PREPARING_REBALANCE,
    ): "SyncGroup was refused or lost, and JoinGroup is sent",
    (MemberState.COMPLETING_REBALANCE, MemberState.STABLE): "SyncGroup is answered with its assignment",
    (
        MemberState.STABLE,
        MemberState.PREPARING_REBALANCE,
    ): "JoinGroup is sent, because a heartbeat announced a rebalance or its subscription has changed",
    **{(state, MemberState.UNJOINED): "its generation has ended, or it leaves" for state in MemberState},
}
"""Which state follows which, and why. docs/reference/rebalancing.md has the diagram."""


class RebalanceStep(Enum):
    """What the running rebalance waits for. See the head of `membership.py`."""

    IDLE = "idle"
    COMMITTING = "committing"
    REVOKING = "revoking"
    JOINING = "joining"
    LEADING = "leading"
    SYNCING = "syncing"
    RELEASING = "releasing"
    ASSIGNING = "assigning"


class MemberGeneration(NamedTuple):
    """Which generation of the group the member belongs to, and under which id."""

    generation_id: int = UNKNOWN_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID
    protocol_name: str | None = None

    @property
    def was_reset(self) -> bool:
        """Whether the member has no generation: what it owned is lost."""
        return self.generation_id == UNKNOWN_GENERATION_ID or self.member_id == UNKNOWN_MEMBER_ID


NO_GENERATION = MemberGeneration()
