"""Random lives of groups on muster's own coordinator, in virtual time: the log that they leave, and the events.

Everything follows from a seed. The coordinator, its log and the members' cores are the real ones (`tests.simulator`);
sockets, disks and time are simulated, so that hours take a second, and timeouts are exact. Members join, leave, crash,
freeze, handle batches for too long, are started again, subscribe to something else; topics grow; the coordinator is
restarted, moves, freezes. No life is like a scripted scenario of the corpus: the rules were not written to fit these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from muster.broker.groups.event_topic import encoded
from muster.client.core.group.member_state import MemberState
from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.effects import GroupEvent
from muster.history.tables import RAW
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.records.record_batch import iter_headers, read_tuples
from tests.simulator import SimCluster
from tests.simulator.checks import Limits
from tests.simulator.member import Habits, SimMember
from tests.simulator.programs import Reader

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True)
class Ways:
    """The properties of a group. Times are in milliseconds; `trickle_ms` is the time between two records of a
    partition, 0 means that there are none. `commit` is a habit of `tests.simulator.member`, or `none`."""

    session_ms: int
    poll_ms: int
    heartbeat_ms: int
    commit: str
    commit_ms: int
    trickle_ms: int
    assignor: str
    static: bool
    members: int
    topics: dict[str, int]
    pattern: bool
    handle_ms: int
    nodes: int
    metadata_ms: int

    @classmethod
    def draw(cls, rng: Random) -> Ways:
        """Random properties."""
        session_ms = rng.choice((6_000, 10_000, 10_000, 30_000, 45_000, 45_000))
        poll_ms = rng.choice([poll for poll in (15_000, 30_000, 60_000, 120_000, 300_000) if poll >= session_ms])
        return cls(
            session_ms=session_ms,
            poll_ms=poll_ms,
            heartbeat_ms=min(3_000, session_ms // 3),
            commit=rng.choice(("auto", "auto", "auto", "auto", "sync", "async", "none")),
            commit_ms=rng.choice((1_000, 5_000, 5_000, 30_000)),
            trickle_ms=rng.choice((5_000, 10_000, 10_000, 10_000, 20_000, 20_000, 60_000, 0)),
            assignor=rng.choice(("range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-sticky")),
            static=rng.randrange(4) == 0,
            members=rng.randint(1, 6),
            topics={f"t{number}": rng.randint(1, 6) for number in range(rng.randint(1, 3))},
            pattern=rng.randrange(6) == 0,
            handle_ms=rng.choice((5, 100, 1_000)),
            nodes=rng.randint(1, 2),
            metadata_ms=rng.choice((5_000, 30_000)),
        )


@dataclass(frozen=True)
class Act:
    """A cause or a pattern that was played on purpose, with these members, in this time."""

    played: str
    names: frozenset[str]
    begin_ms: int
    end_ms: int


@dataclass
class Lived:
    """The results of a life."""

    seed: int
    ways: Ways
    raw: pa.Table
    events: list[dict[str, Any]]
    acts: list[Act] = field(default_factory=list)
    end_ms: int = 0


class _Worker(Reader):
    """A consumer whose application may store its offsets elsewhere; then it commits nothing."""

    def stand(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {} if self.member.habits.commit == "none" else super().stand()

    def give_up(self, partitions: tuple[TopicPartition, ...], *, in_good_order: bool) -> None:
        super().give_up(partitions, in_good_order=in_good_order and self.member.habits.commit != "none")


class _Life:
    def __init__(self, seed: int, acts: int) -> None:
        self.seed, self.acts = seed, acts
        self.rng = Random(f"history {seed}")
        self.ways = ways = Ways.draw(self.rng)
        config = GroupConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=3_000)
        self.cluster = SimCluster(
            seed,
            topics=dict(ways.topics),
            nodes=ways.nodes,
            group_config=config,
            limits=Limits(session_timeout_ms=ways.session_ms, rebalance_timeout_ms=ways.poll_ms),
        )
        self.events: list[dict[str, Any]] = []
        self.played: list[Act] = []
        self.made = 0
        self.gone: list[str] = []
        """Names of members that have ended, and may return."""
        self.cluster.brokers.coordinators.on_event = self._note

    def _note(self, event: GroupEvent) -> None:
        self.events.append(json.loads(encoded(self.cluster.clock.now, event)))

    # --- members

    @property
    def members(self) -> list[SimMember]:
        """The members that run normally."""
        return [each for each in self.cluster.alive if not each.is_closing and not each.is_frozen]

    def fresh(self) -> str:
        """A name that no member has had before."""
        self.made += 1
        return f"m{self.made}"

    def start(self, name: str) -> SimMember:
        """Start a process with this name, or with a new one if a process with this name has not ended yet."""
        ways = self.ways
        if any(each.name == name for each in self.cluster.alive):
            name = self.fresh()
        settings = {
            "group_id": self.cluster.groups[0],
            "auto_offset_reset": "earliest",
            "session_timeout_ms": ways.session_ms,
            "heartbeat_interval_ms": ways.heartbeat_ms,
            "max_poll_interval_ms": ways.poll_ms,
            "auto_commit_interval_ms": ways.commit_ms,
            "metadata_max_age_ms": ways.metadata_ms,
            "fetch_max_wait_ms": 5_000,
            "partition_assignment_strategy": (ways.assignor,),
        }
        if ways.static:
            settings["group_instance_id"] = name
        if name in self.gone:
            self.gone.remove(name)
        member = SimMember(
            self.cluster,
            name,
            settings,
            fetch=True,
            habits=Habits(commit=ways.commit, handle_ms=ways.handle_ms, poll_ms=5_000),
            pattern="t.*" if ways.pattern else None,
            topics=sorted(self.cluster.brokers.topics.counts),
            rng=Random(self.rng.getrandbits(64)),
            program=lambda member: _Worker(member).run(),
        )
        self.cluster.members.append(member)
        return member

    def end(self, member: SimMember, how: str) -> None:
        """A member leaves cleanly, or crashes."""
        self.gone.append(member.name)
        member.close() if how == "leaves" else member.crash()

    # --- time

    def wait(self, first_ms: int, last_ms: int) -> None:
        """Let some time pass."""
        self.cluster.run(self.rng.randint(first_ms, last_ms))

    def settle(self) -> None:
        """Wait for a while until all members are stable."""
        limit = self.ways.poll_ms + self.ways.session_ms + 20_000
        self.cluster.clock.run_until(lambda: all(m.is_settled for m in self.members), limit)

    def trickle(self) -> None:
        """Write a record to each partition now and then."""
        if self.ways.trickle_ms:
            for partition in sorted(self.cluster.partitions()):
                if self.rng.randrange(4):
                    self.cluster.produce(*partition)
            self.cluster.clock.call_later(self.ways.trickle_ms, self.trickle)

    # --- what happens

    def run(self) -> Lived:
        """Play the whole life."""
        for _ in range(self.ways.members):
            self.start(self.fresh())
            if self.rng.randrange(3) == 0:
                self.wait(0, 8_000)
        self.trickle()
        self.wait(20_000, 120_000)
        for _ in range(self.acts):
            if not self.members:
                self.start(self.gone[-1] if self.gone else self.fresh())
            else:
                self.act()()
            self.pause()
        self.settle()
        self.cluster.run(5_000)
        return Lived(self.seed, self.ways, self._raw(), self.events, self.played, self.cluster.clock.now)

    def pause(self) -> None:
        """The time between two acts: a little, some, or more than a pattern lasts."""
        kind = self.rng.randrange(10)
        if kind == 0:
            self.wait(200, 5_000)
        elif kind < 9:
            self.settle()
            self.wait(5_000, self.ways.session_ms + 60_000)
        else:
            self.settle()
            self.wait(11 * MINUTE_MS, 12 * MINUTE_MS)

    def act(self) -> Callable[[], None]:
        """What happens next."""
        many = len(self.members) >= self.ways.members
        common: list[Callable[[], None]] = [self.leaves, self.crashes, self.is_too_slow, self.freezes, self.restarts]
        common += [self.leaves, self.crashes, self.is_slow, self.is_too_slow] if many else [self.joins] * 4
        rare = [self.subscribes, self.grows, self.rejoins, self.rolls, self.flaps, self.moves, self.ends, self.freezes]
        return self.rng.choice(common if self.rng.randrange(3) else rare)

    def one(self) -> SimMember:
        """Any member."""
        return self.rng.choice(self.members)

    def joins(self) -> None:
        back = self.gone and self.rng.randrange(2)
        self.start(self.rng.choice(self.gone) if back else self.fresh())

    def leaves(self) -> None:
        self.end(self.one(), "leaves")

    def crashes(self) -> None:
        count = 2 if len(self.members) > 2 and self.rng.randrange(5) == 0 else 1
        for member in self.rng.sample(self.members, count):
            self.end(member, "crashes")

    def restarts(self) -> None:
        """A process ends, in either way, and is soon started again."""
        member = self.one()
        self.end(member, self.rng.choice(("leaves", "crashes")))
        self.wait(500, self.ways.session_ms // 2)
        if not member.is_alive:
            self.start(member.name)

    def is_too_slow(self) -> None:
        member, began_ms = self.one(), self.cluster.clock.now
        member.stay_away(self.ways.poll_ms + self.rng.randint(2_000, 60_000))
        self.cluster.run(self.ways.poll_ms)
        # Its next batch may arrive late, and with an instance id it is removed only after another session timeout.
        until_ms = self.cluster.clock.now + self.ways.session_ms + self.ways.trickle_ms + 10_000
        self.played.append(Act("poll_interval_exceeded", frozenset({member.name}), began_ms, until_ms))

    def is_slow(self) -> None:
        """Handling takes a long time, but less than the poll interval."""
        self.one().stay_away(int(self.ways.poll_ms * self.rng.uniform(0.3, 0.9)))

    def freezes(self) -> None:
        """A process is frozen, mostly for longer than its session."""
        member = self.one()
        member.freeze()
        self.cluster.run(int(self.ways.session_ms * self.rng.uniform(0.4, 3.0)))
        member.thaw()

    def subscribes(self) -> None:
        member, topics = self.one(), sorted(self.cluster.brokers.topics.counts)
        if member.pattern is None and len(topics) > 1:
            member.subscribe(self.rng.sample(topics, self.rng.randint(1, len(topics) - 1)))
            member.wakeup()
            self.wait(20_000, 90_000)
            if member.is_alive and self.rng.randrange(2):
                member.subscribe(topics)
                member.wakeup()

    def grows(self) -> None:
        """A topic gets more partitions, or a topic is created that a pattern matches."""
        topics = self.cluster.brokers.topics.counts
        name = f"t{len(topics)}" if self.ways.pattern and self.rng.randrange(2) else self.rng.choice(sorted(topics))
        self.cluster.brokers.grow(name, topics.get(name, 0) + self.rng.randint(1, 4))
        self.wait(self.ways.metadata_ms, self.ways.metadata_ms + 5_000)

    def rejoins(self) -> None:
        """The application makes members join again; only the leader's request causes a rebalance."""
        stable = [member for member in self.members if member.state is MemberState.STABLE]
        for member in stable:
            member.core.enforce_rebalance(self.rng.choice(("the application asks for it", "")))
            member.wakeup()

    def moves(self) -> None:
        brokers = self.cluster.brokers
        if brokers.coordinators.current is None:
            return
        kind = self.rng.choice(("restarts", "moves", "stands still"))
        node = brokers.coordinator
        if kind == "moves" and self.ways.nodes > 1:
            brokers.move_coordinator(3 - node)
        elif kind == "stands still":
            brokers.freeze(node)
            self.wait(1_000, 2 * self.ways.session_ms)
            brokers.thaw(node)
        else:
            brokers.kill(node)
            self.wait(1_000, self.ways.session_ms * 3 // 2)
            brokers.start(node)

    def ends(self) -> None:
        """All leave, and later return."""
        for member in list(self.members):
            self.end(member, "leaves")
        self.wait(10_000, 2 * self.ways.session_ms + 10_000)
        for _ in range(self.ways.members):
            self.start(self.fresh())

    def rolls(self) -> None:
        """All are replaced one after another, under the same names or under new ones."""
        keep = self.ways.static or self.rng.randrange(3)
        how = "leaves" if self.rng.randrange(4) else "crashes"
        members = list(self.members)
        if len(members) < 2 or (self.ways.static and not self.rng.randrange(2)):
            return
        with self._playing("rolling_restart") as names:
            for member in members:
                if not member.is_alive:
                    continue
                self.end(member, how)
                self.wait(500, 5_000)
                self.cluster.clock.run_until(lambda: not member.is_alive, 30_000)  # noqa: B023
                names |= {member.name, self.start(member.name if keep else self.fresh()).name}
                self.settle()
                self.wait(1_000, 8_000)

    def flaps(self) -> None:
        """One member leaves or crashes, and returns, repeatedly."""
        name = self.one().name
        how = self.rng.choice(("leaves", "crashes"))
        with self._playing("flapping") as names:
            names.add(name)
            for _ in range(self.rng.randint(3, 5)):
                member = next((each for each in self.members if each.name == name), None)
                if member is None:
                    return
                self.end(member, how)
                gone_ms = self.ways.session_ms + 4_000 if how == "crashes" or self.ways.static else 3_000
                self.wait(gone_ms, gone_ms + 10_000)
                if not member.is_alive:
                    self.start(name)
                self.settle()
                self.wait(2_000, 10_000)

    def _playing(self, pattern: str) -> _Playing:
        return _Playing(self, pattern)

    # --- what is left

    def _raw(self) -> pa.Table:
        columns = [list(column) for column in zip(*self._rows(), strict=True)] or [[] for _ in RAW]
        return pa.table(columns, schema=RAW)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        log = self.cluster.brokers.coordinators.logs[0]
        data = log.read(0, 1 << 40).data
        for position, header in iter_headers(data):
            for offset, timestamp, key, value, _ in read_tuples(data, position, header):
                yield 0, offset, timestamp, header.partition_leader_epoch, key, value, header.is_transactional


class _Playing:
    """Notes how long a pattern was played, and with which members."""

    def __init__(self, life: _Life, pattern: str) -> None:
        self._life, self._pattern = life, pattern
        self._names: set[str] = set()
        self._begin_ms = life.cluster.clock.now

    def __enter__(self) -> set[str]:
        return self._names

    def __exit__(self, *_: object) -> None:
        now = self._life.cluster.clock.now + self._life.ways.session_ms + 10_000
        self._life.played.append(Act(self._pattern, frozenset(self._names), self._begin_ms, now))


def live(seed: int, acts: int = 16) -> Lived:
    """The life of a seed."""
    return _Life(seed, acts).run()
