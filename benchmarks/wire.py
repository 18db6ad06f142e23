"""The wire side of the load generator: prebuilt frames, non-blocking sockets, whole answers counted.

A generator in Python can drive a broker only if it does almost nothing for each request. So the requests of a run are
encoded once, concatenated, and sent in slices; an answer is compared, after its correlation id, with the first one,
which was decoded and checked. That takes less than a microsecond per request, and every run reports it
(`generator_us`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Protocol, TypeVar

from muster.protocol import framing
from muster.protocol.api import response_header_version
from muster.protocol.primitives import Request, Response

R = TypeVar("R", bound=Response)
Address = tuple[str, int]

CLIENT_ID = "bench"
BUFFER_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 60.0
SAMPLE = 16
"""If responses differ from each other, one in this many is decoded."""

_HEAD = Struct(">ii")


class BenchmarkError(Exception):
    """A server sent a wrong answer, so the measurement is invalid."""


class Measured(Protocol):
    """A server as the generator sees it."""

    @property
    def address(self) -> Address: ...

    def cpu_s(self) -> float | None:
        """CPU time that its process has used; None if the system does not report it."""


def frame(request: Request[Any], version: int, correlation_id: int = 0) -> bytes:
    """A request as it goes over the wire."""
    return b"".join(framing.encode_request(request, version, correlation_id, CLIENT_ID))


def connect(address: Address) -> socket.socket:
    """A connection that sends without delay."""
    sock = socket.create_connection(address, TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Asker:
    """One blocking connection, for requests before and between the measurements."""

    def __init__(self, address: Address) -> None:
        self._socket = connect(address)

    def ask(self, request: Request[R], version: int) -> R:
        """Send a request and wait for its answer."""
        self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Request[Any], version: int) -> None:
        """Send a request."""
        self._socket.sendall(frame(request, version))

    def receive(self, request: Request[R], version: int) -> R:
        """Wait for the answer to a request of this kind."""
        length = int.from_bytes(self._exactly(4), "big")
        return framing.decode_response(self._exactly(length), type(request), version)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise BenchmarkError("the server closed the connection")
            data += part
        return bytes(data)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Traffic:
    """Requests that one connection sends repeatedly, and how to recognise a correct answer.

    Args:
        alike: all correct answers are equal, except for their correlation id.
        check: raises BenchmarkError for a wrong answer.
    """

    def __init__(
        self, requests: Sequence[Request[R]], version: int, check: Callable[[R], None], *, alike: bool = True
    ) -> None:
        frames = [frame(request, version, number) for number, request in enumerate(requests)]
        self.count = len(frames)
        self.data = memoryview(b"".join(frames))
        self.starts = [0]
        for one in frames:
            self.starts.append(self.starts[-1] + len(one))
        self._example = requests[0]
        self._version = version
        self._check = check
        self._alike = alike

    def check(self, answer: bytes) -> bytes | None:
        """Decode an answer (without its length) and check it. Returns the bytes that all other answers must equal, if
        any."""
        self._check(framing.decode_response(answer, type(self._example), self._version))
        return answer[4:] if self._alike else None


@dataclass
class Pumped:
    """The result of a run."""

    requests: int
    wall_s: float
    server_cpu_s: float | None
    generator_cpu_s: float
    latencies: list[tuple[float, int]] = field(repr=False)
    """Latencies in seconds, each with the number of answers."""

    @property
    def per_second(self) -> float:
        return self.requests / self.wall_s

    def figures(self) -> dict[str, float]:
        """The run in the units of the report."""
        found = {
            "requests_per_s": self.per_second,
            "p50_ms": percentile(self.latencies, 0.5) * 1e3,
            "p99_ms": percentile(self.latencies, 0.99) * 1e3,
            "generator_us": self.generator_cpu_s / self.requests * 1e6,
        }
        if self.server_cpu_s is not None:
            found["server_us"] = self.server_cpu_s / self.requests * 1e6
        return found


def percentile(weighted: list[tuple[float, int]], share: float) -> float:
    """The value that a fraction `share` of all values do not exceed."""
    ordered = sorted(weighted)
    left = share * sum(count for _, count in ordered)
    for value, count in ordered:
        left -= count
        if left <= 0:
            return value
    raise BenchmarkError("nothing was answered")


class _Stream:
    """One connection with `depth` requests in flight."""

    def __init__(self, address: Address, traffic: Traffic, depth: int, selector: selectors.BaseSelector) -> None:
        self.socket = connect(address)
        self.socket.setblocking(False)
        self.latencies: list[tuple[float, int]] = []
        self.under_way = 0
        self._traffic = traffic
        self._depth = depth
        self._selector = selector
        self._next_sent = 0
        self._next_answered = 0
        self._answered = 0
        self._sent_at: deque[tuple[float, int]] = deque()
        self._out: deque[memoryview] = deque()
        self._buffer = bytearray(BUFFER_BYTES if len(traffic.data) > BUFFER_BYTES else 512 * 1024)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._expected: bytes | None = None
        selector.register(self.socket, selectors.EVENT_READ, self)

    def fill(self) -> None:
        """Send as many requests as may be in flight."""
        left = self._depth - self.under_way
        self._sent_at.append((time.perf_counter(), left))
        self.under_way += left
        traffic = self._traffic
        while left:
            count = min(left, traffic.count - self._next_sent)
            start, end = traffic.starts[self._next_sent], traffic.starts[self._next_sent + count]
            self._out.append(traffic.data[start:end])
            self._next_sent = (self._next_sent + count) % traffic.count
            left -= count
        self.write()

    def write(self) -> None:
        """Write as much as the system accepts; the rest when it accepts more."""
        out = self._out
        with contextlib.suppress(BlockingIOError):
            while out:
                sent = self.socket.send(out[0])
                if sent < len(out[0]):
                    out[0] = out[0][sent:]
                else:
                    out.popleft()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
        if self._selector.get_key(self.socket).events != wanted:
            self._selector.modify(self.socket, wanted, self)

    def read(self) -> int:
        """Read answers; returns their number."""
        count = self.socket.recv_into(self._view[self._filled :])
        if not count:
            raise BenchmarkError("the server closed the connection")
        end = self._filled + count
        position = answered = 0
        data, number, total = self._buffer, self._next_answered, self._traffic.count
        while end - position >= 8:
            length, correlation_id = _HEAD.unpack_from(data, position)
            stop = position + 4 + length
            if stop > end:
                break
            if correlation_id != number:
                raise BenchmarkError(f"the answer to request {number} has the correlation id {correlation_id}")
            if self._expected is None or data[position + 8 : stop] != self._expected:
                self._check(bytes(data[position + 4 : stop]), self._answered + answered)
            number = number + 1 if number + 1 < total else 0
            answered += 1
            position = stop
        if position:
            data[: end - position] = data[position:end]
        self._filled = end - position
        self._next_answered = number
        self._answered += answered
        if answered:
            self._note(answered)
        return answered

    def _check(self, answer: bytes, number: int) -> None:
        if self._expected is not None:
            self._traffic.check(answer)
            raise BenchmarkError("an answer differs from the first one")
        if number % SAMPLE == 0 or number < SAMPLE:
            self._expected = self._traffic.check(answer)

    def _note(self, answered: int) -> None:
        self.under_way -= answered
        now = time.perf_counter()
        while answered:
            at, count = self._sent_at[0]
            took = min(answered, count)
            self.latencies.append((now - at, took))
            answered -= took
            if took < count:
                self._sent_at[0] = (at, count - took)
            else:
                self._sent_at.popleft()


def pump(
    server: Measured, traffics: Sequence[Traffic], *, depth: int, seconds: float, most_requests: int = 1 << 62
) -> Pumped:
    """Keep `depth` requests in flight on one connection for each traffic, for this many seconds or requests."""
    selector = selectors.DefaultSelector()
    streams = [_Stream(server.address, traffic, depth, selector) for traffic in traffics]
    try:
        cpu, own, start = server.cpu_s(), time.process_time(), time.perf_counter()
        end, answered = start + seconds, 0
        for stream in streams:
            stream.fill()
        now = start
        while now < end and answered < most_requests:
            answered += _turn(selector, refill=True)
            now = time.perf_counter()
        own, cpu_after = time.process_time() - own, server.cpu_s()
        latencies = [one for stream in streams for one in stream.latencies]
        while any(stream.under_way for stream in streams):
            _turn(selector, refill=False)
    finally:
        for stream in streams:
            stream.socket.close()
        selector.close()
    used = cpu_after - cpu if cpu is not None and cpu_after is not None else None
    return Pumped(answered, now - start, used, own, latencies)


def _turn(selector: selectors.BaseSelector, *, refill: bool) -> int:
    answered = 0
    ready = selector.select(TIMEOUT_S)
    if not ready:
        raise BenchmarkError(f"no answer within {TIMEOUT_S:.0f} s")
    for key, events in ready:
        stream: _Stream = key.data
        if events & selectors.EVENT_READ:
            got = stream.read()
            answered += got
            if got and refill:
                stream.fill()
        if events & selectors.EVENT_WRITE:
            stream.write()
    return answered


def response_body(request: type[Request[Any]], version: int) -> int:
    """Where an answer's message begins, after its header."""
    return 5 if response_header_version(request, version) else 4
