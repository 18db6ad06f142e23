"""`AsyncAdmin`: topics, groups, offsets and settings of a cluster, for asyncio.

A call about several items (topics, groups, partitions) returns an answer for each: a value, or the KafkaError that the
broker gave for it. An error of the whole call is raised. After retriable errors (a coordinator that is loading, a
leader that moved) the call is tried again for `default_api_timeout_ms`; then the error is the item's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from muster.client import forks
from muster.client.calls import BrokerCalls
from muster.client.config import AdminConfig
from muster.client.core import admin as rules
from muster.client.core import offset_requests
from muster.client.core.admin import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    NewTopic,
    TopicDescription,
    TopicListing,
)
from muster.client.core.refusals import GROUPS_AGAIN, LIST_OFFSETS_AGAIN, OFFSETS_AGAIN, TOPICS_AGAIN
from muster.client.core.sends import LEAST_LOADED
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError
from muster.model import Node, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.protocol.messages import (
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeGroupsRequest,
    ListGroupsRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
)


class AsyncAdmin(forks.StaysHere):
    """Administers a cluster, from asyncio. Settings are those of `AdminConfig`.

    async with AsyncAdmin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topics([NewTopic("flights", num_partitions=8)])
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self._config = AdminConfig.of(settings, **more)
        self._calls = BrokerCalls(self._config)

    async def start(self) -> None:
        """Bind to the running event loop. Every call does this by itself."""
        await self._calls.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics ------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics; a plain name gets the broker's default numbers. `validate_only` only checks."""
        wanted = {new.name: new for new in (NewTopic(t) if isinstance(t, str) else t for t in topics)}

        async def attempt(names: list[str]) -> dict[str, CreatedTopic | KafkaError]:
            request = CreateTopicsRequest(
                topics=[rules.creatable(wanted[name]) for name in names],
                timeout_ms=self._config.request_timeout_ms,
                validate_only=validate_only,
            )
            answer = await self._calls.ask(await self._calls.controller(), request)
            return {result.name: rules.created_topic(result) for result in answer.topics}

        return await self._calls.settle(wanted, attempt, TOPICS_AGAIN)

    async def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete topics with all that is in them."""

        async def attempt(names: list[str]) -> dict[str, KafkaError | None]:
            timeout_ms = self._config.request_timeout_ms

            def build(version: int) -> DeleteTopicsRequest:
                if version >= 6:
                    return DeleteTopicsRequest([DeleteTopicState(name=name) for name in names], timeout_ms=timeout_ms)
                return DeleteTopicsRequest(topic_names=names, timeout_ms=timeout_ms)

            answer = await self._calls.send(await self._calls.controller(), DeleteTopicsRequest, build)
            return {
                result.name or "": rules.failure(result.error_code, result.error_message) for result in answer.responses
            }

        return await self._calls.settle(names, attempt, TOPICS_AGAIN)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """The topics of the cluster, by name."""
        answer = await self._calls.describe(None)
        found = [TopicListing(t.name or "", t.topic_id, t.is_internal) for t in answer.topics]
        return sorted((t for t in found if include_internal or not t.is_internal), key=lambda t: t.name)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        """Partitions, leaders and replicas of topics. A topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION."""
        wanted = list(dict.fromkeys(names))
        answer = await self._calls.describe(wanted) if wanted else MetadataResponse()
        found = {topic.name or "": rules.topic_description(topic) for topic in answer.topics}
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {name: found.get(name) or KafkaError(missing, f"topic {name}") for name in wanted}

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
        """The first offset at or after each timestamp (milliseconds; -1 latest, -2 earliest); None: no such record."""
        isolation = READ_COMMITTED if isolation_level == "read_committed" else READ_UNCOMMITTED

        async def attempt(
            places: list[TopicPartition],
        ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError | None]:
            leaders = rules.leaders(await self._calls.describe(list(offset_requests.by_topic(sorted(places)))), places)
            found: dict[TopicPartition, OffsetAndTimestamp | KafkaError | None] = {}
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for place, leader in sorted(leaders.items()):
                if isinstance(leader, KafkaError):
                    found[place] = leader
                else:
                    by_leader.setdefault(leader, {})[place] = timestamps[place]
            for leader, owned in by_leader.items():
                request = offset_requests.list_request(owned, isolation, self._config.request_timeout_ms)
                found |= offset_requests.list_answers(await self._calls.ask(leader, request), owned)
            return found

        return await self._calls.settle(timestamps, attempt, LIST_OFFSETS_AGAIN)

    # --- cluster and settings ----------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """Id, controller and brokers of the cluster. Brokers before Kafka 2.8 raise UnsupportedVersionError."""
        answer = await self._calls.retried(lambda: self._calls.ask(LEAST_LOADED, DescribeClusterRequest()))
        error = rules.failure(answer.error_code, answer.error_message)
        if error is not None:
            raise error
        nodes = [Node(broker.broker_id, broker.host, broker.port, broker.rack) for broker in answer.brokers]
        return ClusterDescription(answer.cluster_id, answer.controller_id, sorted(nodes))

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, include_documentation: bool = False
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """The settings of topics, brokers and groups. A broker is asked for its own."""

        async def attempt(
            pending: list[ConfigResource],
        ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
            found: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
            by_node: dict[int, list[ConfigResource]] = {}
            for resource in pending:
                own = resource.resource_type is ConfigResourceType.BROKER and resource.name.isdecimal()
                by_node.setdefault(int(resource.name) if own else LEAST_LOADED, []).append(resource)
            await self._calls.controller()  # knows the brokers by then
            for node_id, asked in by_node.items():
                request = DescribeConfigsRequest(
                    resources=[DescribeConfigsResource(r.resource_type, r.name, None) for r in asked],
                    include_documentation=include_documentation,
                )
                answer = await self._calls.ask(node_id, request)
                for result in answer.results:
                    resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                    found[resource] = rules.config_entries(result)
            return found

        return await self._calls.settle(resources, attempt, frozenset())

    # --- groups ------------------------------------------------------------------------------------------------------

    async def list_consumer_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers, by id; only those in one of the states and of one of the types, if given.

        Raises:
            KafkaError: a broker refused to list its groups.
            UnsupportedVersionError: a broker is too old for the filter.
        """
        request = ListGroupsRequest(list(states), list(types))

        async def one(node_id: int) -> list[GroupListing]:
            answer = await self._calls.ask(node_id, request)
            error = rules.failure(answer.error_code)
            if error is not None:
                raise error
            return [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups]

        async def everywhere() -> dict[str, GroupListing]:
            cluster = await self._calls.describe([])
            lists = await asyncio.gather(*(one(broker.node_id) for broker in cluster.brokers))
            return {group.group_id: group for groups in lists for group in groups}

        found = await self._calls.retried(everywhere, GROUPS_AGAIN)
        return [found[group_id] for group_id in sorted(found)]

    async def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
        """State and members of groups (O1), of the classic protocol or KIP-848. One that does not exist, or is of
        another kind, is GROUP_ID_NOT_FOUND."""

        async def ask(node: Node, group_ids: list[str]) -> dict[str, GroupDescription | KafkaError]:
            answer = await self._calls.ask(node.node_id, DescribeGroupsRequest(group_ids))
            found = {group.group_id: rules.group_description(group, node) for group in answer.groups}
            missing = [group_id for group_id, said in found.items() if _is_missing(said)]
            return found | (await self._describe_other_groups(node, missing) if missing else {})

        return await self._calls.for_groups(group_ids, ask, GROUPS_AGAIN)

    async def _describe_other_groups(
        self, node: Node, group_ids: list[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Groups of KIP-848, for which there is another request."""
        from muster.protocol.group_messages import ConsumerGroupDescribeRequest  # few brokers have such groups

        try:
            answer = await self._calls.ask(node.node_id, ConsumerGroupDescribeRequest(group_ids))
        except UnsupportedVersionError:
            return {}
        found = {group.group_id: rules.consumer_group_description(group, node) for group in answer.groups}
        return {group_id: said for group_id, said in found.items() if not _is_missing(said)}

    async def delete_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete groups and their offsets. A group with members is NON_EMPTY_GROUP."""

        async def ask(node: Node, group_ids: list[str]) -> dict[str, KafkaError | None]:
            answer = await self._calls.ask(node.node_id, DeleteGroupsRequest(group_ids))
            return {
                result.group_id: rules.failure(result.error_code, f"group {result.group_id}")
                for result in answer.results
            }

        return await self._calls.for_groups(group_ids, ask, GROUPS_AGAIN)

    async def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]:
        """The committed offsets of a group, of all its partitions or the given ones; those without are left out.

        Raises:
            KafkaError: the group cannot be asked.
        """
        wanted = None if partitions is None else sorted(partitions)

        async def ask(
            node: Node, _: list[str]
        ) -> dict[str, dict[TopicPartition, OffsetAndMetadata | KafkaError] | KafkaError]:
            answer = await self._calls.send(
                node.node_id,
                OffsetFetchRequest,
                lambda version: offset_requests.fetch_request(version, group_id, wanted),
                offset_requests.FETCH_WITH_NAMES,
            )
            return {group_id: rules.committed_offsets(answer)}

        found = (await self._calls.for_groups([group_id], ask, OFFSETS_AGAIN))[group_id]
        if isinstance(found, KafkaError):
            raise found
        return found

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Set the committed offsets of a group that has no members. With members each partition is UNKNOWN_MEMBER_ID.

        Raises:
            KafkaError: the group's coordinator cannot be found.
        """
        positions = {
            place: OffsetAndMetadata(given) if isinstance(given, int) else given for place, given in offsets.items()
        }

        async def attempt(places: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
            node = (await self._calls.coordinators([group_id]))[group_id]
            if isinstance(node, KafkaError):
                return dict.fromkeys(places, node)
            request = offset_requests.commit_request(group_id, {place: positions[place] for place in sorted(places)})
            newest = offset_requests.COMMIT_WITH_NAMES
            answer = await self._calls.send(node.node_id, OffsetCommitRequest, lambda _: request, newest)
            answers = offset_requests.commit_answers(answer)
            return {place: rules.failure(code, f"group {group_id}") for place, code in answers.items()}

        return await self._calls.settle(positions, attempt, OFFSETS_AGAIN)


def _is_missing(answer: object) -> bool:
    return isinstance(answer, KafkaError) and answer.code is ErrorCode.GROUP_ID_NOT_FOUND
