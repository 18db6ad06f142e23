"""A partition that cannot be opened: only it is refused, with a retriable error and one line, until a start opens
it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode
from muster.log import Files
from muster.model import TopicPartition
from muster.protocol import messages as m
from tests.support.brokers import broker_config, log_of, running, topic_of
from tests.support.held_disk import Asked
from tests.support.logs import NOW, batch, read_all

FIRST = f"{0:020d}.log"


class Forbidding(Files):
    """A disk on which one partition's files cannot be opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, path: Path, flags: int) -> int:
        if self.folder in path.parents:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().open(path, flags)


def as_folder(path: Path) -> None:
    path.rename(path.parent.parent / "kept")
    path.mkdir()


def as_link(path: Path) -> None:
    path.rename(path.parent.parent / "kept")
    path.symlink_to("/nowhere/at/all")


def untouched(path: Path) -> None:
    """The disk forbids it."""


ODD: dict[str, Callable[[Path], None]] = {"a folder": as_folder, "a link": as_link, "forbidden": untouched}


def folder_as_file(path: Path) -> None:
    path.parent.rename(path.parent.parent / "kept")
    path.parent.touch()


def folder_as_link(path: Path) -> None:
    """To a disk that is missing."""
    path.parent.rename(path.parent.parent / "kept")
    path.parent.symlink_to("/nowhere/at/all")


async def write(folder: Path, topic: str, *, clean: bool) -> None:
    async with running(folder) as broker:
        for name in (topic, "other"):
            if broker.topics.get(name) is None:
                broker.changes.create_topic(name, 2, {})
            for index in (0, 1):
                log = log_of(broker, name, index)
                log.append(batch((b"k", b"v")), now=NOW)
        broker._store.flush()
        if not clean:
            broker._store.close(clean=False)


def disk_for(kind: str, folder: Path) -> Files:
    return Forbidding(folder) if kind == "forbidden" else Files()


def produce(topic: str, index: int) -> m.ProduceRequest:
    records = bytes(batch((b"k", b"v")))
    return m.ProduceRequest(
        None, -1, 9_000, [m.TopicProduceData(topic, partition_data=[m.PartitionProduceData(index, records)])]
    )


async def errors(broker: Broker, topic: str, index: int) -> dict[str, int]:
    """The answers to each kind of request about a partition."""
    produced = await Asked(broker, produce(topic, index), 9).answered()
    fetch = m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20)
    fetch.topics = [m.FetchTopic(topic, partitions=[m.FetchPartition(index, -1, 0, partition_max_bytes=1 << 20)])]
    fetched = await Asked(broker, fetch, 11).answered()
    found = {
        "Produce": produced.responses[0].partition_responses[0].error_code,
        "Fetch": fetched.responses[0].partitions[0].error_code,
    }
    for name, timestamp in (("earliest", -2), ("latest", -1), ("time", NOW)):
        asked = [m.ListOffsetsTopic(topic, [m.ListOffsetsPartition(index, -1, timestamp)])]
        listed = await Asked(broker, m.ListOffsetsRequest(-1, 0, asked), 4).answered()
        found[name] = listed.topics[0].partitions[0].error_code
    return found


async def advertised(broker: Broker, topic: str) -> dict[int, tuple[int, int, list[int], list[int], list[int]]]:
    """What clients learn about a topic's partitions, from both requests that ask for it."""
    by_metadata = await Asked(broker, m.MetadataRequest([m.MetadataRequestTopic(name=topic)]), 9).answered()
    described = m.DescribeTopicPartitionsRequest([m.TopicRequest(topic)])
    by_description = await Asked(broker, described, 0).answered()
    found = [
        {
            each.partition_index: (
                each.error_code,
                each.leader_id,
                each.replica_nodes,
                each.isr_nodes,
                each.offline_replicas,
            )
            for each in answer.topics[0].partitions
        }
        for answer in (by_metadata, by_description)
    ]
    assert found[0] == found[1]
    return found[0]


