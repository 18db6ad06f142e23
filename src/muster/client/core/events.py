"""What the consumer's core tells its face, in one stream: the listener's calls, errors that the user must see, notes
for the log, connections that are of no more use.

Theory. All parts of a core append to one `EventStream`; a face learns what has happened from there and nowhere else.
What concerns the user (`RebalanceCallback`, `Fatal`) waits in the stream until the user's next call: until then it can
be taken back, and the same error does not pile up. What the face does by itself (`Note`, `Disconnect`) it takes at
every turn. The answer to a single question of the user's (a commit, a lookup, leaving) goes to that question's own
callback.
"""

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


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The coordinator's connection to this node is to be closed: a join may be parked there, and block what follows."""

    node_id: int


Event = RebalanceCallback | Fatal | Note | Disconnect


class EventStream(list[Event]):
    """What has happened and was not taken yet, in order."""

    def fail(self, error: MusterError) -> None:
        """Have the user's next call raise an error, unless one like it waits already."""
        if not any(isinstance(event, Fatal) and str(event.error) == str(error) for event in self):
            self.append(Fatal(error))

    @property
    def has_fatal(self) -> bool:
        """Whether there is an error that the user has not seen."""
        return any(isinstance(event, Fatal) for event in self)

    def take(self, *, for_user: bool = True) -> list[Event]:
        """What has happened since the last call; without `for_user` what does not wait for the user's next call."""
        taken = [event for event in self if for_user or isinstance(event, Note | Disconnect)]
        if taken:
            self[:] = [] if for_user else [event for event in self if not isinstance(event, Note | Disconnect)]
        return taken
