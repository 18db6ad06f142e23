"""Settings of the clients: Kafka's names in snake_case, Kafka's units, Kafka 4.2's defaults.

Each class takes keywords; `of` also takes Kafka's dotted keys and values as text (from a properties file or a command
line). Settings that depend on each other are checked when the object is created.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Final, TypeVar

from muster.client import other_names
from muster.client.security.secret import Secret
from muster.client.security.settings import PROTOCOLS, SecurityConfig
from muster.errors import ConfigError

C = TypeVar("C", bound="ClientConfig")

_MAX_INT = 2**31 - 1

_MAX_TEXT_BYTES = 2**15 - 1

CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "acks": ("all", "-1", "0", "1"),
    "auto_offset_reset": ("earliest", "latest", "none"),
    "broker_version_fallback": ("0.8", "0.9"),
    "compression_type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "isolation_level": ("read_uncommitted", "read_committed"),
    "metadata_recovery_strategy": ("none", "rebootstrap"),
}
"""Settings with a fixed set of values."""

_INSTANCE_ID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""A valid group instance id, as in Kafka's own client (JoinGroupRequest.validateGroupInstanceId)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """The settings of every client.

    `send_buffer_bytes` and `receive_buffer_bytes` of -1, the default here, leave the socket's buffers to the operating
    system, which sizes them better than Kafka's fixed 128 and 64 KB.

    `broker_version_fallback` is librdkafka's setting: "0.8" or "0.9", the version to assume for a broker that closes
    the connection on an ApiVersions request. Brokers have answered it since 0.10; without the setting such a closed
    connection is a failure like any other.
    """

    bootstrap_servers: tuple[str, ...] = ("localhost:9092",)
    client_id: str = ""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    metadata_recovery_strategy: str = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    broker_version_fallback: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bootstrap_servers", addresses("bootstrap_servers", self.bootstrap_servers))
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap_servers is empty: name at least one broker as host:port")
        for setting in fields(self):
            value = getattr(self, setting.name)
            _check_range(setting.name, value)
            if value is not None and setting.name in CHOICES:
                _one_of(setting.name, str(value), CHOICES[setting.name])
        self.check_security()
        self._check()

    def _check(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        return

    @classmethod
    def of(cls: type[C], settings: Mapping[str, Any] | None = None, /, **more: Any) -> C:
        """Settings from a mapping, keywords, or both (keywords win); dots in names count as underscores.

        Raises:
            ConfigError: a name is unknown or a value is invalid. For an unknown name the message says what a
                setting of another client is called here, or which known name is similar.
        """
        if settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(f"settings must be a mapping or keywords, not {settings!r}; {_meant(settings)}")
        known: dict[str, Field[Any]] = {setting.name: setting for setting in fields(cls)}
        chosen: dict[str, Any] = {}
        for given, value in (dict(settings or {}) | more).items():
            name = given.replace(".", "_")
            if name not in known:
                raise ConfigError(unknown_setting(given, known))
            chosen[name] = _coerce(name, value, known[name])
        return cls(**chosen)

    @property
    def rebootstraps(self) -> bool:
        """Whether a client that has lost all brokers starts over from its bootstrap addresses (KIP-899)."""
        return self.metadata_recovery_strategy == "rebootstrap"

    def narrowed(self, kind: type[C]) -> C:
        """The settings that a simpler client has too; for `ClientConfig`, those that say how to reach brokers."""
        return kind(**{setting.name: getattr(self, setting.name) for setting in fields(kind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The additional settings of a consumer.

    `partition_assignment_strategy` holds names (range, roundrobin, sticky, cooperative-sticky) or `Assignor` objects,
    in order of preference.

    `enable_auto_offset_store` is librdkafka's setting: if it is False, only offsets passed to `store_offsets` are
    committed, by auto commit, by `commit` without offsets, at a rebalance and at the end.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    partition_assignment_strategy: tuple[Any, ...] = ("range", "cooperative-sticky")
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    enable_auto_offset_store: bool = True
    exclude_internal_topics: bool = True
    allow_auto_create_topics: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True
    client_rack: str = ""

    def _check(self) -> None:
        object.__setattr__(self, "partition_assignment_strategy", _as_tuple(self.partition_assignment_strategy))
        if not self.partition_assignment_strategy:
            raise ConfigError(
                "partition_assignment_strategy is empty: name at least one, for example cooperative-sticky"
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual"
            )
        if self.group_id == "":
            raise ConfigError("group_id is empty: name the group, or leave it out for a consumer without one")
        if self.group_instance_id is not None and not _INSTANCE_ID.fullmatch(self.group_instance_id):
            raise ConfigError(
                f"group_instance_id is {self.group_instance_id!r}; like a topic name, it must have 1 to 249 letters, "
                "digits, '.', '_' or '-', and must not be '.' or '..'"
            )
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ConfigError(
                f"fetch_max_wait_ms ({self.fetch_max_wait_ms}) must be below request_timeout_ms "
                f"({self.request_timeout_ms})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The additional settings of a producer.

    `enable_idempotence` of None, the default, means yes, unless `acks`, `retries` or
    `max_in_flight_requests_per_connection` were given values that rule it out. `acks` is "all", 1 or 0.
    `delivery_timeout_ms` bounds the time from `send` to the answer, retries included. The records of a batch
    expire together, this long after its first record, including those added later, as in Kafka.

    `transactional_id` names the producer across restarts: a producer that starts with it ends its predecessor's
    transaction, and fences it (KIP-98). A transaction that takes longer than `transaction_timeout_ms` is aborted by the
    broker, which limits that time (`transaction.max.timeout.ms`).
    """

    acks: int | str = "all"
    enable_idempotence: bool | None = None
    retries: int = _MAX_INT
    max_in_flight_requests_per_connection: int = 5
    delivery_timeout_ms: int = 120_000
    linger_ms: int = 5
    batch_size: int = 16_384
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576
    compression_type: str = "none"
    compression_gzip_level: int = -1
    compression_zstd_level: int = 3
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: int = 0
    metadata_max_idle_ms: int = 300_000
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def _check(self) -> None:
        if self.compression_gzip_level == 0:
            raise ConfigError("compression_gzip_level is 0; it must be 1 to 9, or -1 for the codec's default")
        self._check_delivery_timeout()
        if self.transactional_id == "":
            raise ConfigError("transactional_id is empty: name the producer, or leave it out")
        if self.transactional_id is not None and self.enable_idempotence is False:
            raise ConfigError("transactional_id needs enable_idempotence")
        if self.enable_idempotence or self.transactional_id is not None:
            against = self._against_idempotence()
            if against:
                needing = "enable_idempotence" if self.enable_idempotence else "transactional_id"
                raise ConfigError(f"{needing} needs {against}")

    def _check_delivery_timeout(self) -> None:
        least = min(self.linger_ms + self.request_timeout_ms, _MAX_INT)
        if self.delivery_timeout_ms >= least:
            return
        if self.delivery_timeout_ms != 120_000:
            raise ConfigError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least linger_ms + request_timeout_ms "
                f"({least})"
            )
        object.__setattr__(self, "delivery_timeout_ms", least)

    def _against_idempotence(self) -> str | None:
        if self.required_acks != -1:
            return "acks=all"
        if self.retries == 0:
            return "retries above 0"
        if self.max_in_flight_requests_per_connection > 5:
            return "max_in_flight_requests_per_connection of at most 5"
        return None

    @property
    def required_acks(self) -> int:
        """`acks` as in the protocol: -1 for all."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """Whether retries can neither duplicate nor reorder records (KIP-98)."""
        if self.enable_idempotence is None:
            return self._against_idempotence() is None
        return self.enable_idempotence


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """The additional setting of an admin client: how often a request is retried within `default_api_timeout_ms`."""

    retries: int = _MAX_INT


_SENT_TO_BROKERS = frozenset(
    {
        "request_timeout_ms",
        "session_timeout_ms",
        "max_poll_interval_ms",
        "fetch_min_bytes",
        "fetch_max_bytes",
        "fetch_max_wait_ms",
        "max_partition_fetch_bytes",
        "transaction_timeout_ms",
    }
)

_MINIMUM = {
    "request_timeout_ms": 1,
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
    "max_poll_interval_ms": 1,
    "max_poll_records": 1,
    "max_in_flight_requests_per_connection": 1,
    "transaction_timeout_ms": 1,
    "connections_max_idle_ms": -1,
    "send_buffer_bytes": -1,
    "receive_buffer_bytes": -1,
    "acks": -1,
    "compression_gzip_level": -1,
    "compression_zstd_level": -131_072,
}

_MAXIMUM = {"compression_gzip_level": 9, "compression_zstd_level": 22} | dict.fromkeys(_SENT_TO_BROKERS, _MAX_INT)


def _meant(settings: object) -> str:
    is_address = ":" in str(settings)  # no topic's name contains one
    return f"write bootstrap_servers={settings!r}" if is_address else "pass topics to subscribe()"


def _check_range(name: str, value: Any) -> None:
    """Raise ConfigError for a value that the protocol cannot carry: text is UTF-8, numbers have 32 bits."""
    if isinstance(value, str) and name not in _NOT_SENT:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"{name} is {value!r}, which cannot be encoded as UTF-8") from None
        if size > _MAX_TEXT_BYTES:
            raise ConfigError(f"{name} has {size} bytes; at most {_MAX_TEXT_BYTES} can be sent")
    if not isinstance(value, int) or isinstance(value, bool):
        return
    least = _MINIMUM.get(name, 0)
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be at least {least}")
    most = _MAXIMUM.get(name, value)
    if value > most:
        raise ConfigError(f"{name} is {value}; it must be at most {most}")


_NOT_SENT = frozenset({"ssl_truststore_certificates", "ssl_keystore_certificate_chain"})

_SCHEME = re.compile("|".join(f"{protocol}://" for protocol in PROTOCOLS))

_NO_HOST = re.compile(r"[/\s\x00-\x1f\x7f]")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[IPv6 address]:port`, optionally with a Kafka protocol in front (`SASL_SSL://`).

    Raises:
        ConfigError: it is neither.
    """
    host, _, port = _SCHEME.sub("", text, count=1).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if (
        not host
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or (":" in host and not bracketed)
        or _NO_HOST.search(host)
    ):
        raise ConfigError(f"{text!r} is not a broker address: it should look like localhost:9092 or [::1]:9092")
    return host, int(port)


