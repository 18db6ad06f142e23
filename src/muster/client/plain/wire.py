"""A blocking connection to a broker, for executors and planners, which have nothing else to do while they wait.

Requests may be pipelined: `send` several, then `receive` the answers in the same order.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import Any, TypeVar

import numpy as np

from muster.client.handshake import Handshake, set_options
from muster.errors import ErrorCode, ProtocolError
from muster.protocol.api import newest_common
from muster.protocol.framing import check_length, correlation_id, decode_response, encode_request
from muster.protocol.primitives import Buffer, Request, Response

R = TypeVar("R", bound=Response)

_LENGTH = struct.Struct(">i")
_MAX_FRAME = 1 << 30
_API_VERSIONS = 2  # every broker of today answers this version; it does not carry the client's name


class Connection:
    """One connection. A failure raises OSError or ProtocolError; then the connection cannot be used any more."""

    def __init__(self, host: str, port: int, client_id: str, timeout_s: float) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: deque[tuple[int, type[Request[Any]], int]] = deque()
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            set_options(self._socket)
            self._ranges = self._shake_hands()
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self) -> dict[int, tuple[int, int]]:
        handshake = Handshake(_API_VERSIONS)
        while not handshake.done:
            self._send(handshake.request(), handshake.version)
            code = handshake.take(handshake.decode(self._next_frame()))
            if code is not ErrorCode.NONE:
                raise ProtocolError(f"the broker refused the version handshake: {code.name}")
        return handshake.ranges

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
        _, request, version = self._waiting[0]
        return decode_response(self._next_frame(), request, version)

    def ask(self, request: Request[R], newest: int | None = None) -> R:
        """Send a request and wait for its answer."""
        self.send(request, newest)
        found: R = self.receive()
        return found

    def _next_frame(self) -> Buffer:
        expected = self._waiting[0][0]
        frame = self._read_frame()
        if correlation_id(frame) != expected:
            raise ProtocolError(f"an answer to request {correlation_id(frame)} came where {expected} was due")
        self._waiting.popleft()
        return frame

    def _read_frame(self) -> Buffer:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        check_length(length, _MAX_FRAME)
        return self._read(length)

    def _read(self, size: int) -> memoryview:
        view = np.empty(size, np.uint8).data  # a bytearray would be cleared first
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
