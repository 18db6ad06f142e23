"""A connection on an asyncio loop: moves the bytes of a core (connection_core.py), with any kind of transport.

Reads go into one buffer that all connections share: it is emptied before the next read. If the transport is a plain
socket with nothing of its own to send, large answers are handed to the system without a copy. Any other transport (TLS)
is given one piece at a time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from muster.broker.net.calls import Service
from muster.broker.net.connection_core import CloseMode, CloseReason, ConnectionCore
from muster.broker.net.connections import Connections
from muster.broker.net.outgoing import LARGE
from muster.broker.net.sending import PlainSocket, hand_over

log = logging.getLogger("muster.broker")

READ_BYTES = 256 * 1024
"""The shared read buffer."""

FIRST_BYTES = 4 * 1024
"""How much is read after a large frame, because another is likely to follow: the rest of that one is then read into its
own memory, and need not be copied from the shared buffer."""

WRITE_EVERY = 64
"""When one event answers many connections: after this many, their answers are written before the rest are answered."""

LARGE_WRITE = LARGE


class Shared:
    """What the connections of one loop share: the service, the read buffer, the turns of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service, connections: Connections) -> None:
        self.service = service
        self.connections = connections
        self.read_view = memoryview(bytearray(READ_BYTES))
        self.first_view = self.read_view[:FIRST_BYTES]
        self._loop = loop
        self._woken: list[ServerConnection] = []
        self._turn_is_due = False
        self._unwritten = 0
        """Connections woken since the last were written to."""

    def wake(self, connection: ServerConnection) -> None:
        """Continue with the connection in the next turn of the loop, together with others."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)
        self._woken.append(connection)
        # A rebalance answers a thousand together. The first clients can continue while the others wait.
        self._unwritten += 1
        if self._unwritten == WRITE_EVERY:
            self._unwritten = 0
            some = self._woken[-WRITE_EVERY:]
            del self._woken[-WRITE_EVERY:]
            self._woken += [one for one in some if not one.write_answers()]

    def _turn(self) -> None:
        self._turn_is_due = False
        connections, self._woken = self._woken, []
        self._unwritten = 0
        handled = False
        for connection in connections:
            handled = connection.turn() or handled
        if handled:
            self.service.turn_done()


class ServerConnection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, shared: Shared) -> None:
        self.core = ConnectionCore(shared.service, partial(shared.wake, self))
        self._shared = shared
        self._read_view = shared.read_view
        self._turn_done: Callable[[], None] = shared.service.turn_done
        self._transport: asyncio.Transport | None = None
        self._plain: PlainSocket | None = None
        self._reading = True
        self._write_paused = False
        self._writing_large = False
        self._ended: CloseReason | None = None

    # ------------------------------------------------------------------------------------- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Checked by its methods, not its class: the transports of other loops do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        core = self.core
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            host = str(address[0])
            core.client_host = f"/{host}"
            core.peer = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        if transport.get_extra_info("sslcontext") is None:
            self._plain = transport.get_extra_info("socket")
        # The transport keeps the rest of one write, and reports when that is sent. Later answers are kept here. With
        # high=0 asyncio's TLS would ask for a pause when it has nothing to write, and so never end the pause.
        transport.set_write_buffer_limits(high=1, low=0)
        if not self._shared.connections.admit(core):
            self._transport = None
            core.lost()
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.core.lost()
        self._shared.connections.lost(self.core)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read_view if self.core.large is None else self.core.large_buffer()

    def buffer_updated(self, count: int) -> None:
        core = self.core
        if core.large is None:
            view = self._read_view
            core.received(view[:count])
            if view is not self._shared.read_view and core.large is None:
                self._read_view = self._shared.read_view
        else:
            core.received_more(count)
            self._read_view = self._shared.first_view
        if core.out:
            self._write()
        if core.reading is not self._reading or core.ending is not None:
            self._settle()
        self._turn_done()

    def pause_writing(self) -> None:
        self._write_paused = True
        self.core.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.core.resume_writing()
        if not self._writing_large:  # a transport may call this from within its `write`
            self._write()

    # ------------------------------------------------------------------------------------- requested by the core

    def turn(self) -> bool:
        """The next turn of the loop after `wake`. Returns whether requests may have been handled."""
        core = self.core
        if core.out:
            self._write()
        core.woken = handled = False
        if core.pending or not core.reading:
            handled = core.resume()
            if core.out:
                self._write()
        if core.reading is not self._reading or core.ending is not None:
            self._settle()
        return handled

    def write_answers(self) -> bool:
        """Write the answers, and handle nothing. Returns whether a turn would do nothing else."""
        core = self.core
        if core.out:
            self._write()
        if core.pending or not core.reading or not self._reading or core.ending is not None:
            return False
        core.woken = False
        return True

    def _settle(self) -> None:
        """Continue reading, pause reading, or end, as the core says."""
        transport, core = self._transport, self.core
        if transport is None:
            return
        if core.ending is not None:
            if core.ending is not self._ended:
                self._ended = core.ending
                self._end(transport, core.ending)
        elif not transport.is_closing():
            self._reading = core.reading
            transport.resume_reading() if core.reading else transport.pause_reading()

    def _end(self, transport: asyncio.Transport, ending: CloseReason) -> None:
        if ending.why:
            log.log(
                getattr(logging, ending.level),
                "closed the connection of %s: %s",
                self.core.peer,
                ending.why,
                exc_info=ending.error,
            )
        if ending.how is CloseMode.AT_ONCE or (ending.how is CloseMode.SENT and self._write_paused):
            transport.abort()
        else:
            transport.close()

    # ------------------------------------------------------------------------------------- bytes out

    def _write(self) -> None:
        transport, core = self._transport, self.core
        if self._write_paused:
            return
        if transport is None or transport.is_closing():
            core.take()
            return
        if core.out_bytes >= LARGE_WRITE:
            self._writing_large = True
            self._write_large(transport)
            self._writing_large = False
        elif core.out:
            out, core.out, core.out_bytes = core.out, [], 0
            transport.write(b"".join(out))  # type: ignore[arg-type]  # so few bytes hold no file's range
        if self._write_paused or core.unread:
            self._shared.connections.count_unread(core, core.own_bytes + transport.get_write_buffer_size())

    def _write_large(self, transport: asyncio.Transport) -> None:
        """Hand large parts to the system without a copy. When the system takes no more, or the transport must not be
        bypassed, the transport is given one piece, and reports when that is sent."""
        core = self.core
        while core.out and not self._write_paused:
            if self._plain is not None and not transport.get_write_buffer_size():
                try:
                    written, wanted = hand_over(self._plain, core.out)
                except (BlockingIOError, InterruptedError):
                    written, wanted = 0, 1
                except OSError as error:
                    if error.errno == errno.EIO:
                        log.error("closed the connection of %s: the log cannot be read: %s", core.peer, error)
                    transport.abort()
                    core.take()
                    return
                core.sent(written)
                if written == wanted:
                    continue
            piece = core.piece(LARGE_WRITE)
            core.sent(len(piece))
            transport.write(piece)
