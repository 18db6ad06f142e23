"""ListOffsets, OffsetCommit and OffsetFetch: requests and responses in all versions, for consumer, admin and Spark.

From v10 on, OffsetCommit and OffsetFetch name topics by id, before that by name. If the metadata does not have a
topic's id, an older version is used: `COMMIT_WITH_NAMES`, `FETCH_WITH_NAMES`.

The sequence that `TopicIds` guards against: a request names a topic by its id; the topic is deleted and created again,
and the metadata learns its new id; the response names the old id, which the metadata can no longer resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.client.core.metadata import ClusterMetadata
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError, error_code
from muster.model import NO_LEADER_EPOCH, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from muster.protocol.primitives import ZERO_UUID

COMMIT_WITH_NAMES = 9
FETCH_WITH_NAMES = 9
_FETCH_WITH_GROUPS = 8
_FETCH_STABLE = 7

Answer = tuple[ErrorCode, OffsetAndMetadata | None]
Listed = OffsetAndTimestamp | KafkaError | None
"""An offset; None if no record is as recent as the requested timestamp."""


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers for each topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


# --- ListOffsets -----------------------------------------------------------------------------------------------------


def list_request(
    timestamps: Mapping[TopicPartition, int],
    isolation_level: int,
    timeout_ms: int,
    leader_epoch: Callable[[TopicPartition], int] = lambda _: NO_LEADER_EPOCH,
    version: int = ListOffsetsRequest.MAX_VERSION,
) -> ListOffsetsRequest:
    """ListOffsets, to the leader of the partitions: for each, the first offset at or after its timestamp.

    A broker that knows another `leader_epoch` of a partition refuses it (KIP-320).

    Raises:
        UnsupportedVersionError: v0, from before Kafka 0.10.1, knows only the times of segments.
    """
    if version == 0 and any(timestamp >= 0 for timestamp in timestamps.values()):
        raise UnsupportedVersionError("looking up offsets by timestamp needs Kafka 0.10.1 or later")
    topics: dict[str, ListOffsetsTopic] = {}
    for partition, timestamp in timestamps.items():
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(partition.topic))
        topic.partitions.append(ListOffsetsPartition(partition.partition, leader_epoch(partition), timestamp))
    return ListOffsetsRequest(-1, isolation_level, list(topics.values()), timeout_ms)


def list_answers(reply: ListOffsetsResponse, asked: Iterable[TopicPartition]) -> dict[TopicPartition, Listed]:
    """What a ListOffsets response says about each requested partition. A partition that it leaves out is an error."""
    found = {
        TopicPartition(topic.name, answer.partition_index): answer
        for topic in reply.topics
        for answer in topic.partitions
    }
    listed: dict[TopicPartition, Listed] = {}
    for partition in asked:
        answer = found.get(partition)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else error_code(answer.error_code)
        if answer is None or code is not ErrorCode.NONE:
            listed[partition] = KafkaError(code, f"the offsets of {partition} could not be looked up")
        else:
            offset = answer.old_style_offsets[0] if answer.old_style_offsets else answer.offset  # v0 lists them
            position = OffsetAndTimestamp(offset, answer.timestamp, answer.leader_epoch)
            listed[partition] = position if offset >= 0 else None
    return listed


# --- OffsetCommit ----------------------------------------------------------------------------------------------------


class TopicIds:
    """The ids of the topics of one request, as they were when it was made."""

    def __init__(self, partitions: Iterable[TopicPartition], metadata: ClusterMetadata | None) -> None:
        self._of = {topic: metadata.topic_id(topic) for topic, _ in partitions} if metadata is not None else {}
        self._names = {topic_id: topic for topic, topic_id in self._of.items()}

    @property
    def complete(self) -> bool:
        """Whether all ids are known."""
        return ZERO_UUID not in self._names

    def id(self, topic: str) -> bytes:
        """The id of a topic; sixteen zero bytes if it is not known."""
        return self._of.get(topic, ZERO_UUID)

    def name(self, name: str, topic_id: bytes) -> str | None:
        """The name of a topic that an answer identifies by name or by id."""
        return name or self._names.get(topic_id)


NO_TOPIC_IDS = TopicIds((), None)
"""For a request that names its topics."""


def commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: TopicIds = NO_TOPIC_IDS,
    *,
    generation_id: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
) -> OffsetCommitRequest:
    """OffsetCommit: by a member in its generation, or without a member, for a group that has none (J7)."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, number), offset in offsets.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OffsetCommitRequestTopic(name, ids.id(name))
        topic.partitions.append(
            OffsetCommitRequestPartition(number, offset.offset, offset.leader_epoch, offset.metadata)
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=list(topics.values()),
    )


def commit_answers(reply: OffsetCommitResponse, ids: TopicIds = NO_TOPIC_IDS) -> dict[TopicPartition, ErrorCode]:
    """What an OffsetCommit response says about each partition."""
    return {
        TopicPartition(name, partition.partition_index): error_code(partition.error_code)
        for topic in reply.topics
        if (name := ids.name(topic.name, topic.topic_id))
        for partition in topic.partitions
    }


# --- OffsetFetch -----------------------------------------------------------------------------------------------------


def fetch_request(
    version: int,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    ids: TopicIds = NO_TOPIC_IDS,
    *,
    require_stable: bool = False,
) -> OffsetFetchRequest:
    """OffsetFetch of one group; `partitions` of None means all.

    With `require_stable`, a broker that supports it answers UNSTABLE_OFFSET_COMMIT for offsets of open transactions
    (KIP-447)."""
    numbers = None if partitions is None else by_topic(partitions)
    stable = require_stable and version >= _FETCH_STABLE
    if version < _FETCH_WITH_GROUPS:
        named = None if numbers is None else [OffsetFetchRequestTopic(name, found) for name, found in numbers.items()]
        return OffsetFetchRequest(group_id=group_id, topics=named, require_stable=stable)
    topics = None
    if numbers is not None:
        topics = [OffsetFetchRequestTopics(name, ids.id(name), found) for name, found in numbers.items()]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    return OffsetFetchRequest(groups=[group], require_stable=stable)


def fetch_all_request(version: int, group_ids: Iterable[str]) -> OffsetFetchRequest:
    """OffsetFetch of all offsets of several groups of one coordinator (KIP-709).

    Raises:
        UnsupportedVersionError: this version takes a single group.
    """
    if version < _FETCH_WITH_GROUPS:
        raise UnsupportedVersionError(f"OffsetFetch version {version} takes a single group")
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=one, topics=None) for one in group_ids])


def fetch_answers(
    reply: OffsetFetchResponse, ids: TopicIds = NO_TOPIC_IDS
) -> tuple[ErrorCode, dict[TopicPartition, Answer]]:
    """What an OffsetFetch response says about the group and each partition."""
    if not reply.groups:
        old = {
            TopicPartition(topic.name, partition.partition_index): _answer(partition)
            for topic in reply.topics
            for partition in topic.partitions
        }
        return error_code(reply.error_code), old
    return group_answers(reply.groups[0], ids)


def group_answers(
    group: OffsetFetchResponseGroup, ids: TopicIds = NO_TOPIC_IDS
) -> tuple[ErrorCode, dict[TopicPartition, Answer]]:
    """What the response says about one group, and about each partition."""
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
