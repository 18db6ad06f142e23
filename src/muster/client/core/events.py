"""What the consumer's core reports to its face, in one stream: listener calls, errors that the user must see,
lines for the log, connections to close.

Theory. All parts of a core append to one `EventStream`, and a face learns what has happened from there alone. Events
for the user (`RebalanceCallback`, `Fatal`) wait in the stream until the user's next call: until then they can be taken
back, and equal errors do not pile up. Events that the face handles itself (`Note`, `Disconnect`) are taken at
every turn. The answer to a single call of the user (a commit, a lookup, leaving) goes to that call's own callback.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from muster.errors import MusterError
from muster.model import TopicPartition


class CallbackKind(Enum):
    """Which method of the rebalance listener to call."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RebalanceCallback:
    """The listener has to be called. The core continues when the face then calls `callback_done(token, now)`.

    Until then a revoked partition still belongs to this member: positions can be read and offsets committed. A lost
    partition may belong to another member already.
    """

    kind: CallbackKind
    partitions: tuple[TopicPartition, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """An error that is not retriable. The user's next `poll` raises it, once."""

    error: MusterError


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log, at one of `logging`'s levels."""

    level: int
    text: str


DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the coordinator's connection to this node: a join may be parked there and block what follows."""

    node_id: int


Event = RebalanceCallback | Fatal | Note | Disconnect


class EventStream(list[Event]):
    """The events that have not been taken yet, in order."""

    def fail(self, error: MusterError) -> None:
        """Make the user's next call raise an error, unless an equal one is already waiting."""
        if not any(isinstance(event, Fatal) and str(event.error) == str(error) for event in self):
            self.append(Fatal(error))

    @property
    def has_fatal(self) -> bool:
        """Whether there is an error that the user has not seen."""
        return any(isinstance(event, Fatal) for event in self)

    def take(self, *, for_user: bool = True) -> list[Event]:
        """Take the events since the last call; without `for_user`, only those that the face handles itself."""
        taken = [event for event in self if for_user or isinstance(event, Note | Disconnect)]
        if taken:
            self[:] = [] if for_user else [event for event in self if not isinstance(event, Note | Disconnect)]
        return taken
