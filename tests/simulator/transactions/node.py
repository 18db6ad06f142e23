"""One broker's process in virtual time: started on its folder, standalone or in a cluster, killed, frozen, cut from
power, and used through connections."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Protocol
from unittest import mock

from muster import clock as process_clock
from muster.broker import clock, handlers
from muster.broker.broker import Broker
from muster.broker.clock import SteadyClock
from muster.broker.cluster import slot_coordination, zookeeper_cluster
from muster.broker.cluster.frozen_process import FreezeDetector
from muster.broker.groups import service
from muster.broker.links import links
from muster.broker.net.calls import Api, Call, CloseConnectionError, at_once
from muster.broker.topics import deletion_reserve
from muster.errors import MusterError
from muster.log import PartitionLog
from muster.zookeeper.cluster.slots import SlotKeeper
from tests.simulator.checks import InvariantError
from tests.simulator.transactions.disk import Killed, LifeDisk
from tests.simulator.transactions.loop import VirtualLoop
from tests.simulator.transactions.peers import Peer, Session
from tests.simulator.zookeeper import SimZooKeeper
from tests.support.brokers import broker_config

SETTINGS: Mapping[str, object] = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.segment.bytes": 3_000,
    "transaction.state.log.segment.bytes": 3_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "transaction.max.timeout.ms": 6_000,
    "group.min.session.timeout.ms": 100,
    "log.retention.ms": -1,
}
SEGMENT_BYTES = 2_000
"""For the topics of records."""
BEGINNING_MS = 1_700_000_000_000
SESSION_MS = 1_500
"""For a broker with ZooKeeper."""
SLOTS = 4
"""For groups in ZooKeeper."""

Answered = Callable[[Any], None]
CLOSED = "closed"


class World(Protocol):
    """The functions of the world that a process uses."""

    now: int
    rng: Random
    running: Node | None
    zookeeper: SimZooKeeper | None

    def tell(self, line: str) -> None:
        """Record an event."""

    def later(self, after_ms: int, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call back in the world's time."""

    def dial(self, node: Node, protocol: Any, address: tuple[str, int]) -> Peer:
        """Connect a broker to another; raises OSError."""


class SimCall(Call):
    """A request in progress that detects a second answer."""

    answers = 0

    def reply(self, response: Any) -> None:
        self.answers += 1
        if self.answers > 1:
            raise InvariantError(f"a second answer to a {self.api.request.__name__}")
        super().reply(response)


class Connection:
    """One client's connection. Its requests are handled in order; those that block make later ones wait."""

    client_host, peer, intake = "/127.0.0.1", "sim", None

    def __init__(self, node: Node, client_id: str) -> None:
        self.client_id = client_id
        self.is_open = True
        self.node = node
        self._waiting: deque[tuple[Any, int, Answered]] = deque()
        self._calls: dict[Call, Answered] = {}
        self._blocking: Call | None = None

    def receive(self, request: Any, version: int, answered: Answered) -> None:
        """A request has arrived. `answered` is called with its answer, or with CLOSED."""
        if not self.is_open:
            answered(CLOSED)
            return
        self._waiting.append((request, version, answered))
        self.node.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        while self._waiting and self._blocking is None and self.is_open:
            self._handle(*self._waiting.popleft())
        self.node.turn_done()

    def _handle(self, request: Any, version: int, answered: Answered) -> None:
        api = self.node.apis[request.API_KEY]
        assert api.first <= version <= api.last, (type(request), version)
        call = SimCall(self, api, version, 0, self.client_id)  # type: ignore[arg-type]
        self._calls[call] = answered
        try:
            found = api.handle(request, call)
        except CloseConnectionError as error:
            self.close(str(error))
            return
        found = call.answer if found is None else found
        if found is not None:
            self.answered(call, found)
            return
        call.parked = True
        if call.blocks:
            self._blocking = call

    def answered(self, call: Call, response: Any) -> None:
        """See `Asker.answered`."""
        call.over = True
        answered = self._calls.pop(call, None)
        if self._blocking is call:
            self._blocking = None
            self.node.loop.call_soon(self._go_on)
        if answered is not None:
            answered(at_once(response) if hasattr(response, "send") else response)

    def close(self, why: str = "") -> None:
        """The connection has ended."""
        self.is_open = False
        calls, self._calls = self._calls, {}
        waiting, self._waiting = self._waiting, deque()
        for call, answered in calls.items():
            call.over = True
            if call.on_cancel is not None:
                call.on_cancel()
            answered(CLOSED)
        for *_, answered in waiting:
            answered(CLOSED)

    @property
    def unanswered(self) -> list[str]:
        """The requests that have not been answered yet."""
        return [call.api.request.__name__ for call in self._calls] + [type(one[0]).__name__ for one in self._waiting]


