"""The handlers: one module for each API or family of APIs. `table` says which function serves which request."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from muster.broker.cluster_view import ClusterView
from muster.broker.config import BrokerConfig
from muster.broker.dynamic_settings import DynamicSettings
from muster.broker.features import Features
from muster.broker.groups.service import Groups
from muster.broker.handlers import (
    alter_configs,
    api_versions,
    cluster_topics,
    configs,
    coordinators,
    create_partitions,
    create_topics,
    fast_commit,
    fast_produce,
    fetch,
    list_offsets,
    logs,
    metadata,
    offsets,
    produce,
    replicas,
    transactions,
    update_features,
)
from muster.broker.handlers import cluster as cluster_apis
from muster.broker.net.calls import Api, Fast, Unsupported
from muster.broker.net.intake import TimerLoop
from muster.broker.net.side_thread import SideThread
from muster.broker.topics.catalogue import TopicCatalogue, Topics
from muster.broker.topics.changes import TopicChanges
from muster.broker.topics.durability import Durability
from muster.broker.topics.fetch_sessions import FetchSessions
from muster.broker.topics.fetches import ParkedFetches
from muster.broker.topics.log_reads import LogReader
from muster.broker.topics.partitions import Partitions
from muster.broker.transactions.partition_locator import PartitionLocator
from muster.broker.transactions.service import TransactionService
from muster.broker.transactions.verification import Verifier
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey


class ClusterAdmin(
    cluster_topics.TopicAdmin,
    create_partitions.PartitionAdmin,
    alter_configs.ConfigAdmin,
    update_features.FeatureAdmin,
    Protocol,
):
    """Changes topics and features for all brokers (zookeeper_cluster.py)."""


class BrokerParts(NamedTuple):
    """The parts of a broker; each handler gets those that it needs."""

    config: BrokerConfig
    cluster: ClusterView
    topics: TopicCatalogue
    changes: TopicChanges
    partitions: Partitions
    reader: LogReader
    groups: Groups
    durability: Durability
    fetches: ParkedFetches
    sessions: FetchSessions
    loop: TimerLoop
    side_thread: SideThread
    transactions: TransactionService
    verifier: Verifier
    locator: PartitionLocator
    dynamic: DynamicSettings
    features: Features
    cluster_admin: ClusterAdmin | None = None


def _handlers(parts: BrokerParts) -> dict[ApiKey, Callable[..., Any]]:
    """The function for each request. All other advertised requests go to the group coordinator."""
    cluster, topics, changes, partitions = parts.cluster, parts.topics, parts.changes, parts.partitions
    produced = _produced(parts)
    fetched = fetch.FetchNeeds(parts.sessions, parts.reader, parts.fetches, parts.loop)
    looked_up = list_offsets.ListOffsetsNeeds(cluster, partitions, parts.side_thread)
    admin = create_topics.TopicNeeds(parts.config, cluster, topics, changes)
    of_logs = logs.LogNeeds(cluster, topics, partitions, parts.side_thread, parts.config.data_dir)
    altered = alter_configs.AlterConfigNeeds(cluster, topics, partitions, parts.dynamic, parts.cluster_admin)
    described = configs.ConfigNeeds(parts.config, cluster, topics)
    create: Callable[..., Any]
    delete: Callable[..., Any]
    create, delete = partial(create_topics.create_topics, admin), partial(create_topics.delete_topics, admin)
    if parts.cluster_admin is not None:
        create = partial(cluster_topics.create_topics, parts.cluster_admin, admin)
        delete = partial(cluster_topics.delete_topics, parts.cluster_admin, admin)
    return (
        _of_groups(cluster, parts.groups, parts.transactions)
        | _of_transactions(parts)
        | {
            ApiKey.PRODUCE: partial(produce.produce, produced),
            ApiKey.FETCH: partial(fetch.fetch, fetched),
            ApiKey.LIST_OFFSETS: partial(list_offsets.list_offsets, looked_up),
            ApiKey.METADATA: partial(metadata.metadata, metadata.MetadataNeeds(cluster, topics, changes)),
            ApiKey.CREATE_TOPICS: create,
            ApiKey.DELETE_TOPICS: delete,
            ApiKey.ALTER_CONFIGS: partial(alter_configs.alter_configs, altered),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: partial(alter_configs.incremental_alter_configs, altered),
            ApiKey.CREATE_PARTITIONS: partial(create_partitions.create_partitions, parts.cluster_admin, admin),
            ApiKey.DELETE_RECORDS: partial(logs.delete_records, of_logs),
            ApiKey.ALTER_REPLICA_LOG_DIRS: partial(logs.alter_replica_log_dirs, of_logs),
            ApiKey.DESCRIBE_LOG_DIRS: partial(logs.describe_log_dirs, of_logs),
            ApiKey.DESCRIBE_PRODUCERS: partial(logs.describe_producers, of_logs),
            ApiKey.ELECT_LEADERS: partial(replicas.elect_leaders, cluster, topics),
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: partial(replicas.alter_partition_reassignments, cluster, topics),
            ApiKey.LIST_PARTITION_REASSIGNMENTS: replicas.list_partition_reassignments,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: partial(list_offsets.offset_for_leader_epoch, looked_up),
            ApiKey.DESCRIBE_CONFIGS: partial(configs.describe_configs, described),
            ApiKey.LIST_CONFIG_RESOURCES: partial(configs.list_config_resources, described),
            ApiKey.UPDATE_FEATURES: partial(
                update_features.update_features, parts.features, cluster.node.node_id, parts.cluster_admin
            ),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: partial(cluster_apis.describe_topic_partitions, cluster, topics),
        }
    )


def _of_transactions(parts: BrokerParts) -> dict[ApiKey, Callable[..., Any]]:
    """The functions for producers with ids."""
    needs = transactions.TransactionNeeds(parts.locator, parts.groups, parts.transactions, parts.verifier)
    return {
        ApiKey.INIT_PRODUCER_ID: partial(transactions.init_producer_id, parts.transactions),
        ApiKey.ADD_PARTITIONS_TO_TXN: partial(transactions.add_partitions_to_txn, needs),
        ApiKey.ADD_OFFSETS_TO_TXN: partial(transactions.add_offsets_to_txn, needs),
        ApiKey.END_TXN: partial(transactions.end_txn, needs),
        ApiKey.WRITE_TXN_MARKERS: partial(transactions.write_txn_markers, needs),
        ApiKey.TXN_OFFSET_COMMIT: partial(transactions.txn_offset_commit, needs),
        ApiKey.DESCRIBE_TRANSACTIONS: partial(transactions.describe_transactions, needs),
        ApiKey.LIST_TRANSACTIONS: partial(transactions.list_transactions, needs),
    }


def _of_groups(
    cluster: ClusterView, groups: Groups, transactions: TransactionService | None = None
) -> dict[ApiKey, Callable[..., Any]]:
    """The functions that need neither topics nor logs."""
    return {
        ApiKey.FIND_COORDINATOR: partial(coordinators.find_coordinator, groups, transactions),
        ApiKey.OFFSET_COMMIT: partial(offsets.offset_commit, groups),
        ApiKey.OFFSET_FETCH: partial(offsets.offset_fetch, groups),
        ApiKey.DESCRIBE_GROUPS: partial(coordinators.describe_groups, groups),
        ApiKey.DELETE_GROUPS: partial(coordinators.delete_groups, groups),
        ApiKey.DESCRIBE_CLUSTER: partial(cluster_apis.describe_cluster, cluster),
    }


_TO_COORDINATORS = (
    ApiKey.LIST_GROUPS,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_DELETE,
)
"""Administrative requests that the group coordinator answers."""


def _produced(parts: BrokerParts) -> produce.ProduceNeeds:
    return produce.ProduceNeeds(
        parts.cluster,
        parts.topics,
        parts.partitions,
        parts.durability,
        parts.fetches,
        parts.side_thread,
        parts.verifier,
    )


_PIPELINED = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""Requests that wait for nothing but the disk: later requests may be handled meanwhile."""


