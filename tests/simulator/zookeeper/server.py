"""The servers of a simulated ZooKeeper: one leader decides, every server follows at its own pace."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

from muster.zookeeper.base import operations as zk
from tests.simulator.clock import Timer, VirtualClock
from tests.simulator.network import Pipe
from tests.simulator.zookeeper.tree import CHILD, DATA, Removed, Transaction, Tree, Trigger, triggers

TO_SERVER, TO_CLIENT = "to server", "to client"

MOVED = object()
"""The outcome of late requests on a connection whose session already has another one."""

Watch = tuple[str, str]
"""Its kind, and its path."""


class Hello(NamedTuple):
    """The first message of a connection."""

    session_id: int
    """0 asks for a new session."""
    timeout_ms: int
    seen_zxid: int


class Welcome(NamedTuple):
    """The answer to the first message."""

    session_id: int
    """0: the session has ended."""


class Ping(NamedTuple):
    """Keeps the session alive; answered with the same."""

    number: int


class Goodbye(NamedTuple):
    """Ends the session."""


class HangUp(NamedTuple):
    """The client has closed the connection."""


class Request(NamedTuple):
    """A request, with the number that its answer repeats."""

    number: int
    what: zk.Ask[Any]


class Answer(NamedTuple):
    """The result of a request: a value, or the error."""

    number: int
    outcome: Any
    zxid: int


@dataclass(slots=True)
class ZooKeeperCounts:
    """What the servers have done, under the names that ZooKeeper's `mntr` uses. Pings are left out."""

    packets_received: int = 0
    packets_sent: int = 0
    reads: int = 0
    """`cnt_readlatency`; a Sync counts too."""
    writes: int = 0
    """`cnt_updatelatency`: includes refused ones, and the beginnings and ends of sessions."""
    watches_fired: Counter[zk.ZnodeChange] = field(default_factory=Counter)
    """`sum_node_created_watch_count` and so on. Two watches of one session on a deleted znode count as two, although it
    is notified once."""

    def copy(self) -> ZooKeeperCounts:
        """The current counts."""
        return ZooKeeperCounts(
            self.packets_received, self.packets_sent, self.reads, self.writes, Counter(self.watches_fired)
        )

    def since(self, before: ZooKeeperCounts) -> ZooKeeperCounts:
        """The difference to earlier counts."""
        return ZooKeeperCounts(
            self.packets_received - before.packets_received,
            self.packets_sent - before.packets_sent,
            self.reads - before.reads,
            self.writes - before.writes,
            self.watches_fired - before.watches_fired,
        )


class Client(Protocol):
    """The functions of the session at the other end that a connection uses."""

    name: str

    def receive(self, connection: Connection, message: Any) -> None:
        """A message has arrived; None: the server has closed the connection."""

    def holds_up(self) -> bool:
        """Whether the process is suspended, so that arriving messages wait."""


class Connection:
    """One connection of a session with a server. Messages keep their order in either direction."""

    def __init__(self, client: Client, server: Server, cuts: set[tuple[str, int, str]]) -> None:
        self.client = client
        self.server = server
        self.session_id = 0
        self.is_over = False
        """The server has finished with it."""
        self.is_closed = False
        """The client has finished with it."""
        self.queue: deque[Request | Goodbye] = deque()
        self.is_busy = False
        leader, name = server.leader, client.name
        self.to_server = Pipe(
            leader.clock, lambda message: server.receive(self, message), lambda: (name, server.index, TO_SERVER) in cuts
        )
        self.to_client = Pipe(
            leader.clock,
            lambda message: None if self.is_closed else client.receive(self, message),
            lambda: (name, server.index, TO_CLIENT) in cuts or client.holds_up(),
        )

    def send(self, message: Any) -> None:
        """The client's message to the server."""
        if not self.is_closed:
            self.to_server.push(message, self.server.leader.delay_ms())

    def tell(self, message: Any) -> None:
        """The server's message to the client; None ends the connection."""
        if not self.is_over:
            self.to_client.push(message, self.server.leader.delay_ms())

    def end(self) -> None:
        """The server closes the connection."""
        if self.is_over:
            return
        self.tell(None)
        self.is_over = True
        self.server.forget(self)


@dataclass(slots=True)
class Lease:
    """What the leader knows about a session."""

    timeout_ms: int
    heard: int
    owner: Connection | None
    """The connection through which it may send requests; late ones on an older connection are refused."""
    timer: Timer | None = None


