"""One connection to one broker: handshake, requests in order, their timeouts.

The states of a connection: CONNECTING, then HANDSHAKE (ApiVersions, which returns the versions that the broker speaks,
and SASL), then READY; any state may turn to CLOSED. Requests wait in a queue until the connection is READY, or while
`MAX_IN_FLIGHT` are in flight. If the broker limits the session lifetime, the connection returns from READY to HANDSHAKE
before the session ends (KIP-368): the handshake's requests queue up behind those in flight. Responses come in the order
of the requests. When the connection ends, every request that it holds is answered with a failure, exactly once.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from muster.client.core.sends import LEAST_LOADED, AnySend, Channel, Failure, FailureKind
from muster.client.net.frames import FrameReader
from muster.client.net.handshake import Handshake, Proof, RefusedError
from muster.client.security.sasl.exchange import REAUTHENTICATE_AT
from muster.client.security.tls import why_refused
from muster.errors import ProtocolError, UnsupportedVersionError
from muster.model import Node
from muster.protocol import framing
from muster.protocol.api import newest_common
from muster.protocol.messages import ApiVersionsRequest
from muster.protocol.primitives import Buffer, Request
from muster.protocol.sasl_messages import SaslAuthenticateRequest, SaslHandshakeRequest

MAX_IN_FLIGHT = 100
"""How many requests may be in flight on one connection. A core may set a lower bound."""

SLOW_MS = 1_000
"""If the handshake takes longer than this, requests that any broker can answer go to another one."""

MAX_FRAME_BYTES = 512 * 1024 * 1024
"""The largest response accepted. Text of another protocol ("HTTP"), read as a length, is above it."""


class ConnectionState(Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    READY = "ready"
    CLOSED = "closed"


@dataclass(slots=True)
class PendingRequest:
    """A request that has not been answered yet. `deadline` is by the driver's clock."""

    send: AnySend
    deadline: int
    correlation_id: int = 0
    version: int = 0


class ConnectionOwner(Protocol):
    """What a connection needs from its driver."""

    def now(self) -> int:
        """The driver's clock, in milliseconds."""

    def schedule_check(self, when: int) -> None:
        """Call `expire` and `flush` at this time at the latest."""

    def deliver(self, send: AnySend, answer: Any) -> None:
        """Deliver the answer to a request."""

    def on_ready(self, connection: Connection) -> None:
        """The handshake has finished."""

    def reauthenticate(self, connection: Connection) -> None:
        """Call the connection's `restart_handshake` with a new proof: the session is about to expire."""

    def on_closed(self, connection: Connection, failure: Failure) -> None:
        """The connection is gone."""


Callback = TypeVar("Callback", bound=Callable[..., None])


def _loop_callback(callback: Callback) -> Callback:
    """A method whose error ends the connection: an event loop would only log it, and requests would wait for their
    timeouts."""

    @wraps(callback)
    def guarded(connection: Connection, *arguments: Any) -> None:
        try:
            callback(connection, *arguments)
        except Exception as error:
            connection.fail(error)

    return cast(Callback, guarded)


