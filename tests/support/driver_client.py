"""A client's driver that gets one request after the other, and a scripted broker for it."""

import asyncio
import contextlib

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, Channel, Failure, Send
from muster.client.net.connection import ConnectionState
from muster.client.net.driver import CoreLoop, Driver
from muster.protocol.messages import HeartbeatResponse
from tests.support.scripted_server import ScriptedServer, answering

QUICK = {"reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


class Client:
    """A driver that gets one request after the other."""

    def __init__(self, bootstrap, **settings):
        self.config = ClientConfig.of(QUICK | {"bootstrap_servers": bootstrap} | settings)
        self.metadata = ClusterMetadata(self.config)
        self.driver = Driver(self.config, self.metadata)
        self.loop = CoreLoop(self.driver, [self.metadata])

    def begin(self, request, node_id=LEAST_LOADED, *, channel=Channel.DATA, timeout_ms=None, build=None, newest=None):
        answer = asyncio.get_running_loop().create_future()
        send = Send(
            node_id,
            type(request),
            build or (lambda version: request),
            lambda reply, now: answer.set_result(reply),
            channel,
            timeout_ms,
            newest,
        )
        self.driver.dispatch([send])
        return answer

    async def ask(self, request, node_id=LEAST_LOADED, **more):
        return await self.begin(request, node_id, **more)

    async def know(self, *node_ids):
        assert await self.loop.wait_for(lambda: set(node_ids) <= set(self.metadata.brokers), 20_000)


@contextlib.asynccontextmanager
async def client(bootstrap, **settings):
    made = Client(bootstrap, **settings)
    await made.loop.start()
    try:
        yield made
    finally:
        await made.loop.close()


@contextlib.asynccontextmanager
async def scripted(then=None, script=None, known=None, **settings):
    """A server and a client of it, which already knows a node."""
    server = ScriptedServer(script or (lambda peer: asyncio.sleep(0)))
    if script is None:
        server.script = answering(server.metadata, then)
    async with server.running(), client(server.bootstrap, **settings) as made:
        if known is not None:
            await made.know(known)
        yield server, made


def connected(driver):
    """The nodes to which a driver has a usable connection."""
    return [link.node for link in driver._connections.values() if link.state is ConnectionState.READY]


def failed(answer, kind=None):
    assert isinstance(answer, Failure), answer
    assert kind is None or answer.kind is kind
    return answer.message


async def echo(peer):
    """Answers Heartbeat with its generation as throttle time, so that answers can be distinguished."""
    await peer.reply(HeartbeatResponse())
