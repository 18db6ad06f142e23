"""A broker that does what the test says, on the loopback interface: for tests of connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from muster.errors import ErrorCode, ProtocolError
from muster.protocol import codec, framing
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, REQUESTS, request_header_version
from muster.protocol.primitives import Response


def decode_request_header(frame: bytes) -> tuple[m.RequestHeader, int]:
    """The header of a request and the position of the message after it.

    Raises:
        ProtocolError: the frame is too short for a request, or the client id is not text.
    """
    try:
        api_key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        position = 10
        client_id = None
        if length >= 0:
            client_id = str(frame[position : position + length], "utf-8")
            position += length
        request = REQUESTS.get(api_key)
        if request is not None and request_header_version(request, version) == 2:
            position = framing.skip_tags(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"invalid request header: {error}") from None
    if position > len(frame):
        raise ProtocolError("incomplete request header")
    return m.RequestHeader(api_key, version, correlation_id, client_id), position


@dataclass
class Peer:
    """One connection, as the broker sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    versions: dict[int, tuple[int, int]]
    number: int
    header: m.RequestHeader = field(default_factory=m.RequestHeader)

    async def read(self) -> Any:
        """The next request; its header is kept for `reply`. IncompleteReadError at the end."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(length)
        self.header, position = decode_request_header(frame)
        request = REQUESTS[self.header.request_api_key]
        return codec.decode(request, self.header.request_api_version, frame, position)

    async def reply(
        self, response: Response, header: m.RequestHeader | None = None, version: int | None = None
    ) -> None:
        """Answer the request that was read last, or another one."""
        header = header or self.header
        request = REQUESTS[header.request_api_key]
        version = header.request_api_version if version is None else version
        await self.send(b"".join(framing.encode_response(response, request, version, header.correlation_id)))

    async def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def handshake(self) -> m.ApiVersionsRequest:
        """Answer ApiVersions as brokers do."""
        request: m.ApiVersionsRequest = await self.read()
        await self.reply(self.api_versions())
        return request

    def api_versions(self, code: ErrorCode = ErrorCode.NONE) -> m.ApiVersionsResponse:
        """The versions that the broker supports."""
        keys = [m.ApiVersion(key, first, last) for key, (first, last) in self.versions.items()]
        return m.ApiVersionsResponse(code, keys)


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Runs `script` for each connection; `port` is set once it runs."""

    script: Script
    versions: dict[int, tuple[int, int]] = field(default_factory=lambda: {int(k): v for k, v in ADVERTISED.items()})
    port: int = 0
    tls: ssl.SSLContext | None = None
    connections: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def metadata(self, *others: int) -> m.MetadataResponse:
        """A cluster of this broker, id 1, and others at the given ports."""
        ports = [self.port, *others]
        brokers = [m.MetadataResponseBroker(number, "127.0.0.1", port) for number, port in enumerate(ports, 1)]
        return m.MetadataResponse(brokers=brokers, cluster_id="scripted", controller_id=1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Cancelled at the end of the test, which asyncio's streams would report as a failure.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self.script(Peer(reader, writer, self.versions, self.connections))
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedServer]:
        """Listen on a free port, or on `port` if it is set."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
                await task
            await asyncio.sleep(0)
            await server.wait_closed()


def answering(server_metadata: Callable[[], m.MetadataResponse], then: Script | None = None) -> Script:
    """A script: the handshake, then Metadata forever; other requests are passed to `then`, after they were read."""

    async def script(peer: Peer) -> None:
        await peer.handshake()
        while True:
            request = await peer.read()
            if isinstance(request, m.MetadataRequest):
                await peer.reply(server_metadata())
            elif then is not None:
                await then(peer)

    return script
