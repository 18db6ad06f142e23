"""What all checks share: the error that they raise, and what they know of members, connections and requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.model import TopicPartition


class InvariantError(AssertionError):
    """Something happened that must never happen. The message is a sentence; the simulation adds its trace."""


class Member(Protocol):
    """What the checks ask of a simulated member."""

    name: str
    group_id: str
    held: set[TopicPartition]

    @property
    def identity(self) -> str:
        """What stays the same when a static member is restarted; else it stands for one process."""

    @property
    def generation_id(self) -> int:
        """The generation that the member believes in, -1 if none."""

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave it."""

    def assignment(self) -> set[TopicPartition]:
        """What the consumer says it is assigned."""


class Connection(Protocol):
    """What the checks ask of a connection."""

    is_closed: bool

    @property
    def identity(self) -> str:
        """The identity of the member whose connection it is."""

    @property
    def client_name(self) -> str:
        """The name of the process whose connection it is."""


@dataclass(slots=True)
class Ticket:
    """A request that the coordinator was given. `marks` is what was known then, for the checks of its answer; `commits`
    are the partitions of an OffsetCommit and what is to be committed."""

    request: Any
    version: int
    connection: Connection
    coordinator: object
    since: int
    answers: int = 0
    commits: list[tuple[TopicPartition, Any]] = field(default_factory=list)
    marks: dict[Any, int] = field(default_factory=dict)
