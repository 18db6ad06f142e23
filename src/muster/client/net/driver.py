"""Moves the bytes of the client's cores, and polls the cores: the only part of a client that waits.

`Driver` keeps at most one connection for each node and channel, opened when first needed. `CoreLoop` polls the cores
when an answer has arrived or one of their deadlines has come. Both run in one event loop and need no locks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from muster.client.config import ClientConfig, parse_address
from muster.client.core.backoff import Backoff
from muster.client.core.events import Disconnect, Event, Note
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, AnySend, Channel, Failure, FailureKind
from muster.client.net.access import Access
from muster.client.net.connection import SLOW_MS, Connection, ConnectionState
from muster.client.net.handshake import Handshake, Proof, set_options
from muster.client.net.measures import Measures
from muster.client.security import tls
from muster.clock import monotonic_ms
from muster.errors import AuthenticationError, ClosedError, MusterError
from muster.model import Node

log = logging.getLogger("muster.client.network")

_FIRST_BOOTSTRAP_ID = -2

_LOG_AGAIN_MS = 300_000


class _Address:
    """State of an address between connections: when to retry, with which timeout, what was logged.

    A client may wait for its cluster forever, but not silently: the first failure to connect is logged as a warning,
    and so is a failure for a different reason. The same reason is logged again only every five minutes.
    """

    __slots__ = ("backoff", "is_old", "logged", "logged_at", "name", "retry_at", "setup_timeout")

    def __init__(self, config: ClientConfig, node: Node) -> None:
        self.name = f"{node.host}:{node.port}"
        self.logged: str | None = None
        """The failure that was logged last; None while the address works."""
        self.logged_at = 0
        self.is_old = False
        """Whether the next connection assumes a broker without ApiVersions."""
        seed = random.getrandbits(31)
        self.backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, seed)
        self.setup_timeout = Backoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, seed
        )
        self.retry_at = 0

    def connected(self) -> None:
        """The handshake has finished."""
        self.backoff.reset()
        self.setup_timeout.reset()
        self.retry_at = 0
        if self.logged is not None:
            log.info("connected to %s again", self.name)
            self.logged = None

    def failed(self, why: str, now: int) -> None:
        """A connection could not be made."""
        if self.logged == why and now < self.logged_at + _LOG_AGAIN_MS:
            log.debug("%s", why)
            return
        self.logged, self.logged_at = why, now
        start = f"no connection to {self.name}: "
        log.warning("%s", why if why.startswith(start) else start + why)


def _bootstrap_nodes(addresses: Iterable[str]) -> list[Node]:
    return [Node(_FIRST_BOOTSTRAP_ID - index, *parse_address(text)) for index, text in enumerate(addresses)]


class Driver:
    """Connections to the brokers of one cluster.

    With `known_versions`, the brokers' versions are known and not requested. `wakeup` is called after answers were
    delivered, `on_error` when a core's `on_reply` raised, which is a defect.
    """

    def __init__(
        self,
        config: ClientConfig,
        metadata: ClusterMetadata,
        known_versions: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.wakeup: Callable[[], None] = lambda: None
        self.on_error: Callable[[Exception], None] = lambda error: log.error("a client core failed", exc_info=error)
        self.measures = Measures()
        self._config = config
        self._metadata = metadata
        self._known_versions = known_versions
        self._access = Access(config)
        self._bootstrap = _bootstrap_nodes(config.bootstrap_servers)
        self._connections: dict[tuple[int, Channel], Connection] = {}
        self._addresses: dict[tuple[str, int], _Address] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rebootstraps = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._closed = False

    # --- for the owner -----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time passed to cores."""
        return monotonic_ms()

    @property
    def is_cut_off(self) -> bool:
        """Whether there is no connection, and the last attempt to connect failed."""
        if any(connection.state is ConnectionState.READY for connection in self._connections.values()):
            return False
        return any(address.backoff.failures for address in self._addresses.values())

    @property
    def connections(self) -> list[Connection]:
        """The current connections."""
        return list(self._connections.values())

    def set_bootstrap(self, addresses: Iterable[str]) -> None:
        """Switch to other bootstrap addresses, immediately if no known broker answers."""
        self._bootstrap = _bootstrap_nodes(addresses)

    async def start(self) -> None:
        """Bind to the running event loop. No connection is made before something is sent."""
        if self._closed:
            raise ClosedError("the client is closed")
        self._loop = asyncio.get_running_loop()

    def dispatch(self, sends: Iterable[AnySend]) -> None:
        """Take requests. Each is answered from the event loop, never inside this call."""
        if self._rebootstraps != self._metadata.rebootstraps:
            self._start_over()
        touched: dict[Connection, None] = {}
        for send in sends:
            timeout_ms = self._config.request_timeout_ms if send.timeout_ms is None else send.timeout_ms
            found = self._submit(send, self.now() + timeout_ms)
            if found is not None:
                touched[found] = None
        for connection in touched:
            if connection.state is ConnectionState.READY:
                self._event_loop().call_soon(connection.flush)

    def _submit(self, send: AnySend, deadline: int) -> Connection | None:
        found = self._route(send)
        if isinstance(found, Failure):
            self._event_loop().call_soon(self.deliver, send, found)
            return None
        found.submit(send, deadline)
        may_reroute = send.node_id == LEAST_LOADED and self.now() < found.slow_at
        self.schedule_check(min(deadline, found.slow_at) if may_reroute else deadline)
        return found

    def _start_over(self) -> None:
        """The metadata has given up the brokers that it knew; so does the driver (KIP-1102)."""
        self._rebootstraps = self._metadata.rebootstraps
        log.info("starting over from the bootstrap addresses: %s", ", ".join(self._config.bootstrap_servers))
        failure = Failure(FailureKind.DISCONNECTED, "starting over from the bootstrap addresses")
        for connection in list(self._connections.values()):
            if connection.node.node_id > _FIRST_BOOTSTRAP_ID:
                self._event_loop().call_soon(connection.close, failure)

    async def close(self) -> None:
        """Close every connection; requests in flight are answered with a Failure."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close(Failure(FailureKind.DISCONNECTED, "the client was closed"))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close their sockets

    def disconnect(self, node_id: int, channel: Channel) -> None:
        """Close one connection, if it exists: a request parked on it is void, and would block later ones."""
        connection = self._connections.get((node_id, channel))
        if connection is not None:
            self._retire(connection)

    # --- routing -----------------------------------------------------------------------------------------------------

    def _route(self, send: AnySend) -> Connection | Failure:
        if self._closed:
            return Failure(FailureKind.UNREACHABLE, "the client is closed")
        if send.node_id == LEAST_LOADED:
            return self._connection(self._least_loaded(send.channel), send.channel)
        node = self._metadata.brokers.get(send.node_id)
        if node is None:
            return Failure(FailureKind.UNREACHABLE, f"broker {send.node_id} is not known in the cluster")
        return self._connection(node, send.channel)

    def _connection(self, node: Node, channel: Channel) -> Connection:
        known = self._connections.get((node.node_id, channel))
        if known is not None:
            if (known.node.host, known.node.port) == (node.host, node.port):
                return known
            known.close(Failure(FailureKind.DISCONNECTED, f"broker {node.node_id} moved to {node.host}:{node.port}"))
        connection = Connection(self, node, channel, self._config.client_id, self._config.request_timeout_ms)
        connection.slow_at = max(self.now(), self._address(node).retry_at) + SLOW_MS
        self._connections[node.node_id, channel] = connection
        self._start_task(self._connect(connection))
        return connection

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task; `close` cancels it."""
        task = self._event_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handshake(self, node: Node) -> Handshake:
        proof = await self._proof()
        if self._known_versions is not None:
            return Handshake.assumed(self._known_versions, proof)
        return Handshake.assumed(proof=proof) if self._address(node).is_old else Handshake(proof=proof)

    async def _proof(self) -> Proof | None:
        access = self._access
        return await asyncio.to_thread(access.proof) if access.may_wait else access.proof()

    def _least_loaded(self, channel: Channel) -> Node:
        """The best of the known brokers; a bootstrap address while none is known or all of them fail (KIP-899).

        A request for any broker does not wait for one that is slow to connect: its address may be dead."""
        now = self.now()
        ranked = [(*self._rank(node, channel, now), node) for node in self._metadata.brokers.values()]
        if not ranked or (self._config.rebootstraps and all(rank[0] >= _BACKING_OFF for rank in ranked)):
            ranked += [(*self._rank(node, channel, now), node) for node in self._bootstrap]
        return min(ranked)[-1]

    def _rank(self, node: Node, channel: Channel, now: int) -> tuple[int, int, float]:
        connection = self._connections.get((node.node_id, channel))
        if connection is not None and (connection.node.host, connection.node.port) == (node.host, node.port):
            ready = connection.state is ConnectionState.READY
            address = self._addresses.get((node.host, node.port))
            if not ready and address is not None and address.backoff.failures:
                return _BACKING_OFF, address.retry_at, random.random()
            if not ready and connection.slow_at <= now:
                return _SLOW, connection.load, random.random()
            return _READY if ready else _CONNECTING, connection.load, random.random()
        address = self._addresses.get((node.host, node.port))
        if address is not None and address.backoff.failures:
            return _BACKING_OFF, max(now, address.retry_at), random.random()
        return _UNTRIED, 0, random.random()

    # --- connecting --------------------------------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise ClosedError("the client has not been started")
        return self._loop

    def _address(self, node: Node) -> _Address:
        known = self._addresses.get((node.host, node.port))
        if known is None:
            known = self._addresses[node.host, node.port] = _Address(self._config, node)
        return known

    async def _connect(self, connection: Connection) -> None:
        node = connection.node
        address = self._address(node)
        if (wait_ms := address.retry_at - self.now()) > 0:
            await asyncio.sleep(wait_ms / 1000)
        try:
            handshake = await self._handshake(node)
            async with asyncio.timeout(address.setup_timeout.next_wait_ms() / 1000):
                transport = await self._open(connection, handshake)
            if not transport.is_closing():  # it may have been reset meanwhile
                set_options(transport.get_extra_info("socket"), self._config)
        except AuthenticationError as error:
            connection.close(_not_proved(node, error))
        except asyncio.CancelledError:  # the client is closing, and asyncio closes the socket
            self._retire(connection)
            raise
        # Metadata may name any host and port: NUL in a name is a ValueError, a port beyond 65535 an OverflowError.
        except (OSError, TimeoutError, ValueError, OverflowError, RuntimeError) as error:
            connection.close(_no_connection(node, error, self._access.tls is not None))
        except Exception as error:
            connection.fail(error)

    async def _open(self, connection: Connection, handshake: Handshake) -> asyncio.BaseTransport:
        node = connection.node
        connection.begin(handshake)
        try:
            return await self._create_connection(connection, node.host)
        except RuntimeError as error:
            # At interpreter shutdown asyncio has no thread left to resolve a host name in, but records may still
            # have to be sent. Blocking here does no harm then, so the name is resolved in this thread.
            failure: OSError | RuntimeError = error
        for *_, address in socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM):
            try:
                return await self._create_connection(connection, str(address[0]))
            except OSError as error:
                failure = error
        raise failure

    async def _create_connection(self, connection: Connection, host: str) -> asyncio.BaseTransport:
        node, context = connection.node, self._access.tls
        name = None if context is None else node.host
        loop = self._event_loop()
        made = await loop.create_connection(lambda: connection, host, node.port, ssl=context, server_hostname=name)
        return made[0]

    # --- for connections ---------------------------------------------------------------------------------------------

    def deliver(self, send: AnySend, answer: Any) -> None:
        """Deliver the answer to a request, then poll the cores."""
        now = self.now()
        if send.sent_at and not isinstance(answer, Failure):
            self.measures.answered(send.request_type.__name__, send.sent_at, now)
        try:
            send.on_reply(answer, now)
        except Exception as error:
            self.on_error(error)
        self.wakeup()

    def on_ready(self, connection: Connection) -> None:
        """The handshake has finished: the address works, and waiting requests can be sent."""
        address = self._addresses[connection.node.host, connection.node.port]
        address.connected()
        self._metadata.learn_features(*connection.features)
        self.measures.made += 1
        connection.flush()
        self._drop_bootstrap()

    def reauthenticate(self, connection: Connection) -> None:
        """The session is about to expire (KIP-368). Without a new proof, the connection can be used until then."""
        self._start_task(self._reauthenticate(connection))

    async def _reauthenticate(self, connection: Connection) -> None:
        try:
            proof = await self._proof()
        except AuthenticationError as error:
            log.warning("connection to %s will expire: could not re-authenticate: %s", connection.node, error)
            return
        assert proof is not None
        connection.restart_handshake(proof)

    def on_closed(self, connection: Connection, failure: Failure) -> None:
        """The connection broke: the next one to its address waits for a backoff, which grows with each failure."""
        self.measures.closed += connection.was_ready
        key = (connection.node.node_id, connection.channel)
        if self._connections.get(key) is not connection:
            return  # this connection was retired
        del self._connections[key]
        if self._closed:
            return
        if failure.kind is FailureKind.AUTHENTICATION:
            self._access.refused()
        now = self.now()
        address = self._address(connection.node)
        address.retry_at = now + address.backoff.next_wait_ms()
        # Each connection sends ApiVersions again: the broker may have been upgraded.
        address.is_old = connection.closed_in_handshake and self._config.broker_version_fallback is not None
        if connection.was_ready:
            log.info("connection to %s ended: %s", connection.node, failure.message)
        elif address.is_old:
            version = self._config.broker_version_fallback
            log.info("%s does not answer ApiVersions: assuming a broker of Kafka %s", connection.node, version)
        else:
            address.failed(failure.message, now)
        self._metadata.request_update(now)  # the broker may be down, and its partitions may have other leaders
        self.wakeup()

    def _drop_bootstrap(self) -> None:
        """Connections to bootstrap addresses are useless once their brokers are known by id."""
        if not self._metadata.brokers:
            return
        for (node_id, _), connection in list(self._connections.items()):
            if node_id <= _FIRST_BOOTSTRAP_ID and not connection.load:
                self._retire(connection)

    def _retire(self, connection: Connection) -> None:
        self._connections.pop((connection.node.node_id, connection.channel), None)
        connection.close(Failure(FailureKind.DISCONNECTED, "no longer needed"))

    # --- timeouts ----------------------------------------------------------------------------------------------------

    def schedule_check(self, when: int) -> None:
        """Run `_expire` at `when` at the latest. One timer serves all requests; an answer does not touch it."""
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._event_loop().call_later(max(1, when - self.now()) / 1000, self._expire)

    def _reroute(self, connection: Connection) -> None:
        """Requests for any broker are waiting for a slow connection: move them, because another may be ready sooner."""
        for waiting in connection.withdraw():
            found = self._submit(waiting.send, waiting.deadline)
            if found is not None:
                found.flush()

    def _expire(self) -> None:
        self._timer = None
        now = self.now()
        times: list[int] = []
        for connection in list(self._connections.values()):
            next_look = connection.expire(now)
            if connection.was_ready:
                connection.flush()  # it may have been throttled until now
            elif connection.slow_at <= now:
                self._reroute(connection)
            else:
                times.append(connection.slow_at)
            idle_ms = self._config.connections_max_idle_ms
            if next_look is None and idle_ms >= 0 and connection.state is ConnectionState.READY:
                next_look = connection.last_used + idle_ms
                if next_look <= now:
                    self._retire(connection)
                    continue
            if next_look is not None:
                times.append(next_look)
        if times:
            self.schedule_check(min(times))


