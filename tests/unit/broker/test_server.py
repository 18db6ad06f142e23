"""One connection cannot block the others: every limit is checked by counting on a real server with real sockets.

The handlers here are the test's own. No test measures time: each checks which requests were handled, in which order,
and how many bytes the server keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.broker.net.calls import NO_RESPONSE, SMALL, Api, Call, CloseConnectionError
from muster.broker.net.connection_core import HIGH_WATER, ConnectionCore
from muster.broker.net.connections import RateLimitedWarning
from muster.broker.net.server import Server
from muster.errors import MusterError
from muster.protocol import codec, framing
from muster.protocol import messages as m
from tests.support.brokers import broker_config, running
from tests.support.said import said

VERSION = 12
TEXT = "x" * 30_000


class Peer:
    """One client's socket. `ask` numbers the requests; answers are recognized by that number."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.sent = 0

    async def ask(self, *names: str, times: int = 1) -> None:
        """Send requests, without waiting for answers."""
        request = m.MetadataRequest([m.MetadataRequestTopic(name=name) for name in names])
        frames = []
        for _ in range(times):
            self.sent += 1
            frames += framing.encode_request(request, VERSION, self.sent, "peer")
        await self.loop.sock_sendall(self.socket, b"".join(map(bytes, frames)))

    async def answer(self) -> tuple[int, m.MetadataResponse]:
        """The next answer: its number and message. EOFError: the connection was closed."""
        size = int.from_bytes(await self._exactly(4), "big")
        frame = await self._exactly(size)
        return framing.correlation_id(frame), framing.decode_response(frame, m.MetadataRequest, VERSION)

    async def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = await asyncio.wait_for(self.loop.sock_recv(self.socket, count - len(data)), 120)
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    async def round_trip(self) -> None:
        """Ask and get an answer: by then the server has completed a turn of its loop."""
        await self.ask("round trip")
        await self.answer()


@contextlib.asynccontextmanager
async def serving(
    handle: Callable[[m.MetadataRequest, Call], Any],
    *,
    pipelined: bool = False,
    most_elements: int = 1 << 20,
    **limits: int,
) -> AsyncIterator[tuple[Server, Callable[..., Peer]]]:
    """A server with one handler, and a function that connects to it."""
    api = Api(m.MetadataRequest, 0, 13, handle, pipelined, None, most_elements)
    settings = {
        "max_connections": 100,
        "max_request_bytes": 100_000_000,
        "max_bytes_in_flight": 100_000_000,
        "max_unread_bytes": 100_000_000,
        "max_idle_ms": -1,
    } | limits
    server = Server({3: api}, backlog=50, **settings)  # type: ignore[arg-type]
    port = await server.bind("127.0.0.1", 0)
    server.accept()
    peers: list[Peer] = []

    def connect(receive_buffer: int | None = None) -> Peer:
        peers.append(Peer(port, receive_buffer))
        return peers[-1]

    try:
        yield server, connect
    finally:
        for peer in peers:
            peer.socket.close()
        await server.close()


