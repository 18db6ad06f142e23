"""The client's end of a simulated session: it finds servers, doubts itself in time, and carries out plans.

It keeps the contract of `muster.zookeeper.session.session`, with callbacks instead of coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from muster.errors import ClosedError, MusterError
from muster.zookeeper.base import operations as zk
from tests.simulator.clock import VirtualClock
from tests.simulator.zookeeper.server import Answer, Connection, Goodbye, HangUp, Hello, Ping, Request, Server, Welcome
from tests.simulator.zookeeper.tree import CHILD, DATA, Trigger

T = TypeVar("T")

Listener = Callable[[zk.Watched | zk.SessionEvent], None]
Reply = Callable[[Any], None]
"""Called with an answer, or with the error as a value."""
Others = Callable[[zk.Ask[Any], Reply], None]
"""Carries out the asks that are not ZooKeeper's: carries one out, and replies, now or later, once."""


class Ensemble(Protocol):
    """The functions of the ensemble that a session uses."""

    clock: VirtualClock
    trace: Callable[[str, str], None]

    def choose(self, preferred: int | None, rng: Random) -> Server:
        """The server that a session tries next."""

    def open(self, session: SimSession, server: Server) -> Connection | None:
        """A connection, None if no server listens there."""


class Running(Generic[T]):
    """A plan that is being carried out."""

    def __init__(
        self, session: SimSession, plan: zk.Plan[T], others: Others | None, then: Callable[[Running[T]], None]
    ) -> None:
        self.is_done = False
        self.error: Exception | None = None
        """The error that the plan raised."""
        self._result: T | None = None
        self._session = session
        self._life = session.life
        self._plan = plan
        self._others = others
        self._then = then
        self._turn = 0

    @property
    def result(self) -> T:
        """The result of the plan, or its error raised."""
        if self.error is not None:
            raise self.error
        assert self.is_done, "the plan is not done yet"
        return self._result  # type: ignore[return-value]

    def cancel(self) -> None:
        """End the plan where it is; its last request may be carried out or not."""
        if not self.is_done:
            self._turn += 1
            self.is_done = True
            self._plan.close()

    def step(self, outcome: Any = None) -> None:
        """Continue with an answer or an error."""
        self._turn += 1
        try:
            what = zk.next_ask(self._plan, outcome)
        except StopIteration as done:
            self._end(done.value, None)
        except MusterError as error:
            self._end(None, error)
        else:
            turn = self._turn
            reply: Reply = lambda answer: self.step(answer) if turn == self._turn else None  # noqa: E731
            if isinstance(what, zk.Operation | zk.Multi | zk.Several | zk.SessionId | zk.Reconnected):
                self._session.submit(what, reply, self._life)
            elif self._others is None:
                raise TypeError(f"nothing here carries out {what!r}")
            else:
                self._others(what, reply)

    def _end(self, result: T | None, error: Exception | None) -> None:
        self._result, self.error, self.is_done = result, error, True
        self._then(self)