_READY, _CONNECTING, _UNTRIED, _BACKING_OFF, _SLOW = range(5)
"""How suitable a broker is for a request that any broker can answer. A slow connection is kept: once ready, it is the
best."""


def _not_proved(node: Node, error: AuthenticationError) -> Failure:
    kind = FailureKind.UNREACHABLE if error.retriable else FailureKind.AUTHENTICATION
    return Failure(kind, f"no connection to {node.host}:{node.port}: {error}")


def _no_connection(node: Node, error: Exception, with_tls: bool) -> Failure:
    refused = tls.why_refused(error) if isinstance(error, ssl.SSLError) else None
    if refused is not None:
        return Failure(FailureKind.AUTHENTICATION, f"no connection to {node.host}:{node.port}: {refused}")
    if with_tls and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        why = "it was closed in the TLS handshake; does the port use TLS (security_protocol)?"
        return Failure(FailureKind.UNREACHABLE, f"no connection to {node.host}:{node.port}: {why}")
    return Failure(FailureKind.UNREACHABLE, _why_unreachable(node, error))


def _why_unreachable(node: Node, error: Exception) -> str:
    address = f"{node.host}:{node.port}"
    if isinstance(error, socket.gaierror | UnicodeError):  # a label may be empty, or too long for a host name
        why = error.strerror if isinstance(error, socket.gaierror) else "invalid host name"
        return f"no connection to {address}: its host name cannot be resolved: {why}"
    if isinstance(error, TimeoutError):
        return f"no connection to {address}: no answer in time"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error):
        return f"no connection to {address}: refused; is a broker listening there?"
    return f"no connection to {address}: {error}"