_MOST_ELEMENTS = {
    ApiKey.PRODUCE: 20_000,
    ApiKey.FETCH: 250_000,
    ApiKey.METADATA: 200_000,
    ApiKey.LIST_OFFSETS: 100_000,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 20_000,
    ApiKey.OFFSET_COMMIT: 20_000,
    ApiKey.OFFSET_FETCH: 100_000,
    ApiKey.FIND_COORDINATOR: 100_000,
    ApiKey.SYNC_GROUP: 20_000,
    ApiKey.LEAVE_GROUP: 10_000,
    ApiKey.DESCRIBE_GROUPS: 100_000,
    ApiKey.DELETE_GROUPS: 100_000,
    ApiKey.DESCRIBE_CONFIGS: 100_000,
    ApiKey.ALTER_CONFIGS: 20_000,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 20_000,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 100_000,
    ApiKey.CREATE_TOPICS: 20_000,
    ApiKey.CREATE_PARTITIONS: 20_000,
    ApiKey.DELETE_RECORDS: 20_000,
    ApiKey.OFFSET_DELETE: 20_000,
    ApiKey.ELECT_LEADERS: 100_000,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 100_000,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 100_000,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 100_000,
    ApiKey.DESCRIBE_LOG_DIRS: 100_000,
    ApiKey.DESCRIBE_PRODUCERS: 20_000,
    ApiKey.DELETE_TOPICS: 20_000,
    ApiKey.ADD_PARTITIONS_TO_TXN: 20_000,
    ApiKey.TXN_OFFSET_COMMIT: 20_000,
    ApiKey.WRITE_TXN_MARKERS: 20_000,
    ApiKey.DESCRIBE_TRANSACTIONS: 100_000,
}
"""The maximum number of array elements in one request; a larger request closes its connection before it is decoded.
This limits how long a handler works without a break (to about ten thousand partitions), and how much memory one that
works in slices takes."""

