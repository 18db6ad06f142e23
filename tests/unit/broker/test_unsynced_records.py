"""fsync=always: nothing is acknowledged or shown before it is durable, and every request is answered whatever happens.

Each test delays the sync of the disk, or makes it fail; with a disk that behaves, no such bug shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support import brokers
from tests.support.held_disk import Asked, HeldDisk, disk
from tests.support.written import build_batch

__all__ = ["disk"]

NOW = 1_700_000_000_000


@pytest.fixture
async def broker(tmp_path: Path, disk: HeldDisk) -> AsyncIterator[Broker]:
    """A broker with two topics of one partition, on a disk whose syncs are held."""
    async with brokers.running(tmp_path / "data", {"fsync": "always"}) as found:
        found.changes.create_topic("t", 1, {})
        found.changes.create_topic("u", 1, {})
        disk.hold()
        yield found
        disk.release()


def batch(sequence: int = -1) -> bytes:
    producer: dict[str, Any] = (
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence} if sequence >= 0 else {}
    )
    return bytes(build_batch([(NOW, b"k", b"v", [])], **producer))


def produce(broker: Broker, topic: str = "t", acks: int = -1, sequence: int = -1) -> Asked:
    data = m.TopicProduceData(topic, ZERO_UUID, [m.PartitionProduceData(0, batch(sequence))])
    return Asked(broker, m.ProduceRequest(None, acks, 30_000, [data]), 9)


def fetch(broker: Broker, offset: int = 0, max_wait_ms: int = 0, topic: str = "t") -> Asked:
    topics = [m.FetchTopic(topic, partitions=[m.FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)])]
    return Asked(broker, m.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics), 11)


def latest(broker: Broker) -> int:
    asked = m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(0, -1, -1)])])
    return int(Asked(broker, asked, 5).answer.topics[0].partitions[0].offset)


def written(asked: Any) -> tuple[int, int]:
    [result] = asked.responses[0].partition_responses
    return result.error_code, result.base_offset


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_produce_is_acknowledged_after_its_sync(broker: Broker, disk: HeldDisk, acks: int) -> None:
    asked = produce(broker, acks=acks)
    assert asked.answer is None
    disk.release()
    assert written(await asked.answered()) == (0, 0)


async def test_a_batch_sent_twice_is_acknowledged_when_its_first_copy_is_durable(
    broker: Broker, disk: HeldDisk
) -> None:
    first, again = produce(broker, sequence=0), produce(broker, sequence=0)
    assert (first.answer, again.answer) == (None, None)
    disk.release()
    assert written(await first.answered()) == written(await again.answered()) == (0, 0)


async def test_a_sync_that_fails_acknowledges_nothing(broker: Broker, disk: HeldDisk) -> None:
    first, again = produce(broker, sequence=0), produce(broker, sequence=0)
    disk.fail()
    failed = ErrorCode.KAFKA_STORAGE_ERROR, -1
    assert (written(await first.answered()), written(await again.answered())) == (failed, failed)
    assert fetch(broker).answer.responses[0].partitions[0].high_watermark == 0
    assert latest(broker) == 0


async def test_what_is_not_durable_is_not_shown(broker: Broker, disk: HeldDisk) -> None:
    asked = produce(broker)
    [shown] = fetch(broker).answer.responses[0].partitions
    assert (shown.high_watermark, shown.last_stable_offset, bytes(shown.records)) == (0, 0, b"")
    assert latest(broker) == 0
    disk.release()
    await asked.answered()
    [shown] = fetch(broker).answer.responses[0].partitions
    assert (shown.high_watermark, shown.last_stable_offset, len(shown.records)) == (1, 1, len(batch()))
    assert latest(broker) == 1


async def test_a_waiting_fetch_gets_records_whose_sync_comes_later(broker: Broker, disk: HeldDisk) -> None:
    """Append to t; a fetch of t is parked; a sync that began before the append ends; the sync of t ends."""
    appended = produce(broker)
    parked = fetch(broker, max_wait_ms=600_000)
    broker.fetches.wake(broker.partitions.get)
    assert parked.answer is None
    disk.release()
    [shown] = (await parked.answered()).responses[0].partitions
    assert (shown.high_watermark, len(shown.records)) == (1, len(batch()))
    await appended.answered()


async def test_records_without_acknowledgement_are_synced_too(broker: Broker, disk: HeldDisk) -> None:
    """acks=0: there is no other request whose sync they could share."""
    produce(broker, acks=0)
    parked = fetch(broker, max_wait_ms=600_000)
    assert parked.answer is None
    disk.release()
    assert (await parked.answered()).responses[0].partitions[0].high_watermark == 1


async def test_a_produce_whose_topic_is_deleted_is_answered(broker: Broker, disk: HeldDisk) -> None:
    """Sent in one packet, so that the topic is deleted before the sync begins."""
    asked, other = produce(broker), produce(broker, "u")
    parked = fetch(broker, max_wait_ms=600_000)
    deleted = Asked(broker, m.DeleteTopicsRequest([m.DeleteTopicState("t")], [], 20_000), 6)
    assert (await deleted.answered()).responses[0].error_code == 0
    disk.release()
    assert written(await asked.answered()) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert written(await other.answered()) == (0, 0)
    assert (await parked.answered()).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def commit_and_look_up(broker: Broker) -> tuple[Asked, Asked]:
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 5)])
    commit = Asked(broker, m.OffsetCommitRequest("g", topics=[topic]), 8)
    return commit, Asked(broker, m.OffsetFetchRequest("g", [m.OffsetFetchRequestTopic("t", [0])]), 7)


async def test_a_commit_is_acknowledged_and_shown_after_its_sync(broker: Broker, disk: HeldDisk) -> None:
    commit, shown = commit_and_look_up(broker)
    assert (commit.answer, shown.answer) == (None, None)
    disk.release()
    assert (await commit.answered()).topics[0].partitions[0].error_code == 0
    assert (await shown.answered()).topics[0].partitions[0].committed_offset == 5


async def test_a_commit_whose_sync_ends_with_the_broker_is_acknowledged(broker: Broker, disk: HeldDisk) -> None:
    partition = m.OffsetCommitRequestPartition(0, 5)
    topic = m.OffsetCommitRequestTopic("t", partitions=[partition])
    commit = Asked(broker, m.OffsetCommitRequest("g", topics=[topic]), 8)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    assert not commit.answer
    disk.release()
    await stopping
    assert (await commit.answered()).topics[0].partitions[0].error_code == 0


async def test_a_commit_whose_sync_fails_is_none(broker: Broker, disk: HeldDisk) -> None:
    commit, shown = commit_and_look_up(broker)
    disk.fail()
    assert (await commit.answered()).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert (await shown.answered()).error_code == ErrorCode.NOT_COORDINATOR
