"""A classic group and its members: their state, and how it is kept consistent.

The rules - what a member may do and what follows - are in `classic.py` and `classic_join.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.server_assignment import COORDINATOR_LEADS, ServerAssignment
from muster.coordinator.shards.clocks import NEVER, NO_TIMESTAMP
from muster.coordinator.shards.served_shard import Ticket
from muster.errors import ProtocolError
from muster.model import CONSUMER_PROTOCOL_TYPE
from muster.protocol.group_partitions import in_hash_order, java_hash
from muster.protocol.group_records import GroupMetadataRecord
from muster.protocol.messages import (
    DescribedGroup,
    DescribedGroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
    MemberMetadata,
)
from muster.protocol.subscription import subscribed_topics


class GroupState(StrEnum):
    """The states of a group, by the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE, DEAD = GroupState
"""Constants for the rules, which constantly compare states: Python 3.11 needs 0.1 µs to look up an enum member."""

TRANSITIONS: Final[Mapping[tuple[GroupState, GroupState], str]] = {
    (EMPTY, PREPARING_REBALANCE): "a member joins",
    (PREPARING_REBALANCE, COMPLETING_REBALANCE): "all have joined, or the rebalance timeout has passed",
    (PREPARING_REBALANCE, EMPTY): "no member is left",
    (COMPLETING_REBALANCE, STABLE): "the assignment has arrived and is written",
    (COMPLETING_REBALANCE, PREPARING_REBALANCE): "a member joins, leaves or changes",
    (STABLE, PREPARING_REBALANCE): "a member joins, leaves or changes",
    (STABLE, STABLE): "a static member takes its place again",
    (EMPTY, EMPTY): "it is written without members",
    (EMPTY, STABLE): "a coordinator reads it from its store",
    (STABLE, EMPTY): "a coordinator reads it from its store",
    **{(state, DEAD): "it is deleted, or its coordinator unloads it" for state in GroupState},
}
"""Which state may follow which, and why: any other transition is a bug, and drops the shard before it is written. The
documentation's diagram is drawn from it."""

Protocols = list[tuple[str, bytes]]
"""The assignment protocols that a member supports, its preferred one first, each with its metadata."""


def size_of(protocols: Protocols) -> int:
    """The size of a member's metadata, for all its protocols together."""
    return sum([len(metadata) for _, metadata in protocols])


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return list(map(_NAME_AND_METADATA, request.protocols))


_NAME_AND_METADATA: Callable[[JoinGroupRequestProtocol], tuple[str, bytes]] = attrgetter("name", "metadata")


@dataclass(slots=True)
class ClassicMember:
    """One member.

    `awaiting_join` and `awaiting_sync` are tickets of requests that wait for others. A member `is_new` until its first
    JoinGroup is answered. Only a new member can expire while it waits: it may not know its id yet, and a client that
    gives up comes back as another member.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: Ticket | None = None
    awaiting_sync: Ticket | None = None
    is_new: bool = False
    session_deadline: int = NEVER

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def heartbeat_is_satisfied(self) -> bool:
        """Whether the member waits for the coordinator, and so need not send heartbeats (H1)."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


