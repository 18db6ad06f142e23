"""Whatever requests come, whole or damaged: each is answered or its connection closed, none causes an unexpected error
in the broker, nothing stays in its memory, and other clients are served."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest

from muster.broker.broker import Broker
from muster.protocol import framing
from muster.protocol import messages as m
from muster.protocol.api import ApiKey
from muster.protocol.primitives import Request
from tests.support import brokers
from tests.support.random_messages import RandomRequests
from tests.support.scale import fresh_seeds, seeds

FRAMES = 400
_WAIT = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FETCH})
"""Requests that may wait for others, or for their timeout."""

SENTINEL = pack(">ihhihi", 14, 18, 0, 1_000_000, 4, 0x66757A7A)  # ApiVersions v0 of the client "fuzz"
LIMIT_S = 180


async def ends_or_continues(broker: Broker, frames: list[bytes]) -> None:
    """Send frames and a request after them: it is answered, or the connection is closed."""
    reader, writer = await asyncio.open_connection(broker.node.host, broker.node.port)
    try:
        writer.write(b"".join(frames) + SENTINEL)
        async with asyncio.timeout(LIMIT_S):
            while True:
                [size] = unpack(">i", await reader.readexactly(4))
                answer = await reader.readexactly(size)
                if answer[:4] == pack(">i", 1_000_000):
                    return
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def send_and_leave(broker: Broker, frames: list[bytes]) -> None:
    """Send frames that may have to wait, read for a moment, and disconnect."""
    _, writer = await asyncio.open_connection(broker.node.host, broker.node.port)
    writer.write(b"".join(frames))
    for _ in range(20):
        await asyncio.sleep(0)
    writer.transport.abort()


async def is_served(broker: Broker) -> None:
    """A client that behaves correctly."""
    reader, writer = await asyncio.open_connection(broker.node.host, broker.node.port)
    async with asyncio.timeout(LIMIT_S):
        asked: tuple[tuple[Request[Any], int], ...] = (
            (m.MetadataRequest([]), 12),
            (m.HeartbeatRequest("nobody", 1, "x"), 4),
        )
        for request, version in asked:
            writer.write(b"".join(framing.encode_request(request, version, 1, "good")))
            [size] = unpack(">i", await reader.readexactly(4))
            framing.decode_response(await reader.readexactly(size), type(request), version)
    writer.transport.abort()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*seeds(3), *fresh_seeds(1)])
async def test_any_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    requests = RandomRequests(seed)
    settings = {"offsets.topic.num.partitions": 2, "max.incremental.fetch.session.cache.partitions": 100}
    gc.collect()  # whatever other tests have left may raise warnings now
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        async with brokers.running(tmp_path / "data", settings) as broker:
            for number in range(0, FRAMES, 4):
                made = [requests.frame(number + index) for index in range(4)]
                act = send_and_leave if any(key in _WAIT for key, _ in made) else ends_or_continues
                await act(broker, [data for _, data in made])
                if number % 40 == 0:
                    await is_served(broker)
            server = broker._server
            while server.connections or len(server.slices):
                await asyncio.sleep(0.01)
            assert (server.intake.bytes, server.connections.unread_bytes, len(broker.fetches)) == (0, 0, 0)
            assert broker.sessions.partitions <= 100
    surprises = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not surprises, surprises[0].getMessage() + str(surprises[0].exc_info)
