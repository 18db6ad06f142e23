"""The cluster as a whole: its brokers, their settings and log directories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from muster.client.admin.part import AdminPart, checked
from muster.client.core.admin import admin as rules
from muster.client.core.admin import configs as admin_configs
from muster.client.core.admin import partitions as admin_partitions
from muster.client.core.admin import replicas as admin_replicas
from muster.client.core.admin.admin import ClusterDescription, ConfigEntry, ConfigResource, ConfigResourceType
from muster.client.core.admin.configs import Changes
from muster.client.core.admin.partitions import LogDirDescription
from muster.client.core.refusals import CONFIGS_RETRIABLE
from muster.client.core.sends import LEAST_LOADED
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError
from muster.model import Node, TopicPartition
from muster.protocol.admin_messages import DescribeLogDirsRequest, ListConfigResourcesRequest
from muster.protocol.messages import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    MetadataRequest,
)


class ClusterPart(AdminPart):
    """The methods of `AsyncAdmin` for brokers and settings."""

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        try:
            answer = await self._calls.retried(lambda: self._calls.ask(LEAST_LOADED, DescribeClusterRequest()))
        except UnsupportedVersionError:  # brokers before Kafka 2.8 (KIP-700)
            metadata = await self._calls.describe([])
            nodes = [Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in metadata.brokers]
            return ClusterDescription(metadata.cluster_id or "", metadata.controller_id, sorted(nodes))
        error = rules.failure(answer.error_code, answer.error_message)
        if error is not None:
            raise error
        nodes = [Node(broker.broker_id, broker.host, broker.port, broker.rack) for broker in answer.brokers]
        return ClusterDescription(answer.cluster_id, answer.controller_id, sorted(nodes))

    async def reach_brokers(self) -> dict[int, KafkaError | None]:
        """Send a request to every broker of the cluster. Returns, by broker, None or why it did not answer."""
        brokers = sorted(broker.node_id for broker in (await self._calls.describe([])).brokers)

        async def one(broker: int) -> KafkaError | None:
            try:
                await self._calls.retried(
                    lambda: self._calls.send(broker, MetadataRequest, lambda _: MetadataRequest([]))
                )
            except KafkaError as error:
                return error
            return None

        answers = await asyncio.gather(*(one(broker) for broker in brokers))
        return dict(zip(brokers, answers, strict=True))

    @overload
    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_documentation: bool = False,
        raise_errors: Literal[True] = True,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]: ...

    @overload
    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False, raise_errors: Literal[False]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]: ...

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False, raise_errors: bool = True
    ) -> dict[ConfigResource, Any]:
        """The settings of topics, brokers and groups. A broker's settings are requested from that broker."""

        async def attempt(
            pending: list[ConfigResource],
        ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
            found: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
            by_node: dict[int, list[ConfigResource]] = {}
            for resource in pending:
                own = admin_configs.own_node(resource)
                by_node.setdefault(LEAST_LOADED if own is None else own, []).append(resource)
            await self._calls.controller()  # waits until the brokers are known
            for node_id, node_resources in by_node.items():
                request = DescribeConfigsRequest(
                    resources=[DescribeConfigsResource(r.resource_type, r.name, None) for r in node_resources],
                    include_documentation=include_documentation,
                )
                answer = await self._calls.ask(node_id, request)
                for result in answer.results:
                    resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                    found[resource] = rules.config_entries(result)
            return found

        return checked(await self._calls.settle(resources, attempt, frozenset()), raise_errors)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Changes], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[ConfigResource, KafkaError | None]:
        """Change individual settings of topics, brokers and groups, and leave the others as they are (KIP-339). A
        mapping has a setting's new value, or None for its default; `ConfigChange` can also append to a list. A broker's
        changes are sent to that broker; an empty name means the defaults of all brokers. `validate_only` only checks.
        """
        wanted = {resource: admin_configs.config_changes(resource, given) for resource, given in changes.items()}

        async def attempt(pending: list[ConfigResource]) -> dict[ConfigResource, KafkaError | None]:
            by_node: dict[int, list[ConfigResource]] = {}
            controller = await self._calls.controller()
            for resource in pending:
                own = admin_configs.own_node(resource)
                by_node.setdefault(controller if own is None else own, []).append(resource)
            found: dict[ConfigResource, KafkaError | None] = {}
            for node_id, node_resources in by_node.items():
                request = admin_configs.alter_configs_request(
                    {resource: wanted[resource] for resource in node_resources}, validate_only=validate_only
                )
                found |= admin_configs.alter_configs_answers(await self._calls.ask(node_id, request))
            return found

        return checked(await self._calls.settle(wanted, attempt, CONFIGS_RETRIABLE), raise_errors)

    async def list_config_resources(self, types: Iterable[ConfigResourceType] = ()) -> list[ConfigResource]:
        """The topics, brokers, groups and client-metrics subscriptions that have settings, of all or the given types
        (KIP-1142).

        Raises:
            KafkaError: the broker refused the request.
            UnsupportedVersionError: the broker is older than Kafka 4.1.
        """
        wanted = list(types)

        def build(version: int) -> ListConfigResourcesRequest:
            return admin_configs.list_resources_request(version, wanted)

        answer = await self._calls.retried(lambda: self._calls.send(LEAST_LOADED, ListConfigResourcesRequest, build))
        error = rules.failure(answer.error_code)
        if error is not None:
            raise error
        return admin_configs.listed_resources(answer)

    @overload
    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, raise_errors: Literal[True] = True
    ) -> dict[int, dict[str, LogDirDescription]]: ...

    @overload
    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, raise_errors: Literal[False]
    ) -> dict[int, dict[str, LogDirDescription] | KafkaError]: ...

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, raise_errors: bool = True
    ) -> dict[int, Any]:
        """The log directories of brokers, of all if none are named, with the size of each replica in bytes."""
        await self._calls.controller()  # waits until the brokers are known
        known = {broker.node_id for broker in (await self._calls.describe([])).brokers}
        wanted = sorted(known) if brokers is None else list(dict.fromkeys(brokers))

        async def one(broker: int) -> dict[str, LogDirDescription] | KafkaError:
            if broker not in known:
                return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not in the cluster now")
            try:
                answer = await self._calls.retried(lambda: self._calls.ask(broker, DescribeLogDirsRequest(topics=None)))
            except KafkaError as error:
                return error
            return admin_partitions.log_dirs(answer)

        answers = await asyncio.gather(*(one(broker) for broker in wanted))
        return checked(dict(zip(wanted, answers, strict=True)), raise_errors)

    async def alter_replica_log_dirs(
        self, broker: int, log_dirs: Mapping[TopicPartition, str], *, raise_errors: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move replicas to other log directories of the same broker (KIP-113), given by the full paths that
        `describe_log_dirs` returns. The call returns when the moves have begun; `describe_log_dirs` shows their
        progress.

        Raises:
            KafkaError: the broker does not exist or does not answer.
        """
        wanted = admin_replicas.check_log_dirs(log_dirs)
        await self._check_broker(broker)
        request = admin_replicas.alter_log_dirs_request(wanted)
        return checked(
            admin_replicas.altered_log_dirs(await self._calls.retried(lambda: self._calls.ask(broker, request))),
            raise_errors,
        )
