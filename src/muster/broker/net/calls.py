"""Requests in progress: the handler of each type, the sender of a request, and its answer.

A handler returns its response; or None, and calls `Call.reply` later, once; or a generator that yields now and then and
returns the response: a large request is handled a slice at a time (slices.py).

Every request is answered, or its connection is closed. If a handler raises, immediately or when it replies, the
connection is closed. If only the connection still refers to a parked call, no code is left that could answer it
(`forgotten`), and the connection is closed too.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, Protocol, TypeVar

from muster.broker.net.intake import Intake, LargeFrame
from muster.errors import MusterError
from muster.metrics.families import Buckets
from muster.protocol import codec
from muster.protocol.api import response_header_version
from muster.protocol.messages import FetchRequest
from muster.protocol.primitives import Buffer, Request, Response

SMALL = 2_000
"""Array elements that are decoded or encoded without a break: about two milliseconds."""

_JOIN_BELOW = 4096
"""A buffer of at least this size is written separately, not joined with others."""
_JOIN_PARTS = 256
"""In an answer with more buffers than this, the small ones are joined: many small objects take more memory than their
bytes."""
_RESPONSE_HEADER = Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER = Struct(">iib")


class NoResponse(Response):
    """What a handler returns for a request without an answer (a produce with acks=0)."""

    __slots__ = ()


NO_RESPONSE = NoResponse()


class CloseConnectionError(MusterError):
    """Raised by a handler to end the connection without an answer. The message is for the log."""


Sliced = Generator[None, None, Response | None]
R = TypeVar("R")
Handle = Callable[[Any, "Call"], Response | Sliced | None]
Fast = Callable[[bytes, int, int, int], bytes | None]
Short = Callable[[bytes, int, "Call"], bool]


@dataclass(slots=True)
class Api:
    """How a type of request is served: its versions, its handler, whether later requests may be handled meanwhile.

    `fast` is a fast path for a frequent request: frame, position of the body, version, correlation id -> the whole
    answer, or None to take the general path. `short` is one for a request whose answer has to wait: frame, position of
    the body, call -> whether it was handled; it calls `Call.reply_ready`. A request with more than `most_elements` in
    its arrays closes its connection.
    """

    request: type[Request[Any]]
    first: int
    last: int
    handle: Handle
    pipelined: bool = False
    fast: Fast | None = None
    most_elements: int = 1 << 20
    short: Short | None = None
    counts: list[int] = field(init=False)
    """How many requests of each version were received."""
    latency: Buckets | None = field(init=False, default=None)
    """The milliseconds from the read that brought a request's last bytes until its answer is ready to be written. None:
    times are not measured, and no clock is read for them."""
    tags_from: int = field(init=False)
    """The first version whose requests have a header with tags."""
    flexible_from: int = field(init=False)
    """The first version whose answers have one."""
    has_records: bool = field(init=False)
    """Whether its answers may contain views of the log, which are not copied."""

    def __post_init__(self) -> None:
        self.counts = [0] * (self.last + 1)
        self.tags_from = self.request.FIRST_FLEXIBLE_VERSION
        self.has_records = self.request is FetchRequest
        versions = range(self.request.MIN_VERSION, self.request.MAX_VERSION + 1)
        flexible = (version for version in versions if response_header_version(self.request, version))
        self.flexible_from = next(flexible, self.request.MAX_VERSION + 1)


class Unsupported(NamedTuple):
    """The one request that is answered in every version, and the answer (KIP-511)."""

    api: type[Request[Any]]
    response: Response


class SliceQueue(Protocol):
    """Does long work a slice at a time (slices.py)."""

    def add(
        self,
        work: Generator[None, None, object],
        *,
        wanted: Callable[[], bool],
        over: Callable[[], None] | None = None,
    ) -> None:
        """Do the work when it comes first in the queue, if it is still `wanted`; `over` is called when it has ended."""


class Service(NamedTuple):
    """The parts that the connections of a broker share."""

    apis: dict[int, Api]
    unsupported: Unsupported | None
    max_request_bytes: int
    intake: Intake
    slices: SliceQueue
    turn_done: Callable[[], None]
    """Called after requests were handled."""
    clock: Callable[[], float]


class CallConnection(Protocol):
    """The connection that a request came on (connection_core.py)."""

    client_host: str
    peer: str
    intake: Intake

    def answered(self, call: Call, response: Response | Sliced) -> None:
        """A parked call has its answer."""

    def complete(self, call: Call, frame: list[Buffer]) -> None:
        """A parked call has its answer, encoded: `call.size` bytes."""

    def close(self, why: str) -> None:
        """Send the answers that are ready, then end."""


class Call:
    """One request in progress: its sender, and where its answer goes."""

    __slots__ = (
        "answer",
        "api",
        "blocks",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "held",
        "keeps_frame",
        "on_cancel",
        "over",
        "parked",
        "ready",
        "since",
        "size",
        "version",
    )

    def __init__(self, connection: CallConnection, api: Api, version: int, correlation_id: int, client_id: str) -> None:
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.on_cancel: Callable[[], None] | None = None
        """Called if the connection ends before the answer."""
        self.blocks = not api.pipelined
        """Whether the frames after it wait until it is answered. A handler may set it."""
        self.held: LargeFrame | None = None
        """The large frame that it came in, as long as a handler may have views of it."""
        self.keeps_frame = False
        """Whether `held` is still needed when the connection has ended: then `give_frame_back` is called."""
        self.parked = False
        """Whether the handler has returned without an answer."""
        self.answer: Response | Sliced | None = None
        """What `reply` was called with while the handler ran."""
        self.ready = b""
        """The whole answer to a request on the fast path: it only waits to be sent."""
        self.frame: list[Buffer] | None = None
        self.since = 0.0
        """When its last bytes arrived, by the connection's clock."""
        self.size = 0
        self.over = False
        """Whether an answer is no longer due: it was sent, or the connection has ended."""

    @property
    def peer(self) -> str:
        """The peer's address and port, for the log."""
        return self.connection.peer

    def reply(self, response: Response | Sliced) -> None:
        """Answer the request. A second call does nothing, nor does one after the connection's end. Never raises."""
        if self.parked:
            if not self.over:
                self.connection.answered(self, response)
        elif self.answer is None:
            self.answer = response

    def reply_ready(self, outcome: object) -> None:
        """Like `reply`, with the answer that is `ready`; an outcome that is a Response goes out in its place."""
        if isinstance(outcome, Response):
            self.reply(outcome)
        elif not self.over:
            self.size = len(self.ready)
            self.connection.complete(self, [self.ready])

    def give_frame_back(self) -> None:
        """Give the frame's memory back: the handler no longer has views of it."""
        frame, self.held = self.held, None
        if frame is not None:
            self.connection.intake.done(frame)

    def close(self, reason: str) -> None:
        """End the connection without an answer, as CloseConnectionError does while the handler runs."""
        self.over = True
        self.connection.close(reason)


