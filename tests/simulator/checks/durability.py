"""The durable contents of the coordinator's logs, read by code other than the coordinator's own.

No answer may contain anything that a crash could take back. So each answer is compared with the part of the log that is
durable at the moment when it is given:

 9. An acknowledged commit is in it, completely: offset, leader epoch and metadata.
10. What OffsetFetch returns was in it at some moment since the request arrived.
11. The assignment that SyncGroup returns, and the members that DescribeGroups lists, are in it.
12. An offset disappears from it only for a reason: its group or topic was deleted, or it has expired.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from muster.model import TopicPartition
from muster.protocol.group_records import GroupMetadataRecord, OffsetCommitRecord, decode_coordinated
from muster.protocol.messages import DescribedGroup, GroupMetadataValue, SyncGroupRequest, SyncGroupResponse
from muster.protocol.records.record_batch import iter_headers, read_tuples
from muster.protocol.subscription import decode_subscription
from tests.simulator.checks.base import InvariantError, Ticket

_LATE_MS = 10_000
"""How long after the decision a record may become durable."""


class Committed(NamedTuple):
    """What is committed for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = b""


class Log(Protocol):
    """The parts of a log that the check uses."""

    @property
    def high_watermark(self) -> int:
        """Records before it are durable."""

    def read(self, offset: int, max_bytes: int) -> object:
        """An object with `data` and `next_offset`."""


@dataclass(slots=True)
class _Group:
    states: list[GroupMetadataValue | None] = field(default_factory=list)
    empty_since: int | None = None
    may_vanish: bool = False


