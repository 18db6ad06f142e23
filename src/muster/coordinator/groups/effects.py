"""Input and output of the coordinator's rules: origins in, effects out. Values only.

A handler takes a request, its `Origin` and the time, and returns `Effects`: answers, each to a ticket (often that of an
earlier request that had to wait), records for the log, and events for operators. How an answer reaches a socket, when a
record is durable and what is logged about a rebalance is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from muster.coordinator.shards.served_shard import Reply, Ticket
from muster.model import UNKNOWN_MEMBER_ID
from muster.protocol.group_records import Written
from muster.protocol.primitives import Struct


@dataclass(slots=True)
class Origin:
    """Where a request came from, and everything that the rules cannot know or generate.

    `fresh_member_id` is an unused id, for a JoinGroup without one (J5).
    """

    ticket: Ticket
    client_id: str = ""
    client_host: str = ""
    api_version: int = 0
    fresh_member_id: str = UNKNOWN_MEMBER_ID


class EventCause(StrEnum):
    """Why a rebalance began, as a category; the event's `reason` is a sentence."""

    MEMBER_JOINED = "member joined"
    MEMBER_REJOINED = "member rejoined with other metadata"
    LEADER_REJOINED = "leader rejoined"
    SUBSCRIPTION_CHANGED = "member rejoined with other topics"
    PARTITIONS_REVOKED = "member gave partitions up and rejoined"
    PARTITIONS_CHANGED = "leader rejoined after its topics' partitions changed"
    MEMBER_LEFT = "member left"
    MEMBER_EXPIRED = "member's session expired"
    MEMBER_DID_NOT_SYNC = "member did not sync in time"
    STATIC_MEMBER_REPLACED = "static member came back while the group was changing, or with other metadata"
    OVER_CAPACITY = "more members than group.max.size"
    TOO_LARGE = "the group and its assignment are too large for their store"
    # For groups to which the coordinator assigns (server_assignment.py):
    PARTITIONS_GAINED = "partitions were added, or have a leader again"
    LEADERS_LOST = "partitions have no leader"
    TOPIC_DELETED = "topic deleted"
    ASSIGNER_CHANGED = "server.assigned.groups was changed"


class ExpiryKind(StrEnum):
    """Which deadline a member missed."""

    SESSION = "no heartbeat within its session timeout"
    REJOIN = "did not rejoin within the rebalance timeout"
    SYNC = "did not sync within the rebalance timeout"
    NEW = "waited too long for others to join, without having an id to heartbeat with"


@dataclass(slots=True)
class GroupEvent:
    """Something that an operator should know about a group."""

    group_id: str


@dataclass(slots=True)
class RebalanceStarted(GroupEvent):
    """The members must rejoin. `generation_id` is the one that ends; the member `member_id` caused it. `state` is the
    group's previous state: `Empty` if these are its first members, `CompletingRebalance` if the previous rebalance is
    not finished."""

    generation_id: int
    cause: EventCause
    reason: str
    member_id: str
    client_id: str
    group_instance_id: str | None = None
    state: str = ""


@dataclass(slots=True)
class RebalanceCompleted(GroupEvent):
    """The group is stable again (or empty), `duration_ms` after the first RebalanceStarted since it was last stable."""

    generation_id: int
    members: int
    duration_ms: int
    protocol_name: str | None
    leader: str | None


@dataclass(slots=True)
class GroupLoaded(GroupEvent):
    """The coordinator on the broker `broker_id` has loaded a group with members: after a start, or when it took over
    from another coordinator."""

    generation_id: int
    members: int
    broker_id: int


@dataclass(slots=True)
class JoinRefused(GroupEvent):
    """The coordinator has no memory for a client's metadata or, if it assigns, cannot use it; `reason` says which."""

    client_id: str
    client_host: str
    reason: str


@dataclass(slots=True)
class MemberEvent(GroupEvent):
    """Something that happened to one member."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None


@dataclass(slots=True)
class MemberJoined(MemberEvent):
    """A new member joined. `reason` is the one in its JoinGroup (KIP-800), if any."""

    reason: str | None = None


@dataclass(slots=True)
class MemberLeft(MemberEvent):
    """A member left, or an operator removed it. `reason` is the one in the LeaveGroup (KIP-800)."""

    reason: str | None = None


@dataclass(slots=True)
class MemberExpired(MemberEvent):
    """A member missed a deadline and was removed (H1, H2)."""

    kind: ExpiryKind
    timeout_ms: int


@dataclass(slots=True)
class MemberFenced(MemberEvent):
    """A static member was replaced by `new_member_id`, which joined with the same `group_instance_id` (KIP-345)."""

    new_member_id: str


@dataclass(slots=True, init=False)
class Effects:
    """The result of a request or a deadline: `records` are appended together, before any of `replies` goes out."""

    replies: list[Reply]
    records: list[Written]
    events: list[GroupEvent]

    def __init__(self, replies: list[Reply] | None = None, records: list[Written] | None = None) -> None:
        self.replies = [] if replies is None else replies
        self.records = [] if records is None else records
        self.events = []

    def reply(self, ticket: Ticket, response: Struct) -> Effects:
        self.replies.append(Reply(ticket, response))
        return self

    def merge(self, others: Iterable[Effects]) -> Effects:
        for other in others:
            self.replies += other.replies
            self.records += other.records
            self.events += other.events
        return self
