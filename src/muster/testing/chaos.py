"""One group's life, faults and all, as it follows from a seed.

A `Scenario` is drawn first: topics, members, assignors, habits, what the network is like. Then faults strike at random
moments for `fault_ms`. Then everything is mended, and the group has to become stable and balanced within a bound, and
to commit all records there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from muster.coordinator.config import GroupConfig
from muster.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from muster.protocol.primitives import Request
from muster.testing.cluster import SimCluster
from muster.testing.invariants import InvariantError
from muster.testing.member import Habits, SimMember

_METADATA_MAX_AGE_MS = 8_000
_EITHER = ("range", "cooperative-sticky")
_ASSIGNORS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("range",),),
    (("roundrobin",),),
    (("sticky",),),
    (("cooperative-sticky",),),
    (("cooperative-sticky",),),
    (_EITHER,),
    # The two steps of going over to the cooperative protocol without stopping (KIP-429).
    (("range",), _EITHER),
    (_EITHER, ("cooperative-sticky",)),
)
_OLDEST_VERSIONS: dict[type[Request[Any]], int] = {
    HeartbeatRequest: 3,
    JoinGroupRequest: 5,
    LeaveGroupRequest: 1,
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 2,
    SyncGroupRequest: 3,
}


@dataclass(slots=True)
class Scenario:
    """What a life is like. Times in milliseconds; each member has one of the lists of `assignors`."""

    topics: dict[str, int]
    members: int
    nodes: int
    assignors: tuple[tuple[str, ...], ...]
    static: bool
    pattern: bool
    fetch: bool
    wire: bool
    lazy_log: bool
    slow: int
    initial_delay_ms: int
    session_timeout_ms: int
    max_poll_interval_ms: int
    fault_ms: int
    versions: dict[type[Request[Any]], int] = field(default_factory=dict)

    @classmethod
    def draw(cls, rng: Random) -> Scenario:
        """Any of them."""
        wire = rng.randrange(8) == 0
        versions = {}
        if wire and rng.randrange(2):
            versions = {kind: rng.randint(oldest, kind.MAX_VERSION) for kind, oldest in _OLDEST_VERSIONS.items()}
        return cls(
            topics={f"t{number}": rng.randint(1, 5) for number in range(rng.randint(1, 3))},
            members=rng.randint(1, 5),
            nodes=rng.randint(1, 3),
            assignors=rng.choice(_ASSIGNORS),
            static=rng.randrange(3) == 0,
            pattern=rng.randrange(4) == 0,
            fetch=rng.randrange(2) == 0,
            wire=wire,
            lazy_log=rng.randrange(3) == 0,
            slow=rng.choice((0, 5, 20)),
            initial_delay_ms=rng.choice((0, 500, 3_000)),
            session_timeout_ms=rng.choice((6_000, 10_000)),
            max_poll_interval_ms=rng.choice((8_000, 15_000)),
            fault_ms=rng.randrange(20_000, 50_000),
            versions=versions,
        )

    @property
    def bound_ms(self) -> int:
        """How long the group may take to settle once all is well.

        The longest way: a member's join hangs on a connection of which nobody says that it is dead, until its own
        timeout; and the rebalance that its return starts waits for another that has just gone, for its whole time.
        """
        return 2 * (self.max_poll_interval_ms + 5_000) + self.session_timeout_ms + 10_000


class _Life:
    def __init__(self, seed: int, cluster: SimCluster, scenario: Scenario) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self.rng = Random(f"life {seed}")
        self.is_over = False
        self._has_grown = False
        self._started = 0
        self._places: list[str] = []
        self._faults: list[tuple[int, Callable[[], None]]] = [
            (6, self._crash),
            (4, self._close),
            (6, self._start),
            (4, self._cut),
            (4, self._reset),
            (3, self._freeze),
            (3, self._stay_away),
            (4, self._kill_node),
            (2, self._move),
            (1, self._fail_log),
            (1, self._grow),
            (2, self._rejoin),
        ]

    # --- members -----------------------------------------------------------------------------------------------------

    def start_member(self, place: int) -> SimMember:
        self._started += 1
        scenario, rng = self.scenario, self.rng
        habits = Habits(
            commit=rng.choice(("auto", "sync", "async")) if scenario.fetch else "sync",
            handle_ms=rng.choice((0, 20, 300)),
            listener_ms=rng.choice((0, 2, 200)),
            poll_ms=1_500,
        )
        return self.cluster.add_member(
            f"m{place}.{self._started}",
            fetch=scenario.fetch,
            habits=habits,
            pattern="t.*" if scenario.pattern else None,
            partition_assignment_strategy=rng.choice(scenario.assignors),
            group_instance_id=f"i{place}" if scenario.static else None,
            session_timeout_ms=scenario.session_timeout_ms,
            heartbeat_interval_ms=2_000,
            max_poll_interval_ms=scenario.max_poll_interval_ms,
            request_timeout_ms=7_000,
            fetch_max_wait_ms=2_000,
            auto_commit_interval_ms=2_000,
            metadata_max_age_ms=_METADATA_MAX_AGE_MS,
        )

    def _pick(self) -> SimMember | None:
        alive = self.cluster.alive
        return self.rng.choice(alive) if alive else None

    def _place_of(self, member: SimMember) -> int:
        return int(member.name[1:].partition(".")[0])

    # --- faults ------------------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Something happens; the next thing in a while."""
        if self.is_over:
            return
        weights = [weight for weight, _ in self._faults]
        self.rng.choices([fault for _, fault in self._faults], weights)[0]()
        self._later(self.rng.choice((5, 300, 2_000, 6_000)), self.strike)

    def _later(self, about_ms: int, callback: Callable[..., None], *arguments: Any) -> None:
        self.cluster.clock.call_later(self.rng.randint(0, 2 * about_ms), callback, *arguments)

    def _crash(self) -> None:
        member = self._pick()
        if member is not None:
            member.crash()
            if self.rng.randrange(3):
                self._later(2_000, self._start_again, self._place_of(member))

    def _start_again(self, place: int) -> None:
        if not self.is_over:
            self.start_member(place)

    def _close(self) -> None:
        member = self._pick()
        if member is not None:
            member.close()

    def _start(self) -> None:
        if len(self.cluster.alive) < 6:
            taken = {self._place_of(member) for member in self.cluster.alive}
            self.start_member(next(place for place in range(100) if place not in taken))

    def _cut(self) -> None:
        member = self._pick()
        if member is not None:
            nodes = self.cluster.brokers.node_ids
            self.cluster.cut(member, nodes if self.rng.randrange(2) else [self.cluster.brokers.coordinator])
            self._later(6_000, self.cluster.heal, member)

    def _reset(self) -> None:
        links = [link for link in self.cluster.network.links if link.is_open]
        if links:
            link = self.rng.choice(links)
            self.cluster.trace("network", f"resets {link!r}")
            self.cluster.network.reset(link)

    def _freeze(self) -> None:
        member = self._pick()
        if member is not None:
            member.freeze()
            self._later(7_000, member.thaw)

    def _stay_away(self) -> None:
        member = self._pick()
        if member is not None:
            member.stay_away(self.rng.randint(1_000, 2 * self.scenario.max_poll_interval_ms))

    def _kill_node(self) -> None:
        brokers = self.cluster.brokers
        up = [node for node in brokers.node_ids if brokers.is_up(node)]
        if not up:
            return
        node = brokers.coordinator if brokers.coordinator in up and self.rng.randrange(3) else self.rng.choice(up)
        brokers.kill(node)
        if len(brokers.node_ids) > 1 and self.rng.randrange(2):
            self._later(1_000, brokers.take_over)
        self._later(3_000, self._start_node, node)

    def _start_node(self, node: int) -> None:
        if not self.cluster.brokers.is_up(node):
            self.cluster.brokers.start(node)

    def _move(self) -> None:
        self.cluster.brokers.move_coordinator(self.rng.choice(self.cluster.brokers.node_ids))

    def _fail_log(self) -> None:
        self.cluster.brokers.fail_log(True)
        self._later(1_000, self.cluster.brokers.fail_log, False)

    def _grow(self) -> None:
        self._has_grown = True
        topics = self.cluster.brokers.topics
        name = self.rng.choice(sorted(topics.counts))
        if self.scenario.pattern and self.rng.randrange(2):
            name = f"t{len(topics.counts)}"
        topics.grow(name, topics.counts.get(name, 0) + self.rng.randint(1, 2))
        self.cluster.trace("admin", f"{name} has {topics.counts[name]} partitions")

    def _rejoin(self) -> None:
        member = self._pick()
        if member is not None and member.state.has_joined and not member.is_closing:
            member.core.enforce_rebalance("why not")
            member.wakeup()

    def _produce(self) -> None:
        if self.is_over:
            return
        partitions = sorted(self.cluster.partitions())
        for partition in self.rng.sample(partitions, min(3, len(partitions))):
            self.cluster.produce(*partition, self.rng.randint(1, 20))
        self._later(1_000, self._produce)

    # --- the course of it --------------------------------------------------------------------------------------------

    def run(self) -> None:
        for place in range(self.scenario.members):
            self._later(1_000, self._start_again, place)
        self._produce()
        self._later(4_000, self.strike)
        self.cluster.run(self.scenario.fault_ms)
        self._mend()
        # Who was silent for too long may be expired only now, and metadata may be that old.
        self.cluster.run(max(self.scenario.session_timeout_ms, _METADATA_MAX_AGE_MS + 1_000))
        if not self.cluster.alive:  # all of them static and fenced, as what was soft state in a coordinator that died
            self.start_member(51)
        self.cluster.settle(self.scenario.bound_ms, quiet_ms=8_000)
        self._check_all_handled()

    def _mend(self) -> None:
        cluster = self.cluster
        self.is_over = True
        cluster.trace("life", "everything is mended")
        cluster.heal()
        cluster.brokers.fail_log(False)
        for node in cluster.brokers.node_ids:
            self._start_node(node)
        cluster.brokers.take_over()
        for member in cluster.alive:
            member.thaw()
            member.come_back()
        cluster.network.slow = 0
        staying = [member for member in cluster.alive if not member.is_closing]
        if not staying:
            self.start_member(50)
        elif self._needs_operator():
            for member in staying:
                member.core.enforce_rebalance("an operator asks for it")
                member.wakeup()

    def _needs_operator(self) -> bool:
        """Whether there may be something that a group, muster's as Kafka's, does not find out by itself.

        A static member that comes back goes on with its predecessor's share, without a rebalance (KIP-345). If it leads
        (KIP-814), it does not know that partitions were added before it came; and if its predecessor had just given up
        partitions under the cooperative protocol, nobody asks for the second rebalance that would give them an owner.
        Besides, a coordinator that was restarted knows of each member only the assignor that was chosen: newcomers that
        have another in common with all are refused until the members rejoin.
        """
        scenario = self.scenario
        is_cooperative = scenario.assignors == (("cooperative-sticky",),)
        return (scenario.static and (self._has_grown or is_cooperative)) or len(scenario.assignors) > 1

    def _check_all_handled(self) -> None:
        cluster = self.cluster
        for partition in sorted(cluster.partitions()):
            cluster.produce(*partition)  # whose last commit failed commits again with the next record
        if cluster.lag() and not cluster.clock.run_until(lambda: cluster.lag() == 0, 20_000):
            behind = {
                str(p): (cluster.invariants.committed(p), cluster.end_offset(p)) for p in sorted(cluster.partitions())
            }
            raise InvariantError(f"not all records are committed (committed, end): {behind}")


def simulate(seed: int, scenario: Scenario | None = None) -> SimCluster:
    """Lead a group through the life that follows from a seed; the cluster as it is at the end.

    Raises:
        InvariantError: something happened that must never happen; the message ends with what led to it.
    """
    drawn = scenario or Scenario.draw(Random(f"scenario {seed}"))
    cluster = SimCluster(
        seed,
        topics=drawn.topics,
        nodes=drawn.nodes,
        wire=drawn.wire,
        versions=drawn.versions,
        lazy_log=drawn.lazy_log,
        slow=drawn.slow,
        group_config=GroupConfig(
            group_initial_rebalance_delay_ms=drawn.initial_delay_ms, offsets_topic_num_partitions=1
        ),
    )
    try:
        _Life(seed, cluster, drawn).run()
    except Exception as error:
        raise InvariantError(f"seed {seed}: {error}\n{drawn}\n{cluster.story}\nseed {seed}: {error!r}") from error
    return cluster
