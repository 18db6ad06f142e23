"""The states of a member of scheme 1, as a table: a transition that is not in it does not happen.

`scheme.py` follows `TRANSITIONS`, and the docs draw their diagram from it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class WatcherState(Enum):
    """The member's state in its group."""

    UNREGISTERED = "unregistered"
    """It has no id in the group: it has not started, or its session has expired."""
    REGISTERING = "registering"
    """It creates its id, or waits until a former session's id of the same name is gone."""
    REBALANCING = "rebalancing"
    """It releases what it owned, reads the members, computes its assignment, claims its partitions."""
    BACKING_OFF = "backing off"
    """An attempt has failed, usually because another member had not released its partitions yet. It owns nothing, and
    waits."""
    STABLE = "stable"
    """It has claimed its partitions, as it sees the group, and reads them."""
    WITHOUT_BROKERS = "without brokers"
    """It found no broker. It keeps its partitions, and watches for one."""
    GAVE_UP = "gave up"
    """All attempts have failed. It owns nothing until the next change that it watches."""
    CLOSED = "closed"
    """It has left; its ephemeral znodes end with its session."""


class WatcherEvent(Enum):
    """What moves a member to another state."""

    BEGINS = "starts, or has a new session"
    REGISTERED = "its id exists"
    NOTIFIED = "members, partitions, topics or brokers have changed"
    CLAIMED = "all of its partitions are claimed"
    NO_BROKER = "no broker is registered"
    FAILED = "a partition has another owner, or ZooKeeper refused a request"
    TRIES_AGAIN = "the backoff is over"
    OUT_OF_TRIES = "the backoff of the last attempt is over"
    EXPIRED = "the session has expired"
    CLOSES = "the consumer is closed"


_S, _H = WatcherState, WatcherEvent

TRANSITIONS: Final[dict[tuple[WatcherState, WatcherEvent], WatcherState]] = {
    (_S.UNREGISTERED, _H.BEGINS): _S.REGISTERING,
    (_S.REGISTERING, _H.REGISTERED): _S.REBALANCING,
    (_S.REBALANCING, _H.CLAIMED): _S.STABLE,
    (_S.REBALANCING, _H.NO_BROKER): _S.WITHOUT_BROKERS,
    (_S.REBALANCING, _H.FAILED): _S.BACKING_OFF,
    (_S.BACKING_OFF, _H.TRIES_AGAIN): _S.REBALANCING,
    (_S.BACKING_OFF, _H.OUT_OF_TRIES): _S.GAVE_UP,
    (_S.STABLE, _H.NOTIFIED): _S.REBALANCING,
    (_S.WITHOUT_BROKERS, _H.NOTIFIED): _S.REBALANCING,
    (_S.GAVE_UP, _H.NOTIFIED): _S.REBALANCING,
    **{(state, _H.EXPIRED): _S.UNREGISTERED for state in _S if state is not _S.CLOSED},
    **{(state, _H.CLOSES): _S.CLOSED for state in _S},
}
