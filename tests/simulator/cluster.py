"""Whole consumer groups in one process and in virtual time: real client cores with the real coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from muster.assignors import get_assignors
from muster.coordinator.groups.config import GroupConfig
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import DescribedGroup
from muster.protocol.primitives import Request
from tests.simulator.checks import InvariantError, Limits
from tests.simulator.clock import VirtualClock
from tests.simulator.member import Habits, SimMember
from tests.simulator.network import BOTH_WAYS, Network
from tests.simulator.nodes import SimBrokers
from tests.simulator.programs import program_of

GROUP = "group"


class SimCluster:
    """Groups of simulated consumers, the nodes that serve them, and everything that can go wrong between them.

    Everything follows from `seed`: equal programs with equal seeds run equally, event for event. The coordinator is the
    broker's own `CoordinatorRuntime`, the members are the client's own `ConsumerCore`; only sockets, disks and time are
    simulated. While time passes the invariants (`tests.simulator.checks`) are checked; one that does not hold raises
    `InvariantError`. `story` contains all events.

        cluster = SimCluster(seed=1, topics={"flights": 4})
        first, second = cluster.add_member("first"), cluster.add_member("second")
        cluster.settle()
        first.crash()
        cluster.settle()
        assert second.held == cluster.partitions()

    Args:
        seed: determines the network's delays and everything else that is random.
        topics: partitions by topic.
        groups: the names of the groups; a member belongs to the first unless its settings say otherwise.
        simple_groups: names under which consumers with manual assignment only commit.
        nodes: how many brokers there are; node 1 coordinates first.
        wire: pass every message through its codec, which takes longer.
        versions: the newest versions that the brokers speak, if not the newest of all; only with `wire`.
        lazy_log: a record becomes durable some time after its append, as with `--fsync always`.
        group_config: settings of the coordinator.
        limits: the longest timeouts of the members, for the checks.
        skew_ms: how far the clocks of two coordinators may deviate from the time.
        slow, late: see `Network`.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: dict[str, int] | None = None,
        groups: Iterable[str] = (GROUP,),
        simple_groups: Iterable[str] = (),
        nodes: int = 1,
        wire: bool = False,
        versions: dict[type[Request[Any]], int] | None = None,
        lazy_log: bool = False,
        group_config: GroupConfig | None = None,
        limits: Limits | None = None,
        skew_ms: int = 0,
        slow: int = 0,
        late: int = 30,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.clock = VirtualClock(1_000_000)
        self.members: list[SimMember] = []
        self.operator_helped = False
        """Whether an operator had to make a group rebalance that did not become stable on its own."""
        self._started = self.clock.now
        self._story: list[tuple[int, str, str]] = []
        self.network = Network(self.clock, self.rng, slow=slow, late=late)
        self.groups = list(groups)
        config = group_config or GroupConfig()
        self.brokers = SimBrokers(
            self.clock,
            self.rng,
            {"flights": 4} if topics is None else topics,
            [*self.groups, *simple_groups],
            nodes=nodes,
            config=config,
            limits=limits
            or Limits(offsets_retention_ms=config.offsets_retention_ms, group_max_size=config.group_max_size),
            lazy_log=lazy_log,
            skew_ms=skew_ms,
            wire=wire,
            versions=versions or {},
            trace=self.trace,
        )
        self.invariants = self.brokers.invariants
        self.brokers.start_coordinator(1)

    # --- members -----------------------------------------------------------------------------------------------------

    def add_member(
        self,
        name: str,
        *,
        fetch: bool = True,
        habits: Habits | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        by_hand: Iterable[TopicPartition] | None = None,
        **settings: Any,
    ) -> SimMember:
        """Start a consumer. `settings` are those of `ConsumerConfig`; it begins at the earliest record.

        `by_hand` are partitions that it takes with `assign` instead of subscribing. Its group is one of the
        `simple_groups`, and no other process may have these partitions: both could commit for them, in either order.
        """
        defaults: dict[str, Any] = {"group_id": self.groups[0], "auto_offset_reset": "earliest"}
        chosen = sorted(self.brokers.topics.counts) if topics is None else list(topics)
        member = SimMember(
            self,
            name,
            defaults | settings,
            fetch=fetch,
            habits=habits or Habits(),
            pattern=pattern,
            topics=chosen,
            rng=Random(self.rng.getrandbits(64)),
            program=program_of,
            by_hand=None if by_hand is None else sorted(by_hand),
        )
        self.members.append(member)
        self.trace(name, "starts")
        return member

    @property
    def alive(self) -> list[SimMember]:
        """The members that are running."""
        self.members = [member for member in self.members if member.is_alive]
        return self.members

    # --- records -----------------------------------------------------------------------------------------------------

    def produce(self, topic: str, partition: int, count: int = 1) -> None:
        """Append records."""
        self.brokers.produce(TopicPartition(topic, partition), count)

    def end_offset(self, partition: TopicPartition) -> int:
        """The offset that the next record of a partition gets."""
        return self.brokers.topics.logs[partition].log_end_offset

    def partitions(self) -> set[TopicPartition]:
        """All partitions of all topics."""
        return set(self.brokers.topics.logs)

    def owners(self) -> dict[TopicPartition, str]:
        """The partitions that each member holds, as the members see it."""
        return {partition: member.name for member in self.alive for partition in sorted(member.held)}

    def lag(self, group_id: str | None = None, partitions: Iterable[TopicPartition] | None = None) -> int:
        """Records, in all partitions or in some, that a group has not committed yet."""
        offsets = self.invariants.group(group_id or self.groups[0]).offsets
        some = self.partitions() if partitions is None else partitions
        return sum(max(0, self.end_offset(p) - max(0, offsets.committed(p))) for p in some)

    def committed(self, partition: TopicPartition, group_id: str | None = None) -> int:
        """The acknowledged offset of a group, -1 if there is none."""
        return self.invariants.group(group_id or self.groups[0]).offsets.committed(partition)

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, milliseconds: int) -> None:
        """Let virtual time pass."""
        self.clock.advance(milliseconds)

    def run_until(self, predicate: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until a condition holds; returns how long it took.

        Raises:
            InvariantError: it did not hold within that time.
        """
        begin = self.clock.now
        if not self.clock.run_until(predicate, within_ms):
            raise InvariantError(f"it did not happen within {within_ms} ms")
        return self.clock.now - begin

    def settle(self, within_ms: int = 60_000, *, quiet_ms: int = 10_000) -> int:
        """Let time pass until all groups are stable and balanced, and check that they stay so; returns how long it
        took.

        Raises:
            InvariantError: they did not settle, did not stay so, or are out of balance.
        """
        begin = self.clock.now
        if not self.clock.run_until(self.has_settled, within_ms):
            raise InvariantError(f"not stable after {within_ms} ms: {self.alive}, {self.describe()}")
        took = self.clock.now - begin
        for group_id in self.groups:
            self.check_balance(group_id)
        generations = {(member.group_id, member.generation_id) for member in self.alive}
        self.run(quiet_ms)
        if (
            not self.clock.run_until(self.has_settled, 100)
            or {(member.group_id, member.generation_id) for member in self.alive} != generations
        ):
            raise InvariantError(f"nothing happens, but the group keeps rebalancing: {self.alive}")
        self.invariants.check_no_ticket_left()
        return took

    def has_settled(self) -> bool:
        """Whether all groups are stable, and have assigned all partitions among all their members."""
        if any(not member.is_settled for member in self.alive):
            return False
        described = {group.group_id: group for group in self.describe()}
        return all(group_id in described and self._is_whole(described[group_id]) for group_id in self.groups)

    def _is_whole(self, group: DescribedGroup) -> bool:
        alive = self.of_group(group.group_id)
        if len({member.generation_id for member in alive}) > 1:
            return False
        if alive and set().union(*(member.held for member in alive)) != self.partitions():
            return False
        if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            return False
        if group.group_state not in ("Stable", "Empty", "Dead"):
            return False
        return {member.member_id for member in group.members} == {member.member_id for member in alive}

    def of_group(self, group_id: str) -> list[SimMember]:
        """The running members of a group."""
        return [member for member in self.alive if member.group_id == group_id]

    def check_balance(self, group_id: str) -> None:
        """Each partition has one owner, and the group is balanced."""
        alive = self.of_group(group_id)
        held = [partition for member in alive for partition in member.held]
        if len(held) != len(set(held)):
            raise InvariantError(f"a partition has two owners: {alive}")
        if not self.is_balanced(group_id):
            raise InvariantError(f"{self._assignor(group_id)} leaves the group out of balance: {alive}")

    def is_balanced(self, group_id: str) -> bool:
        """With all assignors here and equal subscriptions, the loads differ by at most one; for range, in each
        topic."""
        alive = self.of_group(group_id)
        if not alive:
            return True
        topics = sorted(self.brokers.topics.counts) if self._assignor(group_id) == "range" else [None]
        for topic in topics:
            loads = [sum(1 for p in member.held if topic in (None, p.topic)) for member in alive]
            if max(loads) - min(loads) > 1:
                return False
        return True

    def _assignor(self, group_id: str) -> str:
        group = next(group for group in self.describe() if group.group_id == group_id)
        return get_assignors((group.protocol_data,))[0].name

    def describe(self) -> list[DescribedGroup]:
        """The groups as the coordinator describes them, none if there is no coordinator."""
        return self.brokers.coordinators.describe()

    # --- faults -------------------------------------------------------------------------------------------

    def cut(
        self, member: SimMember, node_ids: Iterable[int] | None = None, directions: Iterable[str] = BOTH_WAYS
    ) -> None:
        """Let nothing pass between a member and the nodes (default: all of them), or only in one direction."""
        nodes, ways = self.brokers.node_ids if node_ids is None else list(node_ids), list(directions)
        self.trace("network", f"cuts {member.name} off from {nodes} ({', '.join(ways)})")
        for node_id in nodes:
            self.network.cut(member.name, node_id, ways)

    def heal(self, member: SimMember | None = None) -> None:
        """Let everything pass again; delayed messages arrive now."""
        self.trace("network", f"heals {member.name if member else 'everything'}")
        self.network.heal(member.name if member else None)

    # --- the story ---------------------------------------------------------------------------------------------------

    def trace(self, who: str, what: str) -> None:
        """Record an event."""
        self._story.append((self.clock.now - self._started, who, what))

    @property
    def story(self) -> str:
        """The events, a line each: milliseconds, actor, event."""
        return "\n".join(f"{at:>8} {who:<8} {what}" for at, who, what in self._story)
