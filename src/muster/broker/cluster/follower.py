"""Follows ZooKeeper: repeats turns on a session for as long as this process runs.

Every event of the session triggers a turn, which looks at the whole state and does the remaining work. So the next turn
finishes the work of a failed one. A broker follows its cluster this way (zookeeper_cluster.py), and a coordinator for
Apache Kafka follows Kafka's (coordinator_process.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from muster.errors import MusterError
from muster.zookeeper.base.image import ClusterImage
from muster.zookeeper.base.operations import (
    ConnectionLossError,
    NotPermittedError,
    Plan,
    SessionEvent,
    SessionExpiredError,
    Watched,
    ZooKeeperError,
)
from muster.zookeeper.cluster.scheme import IdTakenError

log = logging.getLogger("muster.broker")

T = TypeVar("T")

PAUSE_S = 0.2
"""The delay between a failed turn and the next."""

RETRY_TAKEN_S = 0.5
TAKEN_MORE_S = 1.0
"""After this many session timeouts, an id that is still registered belongs to another live process."""

START_TRIES = 5


class Session(Protocol):
    """What is needed from a session; `muster.zookeeper.session.session.ZooKeeperSession` is one."""

    @property
    def timeout_ms(self) -> int: ...

    @property
    def is_live(self) -> bool: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def listen(self, listener: Callable[[Watched | SessionEvent], None], /) -> None: ...

    async def run(self, plan: Plan[T], /) -> T: ...


class Follower:
    """A process with a session, and an id that no other process may have. A subclass defines a turn. `node_id` is also
    its id as a group coordinator.
    """

    def __init__(self, node_id: int, session: Session, image: ClusterImage) -> None:
        self.node_id = node_id
        self.session = session
        self.image = image
        self.lost = asyncio.Event()
        """Set when another process has taken this one's id. The owner stops this process."""
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._failing = False

    # ----------------------------------------------------------------------------------------------- a subclass's own

    suspended = ""
    """For the log message about a lost connection: what happens to requests."""

    @property
    def is_registered(self) -> bool:
        """Whether this process is registered, as far as it knows."""
        raise NotImplementedError

    def _on_session_event(self, event: Watched | SessionEvent) -> bool:
        """Handle an event of the session; returns whether a turn is due."""
        raise NotImplementedError

    async def _turn(self) -> None:
        """Do the remaining work in ZooKeeper, and then in this process.

        Raises:
            IdTakenError: try again, until the session of a dead process would have ended.
            ZooKeeperError: try again, unless this is the first turn and the request is not permitted.
            MusterError: this process cannot continue.
        """
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------- start and stop

    async def _open(self) -> None:
        """Start the session."""
        self.session.listen(self._on_event)
        await self.session.start()

    async def _at_start(self, plan: Callable[[], Plan[T]]) -> T:
        """Run a plan, with retries if the connection breaks."""
        for _ in range(START_TRIES - 1):
            try:
                return await self.session.run(plan())
            except (ConnectionLossError, SessionExpiredError):
                await asyncio.sleep(PAUSE_S)
        return await self.session.run(plan())

    async def _begin(self) -> None:
        """Start taking turns; returns after the first that succeeds.

        Raises:
            IdTakenError: another process has had this id for longer than a dead session could keep it.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(begun))
        self._wake.set()
        await begun

    async def leave(self) -> None:
        """End the session: the others see this process leave immediately."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self.session.close()

    # ----------------------------------------------------------------------------------------------- turns

    def _on_event(self, event: Watched | SessionEvent) -> None:
        if event is SessionEvent.SUSPENDED:
            log.warning("the connection to ZooKeeper is lost: %s", self.suspended)
        elif event is SessionEvent.EXPIRED:
            log.warning("the session with ZooKeeper has expired: registering again")
        if self._on_session_event(event) or event is SessionEvent.CONNECTED:
            self._wake.set()

    def wake(self) -> None:
        """Request a turn soon."""
        self._wake.set()

    async def _keep(self, begun: asyncio.Future[None]) -> None:
        taken_since: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = 0.0
            try:
                await self._first_or_later_turn(begun)
                taken_since = None
            except IdTakenError as error:
                most_s = self.session.timeout_ms / 1000 * 1.5 + TAKEN_MORE_S
                if taken_since is None:
                    taken_since = loop.time()
                    log.info("%s: waiting for a dead session to expire, at most %.0f s", error, most_s)
                if loop.time() - taken_since > most_s:
                    self._gone(error, begun)
                    return
                pause = RETRY_TAKEN_S
            except (ZooKeeperError, OSError) as error:  # an OSError comes from this process's disk
                self._say_failing(error)
                pause = PAUSE_S
            except MusterError as error:
                self._gone(error, begun)
                return
            except Exception as error:
                log.exception("following the cluster failed")
                self._gone(error, begun)
                return
            if pause:
                await asyncio.sleep(pause)
                self._wake.set()

    async def _first_or_later_turn(self, begun: asyncio.Future[None]) -> None:
        try:
            await self._turn()
        except NotPermittedError as error:
            if begun.done():
                raise
            raise MusterError(str(error)) from None  # trying again would not help
        if not begun.done():
            begun.set_result(None)

    def _gone(self, error: Exception, begun: asyncio.Future[None]) -> None:
        if begun.done():
            log.critical("%s; this process stops", error)
            self.lost.set()
        else:
            begun.set_exception(error)

    def _say_failing(self, error: Exception) -> None:
        if not self._failing:
            log.warning("following the cluster failed, trying again: %s", error)
        self._failing = True

    def _succeeded(self) -> None:
        """ZooKeeper's part of a turn has succeeded."""
        if self._failing:
            log.info("following the cluster again")
        self._failing = False
