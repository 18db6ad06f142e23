"""What one client's connections share: a TLS context, and credentials with their tokens."""

from __future__ import annotations

import ssl

from muster.client.net.handshake import Proof
from muster.client.security import tls
from muster.client.security.credentials import Credentials
from muster.client.security.settings import SecurityConfig
from muster.clock import wall_clock_ms


class Access:
    """Created once for each client.

    Raises:
        ConfigError: a file named in the settings cannot be used.
    """

    def __init__(self, config: SecurityConfig) -> None:
        self.tls: ssl.SSLContext | None = tls.context(config) if config.is_encrypted else None
        self._credentials = Credentials(config, wall_clock_ms) if config.is_authenticated else None

    @property
    def may_wait(self) -> bool:
        """Whether `proof` may block to fetch a token."""
        return self._credentials is not None and self._credentials.may_wait

    def proof(self) -> Proof | None:
        """What one connection authenticates with; None without SASL.

        Raises:
            AuthenticationError: there is no token.
        """
        if self._credentials is None:
            return None
        return Proof(self._credentials.name, self._credentials.mechanism())

    def refused(self) -> None:
        """A broker refused a proof: a cached token must not be used again."""
        if self._credentials is not None:
            self._credentials.refused()
