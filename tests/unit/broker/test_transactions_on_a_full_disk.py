"""A start with open transactions on a disk that becomes full at any of its writes: all transactions end as decided once
there is space."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.errors import ErrorCode, MusterError
from muster.log import Files
from muster.log.files import Data
from muster.model import TopicPartition
from tests.support.brokers import RawClient, broker_config, in_thread, log_of, running
from tests.support.transaction_sides import TransactionSide

pytestmark = pytest.mark.slow(30)

PARTITIONS = 3
RETRIABLE = {
    ErrorCode.NONE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""The errors after which Java's producer retries an EndTxn."""


class FillingDisk(Files):
    """A disk that has space for some writes and new files; after that it is full until `left` is None."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.writes = 0

    def _use(self, path: Path | None = None) -> None:
        self.writes += 1
        if self.left is None:
            return
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.left -= 1

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self._use(path)
        return super().open(path, flags)

    def mkdir(self, path: Path) -> None:
        self._use(path)
        super().mkdir(path)

    def pwrite(self, fd: int, data: Data, position: int) -> int:
        self._use()
        return super().pwrite(fd, data, position)


def side(client: RawClient, name: str, ids: dict[str, tuple[int, int]] | None = None) -> TransactionSide:
    found = TransactionSide(client, "t", name, "g")
    if ids:
        found.producer_id, found.epoch = ids[name]
    return found


async def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Data of a broker that was killed while one transaction was open, with offsets, and the markers of two others had
    not been written: one to be committed, one to be aborted. Returns the ids of the producers."""
    ids: dict[str, tuple[int, int]] = {}

    def fill(bootstrap: str) -> None:
        with RawClient(bootstrap) as client:
            for partition, name in enumerate(("open", "committed", "aborted")):
                each = side(client, name).begin()
                each.add(3, None, TopicPartition("t", partition))
                assert not each.produce(partition=partition).error_code
                if name == "open":
                    each.add_offsets()
                    each.commit_offsets()
                else:
                    assert not each.end(name == "committed").error_code
                ids[name] = each.producer_id, each.epoch

    async with running(folder / "first", {"fsync": "always"}) as broker:
        broker.changes.create_topic("t", PARTITIONS, {})
        monkeypatch.setattr(broker.transactions.writer, "write_all", lambda *_: None)
        await in_thread(fill, broker.bootstrap)
        shutil.copytree(folder / "first", folder / "killed")
    monkeypatch.undo()
    return ids


def end_once(bootstrap: str, ids: dict[str, tuple[int, int]]) -> int:
    """The error of one EndTxn, sent by a producer while the disk is full."""
    with RawClient(bootstrap) as client:
        code: int = side(client, "open", ids).end(True).error_code
        return code


def end_all(bootstrap: str, ids: dict[str, tuple[int, int]]) -> list[Any]:
    """Commit the open transactions; returns the states of all."""
    with RawClient(bootstrap) as client:
        each = side(client, "open", ids)
        assert each.settled(lambda: each.end(True)).error_code == ErrorCode.NONE
        found = []
        for name in ids:
            side(client, name).until_complete()
            found.append(side(client, name).describe().transaction_state)
        committed = each.offsets(True).groups[0].topics[0].partitions[0]
        return [*found, (committed.error_code, committed.committed_offset)]


async def check(broker: Broker, ids: dict[str, tuple[int, int]]) -> None:
    states = await in_thread(end_all, broker.bootstrap, ids)
    assert states == ["CompleteCommit", "CompleteCommit", "CompleteAbort", (0, 5)]
    for partition in range(PARTITIONS):
        log = log_of(broker, "t", partition)
        assert log.last_stable_offset == log.high_watermark
        # A record and a marker; the marker is written twice if its completion could not be recorded.
        assert log.high_watermark in (2, 3)


async def writes_of(folder: Path, ids: dict[str, tuple[int, int]]) -> int:
    """How many writes a start and the end of all transactions take."""
    disk = FillingDisk(None)
    async with Broker(broker_config(folder, {"fsync": "always"}), disk) as broker:
        await check(broker, ids)
        return disk.writes


async def test_a_start_on_a_disk_that_fills_up_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await prepare(tmp_path, monkeypatch)
    shutil.copytree(tmp_path / "killed", tmp_path / "measured")
    count = await writes_of(tmp_path / "measured", ids)
    assert count > 5
    started, why = 0, list[str]()
    for left in range(count):
        folder = tmp_path / f"full-{left}"
        shutil.copytree(tmp_path / "killed", folder)
        disk = FillingDisk(left)
        try:
            async with Broker(broker_config(folder, {"fsync": "always"}), disk) as broker:
                started += 1
                assert await in_thread(end_once, broker.bootstrap, ids) in RETRIABLE
                disk.left = None
                await check(broker, ids)
        except (OSError, MusterError) as error:
            why.append(str(error))
        async with running(folder, {"fsync": "always"}) as broker:
            await check(broker, ids)
        shutil.rmtree(folder)
    assert started
    assert all("No space left" in each for each in why), why
