"""One client's connection: frames in, frames out, in order.

Every whole frame of one read is handled in one loop and answered with one write. A connection's answers leave in the
order of its requests. What cannot be answered at once is parked, and its answer keeps the place of its request:

- a *blocking* request (a join, a fetch that waits for records, one that is handled in slices) stops its own connection,
  as Kafka mutes a channel: the frames behind it wait until it is answered;
- a *pipelined* one (a commit that waits for the log) lets the frames behind it be handled, up to PIPELINE_LIMIT.

What one connection can take from the others is bounded. Its frames are handled for SLICE_S in a turn of the loop at
most; and while more than HIGH_WATER bytes of answers wait, because the peer does not take them or because an earlier
request is not answered yet, none of its frames is. So a peer that does not read has one answer waiting, and records in
it are views of the log until the socket takes them.

Reads go into one buffer that all connections share: it is emptied before the next read. Only a frame that is larger
than what a connection may keep gets memory of its own (intake.py).

Bytes that are no request end in one line of the log and a closed connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Generator
from functools import partial
from mmap import mmap
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING

from muster.broker.calls import (
    SMALL,
    Call,
    CloseConnectionError,
    Sliced,
    encode_answer,
    encode_answer_sliced,
    forgotten,
)
from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol.framing import check_length, skip_tags
from muster.protocol.primitives import Buffer, Response, TooManyElementsError

if TYPE_CHECKING:
    from muster.broker.intake import LargeFrame
    from muster.broker.server import Server

log = logging.getLogger("muster.broker")

READ_BYTES = 256 * 1024
"""The shared read buffer."""

KEPT_BYTES = 64 * 1024
"""A frame of up to this size that came in part is kept; the part of a larger one gets counted memory."""

PIPELINE_LIMIT = 512
HIGH_WATER = 64 * 1024
SLICE_S = 0.002
LARGE_WRITE = 64 * 1024
_LOOK_EVERY = 64
"""Frames answered the short way between two looks at the clock and at the answers that wait."""
_MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16, 1024)

_LEAST_READ = 4096

_LENGTH = Struct(">i")
_HEADER = Struct(">hhih")
_RESPONSE_HEADER = Struct(">ii")


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peer = self.client_host = "?"
        self.last_active = server.loop.time()
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._pending = b""
        self._large: LargeFrame | None = None
        self._handled: LargeFrame | None = None
        self._slots: deque[Call] = deque()
        self._blocking: Call | None = None
        self._behind = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_due = False
        self._resume_due = False
        self._write_paused = False
        self._read_paused = False
        self._waits_for_room = False
        self._client_id = (b"", "")
        self.unread = 0
        """Bytes of memory in answers that the peer does not take; the server counts them."""

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
        # The transport keeps what one write did not get rid of, and says when that is gone. The rest is kept here.
        transport.set_write_buffer_limits(high=0)
        if not self.server.admit(self):
            self._transport = None
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._out, self._pending, self._large = [], b"", None
        self.server.lost(self)
        calls, self._slots = self._slots, deque()
        self._blocking = None
        for call in calls:
            if not call.over:
                call.over = True
                if call.on_cancel is not None:
                    call.on_cancel()
            if not call.keeps_frame:
                call.give_frame_back()

    def get_buffer(self, sizehint: int) -> memoryview:
        large = self._large
        if large is None:
            return self.server.read_view
        # Another connection may have taken the room since this one was found to have some.
        room = self.server.intake.room(self) or _LEAST_READ
        return large.view()[large.filled : large.filled + room]

    def buffer_updated(self, count: int) -> None:
        large = self._large
        if large is not None:
            self.server.intake.received(large, count)
            self._more_of(large)
            return
        view = self.server.read_view[:count]
        if self._stalled():
            self._pending += view
            self._pause_reading()
            return
        self._guarded(self._pending + view if self._pending else bytes(view))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.last_active = self.server.loop.time()
        self._flush()
        self._resume_soon()

    # ------------------------------------------------------------------------------------- frames in

    def _stalled(self) -> bool:
        return (
            self._blocking is not None
            or self._write_paused
            or self._waits_for_room
            or len(self._slots) >= PIPELINE_LIMIT
            or self._out_bytes + self._behind >= HIGH_WATER
        )

    def _guarded(self, data: bytes | memoryview) -> None:
        """Handle what was read: a whole large frame, or bytes with any number of frames."""
        self.last_active = self.server.loop.time()
        try:
            if isinstance(data, memoryview):
                self._handle(data)
            else:
                self._handle_frames(data)
        except Exception as error:
            self._failed(error)
        self._flush()
        self.server.turn_done()

    def _failed(self, error: Exception) -> None:
        """A request cannot be answered: its connection ends."""
        self._pending = b""
        if isinstance(error, (ProtocolError, CloseConnectionError)):
            self.close(str(error))
        else:
            log.error("closed the connection of %s: its request could not be handled", self.peer, exc_info=error)
            self.abort()

    def _handle_frames(self, data: bytes) -> None:
        position, end, seen = 0, len(data), 0
        self._pending = b""
        most = self.server.max_request_bytes
        begun = monotonic()
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= most:
                check_length(length, most)
            stop = position + 4 + length
            if stop > end:
                if length > KEPT_BYTES:
                    self._begin_large(data[position + 4 :], length)
                    return
                break
            seen += 1 if self._handle(data[position + 4 : stop]) else _LOOK_EVERY
            position = stop
            if seen >= _LOOK_EVERY:
                seen = 0
                crowded = self._slots or self._out_bytes >= HIGH_WATER
                if (crowded and self._enough()) or monotonic() - begun >= SLICE_S:
                    if position < end:
                        self._pause_reading()
                        self._resume_soon()
                    break
        self._pending = data[position:] if position else data

    def _enough(self) -> bool:
        """Whether the answers that wait, or the requests, must be fewer before more frames are handled."""
        if self._out_bytes >= HIGH_WATER:
            self._flush()
        return self._stalled()

    def _begin_large(self, start: bytes, length: int) -> None:
        """The first bytes of a large frame are there: read the rest into memory of its own."""
        self._large = self.server.intake.begin(self, length, start)
        self._more_of(self._large)

    def _more_of(self, large: LargeFrame) -> None:
        """Handle a large frame that is all there; or see whether there is room to read on."""
        intake = self.server.intake
        if large.filled < large.length:
            if not intake.room(self):
                self._waits_for_room = True
                self._pause_reading()
            return
        self._large = None
        intake.whole(self)
        self._handled = large
        self._guarded(large.view())
        if self._handled is not None:  # else its request is parked, or read in slices
            self._handled = None
            intake.done(large)

    def room_again(self) -> None:
        """There may be room for the large frame that this connection waits with."""
        self._waits_for_room = False
        self._resume_soon()

    def _handle(self, frame: bytes | memoryview) -> bool:
        """Handle one frame; whether it was answered the short way."""
        if len(frame) < 10:
            raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a request")
        api_key, version, correlation_id, client_length = _HEADER.unpack_from(frame, 0)
        api = self.server.apis.get(api_key)
        if api is None or not api.first <= version <= api.last:
            self._refuse(api_key, version, correlation_id)
            return False
        position = 10 + client_length if client_length > 0 else 10
        known, client_id = self._client_id
        if frame[10:position] != known or position > len(frame):
            client_id = self._decode_client_id(frame, client_length)
        if version >= api.request.FIRST_FLEXIBLE_VERSION:
            position = position + 1 if frame[position : position + 1] == b"\0" else _behind_tags(frame, position)
        if api.fast is not None and not self._slots and isinstance(frame, bytes):
            answer = api.fast(frame, position, version, correlation_id)
            if answer is not None:
                self._out.append(answer)
                self._out_bytes += len(answer)
                return True
        self._dispatch(Call(self, api, version, correlation_id, client_id), frame, position)
        return False

    def _dispatch(self, call: Call, frame: bytes | memoryview, position: int) -> None:
        api = call.api
        try:
            request = codec.decode(api.request, call.version, frame, position, SMALL)
        except TooManyElementsError:
            self._in_slices(call, self._steps(call, frame, position))
            return
        response = api.handle(request, call) or call.answer
        if response is None:
            call.parked = True
            call.held, self._handled = self._handled, None
            self._slots.append(call)
            if call.blocks:
                self._blocking = call
        elif isinstance(response, Response):
            self._answer_now(call, response)
        else:
            self._in_slices(call, response)

    def _answer_now(self, call: Call, response: Response) -> None:
        try:
            frame = encode_answer(response, call)
        except TooManyElementsError:
            self._in_slices(call, _just(response))
            return
        if self._slots:
            self._slots.append(call)
            self._complete(call, frame)
        else:
            self._out += frame
            self._out_bytes += call.size

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

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        unsupported = self.server.unsupported
        if unsupported is not None and api_key == unsupported.api.API_KEY and not self._slots:
            # ApiVersions is always answered, so that a client newer than this broker learns what it may speak.
            parts: list[Buffer] = [b""]
            codec.encoder(type(unsupported.response), 0)(unsupported.response, parts.append)
            size = sum(map(len, parts))
            parts[0] = _RESPONSE_HEADER.pack(size + 4, correlation_id)
            self._out += parts
            self._out_bytes += size + 8
            return
        raise ProtocolError(f"request of key {api_key} in version {version}, which is not served")

    # ------------------------------------------------------------------------------------- requests in slices

    def _in_slices(self, call: Call, steps: Sliced) -> None:
        """Handle a request, or encode its answer, beside what others ask for."""
        call.parked = True
        self._slots.append(call)
        self._blocking = call
        large, self._handled = self._handled, None
        over = partial(self.server.intake.done, large) if large is not None else None
        self.server.slices.add(self._work(call, steps), wanted=lambda: not call.over, over=over)

    def _steps(self, call: Call, frame: bytes | memoryview, position: int) -> Sliced:
        """Decode a large request and handle it."""
        api = call.api
        request = yield from codec.decode_sliced(api.request, call.version, frame, position, api.most_elements)
        del frame
        response = api.handle(request, call)
        if response is None or isinstance(response, Response):
            return response
        return (yield from response)

    def _work(self, call: Call, steps: Sliced) -> Generator[None, None, None]:
        try:
            response = yield from steps
            if response is not None and not call.over:
                self._complete(call, (yield from encode_answer_sliced(response, call)))
        except Exception as error:
            call.over = True
            self._failed(error)
        self.server.turn_done()

    # ------------------------------------------------------------------------------------- answers out

    def answered(self, call: Call, response: Response | Sliced) -> None:
        """The handler of a parked call has replied. Never raises: the handler's caller has others to tell."""
        if not isinstance(response, Response):
            self.server.slices.add(self._work(call, response), wanted=lambda: not call.over)
            return
        try:
            frame = encode_answer(response, call)
        except TooManyElementsError:
            self.answered(call, _just(response))
        except Exception as error:
            call.over = True
            self._failed(error)
        else:
            self._complete(call, frame)

    def _complete(self, call: Call, frame: list[Buffer]) -> None:
        """A parked call has its answer; those at the head of the row can leave."""
        slots = self._slots
        call.over = True
        if self._transport is None or not slots:
            return
        if self._blocking is call:
            self._blocking = None
        call.give_frame_back()
        call.frame = frame
        if slots[0] is not call:
            self._behind += call.size
        else:
            slots.popleft()
            self._out += frame
            self._out_bytes += call.size
            while slots and slots[0].frame is not None:
                done = slots.popleft()
                self._out += done.frame or ()
                self._out_bytes += done.size
                self._behind -= done.size
        if not self._flush_due:
            self._flush_due = True
            self.server.flush_soon(self)
        if self._pending or self._read_paused:
            self._resume_soon()

    def close_if_forgotten(self) -> None:
        """End the connection if one of its requests cannot be answered by anybody any more."""
        call = forgotten(self._slots, self._blocking) if self._slots else None
        if call is not None:
            call.over = True
            log.error("closed the connection of %s: nobody answers its %s", self.peer, call.api.request.__name__)
            self.abort()

    def flush_due(self) -> None:
        """Write what was answered since the last turn of the loop."""
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if self._write_paused or not (self._out or self.unread):
            return
        if transport is None or transport.is_closing():
            self._out, self._out_bytes = [], 0
        elif self._out_bytes < LARGE_WRITE:
            out, self._out, self._out_bytes = self._out, [], 0
            transport.write(b"".join(out))
        else:
            self._write_large(transport)
        if transport is not None and (self._write_paused or self.unread):
            self.server.count_unread(self, sum(map(_own_bytes, self._out)) + transport.get_write_buffer_size())

    def _write_large(self, transport: asyncio.Transport) -> None:
        """Hand large buffers to the system as they are. When it takes no more, the transport is given a little: it says
        when that is gone."""
        out = self._out
        start = 0
        while start < len(out) and not self._write_paused:
            group = out[start : start + _MAX_BUFFERS]
            try:
                written = os.writev(self._fd, group)
            except (BlockingIOError, InterruptedError):
                written = 0
            except OSError:
                transport.abort()
                start = len(out)
                break
            self._out_bytes -= written
            for part in group:
                if written < len(part):
                    break
                written -= len(part)
                start += 1
            else:
                continue
            # A part that the system did not take whole.
            some = memoryview(out[start])[written : written + LARGE_WRITE]
            transport.write(some)
            self._out_bytes -= len(some)
            rest = memoryview(out[start])[written + len(some) :]
            if rest:
                out[start] = rest
            else:
                start += 1
        del out[:start]
        if not out:
            self._out_bytes = 0

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
        if self._large is not None:
            self._more_of(self._large)
        elif self._pending:
            self._guarded(self._pending)
        if self._read_paused and not self._resume_due and self._transport is not None and not self._stalled():
            self._read_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def waiting(self) -> bool:
        """Whether the peer waits for an answer."""
        return bool(self._slots)

    def idle(self) -> None:
        """Close after nothing has gone in or out for long."""
        self.abort() if self._write_paused else self.end()

    def close(self, why: str) -> None:
        """Send what is answered already, then close."""
        if self._transport is None or self._transport.is_closing():
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


def _own_bytes(part: Buffer) -> int:
    """What an answer's buffer takes of memory: a view of a mapped log takes none."""
    return 0 if isinstance(part, memoryview) and isinstance(part.obj, mmap) else len(part)


def _just(response: Response) -> Sliced:
    """A response that is there already, as what a sliced handler would return."""
    yield
    return response


def _behind_tags(frame: Buffer, position: int) -> int:
    try:
        return skip_tags(frame, position)
    except IndexError:
        raise ProtocolError("no header of a request: it is cut short") from None
