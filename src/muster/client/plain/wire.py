"""A blocking connection to a broker, for executors and planners, which have nothing else to do while they wait.

Requests may be pipelined: `send` several, then `receive` the answers in the same order.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections import deque
from typing import Any, TypeVar

import numpy as np

from muster.client.config import ClientConfig
from muster.client.net.access import Access
from muster.client.net.handshake import Handshake, Proof, RefusedError, set_options
from muster.client.security.tls import why_refused
from muster.errors import AuthenticationError, ProtocolError
from muster.protocol.api import newest_common
from muster.protocol.framing import check_length, correlation_id, decode_response, encode_request
from muster.protocol.primitives import Buffer, Request, Response

R = TypeVar("R", bound=Response)

_LENGTH = struct.Struct(">i")
_MAX_FRAME = 1 << 30
_API_VERSIONS = 2  # every current broker answers this version; it does not carry the client's name


class PlainConnection:
    """One connection. A failure raises OSError or ProtocolError; then the connection can no longer be used."""

    def __init__(self, host: str, port: int, config: ClientConfig, access: Access) -> None:
        proof = access.proof()
        self._client_id = config.client_id
        self._correlation_id = 0
        self._waiting: deque[tuple[int, type[Request[Any]], int]] = deque()
        self._socket = socket.create_connection((host, port), config.socket_connection_setup_timeout_ms / 1000)
        try:
            self._socket.settimeout(config.request_timeout_ms / 1000)
            set_options(self._socket, config)
            if access.tls is not None:
                self._socket = access.tls.wrap_socket(self._socket, server_hostname=host)
            self._ranges = self._shake_hands(proof)
        except BaseException as error:
            self._socket.close()
            _raise_refusal(error, f"no connection to {host}:{port}", access)
            raise

    def _shake_hands(self, proof: Proof | None) -> dict[int, tuple[int, int]]:
        handshake = Handshake(_API_VERSIONS, proof)
        while not handshake.done:
            self._send(handshake.request(), handshake.version)
            handshake.take(handshake.decode(self._next_frame()))
        return handshake.ranges

    @property
    def idle(self) -> bool:
        """Whether no answer is outstanding."""
        return not self._waiting

    def version(self, request_type: type[Request[Any]], newest: int | None = None) -> int:
        """The newest version of a request that both sides speak, at most `newest`.

        Raises:
            UnsupportedVersionError: the broker and this client share no version.
        """
        return newest_common(request_type, self._ranges.get(request_type.API_KEY), newest)

    def send(self, request: Request[R], newest: int | None = None) -> None:
        """Send a request in the newest version that both sides speak, at most `newest`.

        Raises:
            UnsupportedVersionError: the broker and this client share no version.
        """
        self._send(request, self.version(type(request), newest))

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
            raise ProtocolError(f"a response to request {correlation_id(frame)}, but {expected} is next")
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


def _raise_refusal(error: BaseException, what: str, access: Access) -> None:
    """Raise AuthenticationError or ProtocolError for a refusal; return for any other error."""
    refused = why_refused(error) if isinstance(error, ssl.SSLError) else None
    if isinstance(error, RefusedError) and not error.is_authentication:
        raise ProtocolError(f"{what}: {error}") from None
    if isinstance(error, RefusedError):
        access.refused()
        refused = str(error)
    if refused is not None:
        raise AuthenticationError(f"{what}: {refused}") from None
