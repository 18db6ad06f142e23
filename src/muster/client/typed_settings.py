"""The settings of consumers, producers and admin clients, as keywords for type checkers.

`python -m tools.typed_settings` writes this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from muster.assignors.base import Assignor
from muster.client.security.secret import Secret


class ClientKeywords(TypedDict, total=False):
    """The settings of `ClientConfig`."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None
    sasl_jaas_config: str | Secret | None
    sasl_username: str | None
    sasl_password: str | Secret | None
    sasl_oauthbearer_token_provider: Callable[[], Any] | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | Secret | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_login_connect_timeout_ms: int
    sasl_login_read_timeout_ms: int
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_type: str | None
    ssl_truststore_password: str | Secret | None
    ssl_keystore_location: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | Secret | None
    ssl_keystore_type: str | None
    ssl_keystore_password: str | Secret | None
    ssl_key_password: str | Secret | None
    ssl_endpoint_identification_algorithm: Literal["https", ""]
    ssl_enabled_protocols: str | Iterable[str]
    ssl_cipher_suites: str | Iterable[str]
    bootstrap_servers: str | Iterable[str]
    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    metadata_recovery_strategy: Literal["none", "rebootstrap"]
    metadata_recovery_rebootstrap_trigger_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    broker_version_fallback: Literal["0.8", "0.9"] | None


class ConsumerKeywords(ClientKeywords, total=False):
    """The settings of `ConsumerConfig`."""

    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Assignor | Iterable[str | Assignor]
    auto_offset_reset: Literal["earliest", "latest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    enable_auto_offset_store: bool
    exclude_internal_topics: bool
    allow_auto_create_topics: bool
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    check_crcs: bool
    client_rack: str


class ProducerKeywords(ClientKeywords, total=False):
    """The settings of `ProducerConfig`."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    enable_idempotence: bool | None
    retries: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    linger_ms: int
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_zstd_level: int
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    metadata_max_idle_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int


class AdminKeywords(ClientKeywords, total=False):
    """The settings of `AdminConfig`."""

    retries: int
