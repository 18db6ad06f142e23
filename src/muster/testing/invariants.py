"""What must hold whatever happens, checked while a simulation runs.

Theory. The checks look from two sides. From the coordinator's: each request of the group is a ticket, whose answer is
noted when the coordinator gives it, that is when it counts as acknowledged. From the members': what their listeners
were told, what they were handed, and what they have handled.

Ownership and generations
  1. A partition has one owner in a generation: of all that SyncGroup gave out, and of all that members believe, from
     their `assigned` to the end of their `revoked` or the begin of their `lost`.
  2. The generations that are acknowledged never go back, whatever dies; nor do those that a member sees.
  3. What a listener was told and what its consumer says it is assigned are the same.
Answers
  4. A ticket is answered at most once; and once the group is stable, none on a living connection is left over.
Offsets
  5. An acknowledged commit is still there after a restart. A commit that was not acknowledged may be there, or not.
  6. A commit never moves an offset back, unless its member was asked to. (Excepted: one that its client had given up,
     closing the connection. It can arrive after a later one, with Kafka as well.)
Records
  7. What is committed was handled: no crash loses a record (at least once).
  8. Within one ownership records are handled in order, without gaps, from the committed offset on.
  9. Nobody is handed what another member has committed, but a member that does not know yet that it is none any more:
     its generation is older than that of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import (
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from muster.protocol.subscription import decode_assignment


class InvariantError(AssertionError):
    """Something happened that must never happen. The message is a sentence; the simulation adds its trace."""


class Member(Protocol):
    """What the checks ask of a simulated member."""

    name: str
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


@dataclass(slots=True)
class _Ticket:
    request: Any
    version: int
    connection: Connection
    life: int
    answers: int = 0


@dataclass(slots=True)
class _Offsets:
    """One partition's committed offset, and who moved it there last."""

    acknowledged: int = -1
    by: str = ""
    generation_id: int = -1
    pending: list[int] = field(default_factory=list)
    """Commits that were sent to the coordinator and not acknowledged: a restart may keep them."""
    late: bool = False
    may_go_back: bool = False


@dataclass(slots=True)
class _Reading:
    """One ownership of one partition: where it must begin, and how far it is."""

    at_least: int
    next_offset: int = -1


