"""Large fetches, which the system sends from the log's files: complete, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.net import sending
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol.records.record_batch import read_header
from tests.support import brokers
from tests.support.brokers import log_of, topic_of
from tests.support.written import build_batch

NOW = 1_700_000_000_000
VERSION = 11
BATCHES = 12
"""Of 1 MB each: more than the sockets here take at once."""

SETTINGS = {"log.segment.bytes": 64 * 1024 * 1024, "message.max.bytes": 2_000_000}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokers.running(tmp_path / "data", SETTINGS) as found:
        found.changes.create_topic("t", 2, {})
        yield found


def fill(broker: Broker, partition: int = 0, size: int = 1_000_000) -> bytes:
    """Append batches to a partition. Returns what a fetch of them returns."""
    log, found = log_of(broker, "t", partition), b""
    for number in range(BATCHES):
        value = bytes([number]) * (size // 10)
        batch = bytearray(build_batch([(NOW, None, value, [])] * 10))
        log.append(batch, now=NOW)
        found += batch
    return found


def fetch(*partitions: int) -> bytes:
    asked = [m.FetchPartition(number, fetch_offset=0, partition_max_bytes=50_000_000) for number in partitions]
    request = m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=[m.FetchTopic("t", partitions=asked)])
    return b"".join(framing.encode_request(request, VERSION, 7, "test"))


class Peer:
    """A consumer that reads as many bytes as the test says."""

    def __init__(self, broker: Broker) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        host, _, port = broker.bootstrap.rpartition(":")
        self.socket.connect((host, int(port)))
        self.socket.setblocking(False)
        self.got = bytearray()

    async def ask(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read(self, size: int) -> None:
        """Read on until there are this many bytes. Raises EOFError, OSError."""
        loop = asyncio.get_running_loop()
        while len(self.got) < size:
            data = await asyncio.wait_for(loop.sock_recv(self.socket, 1 << 20), 60)
            if not data:
                raise EOFError
            self.got += data

    async def answer(self) -> list[bytes]:
        """The records of each partition."""
        await self.read(4)
        size = 4 + int.from_bytes(self.got[:4], "big")
        await self.read(size)
        response = framing.decode_response(bytes(self.got[4:size]), m.FetchRequest, VERSION)
        del self.got[:size]
        partitions: list[Any] = response.responses[0].partitions
        assert [one.error_code for one in partitions] == [0] * len(partitions)
        return [bytes(one.records) for one in partitions]


@contextlib.asynccontextmanager
async def half_read(broker: Broker) -> AsyncIterator[Peer]:
    """A consumer that has the beginning of a response, the rest of which the sockets cannot take."""
    peer = Peer(broker)
    try:
        await peer.ask(fetch(0))
        await peer.read(100_000)
        while not broker._server.connections.unread:
            await asyncio.sleep(0)
        yield peer
    finally:
        peer.socket.close()


def open_logs(folder: Path, ending: str = ".log") -> int:
    """How many file descriptors of the log's files this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            found += name.startswith(str(folder)) and name.endswith(ending)
    return found


def open_and_deleted(folder: Path) -> int:
    """How many of them are of deleted files."""
    return open_logs(folder, ".log (deleted)")


@pytest.mark.parametrize("gone", ["nothing", "deleted", "retained no longer", "grown"])
async def test_an_answer_is_sent_to_its_end(broker: Broker, gone: str) -> None:
    expected, log = fill(broker), log_of(broker)
    async with half_read(broker) as peer:
        if gone == "deleted":
            topic = topic_of(broker, "t")
            broker.changes.delete_topic(topic)
            while log.directory.exists() or not log.closed:
                await asyncio.sleep(0.001)
        elif gone == "retained no longer":
            log.delete_records(-1)
            assert log.enforce_retention(NOW)
        elif gone == "grown":
            fill(broker)
        assert await peer.answer() == [expected]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the files of a process are listed in /proc")
@pytest.mark.parametrize("leaves", [True, False])
async def test_no_deleted_file_stays_open(broker: Broker, tmp_path: Path, leaves: bool) -> None:
    expected = fill(broker)
    async with half_read(broker) as peer:
        log = log_of(broker)
        log.delete_records(-1)
        log.enforce_retention(NOW)
        assert open_and_deleted(tmp_path)
        if not leaves:
            assert await peer.answer() == [expected]
    while open_and_deleted(tmp_path):
        await asyncio.sleep(0.001)


async def test_a_file_that_another_process_cuts_ends_the_answer_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker)
    other = fill(broker, 1)
    [segment] = log_of(broker).segments
    async with half_read(broker) as peer:
        with segment.path.open("r+b") as file:
            file.truncate(5_000_000)
        with pytest.raises((EOFError, ConnectionResetError)):
            await peer.answer()
    assert caplog.text.count("the log cannot be read") == 1
    peer = Peer(broker)
    await peer.ask(fetch(1))
    assert await peer.answer() == [other]
    peer.socket.close()


@pytest.mark.parametrize("size", [30_000, 64 * 1024, 300_000, 400_000, 1_000_000])
async def test_partitions_of_any_size_follow_each_other(broker: Broker, size: int) -> None:
    expected = [fill(broker, 0, size), fill(broker, 1, size // 3)]
    peer = Peer(broker)
    for _ in range(3):
        await peer.ask(fetch(0, 1))
        assert await peer.answer() == expected
    peer.socket.close()


async def test_a_file_that_the_system_cannot_send_is_copied(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def unable(*_: Any) -> int:
        nonlocal asked
        asked += 1
        raise OSError(sending.CANNOT_BE_SENT[0], "Invalid argument")

    monkeypatch.setattr(os, "sendfile", unable)
    expected = fill(broker)
    async with half_read(broker) as peer:
        assert await peer.answer() == [expected]
    assert asked


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the files of a process are listed in /proc")
async def test_a_partition_that_was_read_has_its_writer_and_its_map_open(broker: Broker, tmp_path: Path) -> None:
    expected = fill(broker)
    async with half_read(broker) as peer:
        assert open_logs(tmp_path / "data" / "t-0") == 3
        assert await peer.answer() == [expected]
        while open_logs(tmp_path / "data" / "t-0") > 2:
            await asyncio.sleep(0.001)


async def test_large_answers_are_sent_by_the_system(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, sendfile = 0, os.sendfile

    def counted(*arguments: Any) -> int:
        nonlocal sent
        size = sendfile(*arguments)
        sent += size
        return size

    monkeypatch.setattr(os, "sendfile", counted)
    expected = fill(broker)
    async with half_read(broker) as peer:
        assert await peer.answer() == [expected]
    assert sent > len(expected) // 2
    assert read_header(expected).base_offset == 0