class Node:
    """A broker's process on a folder. The world's clock advances steadily; `wall_ms` is how far the time of day is
    off."""

    def __init__(self, world: World, node_id: int, root: Path, port: int, settings: Mapping[str, object]) -> None:
        self.node_id = node_id
        self.root = root
        self.address = (f"b{node_id}", port)
        self.rng = world.rng
        self.wall_ms = 0
        self.work_ms = 0
        """How long a sync takes at most."""
        self.broker: Broker | None = None
        self.is_ready = False
        """Whether it serves."""
        self.disk: LifeDisk
        self.loop: VirtualLoop
        self.apis: dict[int, Api]
        self.turn_done: Callable[[], None]
        self.is_frozen = False
        self.on_start: Callable[[Node], None] = lambda _node: None
        self.problems: list[BaseException | str] = []
        """Exceptions that no code handled."""
        self.peers: list[Peer] = []
        """Its connections to other brokers."""
        self._world = world
        self._settings = settings
        self._connections: list[Connection] = []
        self.session: Session | None = None

    def __repr__(self) -> str:
        return f"the broker at {self.address[0]}:{self.address[1]}"

    def _now(self) -> int:
        return self._world.now

    # ---------------------------------------------------------------------------------------------------- start and end

    def start(self) -> None:
        """Start the process; it may be killed at once."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.loop = VirtualLoop(self._now, lambda: self.rng.randint(0, self.work_ms) if self.work_ms else 0)
        self.loop.set_exception_handler(lambda _loop, found: self.problems.append(found.get("exception") or str(found)))
        self.loop.dial = lambda make, host, port: self._dial(make(), (host, port))
        self.disk = LifeDisk(self.root, self.rng)
        host, port = self.address
        mine = {"node.id": self.node_id, "advertised.listeners": f"PLAINTEXT://{host}:{port}"}
        config = broker_config(self.root, {**SETTINGS, **self._settings, **mine})
        zookeeper = None
        if self._world.zookeeper is not None:
            sim = self._world.zookeeper.connect(f"{host}:{port}", timeout_ms=SESSION_MS)
            self.session = Session(self, sim)
            zookeeper = zookeeper_cluster.ZooKeeperCluster(config, self.session)
        self.broker = Broker(config, self.disk, zookeeper=zookeeper)
        self.broker.loop = self.loop
        self.broker._clock = SteadyClock(lambda: self._now() * 1_000_000)
        self.is_frozen = self.is_ready = False
        self.inside(self._start)

    def _start(self) -> None:
        broker = self.broker
        assert broker is not None
        if broker._zookeeper is None:
            broker._open_folder()
            broker._start_groups()
            self._serve(broker)
        else:
            self.loop.create_task(self._join(broker, broker._zookeeper))

    async def _join(self, broker: Broker, zookeeper: zookeeper_cluster.ZooKeeperCluster) -> None:
        """Like `Broker._join`, without a port."""
        try:
            broker._open_folder(await zookeeper.connect())
            broker._start_groups()
            await broker._follow(zookeeper)
        except MusterError as error:
            self._world.tell(f"{self} cannot start: {error}")
            self.loop.call_soon(self._stop)
            return
        self._serve(broker)

    def _stop(self) -> None:
        raise Killed

    def _serve(self, broker: Broker) -> None:
        broker.durability.start(10**9, lambda: 10**9)
        self.apis, self.turn_done = handlers.table(broker.parts()), broker._turn_done
        broker._clock.begin()
        self._tick(broker)
        self.is_ready = True
        self.on_start(self)

    def _tick(self, broker: Broker) -> None:
        """See `GroupServer._tick`: a process that does not read the clock seems to have been stopped."""
        broker._clock()
        if broker._zookeeper is not None and broker._zookeeper.lost.is_set():
            self._world.tell(f"{self} ends: another process has its id")
            raise Killed
        self.loop.call_later(clock.TICK_S, self._tick, broker)

    def kill(self) -> None:
        """kill -9."""
        broker, self.broker, self.is_ready = self.broker, None, False
        if broker is not None:
            self._end(broker)

    def _end(self, broker: Broker) -> None:
        if self.session is not None:
            self.session.sim.freeze()  # ZooKeeper expires it after its timeout
        store = getattr(broker, "_store", None)
        self.disk.is_dead = True
        self.loop.drop()
        if store is not None:
            for log in store.logs.values():
                log.abandon()
            store._lock.release()
        self.disk.end()
        for peer in self.peers[:]:
            peer.abort()
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.close("killed")

    def cut_power(self) -> None:
        """The process dies, and loses what it had not synced."""
        self.kill()
        self.disk.cut_power()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True
        if self.session is not None:
            self.session.sim.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        if self.is_frozen:
            self.is_frozen = False
            if self.session is not None and self.broker is not None:
                self.session.sim.thaw()

    # ---------------------------------------------------------------------------------------------------------- running

    def next_due(self) -> int | None:
        """The time at which the process has something to do."""
        return None if self.broker is None or self.is_frozen else self.loop.next_due()

    def turn(self) -> None:
        """One turn of its loop, during which it may die."""
        self.inside(self.loop._run_once)  # type: ignore[attr-defined]

    def inside(self, work: Callable[[], Any]) -> Any:
        """Do some work as if in a turn of its loop; it may die. Returns None then, and if it has died before."""
        if self.broker is None:
            return None
        assert not self.is_frozen
        self._world.running = self
        try:
            return self.loop.inside(work)
        except Killed:
            self.kill()
            return None

    def connect(self, client_id: str) -> Connection | None:
        """A new connection; None if the broker does not listen."""
        if not self.is_ready:
            return None
        connection = Connection(self, client_id)
        self._connections.append(connection)
        return connection

    def close(self, connection: Connection) -> None:
        """A client's end of a connection is closed."""
        if connection in self._connections:
            self._connections.remove(connection)
            connection.close()

    def _dial(self, protocol: Any, address: tuple[str, int]) -> tuple[Peer, Any]:
        return self._world.dial(self, protocol, address), protocol

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._connections)

    @property
    def logs(self) -> list[PartitionLog]:
        """All logs; none if the process is down."""
        store = getattr(self.broker, "_store", None)
        return [] if store is None else [log for _, log in sorted(store.logs.items())]