class Invariants:
    """The checks of one simulation. `now` tells the time for the messages."""

    def __init__(self, topic_name: Callable[[bytes], str | None]) -> None:
        self.rebalances = 0
        self._topic_name = topic_name
        self._life = 0
        self._open: dict[int, _Ticket] = {}
        self._tickets = 0
        self._joined = -1
        self._synced = -1
        self._shares: dict[int, dict[TopicPartition, str]] = {}
        self._last_share: dict[str, int] = {}
        self._claims: dict[int, dict[TopicPartition, str]] = {}
        self._seen: dict[str, int] = {}
        self._offsets: dict[TopicPartition, _Offsets] = {}
        self._members: list[Member] = []
        self._reading: dict[tuple[str, TopicPartition], _Reading] = {}
        self._handled: dict[TopicPartition, set[int]] = {}
        self._handled_to: dict[TopicPartition, int] = {}

    # --- the coordinator's side --------------------------------------------------------------------------------------

    def ticket(
        self, request: Any, version: int, connection: Connection, reply: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        """The coordinator is given a request; it is to call what this returns, once."""
        self._tickets += 1
        number = self._tickets
        ticket = self._open[number] = _Ticket(request, version, connection, self._life)
        if isinstance(request, OffsetCommitRequest):
            for partition, offset in self._commits(request):
                self._offsets_of(partition).pending.append(offset)

        def answer(response: Any) -> None:
            ticket.answers += 1
            if ticket.answers > 1:
                raise InvariantError(f"{request!r} was answered a second time, with {response!r}")
            del self._open[number]
            self._check_answer(ticket, response)
            reply(response)

        return answer

    def _check_answer(self, ticket: _Ticket, response: Any) -> None:
        if ticket.life != self._life:
            return  # a coordinator that is no more says good-bye
        match response:
            case JoinGroupResponse() if not response.error_code:
                self._check_join(response)
            case SyncGroupResponse() if not response.error_code:
                self._check_sync(ticket.request, response)
            case OffsetCommitResponse():
                self._check_commit(ticket, response)

    def _check_join(self, response: JoinGroupResponse) -> None:
        if response.generation_id < max(self._joined, self._synced):
            before = max(self._joined, self._synced)
            raise InvariantError(f"{response.member_id} joined generation {response.generation_id} after {before}")
        self._joined = response.generation_id

    def _check_sync(self, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        generation_id = request.generation_id
        if generation_id < self._synced:
            raise InvariantError(f"SyncGroup gave a share of generation {generation_id} after {self._synced}")
        if generation_id > self._synced:
            self.rebalances += 1
        self._synced = generation_id
        who = request.group_instance_id or request.member_id
        self._last_share[request.member_id] = generation_id
        owners = self._shares.setdefault(generation_id, {})
        for partition in decode_assignment(response.assignment).partitions if response.assignment else ():
            owner = owners.setdefault(partition, who)
            if owner != who:
                raise InvariantError(f"generation {generation_id} gives {partition} to {owner} and to {who}")

    def _commits(self, request: OffsetCommitRequest) -> Iterable[tuple[TopicPartition, int]]:
        for topic in request.topics:
            name = topic.name or self._topic_name(topic.topic_id) or ""
            for each in topic.partitions:
                yield TopicPartition(name, each.partition_index), each.committed_offset

    def _check_commit(self, ticket: _Ticket, response: OffsetCommitResponse) -> None:
        request: OffsetCommitRequest = ticket.request
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        for (partition, offset), code in zip(self._commits(request), codes, strict=True):
            known = self._offsets_of(partition)
            if code != ErrorCode.NONE:
                if code != ErrorCode.NOT_COORDINATOR and offset in known.pending:
                    known.pending.remove(offset)  # refused: it must not be there after a restart
                continue
            if offset < known.acknowledged and not ticket.connection.is_closed and not known.may_go_back:
                raise InvariantError(
                    f"{request.member_id} moved the offset of {partition} back from {known.acknowledged} to {offset}"
                )
            known.late = known.late or (offset < known.acknowledged and not known.may_go_back)
            known.may_go_back = False
            handled = self._handled_to.get(partition, 0)
            if offset > handled:
                raise InvariantError(
                    f"{request.member_id} committed {offset} of {partition}, of which {handled} was not handled"
                )
            known.acknowledged = offset
            known.by = ticket.connection.identity
            known.generation_id = request.generation_id_or_member_epoch
            if offset in known.pending:
                del known.pending[: known.pending.index(offset) + 1]

    def _offsets_of(self, partition: TopicPartition) -> _Offsets:
        found = self._offsets.get(partition)
        if found is None:
            found = self._offsets[partition] = _Offsets()
        return found

    def committed(self, partition: TopicPartition) -> int:
        """The acknowledged offset, -1 if there is none."""
        return self._offsets_of(partition).acknowledged

    def coordinator_died(self) -> None:
        """Whoever waits for it waits in vain; what it had not acknowledged nobody knows."""
        self._life += 1
        self._open.clear()
        self._joined = -1

    def restarted(self, loaded: dict[TopicPartition, int]) -> None:
        """A coordinator has read its log: all that was acknowledged must be in it."""
        for partition, known in self._offsets.items():
            offset = loaded.get(partition, -1)
            if offset != known.acknowledged and offset not in known.pending:
                raise InvariantError(
                    f"after the restart {partition} stands at {offset}; {known.acknowledged} was acknowledged, "
                    f"{known.pending} was under way"
                )
            known.acknowledged = offset
            known.pending.clear()

    def reloaded(self) -> None:
        """The coordinator reads its log again: a generation that was not acknowledged may be counted once more."""
        self._joined = -1

    def check_no_ticket_left(self) -> None:
        """The group is stable and nothing is under way: all that came over living connections is answered."""
        left = [ticket.request for ticket in self._open.values() if not ticket.connection.is_closed]
        if left:
            raise InvariantError(f"never answered: {left!r}")

    # --- the members' side -------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        """A process has begun."""
        self._members.append(member)

    def gone(self, member: Member) -> None:
        """A process has ended, well or not: it owns nothing."""
        member.held.clear()
        self._members.remove(member)
        self._forget_reading(member, None)

    def assigned(self, member: Member, added: Iterable[TopicPartition]) -> None:
        """A listener was told of an assignment: everything it holds it claims for its generation."""
        generation_id = member.generation_id
        member.held.update(added)
        self._check_told(member)
        before = self._seen.get(member.name, -1)
        if generation_id < before:
            raise InvariantError(f"{member.name} went from generation {before} back to {generation_id}")
        self._seen[member.name] = generation_id
        claims = self._claims.setdefault(generation_id, {})
        for partition in sorted(member.held):
            owner = claims.setdefault(partition, member.identity)
            if owner != member.identity:
                raise InvariantError(f"{owner} and {member.identity} own {partition} in generation {generation_id}")
        for other in self._members:
            both = member.held & other.held
            is_in_it = other.generation_id == generation_id and self._is_of(other, generation_id)
            if is_in_it and other.identity != member.identity and both:
                raise InvariantError(
                    f"{member.name} was given {', '.join(map(str, sorted(both)))} in generation {generation_id}, "
                    f"in which {other.name} has not let go of it"
                )
        for partition in added:
            self._reading[member.name, partition] = _Reading(self._offsets_of(partition).acknowledged)

    def _is_of(self, member: Member, generation_id: int) -> bool:
        """Whether a member is of a generation or a later one, and not only of one of that number.

        Whoever has joined a generation without a share yet may be of one that is lost in a crash: its number is given
        out again.
        """
        shared = self._last_share.get(member.member_id, -1)
        return min(member.generation_id, shared) >= generation_id

    def _check_told(self, member: Member) -> None:
        told, assigned = sorted(member.held), sorted(member.assignment())
        if told != assigned:
            raise InvariantError(f"{member.name}'s listener knows of {told}, its consumer of {assigned}")

    def given_up(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """A listener has returned from `revoked`, or was told of `lost`."""
        gone = set(partitions)
        if not gone <= member.held:
            raise InvariantError(f"{member.name} was told to give up {sorted(gone - member.held)}, which it never had")
        member.held -= gone
        self._forget_reading(member, gone)

    def _forget_reading(self, member: Member, partitions: set[TopicPartition] | None) -> None:
        for name, partition in list(self._reading):
            if name == member.name and (partitions is None or partition in partitions):
                del self._reading[name, partition]

    def rewound(self, member: Member, partition: TopicPartition, offset: int) -> None:
        """A member was asked to read from an offset on, and may commit that."""
        self._offsets_of(partition).may_go_back = True
        self._reading[member.name, partition] = _Reading(-1, offset)

    # --- records -----------------------------------------------------------------------------------------------------

    def handed_out(self, member: Member, partition: TopicPartition, offsets: range) -> None:
        """A member was handed records."""
        reading = self._reading.get((member.name, partition))
        if reading is None:
            raise InvariantError(f"{member.name} was handed records of {partition}, which it does not own")
        first = offsets[0]
        if reading.next_offset < 0 and first < reading.at_least and not self._offsets_of(partition).late:
            raise InvariantError(
                f"{member.name} begins {partition} at {first}; {reading.at_least} was committed before it got it"
            )
        known = self._offsets_of(partition)
        if reading.next_offset < 0 and first > max(0, known.acknowledged, *known.pending):
            raise InvariantError(f"{member.name} begins {partition} at {first}; {known.acknowledged} is committed")
        if reading.next_offset >= 0 and first != reading.next_offset:
            raise InvariantError(f"{member.name} was handed {first} of {partition} after {reading.next_offset - 1}")
        reading.next_offset = offsets[-1] + 1
        may_know = self._is_of(member, known.generation_id) and known.by != member.identity
        if first < known.acknowledged and may_know and not known.late:
            raise InvariantError(
                f"{member.name} (generation {member.generation_id}) was handed {first} of {partition}, though "
                f"{known.by} committed {known.acknowledged} in generation {known.generation_id}"
            )

    def handled(self, partition: TopicPartition, offsets: range) -> None:
        """A member has done its work on records."""
        done = self._handled.setdefault(partition, set())
        done.update(offsets)
        frontier = self._handled_to.get(partition, 0)
        while frontier in done:
            done.discard(frontier)
            frontier += 1
        self._handled_to[partition] = frontier

    def handled_to(self, partition: TopicPartition) -> int:
        """All records before this offset were handled by somebody."""
        return self._handled_to.get(partition, 0)
