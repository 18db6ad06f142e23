"""What the plans of scheme 1 ask for beside ZooKeeper: the effects that a consumer carries out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from muster.errors import MusterError
from muster.model import TopicPartition
from muster.zookeeper.base.operations import Ask
from muster.zookeeper.base.znodes import BrokerRegistration
from muster.zookeeper.watchers.assignment import Assignment


class RebalanceFailedError(MusterError):
    """The member could not claim its part in all of its tries. It owns nothing until it tries again."""


class Reading(NamedTuple):
    """How to read a partition."""

    thread: str
    """The thread, which is a stream of the caller's, that owns it."""
    offset: int | None
    """Where the group has come to; None where it has not committed: `auto_offset_reset` decides."""


class StopFetching(Ask[Mapping[TopicPartition, int]]):
    """Fetch no more, and hand out nothing that was fetched. Answers the positions behind what the caller has handled.

    Until `StartFetching`, asking again answers the same positions.
    """

    __slots__ = ()


class GiveUp(Ask[None]):
    """Tell the user that these partitions are about to be released, or `lost`: that others may own them already.

    Before a release they are still the member's, and offsets are committed, unless the user commits them.
    """

    __slots__ = ("lost", "partitions")

    def __init__(self, partitions: Iterable[TopicPartition], *, lost: bool = False) -> None:
        self.partitions = sorted(partitions)
        self.lost = lost


class StartFetching(Ask[None]):
    """Tell the user of these partitions, fetch them, and no others."""

    __slots__ = ("assignment", "brokers", "partitions")

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Reading],
        assignment: Assignment,
        brokers: Iterable[BrokerRegistration],
    ) -> None:
        self.partitions = dict(partitions)
        self.assignment = assignment
        """The threads of all partitions in this member's view of the group."""
        self.brokers = list(brokers)


class Pause(Ask[None]):
    """Continue after `milliseconds`."""

    __slots__ = ("milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds


class TimeOfDay(Ask[int]):
    """The time in milliseconds since the epoch."""

    __slots__ = ()


class Level(Enum):
    """How much a `Tell` matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Tell(Ask[None]):
    """Tell the user; with an error, the call in which the user waits for records raises it."""

    __slots__ = ("error", "level", "message")

    def __init__(self, level: Level, message: str, error: MusterError | None = None) -> None:
        self.level = level
        self.message = message
        self.error = error
