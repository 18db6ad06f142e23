"""The effects that the plans of scheme 1 ask of the consumer, besides operations on ZooKeeper."""

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
    """The member could not claim all of its partitions in any of its attempts. It owns nothing until it tries again."""


class ClaimedPartition(NamedTuple):
    """How to read a partition."""

    thread: str
    """The thread that owns it: one of the caller's streams."""
    offset: int | None
    """The group's committed offset; None if there is none: `auto_offset_reset` decides."""


class StopFetching(Ask[Mapping[TopicPartition, int]]):
    """Stop fetching, and return no fetched records. Answered with the positions after the processed records.

    Until `StartFetching`, asking again returns the same positions.
    """

    __slots__ = ()


class GiveUp(Ask[None]):
    """Notify the user that these partitions are about to be released, or are `lost`: other members may own them
    already.

    Before a release the member still owns them, and its offsets have been committed; the user may commit other offsets.
    """

    __slots__ = ("lost", "partitions")

    def __init__(self, partitions: Iterable[TopicPartition], *, lost: bool = False) -> None:
        self.partitions = sorted(partitions)
        self.lost = lost


class StartFetching(Ask[None]):
    """Notify the user of these partitions, and fetch them and no others."""

    __slots__ = ("assignment", "brokers", "partitions")

    def __init__(
        self,
        partitions: Mapping[TopicPartition, ClaimedPartition],
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
    """The severity of a `NotifyUser`."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NotifyUser(Ask[None]):
    """Notify the user; an error is raised by the call in which the user waits for records."""

    __slots__ = ("error", "level", "message")

    def __init__(self, level: Level, message: str, error: MusterError | None = None) -> None:
        self.level = level
        self.message = message
        self.error = error
