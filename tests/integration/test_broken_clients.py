"""Whatever bytes arrive, the broker continues: a clear line in its log and a closed connection, or an answer."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.broker.broker import Broker
from muster.broker.net.connection import READ_BYTES
from muster.protocol import codec, framing
from muster.protocol import messages as m
from muster.protocol.api import ADVERTISED, REQUESTS, ApiKey, request_header_version
from muster.protocol.messages import RequestHeader
from tests.support import brokers
from tests.support.brokers import RawClient, in_thread
from tests.support.said import said
from tests.support.scale import examples


def still_serves(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        assert client.ask(m.MetadataRequest(), 12).brokers


def poke(bootstrap: str, data: bytes) -> bytes:
    with RawClient(bootstrap) as client:
        return client.poke(data)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A valid header of a request that exists, followed by any bytes."""
    key = draw(st.sampled_from(sorted(ADVERTISED)))
    request = REQUESTS[key]
    version = draw(st.integers(request.MIN_VERSION, request.MAX_VERSION))
    header = RequestHeader(int(key), version, draw(st.integers(0, 2**31 - 1)), draw(st.text(max_size=5)))
    start = codec.encode(header, request_header_version(request, version))
    if draw(st.booleans()):
        whole = codec.encode(request(), version)
        cut = draw(st.integers(0, len(whole)))
        body = whole[:cut] + draw(st.binary(max_size=8)) + whole[cut:]
    else:
        body = draw(st.binary(max_size=64))
    return framed(start + body)


BYTES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(framed),
    st.lists(requests(), min_size=1, max_size=4).map(b"".join),
)


@given(BYTES)
@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_bytes(shared_muster: brokers.BrokerProcess, data: bytes) -> None:
    poke(shared_muster.bootstrap, data)
    still_serves(shared_muster.bootstrap)


@pytest.mark.parametrize("key", sorted(ADVERTISED))
def test_a_request_without_a_body(shared_muster: brokers.BrokerProcess, key: ApiKey) -> None:
    newest = ADVERTISED[key][1]
    header = codec.encode(RequestHeader(int(key), newest, 1, "x"), request_header_version(REQUESTS[key], newest))
    poke(shared_muster.bootstrap, framed(header))
    still_serves(shared_muster.bootstrap)


@pytest.fixture(scope="module", autouse=True)
def no_traceback(shared_muster: brokers.BrokerProcess) -> Iterator[None]:
    """No bytes cause an unexpected error in the broker."""
    yield
    assert "Traceback" not in shared_muster.log()


@pytest.fixture
async def small_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with narrow limits."""
    limits = {"socket.request.max.bytes": 2_000_000, "queued.max.request.bytes": 2_500_000, "max.connections": 5}
    async with brokers.running(tmp_path / "data", limits) as broker:
        yield broker


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "exceeds the limit of 2000000"),
        (b"\xff\xff\xff\xff", "does the peer speak Kafka's protocol?"),
        (framed(b"\0\0"), "too short for a request"),
        (framed(b"\x7f\x7f\0\1\0\0\0\1\0\0"), "unsupported request: key 32639, version 1"),
        (framed(b"\0\3\0\x63\0\0\0\1\0\0"), "unsupported request: key 3, version 99"),
        (framed(b"\0\3\0\1\0\0\0\1\0\1\xff\0\0\0\0"), "the client id is not valid UTF-8"),
        (framed(b"\0\3\0\1\0\0\0\1\0\0\x7f\xff\xff\xff"), "MetadataRequest v1"),
    ],
)
async def test_garbage_ends_in_one_line(
    small_broker: Broker, caplog: pytest.LogCaptureFixture, data: bytes, line: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await in_thread(poke, small_broker.bootstrap, data) == b""
    [reported] = said(caplog, "muster.broker")
    assert reported.startswith("closed the connection of 127.0.0.1:")
    if line != "MetadataRequest v1":
        assert line in reported
    await in_thread(still_serves, small_broker.bootstrap)


async def test_a_request_that_comes_byte_by_byte(muster_broker: Broker) -> None:
    request = b"".join(framing.encode_request(m.MetadataRequest(), 12, 7, "slow"))
    reader, writer = await asyncio.open_connection(muster_broker.node.host, muster_broker.node.port)
    for byte in request:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0)
    [size] = struct.unpack(">i", await reader.readexactly(4))
    answer = framing.decode_response(await reader.readexactly(size), m.MetadataRequest, 12)
    assert answer.brokers[0].port == muster_broker.node.port
    writer.close()
    await writer.wait_closed()


async def test_answers_come_in_the_order_of_the_requests(muster_broker: Broker) -> None:
    """A fetch that waits delays the requests after it."""

    def pipelined() -> list[int]:
        with RawClient(muster_broker.bootstrap) as client:
            client.ask(m.MetadataRequest([m.MetadataRequestTopic(name="order")]), 9)
            topics = [m.FetchTopic("order", partitions=[m.FetchPartition(0, partition_max_bytes=1000)])]
            sent = [client.send(m.FetchRequest(max_wait_ms=100, min_bytes=1, topics=topics), 11)]
            sent += [client.send(m.MetadataRequest(), 9) for _ in range(20)]
            found = [struct.unpack(">i", client.receive_frame()[:4])[0] for _ in sent]
            assert found == sent
            return found

    assert len(await in_thread(pipelined)) == 21


async def test_large_requests_wait_for_memory(small_broker: Broker) -> None:
    """Half a frame takes room only for its bytes: complete frames that need most of the memory are answered
    meanwhile."""
    name = b"\0\3\0\1\0\0\0\1\0\0" + struct.pack(">i", 1)
    frame = framed(name + struct.pack(">h", 5) + b"topic" + bytes(1_900_000))
    half, *whole = [await asyncio.open_connection(small_broker.node.host, small_broker.node.port) for _ in range(4)]
    half[1].write(frame[: READ_BYTES * 2])
    await half[1].drain()
    for reader, writer in whole:
        writer.write(frame)
        assert len(await asyncio.wait_for(reader.readexactly(4), 300)) == 4
        writer.close()
        await writer.wait_closed()
    half[1].write(frame[READ_BYTES * 2 :])
    assert len(await half[0].readexactly(4)) == 4
    half[1].close()
    await half[1].wait_closed()


async def test_a_large_frame_of_a_lost_connection_gives_its_memory_back(small_broker: Broker) -> None:
    frame = framed(bytes(1_900_000))
    for _ in range(4):
        _, writer = await asyncio.open_connection(small_broker.node.host, small_broker.node.port)
        writer.write(frame[: READ_BYTES * 2])
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()
    request = m.MetadataRequest([m.MetadataRequestTopic(name="x" * 200)] * 9_000)

    def large() -> int:
        with RawClient(small_broker.bootstrap) as client:
            return len(client.ask(request, 9).topics)

    assert await in_thread(large) == 1


async def test_too_many_connections(small_broker: Broker) -> None:
    held = [RawClient(small_broker.bootstrap) for _ in range(5)]
    connections = small_broker._server.connections
    while len(connections) < 5:
        await asyncio.sleep(0)
    refused = RawClient(small_broker.bootstrap)
    assert await in_thread(refused.closed)
    refused.close()
    held.pop().close()
    while len(connections) == 5:
        await asyncio.sleep(0)
    await in_thread(still_serves, small_broker.bootstrap)
    for client in held:
        client.close()


async def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async with brokers.running(tmp_path / "data", {"connections.max.idle.ms": 200}) as broker:
        client = RawClient(broker.bootstrap)
        assert await in_thread(client.closed)
        client.close()
