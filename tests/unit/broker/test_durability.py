"""Whoever waits for a sync learns its result, whatever happens to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from muster.broker.topics import durability as durability_module
from muster.broker.topics.durability import Durability
from muster.log import FsyncPolicy, LogFailedError, LogStore, PartitionLog
from muster.model import TopicPartition
from tests.support.brokers import log_of, running
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import NOW, batch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with contextlib.closing(LogStore.open(tmp_path, now=0, fsync=FsyncPolicy.ALWAYS)) as found:
        yield found


async def test_a_failed_sync_is_reported(tmp_path: Path, disk: FaultyDisk) -> None:
    """Nothing that was not synced before is acknowledged, and whoever runs the broker learns that it has to end."""
    async with running(tmp_path, {"fsync": "always"}, files=disk) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        log.append(batch((b"k", b"v")), now=NOW)
        disk.fail_syncs()
        broker.durability.want()
        await asyncio.wait_for(broker.broken.wait(), 120)
        assert (log.high_watermark, log.log_end_offset) == (0, 1)
        with pytest.raises(LogFailedError):
            log.append(batch((b"k", b"v")), now=NOW)


async def test_what_could_not_be_synced_for_want_of_a_descriptor_is_synced_later(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async with running(tmp_path, {"fsync": "always"}, files=disk) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        log.append(batch((b"k", b"v")), now=NOW)
        disk.use_up_descriptors()
        done = asyncio.Event()
        broker.durability.wait([Durable(log)], done.set)
        while disk.refused < 2:
            await asyncio.sleep(0.01)
        assert not done.is_set()
        disk.mend()
        await asyncio.wait_for(done.wait(), 120)
        assert not broker.broken.is_set()


class Durable:
    """A future that is done when the whole log is durable."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @property
    def over(self) -> bool:
        return self._log.high_watermark == self._log.log_end_offset


class Over:
    """A future that is done from the start."""

    over = True


class Never:
    """A future that is never done."""

    over = False


