"""The rules of a connection to another broker, without I/O.

Requests go out in order, and are answered in order. The connection is made when it is needed, and begins with
ApiVersions. A request is given up (its answer is None) when its connection ends, when its broker has not answered for
`ANSWER_MS`, and immediately if the last attempt to connect has just failed or too many requests wait. Whether a request
that was given up has been carried out is unknown; the sender decides whether to repeat it.

Every method returns a `LinkStep`, which the caller carries out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from muster.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from muster.protocol import framing
from muster.protocol.api import newest_common, version_ranges
from muster.protocol.messages import ApiVersionsRequest
from muster.protocol.primitives import Buffer, Request, Response

ANSWER_MS = 30_000
"""How long a broker may take to answer; Kafka's `request.timeout.ms`."""

CONNECT_MS = 10_000
"""How long a connection may take; Kafka's `socket.connection.setup.timeout.ms`."""

FIRST_BACKOFF_MS = 50
LAST_BACKOFF_MS = 1_000
"""The delay after a failed attempt to connect; it doubles with each."""

MOST_WAITING = 10_000
"""Requests that may wait for an answer."""

MAX_FRAME_BYTES = 16 * 1024 * 1024

Done = Callable[[Any], None]
"""Takes the response, None if the request was given up."""


class LinkRequest(NamedTuple):
    """A request that is queued or sent. `oldest`: the oldest version that can express it."""

    request: Request[Any]
    oldest: int
    done: Done
    since: int


@dataclass(slots=True)
class LinkStep:
    """What the caller must do, in this order."""

    connect: bool = False
    send: list[Buffer] = field(default_factory=list)
    close: bool = False
    answers: list[tuple[Done, Response | None]] = field(default_factory=list)
    trouble: str | None = None
    """What the other side did wrong, for the log."""


class _LinkState(Enum):
    IDLE = 0
    CONNECTING = 1
    GREETING = 2
    READY = 3


class LinkCore:
    """A connection to one broker. `client_id` names this broker to it. Times are milliseconds of a steady clock."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._state = _LinkState.IDLE
        self._began_at = 0
        self._retry_at = 0
        self._backoff_ms = FIRST_BACKOFF_MS
        self._queued: deque[LinkRequest] = deque()
        self._sent: deque[tuple[LinkRequest, int]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        """How many requests wait for an answer."""
        return len(self._queued) + len(self._sent)

    def ask(self, request: Request[Any], oldest: int, done: Done, now: int) -> LinkStep:
        """Send a request."""
        step = LinkStep()
        asked = LinkRequest(request, oldest, done, now)
        if self.waiting >= MOST_WAITING or (self._state is _LinkState.IDLE and now < self._retry_at):
            step.answers.append((done, None))
        elif self._state is _LinkState.READY:
            self._send(asked, step)
        else:
            self._queued.append(asked)
            if self._state is _LinkState.IDLE:
                self._state, self._began_at = _LinkState.CONNECTING, now
                step.connect = True
        return step

    def connected(self, now: int) -> LinkStep:
        """The connection is open."""
        self._state = _LinkState.GREETING
        return LinkStep(send=self._encode(ApiVersionsRequest(), 0))

    def received(self, data: Buffer, now: int) -> LinkStep:
        """Bytes from the other broker."""
        step = LinkStep()
        self._buffer += data
        try:
            while (frame := self._next_frame()) is not None:
                self._take(frame, step)
        except ProtocolError as error:
            return self._give_up(step, now, str(error))
        return step

    def lost(self, now: int, trouble: str | None = None) -> LinkStep:
        """The connection could not be made, or has ended."""
        return self._give_up(LinkStep(), now, trouble)

    def closed(self) -> LinkStep:
        """This broker no longer needs the connection."""
        return self._give_up(LinkStep(), self._began_at, None)

    def deadline(self) -> int | None:
        """When to call `on_deadline`."""
        if self._state in (_LinkState.CONNECTING, _LinkState.GREETING):
            return self._began_at + CONNECT_MS
        return self._sent[0][0].since + ANSWER_MS if self._sent else None

    def on_deadline(self, now: int) -> LinkStep:
        """Give up what has taken too long. Answers come in order: if the first is late, so are all."""
        due = self.deadline()
        if due is None or now < due:
            return LinkStep()
        what = "answer" if self._state is _LinkState.READY else "accept a connection"
        return self._give_up(LinkStep(), now, f"did not {what} in time")

    # ------------------------------------------------------------------------------------------------------------

    def _encode(self, request: Request[Any], version: int) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return framing.encode_request(request, version, self._correlation_id, self._client_id)

    def _send(self, asked: LinkRequest, step: LinkStep) -> None:
        kind = type(asked.request)
        try:
            version = newest_common(kind, self._versions.get(kind.API_KEY))
            if version < asked.oldest:
                raise UnsupportedVersionError(f"the broker supports {kind.__name__} only up to v{version}")
        except UnsupportedVersionError as error:
            step.trouble = str(error)
            step.answers.append((asked.done, None))
            return
        step.send += self._encode(asked.request, version)
        self._sent.append((asked, version))

    def _next_frame(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big", signed=True)
        framing.check_length(length, MAX_FRAME_BYTES)
        if len(self._buffer) < 4 + length:
            return None
        frame = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return frame

    def _take(self, frame: bytes, step: LinkStep) -> None:
        expected = (self._correlation_id - max(len(self._sent) - 1, 0)) & 0x7FFFFFFF
        if framing.correlation_id(frame) != expected:
            raise ProtocolError("an answer to a request other than the first that waits")
        if self._state is _LinkState.GREETING:
            self._greeted(frame, step)
        elif self._sent:
            asked, version = self._sent.popleft()
            step.answers.append((asked.done, framing.decode_response(frame, type(asked.request), version)))
        else:
            raise ProtocolError("an answer without a request")

    def _greeted(self, frame: bytes, step: LinkStep) -> None:
        found = framing.decode_response(frame, ApiVersionsRequest, 0)
        if found.error_code != ErrorCode.NONE:
            raise ProtocolError(f"ApiVersions failed with error {found.error_code}")
        self._versions = version_ranges(found.api_keys)
        self._state, self._backoff_ms = _LinkState.READY, FIRST_BACKOFF_MS
        while self._queued:
            self._send(self._queued.popleft(), step)

    def _give_up(self, step: LinkStep, now: int, trouble: str | None) -> LinkStep:
        if self._state is not _LinkState.READY:
            self._retry_at = now + self._backoff_ms
            self._backoff_ms = min(self._backoff_ms * 2, LAST_BACKOFF_MS)
        self._state = _LinkState.IDLE
        step.close, step.trouble = True, trouble
        step.answers += [(asked.done, None) for asked, _ in self._sent]
        step.answers += [(asked.done, None) for asked in self._queued]
        self._sent.clear()
        self._queued.clear()
        self._buffer.clear()
        return step
