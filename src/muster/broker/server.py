"""Connections: frames in, frames out, in order.

Every whole frame of one read is handled in one loop and answered with one write. A connection's answers leave in the
order of its requests. What cannot be answered at once is parked, and its answer keeps the place of its request:

- a *blocking* request (a join, a fetch that waits for records) stops its own connection, as Kafka mutes a channel: the
  frames behind it wait until it is answered;
- a *pipelined* one (a commit that waits for the log) lets the frames behind it be handled, up to PIPELINE_LIMIT.

Reads go into one buffer that all connections share: it is emptied before the next read. Only a frame that is larger
than that buffer gets memory of its own, exactly as large as the frame, and that is counted: above
`queued.max.request.bytes` the connection waits, unread. A peer that does not take its answers is not read either.

Bytes that are no request end in one line of the log and a closed connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from muster.errors import MusterError, ProtocolError
from muster.protocol import codec
from muster.protocol.api import response_header_version
from muster.protocol.framing import check_length
from muster.protocol.primitives import Buffer, Request, Response, read_uvarint

log = logging.getLogger("muster.broker")

READ_BYTES = 256 * 1024
"""The shared read buffer; larger frames get their own."""

PIPELINE_LIMIT = 512
LARGE_WRITE = 64 * 1024
_MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)

_LENGTH = Struct(">i")
_HEADER = Struct(">hhih")
_RESPONSE_HEADER = Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = Struct(">iib")


class NoResponse(Response):
    """What a handler returns for a request that is not to be answered (a produce with acks=0)."""

    __slots__ = ()


NO_RESPONSE = NoResponse()


class CloseConnectionError(MusterError):
    """Raised by a handler to end the connection without an answer. The message is for the log."""


Handle = Callable[[Any, "Call"], Response | None]
Fast = Callable[[bytes, int, int, int], bytes | None]


class Api(NamedTuple):
    """How a kind of request is served: the versions, who handles it, whether requests behind it may go on.

    `fast` is a short way for a hot request: frame, position of the body, version, correlation id -> the whole answer,
    or None to take the general way.
    """

    request: type[Request[Any]]
    first: int
    last: int
    handle: Handle
    pipelined: bool = False
    fast: Fast | None = None


class Call:
    """One request under way: who sent it, and where its answer goes.

    A handler returns its response, or None and calls `reply` later, once. `on_cancel` is called if the connection ends
    before that.
    """

    __slots__ = ("_connection", "api", "blocks", "client_id", "correlation_id", "frame", "held", "on_cancel", "version")

    def __init__(self, connection: Connection, api: Api, version: int, correlation_id: int, client_id: str) -> None:
        self._connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.frame: list[Buffer] | None = None
        self.held = 0
        self.on_cancel: Callable[[], None] | None = None
        self.blocks = not api.pipelined
        """Whether the frames behind it wait until it is answered. A handler may set it."""

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka writes it: `/127.0.0.1`."""
        return self._connection.client_host

    @property
    def peer(self) -> str:
        """The peer's address and port, for the log."""
        return self._connection.peer

    def reply(self, response: Response) -> None:
        """Answer the request. After the connection's end this does nothing."""
        self.frame = self.encode(response)
        self._connection.completed(self)

    def close(self, reason: str) -> None:
        """End the connection without an answer: what CloseConnectionError does while the handler runs."""
        self._connection.close(reason)

    def encode(self, response: Response) -> list[Buffer]:
        """The frame of a response, an empty list for NO_RESPONSE."""
        if response is NO_RESPONSE:
            return []
        parts: list[Buffer] = [b""]
        version = self.version
        codec.encoder(type(response), version)(response, parts.append)
        size = sum(map(len, parts))
        if response_header_version(self.api.request, version):
            parts[0] = _FLEXIBLE_RESPONSE_HEADER.pack(size + 5, self.correlation_id, 0)
        else:
            parts[0] = _RESPONSE_HEADER.pack(size + 4, self.correlation_id)
        return parts


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peer = self.client_host = "?"
        self.last_active = server.loop.time()
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._pending = b""
        self._large: memoryview | None = None
        self._filled = 0
        self._slots: deque[Call] = deque()
        self._blocking: Call | None = None
        self._out: list[Buffer] = []
        self._flush_due = False
        self._resume_due = False
        self._write_paused = False
        self._read_paused = False
        self._waits_for_memory = False
        self._client_id = (b"", "")

    # ------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        if address:
            host = str(address[0])
            self.client_host = f"/{host}"
            self.peer = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        self._fd = transport.get_extra_info("socket").fileno()
        if not self.server.admit(self):
            self._transport = None
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.server.connections.discard(self)
        if self._large is not None:
            self.server.release_memory(len(self._large))
            self._large = None
        calls, self._slots = self._slots, deque()
        for call in calls:
            self.server.release_memory(call.held)
            call.held = 0
            if call.frame is None and call.on_cancel is not None:
                call.on_cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.server.read_view if self._large is None else self._large[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._large is not None:
            self._filled += count
            if self._filled < len(self._large):
                return
            frame, self._large, self._filled = self._large, None, 0
            self._guarded(frame)
            return
        data = bytes(self.server.read_view[:count])
        if self._pending:
            data = self._pending + data
        if self._stalled():
            self._pending = data
            self._pause_reading()
            return
        self._guarded(data)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resume_soon()

    # ------------------------------------------------------------------------------------- frames in

    def _stalled(self) -> bool:
        return (
            self._blocking is not None
            or self._write_paused
            or self._waits_for_memory
            or len(self._slots) >= PIPELINE_LIMIT
        )

    def _guarded(self, data: bytes | memoryview) -> None:
        """Handle what was read: a whole large frame, or bytes with any number of frames."""
        self.last_active = self.server.loop.time()
        try:
            if isinstance(data, memoryview):
                self._handle(data, len(data))
            else:
                self._handle_frames(data)
        except (ProtocolError, CloseConnectionError) as error:
            self.close(str(error))
        except Exception:
            log.exception("closed the connection of %s: its request could not be handled", self.peer)
            self.abort()
        self._flush()
        self.server.turn_done()

    def _handle_frames(self, data: bytes) -> None:
        position, end = 0, len(data)
        self._pending = b""
        most = self.server.max_request_bytes
        while end - position >= 4:
            # Whoever calls has looked already: in here only a parked request can stall the connection.
            if self._slots and self._stalled():
                self._pause_reading()
                break
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= most:
                check_length(length, most)
            stop = position + 4 + length
            if stop > end:
                if length > READ_BYTES:
                    self._begin_large(data[position + 4 :], length)
                    return
                break
            self._handle(data[position + 4 : stop], 0)
            position = stop
        self._pending = data[position:]

    def _begin_large(self, start: bytes, length: int) -> None:
        """Read the rest of a large frame into memory of its own, now or when there is room for it."""
        if not self.server.take_memory(length, self):
            self._pending = _LENGTH.pack(length) + start
            self._waits_for_memory = True
            self._pause_reading()
            return
        # Zeroed memory that is not touched costs nothing: a peer pays with bytes for what it makes us keep.
        self._large = memoryview(bytearray(length))
        self._large[: len(start)] = start
        self._filled = len(start)

    def memory_free(self) -> None:
        """There may be room for the large frame that this connection waits with."""
        self._waits_for_memory = False
        self._resume_soon()

    def _handle(self, frame: bytes | memoryview, held: int) -> None:
        api_key, version, correlation_id, client_length = _unpack_header(frame)
        api = self.server.apis.get(api_key)
        if api is None or not api.first <= version <= api.last:
            self._refuse(api_key, version, correlation_id, held)
            return
        position = 10 + client_length if client_length > 0 else 10
        known, client_id = self._client_id
        if frame[10:position] != known or position > len(frame):
            client_id = self._decode_client_id(frame, client_length)
        if version >= api.request.FIRST_FLEXIBLE_VERSION:
            position = position + 1 if frame[position : position + 1] == b"\0" else _skip_tags(frame, position)
        if api.fast is not None and not self._slots and isinstance(frame, bytes):
            answer = api.fast(frame, position, version, correlation_id)
            if answer is not None:
                self._out.append(answer)
                return
        call = Call(self, api, version, correlation_id, client_id)
        call.held = held
        # Only a produce may keep views of its large frame: other handlers keep what they decode.
        buffer = frame if isinstance(frame, bytes) or api_key == 0 else bytes(frame)
        try:
            request = codec.decode(api.request, version, buffer, position)
            response = api.handle(request, call)
        except BaseException:
            self.server.release_memory(held)
            raise
        if response is not None:
            call.frame = call.encode(response)
        self._park_or_send(call)

    def _park_or_send(self, call: Call) -> None:
        if call.frame is not None and not self._slots:
            self._out += call.frame
            self.server.release_memory(call.held)
            return
        self._slots.append(call)
        if call.frame is None and call.blocks:
            self._blocking = call

    def _decode_client_id(self, frame: bytes | memoryview, length: int) -> str:
        if length <= 0:
            return ""
        raw = bytes(frame[10 : 10 + length])
        if len(raw) < length:
            raise ProtocolError("no header of a request: it is cut short")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise ProtocolError("no header of a request: the client id is no text") from None
        self._client_id = (raw, text)
        return text

    def _refuse(self, api_key: int, version: int, correlation_id: int, held: int) -> None:
        self.server.release_memory(held)
        unsupported = self.server.unsupported
        if unsupported is not None and api_key == unsupported.api.API_KEY and not self._slots:
            # ApiVersions is always answered, so that a client newer than this broker learns what it may speak.
            parts: list[Buffer] = [b""]
            codec.encoder(type(unsupported.response), 0)(unsupported.response, parts.append)
            parts[0] = _RESPONSE_HEADER.pack(sum(map(len, parts)) + 4, correlation_id)
            self._out += parts
            return
        raise ProtocolError(f"request of key {api_key} in version {version}, which is not served")

    # ------------------------------------------------------------------------------------- answers out

    def completed(self, call: Call) -> None:
        """A parked call has its frame."""
        slots = self._slots
        if self._transport is None or not slots:
            return  # the connection has ended, or the handler is still running and sends the frame itself
        if self._blocking is call:
            self._blocking = None
        while slots and slots[0].frame is not None:
            done = slots.popleft()
            self._out += done.frame or ()
            if done.held:
                self.server.release_memory(done.held)
        if not self._flush_due:
            self._flush_due = True
            self.server.flush_soon(self)
        if self._pending or self._read_paused:
            self._resume_soon()

    def flush_due(self) -> None:
        """Write what was answered since the last turn of the loop."""
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        self._out = []
        if self._transport is None or self._transport.is_closing():
            return
        size = sum(map(len, out))
        if size < LARGE_WRITE:
            self._transport.write(b"".join(out))
        else:
            self._write_large(self._transport, out)

    def _write_large(self, transport: asyncio.Transport, out: list[Buffer]) -> None:
        """Hand large buffers to the system as they are; only what it does not take is copied."""
        start = 0
        while transport.get_write_buffer_size() == 0 and start < len(out):
            group = out[start : start + _MAX_BUFFERS]
            try:
                written = os.writev(self._fd, group)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                break  # the transport meets the same error and ends the connection
            start += len(group)
            if written < sum(map(len, group)):
                for rest in _after(group, written):
                    transport.write(rest)
        for rest in out[start:]:
            transport.write(rest)

    # ------------------------------------------------------------------------------------- pauses and ends

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_soon(self) -> None:
        if not self._resume_due:
            self._resume_due = True
            self.server.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_due = False
        if self._transport is None or self._transport.is_closing() or self._stalled():
            return
        if self._pending:
            self._guarded(self._pending)
        if self._read_paused and self._transport is not None and not self._stalled():
            self._read_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def waiting(self) -> bool:
        """Whether the peer waits for an answer."""
        return bool(self._slots)

    def close(self, why: str) -> None:
        """Send what is answered already, then close."""
        if self._transport is None:
            return
        log.warning("closed the connection of %s: %s", self.peer, why)
        self._flush()
        self.abort() if self._write_paused else self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Close at the broker's stop: what is answered is sent first."""
        self._flush()
        if self._transport is not None:
            self._transport.close()


class Unsupported(NamedTuple):
    """The one request that is answered in every version, and the answer (KIP-511)."""

    api: type[Request[Any]]
    response: Response


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
        max_idle_ms: int,
        backlog: int,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.apis = apis
        self.unsupported = unsupported
        self.max_request_bytes = max_request_bytes
        self.connections: set[Connection] = set()
        self.turn_done = on_turn
        self.read_view = memoryview(bytearray(READ_BYTES))
        self._max_connections = max_connections
        self._max_bytes_in_flight = max_bytes_in_flight if max_bytes_in_flight >= 0 else 1 << 62
        self._max_idle_s = max_idle_ms / 1000 if max_idle_ms >= 0 else None
        self._backlog = backlog
        self._bytes_in_flight = 0
        self._wait_for_memory: deque[Connection] = deque()
        self._to_flush: list[Connection] = []
        self._listening: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port."""
        self._listening = await self.loop.create_server(
            lambda: Connection(self), host or None, port, backlog=self._backlog, reuse_address=True
        )
        if self._max_idle_s is not None:
            self._schedule_sweep()
        return int(self._listening.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """Take no more connections; end those that are there, after what is answered was sent."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.end()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection may stay."""
        if len(self.connections) >= self._max_connections:
            log.warning("refused the connection of %s: max.connections=%d", connection.peer, self._max_connections)
            return False
        self.connections.add(connection)
        return True

    def take_memory(self, size: int, connection: Connection) -> bool:
        """Memory for a large frame. False: none now, and `memory_free` is called when some is."""
        if self._bytes_in_flight and self._bytes_in_flight + size > self._max_bytes_in_flight:
            self._wait_for_memory.append(connection)
            return False
        self._bytes_in_flight += size
        return True

    def release_memory(self, size: int) -> None:
        """Give back what `take_memory` took."""
        if size:
            self._bytes_in_flight -= size
            waiting, self._wait_for_memory = self._wait_for_memory, deque()
            for connection in waiting:
                connection.memory_free()

    def flush_soon(self, connection: Connection) -> None:
        """Write what the connection has to send, in the next turn of the loop, together with others."""
        if not self._to_flush:
            self.loop.call_soon(self._flush_all)
        self._to_flush.append(connection)

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush_due()

    def _schedule_sweep(self) -> None:
        assert self._max_idle_s is not None
        self._sweep = self.loop.call_later(max(self._max_idle_s / 10, 0.05), self._close_idle)

    def _close_idle(self) -> None:
        assert self._max_idle_s is not None
        oldest = self.loop.time() - self._max_idle_s
        for connection in list(self.connections):
            if connection.last_active < oldest and not connection.waiting:
                log.info("closed the connection of %s: idle for connections.max.idle.ms", connection.peer)
                connection.end()
        self._schedule_sweep()


def _unpack_header(frame: Buffer) -> tuple[int, int, int, int]:
    if len(frame) < 10:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a request")
    return _HEADER.unpack_from(frame, 0)


def _skip_tags(frame: Buffer, position: int) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError:
        raise ProtocolError("no header of a request: it is cut short") from None
    return position


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """What is left of the buffers behind the first `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


__all__ = ["NO_RESPONSE", "Api", "Call", "CloseConnectionError", "Connection", "Server", "Unsupported"]
