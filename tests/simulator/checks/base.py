"""What all checks share: the error that they raise, and what they know about members, connections and requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.model import TopicPartition


class InvariantError(AssertionError):
    """Something happened that must never happen. The message is a sentence; the simulation appends its trace."""


class Member(Protocol):
    """The attributes of a simulated member that the checks use."""

    name: str
    group_id: str
    held: set[TopicPartition]

    @property
    def identity(self) -> str:
        """An identity that survives the restart of a static member; otherwise it identifies one process."""

    @property
    def generation_id(self) -> int:
        """The generation according to the member, -1 if none."""

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave it."""

    def assignment(self) -> set[TopicPartition]:
        """The consumer's own assignment."""


class Connection(Protocol):
    """The attributes of a connection that the checks use."""

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
    are the partitions of an OffsetCommit with the values to be committed."""

    request: Any
    version: int
    connection: Connection
    coordinator: object
    since: int
    answers: int = 0
    commits: list[tuple[TopicPartition, Any]] = field(default_factory=list)
    marks: dict[Any, int] = field(default_factory=dict)