@contextlib.contextmanager
def times(world: World, node_of: Callable[[], Node | None]) -> Iterator[None]:
    """In the block all brokers use the world's clock, their groups have few slots in ZooKeeper, and their random
    choices are the same in each run. `node_of`: which one is running."""

    def time_ns() -> int:
        node = node_of()
        return (BEGINNING_MS + world.now + (node.wall_ms if node is not None else 0)) * 1_000_000

    numbers = count(1)
    monotonic = lambda: world.now / 1_000  # noqa: E731
    with contextlib.ExitStack() as stack:
        for module, name, instead in (
            (clock, "time_ns", time_ns),
            (process_clock, "time_ns", time_ns),
            (deletion_reserve, "SIZE", 16),
            (service, "_new_member_id", lambda prefix: f"{prefix}-{next(numbers):04}"),
            (links, "monotonic_ms", lambda: world.now),
            (zookeeper_cluster, "monotonic", monotonic),
            (zookeeper_cluster, "FreezeDetector", partial(FreezeDetector, read=monotonic)),
            (slot_coordination, "SLOT_COUNT", SLOTS),
            (slot_coordination, "SlotKeeper", partial(SlotKeeper, slots=SLOTS)),
            (slot_coordination.ZooKeeperCoordination, "slots_without_topic", SLOTS),
        ):
            stack.enter_context(mock.patch.object(module, name, instead))
        yield
