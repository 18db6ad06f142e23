"""ZooKeeper in memory and in virtual time: several servers that lag, sessions that expire, and everything that can go
wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeVar

from muster.zookeeper.base.operations import Ask, Plan, ask
from tests.simulator.checks import InvariantError
from tests.simulator.clock import VirtualClock
from tests.simulator.zookeeper.server import TO_CLIENT, TO_SERVER, Connection, Leader, Server, ZooKeeperCounts
from tests.simulator.zookeeper.session import Listener, Others, SimSession
from tests.simulator.zookeeper.tree import Tree

T = TypeVar("T")
A = TypeVar("A")

BOTH_WAYS = (TO_SERVER, TO_CLIENT)


class SimZooKeeper:
    """An ensemble of ZooKeeper servers, for rules that are plans. Everything follows from the clock and the seed.

        zookeeper = SimZooKeeper(VirtualClock(), Random(1), servers=3)
        first, second = zookeeper.connect("first"), zookeeper.connect("second", server=2)
        zookeeper.settle()
        zookeeper.do(first, Create("/a", b"data"))
        zookeeper.servers[2].is_held = True     # from now on `second` reads what was true before

    Args:
        servers: how many. One of them is the leader; which one does not matter.
        lag_ms: how far a server may lag behind the leader; `Server.lag_ms` is for a single server.
        tick_ms: a session expires up to this long after its timeout.
        trace: is called with each event, as a name and a text.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        *,
        servers: int = 1,
        lag_ms: int = 0,
        tick_ms: int = 500,
        trace: Callable[[str, str], None] = lambda name, text: None,
    ) -> None:
        self.clock = clock
        self.trace = trace
        self.cuts: set[tuple[str, int, str]] = set()
        self.sessions: list[SimSession] = []
        self._rng = rng
        self._leader = Leader(clock, rng, tick_ms)
        self.servers = self._leader.servers
        self._connections: list[Connection] = []
        for index in range(servers):
            server = Server(index, self._leader)
            server.lag_ms = lag_ms
            self.servers.append(server)

    @property
    def counts(self) -> ZooKeeperCounts:
        """What the servers have done; it keeps counting (`copy`, `since`)."""
        return self._leader.counts

    @property
    def tree(self) -> Tree:
        """The truth, for checks: the leader's znodes, whatever sessions see of them."""
        return self._leader.tree

    def is_alive(self, session_id: int) -> bool:
        """For checks: whether ZooKeeper has not ended a session."""
        return session_id in self._leader.leases

    # --- sessions ----------------------------------------------------------------------------------------------------

    def connect(
        self, name: str, *, timeout_ms: int = 6_000, server: int | None = None, listener: Listener | None = None
    ) -> SimSession:
        """Begin a session; its event CONNECTED says when it exists. It prefers `server`, if given."""
        session = SimSession(self, name, timeout_ms, Random(self._rng.getrandbits(64)))
        session.preferred = server
        if listener is not None:
            session.listen(listener)
        self.sessions.append(session)
        return session

    def choose(self, preferred: int | None, rng: Random) -> Server:
        """The server that a session tries next."""
        if preferred is not None and self.servers[preferred].is_up:
            return self.servers[preferred]
        return rng.choice(self.servers)

    def open(self, session: SimSession, server: Server) -> Connection | None:
        """A connection, None if no server listens there."""
        if not server.is_up:
            return None
        connection = Connection(session, server, self.cuts)
        server.connections.append(connection)
        self._connections = [each for each in self._connections if not each.is_over]
        self._connections.append(connection)
        return connection

    def server_of(self, session: SimSession) -> Server:
        """The server to which a session is connected."""
        return next(
            connection.server
            for connection in reversed(self._connections)
            if connection.client is session and not connection.is_closed
        )

    # --- time --------------------------------------------------------------------------------------------------------

    def settle(self, within_ms: int = 60_000) -> None:
        """Let time pass until every open session is connected."""
        self._wait(lambda: all(s.is_connected or s.is_closed or s.is_frozen for s in self.sessions), within_ms)

    def carry_out(self, session: SimSession, plan: Plan[T], others: Others | None = None, within_ms: int = 60_000) -> T:
        """Carry out a plan while time passes; returns its result, or raises its error."""
        running = session.run(plan, others)
        self._wait(lambda: running.is_done, within_ms)
        return running.result

    def do(self, session: SimSession, what: Ask[A], within_ms: int = 60_000) -> A:
        """Ask for one thing while time passes; returns the answer, or raises the error."""
        return self.carry_out(session, ask(what), within_ms=within_ms)

    def _wait(self, predicate: Callable[[], bool], within_ms: int) -> None:
        if not self.clock.run_until(predicate, within_ms):
            raise InvariantError(f"it did not happen within {within_ms} ms: {self.sessions}")

    # --- faults -------------------------------------------------------------------------------------------

    def expire(self, session: SimSession) -> None:
        """Expire a session as if its timeout had passed; it learns of that as from the real ZooKeeper."""
        self._leader.end_session(session.session_id)

    def hold(self, index: int) -> None:
        """From now on a server applies nothing: its sessions read the old state, and wait for answers to their
        writes."""
        self.servers[index].is_held = True

    def release(self, index: int) -> None:
        """The server catches up at once."""
        self.servers[index].is_held = False
        self.servers[index].catch_up()

    def cut(
        self, session: SimSession, servers: Iterable[int] | None = None, directions: Iterable[str] = BOTH_WAYS
    ) -> None:
        """Let nothing pass between a session and the servers (default: all of them), or only in one direction.

        Neither end is notified, and what is in flight arrives when the path is healed.
        """
        chosen = range(len(self.servers)) if servers is None else list(servers)
        self.cuts.update((session.name, index, direction) for index in chosen for direction in directions)

    def heal(self, session: SimSession) -> None:
        """Let traffic pass again."""
        self.cuts -= {cut for cut in self.cuts if cut[0] == session.name}
        for connection in [each for each in self._connections if each.client is session]:
            connection.to_server.pump()
            connection.to_client.pump()

    def reset(self, session: SimSession) -> None:
        """Break a session's connection: some of its requests are carried out, and no answer comes."""
        for connection in [each for each in self._connections if each.client is session and not each.is_closed]:
            queue = connection.to_server.queue
            arriving = self._rng.randint(0, len(queue))
            while len(queue) > arriving:
                queue.pop()
            for _, message in list(queue):
                connection.server.receive(connection, message)
            queue.clear()
            connection.to_client.queue.clear()
            connection.end()
