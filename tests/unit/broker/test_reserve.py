"""A full disk: the ways to free space work, repeatedly and after a restart."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.topics.deletion_reserve import FILE, SIZE, DiskReserve
from muster.errors import ErrorCode
from muster.protocol import admin_messages as am
from muster.protocol import messages as m
from tests.support.brokers import broker_config, log_of, running
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked
from tests.support.logs import NOW, batch

SETTINGS = {"fsync": "always"}
VALUE = bytes(3 << 20)


def produce(topic: str) -> m.ProduceRequest:
    data = m.TopicProduceData(topic, partition_data=[m.PartitionProduceData(0, bytes(batch((b"k", VALUE[:50_000]))))])
    return m.ProduceRequest(None, -1, 9_000, [data])


async def write(broker: Broker, topic: str) -> int:
    answer = await Asked(broker, produce(topic), 9).answered()
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def delete_records(broker: Broker, topic: str) -> int:
    asked = am.DeleteRecordsTopic(topic, [am.DeleteRecordsPartition(0, -1)])
    answer = await Asked(broker, am.DeleteRecordsRequest([asked], 9_000), 1).answered()
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def delete_topic(broker: Broker, topic: str) -> int:
    answer = await Asked(broker, m.DeleteTopicsRequest([m.DeleteTopicState(topic)], timeout_ms=9_000), 6).answered()
    code: int = answer.responses[0].error_code
    return code


DELETIONS = {"DeleteRecords": delete_records, "DeleteTopics": delete_topic}


async def make(folder: Path, topics: int) -> None:
    async with running(folder, SETTINGS) as broker:
        for number in range(topics):
            broker.changes.create_topic(f"t{number}", 1, {"max.message.bytes": str(8 << 20)})
            log = log_of(broker, f"t{number}", 0)
            log.append(batch((b"k", VALUE)), now=NOW)


@pytest.mark.parametrize("how", DELETIONS)
@pytest.mark.parametrize("starts_full", [False, True])
async def test_deletions_free_a_full_disk_again_and_again(
    tmp_path: Path, disk: FaultyDisk, how: str, starts_full: bool
):
    await make(tmp_path, 4)
    if starts_full:
        disk.fill_up()
    async with Broker(broker_config(tmp_path, SETTINGS), disk) as broker:
        for number in range(3):
            disk.fill_up()
            assert await write(broker, "t3") == ErrorCode.KAFKA_STORAGE_ERROR
            assert await DELETIONS[how](broker, f"t{number}") == ErrorCode.NONE
            assert await write(broker, "t3") == ErrorCode.NONE
            assert (tmp_path / FILE).stat().st_size == SIZE
        disk.mend()
    async with running(tmp_path) as broker:
        found = [broker.partitions.get(f"t{number}", 0) for number in range(3)]
        assert [log.log_start_offset if log is not None else None for log in found] == (
            [1] * 3 if how == "DeleteRecords" else [None] * 3
        )


async def test_nothing_else_takes_the_reserve(tmp_path: Path, disk: FaultyDisk):
    await make(tmp_path, 1)
    async with Broker(broker_config(tmp_path, SETTINGS), disk) as broker:
        disk.fill_up()
        for _ in range(2):
            assert await write(broker, "t0") == ErrorCode.KAFKA_STORAGE_ERROR
            with pytest.raises(OSError):
                broker.changes.create_topic("more", 1, {})
        assert (tmp_path / FILE).stat().st_size == SIZE
        disk.mend()


def test_it_is_made_when_there_is_space(tmp_path: Path, disk: FaultyDisk):
    reserve = DiskReserve(tmp_path, disk)
    disk.fill_up(SIZE - 1)
    reserve.fill()
    assert list(tmp_path.iterdir()) == []
    disk.mend()
    reserve.fill()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_file_system_that_compresses_gives_it_its_space(tmp_path: Path):
    DiskReserve(tmp_path, FaultyDisk()).fill()
    assert len(zlib.compress((tmp_path / FILE).read_bytes(), 1)) >= SIZE


def test_only_a_full_disk_costs_the_reserve(tmp_path: Path):
    reserve = DiskReserve(tmp_path, FaultyDisk())
    reserve.fill()

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        reserve.released_for(fail)
    assert (tmp_path / FILE).exists()
