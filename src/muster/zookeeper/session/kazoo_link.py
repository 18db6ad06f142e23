"""One session with ZooKeeper over kazoo. No other file uses kazoo.

What it works around in kazoo 2.11:

- kazoo has one thread for answers and another for watches, so an answer may overtake the event of an earlier change.
  Here both are reported by the thread that reads the connection, in the order in which it read them (`_KazooHandler`).
- It automatically begins a new session when the old one has expired, and carries out requests meant for the old one in
  the new one. Here a KazooClient is used for one session only (`_on_state`).
- It reports the end of a session only when it has a connection again. Here the time of the last sign of life is taken
  from the frames on the wire (`socket_times.py`), and the owner of the session keeps time by its own clock.
- Without a connection it keeps requests forever, and it does not notice that a server is silent while more requests are
  sent to it. Here a request is refused while there is no connection, and `break_off` ends one.
- It waits for a server's first answer for the session timeout, divided by the number of servers. A server that has just
  started may never answer a request that arrived slightly too early. Here it waits for at most `GREETING_S`.
- It wakes its thread with one byte for each request, through a pair of sockets that takes 278 of them, and then blocks
  its caller, the event loop. Here fewer are in flight at a time (`MOST_UNDER_WAY`).
- When the connection is lost, all watches are gone: each is called once with type NONE, and not set again.
- A refused multi does not raise: its result is a list with an error for each part.
- `stop` and `close` block, and `stop` may be called only once: a separate thread does that (`end`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol import serialization
from kazoo.protocol.states import EventType, KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from muster.errors import IllegalArgumentError
from muster.zookeeper.base.operations import (
    BadVersionError,
    Check,
    ConnectionLossError,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotPermittedError,
    Operation,
    SessionExpiredError,
    SetData,
    Stat,
    Sync,
    Write,
    ZnodeChange,
    ZooKeeperError,
)
from muster.zookeeper.session.socket_times import Wire

MOST_UNDER_WAY = 128
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0
GREETING_S = 5.0
REFUSED_S = 5.0
"""A session is given up once servers have refused it for this long, or for the session timeout if that is longer."""
REFUSALS_APART_S = 10.0
"""Refusals further apart than this are unrelated."""
ORDERLY_END_S = 2.0
"""The time for a clean end of a session; then its connection is closed."""

_CHANGES = {
    EventType.CREATED: ZnodeChange.CREATED,
    EventType.DELETED: ZnodeChange.DELETED,
    EventType.CHANGED: ZnodeChange.DATA,
    EventType.CHILD: ZnodeChange.CHILDREN,
    EventType.NONE: ZnodeChange.LOST,
}
_ERRORS: tuple[tuple[type[Exception], type[ZooKeeperError]], ...] = (
    (kazoo_errors.NoNodeError, NoNodeError),
    (kazoo_errors.NodeExistsError, NodeExistsError),
    (kazoo_errors.BadVersionError, BadVersionError),
    (kazoo_errors.NotEmptyError, NotEmptyError),
    (kazoo_errors.NoChildrenForEphemeralsError, NoChildrenForEphemeralsError),
    (kazoo_errors.AuthFailedError, NotPermittedError),
    (kazoo_errors.SessionExpiredError, SessionExpiredError),
    (kazoo_errors.ConnectionLoss, ConnectionLossError),
    (kazoo_errors.OperationTimeoutError, ConnectionLossError),
    # The error of a request that arrived late on an old connection, which the server closes.
    (kazoo_errors.SessionMovedError, ConnectionLossError),
)
_logger = logging.getLogger("muster.zookeeper.kazoo")
# kazoo warns of lost connections, which the owner learns of from events.
_logger.setLevel(logging.ERROR)


def parse_address(address: str) -> tuple[list[str], str]:
    """The servers and the chroot ("" for none) of `host:port,host:port/chroot`.

    Raises:
        IllegalArgumentError: it is not a valid address.
    """
    try:
        hosts, chroot = collect_hosts(address)
    except ValueError:
        raise IllegalArgumentError(f"not a ZooKeeper address (HOST:PORT,HOST:PORT/CHROOT): {address!r}") from None
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts], (chroot or "").rstrip("/")


class KazooOwner(Protocol):
    """Receives the events of a session, on the event loop, in order."""

    def link_connected(self, link: Link) -> None:
        """There is a connection."""

    def link_suspended(self, link: Link) -> None:
        """The connection is lost."""

    def link_fired(self, link: Link, change: ZnodeChange, path: str) -> None:
        """A watch has fired, or is lost."""

    def link_expired(self, link: Link) -> None:
        """The session has ended; the link can no longer be used."""


class _KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without its two threads for callbacks: a callback is called in the thread that dispatches it."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """There is nothing to start: `running` stays False, so answers are delivered immediately."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start the thread of the connection."""
        self.thread = threading.Thread(target=func, args=args, kwargs=kwargs, name="muster-zookeeper", daemon=True)
        self.thread.start()
        return self.thread

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch."""
        callback.func(*callback.args)

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Wire:
        """Connect to one server. One that does not answer must not use up the session's timeout."""
        link = self._link
        try:
            most = min(timeout / link.server_count, GREETING_S)
            connected = super().create_connection(*args, timeout=most, **kwargs)
        except OSError as error:
            link.last_error = error.strerror or str(error)
            raise
        link.wire = Wire(connected, link.note_alive, link.note_timeout, link.note_refused)
        if link.is_given_up:
            link.wire.break_off()
        return link.wire

    def select(self, reads: Any, writes: Any, others: Any, timeout: float) -> Any:
        """Wait for the sockets; kazoo does this several times within the session timeout, whatever happens."""
        link = self._link
        link.end_without_loop()
        if link.wire is not None and link.wire.is_new:
            timeout = min(timeout, GREETING_S)
        return super().select(reads, writes, others, timeout)


