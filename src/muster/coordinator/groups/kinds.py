"""The interface of a group to its shard and to committed offsets, whatever its protocol.

Kafka has several types of groups in one namespace: classic ones (`ClassicGroup`), those of KIP-848, and others. All
have offsets and deadlines; all can be described, listed and deleted. The shard passes a request that belongs to one
type, such as JoinGroup, to the rules of that type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muster.coordinator.groups.effects import Effects
from muster.errors import ErrorCode
from muster.protocol.group_records import Written
from muster.protocol.messages import DescribedGroup, ListedGroup, OffsetCommitRequest, OffsetFetchRequestGroup


class AnyGroup(Protocol):
    """A group of any type. The records that its methods return are already applied to the group."""

    group_id: str
    wake_at: int
    """Never later than the earliest deadline."""
    armed_at: int
    """When the shard will next check the group; set by the shard."""

    # ------------------------------------------------------------------------------------------------------- offsets

    def check_commit(self, request: OffsetCommitRequest, now: int) -> ErrorCode:
        """Whether the sender may commit for the group; a member's commit may renew its session."""

    def check_transactional_commit(self, generation_id: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the sender may commit for the group as part of a transaction (KIP-447)."""

    def check_fetch(self, request: OffsetFetchRequestGroup) -> ErrorCode:
        """Whether the member that the request names may read the group's offsets."""

    def check_offset_delete(self) -> ErrorCode:
        """Whether committed offsets for topics that no member reads may be deleted now."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members. It is removed once its last offset has expired."""

    @property
    def may_expire(self) -> bool:
        """Whether the members' topics are known, so that offsets for other topics may expire."""

    @property
    def emptied_at(self) -> int | None:
        """When the group lost its last member; None if it has members, never had any, or if that is unknown."""

    @property
    def is_rebalancing(self) -> bool:
        """Whether a rebalance is in progress: its state is not in any record, and would be lost."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read a topic, so that its offsets do not expire."""

    # ---------------------------------------------------------------------------------------- describe, list, delete

    def described(self) -> DescribedGroup:
        """The group as in DescribeGroups."""

    def listed(self) -> ListedGroup:
        """The group as in ListGroups."""

    def check_delete(self) -> ErrorCode:
        """NONE if the group may be deleted, or why not."""

    def tombstones(self) -> Sequence[Written]:
        """The records that delete the group itself, without its offsets."""

    # ----------------------------------------------------------------------------------------------------- lifecycle

    def loaded(self, now: int) -> Effects:
        """All records have been applied: sessions start."""

    def on_deadline(self, now: int) -> Effects:
        """Do everything that is due. Afterwards `wake_at` is later than `now`."""

    def unload(self, error: ErrorCode) -> Effects:
        """The shard is being dropped: every waiting request is answered with `error`."""