def addresses(name: str, value: Any) -> tuple[str, ...]:
    """A setting that lists addresses; text is split at commas.

    Raises:
        ConfigError: it is neither text nor a list, or an entry is not an address.
    """
    try:
        found = tuple(_split(value))
    except (AttributeError, TypeError):
        raise ConfigError(f"{name} is {value!r}; it must be text like 'a:9092,b:9092', or a list") from None
    for address in found:
        parse_address(address)
    return found


def _split(value: str | Iterable[str]) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    return [part.strip() for part in parts if part.strip()]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(_split(value))
    return tuple(value) if isinstance(value, Iterable) else (value,)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value in allowed:
        return
    meant = other_names.value(name, value, allowed)
    if meant is not None:
        raise ConfigError(f"{name} is {value!r}: here it is called {meant}")
    raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def unknown_setting(given: str, known: Iterable[str]) -> str:
    """The error message about an unknown setting."""
    shown = given if given.strip() == given else repr(given)
    name, refused = given.replace(".", "_"), f"{shown} is not a setting of this client"
    kinds = {"consumers": ConsumerConfig, "producers": ProducerConfig, "admin clients": AdminConfig}
    owners = [kind for kind, config in kinds.items() if name in {setting.name for setting in fields(config)}]
    if owners:
        return f"{refused}: it is a setting of {' and '.join(owners)}"
    other = other_names.answer(name, known)
    if other is not None:
        return f"{refused}: {other}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{refused}; did you mean {near[0]}?" if near else refused