class Connection(asyncio.BufferedProtocol):
    """A connection as the driver sees it. Created before the socket exists, so that requests can wait in it."""

    def __init__(
        self,
        owner: ConnectionOwner,
        node: Node,
        channel: Channel,
        client_id: str,
        handshake_ms: int,
    ) -> None:
        self.node = node
        self.channel = channel
        self.state = ConnectionState.CONNECTING
        self.was_ready = False
        self.closed_in_handshake = False
        """Whether the broker closed the connection instead of answering ApiVersions."""
        self.last_used = owner.now()
        self.slow_at = self.last_used + SLOW_MS
        """The connection counts as slow if it is not ready by then."""
        self._owner = owner
        self._client_id = client_id
        self._handshake_ms = handshake_ms
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._queue: deque[PendingRequest] = deque()
        self._in_flight: deque[PendingRequest] = deque()
        self._unwritten: deque[PendingRequest] = deque()
        """Requests without an answer (acks=0) that are not completely written: closing now would lose them."""
        self._correlation_id = 0
        self._handshake = Handshake()
        self._muted_until = 0
        self._reauthenticate_at: int | None = None
        self._answered = False
        """Whether any request other than the handshake's was answered."""

    # --- for the driver ----------------------------------------------------------------------------------------------

    @property
    def features(self) -> tuple[int, dict[str, int]]:
        """The epoch and the levels of the finalized features that the broker has named."""
        return self._handshake.features_epoch, self._handshake.features

    @property
    def load(self) -> int:
        """The number of requests that it holds."""
        return len(self._queue) + len(self._in_flight) + len(self._unwritten)

    def begin(self, handshake: Handshake) -> None:
        """The socket is about to be connected: begin with this handshake."""
        self._handshake = handshake

    def submit(self, send: AnySend, deadline: int) -> None:
        """Take a request; it goes out at the next `flush`."""
        self._queue.append(PendingRequest(send, deadline))

    def withdraw(self) -> list[PendingRequest]:
        """Take out the requests that any broker can answer; none of them has been sent."""
        taken = [waiting for waiting in self._queue if waiting.send.node_id == LEAST_LOADED]
        if taken:
            self._queue = deque(waiting for waiting in self._queue if waiting.send.node_id != LEAST_LOADED)
        return taken

    def restart_handshake(self, proof: Proof) -> None:
        """Re-authenticate; other requests wait until that is done."""
        if self.state is ConnectionState.READY:
            self.state = ConnectionState.HANDSHAKE
            self._handshake = Handshake.assumed(self._handshake.ranges, proof)
            self._ask()

    @_loop_callback
    def flush(self) -> None:
        """Write everything that may be written, in one call."""
        if self.state is not ConnectionState.READY or not self._queue:
            return
        assert self._transport is not None
        if self._transport.is_closing():
            return  # `connection_lost` is next
        now = self._owner.now()
        if now < self._muted_until:
            self._owner.schedule_check(self._muted_until)
            return
        parts: list[Buffer] = []
        while self._queue and len(self._in_flight) < MAX_IN_FLIGHT:
            waiting = self._queue.popleft()
            if not self._encode(waiting, parts):
                continue
            waiting.send.sent_at = now
            if waiting.send.expects_reply:
                if self._in_flight:
                    # Answers come in order, and a JoinGroup ahead may legitimately take minutes. A timeout of this
                    # request would close the connection under the join.
                    waiting.deadline = max(waiting.deadline, self._in_flight[-1].deadline)
                self._in_flight.append(waiting)
            else:
                self._unwritten.append(waiting)
        self.last_used = now
        if parts:
            self._transport.writelines(parts)
            if self._unwritten and not self._transport.get_write_buffer_size():
                self.resume_writing()

    def expire(self, now: int) -> int | None:
        """Give up requests whose time is up. Returns when to check next, None if nothing waits."""
        heads = [under_way[0] for under_way in (self._in_flight, self._unwritten) if under_way]
        late = next((head.send for head in heads if head.deadline <= now), None)
        if late is not None:
            name = late.request_type.__name__
            if self.state is not ConnectionState.READY:
                # Not all of them belong to the handshake: re-authentication begins while other requests are in flight.
                name = _HANDSHAKE.get(late.request_type, name)
            text = f"{self.node} did not {'answer' if late.expects_reply else 'take'} {name} in time"
            self.close(Failure(FailureKind.TIMEOUT, text))
            return None
        if any(waiting.deadline <= now for waiting in self._queue):
            # Later requests are given up too: they must not overtake it, because a producer's batches are in order.
            queue, self._queue = self._queue, deque()
            for waiting in queue:
                text = f"{waiting.send.request_type.__name__} could not be sent to {self.node} in time"
                self._owner.deliver(waiting.send, Failure(FailureKind.UNREACHABLE, text))
        deadlines = [waiting.deadline for waiting in self._queue]
        deadlines += [head.deadline for head in heads]
        if self._reauthenticate_at is not None:
            if self._reauthenticate_at <= now and self.state is ConnectionState.READY:
                self._reauthenticate_at = None
                self._owner.reauthenticate(self)
            else:
                deadlines.append(self._reauthenticate_at)
        return min(deadlines, default=None)

    def close(self, failure: Failure) -> None:
        """End the connection. The oldest request in flight gets `failure`, the others get their own kind of failure."""
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        if self._transport is not None:
            self._transport.abort()
        in_flight = [*self._in_flight, *self._unwritten]
        self._in_flight, self._unwritten = deque(), deque()
        queue, self._queue = self._queue, deque()
        broken = Failure(FailureKind.DISCONNECTED, failure.message)
        for index, waiting in enumerate(in_flight):
            self._owner.deliver(waiting.send, broken if index else failure)
        unsent = failure
        if failure.kind not in (FailureKind.UNSUPPORTED_VERSION, FailureKind.AUTHENTICATION):
            unsent = Failure(FailureKind.UNREACHABLE, failure.message)
        for waiting in queue:
            self._owner.deliver(waiting.send, unsent)
        self._owner.on_closed(self, failure)

    def fail(self, error: Exception) -> None:
        """End the connection after an error in this client. The event loop's handler gets it too."""
        what = f"the connection to {self.node} failed inside this client"
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": what, "exception": error, "protocol": self})
        self.close(Failure(FailureKind.DISCONNECTED, f"{what}: {type(error).__name__}: {error}"))

    # --- for asyncio -------------------------------------------------------------------------------------------------

    @_loop_callback
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by its class: the transports of other event loops do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        if self.state is ConnectionState.CLOSED:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # `resume_writing` comes when all is written
        if self._handshake.done:
            self._on_handshake_done()
            return
        self.state = ConnectionState.HANDSHAKE
        self._ask()

    def resume_writing(self) -> None:
        unwritten, self._unwritten = self._unwritten, deque()
        for waiting in unwritten:
            self._owner.deliver(waiting.send, waiting.send.request_type.RESPONSE())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    @_loop_callback
    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.buffer_updated(nbytes)
            for frame in frames:
                if self.state is ConnectionState.CLOSED:
                    return
                self._on_frame(frame)
        except ProtocolError as error:
            text = f"{self.node} sent a response that no Kafka broker sends: {error}"
            self.close(Failure(FailureKind.GARBLED, text))
        else:
            self.flush()

    def eof_received(self) -> bool | None:
        return None

    @_loop_callback
    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_in_handshake = self.state is ConnectionState.HANDSHAKE and not self.was_ready
        refused = why_refused(exc) if isinstance(exc, ssl.SSLError) else None
        if refused is not None:
            # With TLS 1.3 the broker checks the client's certificate after the client has finished its handshake.
            address = f"{self.node.host}:{self.node.port}"
            self.close(Failure(FailureKind.AUTHENTICATION, f"no connection to {address}: {refused}"))
            return
        # A listener that closes with bytes of ours unread resets the connection.
        reason = self._likely_reason() if exc is None or isinstance(exc, ConnectionError) else ""
        reason = reason or (f": {exc}" if exc else "")
        self.close(Failure(FailureKind.DISCONNECTED, f"{self.node} closed the connection{reason}"))

    def _likely_reason(self) -> str:
        """How a listener reacts to the wrong protocol: it closes the connection without a message."""
        if self._answered or self.state is ConnectionState.CLOSED:
            return ""
        if self.state is ConnectionState.READY:
            return " at the first request; does its port require SASL (security_protocol)?"
        is_encrypted = self._transport is not None and self._transport.get_extra_info("sslcontext") is not None
        return "" if is_encrypted else " as it began; does its port require TLS (security_protocol)?"

    # --- requests and answers ----------------------------------------------------------------------------------------

    def _encode(self, waiting: PendingRequest, parts: list[Buffer]) -> bool:
        """Append a request's bytes. A request that cannot be sent to this broker gets the reason as its answer."""
        send = waiting.send
        try:
            key = send.request_type.API_KEY
            waiting.version = newest_common(send.request_type, self._handshake.ranges.get(key), send.newest_version)
            parts += self._frame(waiting, send.build(waiting.version))
        except UnsupportedVersionError as error:
            text = f"{self.node} cannot serve that request: {error}"
            self._owner.deliver(send, Failure(FailureKind.UNSUPPORTED_VERSION, text))
            return False
        except Exception as error:  # callers may pass in anything; other requests share this connection
            text = f"a value in {send.request_type.__name__} cannot be sent: {type(error).__name__}: {error}"
            self._owner.deliver(send, Failure(FailureKind.UNENCODABLE, text))
            return False
        return True

    def _frame(self, waiting: PendingRequest, request: Request[Any]) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        waiting.correlation_id = self._correlation_id
        return framing.encode_request(request, waiting.version, waiting.correlation_id, self._client_id)

    def _on_frame(self, frame: Buffer) -> None:
        if not self._in_flight:
            raise ProtocolError("a response without a request")
        waiting = self._in_flight[0]
        received = framing.correlation_id(frame)
        if received != waiting.correlation_id:
            raise ProtocolError(f"a response to request {received}, but {waiting.correlation_id} is next")
        if waiting.send.request_type in _HANDSHAKE and self.state is ConnectionState.HANDSHAKE:
            answer = self._handshake.decode(frame)
        else:
            answer = framing.decode_response(frame, waiting.send.request_type, waiting.version)
        self._in_flight.popleft()
        self._answered = self._answered or self.state is ConnectionState.READY
        self.last_used = now = self._owner.now()
        throttle = getattr(answer, "throttle_time_ms", 0)
        if throttle > 0:
            # The broker has answered immediately, and expects the client to send nothing for this long (KIP-219).
            self._muted_until = now + throttle
        self._owner.deliver(waiting.send, answer)

    def _ask(self) -> None:
        """Send the next request of the handshake."""
        try:
            request, version = self._handshake.request(), self._handshake.version
        except RefusedError as error:
            self._refused(error)
            return
        on_reply: Callable[[Any, int], None] = self._on_handshake_answer
        send: AnySend = AnySend(self.node.node_id, type(request), lambda _: request, on_reply)
        waiting = PendingRequest(send, self._owner.now() + self._handshake_ms, version=version)
        if self._in_flight:
            waiting.deadline = max(waiting.deadline, self._in_flight[-1].deadline)
        assert self._transport is not None
        self._transport.writelines(self._frame(waiting, request))
        self._in_flight.append(waiting)
        self._owner.schedule_check(waiting.deadline)  # requests waiting behind it may have much longer timeouts

    def _on_handshake_done(self) -> None:
        self.state = ConnectionState.READY
        lifetime_ms = self._handshake.session_lifetime_ms
        if lifetime_ms:
            self._reauthenticate_at = self._owner.now() + int(lifetime_ms * random.uniform(*REAUTHENTICATE_AT))
            self._owner.schedule_check(self._reauthenticate_at)
        if not self.was_ready:
            self.was_ready = True
            self._owner.on_ready(self)

    def _on_handshake_answer(self, answer: Any, now: int) -> None:
        if isinstance(answer, Failure):
            return
        try:
            self._handshake.take(answer)
        except RefusedError as error:
            self._refused(error)
            return
        if self._handshake.done:
            self._on_handshake_done()
        else:
            self._ask()

    def _refused(self, error: RefusedError) -> None:
        kind = FailureKind.AUTHENTICATION if error.is_authentication else FailureKind.UNSUPPORTED_VERSION
        self.close(Failure(kind, f"no connection to {self.node.host}:{self.node.port}: {error}"))


_HANDSHAKE: dict[type[Request[Any]], str] = {
    ApiVersionsRequest: "the version handshake",
    SaslHandshakeRequest: "the SASL handshake",
    SaslAuthenticateRequest: "the SASL authentication",
}
