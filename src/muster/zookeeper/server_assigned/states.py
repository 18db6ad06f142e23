"""The states of a member of scheme 2, as two tables: a transition that is not in them does not happen.

`member.py` and `coordinator_search.py` follow `TRANSITIONS` and `COORDINATOR_TRANSITIONS`, and the docs draw their
diagrams from them. There are two tables because a member whose coordinator fails over stays a member.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ServerAssignedState(Enum):
    """The member's state in its group."""

    OUTSIDE = "outside"
    """It has not started."""
    JOINING = "joining"
    """It has asked to become or stay a member. Once all members have, the coordinator answers with the assignment."""
    STABLE = "stable"
    """It has its partitions of this generation, reads them, and sends heartbeats."""
    RELEASING = "releasing"
    """A rebalance has begun. It has stopped fetching, and commits processed records."""
    FAILED = "failed"
    """It was refused with an error that is not retriable. It owns nothing until the user has seen the error."""
    CLOSED = "closed"
    """It leaves, or has left."""


class ServerAssignedEvent(Enum):
    """What moves a member to another state."""

    BEGINS = "starts, or the user has seen the error"
    ASSIGNED = "JoinGroup is answered with generation and partitions"
    REBALANCE = "a heartbeat or a commit is answered ILLEGAL_GENERATION"
    RELEASED = "processed records are committed, or there is no time left for it"
    FORGOTTEN = "an answer says UNKNOWN_MEMBER_ID"
    REFUSED = "an answer has an error that is not retriable"
    CLOSES = "the consumer is closed"


class CoordinatorState(Enum):
    """What a member knows about its group's coordinator."""

    UNKNOWN = "unknown"
    """It asks when it needs one and no backoff is running."""
    ASKED = "asked"
    """A ConsumerMetadataRequest is in flight, to any of the coordinators."""
    KNOWN = "known"


class CoordinatorEvent(Enum):
    """What changes this state."""

    ASKS = "asks"
    ANSWERED = "an answer names the coordinator"
    NO_ANSWER = "there is none now, or no answer: ask another one after a backoff"
    LOST = "NOT_COORDINATOR, no answer, or no successful heartbeat for the session timeout"


_S, _H = ServerAssignedState, ServerAssignedEvent

TRANSITIONS: Final[dict[tuple[ServerAssignedState, ServerAssignedEvent], ServerAssignedState]] = {
    (_S.OUTSIDE, _H.BEGINS): _S.JOINING,
    (_S.JOINING, _H.ASSIGNED): _S.STABLE,
    (_S.JOINING, _H.FORGOTTEN): _S.JOINING,
    (_S.STABLE, _H.REBALANCE): _S.RELEASING,
    (_S.STABLE, _H.FORGOTTEN): _S.JOINING,
    (_S.RELEASING, _H.RELEASED): _S.JOINING,
    (_S.RELEASING, _H.FORGOTTEN): _S.JOINING,
    (_S.FAILED, _H.BEGINS): _S.JOINING,
    **{(state, _H.REFUSED): _S.FAILED for state in (_S.JOINING, _S.STABLE, _S.RELEASING)},
    **{(state, _H.CLOSES): _S.CLOSED for state in _S},
}

_C, _F = CoordinatorState, CoordinatorEvent

COORDINATOR_TRANSITIONS: Final[dict[tuple[CoordinatorState, CoordinatorEvent], CoordinatorState]] = {
    (_C.UNKNOWN, _F.ASKS): _C.ASKED,
    (_C.ASKED, _F.ANSWERED): _C.KNOWN,
    (_C.ASKED, _F.NO_ANSWER): _C.UNKNOWN,
    (_C.KNOWN, _F.LOST): _C.UNKNOWN,
}
