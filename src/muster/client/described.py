"""The user's own questions about topics: asked apart from the metadata that a consumer keeps for itself."""

from __future__ import annotations

from collections.abc import Iterable

from muster.model import Node, PartitionInfo
from muster.protocol.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse

_FIRST_WITHOUT_CREATION = 4


def metadata_request(topics: Iterable[str] | None, may_create: bool, version: int) -> MetadataRequest:
    """Metadata of these topics, of all for None. Before v4 a topic that is asked for is always created."""
    named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    if named is None and version == 0:
        named = []
    allow = may_create if version >= _FIRST_WITHOUT_CREATION else True
    return MetadataRequest(topics=named, allow_auto_topic_creation=allow)


def partition_infos(reply: MetadataResponse) -> dict[str, list[PartitionInfo]]:
    """The topics of an answer that has no error for them."""
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
