"""The requests that muster speaks: keys, the versions a broker advertises, which header goes with which version."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from muster.errors import UnsupportedVersionError
from muster.protocol import admin_messages, messages, transaction_messages
from muster.protocol.primitives import Message, Request


class ApiKey(IntEnum):
    """Keys of the requests, as Kafka numbers them."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


LATEST_TIMESTAMP = -1
"""In ListOffsets: the offset after the last record."""
EARLIEST_TIMESTAMP = -2
"""In ListOffsets: the offset of the first record that still exists."""


class CoordinatorType(IntEnum):
    """The kinds of key in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


READ_UNCOMMITTED = 0
READ_COMMITTED = 1
"""Isolation levels of Fetch and ListOffsets."""

REQUESTS: dict[int, type[Request[Any]]] = {
    cls.API_KEY: cls
    for cls in (vars(messages) | vars(admin_messages) | vars(transaction_messages)).values()
    if isinstance(cls, type) and issubclass(cls, Request) and cls is not Request
}
"""The class of each request, by its key."""

ADVERTISED: dict[ApiKey, tuple[int, int]] = {
    ApiKey(key): (cls.MIN_VERSION, cls.MAX_VERSION) for key, cls in sorted(REQUESTS.items())
} | {
    # Kafka 4 reads Produce from v3 on, but advertises v0: old versions of librdkafka offer compression
    # only to brokers that do (KAFKA-18659).
    ApiKey.PRODUCE: (0, 13),
    # v6 belongs to a feature (two-phase commit, KIP-939) that is off by default.
    ApiKey.INIT_PRODUCER_ID: (0, 5),
}
"""Versions as a default Apache Kafka 4.2 broker advertises them: (oldest, newest), for each request served here."""


def request_header_version(request: type[Request[Any]], version: int) -> int:
    """1, or 2 (tagged fields) for flexible versions."""
    return 2 if version >= request.FIRST_FLEXIBLE_VERSION else 1


def response_header_version(request: type[Request[Any]], version: int) -> int:
    """0, or 1 (tagged fields) for flexible versions.

    ApiVersions always answers with 0: the client cannot know yet which versions the broker understands (KIP-511).
    """
    if request.API_KEY == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= request.FIRST_FLEXIBLE_VERSION else 0


def newest_common(message: type[Message], broker_range: tuple[int, int] | None, newest: int | None = None) -> int:
    """The newest version of a request that both sides speak, at most `newest`.

    Raises:
        UnsupportedVersionError: the broker and this client share no version.
    """
    if broker_range is None:
        raise UnsupportedVersionError(f"the broker does not support {message.__name__}")
    first, last = broker_range
    oldest = message.MIN_VERSION if message.OLDEST_VERSION is None else message.OLDEST_VERSION
    version = min(last, message.MAX_VERSION if newest is None else newest)
    if version < max(first, oldest):
        supported = f"{oldest} to {message.MAX_VERSION}"
        raise UnsupportedVersionError(
            f"the broker supports {message.__name__} v{first} to v{last}, this client v{supported}: none in common"
        )
    return version


def version_ranges(api_versions: Iterable[messages.ApiVersion]) -> dict[int, tuple[int, int]]:
    """The version ranges of an ApiVersions response, by key."""
    return {api.api_key: (api.min_version, api.max_version) for api in api_versions}
