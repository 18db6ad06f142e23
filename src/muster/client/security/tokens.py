"""OAuth tokens: where they come from, and how long each is used.

A token is needed when a connection begins or re-authenticates. After four fifths of a token's lifetime a new one is
fetched, as Kafka's login does. If that fails while the old one is still valid, the old one is used. The lifetime comes
from the token's source or from the token itself (`exp` of a JWT, RFC 7519, which is read without verification:
verifying is the broker's job). A token with an unknown lifetime is used once.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from muster.client.security.secret import Secret
from muster.client.security.settings import Login, SecurityConfig
from muster.errors import AuthenticationError

_REFRESH_AT: Final = 0.8
_MAX_BYTES: Final = 1 << 20
_TOKEN_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `expires_at_ms` is in milliseconds since the epoch; None: the token's own, if it has one."""

    value: Secret
    expires_at_ms: int | None = None

    @classmethod
    def of(cls, given: Any) -> Token:
        """What a provider returned: a Token, or text.

        Raises:
            AuthenticationError: it is neither, or not a valid token.
        """
        token = cls(Secret(given)) if isinstance(given, str) else given
        if not isinstance(token, Token):
            raise AuthenticationError(
                f"sasl_oauthbearer_token_provider returned {type(given).__name__}; it must return text or a Token"
            )
        text = token.value.reveal()
        if not text or not _TOKEN_CHARACTERS.issuperset(text):
            raise AuthenticationError("invalid OAuth token: it contains characters that a token cannot have")
        return token if token.expires_at_ms is not None else cls(token.value, _expiry(text))


def _expiry(token: str) -> int | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_at = claims["exp"]
        return int(expires_at * 1000) if isinstance(expires_at, int | float) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class Tokens:
    """The tokens of one client. `fetch` may take as long as its source; `get` may be called from any thread."""

    def __init__(self, fetch: Callable[[], Token], clock: Callable[[], int]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._refresh_at = 0
        self._failures = 0
        self._failure: AuthenticationError | None = None
        """The error of the latest failed fetch."""

    def get(self) -> str:
        """A valid token.

        Raises:
            AuthenticationError: there is none; the message says why.
        """
        failures = self._failures
        with self._lock:
            if self._token is None or self._clock() >= self._refresh_at:
                self._renew(failures)
            assert self._token is not None
            return self._token.value.reveal()

    def _renew(self, failures: int) -> None:
        """Fetch a token. `failures` is how many fetches had failed when the caller came: a caller that has waited for
        another caller's failed fetch, which may have taken as long as the settings allow, does not start a second
        one."""
        try:
            if self._failure is not None and self._failures > failures:
                raise AuthenticationError(str(self._failure), self._failure.retriable) from self._failure.__cause__
            token = self._fetched()
            if token.expires_at_ms is not None and token.expires_at_ms <= self._clock():
                raise AuthenticationError("the OAuth token has already expired")
        except AuthenticationError:
            # Fetching takes time: a token that was valid before may have expired.
            if self._token is not None and self._clock() < (self._token.expires_at_ms or 0):
                return
            raise
        now = self._clock()
        self._token = token
        lifetime_ms = 0 if token.expires_at_ms is None else token.expires_at_ms - now
        self._refresh_at = now + int(lifetime_ms * _REFRESH_AT)

    def _fetched(self) -> Token:
        try:
            return self._fetch()
        except AuthenticationError as error:
            self._failure = error
            self._failures += 1
            raise

    def refused(self) -> None:
        """The broker did not accept the token: fetch a new one next time."""
        with self._lock:
            self._token = None


def by_client_credentials(
    config: SecurityConfig, login: Login, clock: Callable[[], int], trust: ssl.SSLContext | None
) -> Token:
    """A token from the endpoint that the settings name (RFC 6749, 4.4), or from the file at a `file:` URL. `trust` is
    for an endpoint over TLS; None: the system's authorities.

    Raises:
        AuthenticationError: it could not be fetched. `retriable` says whether a retry may help.
    """
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    if url.startswith("file:"):
        return Token.of(_read_file(url))
    answer = _post(_request(url, login, config.sasl_oauthbearer_header_urlencode), config, trust)
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise AuthenticationError(f"{_endpoint_name(url)} did not answer with JSON; is it a token endpoint?") from None
    text = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise AuthenticationError(f"the answer of {_endpoint_name(url)} has no access_token")
    lifetime = found.get("expires_in")
    known = isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and 0 < lifetime < 1e10
    return Token.of(Token(Secret(text), clock() + int(lifetime * 1000) if known else None))


def _read_file(url: str) -> str:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_MAX_BYTES).strip()
    except (OSError, ValueError) as error:
        raise AuthenticationError(f"no OAuth token can be read from {path}: {_reason(error)}") from None