async def test_it_has_no_leader(tmp_path: Path):
    """Otherwise producers without keys would choose it again and again, and a consumer would fetch it without a
    pause."""
    await write(tmp_path, "t", clean=True)
    as_folder(tmp_path / "t-0" / FIRST)
    async with running(tmp_path) as broker:
        here = broker.node.node_id
        assert await advertised(broker, "t") == {
            0: (ErrorCode.LEADER_NOT_AVAILABLE, -1, [here], [], [here]),
            1: (ErrorCode.NONE, here, [here], [here], []),
        }


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ODD)
async def test_the_others_are_served_and_it_comes_back(
    tmp_path: Path, kind: str, clean: bool, caplog: pytest.LogCaptureFixture
):
    await write(tmp_path, "t", clean=clean)
    ODD[kind](tmp_path / "t-0" / FIRST)
    for _ in range(2):  # a second start finds it in the same way
        caplog.clear()
        broker = Broker(broker_config(tmp_path), disk_for(kind, tmp_path / "t-0"))
        await broker.start()
        [line] = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert line.startswith("t-0 cannot be opened, and will not be served until the next start: ")
        assert set((await errors(broker, "t", 0)).values()) == {ErrorCode.KAFKA_STORAGE_ERROR}
        for topic, index in (("t", 1), ("other", 0), ("other", 1)):
            assert set((await errors(broker, topic, index)).values()) == {ErrorCode.NONE}
        assert [str(partition) for partition in broker.refusing()] == ["t-0"]
        broker._store.housekeeping(NOW)
        await broker.stop()
        assert not (tmp_path / ".kafka_cleanshutdown").exists()  # what a kill left in it must still be checked
    if kind != "forbidden":
        path = tmp_path / "t-0" / FIRST
        path.unlink() if path.is_symlink() else path.rmdir()
        (tmp_path / "kept").rename(path)
    async with running(tmp_path) as broker:
        assert set((await errors(broker, "t", 0)).values()) == {ErrorCode.NONE}
        log = log_of(broker, "t", 0)
        assert len(read_all(log)) == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("odd", [folder_as_file, folder_as_link])
async def test_something_else_in_the_place_of_its_folder(
    tmp_path: Path, odd: Callable[[Path], None], clean: bool, caplog: pytest.LogCaptureFixture
):
    """A new log would assign again the offsets that its records have."""
    await write(tmp_path, "t", clean=clean)
    odd(tmp_path / "t-0" / FIRST)
    for _ in range(2):
        caplog.clear()
        async with running(tmp_path) as broker:
            [line] = [record.message for record in caplog.records if record.levelname == "ERROR"]
            assert line.startswith("t-0 cannot be opened, and will not be served until the next start: ")
            assert set((await errors(broker, "t", 0)).values()) == {ErrorCode.KAFKA_STORAGE_ERROR}
            assert set((await errors(broker, "t", 1)).values()) == {ErrorCode.NONE}
            assert (await advertised(broker, "t"))[0][:2] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    (tmp_path / "t-0").unlink()
    (tmp_path / "kept").rename(tmp_path / "t-0")
    async with running(tmp_path) as broker:
        produced = await Asked(broker, produce("t", 0), 9).answered()
        assert produced.responses[0].partition_responses[0].base_offset == 1


@pytest.mark.parametrize("odd", [as_folder, folder_as_file, folder_as_link])
async def test_a_topic_with_something_else_in_the_place_of_a_file_or_folder_can_be_deleted_and_created_again(
    tmp_path: Path, odd: Callable[[Path], None]
):
    await write(tmp_path, "t", clean=True)
    odd(tmp_path / "t-0" / FIRST)
    async with running(tmp_path) as broker:
        topic = topic_of(broker, "t")
        broker.changes.delete_topic(topic)
        broker.changes.create_topic("t", 2, {})
        assert set((await errors(broker, "t", 0)).values()) == {ErrorCode.NONE}
    async with running(tmp_path) as broker:
        assert set((await errors(broker, "t", 0)).values()) == {ErrorCode.NONE}


async def test_what_was_known_of_it_is_known_when_it_is_gone_for_good(tmp_path: Path):
    await write(tmp_path, "t", clean=True)
    as_folder(tmp_path / "t-0" / FIRST)
    async with running(tmp_path) as broker:
        broker._store.housekeeping(NOW)
    (tmp_path / "t-0" / FIRST).rmdir()
    async with running(tmp_path) as broker:
        produced = await Asked(broker, produce("t", 0), 9).answered()
        assert produced.responses[0].partition_responses[0].base_offset == 1


