"""What this client calls the settings of other clients: librdkafka's (confluent-kafka), Java's, kafka-python's and
aiokafka's.

A setting that this client does not know is refused with a sentence from these tables. Names are written with
underscores, as they are compared. Sources: librdkafka's CONFIGURATION.md of July 2026, the names that `ConsumerConfig`,
`ProducerConfig` and `AdminClientConfig` of Kafka 4.2.0 give, and the keywords of kafka-python 3.0.12 and aiokafka
0.14.0. `tests/unit/client/names` has the lists, and a test looks up each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

EQUIVALENT: Final = {
    # librdkafka
    "metadata_broker_list": "bootstrap_servers",
    "message_max_bytes": "max_request_size",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
    "topic_metadata_refresh_fast_interval_ms": "retry_backoff_ms",
    "topic_metadata_propagation_max_ms": "max_block_ms, how long a producer waits for a topic",
    "socket_timeout_ms": "request_timeout_ms",
    "socket_send_buffer_bytes": "send_buffer_bytes, where -1 leaves the size to the system",
    "socket_receive_buffer_bytes": "receive_buffer_bytes, where -1 leaves the size to the system",
    "coordinator_query_interval_ms": "metadata_max_age_ms",
    "auto_commit_enable": "enable_auto_commit",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_error_backoff_ms": "retry_backoff_ms",
    "fetch_queue_backoff_ms": "max_partition_fetch_bytes, which bounds prefetching",
    "queued_max_messages_kbytes": "max_partition_fetch_bytes, in bytes: this much of each partition is prefetched",
    "queued_min_messages": "max_partition_fetch_bytes, in bytes: this much of each partition is prefetched",
    "consume_callback_max_messages": "max_poll_records",
    "queue_buffering_max_messages": "buffer_memory, in bytes",
    "queue_buffering_max_kbytes": "buffer_memory, in bytes",
    "queue_buffering_max_ms": "linger_ms",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery_timeout_ms",
    "request_required_acks": "acks",
    "compression_codec": "compression_type",
    "compression_level": "compression_gzip_level or compression_zstd_level",
    "batch_num_messages": "batch_size, in bytes",
    "sticky_partitioning_linger_ms": "batch_size: records without a key share a batch",
    "sasl_mechanisms": "sasl_mechanism",
    "oauthbearer_token_refresh_cb": "sasl_oauthbearer_token_provider, a function that returns a token",
    "oauth_cb": "sasl_oauthbearer_token_provider, a function that returns a token",
    "sasl_oauthbearer_client_id": "sasl_oauthbearer_client_credentials_client_id",
    "sasl_oauthbearer_client_secret": "sasl_oauthbearer_client_credentials_client_secret",
    "sasl_oauthbearer_extensions": "sasl_jaas_config, with extension_… options",
    "sasl_oauthbearer_config": "sasl_oauthbearer_token_provider, a function that returns a token",
    "ssl_ca_location": "ssl_truststore_location, a PEM file",
    "ssl_ca_pem": "ssl_truststore_certificates",
    "ssl_ca": "ssl_truststore_certificates",
    "ssl_certificate_location": "ssl_keystore_location, a PEM file with the key and its certificates",
    "ssl_certificate_pem": "ssl_keystore_certificate_chain",
    "ssl_certificate": "ssl_keystore_certificate_chain",
    "ssl_key_location": "ssl_keystore_location, a PEM file with the key and its certificates",
    "ssl_key_pem": "ssl_keystore_key",
    "ssl_key": "ssl_keystore_key",
    "https_ca_location": "sasl_jaas_config, with the option ssl.truststore.location for the token endpoint",
    "https_ca_pem": "sasl_jaas_config, with the option ssl.truststore.certificates for the token endpoint",
    "enable_ssl_certificate_verification": "ssl_endpoint_identification_algorithm, empty to leave names unchecked; "
    "certificates are always checked",
    # kafka-python, aiokafka
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
    "sasl_oauth_token_provider": "sasl_oauthbearer_token_provider, a function that returns a token",
    "ssl_cafile": "ssl_truststore_location, a PEM file",
    "ssl_certfile": "ssl_keystore_location, a PEM file with the key and its certificates",
    "ssl_keyfile": "ssl_keystore_location, a PEM file with the key and its certificates",
    "ssl_password": "ssl_key_password",
    "ssl_check_hostname": "ssl_endpoint_identification_algorithm, empty to leave names unchecked",
    "ssl_ciphers": "ssl_cipher_suites",
    "max_batch_size": "batch_size",
    "rebalance_timeout_ms": "max_poll_interval_ms, which is also the rebalance timeout",
    "bootstrap_timeout_ms": "default_api_timeout_ms",
    # old Java clients
    "timeout_ms": "request_timeout_ms",
    "metadata_fetch_timeout_ms": "max_block_ms",
}
"""Name -> the setting here that does the same, and how it differs."""

OTHERWISE: Final = {
    # set elsewhere
    "key_deserializer": "it is a keyword of Consumer and AsyncConsumer (a function or an object), not a setting",
    "value_deserializer": "it is a keyword of Consumer and AsyncConsumer (a function or an object), not a setting",
    "key_serializer": "it is a keyword of Producer and AsyncProducer (a function or an object), not a setting",
    "value_serializer": "it is a keyword of Producer and AsyncProducer (a function or an object), not a setting",
    "partitioner": "it is a keyword of Producer and AsyncProducer (a function); the default is Kafka's own (murmur2)",
    "partitioner_cb": "pass a function as the keyword partitioner of Producer",
    "partitioner_class": "pass a function as the keyword partitioner of Producer",
    "msg_order_cmp": "records of a partition are written in the order in which they were sent",
    "dr_cb": "pass on_delivery to send, or use the future that it returns",
    "dr_msg_cb": "pass on_delivery to send, or use the future that it returns",
    "delivery_report_only_error": "on_delivery is called for each record, with the error or None",
    "produce_offset_report": "each future and on_delivery have the offset",
    "rebalance_cb": "pass a RebalanceListener to subscribe",
    "consume_cb": "records come from poll or iteration",
    "on_commit": "pass a callback to commit_async",
    "logger": "lines go to Python's logging, see docs/reference/logging.md",
    "offset_commit_cb": "pass a callback to commit_async",
    "default_offset_commit_callback": "pass a callback to commit_async",
    "default_topic_conf": "set topic settings together with the others",
    "error_cb": "errors are raised by the call that they concern, and logged by muster.client",
    "throttle_cb": "there is no callback for it",
    "log_cb": "lines go to Python's logging, see docs/reference/logging.md",
    "log_level": "set the level of Python's logger muster, see docs/reference/logging.md",
    "log_queue": "lines go to Python's logging, see docs/reference/logging.md",
    "log_thread_name": "lines go to Python's logging, see docs/reference/logging.md",
    "log_connection_close": "set the level of Python's logger muster.client.network",
    "debug": "set the level of Python's logger muster, or of one of its child loggers, see docs/reference/logging.md",
    "stats_cb": "call metrics()",
    "statistics_interval_ms": "call metrics() as often as you like",
    "consumer_timeout_ms": "iteration does not end on its own; poll(timeout_ms) returns in any case",
    "enable_partition_eof": "compare position() with end_offsets(), or call current_lag()",
    "schema_registry_url": "pass a serializer or deserializer that asks the registry, see docs/reference/migrating.md",
    "zookeeper_connect": "consumers that ZooKeeper coordinates are muster.zookeeper.WatcherConsumer",
    "block_on_buffer_full": "send waits for room for max_block_ms; with 0 it does not wait",
    # not configurable
    "api_version": "versions are negotiated with each broker",
    "api_version_request": "versions are negotiated with each broker",
    "api_version_request_timeout_ms": "socket_connection_setup_timeout_ms covers the whole setup of a connection",
    "api_version_fallback_ms": "versions are negotiated for each connection",
    "broker_address_ttl": "names are resolved for each connection",
    "broker_address_family": "all addresses of a name are tried, IPv4 and IPv6",
    "client_dns_lookup": "all addresses of a name are tried, as with use_all_dns_ips",
    "builtin_features": "the documentation lists the features",
    "socket_nagle_disable": "Nagle's algorithm is always off",
    "socket_keepalive_enable": "keep-alive is always on",
    "socket_max_fails": "a connection is closed on its first failure",
    "socket_options": "only send_buffer_bytes and receive_buffer_bytes can be set",
    "reconnect_backoff_jitter_ms": "the backoff has Kafka's jitter of 20 percent",
    "receive_message_max_bytes": "fetch_max_bytes limits a fetch; a response may have up to 512 MiB",
    "message_copy_max_bytes": "records are copied once, into their batch",
    "topic_metadata_refresh_fast_cnt": "librdkafka no longer uses it",
    "topic_metadata_refresh_sparse": "metadata is requested only for topics in use",
    "topic_blacklist": "exclude topics with the pattern passed to subscribe",
    "socket_blocking_max_ms": "librdkafka no longer uses it",
    "enable_random_seed": "Python seeds its random numbers itself",
    "enable_incremental_fetch_sessions": "fetch sessions (KIP-227) are used if the broker has them",
    "enable_gapless_guarantee": "it is experimental in librdkafka; check each future",
    "queue_buffering_backpressure_threshold": "batches are sent as soon as they are due",
    "queuing_strategy": "records are sent in the order in which they arrived",
    "group_protocol_type": "groups are of the type consumer",
    "offset_store_method": "offsets are committed to the broker",
    "offset_store_path": "offsets are committed to the broker",
    "offset_store_sync_interval_ms": "offsets are committed to the broker",
    "internal_termination_signal": "there are no threads for a signal to end",
    "internal_throw_on_fetch_stable_offset_unsupported": "it belongs to Kafka Streams",
    "enabled_events": "there are futures, callbacks and exceptions instead of events",
    "opaque": "a Python callback keeps what it needs itself",
    "loop": "the running event loop is used",
    "selector": "asyncio chooses it",
    "kafka_client": "the client makes its own connections",
    "auto_include_jmx_reporter": "there is no JMX; call metrics()",
    # not supported
    "bootstrap_controllers": "admin clients talk to brokers, which forward to the controller",
    "client_telemetry": "nothing is pushed to brokers; call metrics()",
    "enable_metrics_push": "nothing is pushed to brokers (KIP-714); call metrics()",
    "group_protocol": "groups speak the classic protocol, which every broker of Kafka 4 serves",
    "group_remote_assignor": "it belongs to KIP-848; the classic protocol has partition_assignment_strategy",
    "transactional_id": "only producers have it",
    "transaction_timeout_ms": "only producers have it",
    "transaction_two_phase_commit_enable": "a transaction cannot be prepared for another coordinator (KIP-939)",
    "share_acknowledgement_mode": "there are no share groups",
    "share_acquire_mode": "there are no share groups",
    "compression_lz4_level": "lz4 is used with its default level",
    "config_providers": "read files and environment variables in Python",
    "security_providers": "it names Java classes",
    "interceptors": "it names C functions",
    "interceptor_classes": "it names Java classes",
    "plugin_library_paths": "it names C libraries",
    "proxy_url": "connections go straight to brokers",
    "socks5_proxy": "connections go straight to brokers",
    "ssl_context": "TLS is configured with the settings ssl_…, see docs/reference/security.md",
    "ssl_crlfile": "revocation lists are not checked",
    "ssl_crl_location": "revocation lists are not checked",
}
"""Name -> why this client does not have the setting, and what to do instead."""

FAMILIES: Final = {
    r"metrics?_\w+": "call metrics()",
    r"sasl_kerberos_\w+": "Kerberos (GSSAPI) is not supported; mechanisms are PLAIN, SCRAM and OAUTHBEARER",
    r"sasl_login_refresh_\w+": "a token is renewed after four fifths of its lifetime",
    r"sasl_oauthbearer_(expected|jwks|clock|scope_claim|sub_claim|jwt_validator)_\w+": "brokers check tokens",
    r"(sasl_oauthbearer_\w+|enable_sasl_oauthbearer_unsecure_jwt)": "set sasl_oauthbearer_token_provider, a function "
    "that returns a token, if sasl_oauthbearer_token_endpoint_url is not enough",
    r"sasl_(login|client)_\w*class": "it names Java classes; sasl_oauthbearer_token_provider is a function",
    r"ssl_(engine|provider|providers|keymanager|trustmanager|secure_random)\w*": "TLS is Python's own ssl",
    r"ssl_(protocol|curves_list|sigalgs_list)": "ssl_enabled_protocols and ssl_cipher_suites can be set; the rest is "
    "Python's own ssl",
    r"ssl_certificate_verify_cb": "certificates are checked against ssl_truststore_location",
    r"ssl_ca_certificate_stores": "without ssl_truststore_location the system's authorities are trusted",
    r"(socket|connect|closesocket|open|resolve|background_event)_cb": "connections are asyncio's own",
}
"""Patterns for names that share an explanation."""


VALUES: Final = {
    "auto_offset_reset": {
        "smallest": "earliest",
        "beginning": "earliest",
        "largest": "latest",
        "end": "latest",
        "error": "none",
    },
    "compression_type": {"uncompressed": "none", "gz": "gzip", "zstandard": "zstd"},
    "isolation_level": {"0": "read_uncommitted", "1": "read_committed"},
}
"""What librdkafka and Kafka up to 0.8 call a setting's values."""


def value(name: str, given: str, allowed: Iterable[str]) -> str | None:
    """The value here for another client's value of a setting, ignoring case; None if there is none."""
    lower = given.lower()
    return lower if lower in allowed else VALUES.get(name, {}).get(lower)


def answer(name: str, known: Iterable[str]) -> str | None:
    """This client's name for a setting of another client; None if no client has it. `known` are the settings of this
    client.

    The name has underscores.
    """
    found = EQUIVALENT.get(name)
    if found is not None:
        setting = re.split(r"\W", found, maxsplit=1)[0]
        here = setting in known
        return f"here it is called {found}" if here else f"it would be {found}, which this client does not have"
    if name in OTHERWISE:
        return OTHERWISE[name]
    return next((why for pattern, why in FAMILIES.items() if re.fullmatch(pattern, name)), None)
