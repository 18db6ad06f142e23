"""A session with ZooKeeper for asyncio: it carries out plans, and reports in time that it may have expired."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from muster.client.net import forks
from muster.errors import ClosedError, IllegalStateError
from muster.zookeeper.base.operations import (
    Ask,
    ConnectionLossError,
    Exists,
    Multi,
    NoNodeError,
    Operation,
    Plan,
    Reconnected,
    SessionEvent,
    SessionExpiredError,
    SessionId,
    Several,
    Watched,
    ZnodeChange,
    ask,
    check_request,
    ensure_path,
)
from muster.zookeeper.session.kazoo_link import Link, parse_address

A = TypeVar("A")
T = TypeVar("T")

Listener = Callable[["Watched | SessionEvent"], None]
Others = Callable[[Ask[Any]], Awaitable[Any]]
"""Carries out the asks of a plan that are not ZooKeeper's."""

START_TIMEOUT_MS = 10_000
NEXT_SESSION_S = 0.1
CLOSE_S = 5.0


class ZooKeeperSession(forks.NotPicklable):
    """A session, and the next one after it has expired.

        async with ZooKeeperSession("host1:2181,host2:2181/chroot") as session:
            await session.ask(Create("/mine", b"data", ephemeral=True))
            owned = await session.run(some_plan())

    It belongs to the event loop and the process in which it was started, and must be closed: otherwise its ephemeral
    znodes remain until the event loop ends. Everything is reported in ZooKeeper's order: an event before the answer to
    any request that shows a later state. Without a connection a request is refused with ConnectionLossError, and
    nothing is retried; a plan may wait (`Reconnected`).

    Args:
        address: `host:port,host:port/chroot`; all paths are below the chroot.
        timeout_ms: the session ends when ZooKeeper has not heard from it for this long. ZooKeeper may grant another
            value because of its limits: see the attribute of the same name.
        create_chroot: create the chroot at the start if it is missing.
    """

    def __init__(self, address: str, *, timeout_ms: int = 6_000, create_chroot: bool = False) -> None:
        self._address = address
        self._hosts, self._chroot = parse_address(address)
        if self._chroot:
            check_request(Exists(self._chroot))
        self._requested_timeout_ms = timeout_ms
        self._create_chroot = create_chroot
        self._listeners: list[Listener] = []
        self._forks = forks.count
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._current: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    # --- beginning and end -------------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int = START_TIMEOUT_MS) -> None:
        """Connect, and make sure that the chroot exists.

        Raises:
            ConnectionLossError: no ZooKeeper has answered in time.
            NoNodeError: the chroot does not exist, and `create_chroot` is off.
        """
        if self._loop is not None:
            raise IllegalStateError("this ZooKeeperSession was started already")
        self._loop = asyncio.get_running_loop()
        self._keeper = asyncio.create_task(self._keep())
        self._begin()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.run(ask(Reconnected()))
                if self._chroot:
                    await self._ensure_chroot()
        except TimeoutError:
            reason = self._link().last_error or "no answer"
            await self.close()
            raise ConnectionLossError(
                "", f"no ZooKeeper answered at {','.join(self._hosts)} within {timeout_ms} ms: {reason}"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def _ensure_chroot(self) -> None:
        if self._create_chroot:
            await self._carry_out(ensure_path(self._chroot), None, "")
        elif await self._ask(self._link(), Exists(self._chroot), "") is None:
            raise NoNodeError(
                self._chroot, f"the chroot {self._chroot} does not exist in the ZooKeeper at {','.join(self._hosts)}"
            )

    async def _keep(self) -> None:
        """Notice that the event loop ends without `close`: asyncio.run cancels the remaining tasks."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._current is not None:
                self._current.end()

    def _begin(self) -> None:
        if not self._is_closed:
            self._current = Link(self._hosts, self._requested_timeout_ms, self)
            self._current.start()

    async def close(self) -> None:
        """End the session, and with it its ephemeral znodes if ZooKeeper can be reached; waits for at most a few
        seconds. Requests in flight fail with ClosedError. A second call does nothing."""
        self._check_process()
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is None or self._current is None:
            return
        link = self._current
        if self._loop is not asyncio.get_running_loop():
            link.end()
            return
        if self._timer is not None:
            self._timer.cancel()
        link.fail_pending(lambda _: ClosedError("the session was closed"))
        self._wake(ClosedError("the session was closed"))
        ended = self._loop.create_future()
        link.end(lambda: None if ended.done() else ended.set_result(None))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await ended
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def __aenter__(self) -> ZooKeeperSession:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- events and state --------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Call a function on the event loop with every `Watched` and `SessionEvent` from now on, in order.

        It must not block. It may be added before the start.
        """
        self._listeners.append(listener)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as the event loop has learned."""
        return self._current is not None and self._current.is_connected

    @property
    def is_live(self) -> bool:
        """Whether ZooKeeper was heard from within two thirds of the timeout, by the clock, whatever events are pending.

        While it is true, no other session sees this one as expired. A process that was stopped can check it
        immediately.
        """
        link = self._current
        return (
            link is not None and not self._is_closed and link.session_id != 0 and time.monotonic() < _doubted_at(link)
        )

    @property
    def session_id(self) -> int:
        """The id of the current session, as in `Stat.ephemeral_owner`; 0 before it has one."""
        return 0 if self._current is None else self._current.session_id

    @property
    def timeout_ms(self) -> int:
        """The timeout of the session that ZooKeeper has granted."""
        return self._requested_timeout_ms if self._current is None else self._current.timeout_ms

    def _notify(self, event: Watched | SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:
                context = {"message": f"a listener of a ZooKeeperSession failed at {event}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, what: Ask[A]) -> A:
        """Carry out one request; returns its answer, or raises its error.

        If the task is cancelled meanwhile, the request may or may not be carried out.
        """
        answer: A = await self._ask(self._link(), what, self._chroot)
        return answer

    async def run(self, plan: Plan[T], others: Others | None = None) -> T:
        """Carry out a plan. It belongs to the current session: once that has ended, SessionExpiredError is raised in
        the plan. `others` carries out the asks that are not ZooKeeper's; its errors are raised in the plan, too.
        """
        return await self._carry_out(plan, others, self._chroot)

    async def _carry_out(self, plan: Plan[T], others: Others | None, chroot: str) -> T:
        link = self._link()
        try:
            what = next(plan)
            while True:
                try:
                    answer = await self._answer(link, what, others, chroot)
                except Exception as error:
                    what = plan.throw(error)
                else:
                    what = plan.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            plan.close()

    async def _answer(self, link: Link, what: Ask[Any], others: Others | None, chroot: str) -> Any:
        if isinstance(what, Operation | Multi | Several | SessionId | Reconnected):
            return await self._ask(link, what, chroot)
        if others is None:
            raise TypeError(f"unknown request: {what!r}")
        return await others(what)

    async def _ask(self, link: Link, what: Ask[Any], chroot: str) -> Any:
        if isinstance(what, Several):
            asked = [self._ask(link, each, chroot) for each in what.asks]
            return await asyncio.gather(*asked, return_exceptions=True)
        path = getattr(what, "path", "")
        self._check_open(link, path)
        if isinstance(what, SessionId):
            if not link.session_id:
                raise ConnectionLossError
            return link.session_id
        if isinstance(what, Reconnected):
            return await self._reconnected(link)
        if not isinstance(what, Operation | Multi):
            raise TypeError(f"unknown request: {what!r}")
        check_request(what, chroot)
        await link.gate.acquire()
        # The session may have ended while this request waited.
        try:
            self._check_open(link, path)
            if not link.is_connected:
                raise ConnectionLossError(path)
            answer = link.submit(what, chroot)
        except BaseException:
            link.gate.release()
            raise
        return await answer

    async def _reconnected(self, link: Link) -> None:
        if not link.is_connected:
            assert self._loop is not None
            waiting = self._loop.create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)

    def _link(self) -> Link:
        self._check_process()
        if self._is_closed:
            raise ClosedError("the session was closed")
        if self._current is None:
            raise IllegalStateError("this ZooKeeperSession was not started")
        return self._current

    def _check_open(self, link: Link, path: str) -> None:
        self._check_process()
        if self._is_closed:
            raise ClosedError("the session was closed")
        if link.has_ended:
            raise SessionExpiredError(path)

    def _check_process(self) -> None:
        if self._forks != forks.count:
            raise forks.orphaned("ZooKeeperSession")

    def _wake(self, error: Exception | None) -> None:
        """Let all callers that wait for a connection continue or fail."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    # --- events of the link (KazooOwner) -----------------------------------------------------------------------------

    def link_connected(self, link: Link) -> None:
        """There is a connection."""
        if self._is_closed or link is not self._current:
            return
        link.is_connected, link.is_doubted = True, False
        if self._timer is None:
            self._watch_over()
        self._notify(SessionEvent.CONNECTED)
        self._wake(None)

    def link_suspended(self, link: Link) -> None:
        """The connection is lost: requests in flight may or may not be carried out."""
        if self._is_closed or link is not self._current or not link.is_connected:
            return
        link.is_connected = False
        link.fail_pending(ConnectionLossError)
        self._notify(SessionEvent.SUSPENDED)

    def link_fired(self, link: Link, change: ZnodeChange, path: str) -> None:
        """A watch has fired, or is lost."""
        if not self._is_closed and link is self._current:
            self._notify(Watched(change, path))

    def link_expired(self, link: Link) -> None:
        """The session has ended; another one begins."""
        if self._is_closed or link is not self._current or link.has_ended:
            return
        link.is_connected, link.is_doubted, link.has_ended = False, True, True
        link.fail_pending(SessionExpiredError)
        link.end()
        self._notify(SessionEvent.EXPIRED)
        self._wake(SessionExpiredError())
        assert self._loop is not None
        self._loop.call_later(NEXT_SESSION_S, self._begin)

    def _watch_over(self) -> None:
        """Doubt the session when nothing was received from ZooKeeper for too long, whatever kazoo reports."""
        self._timer = None
        link = self._current
        if self._is_closed or link is None or link.is_doubted:
            return
        assert self._loop is not None
        left = _doubted_at(link) - time.monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch_over)
            return
        link.is_doubted = True
        link.break_off()
        self.link_suspended(link)
        self._notify(SessionEvent.DOUBTED)


def _doubted_at(link: Link) -> float:
    return link.alive_at + link.timeout_ms / 1000 * 2 / 3