def at_once(steps: Generator[None, None, R]) -> R:
    """The result of a sliced handler, run without a break: for a request that turns out to be small."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: R = end.value
            return found


def in_one_slice(response: Response) -> Sliced:
    """A response that is ready, as a sliced handler would return it."""
    yield
    return response


def forgotten(calls: deque[Call], blocking: Call | None) -> Call | None:
    """One of these parked calls that only its connection refers to: no code is left that could answer it. The
    connection has two references to `blocking`."""
    for call in calls:
        if not call.over and sys.getrefcount(call) <= _HELD_BY_US + 2 * (call is blocking):
            return call
    return None


def _held_by_us() -> int:
    """The reference count that `forgotten` sees for a call that only its connection refers to."""
    seen = 0
    for call in deque([object()]):
        seen = sys.getrefcount(call)
    return seen


_HELD_BY_US = _held_by_us()


def encode_answer(response: Response, call: Call, most_elements: int = SMALL) -> list[Buffer]:
    """The frame of a response, an empty list for NO_RESPONSE.

    Raises:
        TooManyElementsError: it has more elements than `most_elements`, and has to be encoded a slice at a time.
    """
    if response is NO_RESPONSE:
        return []
    parts: list[Buffer] = [b""]
    codec.CODECS[type(response), call.version][0](response, parts.append, most_elements)
    return finish_frame(parts, call)


def encode_answer_sliced(response: Response, call: Call) -> Generator[None, None, list[Buffer]]:
    """`encode_answer`, a few elements at a time."""
    parts: list[Buffer] = [b""]
    joined = 1
    for _ in codec.encode_sliced(response, call.version, parts.append):
        if len(parts) - joined > _JOIN_PARTS:
            parts[joined:] = join_small(parts[joined:])
            joined = len(parts)
        yield
    return finish_frame(parts, call)


def finish_frame(parts: list[Buffer], call: Call) -> list[Buffer]:
    """Put length and header in front of an encoded response (`parts` has a place for them)."""
    if call.api.has_records:
        size = sum(map(len, parts))
        if len(parts) > _JOIN_PARTS:
            parts = [b"", *join_small(parts)]
    else:
        body = b"".join(parts)
        parts = [b"", body]
        size = len(body)
    if call.version >= call.api.flexible_from:
        parts[0] = _FLEXIBLE_RESPONSE_HEADER.pack(size + 5, call.correlation_id, 0)
        call.size = size + 9
    else:
        parts[0] = _RESPONSE_HEADER.pack(size + 4, call.correlation_id)
        call.size = size + 8
    return parts


def join_small(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes, with runs of small buffers joined into one; a large buffer, a view of the log, stays as it is."""
    found: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < _JOIN_BELOW:
            run.append(part)
            continue
        if run:
            found.append(b"".join(run))
            run = []
        found.append(part)
    if run:
        found.append(b"".join(run))
    return found