class ClassicGroupBase:
    """A group, its members and its deadlines.

    The contents of a GroupMetadata record are durable, and `apply` restores them: type and name of the protocol,
    generation, leader, and the members with their subscriptions and assignments. Everything else may be lost with the
    process. `wake_at` is never later than the earliest deadline; `armed_at` is when the shard will next check the
    group.
    """

    __slots__ = (
        "armed_at",
        "assigner",
        "awaiting_join_count",
        "config",
        "generation_id",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "is_initial_rebalance",
        "join_deadline",
        "leader_id",
        "members",
        "new_member_added",
        "partition_count",
        "partition_counts",
        "pending_members",
        "pending_sync",
        "protocol_name",
        "protocol_support",
        "protocol_type",
        "rebalance_started_at",
        "sessions_at",
        "state",
        "state_timestamp",
        "static_members",
        "subscribed_topics",
        "sync_deadline",
        "wake_at",
    )

    def __init__(
        self,
        group_id: str,
        config: GroupConfig,
        now: int = NO_TIMESTAMP,
        assigner: ServerAssignment | None = None,
        partition_count: Callable[[str], int] | None = None,
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.partition_count = partition_count
        """Returns a topic's current number of partitions, as this broker knows it."""
        self.partition_counts: dict[str, int] = {}
        """How many partitions the members' topics had when the generation began: an event reports a change."""
        self.assigner = assigner
        """Computes the assignment instead of a leader; None if a member leads."""
        self.state = EMPTY
        self.state_timestamp = now
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.subscribed_topics: frozenset[str] | None = None
        self.protocol_support: dict[str, int] = {}
        self.awaiting_join_count = 0
        # Ids given out with MEMBER_ID_REQUIRED (KIP-394), each with its deadline.
        self.pending_members: dict[str, int] = {}
        self.pending_sync: set[str] = set()
        self.join_deadline = NEVER
        self.sync_deadline = NEVER
        self.is_initial_rebalance = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.new_member_added = False
        self.rebalance_started_at: int | None = None
        self.sessions_at = NEVER
        """No session ends before this time, so deadlines before it need not check the sessions."""
        self.wake_at = NEVER
        self.armed_at = NEVER

    # ----------------------------------------------------------------------------------------------------- properties

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for its members: the longest timeout that any of them requests (H2)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_members_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_members

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols fits into the group; an empty group takes any (C1)."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        support, everyone = self.protocol_support, len(self.members)
        for name, _ in protocols:  # noqa: SIM110 (a generator takes twice as long)
            if support.get(name, 0) == everyone:
                return True
        return False

    def select_protocol(self) -> str:
        """Of the protocols that all members support, the one that most of them prefer.

        In a tie, the protocol that comes first in Kafka's hash map wins.
        """
        everyone = len(self.members)
        candidates = {name for name, count in self.protocol_support.items() if count == everyone}
        # Kafka miscounts a protocol that a member names twice, so it never chooses it; without another one it fails.
        candidates = candidates.difference(*map(_named_twice, self.members.values())) or candidates
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in candidates:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(in_hash_order(votes, java_hash), key=votes.__getitem__)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read a topic. If that is unknown, true for consumers and false for other groups."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def joined_members(self) -> list[JoinGroupResponseMember]:
        """The members as in the leader's JoinGroup response (J3)."""
        return [
            JoinGroupResponseMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        ]

    def described(self) -> DescribedGroup:
        """The group's part of a DescribeGroups response. As in Kafka, subscriptions are shown only if it is stable."""
        stable = self.state is STABLE
        members = [
            DescribedGroupMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.metadata(self.protocol_name) if stable else b"",
                m.assignment,
            )
            for m in self.members.values()
        ]
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol_name or "") if stable else "",
            members=members,
        )

    # ---------------------------------------------------------------------------------------------------- bookkeeping

    def transition_to(self, state: GroupState, now: int) -> None:
        """Change to another state at wall-clock time `now`. Raises AssertionError if the transition is not allowed."""
        if (self.state, state) not in TRANSITIONS:
            raise AssertionError(f"group {self.group_id!r} cannot go from {self.state} to {state}")
        self.state = state
        self.state_timestamp = now

    def add(self, member: ClassicMember) -> None:
        """Add a member. The first one decides the group's protocol type, and leads it (J3)."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_protocols(member, 1)
        if member.awaiting_join is not None:
            self.awaiting_join_count += 1
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id. If it led, the longest-standing member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if self.static_members.get(member.group_instance_id or "") == member_id:
                del self.static_members[member.group_instance_id or ""]
        if member_id == self.leader_id or not self.members:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.pop(member_id, None)
        self.pending_sync.discard(member_id)

    def update(self, member: ClassicMember, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        """A member rejoined, perhaps with different protocols or timeouts."""
        if protocols != member.protocols:
            self._count_protocols(member, -1)
            member.protocols = protocols
            self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def rename(self, member: ClassicMember, new_member_id: str) -> None:
        """Give a static member a new id (KIP-345): it keeps its place, its assignment and its leadership."""
        old_member_id = member.member_id
        self.members = {
            (new_member_id if member_id == old_member_id else member_id): each
            for member_id, each in self.members.items()
        }
        member.member_id = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)

    def park_join(self, member: ClassicMember, ticket: Ticket) -> Ticket | None:
        """Park a JoinGroup. Returns the ticket of an earlier one of the same member, which it replaces."""
        earlier = member.awaiting_join
        if earlier is None:
            self.awaiting_join_count += 1
        member.awaiting_join = ticket
        return earlier

    def unpark_join(self, member: ClassicMember) -> Ticket | None:
        """Take the ticket of a waiting JoinGroup from the member; the caller answers it."""
        ticket = member.awaiting_join
        if ticket is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return ticket

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined. A leader that has joined stays leader (C6). Returns False if no member
        has joined. If the coordinator assigns, no member leads."""
        if self.assigner is not None:
            self.leader_id = COORDINATOR_LEADS
            return self.awaiting_join_count > 0
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def next_generation(self, now: int) -> None:
        """End the join phase: increment the generation and choose the protocol. A group without members becomes
        empty."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscriptions()
        self.note_partitions()
        self.pending_sync.clear()
        self.sync_deadline = NEVER
        self.transition_to(COMPLETING_REBALANCE if self.members else EMPTY, now)

    def note_partitions(self) -> None:
        """Remember how many partitions the members' topics have now."""
        count = self.partition_count
        if count is not None:
            self.partition_counts = {topic: count(topic) for topic in self.subscribed_topics or ()}

    def uncount_metadata(self) -> None:
        """The group is dropped, and its members' metadata with it."""
        for member in self.members.values():
            self._count_protocols(member, -1)

    def _count_protocols(self, member: ClassicMember, change: int) -> None:
        for _, metadata in member.protocols:
            self.config.metadata_bytes += change * len(metadata)
        for name in dict(member.protocols):
            self.protocol_support[name] = self.protocol_support.get(name, 0) + change

    def _subscriptions(self) -> frozenset[str] | None:
        """The topics of all members of a consumer group; None if they are unknown."""
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        # Most members have equal subscriptions, and decoding is the most expensive part of a rebalance for each member.
        for metadata in {member.metadata(self.protocol_name) for member in self.members.values()}:
            try:
                topics.update(subscribed_topics(metadata))
            except ProtocolError:
                return None
        return frozenset(topics)

    # ------------------------------------------------------------------------------------------------------ deadlines

    def wake_by(self, deadline: int) -> None:
        if deadline < self.wake_at:
            self.wake_at = deadline

    def renew_session(self, member: ClassicMember, now: int) -> None:
        """The member is alive: its session timeout starts again (H1)."""
        deadline = now + member.session_timeout_ms
        member.session_deadline = deadline
        if deadline < self.sessions_at:
            self.session_ends_by(deadline)

    def session_ends_by(self, deadline: int) -> None:
        """A member's session or a pending id expires at `deadline`."""
        if deadline < self.sessions_at:
            self.sessions_at = deadline
            self.wake_by(deadline)

    def deadlines(self) -> Iterator[int]:
        yield self.join_deadline
        yield self.sync_deadline
        yield from self.sessions()

    def sessions(self) -> Iterator[int]:
        yield from self.pending_members.values()
        for member in self.members.values():
            yield member.session_deadline

    # -------------------------------------------------------------------------------------------------------- records

    def record(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataRecord:
        """The record of the group's current state, with `assignments`, if given, instead of its own."""
        members = [
            MemberMetadata(  # positional arguments take half the time
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.metadata(self.protocol_name),
                m.assignment if assignments is None else assignments.get(m.member_id, b""),
            )
            for m in self.members.values()
        ]
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp,
            members=members,
        )
        return GroupMetadataRecord(GroupMetadataKey(self.group_id), value)

    def apply(self, value: GroupMetadataValue) -> None:
        """Take the state from a record. Durable state changes only here, both live and when loading.

        Known members keep everything that the record does not hold (tickets, deadlines, protocols not chosen). A record
        with members yields a stable group, one without members an empty group.
        """
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.generation_id = value.generation
        for gone in self.members.keys() - {m.member_id for m in value.members}:
            self.remove(gone)
        for each in value.members:
            member = self.members.get(each.member_id)
            if member is None:
                self.add(_loaded_member(each, value.protocol or ""))
            else:
                member.assignment = each.assignment
        # In the record's order, so that a shard loaded from the log has the same longest-standing member.
        self.members = {each.member_id: self.members[each.member_id] for each in value.members}
        self.leader_id = value.leader
        self.subscribed_topics = self._subscriptions()
        self.transition_to(STABLE if value.members else EMPTY, value.current_state_timestamp)


def _named_twice(member: ClassicMember) -> list[str]:
    if len(member.protocols) == 1:
        return []
    names = [name for name, _ in member.protocols]
    return [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []


def _loaded_member(value: MemberMetadata, protocol_name: str) -> ClassicMember:
    return ClassicMember(
        member_id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        # Value version 0 has no rebalance timeout.
        rebalance_timeout_ms=value.session_timeout if value.rebalance_timeout == -1 else value.rebalance_timeout,
        session_timeout_ms=value.session_timeout,
        protocols=[(protocol_name, value.subscription)],
        assignment=value.assignment,
    )
