"""A second kind of group next to the classic one, in one shard: implementing `kinds.Group` is enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import Effects, Origin
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.groups.shard import GroupShard
from muster.coordinator.shards.clocks import NEVER
from muster.coordinator.shards.served_shard import Reply, Ticket
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.group_records import GroupMetadataRecord, Written
from tests.support.group_harness import DEFAULT_PROTOCOLS, FakeTopics

NOW = 1_700_000_000_000
SESSION_MS = 5_000


class Team:
    """A kind of group with one rule: each member has an epoch, with which it commits, and waits for a bell."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.wake_at = self.armed_at = NEVER
        self.epochs: dict[str, int] = {}
        self.topics: set[str] = set()
        self.since: int | None = None
        self.waiting: list[Ticket] = []

    def enter(self, member_id: str, epoch: int, ticket: Ticket, now: int) -> None:
        self.epochs[member_id] = epoch
        self.waiting.append(ticket)
        self.wake_at = min(self.wake_at, now + SESSION_MS)

    def _check(self, member_id: str | None, epoch: int) -> ErrorCode:
        if not self.epochs and epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.epochs:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if self.epochs[member_id] == epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_commit(self, request: m.OffsetCommitRequest, now: int) -> ErrorCode:
        self.wake_at = min(self.wake_at, now + SESSION_MS)
        return self._check(request.member_id, request.generation_id_or_member_epoch)

    def check_transactional_commit(self, generation_id: int, member_id: str, instance_id: str | None) -> ErrorCode:
        return self._check(member_id, generation_id)

    def check_fetch(self, request: m.OffsetFetchRequestGroup) -> ErrorCode:
        return self._check(request.member_id, request.member_epoch)

    @property
    def is_empty(self) -> bool:
        return not self.epochs

    @property
    def is_rebalancing(self) -> bool:
        return False

    @property
    def may_expire(self) -> bool:
        return True

    @property
    def emptied_at(self) -> int | None:
        return self.since

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def described(self) -> m.DescribedGroup:
        return m.DescribedGroup(group_id=self.group_id, group_state="Playing")

    def listed(self) -> m.ListedGroup:
        return m.ListedGroup(self.group_id, "team", "Playing", "team")

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.epochs else ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def tombstones(self) -> list[Written]:
        return [GroupMetadataRecord(m.GroupMetadataKey(self.group_id), None)]

    def loaded(self, now: int) -> Effects:
        self.wake_at = now + SESSION_MS
        return Effects()

    def on_deadline(self, now: int) -> Effects:
        self.wake_at, effects = NEVER, Effects()
        for ticket in self.waiting:
            effects.reply(ticket, m.HeartbeatResponse())
        self.waiting = []
        return effects

    def unload(self, error: ErrorCode) -> Effects:
        effects = self.on_deadline(NEVER)
        for reply in effects.replies:
            reply.response = m.HeartbeatResponse(error_code=error)
        return effects


@pytest.fixture
def team() -> Team:
    return Team("team")


@pytest.fixture
def shard(team: Team) -> Iterator[GroupShard]:
    """A shard with a team, and with a classic group of one member."""
    shard = GroupShard(GroupConfig(group_initial_rebalance_delay_ms=0), FakeTopics())
    shard.groups["team"] = team
    [reply] = join(shard, "classic").replies
    assert reply.response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    yield shard
    assert isinstance(team, Team)
    kinds: list[AnyGroup] = list(shard.groups.values())  # both are groups, for mypy too
    assert {group.group_id for group in kinds} <= {"team", "classic"}


def join(shard: GroupShard, group_id: str, member_id: str = "") -> Effects:
    protocols = [m.JoinGroupRequestProtocol(*item) for item in DEFAULT_PROTOCOLS.items()]
    request = m.JoinGroupRequest(group_id, 10_000, 60_000, member_id, None, "consumer", protocols)
    return shard.join(request, Origin("join", "cli", "", 9, "fresh"), NOW)


def commit(shard: GroupShard, group_id: str, member_id: str = "", epoch: int = -1, now: int = NOW) -> int:
    partition = m.OffsetCommitRequestPartition(0, 7)
    topic = m.OffsetCommitRequestTopic("t", partitions=[partition])
    request = m.OffsetCommitRequest(group_id, epoch, member_id, topics=[topic])
    [reply] = shard.commit(request, Origin("commit", "cli", "", 9), now).replies
    answer: Any = reply.response
    return int(answer.topics[0].partitions[0].error_code)


def fetch(shard: GroupShard, group_id: str, member_id: str | None = None, epoch: int = -1) -> tuple[int, int]:
    answer = shard.fetch_offsets(m.OffsetFetchRequestGroup(group_id, member_id, epoch, None), 9)
    committed = [each.committed_offset for topic in answer.topics for each in topic.partitions]
    return answer.error_code, committed[0] if committed else -1


