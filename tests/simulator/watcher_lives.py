"""The life of a group of scheme 1 with everything that can go wrong, from a seed.

What must hold although nothing is fenced: when all members are at rest, each partition is read by exactly one of them,
the one in its owner znode; and until then no record is skipped. What need not hold, and does not: that two members
never read one partition at once. That happens when a session has ended and its member does not know yet (Z6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.watchers.settings import WatcherSettings
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.simulator.checks import InvariantError
from tests.simulator.clock import VirtualClock
from tests.simulator.watchers import SimTopics, SimWatcher, write_topics
from tests.simulator.zookeeper import SimZooKeeper

ORDERLY = ("joins", "leaves", "grows")
FAULTS = ("crashes", "freezes", "expires", "is cut off", "is reset", "a server stands still")

_TOPIC = "t"
_MOST_MEMBERS = 6
_PATIENCE_MS = 300_000


class WatcherLife:
    """One group, one topic, several ZooKeeper servers."""

    def __init__(self, seed: int, happenings: Iterable[str]) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.clock = VirtualClock()
        self.reported: list[str] = []
        self.zookeeper = SimZooKeeper(
            self.clock,
            Random(self.rng.getrandbits(64)),
            servers=self.rng.choice((1, 3)),
            lag_ms=self.rng.choice((0, 0, 50, 400)),
        )
        self.topics = SimTopics(self.clock)
        self.watchers: list[SimWatcher] = []
        self._admin = self.zookeeper.connect("admin", server=0)
        self._strategy = self.rng.choice(("range", "roundrobin"))
        self._partitions = self.rng.randint(1, 9)
        self._happenings = sorted(happenings)
        self._later: list[Callable[[], None]] = []
        self.zookeeper.settle()
        self.grow(0)

    @property
    def story(self) -> str:
        """The events, a line each."""
        return "\n".join(self.reported)

    def tell(self, text: str) -> None:
        """Record an event."""
        self.reported.append(f"{self.clock.now:>7} {text}")

    def alive(self) -> list[SimWatcher]:
        """The running members."""
        return [watcher for watcher in self.watchers if not watcher.is_gone and not watcher.session.is_frozen]

    # --- events ------------------------------------------------------------------------------------------------

    def join(self) -> SimWatcher:
        """Add a member."""
        name = f"g_c{len(self.watchers):03}"
        by_topic = self.rng.random() < 0.7
        streams = WatcherSubscription.to_topics({_TOPIC: self.rng.choice((1, 2))})
        watcher = SimWatcher(
            self.zookeeper,
            self.topics,
            WatcherSettings("g", name, partition_assignment_strategy=self._strategy),
            streams if by_topic else WatcherSubscription.to_list("t.*"),
            Random(self.rng.getrandbits(64)),
            auto_commit_interval_ms=self.rng.choice((500, 5_000)),
        )
        self.watchers.append(watcher)
        self.tell(f"{name} joins")
        return watcher

    def grow(self, by: int = 1) -> None:
        """The topic gets more partitions."""
        self._partitions += by
        self.tell(f"the topic has {self._partitions} partitions")
        write_topics(self.zookeeper, self._admin, {_TOPIC: self._partitions})

    def happen(self) -> None:
        """One event happens, after some time."""
        self.clock.advance(self.rng.choice((10, 200, 1_000, 4_000)))
        for end in list(self._later):
            if self.rng.random() < 0.3:
                self._later.remove(end)
                end()
        what = self.rng.choice(self._happenings)
        if what == "grows":
            self.grow()
        elif what == "joins":
            if len(self.alive()) < _MOST_MEMBERS:
                self.join()
        elif self.alive():
            self._befall(self.rng.choice(self.alive()), what)

    def _befall(self, watcher: SimWatcher, what: str) -> None:
        self.tell(f"{watcher.name} {what}")
        session = watcher.session
        match what:
            case "leaves":
                watcher.leave()
            case "crashes":
                watcher.crash()
            case "freezes":
                watcher.freeze()
                self._later.append(watcher.thaw)
            case "expires":
                if session.session_id:
                    self.zookeeper.expire(session)
            case "is cut off":
                self.zookeeper.cut(session)
                self._later.append(lambda: self.zookeeper.heal(session))
            case "is reset":
                self.zookeeper.reset(session)
            case _:
                self._hold(self.rng.randrange(len(self.zookeeper.servers)))

    def _hold(self, index: int) -> None:
        if index:  # the first one serves the session that changes the topic
            self.zookeeper.hold(index)
            self._later.append(lambda: self.zookeeper.release(index))

    # --- invariants ----------------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """All faults end; soon after that the group must be at rest.

        Raises:
            InvariantError: it is not, or not as it should be.
        """
        for end in self._later:
            end()
        self._later.clear()
        if not self.alive():
            self.join()
        self.clock.advance(8_000)  # expired sessions end, and their watches fire
        for _ in range(2):
            if not self.clock.run_until(lambda: all(watcher.is_at_rest for watcher in self.watchers), _PATIENCE_MS):
                self._fail(f"the group is not at rest: {[(w.name, w.member.state.value) for w in self.alive()]}")
            self.clock.advance(500)
        self.check_owners()

    def check_owners(self) -> None:
        """Each partition is read by exactly one member, the one in ZooKeeper."""
        readers = Counter(partition for watcher in self.alive() for partition in watcher.reads)
        wanted = {TopicPartition(_TOPIC, number) for number in range(self._partitions)}
        if readers != Counter(wanted):
            self._fail(f"{wanted} are read by {readers}")
        paths = znodes.GroupPaths("g")
        for watcher in self.alive():
            for partition, thread in watcher.member.owned.items():
                node = self.zookeeper.tree.find(paths.owner(*partition))
                if node is None or node.data != thread.encode() or node.owner != watcher.session.session_id:
                    self._fail(f"{watcher.name} reads {partition}, and ZooKeeper does not say so")

    def check_nothing_is_passed_over(self) -> None:
        """Every record was handed out at least once, up to the last one that was handed out."""
        seen: dict[TopicPartition, set[int]] = {}
        for delivery in self.topics.deliveries:
            seen.setdefault(delivery.partition, set()).add(delivery.offset)
        for partition, offsets in seen.items():
            if len(offsets) != max(offsets) + 1:
                self._fail(f"of {partition} only {len(offsets)} of {max(offsets) + 1} records were handed out")

    def check_nothing_came_twice(self) -> None:
        """For a life without faults: no record was handed out twice, and no partition had two readers."""
        if self.topics.overlaps:
            self._fail(f"two members read one partition: {self.topics.overlaps[0]}")
        if twice := self.topics.twice():
            self._fail(f"a record came twice: {next(iter(twice.values()))}")

    def _fail(self, text: str) -> None:
        notices = [f"{w.name}: {tell.message}" for w in self.watchers for tell in w.notices[-3:]]
        raise InvariantError("\n".join([f"seed {self.seed}: {text}", *self.reported, *notices]))


def simulate_watchers(seed: int, happenings: Iterable[str] = ORDERLY + FAULTS, steps: int = 25) -> WatcherLife:
    """Simulate the life of a group that follows from the seed, and check what must hold.

    Raises:
        InvariantError: it did not.
    """
    life = WatcherLife(seed, happenings)
    life.join()
    for _ in range(steps):
        life.happen()
    life.come_to_rest()
    life.check_nothing_is_passed_over()
    if set(happenings) <= set(ORDERLY):
        life.check_nothing_came_twice()
    return life