def _as_secret(name: str, value: Any) -> Secret | None:
    if value is None or isinstance(value, Secret):
        return value
    if isinstance(value, str):
        return Secret(value)
    raise ConfigError(f"{name} is of type {type(value).__name__}; it must be text")


def _coerce(name: str, value: Any, setting: Field[Any]) -> Any:
    """Text converted to the type of the setting; other values are only checked."""
    kinds = str(setting.type)
    if kinds.startswith("Secret"):
        return _as_secret(name, value)
    if kinds.startswith("Callable"):
        return _as_function(name, value)
    if kinds.startswith("bool"):
        return _as_bool(name, value, "None" in kinds)
    if kinds.startswith("int") and not isinstance(value, bool):
        if isinstance(value, int) or (isinstance(value, str) and "str" in kinds):
            return value
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            return int(value)
    elif kinds.startswith("tuple") or value is None or isinstance(value, str):
        if value is None and "None" not in kinds:
            raise ConfigError(f"{name} must not be None")
        return value
    if name in CHOICES:
        _one_of(name, str(value), CHOICES[name])
    whole = kinds.startswith("int")
    example = setting.default if isinstance(setting.default, int) or setting.default else str(value)
    must_be = whole_number(name, value, example) if whole else f"text, for example {example!r}"
    raise ConfigError(f"{name} is {value!r}; it must be {must_be}")


def whole_number(what: str, given: Any, example: object = None) -> str:
    """What to write instead of a value that is not a whole number: a float as a time probably means seconds."""
    of = " of milliseconds" if what.endswith("_ms") or what.startswith("the timestamp") else ""
    if of and isinstance(given, float) and math.isfinite(given) and given >= 0:
        return f"a whole number{of}: {round(given * 1000)} for {given!r} s"
    return f"a whole number{of}" + ("" if example is None else f", for example {example}")


def _as_bool(name: str, value: Any, may_be_none: bool) -> bool | None:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool) or (value is None and may_be_none):
        return value
    raise ConfigError(f"{name} is {value!r}; it must be true or false")


def _as_function(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise ConfigError(f"{name} is {value!r}; it must be a function")
