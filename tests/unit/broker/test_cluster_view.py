"""What a standalone broker reports about its cluster, as its handlers return it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support.brokers import running
from tests.support.held_disk import Asked

EPOCHS = {-1: 0, 0: 0, 1: ErrorCode.UNKNOWN_LEADER_EPOCH, 2**31 - 1: ErrorCode.UNKNOWN_LEADER_EPOCH}
"""A consumer's epoch, and the error that it gets: it knows of a newer leader than this broker."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "data") as found:
        found.changes.create_topic("t", 2, {})
        yield found


@pytest.mark.parametrize(("epoch", "error"), EPOCHS.items())
async def test_a_request_under_another_epoch_is_refused(broker: Broker, epoch: int, error: int) -> None:
    read = m.FetchPartition(0, epoch, 0, partition_max_bytes=100)
    fetch = m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=100, topics=[m.FetchTopic("t", partitions=[read])])
    looked_up = m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(0, epoch, -1)])])
    for topics in (
        (await Asked(broker, fetch, 12).answered()).responses,
        (await Asked(broker, looked_up, 7).answered()).topics,
    ):
        assert [partition.error_code for topic in topics for partition in topic.partitions] == [error]


async def test_the_one_broker_leads_every_partition_and_is_its_only_replica(broker: Broker) -> None:
    answer = await Asked(broker, m.MetadataRequest([m.MetadataRequestTopic(name="t")]), 12).answered()
    (topic,) = answer.topics
    found = [(p.partition_index, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in topic.partitions]
    assert found == [(index, 1, 0, [1], [1]) for index in (0, 1)]
    assert ([node.node_id for node in answer.brokers], answer.controller_id) == ([1], 1)


@pytest.mark.parametrize(("node", "error"), {0: 39, 1: 0, 2: 39}.items())
async def test_a_topic_can_be_given_to_this_broker_only(broker: Broker, node: int, error: int) -> None:
    assert error in (0, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    topic = m.CreatableTopic("new", -1, -1, [m.CreatableReplicaAssignment(0, [node])])
    answer = await Asked(broker, m.CreateTopicsRequest([topic], 20_000), 7).answered()
    assert [found.error_code for found in answer.topics] == [error]