async def test_an_answer_that_raises_does_not_keep_the_others_waiting(
    store: LogStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises must not harm the others of its sync, nor those of the next, nor the sync itself."""
    flushed = 0

    def on_flushed() -> None:
        nonlocal flushed
        flushed += 1
        if flushed == 1:
            raise LookupError("no such shelf")

    durability = Durability(store, FsyncPolicy.ALWAYS, on_flushed)
    never: list[str] = []

    def refuse() -> None:
        raise LookupError("no such book")

    first, second = asyncio.Event(), asyncio.Event()
    durability.start(housekeeping_ms=10**6)
    durability.wait([Over()], refuse)
    durability.wait([Over()], first.set)
    durability.wait([Over(), Never()], lambda: never.append("reported"))
    await asyncio.wait_for(first.wait(), 120)
    durability.wait([Over()], second.set)
    await asyncio.wait_for(second.wait(), 120)
    await durability.stop()
    assert never == []
    assert "no such book" in caplog.text
    assert "no such shelf" in caplog.text


async def test_a_sync_follows_when_new_logs_could_not_be_noted(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This is not a disk error, so syncs continue: a failure in one thread may not silently end the other's work."""
    monkeypatch.setattr(durability_module, "INTERVAL_S", 0.001)
    real, calls = store.checkpoint_new, 0

    def checkpoint_new(synced: Iterable[PartitionLog]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("the list changed its size")
        real(synced)

    monkeypatch.setattr(store, "checkpoint_new", checkpoint_new)
    durability = Durability(store, FsyncPolicy.ALWAYS, lambda: None)
    durability.start(housekeeping_ms=10**6)
    log = store.create(TopicPartition("t", 0))
    async with asyncio.timeout(120):
        while calls < 2:
            await (await append(log, durability)).wait()
    await durability.stop()
    assert "the list changed its size" in caplog.text


async def test_logs_that_are_new_in_many_syncs_are_noted_together(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint covers all logs, and is synced twice: writing it after each sync would double the cost of a commit
    of many."""
    monkeypatch.setattr(durability_module, "INTERVAL_S", 10**6)
    real, noted = store.checkpoint_new, []

    def checkpoint_new(synced: Iterable[PartitionLog]) -> None:
        noted.append(list(synced))
        real(noted[-1])

    monkeypatch.setattr(store, "checkpoint_new", checkpoint_new)
    durability = Durability(store, FsyncPolicy.ALWAYS, lambda: None)
    durability.start(housekeeping_ms=10**6)
    for index in range(20):
        done = await append(store.create(TopicPartition("t", index)), durability)
        await asyncio.wait_for(done.wait(), 120)
    await durability.stop()
    assert len(noted) == 1


async def append(log: PartitionLog, durability: Durability) -> asyncio.Event:
    """A record, and a future that is done when it is durable."""
    done = asyncio.Event()
    log.append(batch((b"k", b"v")), now=NOW)
    durability.wait([Durable(log)], done.set)
    return done


async def test_what_is_asked_for_during_a_sync_gets_one_of_its_own(tmp_path: Path, disk: FaultyDisk) -> None:
    """The record was appended after the sync had looked at the log: nothing else would request the next sync."""
    store = LogStore.open(tmp_path, now=0, fsync=FsyncPolicy.ALWAYS, files=disk)
    durability = Durability(store, FsyncPolicy.ALWAYS, lambda: None)
    durability.start(housekeeping_ms=10**6)
    log = store.create(TopicPartition("t", 0))
    with disk.held_syncs():
        first = await append(log, durability)
        await asyncio.to_thread(disk.wait_for_sync)
        second = await append(log, durability)
    await asyncio.wait_for(first.wait(), 120)
    await asyncio.wait_for(second.wait(), 120)
    await durability.stop()
    store.close()


async def test_a_request_that_is_answered_may_wait_again(store: LogStore) -> None:
    durability = Durability(store, FsyncPolicy.ALWAYS, lambda: None)
    durability.start(housekeeping_ms=10**6)
    done = asyncio.Event()
    durability.wait([Over()], lambda: durability.wait([Over()], done.set))
    await asyncio.wait_for(done.wait(), 120)
    await durability.stop()


async def test_logs_are_compacted_between_two_looks_at_what_is_too_old(tmp_path: Path) -> None:
    async with running(tmp_path, {"log.retention.check.interval.ms": 10**9, "log.cleaner.backoff.ms": 1}) as broker:
        broker.changes.create_topic("t", 1, {"cleanup.policy": "compact", "segment.bytes": "1048576"})
        log = log_of(broker, "t", 0)
        for _ in range(3):
            log.append(batch((b"k", bytes(600_000))), now=NOW)
        async with asyncio.timeout(120):
            while log.cleaned_to == 0:
                await asyncio.sleep(0.001)


async def test_a_full_disk_is_reported_in_a_sentence(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, {"log.retention.check.interval.ms": 5}, files=disk) as broker:
        broker.changes.create_topic("t", 1, {})
        log = log_of(broker, "t", 0)
        log.append(batch((b"k", b"v")), now=NOW)
        disk.fill_up()
        while "retention failed: [Errno 28]" not in caplog.text:
            log.delete_records(-1)
            await asyncio.sleep(0.01)
        disk.mend()
    assert "Traceback" not in caplog.text


async def test_syncs_and_housekeeping_continue_after_one_that_raised(
    store: LogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = {"flush": 0, "housekeeping": 0, "clean": 0}

    def failing_once(name: str) -> None:
        real = getattr(store, name)

        def call(*arguments: object) -> object:
            calls[name] += 1
            if calls[name] == 1:
                raise LookupError(f"{name} is out of order")
            return real(*arguments)

        monkeypatch.setattr(store, name, call)

    failing_once("flush")
    failing_once("housekeeping")
    failing_once("clean")
    durability = Durability(store, FsyncPolicy.ALWAYS, lambda: None)
    durability.start(1, lambda: 1)
    deadline = asyncio.get_running_loop().time() + 120
    while min(calls.values()) < 3:
        durability.want()
        await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() < deadline, calls
    await durability.stop()
    assert "flush is out of order" in caplog.text
    assert "housekeeping is out of order" in caplog.text
    assert "clean is out of order" in caplog.text