_MOST_OF_OTHERS = 2_000


def table(parts: BrokerParts) -> dict[int, Api]:
    """The handlers of a broker, by API key."""
    fast = {
        ApiKey.HEARTBEAT: coordinators.fast_heartbeat(parts.groups),
        ApiKey.PRODUCE: fast_produce.fast_produce(_produced(parts)),
    }
    group_request = partial(coordinators.group_request, parts.groups)
    serve: dict[ApiKey, Callable[..., Any]] = dict.fromkeys(ADVERTISED, group_request) | _handlers(parts)
    return _apis(parts.groups, serve, fast, parts.features)


class _NoChanges:
    """A coordinator without topics: none is created or deleted."""

    def is_cleaning_up(self, name: str) -> bool:
        return False

    def auto_create(self, names: Iterable[str]) -> Generator[None, None, None]:
        yield from ()


def groups_table(cluster: ClusterView, topics: Topics, groups: Groups) -> dict[int, Api]:
    """The handlers of a coordinator with groups but no records, for administration. Members use the draft listener."""
    group_request = partial(coordinators.group_request, groups)
    serve = dict.fromkeys(_TO_COORDINATORS, group_request) | _of_groups(cluster, groups)
    described = metadata.MetadataNeeds(cluster, topics, _NoChanges())
    return _apis(groups, serve | {ApiKey.METADATA: partial(metadata.metadata, described)}, {})


def _apis(
    groups: Groups,
    serve: Mapping[ApiKey, Callable[..., Any]],
    fast: dict[ApiKey, Fast],
    features: Features | None = None,
) -> dict[int, Api]:
    apis = {}
    spoken = api_versions.spoken([*serve, ApiKey.API_VERSIONS], features)
    serve = {**serve, ApiKey.API_VERSIONS: partial(api_versions.api_versions, spoken)}
    fast = {
        **fast,
        ApiKey.API_VERSIONS: api_versions.fast_api_versions(spoken),
        ApiKey.OFFSET_FETCH: offsets.fast_offset_fetch(groups),
    }
    short = {ApiKey.OFFSET_COMMIT: fast_commit.fast_commit(groups)}
    for key, handle in serve.items():
        request = REQUESTS[key]
        first, last = max(ADVERTISED[key][0], request.MIN_VERSION), ADVERTISED[key][1]
        most = _MOST_ELEMENTS.get(key, _MOST_OF_OTHERS)
        apis[int(key)] = Api(request, first, last, handle, key in _PIPELINED, fast.get(key), most, short.get(key))
    return apis


def unsupported() -> Unsupported:
    """The answer to an ApiVersions of any version."""
    return Unsupported(REQUESTS[ApiKey.API_VERSIONS], api_versions.unsupported_version())
