"""The loop waits for the groups' next deadline, whatever moved it; and errors in timers and threads are reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.broker.broker import Broker
from muster.broker.groups import on_loop as module
from muster.errors import ErrorCode
from muster.protocol import messages as m
from tests.support.brokers import log_of, running
from tests.support.faulty_disk import FaultyDisk
from tests.support.held_disk import Asked

SESSION_MS = 6_000


async def join(broker: Broker) -> None:
    """A group of one member, whose generation is written."""
    protocols = [m.JoinGroupRequestProtocol("range", b"")]
    request = m.JoinGroupRequest("g", SESSION_MS, SESSION_MS, "", None, "consumer", protocols)
    joined = await Asked(broker, request, 3).answered()
    share = [m.SyncGroupRequestAssignment(joined.member_id, b"share")]
    synced = await Asked(
        broker, m.SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=share), 3
    ).answered()
    assert synced.error_code == 0
    await asyncio.sleep(0)


async def commit(broker: Broker) -> int:
    topic = m.OffsetCommitRequestTopic("t", partitions=[m.OffsetCommitRequestPartition(0, 5)])
    answer = await Asked(broker, m.OffsetCommitRequest("simple", topics=[topic]), 8).answered()
    return int(answer.topics[0].partitions[0].error_code)


def waits(broker: Broker) -> bool:
    """Whether it will wake up for the next deadline."""
    return broker.groups._deadline is not None and broker.groups._deadline_at == broker.groups.runtime.next_deadline()


async def test_a_timer_that_comes_early_is_set_again(tmp_path: Path) -> None:
    """The clock leaves out the time in which nothing ran; the timer does not."""
    async with running(tmp_path) as broker:
        await join(broker)
        assert waits(broker)
        before = broker.groups._deadline_at
        broker.groups._on_deadline()
        assert broker.groups._deadline_at == before
        assert waits(broker)


async def test_sessions_are_watched_that_were_read_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await join(broker)
    monkeypatch.setattr(module, "LOAD_BEFORE_START_S", -1.0)
    async with running(tmp_path) as broker:
        while broker.groups.runtime.is_loading:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waits(broker)
        assert broker.groups._deadline_at is not None
        assert broker.groups._deadline_at <= broker._clock() + SESSION_MS


async def test_a_shard_whose_log_failed_is_read_again_by_itself(tmp_path: Path, disk: FaultyDisk) -> None:
    async with running(tmp_path, files=disk) as broker:
        broker.changes.create_topic("t", 1, {})
        assert await commit(broker) == 0
        disk.fill_up()
        assert await commit(broker) == ErrorCode.NOT_COORDINATOR
        disk.mend()
        assert broker.groups.runtime._unavailable
        assert waits(broker)


async def test_a_search_that_goes_wrong_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        log._segments = (object(),)  # type: ignore[assignment]
        asked = m.ListOffsetsRequest(-1, 0, [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(0, -1, 5)])])
        answer = await Asked(broker, asked, 5).answered()
        log._segments = ()
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "work in the side thread failed" in caplog.text
