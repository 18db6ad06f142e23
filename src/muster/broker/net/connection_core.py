"""The rules of one connection: bytes in, answers out, in order. No socket, no loop: the caller moves the bytes.

The caller (connection.py on a socket, a test or a simulation without one) passes the bytes that have arrived to
`received`, writes the answers in `out`, and does what `reading` and `ending` say. `wake` asks it to call `resume` in
the next turn of its loop. Time comes from the clock in `Service`, in seconds.

All complete frames of one read are handled in one loop and answered with one write. A connection's answers leave in the
order of its requests. A request that cannot be answered immediately is parked, and its answer keeps its place in that
order:

- a *blocking* request (a join, a fetch that waits for records, a request handled in slices) stops its own connection,
  as Kafka mutes a channel: the frames after it wait until it is answered;
- a *pipelined* request (a commit that waits for the log) lets the frames after it be handled, up to PIPELINE_LIMIT.

How long one connection can keep the others waiting is bounded. In a turn of the loop its frames are handled for at most
SLICE_S, and until HIGH_WATER bytes of answers wait to be written. While that many bytes wait, because the peer does not
take them or because an earlier request is not answered yet, none of its frames is handled. So a peer that does not read
has one answer waiting, and the records in it are views of the log until the socket takes them.

Bytes that arrive while frames wait are kept, and then reading stops: at most one read is kept, plus the rest of the
previous one. A frame that is larger than a connection may keep gets memory of its own (intake.py).

Every request is answered, or the connection ends. Bytes that are not a valid request end the connection, and one line
is logged. After the end no request is handled, and only answers that were ready before are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from enum import Enum
from functools import partial
from struct import Struct
from typing import NamedTuple

from muster.broker.net import outgoing
from muster.broker.net.calls import (
    SMALL,
    Call,
    CloseConnectionError,
    Service,
    Sliced,
    encode_answer,
    encode_answer_sliced,
    forgotten,
    in_one_slice,
)
from muster.broker.net.intake import LargeFrame
from muster.broker.net.outgoing import Part
from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol.framing import check_length, skip_tags
from muster.protocol.primitives import Buffer, Response, TooManyElementsError

KEPT_BYTES = 64 * 1024
"""An incomplete frame of up to this size is kept by the connection; a larger one gets counted memory (intake.py)."""

PIPELINE_LIMIT = 512
HIGH_WATER = 64 * 1024
SLICE_S = 0.002
_CHECK_EVERY = 64
"""Frames answered on the fast path between two checks of the clock and of waiting answers."""
_LEAST_READ = 4096

_LENGTH = Struct(">i")
_HEADER = Struct(">hhih")
_RESPONSE_HEADER = Struct(">ii")

# Why no frame is handled, apart from parked requests and waiting answers: bits of `_held_up`.
_BY_PEER = 1  # the peer does not take its answers
_BY_MEMORY = 2  # there is no room for more of a large frame
_BY_REST = 4  # earlier frames wait for `resume`
_BY_END = 8


class CloseMode(Enum):
    """How a connection ends."""

    SENT = "ready answers are sent, as far as the peer reads them immediately"
    DRAINED = "what the transport has is sent, however slowly the peer reads"
    AT_ONCE = "nothing more is sent"


class CloseReason(NamedTuple):
    """How and why a connection ends. `level` is the level of the line in the log; without `why` there is no line."""

    how: CloseMode
    why: str = ""
    level: str = "WARNING"
    error: Exception | None = None


class ConnectionCore:
    """One client's connection."""

    __slots__ = (
        "_apis",
        "_behind",
        "_blocking",
        "_client_id",
        "_clock",
        "_handled",
        "_held_up",
        "_most",
        "_slots",
        "_wake",
        "_whole",
        "client_host",
        "ending",
        "intake",
        "large",
        "last_active",
        "out",
        "out_bytes",
        "peer",
        "pending",
        "reading",
        "service",
        "unread",
        "woken",
    )

    def __init__(self, service: Service, wake: Callable[[], None]) -> None:
        self.service = service
        self.peer = self.client_host = "?"
        self.last_active = service.clock()
        self.out: list[Part] = []
        """Answers that may leave, in order, and how many bytes they are. The caller takes them from the front."""
        self.out_bytes = 0
        self.reading = True
        """Whether the caller must continue reading."""
        self.ending: CloseReason | None = None
        """Set once the connection must end; requests are no longer handled."""
        self.large: LargeFrame | None = None
        """The large frame that is arriving: the next bytes are read into `large_buffer`."""
        self.unread = 0
        """Bytes of memory in answers that the peer does not take (connections.py counts them)."""
        self.pending = b""
        """Bytes that have arrived and are not handled yet."""
        self.woken = False
        """Whether `wake` was called since the last turn; the caller resets it when it begins one."""
        self._wake = wake
        self._apis = service.apis
        self.intake = service.intake
        self._clock = service.clock
        self._most = service.max_request_bytes
        self._whole: LargeFrame | None = None
        self._handled: LargeFrame | None = None
        self._slots: deque[Call] = deque()
        self._blocking: Call | None = None
        self._behind = 0
        self._held_up = 0
        self._client_id = (b"", "")

    # ------------------------------------------------------------------------------------- bytes in

    def received(self, view: memoryview) -> None:
        """Bytes have arrived: handle their frames, or keep them if frames have to wait. The view may change later."""
        self.last_active = self._clock()
        if not (self._slots or self._held_up or self.out_bytes) or not self.stalled():
            self._guarded(self.pending + view if self.pending else view)
        elif self.ending is None:
            self.pending += view
            self.reading = False
            self._held_up |= _BY_REST
            if self.out_bytes >= HIGH_WATER:
                self._next_turn()

    def large_buffer(self) -> memoryview:
        """Where the next bytes of the large frame belong."""
        large = self.large
        assert large is not None
        # Another connection may have taken the room since `room_again`.
        return large.part(self.intake.room(self) or _LEAST_READ)

    def received_more(self, count: int) -> None:
        """That many bytes have arrived in `large_buffer`."""
        large = self.large
        assert large is not None
        large.let_go()
        self.last_active = self._clock()
        self.intake.received(large, count)
        self._more_of(large)

    def resume(self) -> bool:
        """Handle the waiting frames that may be handled now. Called in the turn of the loop after
        `wake`, once the answers in `out` are written. A connection that reads, with no frame pending, needs no such
        call. Returns whether it handled something."""
        rest = self._held_up & _BY_REST
        self._held_up &= ~_BY_REST
        if self.stalled():
            self._held_up |= rest
            return False
        if self._whole is not None:
            self._handle_large()
        elif self.large is not None:
            self._more_of(self.large)
        elif self.pending:
            self.last_active = self._clock()
            self._guarded(self.pending)
        if not self.stalled():
            self.reading = True
        elif self.out_bytes >= HIGH_WATER and not self.reading:
            self._next_turn()  # otherwise no turn would call `resume` when it is written, to end `_BY_REST`
        return True

    def stalled(self) -> bool:
        """Whether no frame is handled now."""
        return (
            self._blocking is not None
            or self._held_up != 0
            or len(self._slots) >= PIPELINE_LIMIT
            or self.out_bytes + self._behind >= HIGH_WATER
        )

    def _next_turn(self) -> None:
        """Leave the rest for the next turn of the loop."""
        self._held_up |= _BY_REST
        self._wake_once()

    def _wake_once(self) -> None:
        if not self.woken:
            self.woken = True
            self._wake()

    # ------------------------------------------------------------------------------------- frames

    def _guarded(self, data: bytes | memoryview) -> None:
        """Handle what was read: any number of frames."""
        try:
            self._handle_frames(data)
        except Exception as error:
            self._failed(error)
        if self.ending is not None:
            self.pending = b""
        elif self.out_bytes >= HIGH_WATER and self.pending:
            self._next_turn()

    def _handle_frames(self, some: bytes | memoryview) -> None:
        position, end, seen = 0, len(some), 0
        self.pending = b""
        most = self._most
        if end > KEPT_BYTES and end < _LENGTH.unpack_from(some)[0] <= most:
            self._begin_large(some[4:], *_LENGTH.unpack_from(some))  # copied once, to where it belongs
            return
        data = bytes(some)
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
            seen += 1 if self._handle(data[position + 4 : stop]) else _CHECK_EVERY
            if stop == end:
                return
            position = stop
            if seen >= _CHECK_EVERY:
                seen = 0
                if (self._slots or self._held_up or self.out_bytes >= HIGH_WATER) and self.stalled():
                    self._held_up |= _BY_REST
                    break
                if self._clock() - self.last_active >= SLICE_S:
                    self._next_turn()
                    break
        self.pending = data[position:]

    def _begin_large(self, start: bytes | memoryview, length: int) -> None:
        """The first bytes of a large frame have arrived: read the rest into memory of its own."""
        self.large = self.intake.begin(self, length, start)
        self._more_of(self.large)

    def _more_of(self, large: LargeFrame) -> None:
        """Handle a large frame if it is complete; otherwise check whether there is room to read on."""
        if large.filled < large.length:
            if not self.intake.room(self):
                self._held_up |= _BY_MEMORY
                self.reading = False
            return
        self.large = None
        self.intake.whole(self)
        self._whole = large
        if self.stalled():
            self._held_up |= _BY_REST
            self.reading = False
        else:
            self._handle_large()

    def _handle_large(self) -> None:
        self._handled, self._whole = self._whole, None
        large = self._handled
        assert large is not None
        try:
            self._handle(large.view())
        except Exception as error:
            self._failed(error)
        if self._handled is not None:  # otherwise its request is parked, or read in slices
            self._handled = None
            self.intake.done(large)

    def room_again(self) -> None:
        """There may be room again for this connection's large frame."""
        self._held_up &= ~_BY_MEMORY
        self._wake_once()

    def _handle(self, frame: bytes | memoryview) -> bool:
        """Handle one frame. Returns whether it took the fast path."""
        if len(frame) < 10:
            raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a request")
        api_key, version, correlation_id, client_length = _HEADER.unpack_from(frame, 0)
        api = self._apis.get(api_key)
        if api is None or not api.first <= version <= api.last:
            self._refuse(api_key, version, correlation_id)
            return False
        api.counts[version] += 1
        position = 10 + client_length if client_length > 0 else 10
        known, client_id = self._client_id
        if frame[10:position] != known or position > len(frame):
            client_id = self._decode_client_id(frame, client_length)
        if version >= api.tags_from:
            position = position + 1 if frame[position : position + 1] == b"\0" else _after_tags(frame, position)
        if api.fast is not None and not self._slots and isinstance(frame, bytes):
            answer = api.fast(frame, position, version, correlation_id)
            if answer is not None:
                self.out.append(answer)
                self.out_bytes += len(answer)
                if api.latency is not None:
                    api.latency.add((self._clock() - self.last_active) * 1e3)
                return True
        call = Call(self, api, version, correlation_id, client_id)
        call.since = self.last_active
        if api.short is not None and isinstance(frame, bytes):
            call.parked = True
            self._slots.append(call)
            if api.short(frame, position, call):
                return True
            self._slots.pop()
            call.parked = False
        self._dispatch(call, frame, position)
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
            self._in_slices(call, in_one_slice(response))
            return
        if self._slots:
            self._slots.append(call)
            self.complete(call, frame)
        else:
            self.out += frame
            self.out_bytes += call.size
            if call.api.latency is not None:
                call.api.latency.add((self._clock() - call.since) * 1e3)

    @property
    def client_id(self) -> str:
        """The client id of its last request."""
        return self._client_id[1]

    def _decode_client_id(self, frame: bytes | memoryview, length: int) -> str:
        if length <= 0:
            return ""
        raw = bytes(frame[10 : 10 + length])
        if len(raw) < length:
            raise ProtocolError("incomplete request header")
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise ProtocolError("invalid request header: the client id is not valid UTF-8") from None
        self._client_id = (raw, text)
        return text

    def _refuse(self, api_key: int, version: int, correlation_id: int) -> None:
        unsupported = self.service.unsupported
        if unsupported is not None and api_key == unsupported.api.API_KEY and not self._slots:
            # ApiVersions is always answered, so that a client newer than this broker learns which versions it may use.
            parts: list[Buffer] = [b""]
            codec.encoder(type(unsupported.response), 0)(unsupported.response, parts.append)
            size = sum(map(len, parts))
            parts[0] = _RESPONSE_HEADER.pack(size + 4, correlation_id)
            self.out += parts
            self.out_bytes += size + 8
            return
        raise ProtocolError(f"unsupported request: key {api_key}, version {version}")

    # ------------------------------------------------------------------------------------- requests in slices

    def _in_slices(self, call: Call, steps: Sliced) -> None:
        """Handle a request, or encode its answer, in slices between other requests."""
        call.parked = True
        self._slots.append(call)
        self._blocking = call
        large, self._handled = self._handled, None
        over = partial(self.intake.done, large) if large is not None else None
        self.service.slices.add(self._work(call, steps), wanted=lambda: not call.over, over=over)

    def _steps(self, call: Call, frame: bytes | memoryview, position: int) -> Sliced:
        """Decode a large request and handle it."""
        api = call.api
        request = yield from codec.decode_sliced(api.request, call.version, frame, position, api.most_elements)
        frame = b""  # the handler may take a while, and does not need the bytes
        response = api.handle(request, call)
        if response is None or isinstance(response, Response):
            return response
        return (yield from response)

    def _work(self, call: Call, steps: Sliced) -> Generator[None, None, None]:
        try:
            response = yield from steps
            if response is not None and not call.over:
                self.complete(call, (yield from encode_answer_sliced(response, call)))
        except Exception as error:
            call.over = True
            self._failed(error)
        self.service.turn_done()

    # ------------------------------------------------------------------------------------- answers out

    def answered(self, call: Call, response: Response | Sliced) -> None:
        """The handler of a parked call has replied. Never raises: its caller has other calls to answer."""
        if not isinstance(response, Response):
            call.on_cancel = None  # the handler's part is done
            self.service.slices.add(self._work(call, response), wanted=lambda: not call.over)
            return
        try:
            frame = encode_answer(response, call)
        except TooManyElementsError:
            self.answered(call, in_one_slice(response))
        except Exception as error:
            call.over = True
            self._failed(error)
        else:
            self.complete(call, frame)

    def complete(self, call: Call, frame: list[Buffer]) -> None:
        """A parked call has its answer; the answers at the head of the queue can leave."""
        slots = self._slots
        call.over = True
        if call.held is not None:
            call.give_frame_back()
        if self.ending is not None or not slots:
            return
        if call.api.latency is not None:
            call.api.latency.add((self._clock() - call.since) * 1e3)
        if self._blocking is call:
            self._blocking = None
        call.frame = frame
        if slots[0] is not call:
            self._behind += call.size
        else:
            slots.popleft()
            self.out += frame
            self.out_bytes += call.size
            while slots and slots[0].frame is not None:
                done = slots.popleft()
                self.out += done.frame or ()
                self.out_bytes += done.size
                self._behind -= done.size
        if not self.woken:
            self.woken = True
            self._wake()

    def take(self) -> list[Part]:
        """Take all answers that may leave."""
        out, self.out, self.out_bytes = self.out, [], 0
        return out

    def piece(self, most: int) -> Buffer:
        """The first bytes that may leave, at most `most`."""
        return outgoing.piece(self.out, most)

    def sent(self, count: int) -> None:
        """That many bytes have left."""
        self.out_bytes -= count
        outgoing.drop(self.out, count)

    @property
    def own_bytes(self) -> int:
        """The memory of the answers that wait to be written."""
        return outgoing.own_bytes(self.out)

    # ------------------------------------------------------------------------------------- the peer's pace, and ends

    def pause_writing(self) -> None:
        """The peer does not take what was written."""
        self._held_up |= _BY_PEER

    def resume_writing(self) -> None:
        """The peer has taken all of it."""
        self._held_up &= ~_BY_PEER
        self.last_active = self._clock()
        self._wake_once()

    @property
    def waiting(self) -> bool:
        """Whether the peer is waiting for an answer."""
        return bool(self._slots)

    def close(self, why: str) -> None:
        """Send the answers that are ready, then end."""
        self._end(CloseReason(CloseMode.SENT, why))

    def idle(self) -> None:
        """End because the connection was idle for too long."""
        self._end(CloseReason(CloseMode.SENT, "idle for connections.max.idle.ms", "INFO"))

    def end(self) -> None:
        """End at the broker's stop: answers are sent first."""
        self._end(CloseReason(CloseMode.DRAINED))

    def abort(self) -> None:
        """End immediately, even if an orderly end has begun."""
        self._end(CloseReason(CloseMode.AT_ONCE))

    def close_if_forgotten(self) -> None:
        """End if no code is left that could answer one of the requests."""
        call = forgotten(self._slots, self._blocking) if self._slots else None
        if call is not None:
            call.over = True
            self._end(CloseReason(CloseMode.AT_ONCE, f"its {call.api.request.__name__} was never answered", "ERROR"))

    def _failed(self, error: Exception) -> None:
        """A request cannot be answered: its connection ends."""
        if isinstance(error, (ProtocolError, CloseConnectionError)):
            self.close(str(error))
        else:
            self._end(CloseReason(CloseMode.AT_ONCE, "its request could not be handled", "ERROR", error))

    def _end(self, ending: CloseReason) -> None:
        if self.ending is not None and (ending.how is not CloseMode.AT_ONCE or self.ending.how is CloseMode.AT_ONCE):
            return
        self.ending = ending
        self._held_up |= _BY_END
        self.pending = b""
        self.reading = False
        self._wake_once()

    def lost(self) -> None:
        """The connection has ended: parked requests are cancelled, memory is given back."""
        if self.ending is None:
            self.ending = CloseReason(CloseMode.AT_ONCE)
        self._held_up |= _BY_END
        self._wake = _nothing
        self.reading = False
        self.out, self.out_bytes, self.pending, self.large = [], 0, b"", None
        self.intake.lost(self)
        if self._whole is not None:
            self.intake.done(self._whole)
            self._whole = None
        calls, self._slots = self._slots, deque()
        self._blocking = None
        for call in calls:
            if not call.over:
                call.over = True
                if call.on_cancel is not None:
                    call.on_cancel()
            if not call.keeps_frame:
                call.give_frame_back()


def _nothing() -> None:
    """Replaces `wake` when the connection has ended."""


def _after_tags(frame: Buffer, position: int) -> int:
    try:
        return skip_tags(frame, position)
    except IndexError:
        raise ProtocolError("incomplete request header") from None
