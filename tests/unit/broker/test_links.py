"""Connections between brokers: requests are answered in order or time out, whatever the other side does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.broker.links import core
from muster.broker.links.core import ANSWER_MS, CONNECT_MS, FIRST_BACKOFF_MS, LAST_BACKOFF_MS, LinkCore, LinkStep
from muster.broker.links.links import Links, Purpose
from muster.model import Node
from muster.protocol import framing
from muster.protocol import transaction_messages as t
from muster.protocol.messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tests.support.brokers import BrokerProcess

KEY = t.WriteTxnMarkersRequest.API_KEY
REQUEST = t.WriteTxnMarkersRequest([])


def answer(response: Any, request: Any, version: int, correlation_id: int) -> bytes:
    return b"".join(framing.encode_response(response, request, version, correlation_id))


def greeting(newest: int = 2, error: int = 0) -> bytes:
    found = ApiVersionsResponse(error, [ApiVersion(KEY, 1, newest)])
    return answer(found, ApiVersionsRequest, 0, 1)


def marked(correlation_id: int, producer_id: int = 7) -> bytes:
    found = t.WriteTxnMarkersResponse([t.WritableTxnMarkerResult(producer_id, [])])
    return answer(found, t.WriteTxnMarkersRequest, 2, correlation_id)


class Link:
    """A core, and what it has reported."""

    def __init__(self) -> None:
        self.core = LinkCore("test")
        self.answers: dict[str, Any] = {}
        self.last = LinkStep()

    def did(self, step: LinkStep) -> LinkStep:
        for done, response in step.answers:
            done(response)
        self.last = step
        return step

    def ask(self, name: str, now: int = 0, oldest: int = 2) -> LinkStep:
        def done(response: Any) -> None:
            assert name not in self.answers, "answered twice"
            self.answers[name] = response

        return self.did(self.core.ask(REQUEST, oldest, done, now))

    def ready(self, newest: int = 2) -> Link:
        self.core.connected(0)
        self.did(self.core.received(greeting(newest), 0))
        return self


def test_requests_wait_for_the_connection_and_its_greeting_and_go_in_order() -> None:
    link = Link()
    assert link.ask("a").connect
    assert not link.last.send
    assert not link.ask("b").connect
    hello = b"".join(link.core.connected(1).send)
    assert hello[4:6] == (18).to_bytes(2, "big")
    step = link.did(link.core.received(greeting(), 2))
    ids = [int.from_bytes(part[4:8], "big") for part in step.send if len(part) > 8]
    assert ids == sorted(ids)
    assert step.send
    link.did(link.core.received(marked(2) + marked(3)[:5], 3))
    assert set(link.answers) == {"a"}
    link.did(link.core.received(marked(3)[5:], 4))
    assert isinstance(link.answers["b"], t.WriteTxnMarkersResponse)
    assert link.core.deadline() is None


@pytest.mark.parametrize(
    ("what", "trouble"),
    [
        (marked(3), "other than the first"),
        (b"\xff\xff\xff\xff", "invalid frame length"),
        (b"HTTP/1.1 400", "exceeds the limit"),
        (marked(2)[:-1] + b"", None),
    ],
)
def test_what_is_not_the_answer_ends_the_connection(what: bytes, trouble: str | None) -> None:
    link = Link()
    link.ask("a")
    link.ready()
    step = link.did(link.core.received(what, 5))
    if trouble is None:  # half of a response
        assert not step.close
        assert not link.answers
    else:
        assert step.close
        assert trouble in (step.trouble or "")
        assert link.answers == {"a": None}


def test_an_answer_without_a_request_ends_the_connection() -> None:
    link = Link()
    link.ask("a")
    link.ready()
    link.did(link.core.received(marked(2), 1))
    assert link.did(link.core.received(marked(2), 1)).close


def test_a_broker_that_is_too_old_is_not_asked() -> None:
    link = Link()
    link.ask("a")
    link.ready(newest=1)
    assert link.answers == {"a": None}
    assert "only up to v1" in (link.last.trouble or "")
    assert not link.last.close


def test_a_greeting_that_is_refused_ends_the_connection() -> None:
    link = Link()
    link.ask("a")
    link.core.connected(0)
    assert link.did(link.core.received(greeting(error=35), 0)).close
    assert link.answers == {"a": None}


def test_what_takes_too_long_is_given_up() -> None:
    link = Link()
    link.ask("a", now=5)
    assert link.core.deadline() == 5 + CONNECT_MS
    assert not link.did(link.core.on_deadline(4 + CONNECT_MS)).close
    assert link.did(link.core.on_deadline(5 + CONNECT_MS)).close
    assert link.answers == {"a": None}
    link.ask("b", now=100_000)
    link.ready()
    link.ask("c", now=100_500)
    assert link.core.deadline() == 100_000 + ANSWER_MS
    assert link.did(link.core.on_deadline(100_000 + ANSWER_MS)).close
    assert link.answers == dict.fromkeys("abc")


def test_a_broker_that_is_away_is_not_tried_all_the_time() -> None:
    link, now, pause = Link(), 0, FIRST_BACKOFF_MS
    for attempt in range(8):
        assert link.ask(f"{attempt}", now).connect
        link.did(link.core.lost(now, "refused"))
        assert not link.ask(f"{attempt} again", now + pause - 1).connect
        now, pause = now + pause, min(pause * 2, LAST_BACKOFF_MS)
    assert set(link.answers.values()) == {None}
    assert len(link.answers) == 16
    link.ask("back", now)
    link.ready()
    link.did(link.core.received(marked(2), now))
    link.did(link.core.lost(now))
    assert link.ask("at once", now).connect, "a connection that worked is made again at once"


def test_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_WAITING", 2)
    link = Link()
    for name in "abc":
        link.ask(name)
    assert link.answers == {"c": None}


EVENTS = st.sampled_from(["ask", "connected", "greeted", "answered", "lost", "late", "closed"])


@given(st.lists(EVENTS, max_size=40))
def test_every_request_is_answered_once(events: list[str]) -> None:
    link, now, count = Link(), 0, 0
    connected = greeted = False
    for event in events:
        now += 700
        match event:
            case "ask":
                link.ask(f"{count}", now)
                count += 1
            case "connected" if link.core.waiting and not connected:
                link.did(link.core.connected(now))
                connected = True
            case "greeted" if connected and not greeted:
                correlation_id = link.core._correlation_id
                found = ApiVersionsResponse(0, [ApiVersion(KEY, 1, 2)])
                link.did(link.core.received(answer(found, ApiVersionsRequest, 0, correlation_id), now))
                greeted = True
            case "answered" if greeted and link.core.waiting:
                link.did(link.core.received(marked(link.core._correlation_id - link.core.waiting + 1), now))
            case "late":
                now += ANSWER_MS
                link.did(link.core.on_deadline(now))
            case "lost" if connected:
                link.did(link.core.lost(now))
            case "closed":
                link.did(link.core.closed())
        if link.last.close:
            connected = greeted = False
    link.did(link.core.lost(now))
    assert len(link.answers) == count
    assert not link.core.waiting


# ------------------------------------------------------------------------------------------------------------ sockets


class Peer:
    """A broker that completes the handshake, and then answers as `answers` says."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.silent = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, correlation_id = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[4:8], "big")
                if key == ApiVersionsRequest.API_KEY:
                    found = ApiVersionsResponse(0, [ApiVersion(KEY, 1, 2)])
                    writer.write(answer(found, ApiVersionsRequest, 0, correlation_id))
                elif not self.silent:
                    writer.write(marked(correlation_id))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def asked(links: Links, node: Node) -> Any:
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    links.ask(node, Purpose.MARKERS, REQUEST, 2, found.set_result)
    async with asyncio.timeout(120):
        return await found