class Leader:
    """Decides every write, one after the other, and which sessions are alive.

    Args:
        tick_ms: how often sessions are checked, so one lives for up to a tick longer than its timeout.
    """

    def __init__(self, clock: VirtualClock, rng: Random, tick_ms: int) -> None:
        self.clock = clock
        self.rng = rng
        self.tree = Tree()
        self.log: list[Transaction] = []
        self.leases: dict[int, Lease] = {}
        self.servers: list[Server] = []
        self.counts = ZooKeeperCounts()
        self._tick_ms = tick_ms
        self._next_session = rng.getrandbits(40) << 8

    @property
    def zxid(self) -> int:
        """The number of the last transaction."""
        return len(self.log)

    def delay_ms(self) -> int:
        """The delay of the next message."""
        return self.rng.randrange(4)

    def decide(
        self, session_id: int, connection: Connection, what: zk.Write[Any] | zk.Multi | zk.Sync
    ) -> tuple[int, Any]:
        """Carry out a write: its transaction, and the answer or the error, which is sent once that is applied."""
        lease = self.leases.get(session_id)
        if lease is None:
            return self.zxid, zk.SessionExpiredError(getattr(what, "path", ""))
        if lease.owner is not connection:
            return self.zxid, MOVED
        if isinstance(what, zk.Sync):
            self.counts.reads += 1
            return self.zxid, None
        self.counts.writes += 1
        writes = what.writes if isinstance(what, zk.Multi) else (what,)
        try:
            changes, answers = self.tree.transact(writes, session_id, self.zxid + 1)
        except zk.ZooKeeperError as refused:
            return self._commit(Transaction(self.zxid + 1)), refused
        return self._commit(Transaction(self.zxid + 1, changes)), answers if isinstance(what, zk.Multi) else answers[0]

    def _commit(self, transaction: Transaction) -> int:
        self.log.append(transaction)
        for server in self.servers:
            server.learn()
        return transaction.zxid

    # --- sessions ----------------------------------------------------------------------------------------------------

    def begin_session(self, timeout_ms: int, owner: Connection) -> tuple[int, int]:
        """Begin a session; returns its id and its transaction."""
        self.counts.writes += 1
        self._next_session += 1
        session_id = self._next_session
        self.leases[session_id] = Lease(timeout_ms, self.clock.now, owner)
        self._watch_over(session_id)
        return session_id, self._commit(Transaction(self.zxid + 1))

    def touch(self, session_id: int, connection: Connection | None = None) -> bool:
        """A session was heard from; False if it has ended. With a connection, it sends its requests through that from
        now on."""
        lease = self.leases.get(session_id)
        if lease is None:
            return False
        lease.heard = self.clock.now
        if connection is not None:
            lease.owner = connection
        return True

    def _watch_over(self, session_id: int) -> None:
        lease = self.leases.get(session_id)
        if lease is None:
            return
        due = ((lease.heard + lease.timeout_ms) // self._tick_ms + 1) * self._tick_ms
        if due <= self.clock.now:
            self.end_session(session_id)
        else:
            lease.timer = self.clock.call_at(due, self._watch_over, session_id)

    def end_session(self, session_id: int) -> int:
        """End a session with all its ephemeral znodes, in one transaction."""
        lease = self.leases.pop(session_id, None)
        if lease is None:
            return self.zxid
        if lease.timer is not None:
            lease.timer.cancel()
        self.counts.writes += 1
        changes = [Removed(path) for path in self.tree.owned_by(session_id)]
        for change in changes:
            self.tree.apply(change, self.zxid + 1)
        return self._commit(Transaction(self.zxid + 1, changes, session_id))


class Server:
    """One server: its own tree, which lags behind the leader's, and the watches of its sessions.

    A write through it is answered when it has applied that write itself, so that a session reads what it wrote.
    """

    def __init__(self, index: int, leader: Leader) -> None:
        self.index = index
        self.leader = leader
        self.tree = Tree()
        self.applied = 0
        self.lag_ms = 0
        """How far it lags at most; the actual lag differs from one transaction to the next."""
        self.is_up = True
        self.is_held = False
        """While it is held, it applies nothing."""
        self.connections: list[Connection] = []
        self._watches: dict[Watch, dict[Connection, None]] = {}
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._due = 0

    @property
    def watched(self) -> set[str]:
        """The paths on which there are watches."""
        return {path for (_, path), connections in self._watches.items() if connections}

    # --- following the leader ----------------------------------------------------------------------------------------

    def learn(self) -> None:
        """The leader has decided on a transaction."""
        if self.is_up:
            leader = self.leader
            self._due = max(self._due, leader.clock.now + leader.rng.randint(0, self.lag_ms))
            leader.clock.call_at(self._due, self.catch_up, leader.zxid)

    def catch_up(self, zxid: int | None = None) -> None:
        """Apply all transactions up to a given one, or all."""
        if not self.is_up or self.is_held:
            return
        target = self.leader.zxid if zxid is None else zxid
        while self.applied < target:
            self._apply(self.leader.log[self.applied])

    def _apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            self.tree.apply(change, transaction.zxid)
            for trigger in triggers(change):
                self._fire(trigger)
        self.applied = transaction.zxid
        if transaction.ended:
            for connection in [each for each in self.connections if each.session_id == transaction.ended]:
                connection.end()
        ready = [then for zxid, then in self._waiting if zxid <= self.applied]
        self._waiting = [(zxid, then) for zxid, then in self._waiting if zxid > self.applied]
        for then in ready:
            then()

    def _fire(self, trigger: Trigger) -> None:
        reported: dict[Connection, None] = {}
        for kind in trigger.kinds:
            watching = self._watches.pop((kind, trigger.path), {})
            if watching:
                self.leader.counts.watches_fired[trigger.change] += len(watching)
                reported.update(watching)
        for connection in reported:
            self._tell(connection, trigger)

    def _when_applied(self, zxid: int, then: Callable[[], None]) -> None:
        if zxid <= self.applied:
            then()
        else:
            self._waiting.append((zxid, then))

    # --- its sessions ------------------------------------------------------------------------------------------------

    def receive(self, connection: Connection, message: Any) -> None:
        """A message has arrived from a client."""
        if connection.is_over or not self.is_up:
            return
        if isinstance(message, Hello):
            self._greet(connection, message)
            return
        if isinstance(message, HangUp):
            connection.end()
            return
        self.leader.touch(connection.session_id)
        if isinstance(message, Ping):
            connection.tell(message)
            return
        self.leader.counts.packets_received += 1
        connection.queue.append(message)
        self._serve(connection)

    def _greet(self, connection: Connection, hello: Hello) -> None:
        if connection.is_closed:
            return  # the client gave it up before it arrived
        self.leader.counts.packets_received += 1
        if hello.seen_zxid > self.applied:
            # This client has seen transactions that this server has not applied: it must try another server.
            connection.end()
        elif not hello.session_id:
            connection.session_id, zxid = self.leader.begin_session(hello.timeout_ms, connection)
            self._when_applied(zxid, lambda: self._tell(connection, Welcome(connection.session_id)))
        elif self.leader.touch(hello.session_id, connection):
            connection.session_id = hello.session_id
            self._tell(connection, Welcome(hello.session_id))
        else:
            self._tell(connection, Welcome(0))
            connection.end()

    def _tell(self, connection: Connection, message: Any) -> None:
        self.leader.counts.packets_sent += 1
        connection.tell(message)

    def _serve(self, connection: Connection) -> None:
        """Process what waits, one after the other: a read after a write sees it."""
        while connection.queue and not connection.is_busy and not connection.is_over:
            request = connection.queue.popleft()
            if isinstance(request, Goodbye):
                connection.is_busy = True
                self._when_applied(self.leader.end_session(connection.session_id), connection.end)
            elif isinstance(request.what, zk.GetData | zk.GetChildren | zk.Exists):
                self.leader.counts.reads += 1
                self._tell(connection, Answer(request.number, self._read(connection, request.what), self.applied))
            else:
                connection.is_busy = True
                self.leader.clock.call_later(self.leader.delay_ms(), self._forward, connection, request)

    def _read(self, connection: Connection, what: zk.GetData | zk.GetChildren | zk.Exists) -> Any:
        node = self.tree.find(what.path)
        if node is None and not isinstance(what, zk.Exists):
            return zk.NoNodeError(what.path)
        if what.watch:
            kind = CHILD if isinstance(what, zk.GetChildren) else DATA
            self._watches.setdefault((kind, what.path), {})[connection] = None
        if node is None:
            return None
        if isinstance(what, zk.GetChildren):
            return sorted(node.children)
        return node.stat() if isinstance(what, zk.Exists) else (node.data, node.stat())

    def _forward(self, connection: Connection, request: Request) -> None:
        assert isinstance(request.what, zk.Write | zk.Multi | zk.Sync)
        zxid, outcome = self.leader.decide(connection.session_id, connection, request.what)
        if outcome is MOVED:
            connection.end()
            return

        def answer() -> None:
            connection.is_busy = False
            self._tell(connection, Answer(request.number, outcome, self.applied))
            self._serve(connection)

        self._when_applied(zxid, answer)

    def forget(self, connection: Connection) -> None:
        """A connection is closed, and its watches are gone."""
        self.connections.remove(connection)
        for watch in [watch for watch, reported in self._watches.items() if connection in reported]:
            del self._watches[watch][connection]

    # --- faults ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """It ends, and its connections with it; requests that it has read may still be carried out."""
        self.is_up = False
        for connection in list(self.connections):
            connection.end()
        self._waiting.clear()

    def start(self) -> None:
        """It restarts, and first learns everything that it has missed."""
        self.is_up = True
        self.catch_up()
