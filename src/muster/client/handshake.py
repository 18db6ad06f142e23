"""How every connection to a broker begins, asyncio's or a blocking one: socket options, then the broker's versions.

TLS and SASL, which would come between the two on every connection, have their place here.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import muster
from muster.errors import ErrorCode, error_code
from muster.protocol import framing
from muster.protocol.api import ApiKey, version_ranges
from muster.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.primitives import Buffer

_FIRST_WITH_SOFTWARE = 3

BEFORE_API_VERSIONS: Mapping[int, tuple[int, int]] = {
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_FETCH: (1, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}
"""What brokers of Kafka 0.8.2 and 0.9 speak, of the requests that muster sends. They have no ApiVersions, and close the
connection of a client that sends it."""


def set_options(link: socket.socket, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1) -> None:
    """Set the options of a new socket; -1 leaves a buffer size to the operating system."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, size in (socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes):
        if size > 0:
            link.setsockopt(socket.SOL_SOCKET, option, size)


class Handshake:
    """Asks a broker which versions it speaks (KIP-35): send `request` in `version`, `take` the answer, until `done`."""

    def __init__(self, newest: int = ApiVersionsRequest.MAX_VERSION) -> None:
        self.version = newest
        self.done = False
        self.ranges: dict[int, tuple[int, int]] = {}
        """The version range of each API of the broker, once the handshake is done."""
        self._lowered = False

    @classmethod
    def assumed(cls, ranges: Mapping[int, tuple[int, int]] = BEFORE_API_VERSIONS) -> Handshake:
        """A handshake that is done without having asked, with a broker from before Kafka 0.10."""
        handshake = cls()
        handshake.done, handshake.ranges = True, dict(ranges)
        return handshake

    def request(self) -> ApiVersionsRequest:
        """The ApiVersions request; newer versions carry the name of this software (KIP-511)."""
        if self.version < _FIRST_WITH_SOFTWARE:
            return ApiVersionsRequest()
        return ApiVersionsRequest(client_software_name="muster", client_software_version=muster.__version__)

    def decode(self, frame: Buffer) -> ApiVersionsResponse:
        """An answer; a broker that does not speak the version asked for answers in v0."""
        refused = bytes(frame[4:6]) == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        return framing.decode_response(frame, ApiVersionsRequest, 0 if refused else self.version)

    def take(self, answer: ApiVersionsResponse) -> ErrorCode:
        """Take the answer. NONE: the handshake is done, or `request` has to be sent again. Else it was refused."""
        code = error_code(answer.error_code)
        ranges = version_ranges(answer.api_keys)
        if code is ErrorCode.UNSUPPORTED_VERSION and not self._lowered:
            # The broker is older than the version asked for; it says in v0 what it speaks.
            self._lowered = True
            newest = ranges.get(ApiVersionsRequest.API_KEY, (0, 0))[1]
            self.version = max(0, min(newest, ApiVersionsRequest.MAX_VERSION))
            return ErrorCode.NONE
        if code is ErrorCode.NONE:
            self.done, self.ranges = True, ranges
        return code