def _request(url: str, login: Login, is_encoded: bool) -> urllib.request.Request:
    # RFC 6749 requires both to be encoded; Kafka encodes them only if configured to: many endpoints do not decode.
    encode = urllib.parse.quote_plus if is_encoded else str
    secret = login.client_secret.reveal() if login.client_secret is not None else ""
    pair = f"{encode(login.client_id or '')}:{encode(secret)}"
    form = {"grant_type": "client_credentials"} | ({"scope": login.scope} if login.scope else {})
    headers = {
        "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers, method="POST")


def _post(request: urllib.request.Request, config: SecurityConfig, trust: ssl.SSLContext | None) -> bytes:
    endpoint = _endpoint_name(request.full_url)
    timeout_s = max(config.sasl_login_connect_timeout_ms, config.sasl_login_read_timeout_ms) / 1000 or None
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=trust))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            retriable = error.code >= 500 or error.code == 429
            why = _oauth_error(error) or error.reason
        advice = _ADVICE.get(why, "")
        raise AuthenticationError(
            f"{endpoint} returned no token: HTTP {error.code}: {why}{advice}", retriable=retriable
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            # Its text is whatever the server sent.
            why = "did not answer with HTTP; is it a token endpoint?"
            raise AuthenticationError(f"{endpoint} {why}", retriable=True) from None
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise AuthenticationError(
                f"no token from {endpoint}: its certificate is not trusted ({cause.verify_message}); name the "
                "certificate of its authority with the option ssl.truststore.location in sasl_jaas_config"
            ) from None
        was_cut = isinstance(cause, ConnectionError) and not isinstance(cause, ConnectionRefusedError)
        advice = "; does its port expect https?" if was_cut and request.type == "http" else ""
        raise AuthenticationError(f"no token from {endpoint}: {_reason(error)}{advice}", retriable=True) from None


_UNKNOWN_CLIENT: Final = (
    "; check the client id and secret. If they contain more than letters and digits, the endpoint may expect "
    "them URL-encoded (sasl_oauthbearer_header_urlencode)"
)
_ADVICE: Final = {
    "invalid_client": _UNKNOWN_CLIENT,
    "unauthorized_client": _UNKNOWN_CLIENT,  # Keycloak's answer to a wrong secret
    "invalid_scope": "; check sasl_oauthbearer_scope",
}
"""What to do about each error of RFC 6749, 5.2."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: the client's secret goes only to the address in the settings."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def _oauth_error(error: urllib.error.HTTPError) -> str | None:
    """The error in the form of RFC 6749, 5.2; nothing else from the body, which may echo what was sent."""
    try:
        found = json.loads(error.read(_MAX_BYTES))
        code = found["error"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return code[:100] if isinstance(code, str) and code.replace("_", "").isalnum() else None


def _endpoint_name(url: str) -> str:
    """The host of a URL: its path and query may contain secrets."""
    parts = urllib.parse.urlsplit(url)
    return f"the token endpoint at {parts.hostname}"


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause)
