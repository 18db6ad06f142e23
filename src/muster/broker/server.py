"""The port: connections are accepted, counted and closed here; what they share is kept here.

When the process runs out of descriptors, connections wait to be accepted until there are some again; and some are
kept back for the logs, which a peer with many connections must not bring down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable

from muster.broker.calls import Api, Unsupported
from muster.broker.connection import READ_BYTES, Connection
from muster.broker.intake import Intake
from muster.broker.slices import Slices

log = logging.getLogger("muster.broker")

ACCEPT_AT_ONCE = 100
ACCEPT_AGAIN_S = 0.5
SAY_AGAIN_S = 5.0
"""Between two lines about connections that could not be taken."""

LOOK_S = 5.0
"""Between two looks for requests that nobody answers."""

_KEPT_BACK = 64
"""Descriptors that connections leave for the logs; a quarter, where there are few."""

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
        self.apis = apis
        self.unsupported = unsupported
        self.max_request_bytes = max_request_bytes
        self.connections: set[Connection] = set()
        self.turn_done = on_turn
        self.read_view = memoryview(bytearray(READ_BYTES))
        self.slices = Slices(self.loop, on_rest)
        self.intake = Intake(max_bytes_in_flight if max_bytes_in_flight >= 0 else 1 << 62, self.loop)
        self._max_connections = max_connections
        self._max_unread_bytes = max_unread_bytes if max_unread_bytes >= 0 else 1 << 62
        self._max_idle_s = max_idle_ms / 1000 if max_idle_ms >= 0 else None
        self._backlog = backlog
        self._unread_bytes = 0
        # In order of progress: the first is the one that has taken nothing for the longest time.
        self._unread: dict[Connection, None] = {}
        self._to_flush: list[Connection] = []
        self._listening: list[socket.socket] = []
        self._accepting: set[asyncio.Task[object]] = set()
        self._highest_descriptor = 1 << 30
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._refused = Seldom(self.loop.time)

    # ------------------------------------------------------------------------------------- the port

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port."""
        self._keep_descriptors_back()
        found = await self.loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._listening.append(_listen(family, (address[0], port, *address[2:]), self._backlog))
                port = self._listening[0].getsockname()[1]
        except OSError:
            self.stop_listening()
            raise
        for listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)
        if self._max_idle_s is not None:
            self._schedule_sweep()
        self._look = self.loop.call_later(LOOK_S, self._look_for_forgotten)
        return int(port)

    def _keep_descriptors_back(self) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY:
            self._highest_descriptor = most - min(_KEPT_BACK, most // 4)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_MORE:
                    raise
                self._refused.warn(f"cannot accept connections: {error.strerror}; trying again until it can be done")
                self.loop.remove_reader(listening)
                self.loop.call_later(ACCEPT_AGAIN_S, self._accept_again, listening)
                return
            if accepted.fileno() >= self._highest_descriptor:
                accepted.close()
                self._refused.warn("refused a connection: the file descriptors that are left are for the logs")
                continue
            accepted.setblocking(False)
            task = self.loop.create_task(self._serve(accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: Connection(self), accepted)
        except OSError:
            accepted.close()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._look is not None:
            self._look.cancel()
        listening, self._listening = self._listening, []
        for one in listening:
            self.loop.remove_reader(one)
            one.close()

    async def close(self) -> None:
        """Take no more connections; end those that are there, after what is answered was sent."""
        self.stop_listening()
        self.intake.stop()
        for connection in list(self.connections):
            connection.end()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    # ------------------------------------------------------------------------------------- what connections share

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection may stay."""
        if len(self.connections) >= self._max_connections or not self._listening:
            self._refused.warn(f"refused the connection of {connection.peer}: max.connections={self._max_connections}")
            return False
        self.connections.add(connection)
        return True

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self.intake.lost(connection)
        self.count_unread(connection, 0)

    def count_unread(self, connection: Connection, size: int) -> None:
        """Take note of what a connection's peer has not taken; if that is too much in all, the slowest has to go."""
        self._unread_bytes += size - connection.unread
        if size < connection.unread or not size:
            self._unread.pop(connection, None)
        connection.unread = size
        if size:
            self._unread.setdefault(connection)
        while self._unread_bytes > self._max_unread_bytes and self._unread:
            slowest = next(iter(self._unread))
            self._unread_bytes -= slowest.unread
            slowest.unread = 0
            del self._unread[slowest]
            slowest.close("its answers are not taken, and queued.max.response.bytes wait in all")

    def flush_soon(self, connection: Connection) -> None:
        """Write what the connection has to send, in the next turn of the loop, together with others."""
        if not self._to_flush:
            self.loop.call_soon(self._flush_all)
        self._to_flush.append(connection)

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush_due()

    def _look_for_forgotten(self) -> None:
        for connection in list(self.connections):
            connection.close_if_forgotten()
        self._look = self.loop.call_later(LOOK_S, self._look_for_forgotten)

    # ------------------------------------------------------------------------------------- idle connections

    def _schedule_sweep(self) -> None:
        assert self._max_idle_s is not None
        after = max(self._max_idle_s / 10, 0.05)
        self._sweep_due = self.loop.time() + after
        self._sweep = self.loop.call_later(after, self._close_idle)

    def _close_idle(self) -> None:
        assert self._max_idle_s is not None
        # A sweep that comes late tells that nothing ran: what peers sent meanwhile has not been read yet.
        late = self.loop.time() - self._sweep_due
        oldest = self.loop.time() - self._max_idle_s - late
        for connection in list(self.connections):
            if connection.last_active < oldest and not connection.waiting:
                log.info("closed the connection of %s: idle for connections.max.idle.ms", connection.peer)
                connection.idle()
        self._schedule_sweep()


class Seldom:
    """Warnings that say the same: one line in SAY_AGAIN_S, with how many were left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._again = 0.0
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Write a line, or count it."""
        now = self._clock()
        if now < self._again:
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines were left out)" if self._left_out else ""
        log.warning("%s%s", text, more)
        self._again, self._left_out = now + SAY_AGAIN_S, 0


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
