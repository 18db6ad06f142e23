"""The owners of partitions in one group, as its coordinator assigns them and as its members see it.

1. A partition has one owner in a generation: according to all answers of SyncGroup, and according to all members, from
   their `assigned` to the end of their `revoked` or the beginning of their `lost`.
2. The generations that are acknowledged never go back, whatever dies; nor do those that a member sees.
3. A listener's partitions and its consumer's assignment are the same. Nothing is assigned to a member that
   is in no generation.
4. Each generation is led by a member that has joined it, and has at most `group.max.size` members.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.model import TopicPartition
from muster.protocol.messages import JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from muster.protocol.subscription import decode_assignment
from tests.simulator.checks.base import InvariantError, Member


class Ownership:
    """The ledger of one group."""

    def __init__(self, max_size: int) -> None:
        self.rebalances = 0
        self.members: list[Member] = []
        self._max_size = max_size
        self._joined = -1
        self._synced = -1
        self._shares: dict[int, dict[TopicPartition, str]] = {}
        self._last_share: dict[str, int] = {}
        self._claims: dict[int, dict[TopicPartition, str]] = {}
        self._seen: dict[str, int] = {}
        self._stale: set[tuple[str, int]] = set()
        self._former: set[str] = set()
        """Ids of members that the group had when it was deleted and that may not know it."""

    # --- the coordinator's side --------------------------------------------------------------------------------------

    @property
    def newest_generation(self) -> int:
        """The newest generation in this coordinator's answers."""
        return max(self._joined, self._synced)

    def forget_soft_state(self) -> None:
        """The coordinator loads its log: the number of a generation in which no member got an assignment may be used
        again."""
        self._joined = -1

    def on_join(self, response: JoinGroupResponse) -> None:
        """JoinGroup succeeded."""
        generation_id = response.generation_id
        if generation_id < self.newest_generation:
            raise InvariantError(
                f"{response.member_id} joined generation {generation_id} after {self.newest_generation}"
            )
        joined = sum(1 for member in response.members if member.group_instance_id is None)
        if joined > self._max_size:  # static members may be in it although they have not joined
            raise InvariantError(f"generation {generation_id} has {joined} members of {self._max_size}")
        self._joined = generation_id

    def joined_a_stale_one(self, name: str, generation_id: int) -> None:
        """A deposed coordinator, which does not know that it is deposed, accepted a join.

        The members that it knows may have a later generation from its successor. When that one dies, and a member finds
        the deposed one instead, its generation is refused, it joins, and gets the older one, for which nothing has to
        be written. The same happens in Kafka. It can commit nothing there.
        """
        self._stale.add((name, generation_id))

    def on_share(self, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        """SyncGroup succeeded."""
        generation_id = request.generation_id
        if generation_id < self._synced:
            raise InvariantError(f"SyncGroup gave a share of generation {generation_id} after {self._synced}")
        if generation_id > self._synced:
            self.rebalances += 1
        self._synced = generation_id
        who = request.group_instance_id or request.member_id
        self._last_share[request.member_id] = generation_id
        self._former.discard(request.member_id)
        owners = self._shares.setdefault(generation_id, {})
        for partition in decode_assignment(response.assignment).partitions if response.assignment else ():
            owner = owners.setdefault(partition, who)
            if owner != who:
                raise InvariantError(f"generation {generation_id} gives {partition} to {owner} and to {who}")

    def deleted(self) -> None:
        """The group was deleted: the next one with its name counts from the beginning.

        A member that is suspended meanwhile keeps its assignment until its next request: it owns partitions in a
        generation whose number the next group uses again. It can commit nothing there.
        """
        self._former = {member.member_id for member in self.members if member.member_id}
        self._joined = self._synced = -1
        for books in (self._shares, self._claims, self._last_share, self._seen):
            books.clear()

    # --- the members' side -------------------------------------------------------------------------------------------

    def assigned(self, member: Member, added: Iterable[TopicPartition]) -> None:
        """A listener was called with an assignment: it claims everything it holds for its generation."""
        generation_id = member.generation_id
        member.held.update(added)
        self._check_reported(member)
        if generation_id < 0 and member.held:
            raise InvariantError(f"{member.name} is assigned {sorted(member.held)} though it is in no generation")
        if member.member_id in self._former:
            return
        before = self._seen.get(member.name, -1)
        if generation_id < before and (member.name, generation_id) not in self._stale:
            raise InvariantError(f"{member.name} went from generation {before} back to {generation_id}")
        self._seen[member.name] = generation_id
        claims = self._claims.setdefault(generation_id, {})
        for partition in sorted(member.held):
            owner = claims.setdefault(partition, member.identity)
            if owner != member.identity:
                raise InvariantError(f"{owner} and {member.identity} own {partition} in generation {generation_id}")
        for other in self.members:
            both = member.held & other.held
            is_in_it = other.generation_id == generation_id and self.is_of(other, generation_id)
            if is_in_it and other.identity != member.identity and both:
                raise InvariantError(
                    f"{member.name} was given {', '.join(map(str, sorted(both)))} in generation {generation_id}, "
                    f"in which {other.name} has not let go of it"
                )

    def is_of(self, member: Member, generation_id: int) -> bool:
        """Whether a member belongs to a generation or a later one, and not only to one with that number.

        A generation in which the member has joined, but has no assignment yet, may be lost in a crash: its number is
        used again.
        """
        shared = self._last_share.get(member.member_id, -1)
        return min(member.generation_id, shared) >= generation_id

    def _check_reported(self, member: Member) -> None:
        reported, assigned = sorted(member.held), sorted(member.assignment())
        if reported != assigned:
            raise InvariantError(f"{member.name}'s listener knows of {reported}, its consumer of {assigned}")

    def given_up(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """A listener has returned from `revoked`, or was called with `lost`."""
        gone = set(partitions)
        if not gone <= member.held:
            raise InvariantError(f"{member.name} was asked to give up {sorted(gone - member.held)}, which it never had")
        member.held -= gone
