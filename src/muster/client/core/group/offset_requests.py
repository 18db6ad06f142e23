"""OffsetCommit and OffsetFetch as requests and answers, whatever their version.

From v10 on both speak of topics by id, before by name. The id of a topic that the metadata does not have is not known
here: then an older version is used, which `COMMIT_WITH_NAMES` and `FETCH_WITH_NAMES` name.

The sequence that `TopicIds` guards against: a request names a topic by its id; the topic is deleted and made anew, and
the metadata learns its new id; the answer names the old one, which nobody else could resolve any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.client.core.group.member_state import Generation
from muster.client.core.metadata import ClusterMetadata
from muster.errors import ErrorCode, error_code
from muster.model import OffsetAndMetadata, TopicPartition
from muster.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from muster.protocol.primitives import ZERO_UUID

COMMIT_WITH_NAMES = 9
FETCH_WITH_NAMES = 9
_FETCH_WITH_GROUPS = 8
_FETCH_STABLE = 7

Answer = tuple[ErrorCode, OffsetAndMetadata | None]


class TopicIds:
    """The ids of the topics of one request, as they were when it was made."""

    def __init__(self, partitions: Iterable[TopicPartition], metadata: ClusterMetadata | None) -> None:
        self.of = {topic: metadata.topic_id(topic) for topic, _ in partitions} if metadata is not None else {}
        self._names = {topic_id: topic for topic, topic_id in self.of.items()}

    @property
    def complete(self) -> bool:
        """Whether all of them are known."""
        return ZERO_UUID not in self._names

    def name(self, name: str, topic_id: bytes) -> str | None:
        """The name of a topic that an answer speaks of, by name or by id."""
        return name or self._names.get(topic_id)


NO_TOPIC_IDS = TopicIds((), None)


def commit_request(
    group_id: str,
    generation: Generation,
    group_instance_id: str | None,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: TopicIds,
) -> OffsetCommitRequest:
    """OffsetCommit."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, number), offset in offsets.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OffsetCommitRequestTopic(name, ids.of[name])
        topic.partitions.append(
            OffsetCommitRequestPartition(number, offset.offset, offset.leader_epoch, offset.metadata)
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=group_instance_id,
        topics=list(topics.values()),
    )


def commit_answers(reply: OffsetCommitResponse, ids: TopicIds) -> dict[TopicPartition, ErrorCode]:
    """What an OffsetCommit response says of each partition."""
    return {
        TopicPartition(name, partition.partition_index): error_code(partition.error_code)
        for topic in reply.topics
        if (name := ids.name(topic.name, topic.topic_id))
        for partition in topic.partitions
    }


def fetch_request(
    group_id: str, partitions: Iterable[TopicPartition], ids: TopicIds, version: int
) -> OffsetFetchRequest:
    """OffsetFetch. Offsets of open transactions are waited for where the broker can tell (KIP-447)."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    stable = version >= _FETCH_STABLE
    if version < _FETCH_WITH_GROUPS:
        named = [OffsetFetchRequestTopic(name, found) for name, found in numbers.items()]
        return OffsetFetchRequest(group_id=group_id, topics=named, require_stable=stable)
    topics = [OffsetFetchRequestTopics(name, ids.of[name], found) for name, found in numbers.items()]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    return OffsetFetchRequest(groups=[group], require_stable=stable)


def fetch_answers(reply: OffsetFetchResponse, ids: TopicIds) -> tuple[ErrorCode, dict[TopicPartition, Answer]]:
    """What an OffsetFetch response says: of the group, and of each partition."""
    if not reply.groups:
        old = {
            TopicPartition(topic.name, partition.partition_index): _answer(partition)
            for topic in reply.topics
            for partition in topic.partitions
        }
        return error_code(reply.error_code), old
    group = reply.groups[0]
    answers = {
        TopicPartition(name, partition.partition_index): _answer(partition)
        for topic in group.topics
        if (name := ids.name(topic.name, topic.topic_id))
        for partition in topic.partitions
    }
    return error_code(group.error_code), answers


def _answer(partition: OffsetFetchResponsePartition | OffsetFetchResponsePartitions) -> Answer:
    code = error_code(partition.error_code)
    if code is not ErrorCode.NONE or partition.committed_offset < 0:
        return code, None
    found = OffsetAndMetadata(partition.committed_offset, partition.committed_leader_epoch, partition.metadata or "")
    return code, found
