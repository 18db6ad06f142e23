"""Topics and partitions that the user asks for: requested separately from the metadata that a consumer keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from muster.client.config import ConsumerConfig
from muster.client.core.refusals import should_retry_query
from muster.client.core.sends import LEAST_LOADED, Failure, Send
from muster.client.net.driver import Driver
from muster.errors import KafkaError, KafkaTimeoutError, error_code
from muster.model import Node, PartitionInfo
from muster.protocol.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse

_FIRST_WITHOUT_CREATION = 4


def metadata_request(topics: Iterable[str] | None, may_create: bool, version: int) -> MetadataRequest:
    """Metadata of these topics; None means all. Before v4 the broker always creates a requested topic."""
    named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    if named is None and version == 0:
        named = []
    allow = may_create if version >= _FIRST_WITHOUT_CREATION else True
    return MetadataRequest(topics=named, allow_auto_topic_creation=allow)


def partition_infos(reply: MetadataResponse) -> dict[str, list[PartitionInfo]]:
    """The topics of a response without errors for them."""
    nodes = {broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in reply.brokers}
    return {
        topic.name: [
            PartitionInfo(
                topic.name,
                found.partition_index,
                nodes.get(found.leader_id),
                tuple(found.replica_nodes),
                tuple(found.isr_nodes),
            )
            for found in sorted(topic.partitions, key=lambda found: found.partition_index)
        ]
        for topic in reply.topics
        if topic.name is not None and not topic.error_code
    }


async def describe(
    driver: Driver, config: ConsumerConfig, topics: list[str] | None, until: int
) -> dict[str, list[PartitionInfo]]:
    """The partitions of topics, of all for None; retried until `until` while that may help.

    Raises:
        KafkaError: the topic does not exist, or this client is not authorized to see it.
        KafkaTimeoutError: there was no answer in time.
    """
    why = "no broker answered"
    while True:
        reply = await _ask(driver, config, topics, until)
        if isinstance(reply, Failure):
            why = str(reply.error())
        if isinstance(reply, MetadataResponse):
            codes = [error_code(topic.error_code) for topic in reply.topics if topic.error_code and topics]
            if not codes:
                return partition_infos(reply)
            if not should_retry_query(codes[0]):
                raise KafkaError(codes[0], f"topic {topics}")
            why = f"{codes[0].name}: topic {topics}"
        if driver.now() + config.retry_backoff_ms >= until:
            raise KafkaTimeoutError(f"the cluster did not describe its topics in time: {why}")
        await asyncio.sleep(config.retry_backoff_ms / 1000)


async def _ask(
    driver: Driver, config: ConsumerConfig, topics: list[str] | None, until: int
) -> MetadataResponse | Failure | None:
    """One request; None without an answer in time."""
    outcome: asyncio.Future[MetadataResponse | Failure] = asyncio.get_running_loop().create_future()

    def on_reply(reply: MetadataResponse | Failure, now: int) -> None:
        if not outcome.done():
            outcome.set_result(reply)

    build = partial(metadata_request, topics, config.allow_auto_create_topics)
    driver.dispatch([Send(LEAST_LOADED, MetadataRequest, build, on_reply)])
    try:
        async with asyncio.timeout(max(0, until - driver.now()) / 1000):
            reply = await outcome
    except TimeoutError:
        return None
    if isinstance(reply, Failure) and not reply.retriable:
        raise reply.error()
    return reply
