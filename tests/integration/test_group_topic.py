"""The topic of the groups on the wire: only the coordinator writes it, and it can be deleted, created, and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.model import GROUP_METADATA_TOPIC
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support import brokers
from tests.support.brokers import RawClient
from tests.support.written import build_batch

ONE_PARTITION = {"offsets.topic.num.partitions": 1}


def commit(client: RawClient, offset: int, group: str = "g") -> int:
    partition = m.OffsetCommitRequestPartition(0, offset)
    request = m.OffsetCommitRequest(group, topics=[m.OffsetCommitRequestTopic("t", partitions=[partition])])
    return int(client.ask(request, 8).topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str = "g") -> tuple[int, list[int]]:
    answer = client.ask(m.OffsetFetchRequest(group, [m.OffsetFetchRequestTopic("t", [0])]), 7)
    return answer.error_code, [each.committed_offset for topic in answer.topics for each in topic.partitions]


def write(client: RawClient, *records: tuple[bytes, bytes | None], client_id: str = "raw") -> int:
    batch = bytes(build_batch([(1_700_000_000_000, key, value, []) for key, value in records]))
    data = m.TopicProduceData(GROUP_METADATA_TOPIC, ZERO_UUID, [m.PartitionProduceData(0, batch)])
    answer = client.ask(m.ProduceRequest(None, -1, 300_000, [data]), 9, client_id)
    return int(answer.responses[0].partition_responses[0].error_code)


def delete(client: RawClient) -> int:
    request = m.DeleteTopicsRequest([m.DeleteTopicState(GROUP_METADATA_TOPIC)], [], 300_000)
    return int(client.ask(request, 6).responses[0].error_code)


async def on(broker: Broker, story: Any) -> None:
    """Run a story on its own connection."""

    def tell() -> None:
        with RawClient(broker.bootstrap) as client:
            client.ask(m.MetadataRequest([m.MetadataRequestTopic(name="t")]), 9)
            story(client)

    await brokers.in_thread(tell)


async def test_only_kafkas_own_tools_may_write_it(tmp_path: Path) -> None:
    """They are recognized by their client id, which anybody can use; what they write cannot cost the partition its
    groups."""

    def poison(client: RawClient) -> None:
        assert commit(client, 5) == 0
        assert write(client, (b"\0", b"junk")) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert write(client, (b"\0", b"junk"), client_id="__admin_client") == 0
        assert commit(client, 6) == 0

    def look(client: RawClient) -> None:
        assert committed(client) == (0, [6])
        assert commit(client, 7) == 0

    async with brokers.running(tmp_path / "data", ONE_PARTITION) as broker:
        await on(broker, poison)
    async with brokers.running(tmp_path / "data", ONE_PARTITION) as broker:
        await on(broker, look)


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_deleting_it_deletes_the_groups(tmp_path: Path, fsync: str) -> None:
    """As on Kafka, at once and permanently: what is served afterwards is what a restart would find."""

    def story(client: RawClient) -> None:
        assert commit(client, 5) == 0
        with RawClient(broker.bootstrap) as member:
            protocols = [m.JoinGroupRequestProtocol("range", b"")]
            member.send(m.JoinGroupRequest("h", 300_000, 300_000, "", "i", "consumer", protocols), 5)
            member.receive(m.JoinGroupRequest, 5)
            member.send(m.JoinGroupRequest("h", 300_000, 300_000, "", "j", "consumer", protocols), 5)
            while client.ask(m.DescribeGroupsRequest(["h"]), 5).groups[0].group_state != "PreparingRebalance":
                pass
            assert delete(client) == 0
            assert member.receive(m.JoinGroupRequest, 5).error_code == ErrorCode.NOT_COORDINATOR
        assert client.ask(m.HeartbeatRequest("h", 1, "x"), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert committed(client) == (0, [-1])
        assert client.ask(m.ListGroupsRequest(), 4).groups == []
        assert commit(client, 6) == 0
        assert committed(client) == (0, [6])

    def look(client: RawClient) -> None:
        assert committed(client) == (0, [6])

    async with brokers.running(tmp_path / "data", {"fsync": fsync}) as broker:
        await on(broker, story)
    async with brokers.running(tmp_path / "data") as broker:
        await on(broker, look)


async def test_it_may_be_made_by_hand(tmp_path: Path) -> None:
    """With a number of partitions that differs from the settings: groups are looked up there, now and later."""

    def story(client: RawClient) -> None:
        made = client.ask(m.CreateTopicsRequest([m.CreatableTopic(GROUP_METADATA_TOPIC, 3, 1)], 300_000), 7)
        assert made.topics[0].error_code == 0
        for number in range(20):
            assert commit(client, number, f"g{number}") == 0

    def look(client: RawClient) -> None:
        assert [committed(client, f"g{number}") for number in range(20)] == [(0, [number]) for number in range(20)]
        assert delete(client) == 0
        assert commit(client, 1) == 0

    async with brokers.running(tmp_path / "data") as broker:
        await on(broker, story)
    async with brokers.running(tmp_path / "data") as broker:
        await on(broker, look)
        assert broker.topics.partition_count(GROUP_METADATA_TOPIC) == broker.groups.runtime.slot_count == 50
