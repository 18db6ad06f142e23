"""All checks of one simulation together: requests and answers pass through here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from muster.coordinator.groups.effects import GroupEvent
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.simulator.checks.base import Connection, InvariantError, Member, Ticket
from tests.simulator.checks.durability import Committed, Durable, Log
from tests.simulator.checks.offsets import Offsets, Records
from tests.simulator.checks.ownership import Ownership
from tests.simulator.checks.sessions import PARKED_MS, Sessions

_SOON_MS = 3_000
"""How long an answer that does not wait for other members may take."""


@dataclass(slots=True)
class Limits:
    """The settings of the groups that the checks need, in milliseconds."""

    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    group_max_size: int = 1 << 31
    latest: bool = False
    """Whether members begin at the end of partitions without a committed offset."""


class _Group:
    def __init__(self, limits: Limits, records: Records) -> None:
        self.ownership = Ownership(limits.group_max_size)
        self.sessions = Sessions(limits.session_timeout_ms, limits.rebalance_timeout_ms)
        self.offsets = Offsets(self.ownership, records, latest=limits.latest)


class Invariants:
    """The checks of one simulation.

    Args:
        now: returns the time.
        logs: the coordinators' logs by partition.
        records: the logs of the records.
        topic_name: returns the name of the topic with an id.
    """

    def __init__(
        self,
        limits: Limits,
        now: Callable[[], int],
        logs: Mapping[int, Log],
        records: Records,
        topic_name: Callable[[bytes], str | None],
    ) -> None:
        self.durable = Durable(limits.offsets_retention_ms)
        self.coordinator: object = None
        """The coordinator whose answers count; all others are deposed."""
        self.well_since = 0
        """Since when nothing delays the coordinator, or nothing delayed it until `well_until`."""
        self.well_until: int | None = None
        """Since when its log delays the coordinator again."""
        self._limits = limits
        self._now = now
        self._logs = logs
        self._records = records
        self._topic_name = topic_name
        self._groups: dict[str, _Group] = {}
        self._open: dict[int, Ticket] = {}
        self._tickets = 0
        self._fenced: set[str] = set()

    def group(self, group_id: str) -> _Group:
        """The checks of one group."""
        found = self._groups.get(group_id)
        if found is None:
            found = self._groups[group_id] = _Group(self._limits, self._records)
            found.sessions.begin_anew(self._now())
        return found

    @property
    def rebalances(self) -> int:
        """The number of generations that were assigned."""
        return sum(group.ownership.rebalances for group in self._groups.values())

    def follow(self) -> None:
        """Read the coordinators' logs further."""
        self.durable.follow(self._logs.items(), self._now())
        while self.durable.vanished:
            group_id, partition = self.durable.vanished.pop()
            self.group(group_id).offsets.vanished(partition)
        while self.durable.vanished_groups:
            self.group(self.durable.vanished_groups.pop()).ownership.deleted()

    # --- requests ----------------------------------------------------------------------------------------------------

    def ticket(
        self,
        request: Any,
        version: int,
        connection: Connection,
        coordinator: object,
        reply: Callable[[Any], None],
        *,
        is_loading: bool = False,
    ) -> Callable[[Any], None]:
        """A coordinator, which may be loading, is given a request; it must call the returned function once."""
        self._tickets += 1
        number = self._tickets
        ticket = self._open[number] = Ticket(request, version, connection, coordinator, self._now())
        ticket.marks["loading"] = is_loading
        self._asked(ticket)

        def answer(response: Any) -> None:
            ticket.answers += 1
            if ticket.answers > 1:
                raise InvariantError(f"{request!r} was answered a second time, with {response!r}")
            self._open.pop(number, None)
            self._answered(ticket, response)
            reply(response)

        return answer

    def _asked(self, ticket: Ticket) -> None:
        request = ticket.request
        self.follow()
        if isinstance(request, m.OffsetFetchRequest):
            for group_id, partitions in self._fetched_partitions(request).items():
                self.durable.mark(ticket, group_id, partitions)
        if isinstance(request, (m.OffsetFetchRequest, m.DeleteGroupsRequest)) or not hasattr(request, "group_id"):
            return
        if ticket.coordinator is not self.coordinator:
            return
        group = self.group(request.group_id)
        group.sessions.asked(ticket, group.ownership.newest_generation)
        if isinstance(request, m.OffsetCommitRequest):
            # Recorded now: if a topic is deleted before the answer, which waits for the log, its id is no longer known.
            ticket.commits = list(self._commits(request))
            self.durable.mark(ticket, request.group_id, [partition for partition, _ in ticket.commits])
            group.offsets.asked(ticket.commits)

    def _answered(self, ticket: Ticket, response: Any) -> None:
        self.follow()
        if ticket.coordinator is not self.coordinator:
            self._answered_by_another(ticket, response)
            return
        request = ticket.request
        match response:
            case m.JoinGroupResponse() if not response.error_code:
                self.group(request.group_id).ownership.on_join(response)
            case m.SyncGroupResponse() if not response.error_code:
                self.durable.check_share(request, response)
                self.group(request.group_id).ownership.on_share(request, response)
            case m.OffsetCommitResponse():
                self._check_commit(ticket, response)
            case m.OffsetFetchResponse():
                self._check_reported(ticket, response)
            case m.DescribeGroupsResponse():
                self._check_described(response)
            case m.DeleteGroupsResponse():
                self._check_deleted(response)
        self._note_sign_of_life(ticket, response)

    def _note_sign_of_life(self, ticket: Ticket, response: Any) -> None:
        request = ticket.request
        if ticket.marks["loading"]:
            return  # members only get retriable answers until their state is known
        if not isinstance(request, m.OffsetFetchRequest) and hasattr(request, "group_id"):
            group = self.group(request.group_id)
            newest = max(group.ownership.newest_generation, self.durable.generation(request.group_id))
            group.sessions.answered(ticket, response, newest, self.well_since, self._now())

    def _answered_by_another(self, ticket: Ticket, response: Any) -> None:
        """The answer of a coordinator that died with the request, or does not know yet that it is deposed."""
        if isinstance(response, m.OffsetCommitResponse):
            codes = [each.error_code for topic in response.topics for each in topic.partitions]
            if ErrorCode.NONE in codes:
                raise InvariantError(f"a coordinator that was deposed acknowledged {ticket.request!r}")
        elif isinstance(response, m.JoinGroupResponse) and not response.error_code:
            ownership = self.group(ticket.request.group_id).ownership
            ownership.joined_a_stale_one(ticket.connection.client_name, response.generation_id)
        elif isinstance(response, m.OffsetFetchResponse):
            for group_id, reported in self._reported(ticket.request, response).items():
                for partition in reported:
                    self.group(group_id).offsets.reported_by_a_stale_coordinator(ticket.connection.identity, partition)

    def _commits(self, request: m.OffsetCommitRequest) -> Iterable[tuple[TopicPartition, Committed]]:
        for topic in request.topics:
            name = topic.name or self._topic_name(topic.topic_id) or ""
            for each in topic.partitions:
                value = Committed(each.committed_offset, each.committed_leader_epoch, each.committed_metadata or "")
                yield TopicPartition(name, each.partition_index), value

    def _check_commit(self, ticket: Ticket, response: m.OffsetCommitResponse) -> None:
        group_id = ticket.request.group_id
        offsets = self.group(group_id).offsets
        for partition, value in offsets.answered(ticket, response):
            self.durable.check_commit(ticket, group_id, partition, value)

    def _fetched_partitions(self, request: m.OffsetFetchRequest) -> dict[str, list[TopicPartition]]:
        groups: list[Any] = request.groups or [request]
        return {
            group.group_id: [
                TopicPartition(getattr(topic, "name", "") or self._topic_name(topic.topic_id) or "", index)
                for topic in group.topics or ()
                for index in topic.partition_indexes
            ]
            for group in groups
        }

    def _reported(
        self, request: m.OffsetFetchRequest, response: m.OffsetFetchResponse
    ) -> dict[str, dict[TopicPartition, Committed | None]]:
        groups: list[Any] = response.groups or [response]
        reported: dict[str, dict[TopicPartition, Committed | None]] = {}
        for group in groups:
            found = reported.setdefault(getattr(group, "group_id", request.group_id), {})
            for topic in group.topics:
                name = topic.name or self._topic_name(getattr(topic, "topic_id", b"")) or ""
                for each in topic.partitions:
                    if not each.error_code:
                        value = Committed(each.committed_offset, each.committed_leader_epoch, each.metadata or "")
                        partition = TopicPartition(name, each.partition_index)
                        found[partition] = None if each.committed_offset < 0 else value
        return reported

    def _check_reported(self, ticket: Ticket, response: m.OffsetFetchResponse) -> None:
        for group_id, reported in self._reported(ticket.request, response).items():
            for partition, value in reported.items():
                if partition in ticket.marks:
                    self.durable.check_reported(ticket, group_id, partition, value)

    def _check_described(self, response: m.DescribeGroupsResponse) -> None:
        for described in response.groups:
            if not described.error_code and described.group_state == "Stable":
                self.durable.check_described(described)

    def _check_deleted(self, response: m.DeleteGroupsResponse) -> None:
        for result in response.results:
            if result.error_code == ErrorCode.NONE:
                self.durable.check_deleted(result.group_id)

    # --- the coordinator's life --------------------------------------------------------------------------------------

    def died(self) -> None:
        """Requests in flight to the coordinator get no answer; whether it carried them out is unknown."""
        self._open.clear()
        self.coordinator = None
        for group in self._groups.values():
            group.ownership.forget_soft_state()

    def loaded(self, group_id: str, reported: Mapping[TopicPartition, Committed]) -> None:
        """A coordinator has loaded its logs, and found these offsets of a group."""
        self.follow()
        offsets = self.group(group_id).offsets
        for partition in offsets.partitions():
            offsets.loaded(partition, reported.get(partition))

    def reloaded(self, group_ids: Iterable[str]) -> None:
        """The coordinator reads the log of these groups again."""
        for group in map(self.group, group_ids):
            group.ownership.forget_soft_state()
            group.sessions.begin_anew(self._now())
            group.offsets.being_loaded()

    def on_event(self, coordinator: object, event: GroupEvent) -> None:
        """The coordinator reports an event."""
        if coordinator is self.coordinator:
            # A request that has just arrived, or arrived while the log was delayed, may wait for the log and not for
            # other members. In a stable group the same is true of a SyncGroup that arrives while a sync of the log
            # hangs: its answer waits for the log and, as in Kafka, does not renew the session, which ends.
            before = (self._now() if self.well_until is None else self.well_until) - PARKED_MS
            waiting = self._waiting(event.group_id, self.well_since, before)
            self.group(event.group_id).sessions.on_event(event, waiting, self._now())

    def _waiting(self, group_id: str, since: int = -1, before: int = 1 << 62) -> set[str]:
        """The members of a group with a JoinGroup or SyncGroup that arrived after `since` and before another time."""
        return {
            ticket.request.member_id
            for ticket in self._open.values()
            if isinstance(ticket.request, (m.JoinGroupRequest, m.SyncGroupRequest))
            and ticket.request.group_id == group_id
            and ticket.coordinator is self.coordinator
            and since < ticket.since < before
        }

    def look_at(self, groups: Iterable[m.DescribedGroup]) -> None:
        """The coordinator is healthy, and reports that the groups are, too."""
        now = self._now()
        for ticket in self._open.values():
            if ticket.coordinator is not self.coordinator:
                continue
            waits = now - max(ticket.since, self.well_since)
            if waits > self._bound_ms(ticket) and not ticket.connection.is_closed:
                raise InvariantError(f"not answered within {waits} ms: {ticket.request!r}")
        for group in groups:
            if not group.error_code:
                self.group(group.group_id).sessions.look_at(group, self._waiting(group.group_id), now)

    def _bound_ms(self, ticket: Ticket) -> int:
        match ticket.request:
            case m.JoinGroupRequest():
                return self.group(ticket.request.group_id).sessions.join_takes_at_most_ms
            case m.SyncGroupRequest():
                return self.group(ticket.request.group_id).sessions.sync_takes_at_most_ms
        return _SOON_MS

    def check_no_ticket_left(self) -> None:
        """The groups are stable and nothing is in flight: every request that arrived over a living connection is
        answered."""
        left = [ticket.request for ticket in self._open.values() if not ticket.connection.is_closed]
        if left:
            raise InvariantError(f"never answered: {left!r}")

    # --- the members' side -------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        """A process has started."""
        self.group(member.group_id).ownership.members.append(member)

    def gone(self, member: Member) -> None:
        """A process has ended, cleanly or not: it owns nothing."""
        group = self.group(member.group_id)
        member.held.clear()
        group.ownership.members.remove(member)
        group.offsets.end(member, None, in_good_order=False)

    def assigned(self, member: Member, added: Iterable[TopicPartition]) -> None:
        """A listener was called with an assignment."""
        group = self.group(member.group_id)
        group.ownership.assigned(member, added)
        group.offsets.begin(member, added)

    def given_up(self, member: Member, partitions: Iterable[TopicPartition], *, in_good_order: bool) -> None:
        """A listener has returned from `revoked`, or was called with `lost`."""
        group = self.group(member.group_id)
        group.ownership.given_up(member, partitions)
        group.offsets.end(member, partitions, in_good_order=in_good_order)

    def delivered(self, client_name: str, answer: Any) -> None:
        """A process has received an answer."""
        if getattr(answer, "error_code", 0) == ErrorCode.FENCED_INSTANCE_ID:
            self._fenced.add(client_name)

    def sent(self, client_name: str, request: Any) -> None:
        """A process sends a request."""
        if client_name in self._fenced and isinstance(request, m.JoinGroupRequest) and not request.member_id:
            raise InvariantError(f"{client_name} knows that it is fenced, and joins again: {request!r}")
