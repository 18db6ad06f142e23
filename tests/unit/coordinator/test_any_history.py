"""A group led through any history that Hypothesis can generate, with invariants that must hold after every step."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, invariant, multiple, rule

from muster.coordinator.groups.classic_group import ClassicGroup
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import ExpiryKind, MemberExpired
from muster.coordinator.groups.group import GroupState
from muster.coordinator.groups.shard import GroupShard
from muster.coordinator.shards.clocks import NEVER
from muster.errors import ErrorCode
from muster.protocol.messages import JoinGroupResponse, MemberIdentity
from tests.support.group_harness import DEFAULT_PROTOCOLS, GroupHarness, classic
from tests.support.scale import examples

SUBSCRIPTION = DEFAULT_PROTOCOLS["range"]
PROTOCOLS = [
    {"range": SUBSCRIPTION},
    {"range": SUBSCRIPTION, "sticky": SUBSCRIPTION},
    {"sticky": SUBSCRIPTION, "range": SUBSCRIPTION},
    {"range": SUBSCRIPTION + b"changed"},
]
STATICS = st.sampled_from(["s1", "s2"])
TIMES = st.sampled_from([1, 999, 3_000, 6_000, 9_999, 10_000, 70_000])


def durable(shard: GroupShard) -> dict[str, Any]:
    """The parts of groups that records can hold, and all offsets."""
    return {
        group_id: (
            group.state,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            group.leader_id,
            [(m.member_id, m.group_instance_id, m.session_timeout_ms, m.assignment) for m in group.members.values()],
            shard.offsets.of_group(group_id),
        )
        for group_id, group in ((group_id, classic(group)) for group_id, group in shard.groups.items())
    }


class AnyHistory(RuleBasedStateMachine):
    """Members join, leave, fall silent and restart; the coordinator restarts too."""

    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.harness = self.new_harness(
            GroupConfig(group_max_size=6, offsets_retention_minutes=2, offsets_retention_check_interval_ms=60_000)
        )
        self.generation = 0
        self.names = 0
        self.last_heartbeat: dict[str, int] = {}
        self.events_seen = 0

    def new_harness(self, config: GroupConfig) -> GroupHarness:
        return GroupHarness(config)

    # -------------------------------------------------------------------------------------------------- what can happen

    @initialize(target=members, count=st.integers(0, 4), protocols=st.sampled_from(PROTOCOLS))
    def a_stable_group(self, count: int, protocols: dict[str, bytes]) -> MultipleResults[str]:
        names = [self.somebody_new_joins(3, protocols, None) for _ in range(count)]
        self.harness.tick(6_000)
        self.the_leader_assigns()
        return multiple(*names)

    def somebody_new_joins(self, version: int, protocols: dict[str, bytes], instance: str | None) -> str:
        self.names += 1
        name = f"m{self.names}"
        self.harness.join_once(name, version=version, protocols=protocols, instance=instance)
        self.harness.ids.setdefault(name, "refused")
        return name

    @rule(
        target=members,
        version=st.sampled_from([0, 3, 4, 9]),
        protocols=st.sampled_from(PROTOCOLS),
        instance=st.none() | STATICS,
    )
    def somebody_comes(self, version: int, protocols: dict[str, bytes], instance: str | None) -> str:
        return self.somebody_new_joins(version, protocols, instance if version >= 5 else None)

    @rule(name=members, protocols=st.sampled_from(PROTOCOLS), version=st.sampled_from([3, 9]))
    def somebody_joins_again(self, name: str, protocols: dict[str, bytes], version: int) -> None:
        self.harness.join_once(name, member_id=self.harness.ids.get(name, "gone"), version=version, protocols=protocols)
        self.harness.ids.setdefault(name, "gone")

    @rule(name=members)
    def somebody_syncs(self, name: str) -> None:
        self.harness.sync(name)

    @rule()
    def the_leader_assigns(self) -> None:
        group, known = self.group(), self.known()
        if group is not None and group.leader_id in known:
            shares = {known[member_id]: member_id.encode() for member_id in group.members if member_id in known}
            self.harness.sync(known[group.leader_id], shares)

    @rule(protocols=st.sampled_from(PROTOCOLS))
    def the_group_settles(self, protocols: dict[str, bytes]) -> None:
        """All members of the group, and those that are about to join, do what a rebalance asks of them."""
        harness, group, known = self.harness, self.group(), self.known()
        for member_id in [*group.members, *group.pending_members] if group else []:
            if member_id in known:
                harness.join_once(known[member_id], member_id=member_id, protocols=protocols)
        harness.tick(6_000)
        for name in self.known().values():
            harness.sync(name)
        self.the_leader_assigns()

    @rule(name=members)
    def somebody_heartbeats(self, name: str) -> None:
        self.heartbeat_of(name)

    def heartbeat_of(self, name: str) -> None:
        error = self.harness.heartbeat(name)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.last_heartbeat[self.harness.ids[name]] = self.harness.now

    @rule()
    def everybody_heartbeats(self) -> None:
        for name in list(self.known().values()):
            self.heartbeat_of(name)

    @rule(name=members)
    def somebody_leaves(self, name: str) -> None:
        self.harness.leave(name)

    @rule(instance=STATICS)
    def an_operator_removes(self, instance: str) -> None:
        self.harness.leave_many(MemberIdentity("", instance))

    @rule(name=st.none() | members, partition=st.integers(0, 3), offset=st.integers(0, 9))
    def somebody_commits(self, name: str | None, partition: int, offset: int) -> None:
        before = self.harness.committed("t", partition)
        (code,) = self.harness.commit(name, {("t", partition): offset})
        assert self.harness.committed("t", partition) == (offset if code == ErrorCode.NONE else before)

    @rule(milliseconds=TIMES)
    def time_passes(self, milliseconds: int) -> None:
        # `tick` itself asserts that nothing due is left.
        self.harness.tick(milliseconds)

    @rule()
    def the_group_is_deleted(self) -> None:
        self.harness.delete()

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.harness.restart()
        self.generation = self.current_generation()
        self.last_heartbeat.clear()

    # ------------------------------------------------------------------------------------------------------- invariants

    def current_generation(self) -> int:
        return self.harness.generation

    def known(self) -> dict[str, str]:
        """The names of the clients that know their member ids. After a restart some members' clients may have forgotten
        theirs."""
        return {member_id: name for name, member_id in self.harness.ids.items()}

    def group(self) -> ClassicGroup | None:
        return self.harness.group if self.harness.group_id in self.harness.shard.groups else None

    @invariant()
    def the_log_tells_what_the_shard_knows(self) -> None:
        """For a group that is stable or empty, everything; for one that is changing, offsets and the state it came
        from."""
        live, replayed = self.harness.shard, self.harness.replayed()
        assert live.groups.keys() == replayed.groups.keys()
        group = self.group()
        if group is None or group.state in (GroupState.STABLE, GroupState.EMPTY):
            assert durable(live) == durable(replayed)
            return
        assert live.offsets.by_group == replayed.offsets.by_group
        before = classic(replayed.groups[group.group_id])
        assert before.state in (GroupState.STABLE, GroupState.EMPTY)
        assert before.generation_id <= group.generation_id

    @invariant()
    def generations_do_not_go_back(self) -> None:
        if self.group() is None:
            self.generation = 0
        assert self.current_generation() >= self.generation
        self.generation = self.current_generation()

    @invariant()
    def whoever_waits_is_waited_for(self) -> None:
        """A ticket that is not answered belongs to a member, and the state in which it waits will end."""
        harness, group = self.harness, self.group()
        held = [
            ticket
            for member in (group.members.values() if group else ())
            for ticket in (member.awaiting_join, member.awaiting_sync)
            if ticket is not None
        ]
        assert len(held) == len(set(held))
        assert not any(ticket in harness.answers for ticket in held)
        assert harness.open_tickets == set(held)
        if held:
            assert group is not None
            assert group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
            assert harness.shard.next_deadline() is not None

    def is_led(self, group: ClassicGroup) -> bool:
        return group.leader_id in group.members if group.members else group.leader_id is None

    @invariant()
    def the_books_are_right(self) -> None:
        group = self.group()
        if group is None:
            return
        assert group.awaiting_join_count == sum(m.awaiting_join is not None for m in group.members.values())
        names = [name for m in group.members.values() for name, _ in m.protocols]
        assert {name: count for name, count in group.protocol_support.items() if count} == {
            name: names.count(name) for name in names
        }
        assert group.static_members == {
            m.group_instance_id: m.member_id for m in group.members.values() if m.group_instance_id
        }
        assert all(member_id == m.member_id for member_id, m in group.members.items())
        assert self.is_led(group)
        assert group.pending_sync <= group.members.keys()
        assert not group.pending_members.keys() & group.members.keys()
        assert group.wake_at <= min(group.deadlines())
        assert group.sessions_at <= min(group.sessions(), default=NEVER)
        assert group.armed_at <= group.wake_at
        assert (group.state is GroupState.EMPTY) == (not group.members) or (
            group.state is GroupState.PREPARING_REBALANCE
        )

    @invariant()
    def no_share_has_two_owners(self) -> None:
        group = self.group()
        if group is not None and group.state is GroupState.STABLE:
            shares = [m.assignment for m in group.members.values() if m.assignment]
            assert len(shares) == len(set(shares))

    @invariant()
    def only_the_leader_receives_the_members(self) -> None:
        for answer in self.harness.answers.values():
            if isinstance(answer, JoinGroupResponse) and answer.members:
                assert answer.member_id == answer.leader

    @invariant()
    def who_heartbeats_in_time_is_not_expired(self) -> None:
        """Unless it has let the rebalance timeout pass, which a heartbeat does not prevent."""
        news = self.harness.events[self.events_seen :]
        self.events_seen += len(news)
        for event in news:
            if isinstance(event, MemberExpired) and event.kind is ExpiryKind.SESSION:
                heard = self.last_heartbeat.get(event.member_id)
                assert heard is None or self.harness.now - heard >= event.timeout_ms


AnyHistory.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
