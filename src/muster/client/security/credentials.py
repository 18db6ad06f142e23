"""Creates a SASL mechanism for each authentication of a client, from its settings."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable

from muster.client.security import tls
from muster.client.security.sasl.mechanisms import Mechanism, OAuthBearer, Plain, Scram
from muster.client.security.settings import Login, SecurityConfig, login
from muster.client.security.tokens import Token, Tokens, by_client_credentials
from muster.errors import AuthenticationError, MusterError

_NONCE_BYTES = 24


class Credentials:
    """A client's credentials. Its connections share them and their tokens."""

    def __init__(self, config: SecurityConfig, clock: Callable[[], int]) -> None:
        self._login: Login = login(config)
        endpoint = self._login.endpoint
        trust = None if endpoint is None else tls.context(endpoint)
        self._tokens = Tokens(lambda: _fetched(config, self._login, clock, trust), clock)

    @property
    def name(self) -> str:
        """The mechanism's name."""
        return self._login.mechanism

    @property
    def may_wait(self) -> bool:
        """Whether `mechanism` may block to fetch a token."""
        return self.name == "OAUTHBEARER"

    def mechanism(self) -> Mechanism:
        """The client's side of one authentication.

        Raises:
            AuthenticationError: there is no token.
        """
        if self.name == "OAUTHBEARER":
            return OAuthBearer(self._tokens.get(), dict(self._login.extensions))
        password = self._login.password.reveal()
        if self.name == "PLAIN":
            return Plain(self._login.username, password)
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return Scram(self.name, self._login.username, password, nonce, dict(self._login.extensions))

    def refused(self) -> None:
        """The broker refused what `mechanism` sent: a cached token must not be used again."""
        self._tokens.refused()


def _fetched(config: SecurityConfig, chosen: Login, clock: Callable[[], int], trust: ssl.SSLContext | None) -> Token:
    provider = config.sasl_oauthbearer_token_provider
    if provider is None:
        return by_client_credentials(config, chosen, clock, trust)
    try:
        return Token.of(provider())
    except MusterError:
        raise
    except Exception as error:  # a user's function: whatever it raises, the client must survive
        # Its text may contain the token, and goes to logs: the exception itself is the cause, for the caller.
        raise AuthenticationError(
            f"sasl_oauthbearer_token_provider raised {type(error).__name__}", retriable=True
        ) from error
