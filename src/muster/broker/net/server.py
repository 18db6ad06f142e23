"""The port: connections are accepted here, checked periodically, and closed at the end.

When the process runs out of file descriptors, connections wait to be accepted until some are free again. Some are
reserved for the logs, so that a peer with many connections cannot make them fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable
from time import monotonic

from muster.broker.net.calls import Api, Service, Unsupported
from muster.broker.net.connection import ServerConnection, Shared
from muster.broker.net.connections import Connections
from muster.broker.net.intake import Intake
from muster.broker.net.slices import Slices
from muster.broker.net.sockets import Sockets, SocketTransport

ACCEPT_AT_ONCE = 100
ACCEPT_AGAIN_S = 0.5
LOOK_S = 5.0
"""Seconds between two searches for requests that no code can answer any longer."""

_KEPT_BACK = 64
"""Descriptors reserved for the logs; at most a quarter of all."""

_NO_MORE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Server:
    """All connections of a broker, and what they share."""

    def __init__(
        self,
        apis: dict[int, Api],
        *,
        unsupported: Unsupported | None = None,
        max_connections: int,
        max_request_bytes: int,
        max_bytes_in_flight: int,
        max_unread_bytes: int,
        max_idle_ms: int,
        backlog: int,
        on_turn: Callable[[], None] = lambda: None,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.slices = Slices(self.loop, on_rest)
        self.intake = Intake(max_bytes_in_flight if max_bytes_in_flight >= 0 else 1 << 62, self.loop)
        self.connections = Connections(
            max_connections=max_connections,
            max_unread_bytes=max_unread_bytes,
            max_idle_ms=max_idle_ms,
            clock=monotonic,
        )
        service = Service(apis, unsupported, max_request_bytes, self.intake, self.slices, on_turn, monotonic)
        self.shared = Shared(self.loop, service, self.connections)
        self.tables = [apis]
        """The handlers of each listener, by API key."""
        self._backlog = backlog
        self._listening: dict[socket.socket, Shared] = {}
        """The sockets that listen, and what the connections of each share."""
        self._sockets = Sockets(self.loop)
        self._highest_descriptor = 1 << 30
        self._sweep: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------- the port

    async def bind(self, host: str, port: int, apis: dict[int, Api] | None = None) -> int:
        """Open a port; connections wait until `accept`. Returns the port. With `apis`, only these serve it. If
        it cannot be opened, nothing is left open."""
        self._keep_descriptors_back()
        shared = self.shared
        if apis is not None and apis is not shared.service.apis:
            self.tables.append(apis)
            service = shared.service._replace(apis=apis, unsupported=None)
            shared = Shared(self.loop, service, self.connections)
        try:
            found = await self.loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(found):
                listening = _listen(family, (address[0], port, *address[2:]), self._backlog)
                self._listening[listening] = shared
                port = listening.getsockname()[1]
        except BaseException:
            self.stop_listening()
            self._sockets.close()
            raise
        return int(port)

    def accept(self) -> None:
        """Accept connections from now on."""
        for listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)
        if self.connections.sweep_s is not None:
            self._schedule_sweep(self.connections.sweep_s)
        self._look = self.loop.call_later(LOOK_S, self._close_forgotten)

    def _keep_descriptors_back(self) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY:
            self._highest_descriptor = most - min(_KEPT_BACK, most // 4)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_MORE:
                    raise
                self.connections.refused.warn(f"cannot accept connections: {error.strerror}; trying again")
                self.loop.remove_reader(listening)
                self.loop.call_later(ACCEPT_AGAIN_S, self._accept_again, listening)
                return
            if accepted.fileno() >= self._highest_descriptor:
                accepted.close()
                self.connections.refused.warn(
                    "refused a connection: the remaining file descriptors are reserved for the logs"
                )
                continue
            accepted.setblocking(False)
            try:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:  # the peer has gone already
                accepted.close()
                continue
            SocketTransport(self._sockets, accepted, peer, ServerConnection(self._listening[listening]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)

    def refuse(self) -> Callable[[], None]:
        """Refuse new connections, as a host without a broker does; returns a function that accepts them again. For
        tests."""
        closed = [(each.family, each.getsockname(), shared) for each, shared in self._listening.items()]
        listening, self._listening = self._listening, {}
        for one in listening:
            self.loop.remove_reader(one)
            one.close()

        def accept_again() -> None:
            for family, address, shared in closed:
                again = _listen(family, address, self._backlog)
                self._listening[again] = shared
                self.loop.add_reader(again, self._accept, again)

        return accept_again

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self.connections.admit_no_more()
        if self._sweep is not None:
            self._sweep.cancel()
        if self._look is not None:
            self._look.cancel()
        listening, self._listening = self._listening, {}
        for one in listening:
            self.loop.remove_reader(one)
            one.close()

    async def close(self) -> None:
        """Accept no more connections; end the open ones after their answers were sent."""
        self.stop_listening()
        self.intake.stop()
        for connection in self.connections:
            connection.end()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)  # the transports close
        await asyncio.sleep(0)  # the connections notice
        self._sockets.close()

    # ------------------------------------------------------------------------------------- periodic checks

    def _schedule_sweep(self, after: float) -> None:
        self._sweep = self.loop.call_later(after, self._close_idle, after)

    def _close_idle(self, after: float) -> None:
        self.connections.close_idle()
        self._schedule_sweep(after)

    def _close_forgotten(self) -> None:
        self.connections.close_forgotten()
        self._look = self.loop.call_later(LOOK_S, self._close_forgotten)


def _listen(family: int, address: tuple[object, ...], backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(OSError):
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
