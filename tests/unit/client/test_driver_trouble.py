"""The driver against a scripted broker: what goes wrong on connections, and how it reacts."""

import asyncio
import copy
import gc
import logging
import socket
import ssl
import struct
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import trustme

from muster import Consumer
from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, Channel, Failure, FailureKind, Send
from muster.client.net.connection import ConnectionState
from muster.client.net.driver import Driver
from muster.errors import ErrorCode
from muster.protocol import framing
from muster.protocol import messages as m
from tests.support.driver_client import client, echo, failed, scripted
from tests.support.peers import free_ports
from tests.support.scripted_server import ScriptedServer, answering

pytestmark = pytest.mark.any_loop

# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_no_answer_in_time_closes_the_connection():
    async def then(peer):
        if peer.header.request_api_key == m.ListGroupsRequest.API_KEY:
            await asyncio.Event().wait()  # never
        await peer.reply(m.HeartbeatResponse())

    async with scripted(then) as (server, made):
        await made.know(1)
        await made.ask(m.HeartbeatRequest(), 1)  # connected: a short timeout is for the answer alone
        first = made.begin(m.ListGroupsRequest(), 1, timeout_ms=50)
        second = made.begin(m.HeartbeatRequest(), 1)
        assert "did not answer ListGroupsRequest in time" in failed(await first, FailureKind.TIMEOUT)
        failed(await second, FailureKind.DISCONNECTED)
        before = server.connections
        assert not isinstance(await made.ask(m.HeartbeatRequest(), 1), Failure)
        assert server.connections > before


async def test_a_client_that_ends_while_it_connects_does_not_blame_the_broker(caplog):
    """asyncio closes the socket of a connection that is being established when its task is cancelled."""
    heard = asyncio.Event()

    async def never(peer):
        heard.set()
        await asyncio.Event().wait()

    async with scripted(never) as (_, made):
        asked = made.begin(m.HeartbeatRequest(), LEAST_LOADED)
        tasks = made.driver._tasks
        while not any(one.state is ConnectionState.HANDSHAKE for one in made.driver._connections.values()):
            await asyncio.sleep(0)
        assert tasks  # the connection is established, but its task does not know it yet
        for task in list(tasks):
            task.cancel()
        failed(await asked, FailureKind.UNREACHABLE)
        await asyncio.sleep(0.01)
        assert not [text for text in caplog.messages if "closed the connection" in text]


class OddLoop:
    """An event loop whose transports share only their methods with asyncio's. One of these methods may fail."""

    def __init__(self):
        self.failing = ""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name):
        return getattr(self._loop, name)

    async def create_connection(self, protocol_factory, *args, **named):
        loop = self

        class Transport:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, name):
                if name == loop.failing:
                    raise AttributeError(f"there is no {name} here")
                return getattr(self.inner, name)

        protocol = protocol_factory()
        made = protocol.connection_made
        protocol.connection_made = lambda transport: made(Transport(transport))
        return await self._loop.create_connection(lambda: protocol, *args, **named)


async def test_a_transport_need_not_be_of_asyncios_class():
    async with scripted(echo) as (_, made):
        made.driver._loop = OddLoop()
        assert isinstance(await made.ask(m.HeartbeatRequest()), m.HeartbeatResponse)


async def test_a_name_that_is_looked_up_by_hand_is_the_name_that_the_certificate_must_have(tmp_path):
    """When the interpreter exits, asyncio has no thread left to resolve names, and the last records are sent anyway.
    The certificate contains only names, as most do."""

    class Ending(OddLoop):
        async def create_connection(self, protocol_factory, host, *args, **named):
            if host == "localhost":
                raise RuntimeError("cannot schedule new futures after shutdown")
            return await super().create_connection(protocol_factory, host, *args, **named)

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = ScriptedServer(lambda peer: asyncio.sleep(0))
    server.script = answering(server.metadata, echo)
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server.tls)
    settings = {"security_protocol": "SSL", "ssl_truststore_location": str(tmp_path / "ca.pem")}
    async with server.running(), client(f"localhost:{server.port}", **settings) as made:
        made.driver._loop = Ending()
        assert isinstance(await made.ask(m.HeartbeatRequest(), timeout_ms=60_000), m.HeartbeatResponse)


