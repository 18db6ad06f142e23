"""What a shard and its committed offsets need of a group, whatever protocol its members speak.

Kafka has several kinds of groups under one set of ids: classic ones (`ClassicGroup`), those of KIP-848, and others.
All have offsets; all are described, listed and deleted; all have deadlines. A request that only members of one kind
send, such as JoinGroup, the shard hands to the rules of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muster.coordinator.groups.effects import Effects
from muster.errors import ErrorCode
from muster.protocol.group_records import Written
from muster.protocol.messages import DescribedGroup, ListedGroup, OffsetCommitRequest, OffsetFetchRequestGroup


class Group(Protocol):
    """A group of any kind. What its methods decide to write they have applied, to the group, already."""

    group_id: str
    wake_at: int
    """Never later than the earliest deadline."""
    armed_at: int
    """When the shard will next look at the group; the shard's own."""

    # ------------------------------------------------------------------------------------------------------- offsets

    def check_commit(self, request: OffsetCommitRequest, now: int) -> ErrorCode:
        """Whether the sender may commit for the group; for a member it may be a sign of life."""

    def check_fetch(self, request: OffsetFetchRequestGroup) -> ErrorCode:
        """Whether the member that a look-up names may see the group's offsets."""

    def check_offset_delete(self) -> ErrorCode:
        """Whether committed offsets may be deleted now, of topics that no member reads."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members. It goes when its last offset has expired."""

    @property
    def may_expire(self) -> bool:
        """Whether it is known which topics the members read, so that offsets of the others may expire."""

    @property
    def emptied_at(self) -> int | None:
        """Since when the group, which once had members, has none; None if it has some, or if that is not known."""

    @property
    def is_rebalancing(self) -> bool:
        """Whether members wait for one another: what is known of that is in no record, and would be lost."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read a topic: its offsets do not expire."""

    # ---------------------------------------------------------------------------------------- describe, list, delete

    def described(self) -> DescribedGroup:
        """What DescribeGroups says."""

    def listed(self) -> ListedGroup:
        """What ListGroups says."""

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted, or why not."""

    def tombstones(self) -> Sequence[Written]:
        """The records with which the group itself goes; its offsets have their own."""

    # ------------------------------------------------------------------------------------------------------ its life

    def loaded(self, now: int) -> Effects:
        """All records are applied: sessions begin."""

    def on_deadline(self, now: int) -> Effects:
        """Do all that is due. `wake_at` is later than `now` then."""

    def unload(self, error: ErrorCode) -> Effects:
        """The shard goes: every request that waits is answered with `error`."""
