"""muster's own brokers on ZooKeeper, and ZooKeeper, killed, stopped and frozen under the load of `cluster_chaos`.

The judge is the same as for Apache Kafka's, though a partition is on one broker here: what that broker has acknowledged
is on its disk, so its writers and readers wait until it is back, and then nothing may be missing, duplicated or
reordered. Groups are in ZooKeeper and do not wait for a broker, unless a run's `World` has them in its logs. A broker's
answer may be lost after it has written: then its producers repeat the request, possibly after the broker's restart.
Besides that load, topics are created, extended and deleted: every acknowledged change has its effect at the end, for
every broker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from muster import Admin, NewTopic
from muster.errors import ErrorCode, KafkaError
from muster.local.zookeeper import ZooKeeperServer
from muster.protocol import messages as m
from tests.support.brokers import BrokerProcess
from tests.support.cluster_chaos import AWAY, Facts, Schedule, Worker
from tests.support.muster_cluster import Cluster, eventually

SERVERS = ("1", "2", "3", "zookeeper", "coordinator", "controller")
"""Three brokers by their numbers; ZooKeeper; the broker that currently coordinates the group of blocking consumers, and
the current controller."""

TOGETHER = (("1", "2", "3"), ("coordinator", "zookeeper"), ("zookeeper", "1"), ("2", "3"), ("zookeeper", "coordinator"))
"""Servers that may be down at the same time: they stop in this order. ZooKeeper restarts first: no broker can start
without it."""

APART_S = 0.2
"""Between them. Meanwhile a coordinator gets requests, and must not acknowledge anything that ZooKeeper has not
taken."""

MUTE_S = 0.3
"""How long brokers accept requests whose answers are lost: by then a producer has as many in flight as it may."""

LONG_S = 60


@dataclass(frozen=True, slots=True)
class Away:
    """Some servers are down for `for_s`; the next ones go down `then_s` after they have come back.

    If they are `mute`, the last answers of the brokers among them are lost, with all their connections.
    Nothing else happens to those that are `cut`.
    """

    do: str
    servers: tuple[str, ...]
    for_s: float
    then_s: float
    mute: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """What is shaken: the number of ZooKeepers, whose leader is the target, where groups are stored, and what
    acknowledged means."""

    zookeepers: int = 1
    store: str = "zookeeper"
    fsync: str = "interval"


def world(seed: int) -> World:
    """The world of a seed; half of them are like `World()`."""
    random = Random(f"world {seed}")
    if random.random() < 0.5:
        return World()
    return World(random.choice((1, 3)), random.choice(("zookeeper", "log")), random.choice(("interval", "always")))


def draw(seed: int) -> Schedule[Away]:
    """The schedule of a seed, at least a minute long: each of `SERVERS` is down alone at least once, some together."""
    random = Random(seed)
    first = [*((server,) for server in SERVERS), random.choice(TOGETHER)]
    random.shuffle(first)
    steps: list[Away] = []
    while len(steps) < len(first) or sum(step.for_s + step.then_s for step in steps) < LONG_S:
        servers = first[len(steps)] if len(steps) < len(first) else random.choice((*first, *TOGETHER))
        # Sessions with ZooKeeper last two seconds: about half of the steps are shorter.
        for_s = random.choice((random.uniform(0.1, 2), random.uniform(2, 9)))
        do = random.choice(AWAY if "zookeeper" in servers else (*AWAY, "cut"))
        mute = do == "cut" or random.random() < 0.5
        steps.append(Away(do, servers, round(for_s, 1), random.choice((0, 0.5, 2)), mute))
    return Schedule(
        seed,
        random.choice((1, 3, 6)),
        random.choice((2_000, 5_000, 30_000)),
        random.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
        False,
        tuple(steps),
    )


class Shaken:
    """Three brokers and their ZooKeepers; `group` is the one whose coordinator is the target."""

    def __init__(self, cluster: Cluster, zookeepers: Sequence[ZooKeeperServer], group: str) -> None:
        self._cluster = cluster
        self._zookeepers = zookeepers
        self._group = group

    def shake(self, step: Away) -> None:
        """Carry out one step."""
        numbers = [self._number(server) for server in step.servers]
        zookeeper = self._leader() if 0 in numbers else self._zookeepers[0]
        gates = [self._cluster.gates[number] for number in numbers if number and step.mute]
        for gate in gates:
            gate.hold()
        time.sleep(MUTE_S if gates else 0)
        for number in numbers:
            self._take(step.do, self._cluster.brokers.get(number, zookeeper))
            time.sleep(APART_S)
        for gate in gates:
            gate.cut()
        time.sleep(step.for_s)
        for number in sorted(numbers):
            self._bring(step.do, self._cluster.brokers.get(number, zookeeper))
        time.sleep(step.then_s)

    def _leader(self) -> ZooKeeperServer:
        if len(self._zookeepers) == 1:
            return self._zookeepers[0]
        found: ZooKeeperServer = eventually(lambda: next((z for z in self._zookeepers if z.mode == "leader"), None))
        return found

    def _number(self, server: str) -> int:
        """The broker that a name refers to; 0 is ZooKeeper."""
        match server:
            case "zookeeper":
                return 0
            case "coordinator":
                return int(eventually(self._coordinator))
            case "controller":
                return int(eventually(self._controller))
        return int(server)

    def _coordinator(self) -> int:
        """As some broker reports it; 0 while none does."""
        find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
        for asked in self._cluster.brokers:
            with contextlib.suppress(OSError, EOFError):
                [found] = self._cluster.ask(asked, find, 4).coordinators
                if not found.error_code:
                    return int(found.node_id)
        return 0

    def _controller(self) -> int:
        for asked in self._cluster.brokers:
            with contextlib.suppress(OSError, EOFError):
                return max(0, self._cluster.controller(asked))
        return 0

    def _take(self, do: str, server: BrokerProcess | ZooKeeperServer) -> None:
        match do:
            case "freeze":
                self._send(server, signal.SIGSTOP)
            case "kill":
                server.kill()
            case "term":
                server.stop()

    def _bring(self, do: str, server: BrokerProcess | ZooKeeperServer) -> None:
        if do == "freeze":
            self._send(server, signal.SIGCONT)
        elif do != "cut":
            server.start()

    def _send(self, server: BrokerProcess | ZooKeeperServer, what: signal.Signals) -> None:
        pid = server.pid
        assert pid, f"{server} has ended unexpectedly"
        os.kill(pid, what)


# --- topics ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Known:
    """What is known about a topic: whether it exists, None if a request failed; how many partitions it may have."""

    exists: bool | None
    partitions: set[int]


@dataclass(frozen=True, slots=True)
class Reported:
    """What exists at the end: according to each broker, how many partitions of each topic have a leader; the topics
    that have folders."""

    led: Mapping[int, Mapping[str, int]]
    folders: frozenset[str] = field(default=frozenset())


def judge_topics(known: Mapping[str, Known], reported: Reported) -> Iterator[str]:
    """What is wrong; nothing if everything is fine."""
    for name, topic in known.items():
        for number, led in reported.led.items():
            if topic.exists and led.get(name) not in topic.partitions:
                yield f"broker {number} has {led.get(name)} partitions of {name}, of {sorted(topic.partitions)}"
            if topic.exists is False and name in led:
                yield f"broker {number} has {name}, which was deleted"
        if topic.exists is False and name in reported.folders:
            yield f"there are records of {name}, which was deleted"


class Topics(Worker):
    """Creates topics, adds partitions to them and deletes them, and records what was acknowledged."""

    def __init__(self, facts: Facts, cluster: Cluster, seed: int) -> None:
        self.known: dict[str, Known] = {}
        self.failed: list[str] = []
        self._cluster = cluster
        self._random = Random(seed)
        super().__init__(facts, "topics")

    def work(self) -> None:
        with Admin(bootstrap_servers=self._cluster.bootstrap, request_timeout_ms=5_000) as admin:
            while not self.stopped.wait(0.2):
                there = [name for name, topic in self.known.items() if topic.exists]
                do = self._random.choice((self._create, self._grow, self._delete)) if len(there) > 3 else self._create
                name = self._random.choice(there) if there and do != self._create else f"topic{len(self.known)}"
                try:
                    do(admin, name)
                except KafkaError as error:
                    self.failed.append(f"{do.__name__} {name}: {error!r}")

    def _create(self, admin: Admin, name: str) -> None:
        count = self._random.randint(1, 3)
        topic = self.known[name] = Known(None, {count})
        admin.create_topics([NewTopic(name, count)])
        topic.exists = True

    def _grow(self, admin: Admin, name: str) -> None:
        topic = self.known[name]
        count = max(topic.partitions) + 1
        topic.partitions = topic.partitions | {count}
        admin.create_partitions({name: count})
        topic.partitions = {count}

    def _delete(self, admin: Admin, name: str) -> None:
        topic = self.known[name]
        topic.exists = None
        admin.delete_topics([name])
        topic.exists = False

    def wrong(self) -> list[str]:
        """What is wrong at the end, once every broker has learned of everything; nothing if everything is fine."""
        deadline = time.monotonic() + 30
        while (found := list(judge_topics(self.known, self._reported()))) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _reported(self) -> Reported:
        request = m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in self.known], False)
        led = {
            number: {
                str(topic.name): sum(not part.error_code for part in topic.partitions)
                for topic in self._cluster.ask(number, request, 9).topics
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
            for number in self._cluster.brokers
        }
        folders = {path.name.partition("-")[0] for path in self._cluster.folder.glob("broker*/topic*-*")}
        return Reported(led, frozenset(folders))
