"""Which broker the driver asks, and at which address."""

import asyncio

import pytest

from muster.client.core.sends import Failure, FailureKind
from muster.model import Node
from muster.protocol.messages import (
    HeartbeatRequest,
    ListGroupsRequest,
)
from tests.support.driver_client import client, connected, echo, failed, scripted
from tests.support.peers import free_ports
from tests.support.scripted_server import ScriptedServer, answering


async def test_any_bootstrap_address_will_do():
    (dead,) = free_ports(1)
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata)
    async with server.running(), client(f"127.0.0.1:{dead},{server.bootstrap}") as made:
        await made.know(1)


async def test_bootstrap_connections_are_given_up_once_brokers_are_known():
    async with scripted(echo) as (_, made):
        await made.know(1)
        await made.ask(HeartbeatRequest(), 1)
        assert [node.node_id for node in connected(made.driver)] == [1]


async def test_when_all_known_brokers_are_gone_the_bootstrap_addresses_are_tried_again():
    """KIP-899: the cluster has moved, and only the bootstrap address still leads to it."""
    (gone,) = free_ports(1)
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata)
    async with server.running(), client(server.bootstrap) as made:
        await made.know(1)
        made.metadata.brokers = {5: Node(5, "127.0.0.1", gone)}
        assert not isinstance(await made.ask(ListGroupsRequest(), 5), type(None))
        await made.know(1)


async def test_a_broker_that_moved_is_found_at_its_new_address():
    first, second = (ScriptedServer(lambda peer: asyncio.sleep(0)) for _ in range(2))
    for server in (first, second):
        server.script = answering(server.metadata, echo)
    async with first.running(), second.running(), client(first.bootstrap) as made:
        await made.know(1)
        await made.ask(HeartbeatRequest(), 1)
        left = made.begin(ListGroupsRequest(), 1)
        made.metadata.brokers[1] = Node(1, "127.0.0.1", second.port)
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)
        async with asyncio.timeout(20):
            assert "moved" in failed(await left)
        assert [node.port for node in connected(made.driver)] == [second.port]


@pytest.mark.parametrize(("host", "port"), [("a\0b", 9092), ("." * 300, 9092), ("127.0.0.1", 70_000)])
async def test_an_address_that_is_none_fails_what_is_asked_there(host, port):
    """Metadata may say anything."""
    async with scripted(echo) as (_, made):
        await made.know(1)
        made.metadata.brokers[5] = Node(5, host, port)
        failed(await made.ask(HeartbeatRequest(), 5), FailureKind.UNREACHABLE)
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)


async def test_the_least_loaded_broker_is_asked():
    parked = asyncio.Event()

    async def never(peer):
        parked.set()

    busy, idle = (ScriptedServer(lambda peer: asyncio.sleep(0)) for _ in range(2))
    async with busy.running(), idle.running():
        busy.script = answering(lambda: busy.metadata(idle.port), never)
        idle.script = answering(lambda: busy.metadata(idle.port), echo)
        async with client(busy.bootstrap) as made:
            await made.know(1, 2)
            await made.ask(HeartbeatRequest(), 2)
            hanging = made.begin(HeartbeatRequest(), 1)
            await parked.wait()
            for _ in range(5):
                assert not isinstance(await made.ask(HeartbeatRequest()), Failure)
            assert not hanging.done()


async def test_idle_connections_are_closed():
    async with scripted(echo, connections_max_idle_ms=50) as (_, made):
        await made.know(1)
        # The driver looks at its connections when a request could be over: soon, whatever becomes of this one.
        await made.ask(HeartbeatRequest(), 1, timeout_ms=60)
        async with asyncio.timeout(20):  # other times are over after half a minute
            while connected(made.driver):
                await asyncio.sleep(0.01)
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)
