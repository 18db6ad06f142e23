"""The ledger of a group's owners: what it reports as wrong, and what only looks wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from muster.model import TopicPartition
from muster.protocol.messages import SyncGroupRequest, SyncGroupResponse
from tests.simulator import InvariantError
from tests.simulator.checks.ownership import Ownership

ZERO = TopicPartition("t", 0)


@dataclass
class Member:
    """A member as the ledger sees it."""

    name: str
    member_id: str
    generation_id: int
    group_id: str = "g"
    held: set[TopicPartition] = field(default_factory=set)

    @property
    def identity(self) -> str:
        return self.name

    def assignment(self) -> set[TopicPartition]:
        return self.held


def owns(books: Ownership, member: Member) -> None:
    """The member has its assignment, and its listener has been called."""
    books.on_share(SyncGroupRequest("g", member.generation_id, member.member_id), SyncGroupResponse())
    books.assigned(member, [ZERO])


def test_two_owners_in_a_generation_are_one_too_many():
    books = Ownership(10)
    one, other = Member("one", "id-1", 2), Member("other", "id-2", 2)
    owns(books, one)
    with pytest.raises(InvariantError, match="one and other own t-0 in generation 2"):
        owns(books, other)


def test_what_a_member_of_a_deleted_group_believes_says_nothing_of_the_next_group():
    """It is suspended while the group is deleted, continues with its old generation, and crashes before it learns of
    anything."""
    books = Ownership(10)
    sleeper, other = Member("sleeper", "id-1", 2), Member("other", "id-2", 1)
    books.members.append(sleeper)
    owns(books, sleeper)
    books.deleted()
    books.assigned(sleeper, [])
    for other.generation_id in (1, 2):
        owns(books, other)
    # After its next request it is a member of the new group like any other.
    sleeper.generation_id = 2
    with pytest.raises(InvariantError, match="other and sleeper own t-0"):
        owns(books, sleeper)
