"""The connections to the other brokers, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from enum import Enum
from typing import Any

from muster.broker.links.core import Done, LinkCore, LinkStep
from muster.clock import monotonic_ms
from muster.model import Node
from muster.protocol.primitives import Buffer, Request

log = logging.getLogger("muster.broker")


class Purpose(Enum):
    """The purpose of a request. Each has a connection of its own: requests that wait for a disk or for ZooKeeper must
    not hold up others."""

    MARKERS = "markers"
    VERIFICATION = "verification"


class Links:
    """This broker's connections, one to each broker for each purpose. The client id that the others see begins with
    `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._links: dict[tuple[Purpose, Node], _Link] = {}

    def ask(self, node: Node, purpose: Purpose, request: Request[Any], oldest: int, done: Done) -> None:
        """Send a request to a broker, in a version from `oldest` on. `done` gets the response; None if the broker
        cannot be reached, or has not answered in time. It may be called before this returns."""
        link = self._links.get((purpose, node))
        if link is None:
            core = LinkCore(f"{self._name}-{purpose.value}")
            link = self._links[purpose, node] = _Link(self._loop, node, core)
        link.ask(request, oldest, done)

    def keep(self, nodes: Iterable[Node]) -> None:
        """These are the brokers of the cluster: close the connections to others."""
        known = set(nodes)
        for key in [key for key in self._links if key[1] not in known]:
            self._links.pop(key).close()

    def close(self) -> None:
        """Close all connections."""
        self.keep(())


class _Link:
    """The connection to one broker, and its successors."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, core: LinkCore) -> None:
        self._loop = loop
        self._node = node
        self._core = core
        self._connection: _Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in_trouble = False

    def ask(self, request: Request[Any], oldest: int, done: Done) -> None:
        self._carry_out(self._core.ask(request, oldest, done, monotonic_ms()))

    def close(self) -> None:
        self._carry_out(self._core.closed())

    def is_current(self, connection: _Connection) -> bool:
        """Whether this is the connection in use. Reports from an earlier one may arrive late."""
        return self._connection is connection

    def made(self) -> None:
        self._carry_out(self._core.connected(monotonic_ms()))

    def received(self, data: bytes) -> None:
        self._carry_out(self._core.received(data, monotonic_ms()))

    def lost(self, why: str | None) -> None:
        self._carry_out(self._core.lost(monotonic_ms(), why))

    def _carry_out(self, step: LinkStep) -> None:
        if step.connect:
            self._connection = _Connection(self)
            self._connection.connecting = self._loop.create_task(self._connect(self._connection))
        if step.send and self._connection is not None:
            self._connection.send(step.send)
        if step.close and self._connection is not None:
            gone, self._connection = self._connection, None
            gone.end()
        self._report(step)
        self._arm()
        for done, response in step.answers:
            done(response)

    async def _connect(self, connection: _Connection) -> None:
        try:
            await self._loop.create_connection(lambda: connection, self._node.host, self._node.port)
        except OSError as error:
            if self.is_current(connection):
                self.lost(str(error))

    def _report(self, step: LinkStep) -> None:
        if step.trouble is not None and not self._in_trouble:
            log.warning("broker %d at %s:%d: %s", *self._node[:3], step.trouble)
        if step.trouble is not None or any(response is not None for _, response in step.answers):
            self._in_trouble = step.trouble is not None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._core.deadline()
        if due is not None:
            self._timer = self._loop.call_later(max(due - monotonic_ms(), 0) / 1e3 + 0.001, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        self._carry_out(self._core.on_deadline(monotonic_ms()))


class _Connection(asyncio.Protocol):
    """One connection. Nothing is reported after its end."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None

    def send(self, parts: list[Buffer]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._link.is_current(self):
            self._link.made()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._link.is_current(self):
            self._link.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._link.is_current(self):
            self._link.lost(None if error is None else str(error))