class Core(Protocol):
    """A core that `CoreLoop` polls."""

    def poll(self, now: int) -> Sequence[AnySend]:
        """The requests that are due."""

    def next_deadline(self, now: int) -> int | None:
        """When to poll again, if nothing arrives earlier."""


class CoreLoop:
    """Polls cores and dispatches their requests: after each arrival, at their deadlines, and on `wakeup`.

    `on_turn` is called after each round, for the face to see what has changed; it calls `wakeup` if it changed a
    core. An exception from a core is a defect: the loop stops, `error` holds it, and waiting callers raise it.
    """

    def __init__(self, driver: Driver, cores: Sequence[Core], on_turn: Callable[[int], None] | None = None) -> None:
        self.driver = driver
        self.cores = list(cores)
        self.error: Exception | None = None
        self._on_turn = on_turn
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to poll the cores, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.driver.wakeup = self.wakeup
        self.driver.on_error = self._stop
        await self.driver.start()
        self.wakeup()

    def wakeup(self) -> None:
        """Poll the cores soon. Call it only from the event loop's thread."""
        if not self._scheduled and self._loop is not None and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def attend(self, event: Event, lines: logging.Logger) -> None:
        """Handle an event of a core that is not for the user."""
        if isinstance(event, Note):
            lines.log(event.level, "%s", event.text)
        elif isinstance(event, Disconnect):
            self.driver.disconnect(event.node_id, Channel.COORDINATOR)

    async def wait_for(self, predicate: Callable[[], bool], timeout_ms: int | None = None) -> bool:
        """Wait until the predicate holds after a round. Returns False if the time is up first."""
        if predicate():
            return True
        if self.error is not None:
            raise self._failure()
        if self._closed:
            raise ClosedError("the client is closed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = predicate
        self.wakeup()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await waiter
        except TimeoutError:
            return predicate()
        finally:
            self._waiters.pop(waiter, None)
        return True

    async def close(self) -> None:
        """Stop polling the cores and close the connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.driver.close()
        self._fail_waiters(ClosedError("the client was closed during the call"))

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            now = self.driver.now()
            for core in self.cores:
                self.driver.dispatch(core.poll(now))
            if self._on_turn is not None:
                self._on_turn(now)
            self._check_waiters()
            self._arm()
        except Exception as error:
            self._stop(error)

    def _check_waiters(self) -> None:
        for waiter, predicate in list(self._waiters.items()):
            if waiter.done():
                continue
            try:
                if predicate():
                    waiter.set_result(None)
            except Exception as error:  # only for this waiter: what it waits for can no longer happen
                waiter.set_exception(error)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.driver.now()
        times = [when for core in self.cores if (when := core.next_deadline(now)) is not None]
        if times and self._loop is not None:
            # At least a millisecond: a core that has nothing to do at its own deadline must not spin.
            self._timer = self._loop.call_later(max(1, min(times) - now) / 1000, self.wakeup)

    def _stop(self, error: Exception) -> None:
        log.error("a client core failed", exc_info=error)
        self.error = error
        self._closed = True
        self._fail_waiters(self._failure())

    def _failure(self) -> MusterError:
        """The error of every call after the loop has stopped."""
        failure = MusterError(f"the client has stopped after an internal error; create a new one: {self.error!r}")
        failure.__cause__ = self.error
        failure.fatal = True
        return failure

    def _fail_waiters(self, error: MusterError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
