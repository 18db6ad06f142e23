"""The broker's own transports: real sockets, and a protocol that records its calls. With and without epoll."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from muster.broker.net.sockets import READ, Sockets, SocketTransport

pytestmark = pytest.mark.any_loop

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with timeout 0: closing resets the connection."""


class Noted(asyncio.BufferedProtocol):
    """Records the calls from its transport."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.buffer = bytearray(1 << 16)
        self.got = b""
        self.reported: list[str] = []
        self.then: Callable[[], None] = lambda: None
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.got += self.buffer[:count]
        self.then()

    def eof_received(self) -> bool:
        self.reported.append("end")
        return self.keep_open

    def pause_writing(self) -> None:
        self.reported.append("pause")

    def resume_writing(self) -> None:
        self.reported.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.reported.append("lost" if error is None else f"lost: {type(error).__name__}")


class Pairs:
    """Connected sockets: a transport with its protocol, and the far end, which does not block."""

    def __init__(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self.far: list[socket.socket] = []
        self.near: list[Noted] = []

    def pair(self) -> tuple[Noted, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            far = socket.create_connection(listening.getsockname())
            near, peer = listening.accept()
        near.setblocking(False)
        far.setblocking(False)
        protocol = Noted()
        SocketTransport(self.sockets, near, peer, protocol)
        self.far.append(far)
        self.near.append(protocol)
        return protocol, far

    async def close(self) -> None:
        for far in self.far:
            far.close()
        for protocol in self.near:
            protocol.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all([note for note in protocol.reported if note.startswith("lost")] for protocol in self.near)
        assert not self.sockets._transports
        self.sockets.close()


@pytest.fixture(params=[True, False], ids=["epoll", "loop"])
async def pairs(request: pytest.FixtureRequest) -> AsyncIterator[Pairs]:
    pairs = Pairs(Sockets(asyncio.get_running_loop(), epoll=request.param))
    yield pairs
    await pairs.close()


async def until(seen: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not seen():
            await asyncio.sleep(0.001)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_bytes_go_both_ways_until_the_far_end_closes(pairs: Pairs) -> None:
    near, far = pairs.pair()
    far.send(b"asked")
    await until(lambda: near.got)
    near.transport.write(b"answered")
    assert await asyncio.get_running_loop().sock_recv(far, 100) == b"answered"
    far.close()
    await until(lambda: "lost" in near.reported)
    assert (near.got, near.reported) == (b"asked", ["end", "lost"])
    assert near.transport.is_closing()


async def test_a_protocol_may_keep_what_the_far_end_has_closed(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.keep_open = True
    far.shutdown(socket.SHUT_WR)
    await until(lambda: near.reported)
    near.transport.pause_reading()
    near.transport.write(b"answered")
    assert await asyncio.get_running_loop().sock_recv(far, 100) == b"answered"
    assert not near.transport.is_closing()


async def test_what_the_far_end_does_not_take_is_kept_and_sent_when_it_does(pairs: Pairs) -> None:
    near, far = pairs.pair()
    data = bytes(range(256)) * 40_000
    near.transport.write(data)
    assert near.reported == ["pause"]
    kept = near.transport.get_write_buffer_size()
    assert 0 < kept < len(data)
    near.transport.write(b"behind it")
    assert near.transport.get_write_buffer_size() == kept + 9
    near.transport.close()
    received = b""
    while part := await asyncio.get_running_loop().sock_recv(far, 1 << 20):
        received += part
    assert received == data + b"behind it"
    await until(lambda: "lost" in near.reported)
    assert near.reported == ["pause", "resume", "lost"]


async def test_it_continues_after_a_pause(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.transport.write(bytes(10_000_000))
    received = 0
    while received < 10_000_000:
        received += len(await asyncio.get_running_loop().sock_recv(far, 1 << 20))
    await until(lambda: "resume" in near.reported)
    near.transport.write(b"more")
    assert near.transport.get_write_buffer_size() == 0
    assert near.reported == ["pause", "resume"]
    far.send(b"asked")
    await until(lambda: near.got)


async def test_nothing_is_read_while_it_pauses(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.transport.pause_reading()
    far.send(b"asked")
    await some_turns()
    assert near.got == b""
    near.transport.resume_reading()
    await until(lambda: near.got)


async def test_a_reset_is_reported_once(pairs: Pairs) -> None:
    near, far = pairs.pair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far.close()
    await until(lambda: near.reported)
    assert near.reported == ["lost: ConnectionResetError"]
    near.transport.write(b"too late")
    near.transport.close()
    near.transport.abort()
    await some_turns()
    assert near.reported == ["lost: ConnectionResetError"]


async def test_a_reset_while_answers_wait_is_reported(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.transport.pause_reading()
    near.transport.write(bytes(10_000_000))
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    far.close()
    await until(lambda: len(near.reported) > 1)
    assert near.reported[0] == "pause"
    assert near.reported[1].startswith("lost: ")
    assert near.transport.get_write_buffer_size() == 0


async def test_an_end_before_anything_was_read_is_in_peace(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.transport.close()
    near.transport.resume_reading()
    far.send(b"asked")
    await until(lambda: near.reported)
    assert (near.reported, near.got) == (["lost"], b"")


async def test_nothing_is_read_while_it_ends(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.transport.write(bytes(10_000_000))
    near.transport.close()
    near.transport.resume_reading()
    far.send(b"asked")
    await some_turns()
    assert near.got == b""


async def test_one_that_raises_ends_and_the_others_continue(pairs: Pairs) -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    error = RuntimeError("a defect")

    def defect() -> None:
        raise error

    both = [pairs.pair(), pairs.pair(), pairs.pair()]
    both[0][0].then = defect
    for _, far in both:
        far.send(b"asked")
    await until(lambda: all(near.got for near, _ in both) and both[0][0].reported)
    assert reported == [error]
    assert both[0][0].reported == ["lost: RuntimeError"]
    assert (both[1][0].reported, both[2][0].reported) == ([], [])


async def test_what_is_closed_by_one_that_was_read_before_it_is_not_read(pairs: Pairs) -> None:
    both = [pairs.pair(), pairs.pair()]
    for near, other in zip((both[0][0], both[1][0]), (both[1][0], both[0][0]), strict=True):
        near.then = other.transport.abort
    for _, far in both:
        far.send(b"asked")
    await until(lambda: all(near.got or near.reported for near, _ in both))
    assert sorted(near.got for near, _ in both) == [b"", b"asked"]


@pytest.mark.parametrize("how", ["pause_reading", "close"])
async def test_what_stops_reading_by_one_that_was_read_before_it_is_not_read(pairs: Pairs, how: str) -> None:
    """It is still being watched, because it has something to send."""
    both = [pairs.pair(), pairs.pair()]
    for near, other in zip((both[0][0], both[1][0]), (both[1][0], both[0][0]), strict=True):
        near.transport.write(bytes(10_000_000))
        near.then = getattr(other.transport, how)
    for _, far in both:
        far.send(b"asked")
    await until(lambda: any(near.got for near, _ in both))
    await some_turns()
    assert sorted(near.got for near, _ in both) == [b"", b"asked"]


async def test_an_end_is_reported_once_to_a_protocol_that_keeps_the_connection(pairs: Pairs) -> None:
    near, far = pairs.pair()
    near.keep_open = True
    far.shutdown(socket.SHUT_WR)
    await until(lambda: near.reported)
    await some_turns()
    assert near.reported == ["end"]


async def test_hundreds_are_read_in_one_turn_of_the_loop() -> None:
    pairs = Pairs(Sockets(asyncio.get_running_loop(), epoll=True))
    both = [pairs.pair() for _ in range(200)]
    for _, far in both:
        far.send(b"asked")
    pairs.sockets._turn()
    assert all(near.got for near, _ in both)
    await pairs.close()


async def test_after_the_end_none_is_waited_for(pairs: Pairs) -> None:
    near, _ = pairs.pair()
    near.transport.abort()
    await some_turns()
    pairs.sockets.close()
    pairs.sockets.close()
    pairs.sockets.watch(near.transport, 0, 0, READ)