class SimSession:
    """A client's session, and the next one after it has expired. `SimZooKeeper.connect` creates it.

    Its listeners and replies are called while virtual time passes, never within a call to it.
    """

    def __init__(self, zookeeper: Ensemble, name: str, timeout_ms: int, rng: Random) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.session_id = 0
        """The id of the current session, 0 before it has begun."""
        self.life = 0
        """Counts the sessions. A plan belongs to the session in which it began."""
        self.is_connected = False
        self.is_closed = False
        self.is_frozen = False
        self.preferred: int | None = None
        """The server that it tries first, if a test wants a certain one."""
        self.alive_at = zookeeper.clock.now
        """When the last answered message was sent: ZooKeeper has heard from the session at that time or later."""
        self._zookeeper = zookeeper
        self._clock = zookeeper.clock
        self._rng = rng
        self._listeners: list[Listener] = []
        self._connection: Connection | None = None
        self._seen_zxid = 0
        self._number = 0
        self._asked: dict[int, tuple[Request, Reply, int]] = {}
        self._pings: dict[int, int] = {}
        self._watches: dict[tuple[str, str], None] = {}
        self._waiting: list[tuple[Reply, int]] = []
        self._is_doubted = True
        self._doubt_is_due = False
        self._tries = 0
        self._asked_hello = 0
        self._set_aside: list[Callable[[], None]] = []
        self._later(0, self._connect)

    def __repr__(self) -> str:
        return f"{self.name} ({self.session_id:x})"

    # --- the interface
    # ----------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Call a function with every `Watched` and `SessionEvent` from now on, in order."""
        self._listeners.append(listener)

    @property
    def is_live(self) -> bool:
        """Whether ZooKeeper was heard from within two thirds of the timeout: no other session can see it as expired
        yet."""
        return bool(self.session_id) and self._clock.now < self._doubted_at

    def ask(self, what: zk.Ask[Any], reply: Reply = lambda _: None) -> None:
        """Ask for one thing; the reply takes the answer or the error."""
        self.submit(what, reply, self.life)

    def run(
        self, plan: zk.Plan[T], others: Others | None = None, then: Callable[[Running[T]], None] = lambda _: None
    ) -> Running[T]:
        """Begin to carry out a plan; `then` is called when it is done. Its first request is sent at once."""
        running = Running(self, plan, others, then)
        running.step()
        return running

    def close(self) -> None:
        """End the session, immediately if there is a connection; otherwise ZooKeeper ends it after its timeout."""
        if not self.is_closed:
            self.is_closed = True
            if self._connection is not None and self.is_connected:
                self._connection.send(Goodbye())
            self.is_connected = False
            self._fail_all(ClosedError("the session was closed"))

    # --- asking ------------------------------------------------------------------------------------------------------

    def submit(self, what: zk.Ask[Any], reply: Reply, life: int) -> None:
        """Ask for one thing as part of one of the sessions."""
        if isinstance(what, zk.Several):
            self._submit_each(what.asks, reply, life)
            return
        if isinstance(what, zk.Operation | zk.Multi):
            try:
                zk.check_request(what)
            except MusterError as error:
                self._later(0, reply, error)
                return
        path = getattr(what, "path", "")
        if self.is_closed:
            self._later(0, reply, ClosedError("the session was closed"))
        elif life != self.life:
            self._later(0, reply, zk.SessionExpiredError(path))
        elif isinstance(what, zk.Reconnected):
            if self.is_connected:
                self._later(0, reply, None)
            else:
                self._waiting.append((reply, life))
        elif isinstance(what, zk.SessionId):
            self._later(0, reply, self.session_id or zk.ConnectionLossError())
        elif not self.is_connected or self._connection is None:
            self._later(0, reply, zk.ConnectionLossError(path))
        else:
            self._number += 1
            request = Request(self._number, what)
            self._asked[self._number] = (request, reply, self._clock.now)
            self._connection.send(request)

    def _submit_each(self, asks: Sequence[zk.Ask[Any]], reply: Reply, life: int) -> None:
        outcomes: dict[int, Any] = {}

        def answered(place: int, outcome: Any) -> None:
            outcomes[place] = outcome
            if len(outcomes) == len(asks):
                reply([outcomes[each] for each in range(len(asks))])

        for place, each in enumerate(asks):
            self.submit(each, partial(answered, place), life)
        if not asks:
            self._later(0, reply, [])

    def _later(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> None:
        def due() -> None:
            if self.is_frozen:
                self._set_aside.append(due)
            else:
                call(*arguments)

        self._clock.call_later(delay_ms, due)

    def _tell(self, event: zk.Watched | zk.SessionEvent) -> None:
        self._zookeeper.trace(self.name, event.name if isinstance(event, zk.SessionEvent) else f"{event}")
        for listener in list(self._listeners):
            listener(event)

    # --- connecting --------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Try one server."""
        if self.is_closed:
            return
        server = self._zookeeper.choose(None if self._tries else self.preferred, self._rng)
        self._tries += 1
        connection = self._zookeeper.open(self, server)
        if connection is None:
            self._later(self._rng.randrange(20, 200), self._connect)
            return
        self._connection = connection
        self._asked_hello = self._clock.now
        connection.send(Hello(self.session_id, self.timeout_ms, self._seen_zxid))
        self._later(max(self.timeout_ms // 3, 1), self._give_up, connection)

    def _give_up(self, connection: Connection) -> None:
        if connection is self._connection and not self.is_connected:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection from this side, and try another server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.send(HangUp())
            connection.is_closed = True
        if self.is_connected:
            self._suspend()
        self._later(self._rng.randrange(20, 200), self._connect)

    def receive(self, connection: Connection, message: Any) -> None:
        """A message has arrived from a server."""
        if connection is not self._connection:
            return
        match message:
            case None:
                connection.is_closed = True
                self._hang_up()
            case Welcome(session_id=0):
                self._expire()
            case Welcome():
                self._welcome(connection, message)
            case Ping():
                self._prove(self._pings.pop(message.number))
            case Trigger():
                self._fired(message)
            case Answer():
                self._answered(message)

    def holds_up(self) -> bool:
        """Whether the process is suspended."""
        return self.is_frozen

    def _welcome(self, connection: Connection, message: Welcome) -> None:
        if self.is_closed:
            connection.send(Goodbye())
            return
        self.session_id = message.session_id
        self.is_connected, self._is_doubted, self._tries = True, False, 0
        self._pings.clear()
        self.alive_at = self._asked_hello
        self._later(self.timeout_ms // 3, self._ping, connection)
        if not self._doubt_is_due:
            self._doubt_is_due = True
            self._later(self._doubted_at - self._clock.now, self._doubt)
        self._tell(zk.SessionEvent.CONNECTED)
        waiting, self._waiting = self._waiting, []
        for reply, life in waiting:
            reply(None if life == self.life else zk.SessionExpiredError())

    def _suspend(self) -> None:
        """The connection is lost: its watches with it, and the fate of the requests is unknown."""
        self.is_connected = False
        asked, self._asked = self._asked, {}
        watches, self._watches = self._watches, {}
        if self.is_closed:
            return
        self._tell(zk.SessionEvent.SUSPENDED)
        for path in dict.fromkeys(path for _, path in watches):
            self._tell(zk.Watched(zk.ZnodeChange.LOST, path))
        for request, reply, _ in asked.values():
            reply(zk.ConnectionLossError(getattr(request.what, "path", "")))

    def _expire(self) -> None:
        """The session has ended: report it, and begin another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.is_closed = True
        if self.is_closed:
            return
        self.session_id = self._seen_zxid = 0
        self._is_doubted = True
        self.life += 1
        self._tell(zk.SessionEvent.EXPIRED)
        waiting, self._waiting = self._waiting, []
        for reply, _ in waiting:
            reply(zk.SessionExpiredError())
        self._later(self._rng.randrange(20, 200), self._connect)

    def _fail_all(self, error: Exception) -> None:
        asked, self._asked = self._asked, {}
        waiting, self._waiting = self._waiting, []
        for reply in [reply for _, reply, _ in asked.values()] + [reply for reply, _ in waiting]:
            self._later(0, reply, error)

    # --- signs of life -----------------------------------------------------------------------------------------------

    @property
    def _doubted_at(self) -> int:
        return self.alive_at + self.timeout_ms * 2 // 3

    def _prove(self, sent: int) -> None:
        self.alive_at = max(self.alive_at, sent)

    def _ping(self, connection: Connection) -> None:
        """Three times within the timeout; a ping that is not answered within a quarter of it breaks the connection."""
        if connection is self._connection and self.is_connected:
            self._number += 1
            self._pings[self._number] = self._clock.now
            connection.send(Ping(self._number))
            self._later(self.timeout_ms // 4, self._miss, connection, self._number)
            self._later(self.timeout_ms // 3, self._ping, connection)

    def _miss(self, connection: Connection, number: int) -> None:
        if connection is self._connection and number in self._pings:
            self._hang_up()

    def _doubt(self) -> None:
        if not self._is_doubted and self._clock.now < self._doubted_at:
            self._later(self._doubted_at - self._clock.now, self._doubt)
            return
        self._doubt_is_due = False
        if self.is_closed or self._is_doubted:
            return
        self._is_doubted = True
        if self.is_connected:
            self._hang_up()
        self._tell(zk.SessionEvent.DOUBTED)

    # --- answers and watches -----------------------------------------------------------------------------------------

    def _answered(self, answer: Answer) -> None:
        if answer.number not in self._asked:  # the connection was closed meanwhile
            return
        request, reply, sent = self._asked.pop(answer.number)
        self._seen_zxid = max(self._seen_zxid, answer.zxid)
        self._prove(sent)
        what = request.what
        if (
            isinstance(what, zk.GetData | zk.GetChildren | zk.Exists)
            and what.watch
            and not isinstance(answer.outcome, Exception)
        ):
            self._watches[CHILD if isinstance(what, zk.GetChildren) else DATA, what.path] = None
        reply(answer.outcome)

    def _fired(self, trigger: Trigger) -> None:
        for kind in trigger.kinds:
            self._watches.pop((kind, trigger.path), None)
        if not self.is_closed:
            self._tell(zk.Watched(trigger.change, trigger.path))

    # --- faults ---------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """The process is suspended: it sends nothing, receives nothing, and none of its timers fires."""
        self.is_frozen = True

    def thaw(self) -> None:
        """It resumes: the messages that have arrived meanwhile and the timers that are due come in any order."""
        self.is_frozen = False
        set_aside, self._set_aside = self._set_aside, []
        messages_first = self._rng.random() < 0.5
        if messages_first and self._connection is not None:
            self._connection.to_client.pump()
        for due in set_aside:
            self._clock.call_later(0, due)
        if not messages_first and self._connection is not None:
            self._clock.call_later(1, self._connection.to_client.pump)
