"""The settings of TLS and SASL: Kafka's names in snake_case, and Kafka 4.2's defaults.

They decide three things: whether a connection is encrypted and which authorities are trusted (tls.py), by which
mechanism the client authenticates, and with which credentials (credentials.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from muster.client.security import jaas
from muster.client.security.sasl.mechanisms import SCRAM_HASHES
from muster.client.security.secret import NOTHING, Secret
from muster.errors import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER")
ENDPOINT_IDENTIFICATIONS: Final = ("https", "")

SECRETS: Final = frozenset(
    {
        "sasl_jaas_config",
        "sasl_password",
        "sasl_oauthbearer_client_credentials_client_secret",
        "ssl_keystore_key",
        "ssl_keystore_password",
        "ssl_key_password",
        "ssl_truststore_password",
    }
)
"""Settings whose values are never shown."""

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How a client's connections are encrypted, and how it authenticates.

    `security_protocol` is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, `sasl_mechanism` PLAIN, SCRAM-SHA-256,
    SCRAM-SHA-512 or OAUTHBEARER. User name and password are taken from `sasl_jaas_config`, as for Kafka's own clients,
    or from `sasl_username` and `sasl_password`. For OAUTHBEARER, `sasl_oauthbearer_token_provider` is a function
    without arguments that returns a token (text, or a `Token` with its lifetime); or a token is fetched from
    `sasl_oauthbearer_token_endpoint_url` with client credentials.

    Certificates and keys are PEM: in files (`ssl_truststore_location`, `ssl_keystore_location`), or as text
    (`ssl_truststore_certificates`, `ssl_keystore_certificate_chain`, `ssl_keystore_key`). Without a truststore the
    system's authorities are trusted. An empty `ssl_endpoint_identification_algorithm` leaves host names unchecked.
    Passwords, keys and tokens never appear in a log, an error or a `repr`.
    """

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_jaas_config: Secret | None = None
    sasl_username: str | None = None
    sasl_password: Secret | None = None
    sasl_oauthbearer_token_provider: Callable[[], Any] | None = None
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = None
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_header_urlencode: bool = False
    sasl_login_connect_timeout_ms: int = 10_000
    sasl_login_read_timeout_ms: int = 10_000
    sasl_login_retry_backoff_ms: int = 100
    sasl_login_retry_backoff_max_ms: int = 10_000
    ssl_truststore_location: str | None = None
    ssl_truststore_certificates: str | None = None
    ssl_truststore_type: str | None = None
    ssl_truststore_password: Secret | None = None
    ssl_keystore_location: str | None = None
    ssl_keystore_certificate_chain: str | None = None
    ssl_keystore_key: Secret | None = None
    ssl_keystore_type: str | None = None
    ssl_keystore_password: Secret | None = None
    ssl_key_password: Secret | None = None
    ssl_endpoint_identification_algorithm: str = "https"
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_cipher_suites: tuple[str, ...] = ()

    @property
    def is_encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def is_authenticated(self) -> bool:
        """Whether connections use SASL."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def check_security(self) -> None:
        """Hide secrets, and raise ConfigError for security settings that contradict each other."""
        for name in SECRETS:
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Secret(value))
        for name in ("ssl_enabled_protocols", "ssl_cipher_suites"):
            value = getattr(self, name)
            if isinstance(value, str):
                parts = tuple(part.strip() for part in value.split(",") if part.strip())
                object.__setattr__(self, name, parts)
        if self.security_protocol not in PROTOCOLS:
            raise ConfigError(
                f"security_protocol is {self.security_protocol!r}; it must be one of {', '.join(PROTOCOLS)}"
            )
        if self.ssl_endpoint_identification_algorithm not in ENDPOINT_IDENTIFICATIONS:
            raise ConfigError(
                f"ssl_endpoint_identification_algorithm is {self.ssl_endpoint_identification_algorithm!r}; it must be "
                "https, or empty to leave host names unchecked"
            )
        if self.is_authenticated:
            login(self)


@dataclass(frozen=True, slots=True)
class Login:
    """A client's credentials: user name and password for PLAIN and SCRAM, or how to get tokens."""

    mechanism: str
    username: str = ""
    password: Secret = NOTHING
    extensions: tuple[tuple[str, str], ...] = ()
    client_id: str | None = None
    client_secret: Secret | None = None
    scope: str | None = None
    endpoint: SecurityConfig | None = None
    """TLS for connections to the token endpoint; None means that the system's authorities are trusted."""


def login(config: SecurityConfig) -> Login:
    """The credentials from the settings.

    Raises:
        ConfigError: something is missing, or two settings contradict each other.
    """
    mechanism = config.sasl_mechanism
    if mechanism is None:
        raise ConfigError(
            f"security_protocol is {config.security_protocol}, so sasl_mechanism is needed: {', '.join(MECHANISMS)}"
        )
    if mechanism not in MECHANISMS:
        more = "; Kerberos is not supported" if mechanism == "GSSAPI" else ""
        raise ConfigError(f"sasl_mechanism is {mechanism!r}; it must be one of {', '.join(MECHANISMS)}{more}")
    module = None if config.sasl_jaas_config is None else jaas.read(config.sasl_jaas_config)
    if module is not None and module.name != _MODULES[mechanism]:
        # In a malformed line a secret may be in the place of the name.
        has = module.name if module.name in _MODULES.values() else "another module"
        raise ConfigError(f"sasl_jaas_config has {has}, but sasl_mechanism {mechanism} needs {_MODULES[mechanism]}")
    return _token_login(config, module) if mechanism == "OAUTHBEARER" else _password_login(config, mechanism, module)


