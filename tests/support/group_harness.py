"""Verbs for tests of the coordinator's rules: `group.join("a").tick(3000).sync_leader()`.

Members are called by short names; their ids are `a-1`, `a-2` … in the order in which they are given out. Every request
has its own ticket. The harness asserts that none is answered twice, and that a fresh shard can read whatever is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import Effects, GroupEvent, Origin
from muster.coordinator.groups.group import GroupState, size_of
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.groups.shard import GroupShard
from muster.errors import ErrorCode
from muster.protocol.admin_messages import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from muster.protocol.group_records import CoordinatedRecord, OffsetCommits, decode_coordinated, encode_record
from muster.protocol.messages import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

NEWEST_JOIN = 9
Protocols = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
DEFAULT_PROTOCOLS: Mapping[str, bytes] = {"range": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}
"""A Subscription to topic `t`, as its metadata."""


class FakeTopics:
    """Topics by name, with the number of their partitions; ids are derived from the names."""

    def __init__(self, **partitions: int) -> None:
        self.partitions = partitions or {"t": 4, "u": 2}
        self.leaderless: set[tuple[str, int]] = set()

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def is_gone(self, topic: str) -> bool:
        return topic not in self.partitions

    def led_partitions(self, topic: str) -> list[int]:
        return [number for number in range(self.partition_count(topic)) if (topic, number) not in self.leaderless]

    def topic_id(self, topic: str) -> bytes:
        return topic.encode().rjust(16, b"#") if topic in self.partitions else bytes(16)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name in self.partitions if self.topic_id(name) == topic_id), None)


def classic(group: AnyGroup) -> ClassicGroup:
    """The group, which uses the classic protocol."""
    assert isinstance(group, ClassicGroup)
    return group


class GroupHarness:
    """One group in one shard, with a clock that only `tick` moves."""

    session_timeout_ms = 10_000
    rebalance_timeout_ms = 60_000

    def __init__(self, config: GroupConfig | None = None, group_id: str = "g") -> None:
        self.config = config or GroupConfig()
        self.topics = FakeTopics()
        self.group_id = group_id
        self.now = 1_700_000_000_000
        self.shard = GroupShard(self.config, self.topics)
        self.shard.loaded(self.now)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.events: list[GroupEvent] = []
        self.ids: dict[str, str] = {}
        self.answers: dict[int, Any] = {}
        self.last_ticket: dict[str, int] = {}
        self._tickets = 0
        self._fresh = 0

    # ------------------------------------------------------------------------------------------------------- requests

    def join(self, name: str, *, version: int = NEWEST_JOIN, member_id: str | None = None, **fields: Any) -> Self:
        """A JoinGroup. A new member that first gets its id (KIP-394) joins again with it at once."""
        self.join_once(name, version=version, member_id=member_id, **fields)
        answer = self.answers.get(self.last_ticket[name])
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.join_once(name, version=version, **fields)
        return self

    def join_once(
        self,
        name: str,
        *,
        version: int = NEWEST_JOIN,
        member_id: str | None = None,
        protocols: Protocols = DEFAULT_PROTOCOLS,
        protocol_type: str = "consumer",
        instance: str | None = None,
        session_timeout_ms: int | None = None,
        rebalance_timeout_ms: int | None = None,
        reason: str | None = None,
    ) -> Self:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms if session_timeout_ms is None else session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
            member_id=self.ids.get(name, "") if member_id is None else member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(*item)
                for item in (protocols.items() if isinstance(protocols, Mapping) else protocols)
            ],
            reason=reason,
        )
        self._fresh += 1
        origin = self._origin(name, version, f"{name}-{self._fresh}")
        self._take(self.shard.join(request, origin, self.now))
        answer = self.answers.get(origin.ticket)
        if answer is not None:
            self._learn_id(name, answer)
        elif not request.member_id:
            self.ids[name] = origin.fresh_member_id
        return self

    def sync(
        self, name: str, assignments: Mapping[str, bytes] | None = None, *, version: int = 4, **fields: Any
    ) -> Self:
        """A SyncGroup; `assignments` are given by the members' names."""
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=fields.pop("generation", self.generation),
            member_id=self.ids[name],
            assignments=[SyncGroupRequestAssignment(self.ids[n], a) for n, a in (assignments or {}).items()],
            **fields,
        )
        self._take(self.shard.sync(request, self._origin(name, version), self.now))
        return self

    def sync_leader(self) -> Self:
        """The leader's SyncGroup, which assigns to every member bytes that contain its name."""
        return self.sync(self.leader, {name: name.encode() for name in self.members})

    def sync_all(self) -> Self:
        for name in self.members:
            if name != self.leader:
                self.sync(name)
        return self.sync_leader()

    def heartbeat(self, name: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        number = self.generation if generation is None else generation
        return self.shard.heartbeat(self.group_id, number, self.ids[name], instance, self.now)

    def leave(self, name: str, *, reason: str | None = None, version: int = 5) -> Self:
        return self.leave_many(MemberIdentity(self.ids[name], None, reason), name=name, version=version)

    def leave_many(self, *members: MemberIdentity, name: str = "operator", version: int = 5) -> Self:
        request = LeaveGroupRequest(self.group_id, members[0].member_id, list(members))
        self._take(self.shard.leave(request, self._origin(name, version), self.now))
        return self

    def commit(
        self,
        name: str | None,
        offsets: Mapping[tuple[str, int], int],
        *,
        generation: int | None = None,
        version: int = 9,
        metadata: str | None = "",
        retention_ms: int = -1,
        instance: str | None = None,
    ) -> list[int]:
        """An OffsetCommit, without membership if `name` is None. Returns the error code of each partition."""
        epoch = 3 if version >= 6 else -1
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(OffsetCommitRequestPartition(partition, offset, epoch, metadata))
        number = -1 if name is None else self.generation
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=number if generation is None else generation,
            member_id="" if name is None else self.ids[name],
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(t, partitions=ps) for t, ps in topics.items()],
        )
        origin = self._origin(name or "operator", version)
        self._take(self.shard.commit(request, origin, self.now))
        return [p.error_code for t in self.answers[origin.ticket].topics for p in t.partitions]

    def committed(self, topic: str, partition: int) -> int:
        wanted = OffsetFetchRequestTopics(topic, bytes(16), [partition])
        found = self.shard.fetch_offsets(OffsetFetchRequestGroup(self.group_id, topics=[wanted]), 9)
        return found.topics[0].partitions[0].committed_offset

    def delete(self) -> int:
        result, effects = self.shard.delete_group(self.group_id)
        self._take(effects)
        return result.error_code

    def delete_offsets(self, *partitions: tuple[str, int]) -> tuple[int, dict[tuple[str, int], int]]:
        """An OffsetDelete; returns its error code, and that of each partition."""
        topics = [OffsetDeleteRequestTopic(t, [OffsetDeleteRequestPartition(number)]) for t, number in partitions]
        request = OffsetDeleteRequest(self.group_id, topics)
        self._take(self.shard.delete_offsets(request, self._origin("operator", 0), self.now))
        answer = self.reply("operator")
        codes = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
        return answer.error_code, codes

    # ----------------------------------------------------------------------------------------------- time and restart

    def tick(self, milliseconds: int) -> Self:
        """Advance the time, and do whatever is due on the way, at the exact moment."""
        target = self.now + milliseconds
        while (deadline := self.shard.next_deadline()) is not None and deadline <= target:
            self.now = max(deadline, self.now)
            self._take(self.shard.on_deadline(self.now))
            after = self.shard.next_deadline()
            assert after is None or after > self.now
        self.now = target
        return self

    def restart(self) -> Self:
        """A new process reads the log; requests that waited in the old one get no answer."""
        open_tickets = self.open_tickets
        self.shard.unload(ErrorCode.NOT_COORDINATOR)
        self.shard = self.replayed(self.config)
        self.answers.update((ticket, None) for ticket in open_tickets)
        self._take(self.shard.loaded(self.now))
        return self

    def replayed(self, config: GroupConfig | None = None) -> GroupShard:
        """A fresh shard that has read everything that was written."""
        shard = GroupShard(config or replace(self.config), self.topics)
        for key, value in self.log:
            shard.apply(decode_coordinated(key, value))
        return shard

    def stable_with(self, *names: str, **fields: Any) -> Self:
        """Let the members join and sync; the first one leads."""
        for name in names:
            self.join(name, **fields)
        return self.tick(self.config.group_initial_rebalance_delay_ms * (2 if len(names) > 1 else 1)).sync_all()

    # ----------------------------------------------------------------------------------------------------- observations

    @property
    def group(self) -> ClassicGroup:
        return classic(self.shard.groups[self.group_id])

    @property
    def state(self) -> GroupState:
        return self.group.state

    @property
    def generation(self) -> int:
        return self.group.generation_id if self.group_id in self.shard.groups else 0

    @property
    def members(self) -> list[str]:
        """The members' names, the earliest to join first."""
        names = {member_id: name for name, member_id in self.ids.items()}
        return [names[member_id] for member_id in self.group.members]

    @property
    def leader(self) -> str:
        return next(name for name, member_id in self.ids.items() if member_id == self.group.leader_id)

    @property
    def open_tickets(self) -> set[int]:
        """Requests that are not answered yet."""
        return set(range(1, self._tickets + 1)) - self.answers.keys()

    def waits(self, name: str) -> bool:
        """Whether the last request of a member is not answered yet."""
        return self.last_ticket[name] not in self.answers

    def reply(self, name: str) -> Any:
        """The answer to the last request of a member."""
        return self.answers[self.last_ticket[name]]

    def joined(self, name: str) -> tuple[int, str, list[str]]:
        """Generation, leader's name and the members' names in the answer to the last JoinGroup."""
        answer = self.reply(name)
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        names = {member_id: n for n, member_id in self.ids.items()}
        return answer.generation_id, names[answer.leader], [names[m.member_id] for m in answer.members]

    def share(self, name: str) -> bytes:
        """The assignment in the answer to the last SyncGroup."""
        answer = self.reply(name)
        assert isinstance(answer, SyncGroupResponse)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        return answer.assignment

    def error(self, name: str) -> ErrorCode:
        return ErrorCode(self.reply(name).error_code)

    def left(self, name: str = "operator") -> list[int]:
        answer = self.reply(name)
        assert isinstance(answer, LeaveGroupResponse)
        return [answer.error_code, *(member.error_code for member in answer.members)]

    def events_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def records(self) -> list[CoordinatedRecord]:
        return [decode_coordinated(key, value) for key, value in self.log]

    # --------------------------------------------------------------------------------------------------------- plumbing

    def _origin(self, name: str, version: int, fresh_member_id: str = "") -> Origin:
        self._tickets += 1
        self.last_ticket[name] = self._tickets
        return Origin(self._tickets, f"client-{name}", "/127.0.0.1", version, fresh_member_id)

    def _take(self, effects: Effects) -> None:
        for ticket, response in [(reply.ticket, reply.response) for reply in effects.replies]:
            assert ticket not in self.answers, f"ticket {ticket} is answered twice"
            self.answers[ticket] = response
        for written in effects.records:
            for record in written.records() if isinstance(written, OffsetCommits) else [written]:
                key, value = encode_record(record)
                assert decode_coordinated(key, value) == record
                self.log.append((key, value))
        self.events += effects.events
        groups = [classic(group) for group in self.shard.groups.values()]
        kept = sum(size_of(member.protocols) for group in groups for member in group.members.values())
        assert self.config.metadata_bytes == kept or any(group.state is GroupState.DEAD for group in groups)

    def _learn_id(self, name: str, answer: JoinGroupResponse) -> None:
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.ids[name] = answer.member_id
        elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.ids.pop(name, None)
