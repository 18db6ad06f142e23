"""How every connection to a broker begins, with asyncio or blocking: options, TLS, the broker's versions, SASL.

As in Kafka's own clients, ApiVersions comes before SASL, and SASL uses the versions that it returned.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.client.security.sasl.exchange import Exchange
from muster.client.security.sasl.mechanisms import Mechanism, SaslError
from muster.errors import ErrorCode, error_code
from muster.protocol import framing
from muster.protocol.api import ApiKey, version_ranges
from muster.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.primitives import Buffer, Request
from muster.version import __version__

if TYPE_CHECKING:
    from muster.client.config import ClientConfig

_FIRST_WITH_SOFTWARE = 3

BEFORE_API_VERSIONS: Mapping[int, tuple[int, int]] = {
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_FETCH: (1, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}
"""For the requests that muster sends, the versions that brokers of Kafka 0.8.2 and 0.9 speak. Such brokers have no
ApiVersions, and close the connection of a client that sends it."""


def set_options(link: socket.socket, config: ClientConfig) -> None:
    """Set the options of a new socket; -1 leaves a buffer size to the operating system."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, size in (socket.SO_SNDBUF, config.send_buffer_bytes), (socket.SO_RCVBUF, config.receive_buffer_bytes):
        if size > 0:
            link.setsockopt(socket.SOL_SOCKET, option, size)


class RefusedError(Exception):
    """The broker will not serve this connection. The text is part of a sentence; `is_authentication` says whether
    authentication failed."""

    def __init__(self, message: str, is_authentication: bool = False) -> None:
        super().__init__(message)
        self.is_authentication = is_authentication


@dataclass(frozen=True, slots=True)
class Proof:
    """What the client authenticates with: the mechanism's name, and its side of one authentication."""

    name: str
    mechanism: Mechanism


class Handshake:
    """Learns which versions a broker speaks (KIP-35), then authenticates if there is a `proof`.

    Send `request` in `version`, `take` the answer, until `done`.
    """

    def __init__(self, newest: int = ApiVersionsRequest.MAX_VERSION, proof: Proof | None = None) -> None:
        self.ranges: dict[int, tuple[int, int]] = {}
        """The version range of each API of the broker, once known."""
        self.features_epoch = -1
        """The cluster's epoch of `features`, which grows with each change; -1 while nothing is known (KIP-584)."""
        self.features: dict[str, int] = {}
        """The level of each of the cluster's finalized features."""
        self._newest = newest
        self._lowered = False
        self._proof = proof
        self._versions_known = False
        self._exchange: Exchange | None = None

    @classmethod
    def assumed(
        cls, ranges: Mapping[int, tuple[int, int]] = BEFORE_API_VERSIONS, proof: Proof | None = None
    ) -> Handshake:
        """A handshake without ApiVersions: with a broker before Kafka 0.10, or one whose versions are known."""
        handshake = cls(proof=proof)
        handshake._know(dict(ranges))
        return handshake

    @property
    def done(self) -> bool:
        """Whether the handshake is complete."""
        return self._versions_known and (self._exchange is None or self._exchange.done)

    @property
    def session_lifetime_ms(self) -> int:
        """The session lifetime; 0 means as long as the connection lasts."""
        return 0 if self._exchange is None else self._exchange.session_lifetime_ms

    @property
    def version(self) -> int:
        """The version of the next request.

        Raises:
            RefusedError: the broker is too old for SASL.
        """
        if self._exchange is None:
            return self._newest
        try:
            return self._exchange.version
        except SaslError as error:
            raise RefusedError(str(error), is_authentication=True) from None

    def request(self) -> Request[Any]:
        """The next request. Newer versions of ApiVersions carry the name of this software (KIP-511)."""
        if self._exchange is not None:
            return self._exchange.request()
        if self._newest < _FIRST_WITH_SOFTWARE:
            return ApiVersionsRequest()
        return ApiVersionsRequest(client_software_name="muster", client_software_version=__version__)

    def decode(self, frame: Buffer) -> Any:
        """Decode an answer; a broker that does not speak the requested version of ApiVersions answers in v0."""
        if self._exchange is not None:
            return framing.decode_response(frame, type(self._exchange.request()), self._exchange.version)
        refused = bytes(frame[4:6]) == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        return framing.decode_response(frame, ApiVersionsRequest, 0 if refused else self._newest)

    def take(self, answer: Any) -> None:
        """Take the answer: then the handshake is `done`, or `request` must be sent again.

        Raises:
            RefusedError: the broker refused.
        """
        if self._exchange is None:
            self._take_versions(answer)
            return
        try:
            self._exchange.take(answer)
        except SaslError as error:
            raise RefusedError(str(error), is_authentication=True) from None

    def _take_versions(self, answer: ApiVersionsResponse) -> None:
        code = error_code(answer.error_code)
        ranges = version_ranges(answer.api_keys)
        if code is ErrorCode.UNSUPPORTED_VERSION and not self._lowered:
            # The broker is older than the requested version; it answers in v0 with the versions it speaks.
            self._lowered = True
            newest = ranges.get(ApiVersionsRequest.API_KEY, (0, 0))[1]
            self._newest = max(0, min(newest, ApiVersionsRequest.MAX_VERSION))
        elif code is ErrorCode.NONE:
            self.features_epoch = answer.finalized_features_epoch
            self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
            self._know(ranges)
        else:
            raise RefusedError(f"refused the version handshake: {code.name}")

    def _know(self, ranges: dict[int, tuple[int, int]]) -> None:
        self._versions_known, self.ranges = True, ranges
        if self._proof is not None:
            self._exchange = Exchange(self._proof.name, self._proof.mechanism, ranges)
