"""Topics: create, delete, list and describe them, and add partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from muster.client.admin.part import AdminPart, checked
from muster.client.core.admin import admin as rules
from muster.client.core.admin import partitions as admin_partitions
from muster.client.core.admin.admin import CreatedTopic, NewTopic, TopicDescription, TopicListing
from muster.client.core.admin.partitions import NewPartitions
from muster.client.core.refusals import TOPICS_RETRIABLE
from muster.errors import ErrorCode, KafkaError
from muster.protocol.admin_messages import CreatePartitionsRequest
from muster.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState, MetadataResponse


class TopicsPart(AdminPart):
    """The methods of `AsyncAdmin` for topics."""

    @overload
    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: Literal[True] = True
    ) -> dict[str, CreatedTopic]: ...

    @overload
    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: Literal[False]
    ) -> dict[str, CreatedTopic | KafkaError]: ...

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[str, Any]:
        """Create topics; a plain name gets the broker's default partitions and replication factor. `validate_only` only
        checks.

        Raises:
            UnsupportedVersionError: brokers before Kafka 2.4 have no such defaults.
        """
        wanted = {new.name: new for new in (NewTopic(t) if isinstance(t, str) else t for t in topics)}

        async def attempt(names: list[str]) -> dict[str, CreatedTopic | KafkaError]:
            topics = [rules.creatable_topic(wanted[name]) for name in names]

            def build(version: int) -> CreateTopicsRequest:
                rules.check_counts_are_set(topics, version)
                timeout_ms = self._config.request_timeout_ms
                return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)

            answer = await self._calls.send(await self._calls.controller(), CreateTopicsRequest, build)
            return {result.name: rules.created_topic(result) for result in answer.topics}

        return checked(await self._calls.settle(wanted, attempt, TOPICS_RETRIABLE), raise_errors)

    async def delete_topics(self, names: Iterable[str], *, raise_errors: bool = True) -> dict[str, KafkaError | None]:
        """Delete topics with all their records."""

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

        return checked(await self._calls.settle(names, attempt, TOPICS_RETRIABLE), raise_errors)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """The topics of the cluster, by name."""
        answer = await self._calls.describe(None)
        found = [TopicListing(t.name or "", t.topic_id, t.is_internal) for t in answer.topics]
        return sorted((t for t in found if include_internal or not t.is_internal), key=lambda t: t.name)

    @overload
    async def describe_topics(
        self, names: Iterable[str], *, raise_errors: Literal[True] = True
    ) -> dict[str, TopicDescription]: ...

    @overload
    async def describe_topics(
        self, names: Iterable[str], *, raise_errors: Literal[False]
    ) -> dict[str, TopicDescription | KafkaError]: ...

    async def describe_topics(self, names: Iterable[str], *, raise_errors: bool = True) -> dict[str, Any]:
        """Partitions, leaders and replicas of topics. The error for a topic that does not exist is
        UNKNOWN_TOPIC_OR_PARTITION."""
        wanted = list(dict.fromkeys(names))
        answer = await self._calls.describe(wanted) if wanted else MetadataResponse()
        found = {topic.name or "": rules.topic_description(topic) for topic in answer.topics}
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return checked({name: found.get(name) or KafkaError(missing, f"topic {name}") for name in wanted}, raise_errors)

    async def create_partitions(
        self, topics: Mapping[str, NewPartitions | int], *, validate_only: bool = False, raise_errors: bool = True
    ) -> dict[str, KafkaError | None]:
        """Add partitions to topics; the number is the new total. Subscribed groups rebalance, and records with the same
        key may go to a different partition than before. `validate_only` only checks.
        """
        wanted = {topic: admin_partitions.new_partitions(topic, number) for topic, number in topics.items()}

        async def attempt(names: list[str]) -> dict[str, KafkaError | None]:
            request = CreatePartitionsRequest(
                [wanted[name] for name in names], self._config.request_timeout_ms, validate_only
            )
            answer = await self._calls.ask(await self._calls.controller(), request)
            return {result.name: rules.failure(result.error_code, result.error_message) for result in answer.results}

        return checked(await self._calls.settle(wanted, attempt, TOPICS_RETRIABLE), raise_errors)
