"""Which broker the driver uses, and at which address."""

import asyncio
import contextlib

import pytest

from muster.client.core.sends import Failure, FailureKind
from muster.model import Node
from muster.protocol.messages import HeartbeatRequest, ListGroupsRequest
from tests.support.driver_client import client, connected, echo, failed, scripted
from tests.support.peers import free_ports
from tests.support.scripted_server import ScriptedServer, answering

pytestmark = pytest.mark.any_loop


async def test_any_bootstrap_address_will_do():
    (dead,) = free_ports(1)
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata)
    async with server.running(), client(f"127.0.0.1:{dead},{server.bootstrap}") as made:
        await made.know(1)


async def test_bootstrap_connections_are_given_up_once_brokers_are_known():
    async with scripted(echo, known=1) as (_, made):
        await made.ask(HeartbeatRequest(), 1)
        assert [node.node_id for node in connected(made.driver)] == [1]


async def test_when_all_known_brokers_are_gone_the_bootstrap_addresses_are_tried_again():
    """KIP-899: the cluster has moved, and only the bootstrap address still reaches it."""
    (gone,) = free_ports(1)
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata)
    async with server.running(), client(server.bootstrap) as made:
        await made.know(1)
        made.metadata.brokers = {5: Node(5, "127.0.0.1", gone)}
        assert not isinstance(await made.ask(ListGroupsRequest(), 5), type(None))
        await made.know(1)


async def silent(_peer):
    """Accepts a connection and says nothing, like a suspended broker whose system still accepts for it."""
    await asyncio.Event().wait()


@pytest.mark.slow
async def test_a_bootstrap_address_that_never_answers_holds_nothing_up():
    """Whichever is tried first: a request for any broker does not wait long for one that is silent."""
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata)
    frozen = [ScriptedServer(silent) for _ in range(3)]
    async with server.running(), contextlib.AsyncExitStack() as stack:
        for other in frozen:
            await stack.enter_async_context(other.running())
        addresses = ",".join([*(other.bootstrap for other in frozen), "nowhere.invalid:9092", server.bootstrap])
        async with client(addresses, request_timeout_ms=600_000) as made:
            await made.know(1)


async def test_known_brokers_that_never_answer_give_way_to_the_bootstrap_addresses():
    frozen, server = ScriptedServer(silent), ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata, echo)
    async with server.running(), frozen.running(), client(server.bootstrap, request_timeout_ms=600_000) as made:
        await made.know(1)
        made.metadata.brokers = {5: Node(5, "127.0.0.1", frozen.port)}
        async with asyncio.timeout(20):
            assert not isinstance(await made.ask(HeartbeatRequest()), Failure)


async def test_without_recovery_only_known_brokers_are_asked():
    """KIP-899: metadata.recovery.strategy=none."""
    (gone,) = free_ports(1)
    async with scripted(echo, metadata_recovery_strategy="none", known=1) as (_, made):
        made.metadata.brokers = {5: Node(5, "127.0.0.1", gone)}
        for _ in range(5):
            failed(await made.ask(HeartbeatRequest()), FailureKind.UNREACHABLE)


async def test_to_start_over_ends_the_connections_to_known_brokers():
    """KIP-1102: requests in flight there are given up, and the bootstrap address is used."""

    async def never(peer):
        started.set()

    started = asyncio.Event()
    async with scripted(never, known=1) as (_, made):
        hanging = made.begin(HeartbeatRequest(), 1)
        await started.wait()
        made.metadata.rebootstrap(made.driver.now())
        made.loop.wakeup()
        async with asyncio.timeout(20):
            assert "starting over" in failed(await hanging, FailureKind.DISCONNECTED)
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
async def test_an_invalid_address_fails_what_is_asked_there(host, port):
    """Metadata may contain anything."""
    async with scripted(echo, known=1) as (_, made):
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
    async with scripted(echo, connections_max_idle_ms=50, known=1) as (_, made):
        # The driver checks its connections when a request could have timed out: soon, whatever happens to this one.
        await made.ask(HeartbeatRequest(), 1, timeout_ms=60)
        async with asyncio.timeout(20):  # other timeouts are at half a minute
            while connected(made.driver):
                await asyncio.sleep(0.01)
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)
