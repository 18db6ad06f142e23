"""The kind of a life, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.simulator.transactions.world import Faults


@dataclass(frozen=True)
class Plan:
    """The kind of a life."""

    fsync: str
    tv2: float
    """The probability that a process is a client of `transaction.version` 2."""
    real: float
    """The probability that a process has muster's producer instead of a script of requests."""
    length_ms: int
    faults: Faults
    kills: int
    cuts: int
    freezes: int
    full_disks: int
    clock_steps: int
    ghosts: int
    exhausted: bool
    hands_over: bool
    """Whether each process that handles records has a different transactional id from its predecessor's (KIP-447)."""
    loses: bool
    """Whether a power cut may remove what was acknowledged, because it is not synced: promises about the past end
    there."""
    brokers: int
    """1 is standalone, more are a cluster on ZooKeeper."""
    store: str
    """Where a cluster stores its groups."""
    moves: int
    """How often a broker is suspended until another process has replaced it, with a copy of its folder."""
    doubts: int
    """How often a broker's connection with ZooKeeper breaks, is cut for a while, or its session ends."""
    members: int
    """The members of the group that copies records."""
    is_static: bool
    """Whether they are static members."""
    assignor: str
    client_kills: int
    client_freezes: int

    @property
    def is_cluster(self) -> bool:
        """Whether there are several brokers."""
        return self.brokers > 1


def plan_of(rng: Random) -> Plan:
    """Drawn from a seed."""
    is_cluster = rng.random() < 0.35
    fsync = rng.choice(("interval", "interval", "always"))
    loses = not is_cluster and fsync == "interval" and rng.random() < 0.15
    cuts = rng.randint(1, 3) if (fsync == "always" and rng.random() < 0.5) or loses else 0
    chance = rng.choice((0.0, 0.01, 0.05))
    hands_over = rng.random() < 0.25
    # Late requests could only be recognized if these processes were members of a group, which fences them.
    faults = (
        Faults(chance, chance)
        if hands_over
        else Faults(chance, chance, rng.choice((0.0, 0.03)), rng.choice((0.0, 0.05)))
    )
    faults.refused = rng.choice((0.0, 0.02))
    members = rng.choice((0, 2, 3)) if not is_cluster else rng.choice((0, 2, 2, 3))
    # A static member that is replaced between the two rebalances of a cooperative assignor does not know of the second
    # one: as in Kafka, the partition that it had given up is then unassigned until the group changes.
    is_static = rng.random() < 0.3
    assignor = "range" if is_static else rng.choice(("range", "cooperative-sticky"))
    return Plan(
        fsync=fsync,
        tv2=rng.choice((0.0, 0.5, 1.0, 1.0)),
        real=rng.choice((0.0, 0.5, 1.0)),
        length_ms=rng.choice((2_000, 4_000) if is_cluster or members else (800, 1_500, 3_000)),
        faults=faults,
        kills=rng.choice((0, 1, 2, 4)),
        cuts=cuts,
        freezes=rng.choice((0, 0, 1, 2)),
        full_disks=rng.choice((0, 0, 0, 2)),
        clock_steps=rng.choice((0, 0, 2)),
        ghosts=0 if hands_over else rng.choice((0, 10, 40)),
        exhausted=rng.random() < 0.25,
        hands_over=hands_over,
        loses=loses,
        brokers=rng.choice((2, 3)) if is_cluster else 1,
        store=rng.choice(("log", "zookeeper")) if is_cluster else "log",
        moves=rng.choice((0, 1, 2)) if is_cluster else 0,
        doubts=rng.choice((0, 2, 4)) if is_cluster else 0,
        members=members,
        is_static=is_static,
        assignor=assignor,
        client_kills=rng.choice((0, 1, 3)),
        client_freezes=rng.choice((0, 1, 3)),
    )