@pytest.mark.parametrize("callback", ["connection_made", "flush", "buffer_updated", "connecting"])
async def test_an_error_in_a_callback_ends_the_connection_with_its_own_text(callback, monkeypatch):
    """An event loop only logs exceptions of its callbacks: requests would time out, and blame the network."""
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail(*_):
        raise LookupError("not to be foreseen")

    async with scripted(echo) as (_, made):
        made.driver._loop = loop = OddLoop()
        if callback in ("flush", "buffer_updated"):
            assert isinstance(await made.ask(m.HeartbeatRequest()), m.HeartbeatResponse)
        match callback:
            case "connection_made":
                loop.failing = "set_write_buffer_limits"
            case "flush":
                loop.failing = "writelines"
            case "buffer_updated":
                monkeypatch.setattr(framing, "decode_response", fail)
            case "connecting":
                monkeypatch.setattr("muster.client.net.driver.set_options", fail)
        text = failed(await made.ask(m.HeartbeatRequest(), timeout_ms=60_000))
        assert "failed inside this client" in text
        assert str(reported[0]) in text
        assert type(reported[0]).__name__ in text
        monkeypatch.undo()
        loop.failing = ""
        assert isinstance(await made.ask(m.HeartbeatRequest()), m.HeartbeatResponse)


@pytest.mark.parametrize("waits_s", [0.0, 0.05])
async def test_a_port_that_resets_connections(caplog, waits_s):
    """At once, and with unread bytes, as TLS ports do; setting options of a closed socket is not an error."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)

    async def reset():
        while True:
            link, _ = await asyncio.get_running_loop().sock_accept(listening)
            await asyncio.sleep(waits_s)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()

    resetting = asyncio.ensure_future(reset())
    async with client(f"127.0.0.1:{listening.getsockname()[1]}") as made:
        for _ in range(5):
            assert isinstance(await made.ask(m.ListGroupsRequest()), Failure)
    resetting.cancel()
    listening.close()
    gc.collect()
    await asyncio.sleep(0)
    assert not [text for text in caplog.messages if "never retrieved" in text]
    if waits_s:
        assert [text for text in caplog.messages if "does its port require TLS (security_protocol)?" in text]


async def test_each_request_has_its_own_time_wherever_it_waits(one_look):
    """One timer covers all of them: it fires at the earliest deadline, whichever was set first, and then for those
    left."""

    async def never(peer):
        await asyncio.Event().wait()

    async with scripted(never, known=1) as (_, made):
        late = made.begin(m.HeartbeatRequest(), 1, timeout_ms=12_000)
        soon = made.begin(m.HeartbeatRequest(), 1, channel=Channel.COORDINATOR, timeout_ms=50)
        failed(await soon)  # whether it was sent by then depends on the machine
        assert not late.done()


async def test_a_connection_that_is_left_alone_is_looked_at_as_long_as_something_waits_there():
    async def then(peer):
        if peer.header.request_api_key != m.ListGroupsRequest.API_KEY:
            await asyncio.Event().wait()  # never
        await peer.reply(m.ListGroupsResponse())

    async with scripted(then, known=1) as (_, made):
        for channel in (Channel.COORDINATOR, Channel.DATA):
            # Connected: a short timeout is for the answer alone.
            await made.ask(m.ListGroupsRequest(), 1, channel=channel)
        first = made.begin(m.HeartbeatRequest(), 1, channel=Channel.COORDINATOR, timeout_ms=50)
        second = made.begin(m.HeartbeatRequest(), 1, timeout_ms=500)
        failed(await first, FailureKind.TIMEOUT)
        async with asyncio.timeout(20):  # other timeouts are after half a minute
            failed(await second, FailureKind.TIMEOUT)


async def test_an_impatient_request_after_a_patient_one_waits_for_it():
    """A heartbeat's timeout must not break the connection on which a join is parked."""
    release = asyncio.Event()

    async def then(peer):
        if peer.header.request_api_key == m.ListGroupsRequest.API_KEY:
            await release.wait()
            await peer.reply(m.ListGroupsResponse())
        else:
            await peer.reply(m.HeartbeatResponse())

    async with scripted(then, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        patient = made.begin(m.ListGroupsRequest(), 1, timeout_ms=60_000)
        hasty = made.begin(m.HeartbeatRequest(), 1, timeout_ms=30)
        await made.ask(m.HeartbeatRequest(), 1, channel=Channel.COORDINATOR)
        await asyncio.sleep(0.1)
        assert not hasty.done()
        release.set()
        assert not isinstance(await patient, Failure)
        assert not isinstance(await hasty, Failure)


async def test_a_connection_that_breaks_answers_everything_on_it():
    async def then(peer):
        if peer.number <= 2:
            peer.writer.close()

    async with scripted(then, known=1) as (_, made):
        answers = await asyncio.gather(*(made.begin(m.ListGroupsRequest(), 1) for _ in range(3)))
        for answer in answers:
            assert "closed the connection" in failed(answer, FailureKind.DISCONNECTED)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">ii", -5, 0),
        struct.pack(">ii", 4, 12345),
        struct.pack(">i", 2) + b"\0\0",
    ],
)
async def test_what_is_not_kafkas_protocol_is_garbled(garbage):
    async def script(peer):
        await peer.send(garbage)
        await peer.reader.read()

    async with scripted(script=script) as (_, made):
        answer = made.begin(m.ListGroupsRequest())
        assert await made.loop.wait_for(lambda: made.metadata.last_error is not None, 20_000)
        assert "that no Kafka broker sends" in str(made.metadata.last_error)
        assert isinstance(await answer, Failure)


