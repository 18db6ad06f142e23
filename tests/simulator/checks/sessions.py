"""The live members of one group, as far as its coordinator can see, and what it may do to each.

5. A member is expired only if the coordinator has not heard from it for its session timeout, and never while one of its
   requests waits; a member not heard from for longer is not kept.
6. A rebalance ends: members are waited for no longer than the rebalance timeout allows.
7. A request must name the right generation: an older one, or one that no answer has contained, is refused.
8. A replaced static member gets the answer that it is fenced, whatever it asks.
"""

from __future__ import annotations

from typing import Any

from muster.coordinator.groups.effects import (
    ExpiryKind,
    GroupEvent,
    MemberExpired,
    MemberFenced,
    MemberJoined,
    MemberLeft,
    RebalanceStarted,
)
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.simulator.checks.base import InvariantError, Ticket

_ALIVE = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
_BEFORE_THE_GUARDS = (
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
)
_GRACE_MS = 4_000
"""How late a check may be, or a coordinator that is busy."""
PARKED_MS = 100
"""How much later than its decision an answer may come, because it waits for the log."""


def codes_of(response: Any) -> list[int]:
    """The error codes of an answer; for a commit, those of its partitions."""
    if hasattr(response, "error_code"):
        return [response.error_code]
    return [each.error_code for topic in response.topics for each in topic.partitions]


def generation_of(request: Any) -> int | None:
    """The generation that a request names; None if it names none."""
    match request:
        case m.HeartbeatRequest() | m.SyncGroupRequest():
            return int(request.generation_id)
        case m.OffsetCommitRequest() if request.generation_id_or_member_epoch >= 0:
            return int(request.generation_id_or_member_epoch)
    return None


