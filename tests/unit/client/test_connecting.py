"""When the driver connects, to which broker, and when it disconnects: with a clock that the tests move."""

import asyncio
import gc
import logging
import socket
import weakref
from dataclasses import replace

import pytest

from muster.client.config import ClientConfig
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, Channel, Failure, FailureKind, Send
from muster.client.net.connection import Connection, ConnectionState, PendingRequest
from muster.client.net.driver import Driver, _Address
from muster.model import Node
from muster.protocol import framing
from muster.protocol import messages as m
from tests.support.driver_client import client, connected, failed, scripted
from tests.support.peers import free_ports
from tests.support.said import said
from tests.support.scripted_server import ScriptedServer, answering

LONG_MS = 600_000
NOW = 10_000


class Still(Driver):
    """A driver whose clock does not run."""

    time = NOW

    def now(self):
        return self.time


async def answered(peer):
    if peer.header.request_api_key == m.HeartbeatRequest.API_KEY:
        await peer.reply(m.HeartbeatResponse())


# --- what is remembered of an address --------------------------------------------------------------------------------


def test_a_connection_that_comes_about_ends_all_patience(caplog):
    address = _Address(ClientConfig(), Node(1, "a", 1))
    for _ in range(5):
        address.backoff.next_wait_ms()
        address.setup_timeout.next_wait_ms()
    address.retry_at = NOW
    address.failed("refused", NOW)
    with caplog.at_level(logging.INFO, "muster.client"):
        address.connected()
        address.connected()
    assert (address.backoff.failures, address.setup_timeout.failures, address.retry_at) == (0, 0, 0)
    assert said(caplog, "muster.client")[1:] == ["connected to a:1 again"]


def test_a_warning_is_repeated_five_minutes_after_the_last_one(caplog):
    address = _Address(ClientConfig(), Node(1, "a", 1))
    for minute in range(11):
        address.failed("refused", NOW + minute * 60_000)
    assert len(said(caplog, "muster.client")) == 3
    address.failed("no answer in time", NOW + 601_000)
    assert len(said(caplog, "muster.client")) == 4


async def test_an_address_that_failed_is_left_alone_for_its_backoff():
    (dead,) = free_ports(1)
    backoff = {"reconnect_backoff_ms": LONG_MS, "reconnect_backoff_max_ms": LONG_MS}
    async with client(f"127.0.0.1:{dead}", **backoff) as made:
        assert "refused" in failed(await made.ask(m.ListGroupsRequest()))
        text = failed(await made.ask(m.ListGroupsRequest(), timeout_ms=300), FailureKind.UNREACHABLE)
        assert "could not be sent" in text


async def test_a_client_that_is_closed_while_it_waits_to_connect_says_nothing_of_it(caplog):
    (dead,) = free_ports(1)
    backoff = {"reconnect_backoff_ms": LONG_MS, "reconnect_backoff_max_ms": LONG_MS}
    async with client(f"127.0.0.1:{dead}", **backoff) as made:
        failed(await made.ask(m.ListGroupsRequest()))
        reported = len(said(caplog, "muster.client"))
        waiting = made.begin(m.ListGroupsRequest())
    assert failed(await waiting) == "the client was closed"
    assert len(said(caplog, "muster.client")) == reported
    assert not made.driver._tasks