async def serving(peer: Peer) -> tuple[asyncio.Server, Node]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    return server, Node(2, "127.0.0.1", server.sockets[0].getsockname()[1])


async def eventually(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not what():
            await asyncio.sleep(0.01)


async def test_one_connection_serves_all_requests_and_is_made_again() -> None:
    peer, links = Peer(), Links("muster-1")
    server, node = await serving(peer)
    async with server:
        found = await asyncio.gather(*(asked(links, node) for _ in range(20)))
        assert all(isinstance(each, t.WriteTxnMarkersResponse) for each in found)
        assert len(peer.connections) == 1
        peer.connections[0].close()
        await eventually(lambda: not links._links[Purpose.MARKERS, node]._connection)
        assert await asked(links, node) is not None
        assert len(peer.connections) == 2
        links.close()


async def test_a_broker_that_leaves_the_cluster_keeps_nobody_waiting() -> None:
    peer, links = Peer(), Links("muster-1")
    server, node = await serving(peer)
    async with server:
        peer.silent = True
        waiting = asyncio.ensure_future(asked(links, node))
        await eventually(lambda: peer.connections)
        links.keep([node])
        await asyncio.sleep(0)
        assert not waiting.done()
        links.keep([node._replace(port=1)])
        assert await waiting is None


async def test_a_port_that_nobody_has_open_is_said_at_once() -> None:
    links = Links("muster-1")
    server, node = await serving(Peer())
    server.close()
    await server.wait_closed()
    assert await asked(links, node) is None


@pytest.mark.slow
async def test_a_real_broker_answers(shared_muster: BrokerProcess) -> None:
    host, _, port = shared_muster.bootstrap.rpartition(":")
    links = Links("muster-2")
    found = await asked(links, Node(1, host, int(port)))
    assert isinstance(found, t.WriteTxnMarkersResponse)
    assert found.markers == []
    links.close()
