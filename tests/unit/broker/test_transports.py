"""A connection on any transport: the broker's own (with and without epoll), asyncio's of TCP and others, and TLS, whose
bytes are not the socket's.

TLS is anonymous here (no certificate), which is enough for a transport that encrypts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.broker.net.calls import Api, Call
from muster.broker.net.connection import FIRST_BYTES, LARGE_WRITE, READ_BYTES, ServerConnection
from muster.broker.net.server import Server
from muster.broker.net.sockets import Sockets
from muster.protocol import framing
from muster.protocol.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic

pytestmark = pytest.mark.any_loop

VERSION = 12
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OWN = ("own", "own, without epoll")


def tls(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    if side == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # the last with ciphers that need no certificate
    context.set_ciphers("AECDH-AES256-SHA:@SECLEVEL=0")
    return context


@contextlib.asynccontextmanager
async def serving(
    transport: str, folder: Path, handle: Callable[[MetadataRequest, Call], Any]
) -> AsyncIterator[tuple[Server, Callable[[], Any]]]:
    """Connections on this kind of transport, and a function that opens one."""
    loop = asyncio.get_running_loop()
    server = Server(
        {3: Api(MetadataRequest, 0, 13, handle)},
        max_connections=100,
        max_request_bytes=100_000_000,
        max_bytes_in_flight=100_000_000,
        max_unread_bytes=100_000_000,
        max_idle_ms=-1,
        backlog=50,
    )

    def connection() -> ServerConnection:
        return ServerConnection(server.shared)

    listening: asyncio.Server | None = None
    if transport in OWN:
        server._sockets.close()
        server._sockets = Sockets(loop, epoll=transport == "own")
        port = await server.bind("127.0.0.1", 0)
        server.accept()
    elif transport == "unix":
        path = str(folder / "socket")
        listening = await loop.create_unix_server(connection, path)
    else:
        context = tls(ssl.PROTOCOL_TLS_SERVER) if transport == "tls" else None
        listening = await loop.create_server(connection, "127.0.0.1", 0, ssl=context)
        port = listening.sockets[0].getsockname()[1]
    streams: list[Streams] = []

    async def connect() -> Streams:
        if transport == "unix":
            streams.append(await asyncio.open_unix_connection(path, limit=4096))
        else:
            context = tls(ssl.PROTOCOL_TLS_CLIENT) if transport == "tls" else None
            streams.append(await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=4096))
        return streams[-1]

    try:
        yield server, connect
    finally:
        for _, writer in streams:
            writer.transport.abort()
        if listening is not None:
            listening.close()
        await server.close()


def frame(number: int, *names: str) -> bytes:
    request = MetadataRequest([MetadataRequestTopic(name=name) for name in names])
    return b"".join(map(bytes, framing.encode_request(request, VERSION, number, "peer")))


async def answer(reader: asyncio.StreamReader) -> tuple[int, MetadataResponse]:
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 60), "big")
    found = await asyncio.wait_for(reader.readexactly(size), 60)
    return framing.correlation_id(found), framing.decode_response(found, MetadataRequest, VERSION)


@pytest.mark.parametrize("transport", [*OWN, "tcp", "tls", "unix"])
async def test_answers_of_all_sizes_arrive_whole_and_in_order(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of all sizes too; on an encrypted socket, nothing bypasses the transport."""
    past = 0
    writev = os.writev

    def counted(descriptor: int, buffers: Any) -> int:
        nonlocal past
        past += 1
        return writev(descriptor, buffers)

    monkeypatch.setattr(os, "writev", counted)

    def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
        assert request.topics
        sizes = [int(topic.name.rpartition(" ")[2]) for topic in request.topics if topic.name]
        return MetadataResponse(topics=[MetadataResponseTopic(name="x" * size) for size in sizes])

    asked = [[1], [30_000] * 300, [2], [], [20_000, 3, 20_000] * 5, [5] * 1_000, [30_000, 4] * 2, [7]]
    asked = [sizes or [6] for sizes in asked]
    async with serving(transport, tmp_path, handle) as (_, connect):
        reader, writer = await connect()
        for padding in ("", "p" * 1_000):
            for number, sizes in enumerate(asked):
                writer.write(frame(number, *(f"{padding} {size}" for size in sizes)))
            for number, sizes in enumerate(asked):
                found, response = await answer(reader)
                assert (found, [len(topic.name or "") for topic in response.topics]) == (number, sizes)
        assert bool(past) == (transport != "tls")


