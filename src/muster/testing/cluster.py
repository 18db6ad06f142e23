"""A whole consumer group in one process and in virtual time: real client cores against the real coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from muster.assignors import get_assignors
from muster.coordinator.config import GroupConfig
from muster.coordinator.runtime import Client
from muster.errors import ErrorCode
from muster.model import TopicPartition
from muster.protocol.messages import DescribedGroup, DescribeGroupsRequest
from muster.protocol.primitives import Request
from muster.testing.broker import SimBrokers
from muster.testing.clock import VirtualClock
from muster.testing.invariants import InvariantError, Invariants
from muster.testing.member import Habits, SimMember
from muster.testing.network import Network

GROUP = "group"


class SimCluster:
    """A group of simulated consumers, the nodes that serve it, and all that can go wrong between them.

    Everything follows from `seed`: equal programs with equal seeds run equally, event for event. The coordinator is the
    broker's own `CoordinatorRuntime`, the members are the client's own `ConsumerCore`; only sockets, disks and time are
    simulated. While time passes the invariants (`muster.testing.invariants`) are checked; one that does not hold raises
    `InvariantError`. `story` is what has happened.

        cluster = SimCluster(seed=1, topics={"flights": 4})
        first, second = cluster.add_member("first"), cluster.add_member("second")
        cluster.settle()
        first.crash()
        cluster.settle()
        assert second.held == cluster.partitions()

    Args:
        seed: of the network's delays and whatever else is left to chance.
        topics: partitions by topic.
        nodes: how many brokers there are; node 1 coordinates first.
        wire: have every message go through its codec, which takes longer.
        versions: the newest version that the brokers speak, where it is not the newest there is; with `wire` only.
        lazy_log: a record is durable some time after its append, as with `--fsync always`.
        group_config: settings of the coordinator.
        slow, late: see `Network`.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        topics: dict[str, int] | None = None,
        nodes: int = 1,
        wire: bool = False,
        versions: dict[type[Request[Any]], int] | None = None,
        lazy_log: bool = False,
        group_config: GroupConfig | None = None,
        slow: int = 0,
        late: int = 30,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.clock = VirtualClock(1_000_000)
        self.members: list[SimMember] = []
        self._started = self.clock.now
        self._story: list[tuple[int, str, str]] = []
        self.network = Network(self.clock, self.rng, slow=slow, late=late)
        self.invariants = Invariants(lambda topic_id: self.brokers.topics.topic_name(topic_id))
        self.brokers = SimBrokers(
            self.clock,
            self.network,
            self.rng,
            self.invariants,
            {"flights": 4} if topics is None else topics,
            nodes=nodes,
            config=group_config or GroupConfig(),
            lazy_log=lazy_log,
            wire=wire,
            versions=versions or {},
            group_id=GROUP,
            trace=self.trace,
        )
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
        **settings: Any,
    ) -> SimMember:
        """Start a consumer. `settings` are those of `ConsumerConfig`; it begins at the earliest records."""
        defaults: dict[str, Any] = {"group_id": GROUP, "auto_offset_reset": "earliest"}
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
        )
        self.members.append(member)
        self.trace(name, "starts")
        return member

    @property
    def alive(self) -> list[SimMember]:
        """The members whose process runs."""
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
        """Who holds what, as the members see it."""
        return {partition: member.name for member in self.alive for partition in sorted(member.held)}

    def lag(self) -> int:
        """Records that nobody has committed yet."""
        return sum(
            self.end_offset(partition) - max(0, self.invariants.committed(partition)) for partition in self.partitions()
        )

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, milliseconds: int) -> None:
        """Let virtual time pass."""
        self.clock.advance(milliseconds)

    def run_until(self, predicate: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until something holds; how long it took.

        Raises:
            InvariantError: it did not come to hold in that time.
        """
        begin = self.clock.now
        if not self.clock.run_until(predicate, within_ms):
            raise InvariantError(f"it did not come about within {within_ms} ms")
        return self.clock.now - begin

    def settle(self, within_ms: int = 60_000, *, quiet_ms: int = 10_000) -> int:
        """Let time pass until the group is stable and balanced, and see that it stays so; how long it took.

        Raises:
            InvariantError: it did not settle, does not stay so, or is out of balance.
        """
        begin = self.clock.now
        if not self.clock.run_until(self._has_settled, within_ms):
            raise InvariantError(f"the group is not stable after {within_ms} ms: {self.alive}, {self.describe()}")
        took = self.clock.now - begin
        self.check_balance()
        generations = {member.generation_id for member in self.alive}
        self.run(quiet_ms)
        if (
            not self.clock.run_until(self._has_settled, 100)
            or {member.generation_id for member in self.alive} != generations
        ):
            raise InvariantError(f"nothing happens, but the group goes on rebalancing: {self.alive}")
        self.invariants.check_no_ticket_left()
        return took

    def _has_settled(self) -> bool:
        alive = self.alive
        if any(not member.is_settled for member in alive) or len({m.generation_id for m in alive}) > 1:
            return False
        if alive and set().union(*(member.held for member in alive)) != self.partitions():
            return False
        group = self.describe()
        if group is None or group.group_state not in ("Stable", "Empty", "Dead"):
            return False
        return {member.member_id for member in group.members} == {member.member_id for member in alive}

    def check_balance(self) -> None:
        """Of all assignors here with equal subscriptions: the shares differ by one at most, for range in each topic."""
        alive = self.alive
        if not alive:
            return
        held = [partition for member in alive for partition in member.held]
        if len(held) != len(set(held)):
            raise InvariantError(f"a partition has two owners: {alive}")
        group = self.describe()
        assignor = get_assignors((group.protocol_data,))[0].name if group is not None else "range"
        topics = sorted(self.brokers.topics.counts) if assignor == "range" else [None]
        for topic in topics:
            loads = [sum(1 for p in member.held if topic in (None, p.topic)) for member in alive]
            if max(loads) - min(loads) > 1:
                raise InvariantError(f"{assignor} leaves the group out of balance: {alive}")

    def describe(self) -> DescribedGroup | None:
        """The group as the coordinator describes it, None while there is no coordinator."""
        runtime = self.brokers.runtime
        if runtime is None:
            return None
        answers: list[Any] = []
        runtime.submit(DescribeGroupsRequest(groups=[GROUP]), Client("checker", "", 5), answers.append)
        found: DescribedGroup | None = answers[0].groups[0] if answers else None
        return None if found is None or found.error_code != ErrorCode.NONE else found

    # --- what can go wrong -------------------------------------------------------------------------------------------

    def cut(self, member: SimMember, node_ids: Iterable[int] | None = None) -> None:
        """Let nothing pass between a member and the nodes (all, if none are named)."""
        nodes = self.brokers.node_ids if node_ids is None else list(node_ids)
        self.trace("network", f"cuts {member.name} off from {nodes}")
        for node_id in nodes:
            self.network.cut(member.name, node_id)

    def heal(self, member: SimMember | None = None) -> None:
        """Let everything pass again; what was held up arrives now."""
        self.trace("network", f"heals {member.name if member else 'everything'}")
        self.network.heal(member.name if member else None)

    # --- the story ---------------------------------------------------------------------------------------------------

    def trace(self, who: str, what: str) -> None:
        """Note what has happened."""
        self._story.append((self.clock.now - self._started, who, what))

    @property
    def story(self) -> str:
        """What has happened, a line each: milliseconds, who, what."""
        return "\n".join(f"{at:>8} {who:<8} {what}" for at, who, what in self._story)