async def test_an_answer_that_is_cut_short_is_garbled():
    async def then(peer):
        await peer.send(struct.pack(">iiB", 5, peer.header.correlation_id, 0))

    async with scripted(then, known=1) as (_, made):
        first, second = made.begin(m.ListGroupsRequest(), 1), made.begin(m.ListGroupsRequest(), 1)
        failed(await first, FailureKind.GARBLED)
        failed(await second, FailureKind.DISCONNECTED)


async def test_a_handshake_that_is_refused_is_reported():
    async def script(peer):
        await peer.read()
        await peer.reply(peer.api_versions(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    async with scripted(script=script) as (_, made):
        text = failed(await made.ask(m.ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "CLUSTER_AUTHORIZATION_FAILED" in text


async def test_a_broker_that_supports_no_version_of_the_handshake_is_asked_exactly_twice():
    asked = 0

    async def script(peer):
        nonlocal asked
        while True:
            await peer.read()
            asked += 1
            await peer.reply(peer.api_versions(ErrorCode.UNSUPPORTED_VERSION), version=0)

    async with scripted(script=script) as (server, made):
        text = failed(await made.ask(m.ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "UNSUPPORTED_VERSION" in text
        assert asked == 2 * server.connections


async def test_a_broker_that_says_nothing_at_all_times_out():
    async def script(peer):
        await peer.reader.read()

    server = ScriptedServer(script)
    async with server.running():
        # No other request: the handshake makes the driver check, whatever timeout the request waiting for it has.
        config = ClientConfig.of(bootstrap_servers=server.bootstrap, request_timeout_ms=50)
        driver = Driver(config, ClusterMetadata(config))
        await driver.start()
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        send = Send(
            LEAST_LOADED, m.ListGroupsRequest, lambda _: m.ListGroupsRequest(), lambda r, _: answer.set_result(r)
        )
        driver.dispatch([replace(send, timeout_ms=3_600_000)])
        async with asyncio.timeout(60):
            assert "the version handshake in time" in failed(await answer, FailureKind.UNREACHABLE)
        await driver.close()


async def test_nobody_listens():
    (port,) = free_ports(1)
    async with client(f"127.0.0.1:{port}") as made:
        text = failed(await made.ask(m.ListGroupsRequest()), FailureKind.UNREACHABLE)
        assert text == f"no connection to 127.0.0.1:{port}: refused; is a broker listening there?"


async def test_a_name_that_nobody_knows():
    async with client("no-such-host.invalid:9092") as made:
        text = failed(await made.ask(m.ListGroupsRequest()), FailureKind.UNREACHABLE)
        assert "no connection to no-such-host.invalid:9092: its host name cannot be resolved" in text


def reported(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.name == "muster.client.network"]


async def test_that_nobody_listens_is_reported_once_and_so_is_that_it_has_changed(caplog):
    caplog.set_level(logging.INFO)
    (port,) = free_ports(1)
    refused = f"no connection to 127.0.0.1:{port}: refused; is a broker listening there?"
    async with client(f"127.0.0.1:{port}") as made:
        for _ in range(3):
            await made.ask(m.ListGroupsRequest())
        assert reported(caplog, logging.WARNING) == [refused]

        async def rude(peer):
            await peer.read()

        async with ScriptedServer(rude, port=port).running():
            for _ in range(3):
                await made.ask(m.ListGroupsRequest())
        hint = "as it began; does its port require TLS (security_protocol)?"
        closed = f"no connection to 127.0.0.1:{port}: 127.0.0.1:{port} closed the connection {hint}"
        assert reported(caplog, logging.WARNING)[:2] == [refused, closed]

        server = ScriptedServer(answering(lambda: server.metadata()), port=port)
        async with server.running():
            await made.know(1)
            assert f"connected to 127.0.0.1:{port} again" in reported(caplog, logging.INFO)
        for _ in range(3):
            await made.ask(m.ListGroupsRequest(), 1)
    warnings = reported(caplog, logging.WARNING)
    assert warnings[-1] == refused
    assert all(before != after for before, after in pairwise(warnings))


def test_a_consumer_without_a_broker_says_so(caplog):
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 60
        while not reported(caplog, logging.WARNING) and time.monotonic() < deadline:
            consumer.poll(50)
        for _ in range(10):
            consumer.poll(50)
        consumer.close(timeout_ms=100)
    [text] = reported(caplog, logging.WARNING)
    assert text == "no connection to 127.0.0.1:1: refused; is a broker listening there?"


async def test_a_broker_that_the_metadata_does_not_know():
    async with scripted() as (_, made):
        assert "broker 77 is not known" in failed(await made.ask(m.ListGroupsRequest(), 77), FailureKind.UNREACHABLE)


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_an_answer_to_another_request_than_the_next_is_garbled():
    async def then(peer):
        other = copy.copy(peer.header)
        other.correlation_id += 1
        await peer.reply(m.HeartbeatResponse(), other)

    async with scripted(then, known=1) as (_, made):
        assert "is next" in failed(await made.ask(m.HeartbeatRequest(), 1), FailureKind.GARBLED)


async def test_nothing_overtakes_what_could_not_be_sent_in_time():
    async def script(peer):
        await peer.reader.read()

    async with scripted(script=script) as (_, made):
        first = made.begin(m.ListGroupsRequest(), timeout_ms=20)
        second = made.begin(m.ListGroupsRequest(), timeout_ms=60_000)
        for answer in await asyncio.gather(first, second):
            assert "could not be sent" in failed(answer, FailureKind.UNREACHABLE)


async def test_a_request_after_a_patient_one_has_its_time_once_that_is_answered():
    """Even if an earlier one had a short timeout: the deadline is that of the request right before."""
    release = asyncio.Event()

    async def then(peer):
        if peer.header.request_api_key == m.ListGroupsRequest.API_KEY:
            await release.wait()
            await peer.reply(m.ListGroupsResponse())
        else:
            await peer.reply(m.HeartbeatResponse())

    async with scripted(then, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        first = made.begin(m.HeartbeatRequest(), 1, timeout_ms=20_000)
        patient = made.begin(m.ListGroupsRequest(), 1, timeout_ms=120_000)
        made.begin(m.HeartbeatRequest(), 1, timeout_ms=20_000)
        assert not isinstance(await first, Failure)
        (link,) = [link for link in made.driver._connections.values() if link.node.node_id == 1]
        assert [waiting.deadline > made.driver.now() + 60_000 for waiting in link._in_flight] == [True, True]
        release.set()
        await patient