class Sessions:
    """The ledger of one group."""

    def __init__(self, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._signs: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._joined_at = 0
        self._since = 0
        self._fenced: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._rebalancing_since: int | None = None
        self._left: dict[str, str] = {}
        self._gone: set[str] = set()
        self._new: set[str] = set()
        """Members whose first JoinGroup has not been answered: they do not know their ids yet."""

    def begin_anew(self, now: int) -> None:
        """The coordinator has loaded its log, or was suspended: all sessions begin now."""
        for books in (self._signs, self._fenced, self._places, self._left, self._gone, self._new, self._seen):
            books.clear()
        self._since = now

    def said_goodbye(self, member_id: str, name: str) -> None:
        """A member has left properly: nothing was between it and the coordinator."""
        if member_id not in self._gone:
            self._left[member_id] = name

    @property
    def join_takes_at_most_ms(self) -> int:
        """How long members may be waited for: twice as long if only static ones are left and their sessions have to
        expire."""
        return 2 * self._rebalance_timeout_ms + self._session_timeout_ms + _GRACE_MS

    @property
    def sync_takes_at_most_ms(self) -> int:
        """How long the leader may be waited for."""
        return self._rebalance_timeout_ms + _GRACE_MS

    # --- requests ----------------------------------------------------------------------------------------------------

    def asked(self, ticket: Ticket, newest_generation: int) -> None:
        """A request has arrived."""
        request = ticket.request
        ticket.marks["generation"] = newest_generation
        instance = getattr(request, "group_instance_id", None)
        member_id = getattr(request, "member_id", "")
        if instance is not None and self._fenced.get(member_id) == instance:
            ticket.marks["fenced"] = self._places.get(instance, member_id) != member_id

    def answered(self, ticket: Ticket, response: Any, newest_generation: int, well_since: int, now: int) -> None:
        """A request was answered; nothing has delayed the coordinator since `well_since`."""
        request, codes = ticket.request, codes_of(response)
        if ticket.marks.get("fenced") and any(code not in _BEFORE_THE_GUARDS for code in codes):
            raise InvariantError(f"{request.member_id} was fenced, but {request!r} was answered with {response!r}")
        if not any(code in _ALIVE for code in codes):
            return
        generation = generation_of(request)
        if generation is not None:
            oldest = ticket.marks["generation"]
            if not oldest <= generation <= max(newest_generation, oldest):
                raise InvariantError(
                    f"{request!r} was answered with {response!r}, though the group is in generation {newest_generation}"
                )
        member_id = response.member_id if isinstance(request, m.JoinGroupRequest) else getattr(request, "member_id", "")
        self._new.discard(member_id)
        self._seen[member_id] = now
        if isinstance(request, m.JoinGroupRequest):
            self._joined_at = now
        if isinstance(request, (m.JoinGroupRequest, m.SyncGroupRequest)):
            # Only an answer that had to wait for other members renews the session.
            if now - ticket.since > PARKED_MS and well_since < ticket.since:
                self._signs[member_id] = now - PARKED_MS
        else:
            self._signs[member_id] = max(ticket.since, self._signs.get(member_id, 0))

    # --- the coordinator's own events -------------------------------------------------------------------------

    def on_event(self, event: GroupEvent, waiting: set[str], now: int) -> None:
        """Something happened in the group; `waiting` are the members whose JoinGroup or SyncGroup is not answered."""
        match event:
            case RebalanceStarted():
                self._rebalancing_since = now
            case MemberFenced():
                instance = event.group_instance_id or ""
                self._fenced[event.member_id] = instance
                self._places[instance] = event.new_member_id
                self._signs[event.new_member_id] = now
                self._new.discard(event.member_id)
                self._new.add(event.new_member_id)
            case MemberJoined():
                self._new.add(event.member_id)
                if event.group_instance_id is not None:
                    self._places[event.group_instance_id] = event.member_id
            case MemberExpired():
                self._on_expired(event, waiting, now)
                self._vacate(event.group_instance_id, event.member_id)
            case MemberLeft():
                self._left.pop(event.member_id, None)
                self._vacate(event.group_instance_id, event.member_id)

    def _vacate(self, instance: str | None, member_id: str) -> None:
        self._gone.add(member_id)
        self._new.discard(member_id)
        if instance is not None and self._places.get(instance) == member_id:
            del self._places[instance]

    def _on_expired(self, event: MemberExpired, waiting: set[str], now: int) -> None:
        if event.member_id in self._left:
            raise InvariantError(f"{self._left[event.member_id]} had left, and then it expired: {event!r}")
        if event.kind is not ExpiryKind.SESSION:
            return
        if event.member_id in waiting:
            raise InvariantError(f"{event.member_id} expired while its request was waiting")
        silent_for = now - self._last_sign(event.member_id)
        if silent_for < event.timeout_ms:
            raise InvariantError(
                f"{event.member_id} expired, though it was heard from {silent_for} ms before: {event!r}"
            )

    def _last_sign(self, member_id: str) -> int:
        return max(self._since, self._signs.get(member_id, self._since))

    # --- periodic checks ------------------------------------------------------------------------------------------

    def look_at(self, group: m.DescribedGroup, waiting: set[str], now: int) -> None:
        """The coordinator is healthy and the group is stable: it may not contain a member that died long ago."""
        for member in group.members:
            seen = self._seen.setdefault(member.member_id, now)  # at the latest
            # When a rebalance has its members, the session of each starts again, as with Kafka: even that of a static
            # one that has not joined, and of one that has crashed while its JoinGroup waited.
            since = self._joined_at
            silent_for = now - max(seen, since, self._last_sign(member.member_id))
            is_waiting = member.member_id in waiting or member.member_id in self._new
            if silent_for > self._session_timeout_ms + _GRACE_MS and not is_waiting:
                raise InvariantError(
                    f"{member.member_id} was not heard from for {silent_for} ms, and is still a member"
                )
        if group.group_state not in ("PreparingRebalance", "CompletingRebalance"):
            self._rebalancing_since = None
        elif self._rebalancing_since is not None and group.group_state == "PreparingRebalance":
            since = max(self._since, self._rebalancing_since)
            if now - since > self.join_takes_at_most_ms:
                raise InvariantError(f"members are waited for since {now - since} ms: {group!r}")
