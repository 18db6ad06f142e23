"""The common part of every process that coordinates groups: its port, its groups, and its event loop.

A broker adds topics and logs (broker.py); a coordinator for Apache Kafka has nothing else (coordinator_process.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Self

from muster.broker import handlers
from muster.broker.clock import TICK_S, SteadyClock
from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.groups.coordination import Coordination
from muster.broker.groups.service import Groups
from muster.broker.handlers import draft
from muster.broker.net.calls import Api
from muster.broker.net.connection_core import ConnectionCore
from muster.broker.net.server import Server
from muster.broker.operators import metrics as gathering
from muster.clock import wall_clock_ms
from muster.coordinator.groups.effects import GroupEvent
from muster.errors import MusterError
from muster.metrics.families import Buckets, Family
from muster.model import Node
from muster.version import __version__

log = logging.getLogger("muster.broker")

LATENCY_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000)
"""The bucket bounds for request times."""


class GroupServer:
    """One such process, on the running loop; a context manager.

    Args:
        on_event: called with each event of a group, in addition to the log message.
    """

    def __init__(self, config: BrokerConfig, on_event: Callable[[GroupEvent], None] | None = None) -> None:
        self.config = config
        self.cluster: ClusterView
        self.coordination: Coordination
        self.groups: Groups
        self.loop: asyncio.AbstractEventLoop
        self.on_rest: Callable[[], None] = lambda: None
        """Called periodically while no large request is in progress."""
        self._listeners = [on_event] if on_event is not None else []
        self._clock = SteadyClock()
        self.measure = False
        """Whether request times are measured; set it before the start."""
        self._server: Server
        self._ticking: asyncio.TimerHandle | None = None
        self.started_at: int | None = None
        self._started = False

    @property
    def ends(self) -> list[asyncio.Event]:
        """Events, each set when this process cannot continue; the owner then stops it."""
        raise NotImplementedError

    async def start(self) -> None:
        """Open the port."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Answer the requests that can be answered, and close the port. A second call does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------- its address

    @property
    def node(self) -> Node:
        """This process's id and advertised address."""
        return self.cluster.node

    @property
    def bootstrap(self) -> str:
        """The advertised address, for `bootstrap.servers`."""
        host = f"[{self.node.host}]" if ":" in self.node.host else self.node.host
        return f"{host}:{self.node.port}"

    def _advertised(self) -> Node:
        """This process's advertised address; the port may be chosen by the system."""
        host, port = self.config.advertised
        node_id, rack = self.config.integer("node.id"), self.config.text_or_none("broker.rack")
        return Node(node_id, host, port or self.config.listener[1], rack)

    @property
    def apis(self) -> dict[int, Api]:
        """The APIs that are served, by API key; looked up for each request."""
        return self._server.tables[0]

    def refuse(self) -> Callable[[], None]:
        """See `Server.refuse`."""
        return self._server.refuse()

    @property
    def connections(self) -> Iterable[ConnectionCore]:
        """The open connections."""
        return list(self._server.connections)

    # ------------------------------------------------------------------------------------- for operators

    def watch_events(self, listener: Callable[[GroupEvent], None]) -> None:
        """Add a listener for the events of groups; before the start."""
        self._listeners.append(listener)

    def trouble(self) -> str | None:
        """Why it does not serve, or only in part; None if it serves everything."""
        if not self._started:
            return "it is starting, or stopping"
        if any(end.is_set() for end in self.ends):
            return "it has failed and is stopping"
        if not self.coordination.may_serve():
            return "ZooKeeper does not answer: groups are waiting for it"
        if self.groups.runtime.is_loading:
            return "groups are being loaded"
        return None

    def gather(self, events: Mapping[type[GroupEvent], int]) -> gathering.Steps:
        """All metrics, a slice at a time. `events` counts the events so far by type."""
        found = gathering.of_state(self._started, self.started_at, __version__)
        if not self._started:
            return found
        apis = [api for table in self._server.tables for api in table.values()]
        found += gathering.of_requests(apis) + gathering.of_connections(self._server.connections)
        found += yield from gathering.of_groups(self.groups.runtime, events)
        found += yield from self._gather_more()
        return found

    def gather_later(self, events: Mapping[type[GroupEvent], int], done: Callable[[list[Family]], None]) -> None:
        """`gather` between requests; `done` is called with the result, unless this process stops first."""

        def work() -> Generator[None, None, None]:
            done((yield from self.gather(events)))

        if self._started:
            self._server.slices.add(work(), wanted=lambda: True)
        else:
            for _ in work():
                pass

    def _gather_more(self) -> gathering.Steps:
        """Metrics of this type of process only."""
        yield from ()
        return []

    # ------------------------------------------------------------------------------------- the port

    async def _bind(self, apis: dict[int, Api], on_turn: Callable[[], None] = lambda: None) -> None:
        """Open the ports of both listeners; connections wait until `accept`."""
        config = self.config
        host, port = config.listener
        self._server = Server(
            apis,
            unsupported=handlers.unsupported(),
            max_connections=config.integer("max.connections"),
            max_request_bytes=config.integer("socket.request.max.bytes"),
            max_bytes_in_flight=config.integer("queued.max.request.bytes"),
            max_unread_bytes=config.integer("queued.max.response.bytes"),
            max_idle_ms=config.integer("connections.max.idle.ms"),
            backlog=config.integer("socket.listen.backlog.size"),
            on_turn=on_turn,
            on_rest=lambda: self.on_rest(),
        )
        bound = await self._bind_one(host, port, apis)
        if not config.advertised[1]:
            self.cluster.node = self.node._replace(port=bound)
        if config.draft_listener is not None:
            drafts = draft.table(self.cluster, self.groups, apis)
            bound = await self._bind_one(*config.draft_listener, drafts)
            self.cluster.draft_node = Node(self.node.node_id, config.draft_advertised, bound)
        if self.measure:
            for table in self._server.tables:
                for api in table.values():
                    api.latency = Buckets(LATENCY_MS)

    async def _bind_one(self, host: str, port: int, apis: dict[int, Api]) -> int:
        try:
            return await self._server.bind(host, port, apis)
        except OSError as error:
            raise MusterError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None

    def _accept(self) -> None:
        """Start serving."""
        self._server.accept()
        self.started_at = wall_clock_ms()
        self._clock.begin()  # recovery of a large folder, or waiting for a free id, may have delayed the start
        self._tick()
        self._started = True

    # ------------------------------------------------------------------------------------- turns of the loop

    def _tick(self) -> None:
        """Read the clock regularly: a long gap between readings means that the process was stopped."""
        before = self._clock.stalled_ms
        self._clock()
        if self._clock.stalled_ms > before:
            log.warning(
                "this process was stopped for %.1f s: sessions continue from where they were",
                (self._clock.stalled_ms - before) / 1e3,
            )
        if not len(self._server.slices):
            self.on_rest()
        self._ticking = self.loop.call_later(TICK_S, self._tick)

    def _accept_no_more(self) -> bool:
        """The first step of a stop: accept no connections, drop the queue. False if there is nothing to stop."""
        if not self._started:
            return False
        self._started = False
        if self._ticking is not None:
            self._ticking.cancel()
        self._server.stop_listening()
        self._server.slices.stop()
        return True
