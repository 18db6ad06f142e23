"""The base of all assignors (J9): the strategies with which a group's leader assigns partitions.

A group can use any assignor that all of its members name when they join; the broker only picks the name and carries
bytes (J3, J4). So an assignor of your own is a class on the client side only: derive from `Assignor`, give it a
`name` that every member of the group knows, write `assign`, and pass an instance to the consumers. The built-in
assignors use `sorted_members` and `topic_partitions`.

An assignor is pure: no clock, no randomness, no I/O. The same input must give the same output, because a new leader
must be able to repeat the previous leader's decision. It may keep what is passed to `on_assignment`; an instance
belongs to one consumer.

The values here differ from those of `muster.protocol.subscription`: the two packages are siblings, and
`group_instance_id` comes from the JoinGroup response, not from the subscription's bytes. The client's membership copies
one into the other, field by field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from muster.assignors.layout import Layout
from muster.assignors.racks import PartitionRacks
from muster.model import UNKNOWN_GENERATION_ID, TopicPartition


class RebalanceProtocol(IntEnum):
    """What a member does with its partitions when a rebalance begins (KIP-429); numbered as Kafka does.

    EAGER: it gives all of them up before it joins again. COOPERATIVE: it keeps them and gives up only what the new
    assignment takes away, so a partition that changes hands needs two rebalances.
    """

    EAGER = 0
    COOPERATIVE = 1


@dataclass(slots=True)
class MemberSubscription:
    """One member's subscription. `generation_id` is the generation in which it owned `owned_partitions`, -1 if
    unknown."""

    topics: list[str]
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = UNKNOWN_GENERATION_ID
    group_instance_id: str | None = None
    rack_id: str | None = None
    user_data: bytes = b""


class MemberAssignment:
    """What the leader decided for one member; `user_data` reaches that member's `on_assignment`.

    The built-in assignors keep the partitions as places of a layout until their names are requested. The leader sends
    them by topic and number and never needs names, and making a hundred thousand named pairs costs more than assigning
    that many partitions.
    """

    __slots__ = ("_layout", "_partitions", "_places", "user_data")

    def __init__(self, partitions: list[TopicPartition] | None = None, user_data: bytes = b"") -> None:
        self._layout: Layout | None = None
        self._places: list[int] = []
        self._partitions = [] if partitions is None else partitions
        self.user_data = user_data

    @classmethod
    def of_places(cls, layout: Layout, places: list[int]) -> MemberAssignment:
        """Places of a layout, not named yet."""
        assignment = cls()
        assignment._layout = layout
        assignment._places = places
        return assignment

    @property
    def partitions(self) -> list[TopicPartition]:
        """The member's partitions; the list belongs to the assignment, and can be changed."""
        if self._layout is not None:
            self._partitions, self._layout = self._layout.named(self._places), None
        return self._partitions

    @partitions.setter
    def partitions(self, partitions: list[TopicPartition]) -> None:
        self._partitions, self._layout = partitions, None

    def unnamed(self) -> dict[str, list[int]] | None:
        """Partition numbers by topic; None once the names were requested."""
        return None if self._layout is None else self._layout.numbered(self._places)

    def count(self) -> int:
        """How many partitions there are."""
        return len(self._partitions if self._layout is None else self._places)

    def topics(self) -> set[str]:
        """The topics of the partitions."""
        if self._layout is None:
            return {partition.topic for partition in self._partitions}
        numbers = set(map(self._layout.topic_of.__getitem__, self._places))
        return {self._layout.topics[number] for number in numbers}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemberAssignment):
            return NotImplemented
        return (self.partitions, self.user_data) == (other.partitions, other.user_data)

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"MemberAssignment(partitions={self.partitions!r}, user_data={self.user_data!r})"


class Assignor(ABC):
    """A strategy for assigning partitions. Derive from it to write your own (J9)."""

    name: ClassVar[str]
    """The protocol name in JoinGroup: all members of a group must have one name in common."""

    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)
    """The rebalance protocols that the assignor can work under, the preferred one last."""

    def subscription_user_data(self, topics: Iterable[str]) -> bytes:
        """Bytes to send with this member's subscription; the leader's `assign` reads them in `user_data`."""
        return b""

    @abstractmethod
    def assign(
        self, partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, MemberAssignment]:
        """Assign the partitions to the members. Called only on the leader (J4).

        Args:
            partitions_per_topic: how many partitions each topic has; topics that do not exist are missing.
            members: member id to subscription, including the leader's own.

        Returns:
            An assignment for each member of `members`, empty ones included. No partition may be assigned twice, or to
            a member that is not subscribed to its topic.
        """

    def assign_by_rack(
        self,
        partitions_per_topic: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks,
    ) -> dict[str, MemberAssignment]:
        """`assign` for a group whose members have racks (KIP-881); an assignor that ignores
        racks need not override it. `racks` lists the racks of each partition's replicas."""
        return self.assign(partitions_per_topic, members)

    def on_assignment(self, assignment: MemberAssignment, generation_id: int) -> None:
        """Called on every member when a rebalance ends, before its listener is called."""
        return


def sorted_members(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Order member ids as Kafka's range and roundrobin do: static members by instance id, then the rest by id.

    A static member keeps its position in this order over a restart, although that gives it a new member id (KIP-345).
    """
    return sorted(members, key=lambda member_id: _rank(member_id, members[member_id].group_instance_id))


def _rank(member_id: str, group_instance_id: str | None) -> tuple[bool, str, str]:
    return (group_instance_id is None, group_instance_id or "", member_id)
