"""Where a member of scheme 2 stands, as two tables: what is not in them does not happen.

Documents draw the diagrams from `TRANSITIONS` and `COORDINATOR_TRANSITIONS`; `member.py` and
`coordinator_search.py` move by them. The two are apart: a member whose coordinator fails over stays a member.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ServerAssignedState(Enum):
    """What the member is to its group."""

    OUTSIDE = "outside"
    """It has not begun."""
    JOINING = "joining"
    """It asks to be a member, or to stay one. The coordinator answers when all members have asked, with the share."""
    STABLE = "stable"
    """It has its share of this generation, reads it, and sends heartbeats."""
    RELEASING = "releasing"
    """A rebalance has begun. It has stopped fetching, and commits what is handled."""
    FAILED = "failed"
    """It was refused in a way that trying again does not change. It owns nothing until the user has seen the error."""
    CLOSED = "closed"
    """It leaves, or has left."""


class Happening(Enum):
    """What moves a member."""

    BEGINS = "begins, or the user has seen the error"
    ASSIGNED = "JoinGroup is answered with generation and partitions"
    REBALANCE = "a heartbeat or a commit is answered ILLEGAL_GENERATION"
    RELEASED = "what was handled is committed, or there is no time left for it"
    FORGOTTEN = "an answer says UNKNOWN_MEMBER_ID"
    REFUSED = "an answer is an error that stays"
    CLOSES = "the consumer is closed"


class CoordinatorState(Enum):
    """What a member knows of its group's coordinator."""

    UNKNOWN = "unknown"
    """It asks when it needs one, and a back-off is over."""
    ASKED = "asked"
    """A ConsumerMetadataRequest is under way, to any of the coordinators."""
    KNOWN = "known"


class Found(Enum):
    """What moves that."""

    ASKS = "asks"
    ANSWERED = "an answer names the coordinator"
    NO_ANSWER = "there is none now, or no answer: ask another one after a back-off"
    LOST = "NOT_COORDINATOR, no answer, or no good heartbeat for the session timeout"


_S, _H = ServerAssignedState, Happening

TRANSITIONS: Final[dict[tuple[ServerAssignedState, Happening], ServerAssignedState]] = {
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

_C, _F = CoordinatorState, Found

COORDINATOR_TRANSITIONS: Final[dict[tuple[CoordinatorState, Found], CoordinatorState]] = {
    (_C.UNKNOWN, _F.ASKS): _C.ASKED,
    (_C.ASKED, _F.ANSWERED): _C.KNOWN,
    (_C.ASKED, _F.NO_ANSWER): _C.UNKNOWN,
    (_C.KNOWN, _F.LOST): _C.UNKNOWN,
}
