"""One module for each API, or for each family of them. `table` says which function serves which request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.broker.handlers import (
    api_versions,
    cluster,
    configs,
    coordinators,
    create_topics,
    fetch,
    list_offsets,
    metadata,
    produce,
    producer_ids,
)
from muster.broker.server import Api, Unsupported
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
    ApiKey.DESCRIBE_GROUPS: coordinators.describe_groups,
    ApiKey.DELETE_GROUPS: coordinators.delete_groups,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: cluster.describe_topic_partitions,
}
"""Everything else that is advertised goes to the group coordinator."""

_PIPELINED = frozenset({ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.HEARTBEAT})
"""Requests that wait for the disk at most: those behind them may go on."""


def table(broker: Broker) -> dict[int, Api]:
    """Who serves each request."""
    apis = {}
    for key in ADVERTISED:
        request = REQUESTS[key]
        handle = partial(_HANDLERS.get(key, coordinators.group_request), broker)
        fast = coordinators.fast_heartbeat(broker) if key is ApiKey.HEARTBEAT else None
        first, last = max(ADVERTISED[key][0], request.MIN_VERSION), ADVERTISED[key][1]
        apis[int(key)] = Api(request, first, last, handle, key in _PIPELINED, fast)
    return apis


def unsupported() -> Unsupported:
    """The answer to an ApiVersions of any version."""
    return Unsupported(REQUESTS[ApiKey.API_VERSIONS], api_versions.unsupported_version())