async def test_a_connection_that_ends_is_not_a_failure_to_connect(caplog):
    """Brokers close idle connections and restart: no warning, and a metadata request checks whether leaders moved."""
    async with scripted(answered, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        seen = made.metadata.version
        waiting = asyncio.ensure_future(made.loop.wait_for(lambda: made.metadata.version > seen, 20_000))
        await asyncio.sleep(0.05)
        with caplog.at_level(logging.INFO, "muster.client"):
            for link in list(made.driver._connections.values()):
                link._transport.abort()  # as if the broker had done so: nothing was in flight
            assert await waiting
        assert said(caplog, "muster.client", logging.WARNING) == []
        assert any("ended" in record.message for record in caplog.records)


# --- brokers that do not report their versions
# --------------------------------------------------------------------------


async def ancient(peer, server, known_versions):
    """Kafka before 0.10: closes the connection of a client that sends a request it does not know, ApiVersions
    included."""
    while True:
        request = await peer.read()
        known_versions.append((peer.number, type(request).__name__, peer.header.request_api_version))
        if not isinstance(request, m.MetadataRequest):
            return
        await peer.reply(server.metadata())


async def test_a_broker_that_closes_when_asked_is_treated_as_an_old_one_if_the_user_says_so():
    known_versions: list[tuple[int, str, int]] = []
    server = ScriptedServer(lambda peer: ancient(peer, server, known_versions))
    async with server.running(), client(server.bootstrap, broker_version_fallback="0.8") as made:
        await made.know(1)
        assert known_versions[:2] == [(1, "ApiVersionsRequest", 4), (2, "MetadataRequest", 0)]
        assert "does not support" in failed(await made.ask(m.HeartbeatRequest(), 1), FailureKind.UNSUPPORTED_VERSION)


async def test_without_the_setting_it_is_a_failure_like_any_other():
    known_versions: list[tuple[int, str, int]] = []
    server = ScriptedServer(lambda peer: ancient(peer, server, known_versions))
    async with server.running(), client(server.bootstrap) as made:
        for _ in range(3):
            failed(await made.ask(m.ListGroupsRequest()))
        assert {name for _, name, _ in known_versions} == {"ApiVersionsRequest"}


async def test_a_newer_broker_that_was_only_starting_is_asked_again():
    """It closes the connection at its first request, and later one on which the client treats it as an old broker."""
    server = ScriptedServer(lambda peer: asyncio.sleep(0))

    async def starting(peer):
        if peer.number == 1:
            await peer.read()
            return
        if peer.number == 2:
            assert isinstance(await peer.read(), m.MetadataRequest)
            return
        await answering(server.metadata)(peer)

    server.script = starting
    async with server.running(), client(server.bootstrap, broker_version_fallback="0.9") as made:
        await made.know(1)
        assert server.connections >= 3


# --- which broker ----------------------------------------------------------------------------------------------------

ORDER = [
    "ready",
    "ready, busy",
    "connecting",
    "connecting, busy",
    "untried",
    "moved",
    "may retry",
    "waits",
    "waits long",
]
"""How brokers are preferred, the best first; those in `EQUAL` are equally good."""

EQUAL = [("untried", "moved"), ("may retry", "may retry, long since")]


def standing(driver, number, how):
    """A broker whose state, as the client sees it, is `how`."""
    node = Node(number, "127.0.0.1", 9_000 + number)
    linked = Node(number, "127.0.0.1", 1) if how == "moved" else node
    if how.startswith(("ready", "connecting", "moved")):
        link = Connection(driver, linked, Channel.DATA, "", 1_000)
        link.state = ConnectionState.CONNECTING if how.startswith("connecting") else ConnectionState.READY
        if "busy" in how:
            link.submit(Send(number, m.ListGroupsRequest, lambda _: m.ListGroupsRequest(), lambda *_: None), LONG_MS)
        driver._connections[number, Channel.DATA] = link
    elif how != "untried":
        address = driver._address(node)
        address.backoff.next_wait_ms()
        later = {"waits": 1_000, "waits long": 2_000, "may retry": -1, "may retry, long since": -5_000}
        address.retry_at = NOW + later[how.removeprefix("connecting ")]
    return node


def chosen(*hows, bootstrap_is=None):
    config = ClientConfig()
    metadata = ClusterMetadata(config)
    driver = Still(config, metadata)
    metadata.brokers = {number: standing(driver, number, how) for number, how in enumerate(hows, 1)}
    driver._bootstrap = [standing(driver, -2, bootstrap_is)] if bootstrap_is else []
    found = {driver._least_loaded(Channel.DATA).node_id for _ in range(60)}
    return {hows[number - 1] if number > 0 else "bootstrap" for number in found}


@pytest.mark.parametrize(
    ("better", "worse"),
    [(a, b) for i, a in enumerate(ORDER) for b in ORDER[i + 1 :] if (a, b) not in EQUAL],
)
def test_the_better_of_two_brokers_is_asked(better, worse):
    assert chosen(better, worse) == {better}
    assert chosen(worse, better) == {better}


@pytest.mark.parametrize("pair", EQUAL)
def test_of_brokers_that_are_as_good_as_each_other_each_has_its_turn(pair):
    assert chosen(*pair) == set(pair)


def test_a_connection_that_waits_after_a_failure_counts_as_a_failing_broker():
    driver = Still(ClientConfig(), ClusterMetadata(ClientConfig()))
    nodes = [standing(driver, 1, "connecting"), standing(driver, 2, "untried"), standing(driver, 3, "waits long")]
    driver._metadata.brokers = {node.node_id: node for node in nodes}
    driver._bootstrap = []
    address = driver._address(nodes[0])
    address.backoff.next_wait_ms()
    address.retry_at = NOW + 1_500
    assert driver._least_loaded(Channel.DATA) == nodes[1]
    del driver._metadata.brokers[2]
    assert driver._least_loaded(Channel.DATA) == nodes[0]
    address.retry_at = NOW + 2_500
    assert driver._least_loaded(Channel.DATA) == nodes[2]


def test_bootstrap_addresses_are_for_when_all_brokers_fail():
    """KIP-899."""
    assert chosen("waits", "untried", bootstrap_is="ready") == {"untried"}
    assert chosen("waits", "may retry", bootstrap_is="untried") == {"bootstrap"}
    assert chosen("waits", bootstrap_is="waits long") == {"waits"}


async def test_no_bootstrap_connection_is_left_once_a_broker_is_known_by_its_id():
    (dead,) = free_ports(1)
    for order in (0, 1):
        server = ScriptedServer(lambda peer: asyncio.sleep(0))
        server.script = answering(server.metadata, answered)
        async with server.running():
            addresses = [f"127.0.0.1:{dead}", server.bootstrap]
            async with client(",".join(addresses if order else addresses[::-1])) as made:
                await made.know(1)
                await made.ask(m.HeartbeatRequest(), 1)
                assert [node.node_id for node in connected(made.driver)] == [1]


async def test_what_is_under_way_to_a_bootstrap_address_is_waited_for():
    async with scripted(answered) as (_, made):
        await asyncio.sleep(0)  # the metadata is requested first: answers come in order
        parked = made.begin(m.ListGroupsRequest(), LEAST_LOADED)
        await made.know(1)
        await made.ask(m.HeartbeatRequest(), 1)
        assert sorted(node.node_id for node in connected(made.driver)) == [-2, 1]
        assert not parked.done()


# --- disconnecting
# ------------------------------------------------------------------------------------------------------


async def test_what_is_waited_for_is_not_idle():
    async with scripted(answered, connections_max_idle_ms=20, known=1) as (_, made):
        parked = made.begin(m.ListGroupsRequest(), 1, timeout_ms=60_000)
        # The driver checks its connections when a request could have timed out.
        await made.ask(m.HeartbeatRequest(), 1, channel=Channel.COORDINATOR, timeout_ms=60)
        while any(node for node in made.driver._connections if node[1] is Channel.COORDINATOR):
            await asyncio.sleep(0.02)
        made.driver._expire()
        assert not parked.done()


async def test_connections_are_kept_forever_if_one_likes():
    async with scripted(answered, connections_max_idle_ms=-1, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        made.driver._expire()
        assert [node.node_id for node in connected(made.driver)] == [1]


async def test_a_connection_that_is_not_idle_yet_is_looked_at_again():
    async with scripted(answered, connections_max_idle_ms=400, request_timeout_ms=100, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        async with asyncio.timeout(20):
            while connected(made.driver):
                await asyncio.sleep(0.02)


async def test_a_connection_is_used_when_it_is_written_to_and_when_it_answers():
    release = asyncio.Event()

    async def then(peer):
        if peer.header.request_api_key == m.HeartbeatRequest.API_KEY:
            await release.wait()
            await peer.reply(m.HeartbeatResponse())

    async with scripted(then, known=1) as (_, made):
        made.driver.time = made.driver.now()
        made.driver.__class__ = Still
        begun = made.begin(m.HeartbeatRequest(), 1)
        while connected(made.driver) != [made.metadata.brokers[1]]:
            await asyncio.sleep(0.01)
        (link,) = made.driver._connections.values()
        made.driver.time += 1_000
        release.set()
        assert not isinstance(await begun, Failure)
        assert link.last_used == made.driver.now()
        made.driver.time += 1_000
        answers = []
        request = m.ProduceRequest(acks=0)
        made.driver.dispatch(
            [Send(1, m.ProduceRequest, lambda _: request, lambda reply, _: answers.append(reply), expects_reply=False)]
        )
        while not answers:
            await asyncio.sleep(0)
        assert link.last_used == made.driver.now()


# --- sockets ---------------------------------------------------------------------------------------------------------


async def test_sockets_notice_a_dead_peer_and_have_the_buffers_that_were_asked_for():
    async with scripted(answered, send_buffer_bytes=16_384, receive_buffer_bytes=65_536, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        (link,) = made.driver._connections.values()
        found = link._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        sent, received = (
            found.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
        )
        assert sent < received


async def test_a_request_may_have_no_time_at_all():
    async with scripted(answered, known=1) as (_, made):
        failed(await made.ask(m.ListGroupsRequest(), 1, timeout_ms=0))


async def test_a_broker_that_takes_connections_and_nothing_else_is_given_up_in_time():
    """Its backlog of connections is full: the kernel does not answer at all."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        try:
            for waiting in held:
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", port))
            limits = {"socket_connection_setup_timeout_ms": 100, "socket_connection_setup_timeout_max_ms": 100}
            async with client(f"127.0.0.1:{port}", **limits) as made:
                text = failed(await made.ask(m.ListGroupsRequest(), timeout_ms=20_000), FailureKind.UNREACHABLE)
                assert "no answer in time" in text
        finally:
            for waiting in held:
                waiting.close()


async def test_a_bootstrap_connection_stays_though_its_request_was_given_up_meanwhile():
    """A broker whose handshake takes longer than a request may: the next request finds it connected."""
    release = asyncio.Event()

    async def script(peer):
        await peer.read()
        await release.wait()
        await peer.reply(peer.api_versions())
        while True:
            await peer.read()
            await peer.reply(m.ListGroupsResponse())

    server = ScriptedServer(script)
    async with server.running():
        driver = Driver(ClientConfig.of(bootstrap_servers=server.bootstrap), ClusterMetadata(ClientConfig()))
        await driver.start()
        answers = []
        send = Send(LEAST_LOADED, m.ListGroupsRequest, lambda _: m.ListGroupsRequest(), lambda r, _: answers.append(r))
        driver.dispatch([replace(send, timeout_ms=10)])
        while not answers:
            await asyncio.sleep(0.005)
        failed(answers.pop(), FailureKind.UNREACHABLE)
        release.set()
        async with asyncio.timeout(20):
            while not connected(driver):
                await asyncio.sleep(0.005)
        driver.dispatch([send])
        while not answers:
            await asyncio.sleep(0.005)
        assert not isinstance(answers[0], Failure)
        assert server.connections == 1
        await driver.close()


async def test_a_connection_that_is_being_made_is_not_idle():
    async with scripted(answered, connections_max_idle_ms=0, known=1) as (_, made):
        begun = made.begin(m.HeartbeatRequest(), 1, timeout_ms=0)
        (link,) = [link for (node_id, _), link in made.driver._connections.items() if node_id == 1]
        made.driver._expire()
        failed(await begun, FailureKind.UNREACHABLE)
        assert link.state is not ConnectionState.CLOSED


async def test_a_connection_that_is_given_up_while_it_is_being_made_leaves_no_socket():
    ended = asyncio.Event()

    async def script(peer):
        try:
            await peer.handshake()
            await peer.read()
        finally:
            ended.set()

    server = ScriptedServer(script)
    async with server.running():
        metadata = ClusterMetadata(ClientConfig())
        metadata.learn_node(Node(1, "127.0.0.1", server.port))
        driver = Driver(ClientConfig(), metadata)
        await driver.start()
        driver.dispatch([Send(1, m.HeartbeatRequest, lambda _: m.HeartbeatRequest(), lambda *_: None)])
        driver.disconnect(1, Channel.DATA)
        async with asyncio.timeout(20):
            await ended.wait()
        await driver.close()


async def test_a_closed_client_is_not_kept_by_its_timer():
    async with scripted(answered, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
    gone = weakref.ref(made.driver)
    del made
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert gone() is None


async def test_pauses_that_two_answers_ask_for_are_one():
    async with scripted(answered, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        made.driver.time = NOW
        made.driver.__class__ = Still
        (link,) = [link for link in made.driver._connections.values() if link.node.node_id == 1]
        for _ in range(2):
            waiting = PendingRequest(
                Send(1, m.HeartbeatRequest, lambda _: m.HeartbeatRequest(), lambda *_: None), NOW, version=4
            )
            waiting.correlation_id = 7
            link._in_flight.append(waiting)
            frame = framing.encode_response(m.HeartbeatResponse(1_000), m.HeartbeatRequest, 4, 7)
            link._on_frame(b"".join(frame)[4:])
        assert link._muted_until == NOW + 1_000


async def unanswered(peer):
    """The request stays in flight."""


async def test_a_request_that_times_out_during_a_reauthentication_ends_the_connection():
    """The handshake's own requests wait behind those that were in flight when it began."""
    async with scripted(unanswered, known=1) as (_, made):
        begun = made.begin(m.HeartbeatRequest(), 1)
        async with asyncio.timeout(20):
            while not (links := [link for link in made.driver._connections.values() if link._in_flight]):
                await asyncio.sleep(0.001)
            while (link := links[0]).state is not ConnectionState.READY:
                await asyncio.sleep(0.001)
        link.state = ConnectionState.HANDSHAKE
        link.expire(made.driver.now() + LONG_MS)
        assert "did not answer HeartbeatRequest in time" in failed(await begun, FailureKind.TIMEOUT)


async def test_a_broker_that_ends_a_reauthentication_is_no_old_one():
    async with scripted(answered, known=1) as (_, made):
        await made.ask(m.HeartbeatRequest(), 1)
        (link,) = [link for link in made.driver._connections.values() if link.node.node_id == 1]
        link.state = ConnectionState.HANDSHAKE
        link.connection_lost(None)
        assert not link.closed_in_handshake
