"""A blocking connection to a broker, for executors and planners: they read and wait, and do nothing else meanwhile.

Requests may be pipelined: `send` several, then `receive` the answers in the same order.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import Any, TypeVar

from muster.errors import ProtocolError
from muster.protocol.api import newest_common, version_ranges
from muster.protocol.framing import check_length, correlation_id, decode_response, encode_request
from muster.protocol.messages import ApiVersionsRequest
from muster.protocol.primitives import Buffer, Request, Response

R = TypeVar("R", bound=Response)

_LENGTH = struct.Struct(">i")
_MAX_FRAME = 1 << 30
_API_VERSIONS = 2  # what every broker of today answers, without telling it what we are


class Connection:
    """One connection. Whatever goes wrong raises OSError or ProtocolError, and the connection is of no more use."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: deque[tuple[int, type[Request[Any]], int]] = deque()
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._send(ApiVersionsRequest(), _API_VERSIONS)
            self._ranges = version_ranges(self.receive().api_keys)
        except BaseException:
            self._socket.close()
            raise

    @property
    def idle(self) -> bool:
        """Whether no answer is awaited."""
        return not self._waiting

    def send(self, request: Request[R], newest: int | None = None) -> None:
        """Send a request in the newest version that both sides speak, at most `newest`.

        Raises:
            UnsupportedVersionError: there is none.
        """
        self._send(request, newest_common(type(request), self._ranges.get(request.API_KEY), newest))

    def _send(self, request: Request[R], version: int) -> None:
        self._correlation_id += 1
        parts = encode_request(request, version, self._correlation_id, self._client_id)
        self._waiting.append((self._correlation_id, type(request), version))
        self._socket.sendall(b"".join(parts))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        expected, request, version = self._waiting[0]
        frame = self._read_frame()
        if correlation_id(frame) != expected:
            raise ProtocolError(f"an answer to request {correlation_id(frame)} came where {expected} was due")
        self._waiting.popleft()
        return decode_response(frame, request, version)

    def ask(self, request: Request[R], newest: int | None = None) -> R:
        """Send a request and wait for its answer."""
        self.send(request, newest)
        found: R = self.receive()
        return found

    def _read_frame(self) -> Buffer:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        check_length(length, _MAX_FRAME)
        return self._read(length)

    def _read(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            filled += count
        return view

    def close(self) -> None:
        """Close it; safe to call twice."""
        with contextlib.suppress(OSError):
            self._socket.close()
