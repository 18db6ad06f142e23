"""A ZooKeeper in memory with one topic, and consumers of scheme 1: for tests of its rules."""

from __future__ import annotations

from random import Random
from typing import Any

from muster.model import TopicPartition
from muster.zookeeper.base.operations import Ask, Operation, Plan, Watched, ZnodeChange, next_ask
from muster.zookeeper.watchers.asks import GiveUp, Level, NotifyUser, StartFetching, StopFetching, TimeOfDay
from muster.zookeeper.watchers.scheme import WatcherMember
from muster.zookeeper.watchers.settings import WatcherSettings
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.simulator import VirtualClock
from tests.simulator.watchers import SimTopics, SimWatcher, write_topics
from tests.simulator.zookeeper import SimSession, SimZooKeeper

NEVER = 10**9
"""An interval between records so long that none arrives."""


class World:
    """A ZooKeeper with one topic, and consumers."""

    def __init__(self, partitions: int = 4, *, brokers: int = 1, interval_ms: int = NEVER) -> None:
        self.clock = VirtualClock(start_ms=1_000)
        self.zookeeper = SimZooKeeper(self.clock, Random(1))
        self.admin = self.zookeeper.connect("admin")
        self.zookeeper.settle()
        self.topics = SimTopics(self.clock, interval_ms)
        self.write({"t": partitions}, brokers)

    def write(self, topics: dict[str, int], brokers: int = 1) -> None:
        write_topics(self.zookeeper, self.admin, topics, brokers)

    def do(self, what: Ask[Any]) -> Any:
        return self.zookeeper.do(self.admin, what)

    def join(self, name: str = "a", subscription: WatcherSubscription | None = None, **settings: Any) -> SimWatcher:
        return SimWatcher(
            self.zookeeper,
            self.topics,
            WatcherSettings("g", f"g_{name}", **settings),
            subscription or WatcherSubscription.to_topics({"t": 1}),
            Random(1),
        )

    def rest(self, *watchers: SimWatcher, within_ms: int = 60_000, after_ms: int = 0) -> None:
        """Wait until these are at rest; `after_ms` pass first."""
        if after_ms:
            self.clock.advance(after_ms)
        assert self.clock.run_until(lambda: all(w.is_at_rest for w in watchers), within_ms), [
            (w.name, w.member.state, [tell.message for tell in w.notices]) for w in watchers
        ]

    def at_rest(self, name: str = "a", subscription: WatcherSubscription | None = None, **settings: Any) -> SimWatcher:
        watcher = self.join(name, subscription, **settings)
        self.rest(watcher)
        return watcher

    def data(self, path: str) -> bytes | None:
        return self.zookeeper.tree.get(path).data

    def owners(self, topic: str = "t") -> dict[int, str]:
        paths = self.zookeeper.tree.paths()
        start = f"/consumers/g/owners/{topic}/"
        return {int(p.removeprefix(start)): (self.data(p) or b"").decode() for p in paths if p.startswith(start)}


def reported(watcher: SimWatcher, level: Level = Level.WARNING) -> list[str]:
    return [tell.message for tell in watcher.notices if tell.level is level]


class Hand:
    """Carries plans out one ask at a time, and records the asks."""

    def __init__(self, world: World, positions: dict[TopicPartition, int] | None = None) -> None:
        self.world = world
        self.session: SimSession = world.zookeeper.connect("hand")
        world.zookeeper.settle()
        self.asked: list[Ask[Any]] = []
        self.positions = positions or {}
        self.before: dict[type[Ask[Any]], Any] = {}

    def carry_out(self, plan: Plan[Any]) -> Any:
        answer: Any = None
        try:
            while True:
                what = next_ask(plan, answer)
                self.asked.append(what)
                answer = self.answer(what)
        except StopIteration as done:
            return done.value

    def answer(self, what: Ask[Any]) -> Any:
        for kind, happen in list(self.before.items()):
            if isinstance(what, kind) and happen(what):
                del self.before[kind]
        if isinstance(what, StopFetching):
            return dict(self.positions)
        if isinstance(what, StartFetching):
            self.positions = {p: reading.offset or 0 for p, reading in what.partitions.items()}
            return None
        if isinstance(what, TimeOfDay):
            return 1
        if isinstance(what, NotifyUser | GiveUp):
            return None
        try:
            return self.world.zookeeper.do(self.session, what)
        except Exception as error:
            return error

    def steps(self) -> list[str]:
        """The asks in short form."""
        found = []
        for what in self.asked:
            words = [type(what).__name__]
            if isinstance(what, Operation):
                words.append(what.path)
            if getattr(what, "watch", False):
                words.append("watch")
            found.append(" ".join(words))
        return found


def changed(path: str) -> Watched:
    return Watched(ZnodeChange.CHILDREN if path.endswith("ids") else ZnodeChange.DATA, path)


def registered(world: World, hand: Hand, **settings: Any) -> WatcherMember:
    """A member that is at rest with one partition, at offset 7."""
    member = WatcherMember(WatcherSettings("g", "g_a", **settings), WatcherSubscription.to_topics({"t": 1}))
    hand.carry_out(member.attend())
    hand.asked.clear()
    hand.positions = {TopicPartition("t", 0): 7}
    return member


def alone(**settings: Any) -> tuple[World, Hand, WatcherMember]:
    """A world with one partition, and its `registered` member."""
    world = World(partitions=1)
    hand = Hand(world)
    return world, hand, registered(world, hand, **settings)
