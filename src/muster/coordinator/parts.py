"""Requests about several groups: each part waits for its shard's log; the answer combines all parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.coordinator.shards.served_shard import Answer
from muster.errors import ErrorCode
from muster.protocol.messages import (
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


class Gather:
    """Collects the parts of an answer and passes them on once all have arrived. Each may wait for a different shard's
    log."""

    __slots__ = ("_done", "_missing", "_parts")

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._parts: list[Any] = [None] * count
        self._missing = count
        self._done = done
        if not count:
            done([])

    def part(self, index: int) -> Answer:
        """The callback for the answer to one part."""

        def take(answer: Any) -> None:
            self._parts[index] = answer
            self._missing -= 1
            if not self._missing:
                self._done(self._parts)

        return take


def listed(parts: list[ListGroupsResponse]) -> ListGroupsResponse:
    """The answer to a ListGroups. A shard that has moved to another coordinator adds no groups; any other error becomes
    the answer."""
    for part in parts:
        if part.error_code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
            return part
    return ListGroupsResponse(groups=[group for part in parts for group in part.groups])


def fetched_groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """The groups that an OffsetFetch asks about. Before version 8 there is one, named in the request itself."""
    if version >= 8:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [OffsetFetchRequestTopics(t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    return [OffsetFetchRequestGroup(request.group_id, topics=topics)]


def fetched(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    """The answer to an OffsetFetch. Since version 2 a group that failed has no partitions; in version 1 the partitions
    are the only place for the error."""
    for group in groups:
        if group.error_code and version >= 2:
            group.topics = []
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code
                )
                for p in topic.partitions
            ],
        )
        for topic in groups[0].topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=groups[0].error_code)
