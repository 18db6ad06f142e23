"""The sockets of connections: transports like asyncio's own, with less work for each socket and each event.

A group of a thousand members has a thousand sockets, of which hundreds are ready at once. Here one call of the loop
reads all of them: they are in an epoll, and the loop watches only that. Without epoll (macOS) the loop watches each
socket.

A `SocketTransport` is a transport as asyncio defines it, for a BufferedProtocol; connection.py works with others too.
"""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

READ, WRITE = 1, 4
"""Events to wait for, as bits; an epoll also reports others, for errors and hang-ups."""


class Sockets:
    """The sockets that one loop watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, epoll: bool = hasattr(select, "epoll")) -> None:
        self.loop = loop
        self._transports: dict[int, SocketTransport] = {}
        self._epoll: Any = None
        self._closed = False
        if epoll:
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._turn)

    def _turn(self) -> None:
        find = self._transports.get
        for descriptor, events in self._epoll.poll(0):
            transport = find(descriptor)
            if transport is None:
                continue  # closed while an earlier socket was handled
            if events == READ == transport.events:
                transport.read_ready()
            else:
                transport.ready(events)

    def watch(self, transport: SocketTransport, descriptor: int, before: int, events: int) -> None:
        """Notify a transport when its socket is ready for `events`, instead of those of `before`."""
        if self._closed:
            return
        if self._epoll is None:
            self._watch_by_loop(transport, descriptor, before, events)
        elif not before:
            self._transports[descriptor] = transport
            self._epoll.register(descriptor, events)
        elif events:
            self._epoll.modify(descriptor, events)
        else:
            del self._transports[descriptor]
            self._epoll.unregister(descriptor)

    def _watch_by_loop(self, transport: SocketTransport, descriptor: int, before: int, events: int) -> None:
        if events & READ > before & READ:
            self.loop.add_reader(descriptor, transport.ready, READ)
        elif events & READ < before & READ:
            self.loop.remove_reader(descriptor)
        if events & WRITE > before & WRITE:
            self.loop.add_writer(descriptor, transport.ready, WRITE)
        elif events & WRITE < before & WRITE:
            self.loop.remove_writer(descriptor)

    def close(self) -> None:
        """Stop watching all sockets."""
        if self._epoll is not None and not self._closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._closed = True


class SocketTransport(asyncio.Transport):
    """A connected socket that does not block. It keeps the rest of one write, asks for a pause with the first byte
    kept, and ends the pause when all are gone."""

    __slots__ = ("_closing", "_descriptor", "_lost", "_protocol", "_socket", "_sockets", "_unsent", "events")

    def __init__(
        self, sockets: Sockets, connected: socket.socket, peer: object, protocol: asyncio.BufferedProtocol
    ) -> None:
        super().__init__({"peername": peer, "socket": connected})
        self._sockets = sockets
        self._socket = connected
        self._descriptor = connected.fileno()
        self._protocol = protocol
        self.events = 0
        """The events that are waited for."""
        self._unsent = bytearray()
        self._closing = self._lost = False
        protocol.connection_made(self)
        if not self._closing:
            self._watch(READ)

    def _watch(self, events: int) -> None:
        if events != self.events:
            before, self.events = self.events, events
            self._sockets.watch(self, self._descriptor, before, events)

    # ------------------------------------------------------------------------------------- events of the socket

    def ready(self, events: int) -> None:
        """The socket can be read or written, or has failed: the next read or write then reports it."""
        if events & ~WRITE and self.events & READ:  # otherwise another, earlier in this turn, has paused or closed it
            self.read_ready()
        if events & ~READ and self.events & WRITE:
            self._write_ready()

    def read_ready(self) -> None:
        """Bytes have arrived, or the end of the stream."""
        protocol = self._protocol
        try:
            count = self._socket.recv_into(protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        try:
            if count:
                protocol.buffer_updated(count)
            elif protocol.eof_received():
                self._watch(self.events & ~READ)  # the end would be reported in every turn
            else:
                self.close()
        except Exception as error:
            self._fail(error)

    def _write_ready(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:sent]
        if self._unsent:
            return
        self._watch(self.events & ~WRITE)
        try:
            self._protocol.resume_writing()  # which may write again
        except Exception as error:
            self._fail(error)
        if self._closing and not self._unsent:
            self._gone(None)

    def _fail(self, error: Exception) -> None:
        """The protocol raised an exception: its connection ends, the others continue."""
        message = "a connection could not be served"
        self._sockets.loop.call_exception_handler({"message": message, "exception": error, "transport": self})
        self._lose(error)

    # ------------------------------------------------------------------------------------- requested by the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            self._unsent += memoryview(data)[sent:]
            self._watch(self.events | WRITE)
            self._protocol.pause_writing()
        else:
            self._unsent += data

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: a pause begins with the first byte that is kept, and ends when all are gone."""

    def pause_reading(self) -> None:
        self._watch(self.events & ~READ)

    def resume_reading(self) -> None:
        if not self._closing:
            self._watch(self.events | READ)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what is kept, then end."""
        if not self._closing:
            self._closing = True
            self._watch(self.events & ~READ)
            if not self._unsent:
                self._sockets.loop.call_soon(self._gone, None)

    def abort(self) -> None:
        """End at once."""
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._unsent.clear()
            self._watch(0)
            self._sockets.loop.call_soon(self._gone, error)

    def _gone(self, error: Exception | None) -> None:
        if self._descriptor >= 0:
            self._watch(0)
            self._closing = self._lost = True
            self._descriptor = -1
            try:
                self._protocol.connection_lost(error)
            finally:
                self._socket.close()
