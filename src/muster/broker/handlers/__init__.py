"""One module for each API, or for each family of them. `table` says which function serves which request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.broker.calls import Api, Unsupported
from muster.broker.handlers import (
    api_versions,
    cluster,
    configs,
    coordinators,
    create_topics,
    fetch,
    list_offsets,
    metadata,
    offsets,
    produce,
    producer_ids,
)
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey

if TYPE_CHECKING:
    from muster.broker.broker import Broker

_HANDLERS: dict[ApiKey, Callable[..., Any]] = {
    ApiKey.PRODUCE: produce.produce,
    ApiKey.FETCH: fetch.fetch,
    ApiKey.LIST_OFFSETS: list_offsets.list_offsets,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.FIND_COORDINATOR: coordinators.find_coordinator,
    ApiKey.API_VERSIONS: api_versions.api_versions,
    ApiKey.CREATE_TOPICS: create_topics.create_topics,
    ApiKey.DELETE_TOPICS: create_topics.delete_topics,
    ApiKey.INIT_PRODUCER_ID: producer_ids.init_producer_id,
    ApiKey.OFFSET_COMMIT: offsets.offset_commit,
    ApiKey.OFFSET_FETCH: offsets.offset_fetch,
    ApiKey.DESCRIBE_GROUPS: coordinators.describe_groups,
    ApiKey.DELETE_GROUPS: coordinators.delete_groups,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
}
"""Everything else that is advertised goes to the group coordinator."""

_PIPELINED = frozenset({ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.HEARTBEAT})
"""Requests that wait for the disk at most: those behind them may go on."""


_MOST_ELEMENTS = {
    ApiKey.PRODUCE: 20_000,
    ApiKey.FETCH: 250_000,
    ApiKey.METADATA: 200_000,
    ApiKey.LIST_OFFSETS: 100_000,
    ApiKey.OFFSET_COMMIT: 20_000,
    ApiKey.OFFSET_FETCH: 100_000,
    ApiKey.FIND_COORDINATOR: 100_000,
    ApiKey.SYNC_GROUP: 20_000,
    ApiKey.LEAVE_GROUP: 10_000,
    ApiKey.DESCRIBE_GROUPS: 100_000,
    ApiKey.DELETE_GROUPS: 100_000,
    ApiKey.DESCRIBE_CONFIGS: 100_000,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 100_000,
    ApiKey.CREATE_TOPICS: 20_000,
    ApiKey.DELETE_TOPICS: 20_000,
}
"""Elements of all arrays in one request; one with more ends its connection before it is decoded. Where a handler works
in one go, the number bounds its time to that of some ten thousand partitions; where it works in slices, its memory."""

_MOST_OF_OTHERS = 2_000


def table(broker: Broker) -> dict[int, Api]:
    """Who serves each request."""
    apis = {}
    for key in ADVERTISED:
        request = REQUESTS[key]
        handle = partial(_HANDLERS.get(key, coordinators.group_request), broker)
        fast = coordinators.fast_heartbeat(broker) if key is ApiKey.HEARTBEAT else None
        first, last = max(ADVERTISED[key][0], request.MIN_VERSION), ADVERTISED[key][1]
        most = _MOST_ELEMENTS.get(key, _MOST_OF_OTHERS)
        apis[int(key)] = Api(request, first, last, handle, key in _PIPELINED, fast, most)
    return apis


def unsupported() -> Unsupported:
    """The answer to an ApiVersions of any version."""
    return Unsupported(REQUESTS[ApiKey.API_VERSIONS], api_versions.unsupported_version())