def _password_login(config: SecurityConfig, mechanism: str, module: jaas.LoginModule | None) -> Login:
    has_settings = config.sasl_username is not None or config.sasl_password is not None
    if module is not None and has_settings:
        raise ConfigError("sasl_jaas_config and sasl_username or sasl_password are both set; set only one of them")
    if module is not None:
        username, password = module.get("username"), module.options.get("password")
        source = "sasl_jaas_config has no "
    else:
        username, password = config.sasl_username, config.sasl_password
        source = f"sasl_mechanism {mechanism} needs sasl_username and sasl_password, or sasl_jaas_config; there is no "
    if not username:
        raise ConfigError(f"{source}{'username' if module else 'sasl_username'}")
    if password is None or not password:
        raise ConfigError(f"{source}{'password' if module else 'sasl_password'}")
    if "\0" in username or "\0" in password.reveal():
        raise ConfigError("a SASL user name or password must not contain a NUL character")
    is_token = module is not None and (module.get("tokenauth") or "").lower() == "true"
    extensions = (("tokenauth", "true"),) if is_token and mechanism != "PLAIN" else ()
    return Login(mechanism, username, password, extensions)


_EXTENSION: Final = "extension_"


def _token_login(config: SecurityConfig, module: jaas.LoginModule | None) -> Login:
    provider, url = config.sasl_oauthbearer_token_provider, config.sasl_oauthbearer_token_endpoint_url
    if (provider is None) == (url is None):
        raise ConfigError(
            "sasl_mechanism OAUTHBEARER needs sasl_oauthbearer_token_provider or sasl_oauthbearer_token_endpoint_url, "
            "and not both"
        )
    options = {} if module is None else module.options
    extensions = tuple(
        (name.removeprefix(_EXTENSION), value.reveal())
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    )
    for name, value in extensions:
        _check_extension(name, value)
    client_id = config.sasl_oauthbearer_client_credentials_client_id or (module.get("clientId") if module else None)
    secret = config.sasl_oauthbearer_client_credentials_client_secret or options.get("clientSecret")
    scope = config.sasl_oauthbearer_scope or (module.get("scope") if module else None)
    if url is not None:
        _check_endpoint(url, client_id, secret)
    return Login("OAUTHBEARER", "", NOTHING, extensions, client_id, secret, scope, _endpoint_tls(options))


def _endpoint_tls(options: Mapping[str, Secret]) -> SecurityConfig | None:
    """As for Kafka's clients, the options `ssl.…` of the login module: the endpoint is not a broker, and may have
    another certificate authority."""
    options_tls = {name.replace(".", "_"): value for name, value in options.items() if name.startswith("ssl.")}
    if not options_tls:
        return None
    known = {setting.name for setting in fields(SecurityConfig) if setting.name.startswith("ssl_")}
    unknown = sorted(options_tls.keys() - known)
    if unknown:
        raise ConfigError(f"sasl_jaas_config has {unknown[0].replace('_', '.')}, which is not a TLS setting")
    made = SecurityConfig(**{name: value if name in SECRETS else value.reveal() for name, value in options_tls.items()})  # type: ignore[arg-type]
    made.check_security()
    return made


def _check_endpoint(url: str, client_id: str | None, secret: Secret | None) -> None:
    if url.startswith("file:"):
        return
    if not url.startswith(("https://", "http://")):
        raise ConfigError("sasl_oauthbearer_token_endpoint_url must begin with https://, http:// or file:")
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("sasl_oauthbearer_token_endpoint_url is not a valid URL: its host or port cannot be read")
    if "@" in parts.netloc:
        raise ConfigError(
            "sasl_oauthbearer_token_endpoint_url contains a user name or a password; set "
            "sasl_oauthbearer_client_credentials_client_id and sasl_oauthbearer_client_credentials_client_secret"
        )
    if not client_id or secret is None:
        raise ConfigError(
            "sasl_oauthbearer_token_endpoint_url needs sasl_oauthbearer_client_credentials_client_id and "
            "sasl_oauthbearer_client_credentials_client_secret"
        )


def _check_extension(name: str, value: str) -> None:
    # RFC 7628, 3.1; "auth" is the token's own key.
    if not (name.isascii() and name.isalpha()) or name == "auth":
        raise ConfigError(f"{_EXTENSION}{name} is not a valid SASL extension name: use letters only, and not auth")
    if not all(sign in "\t\r\n" or " " <= sign <= "~" for sign in value):
        raise ConfigError(f"the value of {_EXTENSION}{name} has characters that a SASL extension cannot have")
