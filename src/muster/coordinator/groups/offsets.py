"""The committed offsets of all groups of a shard: commit, fetch, expire, delete.

A commit is one record per partition, and is stored by applying them. An offset belongs to a group id, not to a member,
so it outlives the members, and a group id may have offsets without ever having had members (a "simple consumer", J7,
whose partitions are assigned manually and which commits with generation -1).

An offset expires `offsets.retention.minutes` after (KIP-211)
  - the group became empty, if it once had members;
  - its own commit, if the group never had any, or is stable and no longer reads the topic.
It never expires while the group reads its topic, or during a rebalance. A commit of version 2 to 4 may carry a
retention time of its own, which then counts instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muster.coordinator.groups.config import GroupConfig
from muster.coordinator.groups.kinds import AnyGroup
from muster.coordinator.groups.topics import TopicResolver
from muster.coordinator.shards.clocks import NEVER, NO_TIMESTAMP
from muster.errors import NONE, ErrorCode
from muster.protocol.admin_messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from muster.protocol.group_records import CommittedOffset, OffsetCommitRecord, OffsetCommits
from muster.protocol.messages import (
    OffsetCommitKey,
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetCommitValue,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from muster.protocol.primitives import ZERO_UUID
from muster.protocol.transaction_messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

NO_OFFSET = -1
DEFAULT_RETENTION = -1
TOPIC_IDS_SINCE = 10
"""From this version on, OffsetCommit and OffsetFetch identify topics by id."""

GroupOffsets = dict[str, dict[int, CommittedOffset]]


@dataclass(slots=True)
class Granted:
    """Stands for the answer to a plain commit without errors. The caller has already built the answer itself."""

    topic: str
    topic_id: bytes
    partitions: Sequence[int]


class OffsetStore:
    """Committed offsets by group, topic and partition."""

    __slots__ = ("by_group",)

    def __init__(self) -> None:
        self.by_group: dict[str, GroupOffsets] = {}

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply a record; a value of None removes the offset."""
        if value is not None:
            times = (value.commit_timestamp, value.expire_timestamp)
            committed = (value.offset, value.leader_epoch, value.metadata, *times, value.topic_id)
            self.commit(OffsetCommits(key.group, key.topic, [(key.partition, committed)]))
            return
        topics = self.by_group.get(key.group, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self.by_group.pop(key.group, None)

    def commit(self, commits: OffsetCommits) -> None:
        """Apply the commits of one request."""
        topics = self.by_group.get(commits.group)
        if topics is None:
            topics = self.by_group[commits.group] = {}
        partitions = topics.get(commits.topic)
        if partitions is None:
            partitions = topics[commits.topic] = {}
        partitions.update(commits.values)

    def of_group(self, group_id: str) -> GroupOffsets:
        return self.by_group.get(group_id, {})

    def __iter__(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        for group_id, topics in self.by_group.items():
            for topic, partitions in topics.items():
                for partition, value in partitions.items():
                    yield group_id, topic, partition, value


# ------------------------------------------------------------------------------------------------------------- commit


def commit(
    request: OffsetCommitRequest, error: ErrorCode, config: GroupConfig, topics: TopicResolver, version: int, now: int
) -> tuple[OffsetCommitResponse, list[OffsetCommits]]:
    """The answer and records of a commit; `error` is the group's own error for it.

    A nonexistent partition gets its own error first: Kafka's broker drops it before it asks the coordinator.
    """
    records: list[OffsetCommits] = []
    # The largest retention time means forever: a record cannot hold a later time.
    retention = request.retention_time_ms
    expires = NO_TIMESTAMP if retention == DEFAULT_RETENTION else now + min(retention, NEVER - now)
    answers: list[OffsetCommitResponseTopic] = []
    longest_metadata = config.offset_metadata_max_bytes
    for topic in request.topics:
        topic_id = topic.topic_id
        name = _resolve(topic, topics, version)
        count = topics.partition_count(name) if name else 0
        if count and not topic.partitions:
            continue  # as in Kafka, which does answer for a nonexistent topic
        by_id = version >= TOPIC_IDS_SINCE and not name
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partitions: list[OffsetCommitResponsePartition] = []
        values: list[tuple[int, CommittedOffset]] = []
        for each in topic.partitions:
            index, metadata = each.partition_index, each.committed_metadata or ""
            code = _refusal(index, metadata, count, missing, error, longest_metadata)
            if code is NONE:
                value = (each.committed_offset, each.committed_leader_epoch, metadata, now, expires, topic_id)
                values.append((index, value))
            partitions.append(OffsetCommitResponsePartition(index, code))
        answers.append(OffsetCommitResponseTopic(name, topic_id, partitions))
        if values:
            records.append(OffsetCommits(request.group_id, name, values))
    return OffsetCommitResponse(0, answers), records


def transactional_commit(
    request: TxnOffsetCommitRequest, error: ErrorCode, config: GroupConfig, topics: TopicResolver, now: int
) -> tuple[TxnOffsetCommitResponse, list[OffsetCommits]]:
    """The answer and records of a commit in a transaction; `error` is the group's or the transaction's own error for
    it. As in `commit`, a nonexistent partition gets its own error first."""
    records: list[OffsetCommits] = []
    answers: list[TxnOffsetCommitResponseTopic] = []
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in request.topics:
        count = topics.partition_count(topic.name)
        partitions: list[TxnOffsetCommitResponsePartition] = []
        values: list[tuple[int, CommittedOffset]] = []
        for each in topic.partitions:
            index, metadata = each.partition_index, each.committed_metadata or ""
            code = _refusal(index, metadata, count, missing, error, config.offset_metadata_max_bytes)
            if code is NONE:
                value = (each.committed_offset, each.committed_leader_epoch, metadata, now, NO_TIMESTAMP, ZERO_UUID)
                values.append((index, value))
            partitions.append(TxnOffsetCommitResponsePartition(index, code))
        if partitions:
            answers.append(TxnOffsetCommitResponseTopic(topic.name, partitions))
        if values:
            records.append(OffsetCommits(request.group_id, topic.name, values))
    return TxnOffsetCommitResponse(0, answers), records


def _refusal(
    index: int, metadata: str, count: int, missing: ErrorCode, error: ErrorCode, longest_metadata: int
) -> ErrorCode:
    """The error for a partition's commit, or NONE."""
    if not 0 <= index < count:
        return missing
    if error is NONE and len(metadata) > longest_metadata:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return error


def plain_commit(
    request: OffsetCommitRequest,
    error: ErrorCode,
    config: GroupConfig,
    topics: TopicResolver,
    version: int,
    now: int,
    partitions: Sequence[int],
    committed: Sequence[int],
    leader_epochs: Sequence[int],
) -> OffsetCommits | None:
    """The records of a commit for partitions of one topic without metadata. None if any part is refused: `commit` then
    returns the errors. The request has the topic without its partitions."""
    topic = request.topics[0]
    topic_id = topic.topic_id
    name = _resolve(topic, topics, version)
    count = topics.partition_count(name) if name else 0
    if request.retention_time_ms != DEFAULT_RETENTION:
        return None
    longest, missing = config.offset_metadata_max_bytes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for index in (min(partitions), max(partitions)) if len(partitions) > 1 else partitions:
        if _refusal(index, "", count, missing, error, longest) is not NONE:
            return None
    return OffsetCommits(
        request.group_id,
        name,
        [
            (index, (offset, epoch, "", now, NO_TIMESTAMP, topic_id))
            for index, offset, epoch in zip(partitions, committed, leader_epochs, strict=True)
        ],
    )


def _resolve(topic: OffsetCommitRequestTopic | OffsetFetchRequestTopics, topics: TopicResolver, version: int) -> str:
    """The topic's name; "" for an unknown id."""
    if version < TOPIC_IDS_SINCE:
        return topic.name
    return topics.topic_name(topic.topic_id) or ""


# -------------------------------------------------------------------------------------------------------------- fetch


OpenPartitions = Mapping[str, Collection[int]]
"""Partitions whose offsets are part of a transaction that is still open, by topic."""


def fetch(
    offsets: GroupOffsets,
    request: OffsetFetchRequestGroup,
    topics: TopicResolver,
    version: int,
    unstable: OpenPartitions | None = None,
) -> OffsetFetchResponseGroup:
    """A group's committed offsets, for the requested partitions or for all; an error for those that are `unstable`."""
    if request.topics is None:
        answers = [
            OffsetFetchResponseTopics(
                name,
                topics.topic_id(name),
                [_fetched(p, v, unstable.get(name, ()) if unstable else ()) for p, v in partitions.items()],
            )
            for name, partitions in offsets.items()
        ]
        if version >= TOPIC_IDS_SINCE:
            # A deleted topic has no id for the answer.
            answers = [each for each in answers if each.topic_id != ZERO_UUID]
        return OffsetFetchResponseGroup(request.group_id, answers)
    return OffsetFetchResponseGroup(
        request.group_id, [_fetch_topic(offsets, topic, topics, version, unstable) for topic in request.topics]
    )


def _fetch_topic(
    offsets: GroupOffsets,
    topic: OffsetFetchRequestTopics,
    topics: TopicResolver,
    version: int,
    unstable: OpenPartitions | None,
) -> OffsetFetchResponseTopics:
    name = _resolve(topic, topics, version)
    if not name and version >= TOPIC_IDS_SINCE:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        partitions = [OffsetFetchResponsePartitions(p, NO_OFFSET, error_code=unknown) for p in topic.partition_indexes]
        return OffsetFetchResponseTopics(name, topic.topic_id, partitions)
    committed, partitions = offsets.get(name, {}), []
    unstable_here: Collection[int] = unstable.get(name, ()) if unstable else ()
    for index in topic.partition_indexes:
        value = committed.get(index)
        if value is not None and is_of_another_topic(value, topic.topic_id):
            value = None
        partitions.append(_fetched(index, value, unstable_here))
    return OffsetFetchResponseTopics(name, topic.topic_id, partitions)


def is_of_another_topic(value: CommittedOffset, topic_id: bytes) -> bool:
    """Whether the topic was deleted, and created again under the same name, since the commit."""
    committed_for = value[-1]
    return ZERO_UUID not in (committed_for, topic_id) and committed_for != topic_id


def _fetched(index: int, value: CommittedOffset | None, unstable: Collection[int]) -> OffsetFetchResponsePartitions:
    if index in unstable:
        return OffsetFetchResponsePartitions(index, NO_OFFSET, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if value is None:
        return OffsetFetchResponsePartitions(index, NO_OFFSET)
    offset, leader_epoch, metadata, *_ = value
    return OffsetFetchResponsePartitions(index, offset, leader_epoch, metadata)


# --------------------------------------------------------------------------------------------------- expiry, deletion


def tombstone(group_id: str, topic: str, partition: int) -> OffsetCommitRecord:
    return OffsetCommitRecord(OffsetCommitKey(group_id, topic, partition), None)


def delete(
    request: OffsetDeleteRequest,
    group: AnyGroup,
    committed: GroupOffsets,
    pending: OpenPartitions,
    topics: TopicResolver,
) -> tuple[OffsetDeleteResponse, list[OffsetCommitRecord]]:
    """The answer and records of an OffsetDelete. Offsets of subscribed topics stay; deleting a missing offset is not an
    error.

    A nonexistent partition gets its own error first: Kafka's broker drops it before it asks the coordinator.
    """
    response = OffsetDeleteResponse()
    doomed: dict[tuple[str, int], OffsetCommitRecord] = {}
    for topic in request.topics:
        name, answer = topic.name, OffsetDeleteResponseTopic(topic.name)
        count, read = topics.partition_count(name), group.is_subscribed_to(name)
        if count and not topic.partitions:
            continue
        response.topics.append(answer)
        for each in topic.partitions:
            index, code = each.partition_index, ErrorCode.NONE
            if not 0 <= index < count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif read:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif index in committed.get(name, ()) or index in pending.get(name, ()):
                doomed[name, index] = tombstone(group.group_id, name, index)
            answer.partitions.append(OffsetDeleteResponsePartition(index, code))
    return response, list(doomed.values())


def expired(
    group: AnyGroup, offsets: GroupOffsets, pending: OpenPartitions, retention_ms: int, now: int
) -> tuple[list[OffsetCommitRecord], bool]:
    """Tombstones for the expired offsets, and whether no offsets are left then, not even in open transactions."""
    if not group.may_expire:
        return [], not offsets and not pending
    emptied_at = group.emptied_at
    tombstones: list[OffsetCommitRecord] = []
    left = bool(pending)
    for topic, partitions in offsets.items():
        open_here = pending.get(topic, ())
        for partition, value in partitions.items():
            if (
                not group.is_subscribed_to(topic)
                and partition not in open_here
                and _is_expired(value, emptied_at, retention_ms, now)
            ):
                tombstones.append(tombstone(group.group_id, topic, partition))
            else:
                left = True
    return tombstones, not left


def _is_expired(value: CommittedOffset, emptied_at: int | None, retention_ms: int, now: int) -> bool:
    _, _, _, commit_timestamp, expire_timestamp, _ = value
    if expire_timestamp != NO_TIMESTAMP:
        return now >= expire_timestamp
    return now - (commit_timestamp if emptied_at is None else emptied_at) >= retention_ms
