"""ListOffsets, OffsetCommit and OffsetFetch as requests and answers: all callers share one builder and one reader."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.admin.groups import GroupsPart
from muster.client.core.admin.admin import committed_offsets_by_group
from muster.client.core.offset_requests import (
    commit_request,
    fetch_all_request,
    fetch_answers,
    fetch_request,
    list_answers,
    list_request,
)
from muster.errors import ErrorCode, KafkaError, UnsupportedVersionError
from muster.model import Node, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from muster.protocol import messages as m
from muster.protocol.codec import decode, encode

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(m.ListOffsetsRequest.MIN_VERSION, m.ListOffsetsRequest.MAX_VERSION + 1))
def test_one_list_request_fits_every_version(version: int) -> None:
    request = list_request({A0: -1, B0: 5, A1: -2}, 0, 30_000, lambda partition: 3 + partition.partition)
    assert encode(request, version)
    reported = [
        (t.name, p.partition_index, p.current_leader_epoch, p.timestamp) for t in request.topics for p in t.partitions
    ]
    assert reported == [("a", 0, 3, -1), ("a", 1, 4, -2), ("b", 0, 3, 5)]


def test_every_partition_asked_for_has_an_answer() -> None:
    parts = [m.ListOffsetsPartitionResponse(0, 0, 7, 42, 3), m.ListOffsetsPartitionResponse(1, 0, -1, -1, -1)]
    refused = m.ListOffsetsTopicResponse("b", [m.ListOffsetsPartitionResponse(0, int(UNKNOWN))])
    reply = m.ListOffsetsResponse(topics=[m.ListOffsetsTopicResponse("a", parts), refused])
    answers = list_answers(reply, [A0, A1, B0, TopicPartition("b", 9)])
    assert answers[A0] == OffsetAndTimestamp(42, 7, 3)
    assert answers[A1] is None
    codes = [answer.code for answer in answers.values() if isinstance(answer, KafkaError)]
    assert codes == [UNKNOWN, ErrorCode.UNKNOWN_SERVER_ERROR]


def test_a_broker_before_0_10_1_answers_with_a_list_and_looks_up_no_time() -> None:
    request = list_request({A0: -1, A1: -2}, 0, 30_000, version=0)
    assert encode(request, 0) == bytes.fromhex(
        "ffffffff 00000001 0001 61 0000000200000000 ffffffffffffffff 0000000100000001 fffffffffffffffe 00000001"
    )
    answered = bytes.fromhex("00000001 0001 61 00000002 00000000 0000 00000001 000000000000002a 00000001 0000 00000000")
    listed = list_answers(decode(m.ListOffsetsResponse, 0, answered), [A0, A1])
    assert listed == {A0: OffsetAndTimestamp(42, -1, -1), A1: None}
    with pytest.raises(UnsupportedVersionError, match=r"0\.10\.1"):
        list_request({A0: -1, A1: 0}, 0, 30_000, version=0)


@pytest.mark.parametrize(
    ("version", "partitions"),
    [
        (version, partitions)
        for version in range(m.OffsetFetchRequest.MIN_VERSION, 10)
        for partitions in (None, [A0, B0, A1], [])
        if version >= 2 or partitions is not None  # older versions cannot ask for all
    ],
)
def test_a_fetch_request_fits_every_version_with_names(version: int, partitions: list[TopicPartition] | None) -> None:
    request = fetch_request(version, "g", partitions, require_stable=True)
    assert encode(request, version)
    topics = request.groups[0].topics if version >= 8 else request.topics
    reported = None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]
    assert reported == (None if partitions is None else [("a", [0, 1]), ("b", [0])][: len(partitions)])
    assert request.require_stable is (version >= 7)
    assert not fetch_request(version, "g", partitions).require_stable


def test_both_shapes_of_a_fetch_response_say_the_same() -> None:
    parts = [(0, 5, 2, "note", 0), (1, -1, -1, None, 0), (2, -1, -1, "", int(UNKNOWN))]
    old = [m.OffsetFetchResponseTopic("a", [m.OffsetFetchResponsePartition(*part) for part in parts])]
    new = [m.OffsetFetchResponseTopics("a", partitions=[m.OffsetFetchResponsePartitions(*part) for part in parts])]
    reported = {
        A0: (ErrorCode.NONE, OffsetAndMetadata(5, 2, "note")),
        A1: (ErrorCode.NONE, None),
        TopicPartition("a", 2): (UNKNOWN, None),
    }
    code = ErrorCode.NOT_COORDINATOR
    assert fetch_answers(m.OffsetFetchResponse(topics=old, error_code=int(code))) == (code, reported)
    group = m.OffsetFetchResponseGroup("g", new, int(code))
    assert fetch_answers(m.OffsetFetchResponse(groups=[group])) == (code, reported)


@pytest.mark.parametrize("version", range(m.OffsetFetchRequest.MIN_VERSION, 10))
def test_all_offsets_of_several_groups_are_asked_for_at_once(version: int) -> None:
    """Since Kafka 3.0 (KIP-709)."""
    if version < 8:
        with pytest.raises(UnsupportedVersionError, match="takes a single group"):
            fetch_all_request(version, ["g", "h"])
        return
    sent = decode(m.OffsetFetchRequest, version, encode(fetch_all_request(version, ["g", "h"]), version))
    assert [(group.group_id, group.topics) for group in sent.groups] == [("g", None), ("h", None)]


def test_what_is_said_of_several_groups() -> None:
    parts = [m.OffsetFetchResponsePartitions(0, 5, 2, "", 0), m.OffsetFetchResponsePartitions(1, -1, -1, None, 0)]
    groups = [
        m.OffsetFetchResponseGroup("g", [m.OffsetFetchResponseTopics("a", partitions=parts)]),
        m.OffsetFetchResponseGroup("h", [], int(ErrorCode.GROUP_AUTHORIZATION_FAILED)),
        m.OffsetFetchResponseGroup("i", []),
    ]
    reported = committed_offsets_by_group(m.OffsetFetchResponse(groups=groups))
    refused = reported.pop("h")
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert reported == {"g": {A0: OffsetAndMetadata(5, 2, "")}, "i": {}}


class _OneBroker:
    """An admin client's calls to one broker that supports OffsetFetch up to a version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.asked: list[Any] = []

    async def of_coordinators(self, group_ids: Any, ask: Any, _again: Any) -> Any:
        return await ask(Node(1, "h", 1), list(group_ids))

    async def send(self, _node: int, _kind: Any, build: Any, newest: int) -> m.OffsetFetchResponse:
        request = build(min(self.version, newest))
        self.asked.append(request)
        part = m.OffsetFetchResponsePartition(0, 5)
        old = [m.OffsetFetchResponseTopic("a", [part])]
        new = [m.OffsetFetchResponseTopics("a", partitions=[m.OffsetFetchResponsePartitions(0, 5)])]
        groups = [m.OffsetFetchResponseGroup(group.group_id, new) for group in request.groups]
        return m.OffsetFetchResponse(groups=groups) if groups else m.OffsetFetchResponse(topics=old)


@pytest.mark.parametrize(("version", "requests"), [(10, 3), (8, 3), (7, 250)])
async def test_a_hundred_groups_are_one_request_where_the_broker_can(version: int, requests: int) -> None:
    part, broker = GroupsPart(), _OneBroker(version)
    part._calls = broker  # type: ignore[assignment]
    names = [f"g{number}" for number in range(250)]
    found = await part.list_offsets_of_consumer_groups(names)
    assert found == {key: {A0: OffsetAndMetadata(5)} for key in names}
    assert len(broker.asked) == requests


@pytest.mark.parametrize("version", range(m.OffsetCommitRequest.MIN_VERSION, 10))
def test_a_commit_of_nobody_fits_every_version_with_names(version: int) -> None:
    request = commit_request("g", {A0: OffsetAndMetadata(5, 2, "note"), B0: OffsetAndMetadata(6)})
    assert encode(request, version)
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (-1, "", None)