def small(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
    return m.MetadataResponse(cluster_id="small")


def only(server: Server) -> ConnectionCore:
    [connection] = server.connections
    return connection


async def test_a_peer_that_does_not_read_has_few_requests_handled() -> None:
    handled = 0

    def large(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        nonlocal handled
        handled += 1
        return m.MetadataResponse(cluster_id=TEXT)

    async with serving(large) as (server, connect):
        peer, other = connect(), connect()
        await peer.ask(times=1_000)
        before = -2
        while handled != before + 1:  # until the sockets are full; one of the requests is the other peer's
            before = handled
            for _ in range(20):
                await asyncio.sleep(0)
            await other.round_trip()
        connection = next(one for one in server.connections if one.unread)
        assert handled < 900, "the rest of the 30 MB waits as requests of a few bytes"
        assert connection.unread <= HIGH_WATER + len(TEXT) + 100
        for number in range(1, 1_001):
            found, answer = await peer.answer()
            assert (found, answer.cluster_id) == (number, TEXT)
        assert connection.unread == 0
        assert server.connections.unread_bytes == 0


async def test_of_peers_that_do_not_read_the_slowest_goes_when_too_much_waits(caplog: pytest.LogCaptureFixture) -> None:
    topics = [m.MetadataResponseTopic(name=TEXT) for _ in range(SMALL // 4)]  # 15 MB, more than sockets take

    def large(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        return m.MetadataResponse(topics=topics if request.topics else [])

    async with serving(large, max_unread_bytes=20_000_000) as (server, connect):
        slow = connect(4096)
        await slow.ask("large")
        while not server.connections.unread:
            await asyncio.sleep(0)
        [first] = server.connections.unread
        with caplog.at_level(logging.WARNING):
            others = [connect(4096) for _ in range(2)]
            for other in others:
                await other.ask("large")
            while first in server.connections:
                await asyncio.sleep(0)
        assert "it does not read its answers" in caplog.text
        assert server.connections.unread_bytes <= 20_000_000
        with pytest.raises((EOFError, ConnectionResetError)):
            await slow.answer()
        number, answer = await others[-1].answer()
        assert (number, len(answer.topics)) == (1, len(topics))


async def test_what_a_lost_peer_did_not_take_is_freed() -> None:
    def large(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        return m.MetadataResponse(topics=[m.MetadataResponseTopic(name=TEXT) for _ in range(500)])

    async with serving(large) as (server, connect):
        peer = connect(4096)
        await peer.ask()
        while not server.connections.unread_bytes:
            await asyncio.sleep(0)
        connection = only(server)
        peer.socket.close()
        while server.connections:
            await asyncio.sleep(0)
        assert (server.connections.unread_bytes, connection.out, connection.unread) == (0, [], 0)


async def test_others_are_served_between_the_frames_of_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.broker.net.connection_core.SLICE_S", 0.0)  # one frame in a turn of the loop
    order = []

    def note(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        assert request.topics is not None
        order.append(request.topics[0].name)
        return small(request, call)

    async with serving(note) as (_, connect):
        flood, other = connect(), connect()
        await flood.ask("first")
        await flood.answer()
        await other.ask("first")
        await other.answer()
        await flood.ask("flood", times=500)
        await other.ask("other")
        await other.answer()
        assert order.index("other") < 250
        for number in range(2, 502):
            assert (await flood.answer())[0] == number


async def test_a_large_request_is_handled_alongside_others() -> None:
    order: list[str] = []

    def sliced(request: m.MetadataRequest, call: Call) -> Any:
        names = [topic.name or "" for topic in request.topics or []]
        if len(names) == 1:
            order.append(names[0])
            return small(request, call)
        return steps(names)

    def steps(names: list[str]) -> Generator[None, None, m.MetadataResponse]:
        for number, _ in enumerate(names):
            order.append(f"step {number}")
            yield
        return m.MetadataResponse(topics=[m.MetadataResponseTopic(name=name) for name in names])

    async with serving(sliced) as (server, connect):
        server.slices._clock = iter(range(1 << 30)).__next__  # each reading of the clock is the end of a slice
        large, other = connect(), connect()
        names = [f"topic-{number}" for number in range(SMALL + 500)]
        await large.ask(*names)
        await large.ask("behind it")
        while not order:
            await asyncio.sleep(0)
        await other.ask("other")
        await other.answer()
        assert order[0] == "step 0"
        assert f"step {len(names) - 1}" not in order, "the other was answered before the large one was done"
        number, answer = await large.answer()
        assert (number, [topic.name for topic in answer.topics]) == (1, names)
        assert "behind it" not in order[: order.index(f"step {len(names) - 1}")]
        assert (await large.answer())[0] == 2


async def test_a_large_answer_is_encoded_in_slices_and_is_the_same() -> None:
    partitions = [m.MetadataResponsePartition(0, index, 1, 0, [1], [1]) for index in range(SMALL)]
    whole = m.MetadataResponse(topics=[m.MetadataResponseTopic(0, "t", partitions=partitions)], cluster_id="c")

    async with serving(lambda request, call: whole) as (_, connect):
        peer = connect()
        await peer.ask(times=2)
        for number in (1, 2):
            assert await peer.answer() == (number, whole)
    parts: list[Any] = []
    turns = sum(1 for _ in codec.encode_sliced(whole, VERSION, parts.append))
    assert b"".join(parts) == codec.encode(whole, VERSION)
    assert turns > SMALL // 200


async def test_too_many_elements_are_refused_before_they_are_decoded(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []

    def note(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
        handled.append(len(request.topics or ()))
        return small(request, call)

    async with serving(note, most_elements=3_000) as (_, connect):
        peer = connect()
        await peer.ask(*["t"] * 3_000)
        await peer.answer()
        with caplog.at_level(logging.WARNING):
            await peer.ask(*["t"] * 3_001)
            with pytest.raises(EOFError):
                await peer.answer()
    assert handled == [3_000]
    [line] = said(caplog, "muster.broker")
    assert "have more elements than are allowed" in line


async def test_nobody_is_left_without_an_answer_by_a_handler_that_forgets(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Call] = []

    def careless(request: m.MetadataRequest, call: Call) -> None:
        if request.topics:
            kept.append(call)

    async with serving(careless) as (server, connect):
        forgotten, waiting = connect(), connect()
        await waiting.ask("kept")
        await forgotten.ask()
        while sum(one.waiting for one in server.connections) < 2:
            await asyncio.sleep(0)
        with caplog.at_level(logging.ERROR):
            server.connections.close_forgotten()
        with pytest.raises((EOFError, ConnectionResetError)):
            await forgotten.answer()
        assert "its MetadataRequest was never answered" in caplog.text
        kept.pop().reply(m.MetadataResponse(cluster_id="late"))
        assert (await waiting.answer())[1].cluster_id == "late"


@pytest.mark.parametrize("when", ["at once", "later", "in slices"])
@pytest.mark.parametrize("how", [ValueError("surprise"), CloseConnectionError("no"), "not encodable"])
@pytest.mark.interpreted
async def test_a_handler_that_fails_ends_its_connection(when: str, how: Any) -> None:
    def fail() -> m.MetadataResponse:
        if isinstance(how, Exception):
            raise how
        return m.MetadataResponse(throttle_time_ms=how)

    def sliced() -> Generator[None, None, m.MetadataResponse]:
        yield
        return fail()

    def handle(request: m.MetadataRequest, call: Call) -> Any:
        if request.topics:
            return small(request, call)
        if when == "at once":
            return fail()
        if when == "in slices":
            return sliced()
        asyncio.get_running_loop().call_soon(lambda: call.reply(sliced() if isinstance(how, Exception) else fail()))
        return None

    async with serving(handle) as (server, connect):
        peer, other = connect(), connect()
        await peer.ask()
        with pytest.raises((EOFError, ConnectionResetError)):
            await peer.answer()
        await other.round_trip()
        assert len(server.connections) == 1


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_frame_that_is_still_worked_on_counts_when_its_connection_has_ended(keeps: bool) -> None:
    calls: list[Call] = []

    def park(request: m.MetadataRequest, call: Call) -> None:
        call.keeps_frame = keeps
        calls.append(call)

    async with serving(park) as (server, connect):
        peer = connect()
        await peer.ask(*["t" * 30_000] * 20)
        while not calls:
            await asyncio.sleep(0)
        assert server.intake.bytes > 600_000
        peer.socket.close()
        while server.connections:
            await asyncio.sleep(0)
        assert (server.intake.bytes > 600_000) == keeps
        for _ in range(2):
            calls[0].give_frame_back()
            assert server.intake.bytes == 0


async def test_a_second_answer_changes_nothing() -> None:
    def twice(request: m.MetadataRequest, call: Call) -> None:
        call.reply(m.MetadataResponse(cluster_id="first"))
        call.reply(m.MetadataResponse(cluster_id="second"))

    async with serving(twice) as (_, connect):
        peer = connect()
        for number in (1, 2):
            await peer.ask()
            found, answer = await peer.answer()
            assert (found, answer.cluster_id) == (number, "first")


async def test_answers_after_one_that_waits_stop_further_requests() -> None:
    """A pipelined request waits for the disk; what is answered after it counts as waiting answers."""
    calls: list[Call] = []

    def handle(request: m.MetadataRequest, call: Call) -> m.MetadataResponse | None:
        calls.append(call)
        return None if len(calls) == 1 else m.MetadataResponse(cluster_id=TEXT)

    async with serving(handle, pipelined=True) as (_, connect):
        peer = connect()
        await peer.ask(times=100)
        while len(calls) < 2:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(calls) <= 2 + HIGH_WATER // len(TEXT)
        calls[0].reply(m.MetadataResponse(cluster_id="disk"))
        for number in range(1, 101):
            assert (await peer.answer())[0] == number


async def test_a_request_without_an_answer_is_over() -> None:
    async with serving(lambda request, call: small(request, call) if request.topics else NO_RESPONSE) as (
        server,
        connect,
    ):
        peer = connect()
        await peer.ask()
        await peer.ask("answered")
        assert (await peer.answer())[0] == 2
        assert not only(server).waiting


def test_lines_that_say_the_same_are_few(caplog: pytest.LogCaptureFixture) -> None:
    seldom = RateLimitedWarning(iter((0.0, 1.0, 2.0, 4.9, 5.0, 6.0)).__next__)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            seldom.warn("no descriptors")
    assert said(caplog, "muster.broker") == ["no descriptors", "no descriptors (3 similar messages suppressed)"]


async def test_many_connections_wait_to_be_accepted_while_the_loop_is_busy(tmp_path: Path) -> None:
    """The loop never runs meanwhile, so only the kernel accepts them; it would drop those beyond the backlog."""
    async with running(tmp_path) as broker:
        host, port = broker.bootstrap.rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=0.9))


async def test_a_port_that_cannot_be_opened_leaves_nothing_that_the_loop_watches(tmp_path: Path) -> None:
    loop: Any = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"}
        before = len(loop._selector.get_map())
        with pytest.raises(MusterError, match="cannot listen"):
            await Broker(broker_config(tmp_path / "data", settings)).start()
        assert len(loop._selector.get_map()) == before
