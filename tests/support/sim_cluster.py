"""Brokers of a cluster in this process, on a ZooKeeper in memory: the real shell, without processes or sockets in
between.

ZooKeeper's time is virtual and passes while the event loop runs, so a broker never waits long for ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from muster.broker.broker import Broker
from muster.broker.cluster.zookeeper_cluster import ZooKeeperCluster
from muster.log import DISK, Files
from muster.zookeeper.base.operations import Ask, ConnectionLossError, Plan, SessionEvent, Watched, ask
from tests.simulator import VirtualClock
from tests.simulator.zookeeper import Running, SimSession, SimZooKeeper
from tests.support.brokers import broker_config
from tests.support.plans import one_by_one, outcome, through

T = TypeVar("T")

PATIENCE_S = 120
STEP_MS = 20
SESSION_MS = 4_000


class AsyncSession:
    """A simulated session with the interface that a broker uses."""

    def __init__(self, world: SimCluster, name: str) -> None:
        self.timeout_ms = SESSION_MS
        self.sim: SimSession
        self.break_at: int | None = None
        """The number of the next ask that loses its connection, counted from 0."""
        self.carries_out = False
        """Whether the request that loses its connection is carried out."""
        self._world = world
        self._name = name
        self._listeners: list[Callable[[Watched | SessionEvent], None]] = []

    async def start(self) -> None:
        """Connect."""
        self.sim = self._world.zookeeper.connect(self._name, timeout_ms=SESSION_MS)
        for listener in self._listeners:
            self.sim.listen(listener)
        await self._world.until(lambda: self.sim.is_connected)

    async def close(self) -> None:
        """End the session."""
        self.sim.close()

    def listen(self, listener: Callable[[Watched | SessionEvent], None], /) -> None:
        """Call the listener with all events."""
        self._listeners.append(listener)
        if hasattr(self, "sim"):
            self.sim.listen(listener)

    @property
    def is_live(self) -> bool:
        """Whether the session is not in doubt."""
        return self.sim.is_live

    async def run(self, plan: Plan[T], /) -> T:
        """Carry out a plan."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: Running[T]) -> None:
            if not ended.done():
                ended.set_result(None)

        plan = through(plan if self.break_at is None else one_by_one(plan), self._one)
        running = self.sim.run(plan, then=done)
        try:
            await ended
        finally:
            running.cancel()
        return running.result

    def _one(self, what: Ask[Any]) -> Plan[Any]:
        breaks = self.break_at == 0
        self.break_at = None if breaks or self.break_at is None else self.break_at - 1
        answer = (yield from outcome(what)) if not breaks or self.carries_out else None
        return ConnectionLossError(getattr(what, "path", "")) if breaks else answer


class SimCluster:
    """The ZooKeeper, and the brokers on it."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.zookeeper = SimZooKeeper(self.clock, Random(7))
        self.user = self.zookeeper.connect("user")
        self.zookeeper.settle()
        self._folder = folder

    async def until(self, done: Callable[[], Any]) -> Any:
        """The first result that is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := done()):
                self.clock.advance(STEP_MS)
                await asyncio.sleep(0)
        return found

    async def soon(self, work: Any) -> Any:
        """The result of an awaitable that waits for ZooKeeper."""
        task = asyncio.ensure_future(work)
        await self.until(task.done)
        return task.result()

    def do(self, what: Ask[T]) -> T:
        """An operation of a user in ZooKeeper."""
        return self.zookeeper.carry_out(self.user, ask(what))

    def plan(self, plan: Plan[T]) -> T:
        """Several operations of a user in ZooKeeper."""
        return self.zookeeper.carry_out(self.user, plan)

    def session(self, name: str = "broker") -> AsyncSession:
        """A session for a broker."""
        return AsyncSession(self, name)

    def make(self, number: int, files: Files = DISK, **settings: object) -> tuple[Broker, AsyncSession]:
        """A broker that is not started yet."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        wanted = {"node.id": number, "offsets.topic.num.partitions": 4, "num.partitions": 2, **given}
        config = broker_config(self._folder / f"broker{number}", wanted)
        session = self.session(f"broker{number}")
        return Broker(config, files, zookeeper=ZooKeeperCluster(config, session)), session

    @contextlib.asynccontextmanager
    async def running(self, number: int, files: Files = DISK, **settings: object) -> AsyncIterator[Broker]:
        """A broker of the cluster."""
        broker, _ = self.make(number, files, **settings)
        await self.soon(broker.start())
        try:
            yield broker
        finally:
            await self.soon(broker.stop())

    @contextlib.asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[Broker, Broker]]:
        """Brokers 1 and 2, which know each other."""
        async with self.running(1) as one, self.running(2) as two:
            await self.until(lambda: len(one.cluster.nodes) == len(two.cluster.nodes) == 2)
            yield one, two

    def cut(self, session: AsyncSession) -> None:
        """Nothing gets through between a session and ZooKeeper."""
        self.zookeeper.cut(session.sim)

    def expire(self, session: AsyncSession) -> None:
        """Expire a session as if its timeout had passed."""
        self.zookeeper.expire(session.sim)


def session_of(broker: Broker) -> AsyncSession:
    """The session of a broker of a SimCluster."""
    assert broker._zookeeper is not None
    found = broker._zookeeper.session
    assert isinstance(found, AsyncSession)
    return found
