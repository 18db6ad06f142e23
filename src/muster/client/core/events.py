"""What the consumer's core tells its face: the listener's calls, errors that the user must see, notes for the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from muster.errors import MusterError
from muster.model import TopicPartition


class CallbackKind(Enum):
    """Which method of the rebalance listener is meant."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RebalanceCallback:
    """The listener has to be told. The core goes on when `callback_done(token, now)` says that it was.

    Until then a revoked partition still belongs to this member: positions can be read and offsets committed. A lost one
    belongs to somebody else already.
    """

    kind: CallbackKind
    partitions: tuple[TopicPartition, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """An error that trying again does not mend. The next `poll` of the user raises it, once."""

    error: MusterError


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log, at one of `logging`'s levels."""

    level: int
    text: str


DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

Event = RebalanceCallback | Fatal | Note
