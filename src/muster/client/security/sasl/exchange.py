"""How Kafka carries SASL: SaslHandshake names the mechanism, SaslAuthenticate carries its messages (KIP-43, KIP-152).

The broker answers the last SaslAuthenticate with the session lifetime. Before that ends, the client re-authenticates on
the same connection (KIP-368): a new exchange, sent like any request. Brokers before Kafka 1.0 expect the mechanism's
messages without Kafka's framing; that is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.client.security.sasl.mechanisms import Mechanism, OAuthBearer, SaslError
from muster.errors import ErrorCode, UnsupportedVersionError, error_code
from muster.protocol.api import newest_common
from muster.protocol.primitives import Request
from muster.protocol.sasl_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_WITH_FRAMES: Final = 1
"""The version of SaslHandshake that SaslAuthenticate follows."""

REAUTHENTICATE_AT: Final = (0.85, 0.95)
"""The window of the session lifetime in which the client re-authenticates, at a random time, so that clients which
connected together do not re-authenticate together. As in Kafka's client."""


class Exchange:
    """One authentication: send `request` in `version`, `take` the answer, until `done`."""

    def __init__(self, name: str, mechanism: Mechanism, ranges: Mapping[int, tuple[int, int]]) -> None:
        self.done = False
        self.session_lifetime_ms = 0
        """The session lifetime after the exchange; 0 means as long as the connection lasts."""
        self._name = name
        self._mechanism = mechanism
        self._ranges = ranges
        self._message: bytes | None = None

    def request(self) -> Request[Any]:
        """The next request."""
        if self._message is None:
            return SaslHandshakeRequest(mechanism=self._name)
        return SaslAuthenticateRequest(auth_bytes=self._message)

    @property
    def version(self) -> int:
        """The version of the next request.

        Raises:
            SaslError: the broker is too old.
        """
        kind = SaslHandshakeRequest if self._message is None else SaslAuthenticateRequest
        try:
            found = newest_common(kind, self._ranges.get(kind.API_KEY))
        except UnsupportedVersionError:
            found = 0 if kind is SaslAuthenticateRequest else -1
        if found < _WITH_FRAMES and kind is SaslHandshakeRequest:
            raise SaslError("the broker is older than Kafka 1.0, whose SASL is not supported")
        return found

    def take(self, answer: Any) -> None:
        """Take the answer to the last request.

        Raises:
            SaslError: the broker or the mechanism refuses. Retrying does not help.
        """
        if self._message is None:
            self._chosen(answer)
        else:
            self._authenticated(answer)

    def _chosen(self, answer: SaslHandshakeResponse) -> None:
        code = error_code(answer.error_code)
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(sorted(answer.mechanisms)) or "none"
            raise SaslError(f"the broker does not offer {self._name} on this port; it offers: {offered}")
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            raise SaslError("this port of the broker does not use SASL: set security.protocol to PLAINTEXT or SSL")
        if code is not ErrorCode.NONE:
            raise SaslError(f"the broker refused to start {self._name}: {code.name}")
        self._message = self._mechanism.first()

    def _authenticated(self, answer: SaslAuthenticateResponse) -> None:
        code = error_code(answer.error_code)
        if code is not ErrorCode.NONE:
            raise SaslError(self._refusal(code, answer.error_message))
        following = self._mechanism.answer(answer.auth_bytes)
        if following is not None:
            self._message = following
            return
        if not self._mechanism.done:
            raise SaslError(f"the broker ended {self._name} before it proved itself")
        self.session_lifetime_ms = max(0, answer.session_lifetime_ms)
        self.done = True

    def _refusal(self, code: ErrorCode, message: str | None) -> str:
        why = message or code.name
        if isinstance(self._mechanism, OAuthBearer) and self._mechanism.refusal:
            # Kafka sends clients no more than `invalid_token`.
            detail = "" if self._mechanism.refusal in why else f" ({self._mechanism.refusal})"
            why = f"{why}{detail}; the reason is in its log: the token's signature, issuer, audience, scope or time"
        return f"the broker refused {self._name}: {why}"