def test_each_kind_says_who_may_commit(shard: GroupShard, team: Team) -> None:
    team.enter("a", 3, "ticket", NOW)
    assert commit(shard, "team", "a", 3) == 0
    assert commit(shard, "team", "a", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(shard, "team", "b", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(shard, "classic", "fresh", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(shard, "classic") == 0


def test_each_kind_says_who_may_look(shard: GroupShard, team: Team) -> None:
    assert commit(shard, "team") == commit(shard, "classic") == 0
    team.enter("a", 3, "ticket", NOW)
    assert fetch(shard, "team", "a", 3) == (0, 7)
    assert fetch(shard, "team", "a", 2) == (ErrorCode.STALE_MEMBER_EPOCH, -1)
    assert fetch(shard, "team") == (0, 7)  # a lookup that names no member
    assert fetch(shard, "classic", "anybody", 9) == (0, 7)
    assert fetch(shard, "nobody's", "anybody", 9) == (0, -1)


def test_groups_of_both_kinds_are_described_and_listed(shard: GroupShard) -> None:
    assert [shard.describe(name, 5).group_state for name in ("team", "classic", "none")] == ["Playing", "Empty", "Dead"]

    def listed(states: list[str], types: list[str]) -> list[tuple[str, str]]:
        return [(group.group_id, group.group_type) for group in shard.list_groups(states, types)]

    both = [("team", "team"), ("classic", "classic")]
    assert listed([], []) == listed(["playing", " EMPTY"], []) == listed([], ["Team", "classic"]) == both
    assert listed(["Playing"], []) == listed([], ["team"]) == both[:1]
    assert listed(["Empty"], []) == listed([], ["CLASSIC "]) == both[1:]
    assert listed(["Empty"], ["team"]) == listed([], ["share"]) == []


def test_a_group_goes_when_its_kind_lets_it(shard: GroupShard, team: Team) -> None:
    commit(shard, "team")
    team.enter("a", 3, "ticket", NOW)
    assert shard.delete_group("team")[0].error_code == ErrorCode.NON_EMPTY_GROUP
    team.epochs.clear()
    result, effects = shard.delete_group("team")
    assert (result.error_code, len(effects.records)) == (0, 2)
    assert ("team" in shard.groups, fetch(shard, "team")) == (False, (0, -1))
    assert shard.delete_group("team")[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_each_kind_has_its_deadlines(shard: GroupShard, team: Team) -> None:
    team.enter("a", 3, "ticket", NOW)
    commit(shard, "team", "a", 3)
    assert shard.next_deadline() == NOW + SESSION_MS
    assert shard.on_deadline(NOW + SESSION_MS - 1).replies == []
    [reply] = shard.on_deadline(NOW + SESSION_MS).replies
    assert reply == Reply("ticket", m.HeartbeatResponse())
    assert shard.next_deadline() == NOW + 10_000  # the id that was given to a classic member


def test_both_kinds_begin_and_end_with_their_shard(shard: GroupShard, team: Team) -> None:
    shard.loaded(NOW + 1)
    assert (team.wake_at, team.armed_at) == (NOW + 1 + SESSION_MS,) * 2
    team.enter("a", 3, "ticket", NOW)
    effects = shard.unload(ErrorCode.NOT_COORDINATOR)
    assert effects.replies == [Reply("ticket", m.HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))]


def test_offsets_of_both_kinds_expire_by_what_the_group_says(shard: GroupShard, team: Team) -> None:
    shard.loaded(NOW)
    for name in ("team", "classic"):
        commit(shard, name)
    week = shard.config.offsets_retention_ms
    team.topics = {"t"}
    shard.on_deadline(NOW + week)
    assert (fetch(shard, "team"), fetch(shard, "classic")) == ((0, 7), (0, -1))
    team.topics, team.since = set(), NOW + 10_000
    shard.on_deadline(NOW + week + 9_999)
    assert fetch(shard, "team") == (0, 7)
    team.epochs = {"a": 1}
    while fetch(shard, "team") == (0, 7):
        shard.on_deadline(shard.next_deadline() or 0)
    assert list(shard.groups) == ["team"]  # it has a member
    team.epochs = {}
    for _ in range(3):
        shard.on_deadline(shard.next_deadline() or 0)
    assert list(shard.groups) == []


def test_members_of_the_classic_protocol_are_not_let_into_another_kind(shard: GroupShard, team: Team) -> None:
    def code(effects: Effects) -> int:
        [reply] = effects.replies
        answer: Any = reply.response
        return int(answer.error_code)

    origin = Origin("ticket", "cli", "", 4)
    assert code(join(shard, "team")) == code(join(shard, "team", "a")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(shard.sync(m.SyncGroupRequest("team", 3, "a"), origin, NOW)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.heartbeat("team", 3, "a", None, NOW) is ErrorCode.UNKNOWN_MEMBER_ID
    leave = shard.leave(m.LeaveGroupRequest("team", members=[m.MemberIdentity("a")]), origin, NOW)
    [reply] = leave.replies
    assert reply.response.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.groups["team"] is team