class _Watcher:
    """The function that kazoo calls for a path. kazoo registers equal functions only once."""

    __slots__ = ("_link", "path")

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self.path = path

    def __call__(self, event: Any) -> None:
        self._link.fired(self.path, event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watcher) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


class Link:
    """One session: it connects, again and again, until it has expired or is ended.

    Its attributes are written by the thread of the connection and read by the event loop. Do not use it for a second
    session.
    """

    def __init__(self, hosts: list[str], timeout_ms: int, owner: KazooOwner) -> None:
        self.server_count = len(hosts)
        self.session_id = 0
        self.timeout_ms = timeout_ms
        """The granted timeout; until ZooKeeper has granted one, the requested timeout."""
        self.alive_at = 0.0
        """The monotonic time at which the last answered message was sent."""
        self.last_error = ""
        """Why the last attempt to connect failed."""
        self.wire: Wire | None = None
        self.is_given_up = False
        # The following attributes belong to the owner, on the event loop.
        self.is_connected = False
        self.is_doubted = True
        self.has_ended = False
        self.pending: dict[asyncio.Future[Any], str] = {}
        """The requests that kazoo has not answered yet, and the path of each."""
        self.gate = asyncio.Semaphore(MOST_UNDER_WAY)
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._refused_since = self._refused_at = -REFUSALS_APART_S
        self._is_ending = self._is_over = False
        self._when_over: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        """Guards the end of the session, which any thread may cause; it is held only briefly."""
        self._reported_event: object = None
        self._reported_paths: set[str] = set()
        self._handler = _KazooHandler(self)
        delays = KazooRetry(max_tries=-1, delay=FIRST_RETRY_S, max_delay=LAST_RETRY_S)
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=timeout_ms / 1000,
            handler=self._handler,
            connection_retry=delays,
            logger=_logger,
        )
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        """Begin to connect."""
        self._client.start_async()

    # --- in the thread of the connection -----------------------------------------------------------------------------

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.session_id = self._client.client_id[0]
            self._call_on_loop(self._owner.link_connected, self)
        elif state == KazooState.SUSPENDED:
            self._call_on_loop(self._owner.link_suspended, self)
        else:
            # From here kazoo would start a new session.
            self._client._stopped.set()
            self._call_on_loop(self._owner.link_expired, self)

    def fired(self, path: str, event: Any) -> None:
        """A watch was called. One event may call a path's watches of both data and children; it is reported once."""
        if event is not self._reported_event:
            self._reported_event = event
            self._reported_paths.clear()
        if path not in self._reported_paths:
            self._reported_paths.add(path)
            self._call_on_loop(self._owner.link_fired, self, _CHANGES[event.type], path)

    def note_alive(self, sent_at: float) -> None:
        """Something sent at that time was answered."""
        self.alive_at = max(self.alive_at, sent_at)

    def note_timeout(self, timeout_ms: int) -> None:
        """ZooKeeper has granted a session timeout."""
        self._refused_at = -REFUSALS_APART_S
        if timeout_ms > 0:
            self.timeout_ms = timeout_ms

    def note_refused(self) -> None:
        """A server has closed the connection in place of a greeting.

        Servers without a quorum do so for a while, and those restored from an older backup forever, because the session
        has seen newer transactions. So after the session timeout it is given up for a new one.
        """
        now = time.monotonic()
        if now - self._refused_at >= REFUSALS_APART_S:
            self._refused_since = now
        self._refused_at = now
        if self.session_id and now - self._refused_since > max(self.timeout_ms / 1000, REFUSED_S):
            self._on_state(KazooState.LOST)

    def end_without_loop(self) -> None:
        """End the session if the event loop ended without it: otherwise it would be kept alive for an owner that is
        gone."""
        if self._loop.is_closed():
            self.end()

    def _call_on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed
            self.end()

    # --- on the event loop -------------------------------------------------------------------------------------------

    def submit(self, what: Operation[Any] | Multi, chroot: str) -> asyncio.Future[Any]:
        """Send a request; the future gets its answer or its error."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.pending[future] = getattr(what, "path", "")
        sent = self._send(Multi(what) if isinstance(what, Check) else what, chroot)
        sent.rawlink(lambda result: self._call_on_loop(self._settle, future, what, chroot, result))
        return future

    def _settle(self, future: asyncio.Future[Any], what: Operation[Any] | Multi, chroot: str, result: Any) -> None:
        path = self.pending.pop(future, None)
        if path is None:  # kazoo may answer twice while it is being closed
            return
        self.gate.release()
        if future.done():  # its task was cancelled, or has been notified of a lost connection
            return
        try:
            future.set_result(_answer(what, chroot, result.get_nowait()))
        except ZooKeeperError as error:
            future.set_exception(error)
        except Exception as error:  # kazoo's own errors, and those that it raises if it does not understand the server
            future.set_exception(_translated(error, path))

    def _send(self, what: Operation[Any] | Multi, chroot: str) -> Any:
        client = self._client
        if isinstance(what, Multi):
            transaction = client.transaction()
            # kazoo's own methods accept neither a znode without data nor a sequential one without a name.
            transaction.operations.extend(_part(write, chroot) for write in what.writes)
            return transaction.commit_async()
        path = _full(what.path, chroot)
        match what:
            case GetData():
                return client.get_async(path, self._watcher(what))
            case GetChildren():
                return client.get_children_async(path, self._watcher(what))
            case Exists():
                return client.exists_async(path, self._watcher(what))
            case Create():
                return client.create_async(path, what.data, ephemeral=what.ephemeral, sequence=what.sequential)
            case SetData():
                return client.set_async(path, what.data, what.version)
            case Delete():
                return client.delete_async(path, what.version)
            case Sync():
                return client.sync_async(path)
        raise TypeError(f"not an operation: {what!r}")

    def _watcher(self, what: GetData | GetChildren | Exists) -> _Watcher | None:
        return _Watcher(self, what.path) if what.watch else None

    def fail_pending(self, make: Callable[[str], Exception]) -> None:
        """Fail all requests that wait for an answer."""
        for future, path in self.pending.items():
            if not future.done():
                future.set_exception(make(path))

    def break_off(self) -> None:
        """Give up the current connection; another one is tried."""
        if self.wire is not None:
            self.wire.break_off()

    def end(self, done: Callable[[], None] | None = None) -> None:
        """End the session in a thread of its own; `done` is called on the loop, even if it had already ended."""
        with self._lock:
            begins, self._is_ending = not self._is_ending, True
            if done is not None and not self._is_over:
                self._when_over.append(done)
                done = None
        if done is not None:
            self._call_on_loop(done)
        if begins:
            threading.Thread(target=self._end, name="muster-zookeeper-end", daemon=True).start()

    def _give_up(self) -> None:
        self.is_given_up = True
        self.break_off()

    def _end(self) -> None:
        thread = self._handler.thread
        orderly = threading.Timer(ORDERLY_END_S, self._give_up)
        orderly.daemon = True
        orderly.start()
        try:
            # Ends the session at ZooKeeper if there is a connection. It has no effect on a client that has stopped.
            with contextlib.suppress(Exception):
                self._client.stop()
            if thread is not None:
                thread.join()
            self._client.close()
        finally:
            orderly.cancel()
            with self._lock:
                self._is_over, waiting = True, self._when_over
            for done in waiting:
                self._call_on_loop(done)


def _full(path: str, chroot: str) -> str:
    return path if not chroot else chroot if path == "/" else chroot + path


def _part(write: Write[Any], chroot: str) -> Any:
    path = _full(write.path, chroot)
    match write:
        case Create():
            flags = write.ephemeral | write.sequential << 1
            return serialization.Create(path, write.data, OPEN_ACL_UNSAFE, flags)
        case SetData():
            return serialization.SetData(path, write.data, write.version)
        case Delete():
            return serialization.Delete(path, write.version)
        case Check():
            return serialization.CheckVersion(path, write.version)
    raise TypeError(f"not a write: {write!r}")


def _answer(what: Operation[Any] | Multi, chroot: str, value: Any) -> Any:
    """kazoo's answer, converted to ours; raises the error of a multi."""
    match what:
        case Multi():
            return _answers(what, chroot, value)
        case Check():
            return _answers(Multi(what), chroot, value)[0]
        case GetData():
            return value[0], _stat(value[1])
        case GetChildren():
            return sorted(value)
        case Exists():
            return None if value is None else _stat(value)
        case Create():
            return value[len(chroot) :]
        case SetData():
            return _stat(value)
    return None


def _answers(multi: Multi, chroot: str, values: list[Any]) -> list[Any]:
    for write, value in zip(multi.writes, values, strict=True):
        # The parts before and after the refused one have these errors.
        if isinstance(value, Exception) and not isinstance(
            value, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
        ):
            raise _translated(value, write.path)
    return [
        _answer(write, chroot, value) if not isinstance(write, Check) else None
        for write, value in zip(multi.writes, values, strict=True)
    ]


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.cversion, stat.ephemeralOwner, stat.czxid, stat.mzxid, stat.numChildren)


_NO_AUTHENTICATION = "muster connects to ZooKeeper without TLS or authentication"


def _translated(error: Exception, path: str) -> ZooKeeperError:
    if isinstance(error, kazoo_errors.SessionClosedRequireSaslError):
        return NotPermittedError(path, f"ZooKeeper requires SASL and closed the session: {_NO_AUTHENTICATION}")
    if isinstance(error, kazoo_errors.NoAuthError):
        return NotPermittedError(path, f"the ACL of {path} in ZooKeeper does not permit it: {_NO_AUTHENTICATION}")
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(path)
    return ZooKeeperError(path, f"{type(error).__name__} at {path}: {error}")