async def test_one_that_is_deleted_while_checkpoints_are_written(tmp_path: Path):
    """The loop deletes it while the disk's thread writes: either may be interrupted by the other."""
    await write(tmp_path, "t", clean=True)
    for index in (0, 1):
        path = tmp_path / f"t-{index}" / FIRST
        path.unlink()
        path.mkdir()
    async with running(tmp_path) as broker:
        store = broker._store
        assert len(store.offline) == 2

        class Deleting(dict[TopicPartition, int]):
            def __contains__(self, partition: object) -> bool:
                store.offline.pop(TopicPartition("t", 0), None)
                return super().__contains__(partition)

        for name, offsets in store._checkpoints.items():
            store._checkpoints[name] = Deleting(offsets)
        store.write_checkpoints()
        assert list(store.offline) == [TopicPartition("t", 1)]


def commit(group_id: str, offset: int) -> m.OffsetCommitRequest:
    partitions = [m.OffsetCommitRequestPartition(0, offset)]
    return m.OffsetCommitRequest(group_id, topics=[m.OffsetCommitRequestTopic("t", partitions=partitions)])


async def commit_all(broker: Broker, offset: int) -> list[int]:
    """The errors of a commit in each of four groups, each in its own partition."""
    found = []
    for group_id in GROUPS:
        answer = await Asked(broker, commit(group_id, offset), 8).answered()
        found.append(answer.topics[0].partitions[0].error_code)
    return found


GROUPS = ("a", "b", "c", "d")
SETTINGS = {"offsets.topic.num.partitions": 4}


async def test_groups_of_a_partition_that_cannot_be_opened_have_no_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with running(tmp_path, SETTINGS) as broker:
        broker.changes.create_topic("t", 1, {})
        assert await commit_all(broker, 7) == [ErrorCode.NONE] * 4
        slot = broker.groups.runtime.partition_for("a")
    path = tmp_path / f"__consumer_offsets-{slot}" / FIRST
    as_folder(path)
    async with running(tmp_path, SETTINGS) as broker:
        caplog.clear()
        for _ in range(3):
            assert (await commit_all(broker, 8))[0] == ErrorCode.NOT_COORDINATOR
        reported = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert len(reported) == 1
        assert f"__consumer_offsets-{slot} cannot be opened" in reported[0]
    path.rmdir()
    (tmp_path / "kept").rename(path)
    async with running(tmp_path, SETTINGS) as broker:
        asked = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup("a", topics=None)])
        [group] = (await Asked(broker, asked, 8).answered()).groups
        assert [partition.committed_offset for topic in group.topics for partition in topic.partitions] == [7]


# --------------------------------------------------------------------------------------------- files that are gone


async def noted(folder: Path, *logs: str) -> None:
    """The checkpoint has these logs: the thread that syncs writes it after the acknowledgement."""
    path = folder / "recovery-point-offset-checkpoint"
    async with asyncio.timeout(60):
        while not path.exists() or not all(log in path.read_text() for log in logs):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("gone", ["deleted", "emptied"])
async def test_a_log_that_is_gone_after_a_kill_is_missed(tmp_path: Path, gone: str, caplog: pytest.LogCaptureFixture):
    """It was written for the first time just before the kill: no housekeeping has recorded it."""
    settings = {"fsync": "always", **SETTINGS}
    async with running(tmp_path, settings) as broker:
        broker.changes.create_topic("t", 1, {})
        for _ in range(3):
            await Asked(broker, produce("t", 0), 9).answered()
        assert (await commit_all(broker, 3))[0] == ErrorCode.NONE
        slot = broker.groups.runtime.partition_for("a")
        await noted(tmp_path, "t 0 ", f"__consumer_offsets {slot} ")
        broker._store.close(clean=False)
    caplog.clear()
    for name in ("t-0", f"__consumer_offsets-{slot}"):
        path = tmp_path / name / FIRST
        path.unlink() if gone == "deleted" else os.truncate(path, 0)
    async with running(tmp_path, settings) as broker:
        for name in ("t-0", f"__consumer_offsets-{slot}"):
            assert any(name in record.message and "are missing" in record.message for record in caplog.records)
        produced = await Asked(broker, produce("t", 0), 9).answered()
        assert produced.responses[0].partition_responses[0].base_offset >= 1