class Durable:
    """The ledger of all groups.

    Args:
        retention_ms: how long unused offsets are kept.
    """

    def __init__(self, retention_ms: int) -> None:
        self.vanished: list[tuple[str, TopicPartition]] = []
        """Offsets that were correctly removed since this was last read."""
        self.vanished_groups: list[str] = []
        self._retention_ms = retention_ms
        self._read_to: dict[int, int] = {}
        self._offsets: dict[tuple[str, TopicPartition], list[Committed | None]] = {}
        self._committed_at: dict[tuple[str, TopicPartition], int] = {}
        self._groups: dict[str, _Group] = {}
        self._deleted_topics: set[str] = set()

    # --- reading -----------------------------------------------------------------------------------------------------

    def follow(self, logs: Iterable[tuple[int, Log]], now: int) -> None:
        """Read on to the end of the durable part."""
        for number, log in logs:
            offset = self._read_to.get(number, 0)
            while offset < log.high_watermark:
                read = log.read(offset, 1 << 20)
                for position, header in iter_headers(read.data):  # type: ignore[attr-defined]
                    for _, _, key, value, _ in read_tuples(read.data, position, header):  # type: ignore[attr-defined]
                        self._take(decode_coordinated(key, value), now)
                offset = read.next_offset  # type: ignore[attr-defined]
            self._read_to[number] = offset

    def _take(self, record: object, now: int) -> None:
        if isinstance(record, OffsetCommitRecord):
            partition = TopicPartition(record.key.topic, record.key.partition)
            place = record.key.group, partition
            if record.value is None:
                self._check_may_vanish(record.key.group, partition, now)
                self.vanished.append(place)
                self._offsets.setdefault(place, []).append(None)
            else:
                value = record.value
                self._committed_at[place] = now
                found = Committed(value.offset, value.leader_epoch, value.metadata, value.topic_id)
                self._offsets.setdefault(place, []).append(found)
        elif isinstance(record, GroupMetadataRecord):
            group = self._groups.setdefault(record.key.group, _Group())
            group.states.append(record.value)
            if record.value is None:
                self.vanished_groups.append(record.key.group)
            has_members = record.value is not None and bool(record.value.members)
            if has_members or record.value is None:
                group.empty_since = None
                group.may_vanish = group.may_vanish and not has_members
            elif group.empty_since is None:
                group.empty_since = now

    def _check_may_vanish(self, group_id: str, partition: TopicPartition, now: int) -> None:
        group = self._groups.get(group_id, _Group())
        if group.may_vanish or partition.topic in self._deleted_topics:
            return
        state = group.states[-1] if group.states else None
        if state is not None and state.members:
            subscribed = {topic for m in state.members for topic in decode_subscription(m.subscription).topics}
            if partition.topic in subscribed:
                raise InvariantError(f"the offset of {partition} vanished, though {group_id} reads the topic")
        since = self._committed_at.get((group_id, partition), now)
        if state is not None and not state.members and group.empty_since is not None:
            since = group.empty_since
        if now - since < self._retention_ms - _LATE_MS:
            raise InvariantError(f"the offset of {partition} of {group_id} vanished after {now - since} ms")

    def group_may_vanish(self, group_id: str) -> None:
        """A client has requested the deletion of the group."""
        self._groups.setdefault(group_id, _Group()).may_vanish = True

    def topic_may_vanish(self, topic: str) -> None:
        """A topic was deleted."""
        self._deleted_topics.add(topic)

    def committed(self, group_id: str, partition: TopicPartition) -> Committed | None:
        """The durable committed offsets."""
        values = self._offsets.get((group_id, partition))
        return values[-1] if values else None

    def generation(self, group_id: str) -> int:
        """The durable generation, -1 if there is none."""
        group = self._groups.get(group_id)
        state = group.states[-1] if group is not None and group.states else None
        return -1 if state is None else state.generation

    # --- answers -----------------------------------------------------------------------------------------------------

    def mark(self, ticket: Ticket, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """A request has arrived: remember where the log ended."""
        for partition in partitions:
            ticket.marks[partition] = len(self._offsets.get((group_id, partition), ()))

    def check_commit(self, ticket: Ticket, group_id: str, partition: TopicPartition, value: Committed) -> None:
        """A commit was acknowledged."""
        since = self._offsets.get((group_id, partition), [])[ticket.marks[partition] :]
        if not any(known is not None and known[:3] == value[:3] for known in since):
            raise InvariantError(f"{value} was acknowledged for {partition}, but what is durable since is {since}")

    def check_reported(
        self, ticket: Ticket, group_id: str, partition: TopicPartition, reported: Committed | None
    ) -> None:
        """OffsetFetch returned an offset, or that there is none."""
        values = self._offsets.get((group_id, partition), [])
        since = values[max(0, ticket.marks[partition] - 1) :]
        if reported is None:
            if not ticket.marks[partition] or None in since or partition.topic in self._deleted_topics:
                return
        elif any(known is not None and known[:3] == reported[:3] for known in since):
            return
        raise InvariantError(f"{reported} was returned for {partition}, but durable since the request is {since}")

    def check_share(self, request: SyncGroupRequest, response: SyncGroupResponse) -> None:
        """SyncGroup returned an assignment."""
        for state in reversed(self._states(request.group_id)):
            if state is not None and state.generation == request.generation_id:
                shares = {member.member_id: member.assignment for member in state.members}
                if shares.get(request.member_id) == response.assignment:
                    return
        raise InvariantError(f"{request!r} was answered with {response!r}, which is not durable")

    def check_described(self, group: DescribedGroup) -> None:
        """DescribeGroups returned a stable group."""
        reported = {member.member_id: member.group_instance_id for member in group.members}
        for state in reversed(self._states(group.group_id)):
            if state is not None and reported == {m.member_id: m.group_instance_id for m in state.members}:
                return
        raise InvariantError(f"{group!r} was reported, but is not durable")

    def check_deleted(self, group_id: str) -> None:
        """DeleteGroups succeeded."""
        states = self._states(group_id)
        left = [partition for (group, partition), values in self._offsets.items() if group == group_id and values[-1]]
        if left or (states and states[-1] is not None):
            raise InvariantError(f"{group_id} was reported as deleted, but it has {left} and {states[-1:]}")

    def _states(self, group_id: str) -> list[GroupMetadataValue | None]:
        group = self._groups.get(group_id)
        return [] if group is None else group.states