@pytest.mark.slow
@pytest.mark.parametrize("transport", [*OWN, "tcp", "tls", "unix"])
async def test_a_peer_that_does_not_read_has_one_answer_waiting(transport: str, tmp_path: Path) -> None:
    handled = 0
    topics = [MetadataResponseTopic(name="x" * 30_000) for _ in range(500)]  # 15 MB, more than sockets take

    def large(request: MetadataRequest, call: Call) -> MetadataResponse:
        nonlocal handled
        handled += 1
        return MetadataResponse(topics=topics)

    async with serving(transport, tmp_path, large) as (server, connect):
        reader, writer = await connect()
        for number in range(5):
            writer.write(frame(number, "t"))
        while not server.connections.unread:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        [core] = server.connections
        assert handled == 1
        assert core.unread - core.own_bytes <= 2 * LARGE_WRITE, "the transport was given no more than a piece"
        for number in range(5):
            found, response = await answer(reader)
            assert (found, len(response.topics)) == (number, 500)
        assert server.connections.unread_bytes == 0


@pytest.mark.parametrize("transport", [*OWN, "tcp", "tls", "unix"])
async def test_what_is_answered_is_sent_before_the_end(transport: str, tmp_path: Path) -> None:
    def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
        return MetadataResponse(cluster_id="answered")

    async with serving(transport, tmp_path, handle) as (server, connect):
        reader, writer = await connect()
        writer.write(frame(1, "t") + b"\xff\xff\xff\xff")
        assert (await answer(reader))[1].cluster_id == "answered"
        assert await asyncio.wait_for(reader.read(), 60) == b""
        other, writer = await connect()
        writer.write(frame(1, "t"))
        await answer(other)
        await server.close()
        assert await asyncio.wait_for(other.read(), 60) == b""
        assert len(server.connections) == 0


class Bare:
    """A transport of some other loop, of a class that asyncio does not know, without a socket. It holds at most one
    write, and for all but every `slow`th reports from within `write` that it has sent it, as a transport may."""

    def __init__(self, connection: ServerConnection, slow: int) -> None:
        self.connection = connection
        self.slow = slow
        self.writes: list[bytes] = []
        self.held = 0
        self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high, "a pause with nothing to write would have no end"

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        assert not self.paused
        self.writes.append(bytes(data))
        self.held = len(data)
        self.paused = True
        self.connection.pause_writing()
        if len(self.writes) % self.slow:
            self.drained()

    def drained(self) -> None:
        self.held, self.paused = 0, False
        self.connection.resume_writing()


@pytest.mark.parametrize("slow", [1, 2, 10_000])
async def test_a_transport_that_is_not_a_socket_is_given_a_piece_at_a_time(slow: int) -> None:
    sizes = [1, 100_000, 20_000_000, 3]

    def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
        topics = [MetadataResponseTopic(name="x" * 30_000) for _ in range(sizes[call.correlation_id] // 30_000)]
        return MetadataResponse(topics=topics)

    async with serving("tcp", Path(), handle) as (server, _):
        connection = ServerConnection(server.shared)
        bare = Bare(connection, slow)
        connection.connection_made(bare)  # type: ignore[arg-type]
        for number in range(len(sizes)):
            data = frame(number, "t")
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))
            while bare.paused:
                await asyncio.sleep(0)
                bare.drained()
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(bare.writes))
        for number, size in enumerate(sizes):
            found, response = await answer(reader)
            assert (found, len(response.topics)) == (number, size // 30_000)
        assert max(map(len, bare.writes)) <= LARGE_WRITE
        assert server.connections.unread_bytes == 0
        connection.connection_lost(None)


async def test_a_large_frame_after_another_comes_to_where_it_belongs() -> None:
    """The shared buffer takes few of its bytes; a small frame is read together with as many others as there are."""

    def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
        return MetadataResponse()

    async with serving("tcp", Path(), handle) as (server, _):
        connection = ServerConnection(server.shared)
        connection.connection_made(Bare(connection, 10_000))  # type: ignore[arg-type]
        large, small = frame(1, *["t" * 10_000] * 100), frame(2, "t")

        def feed(data: bytes) -> list[int]:
            """The sizes of the buffers into which the data is read."""
            sizes = []
            while data:
                buffer = connection.get_buffer(-1)
                count = min(len(buffer), len(data))
                sizes.append(len(buffer))
                assert buffer, "a connection that reads has room for what it reads"
                buffer[:count] = data[:count]
                data = data[count:]
                connection.buffer_updated(count)
            return sizes

        assert feed(large) == [READ_BYTES, len(large) - READ_BYTES]
        assert feed(large) == [FIRST_BYTES, len(large) - FIRST_BYTES]
        assert feed(small) == [FIRST_BYTES]
        assert feed(small) == [READ_BYTES]
        connection.connection_lost(None)
