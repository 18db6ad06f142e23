"""The driver against a scripted broker: what goes wrong on connections, and what it makes of it."""

import asyncio
import contextlib
import copy
import logging
import struct
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from muster.client import Consumer
from muster.client.config import ClientConfig
from muster.client.connection import MAX_IN_FLIGHT
from muster.client.core.metadata import ClusterMetadata
from muster.client.core.sends import LEAST_LOADED, Channel, Failure, FailureKind, Send
from muster.client.driver import CoreLoop, Driver, _Address
from muster.errors import ClosedError, ErrorCode, IllegalArgumentError, MusterError
from muster.model import Node
from muster.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from muster.protocol.primitives import ZERO_UUID
from tests.support.peers import free_ports
from tests.support.scripted_server import ScriptedServer, answering

QUICK = {"reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


class Client:
    """A driver that is asked one thing after the other."""

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
async def scripted(then=None, script=None, **settings):
    """A server and a client of it."""
    server = ScriptedServer(script or (lambda peer: asyncio.sleep(0)))
    if script is None:
        server.script = answering(server.metadata, then)
    async with server.running(), client(server.bootstrap, **settings) as made:
        yield server, made


def failed(answer, kind=None):
    assert isinstance(answer, Failure), answer
    assert kind is None or answer.kind is kind
    return answer.message


async def echo(peer):
    """Answers Heartbeat with its generation as throttle time: tells answers apart."""
    await peer.reply(HeartbeatResponse())


# --- handshake -------------------------------------------------------------------------------------------------------


async def test_the_newest_common_version_is_used():
    seen = []

    async def then(peer):
        seen.append(peer.header.request_api_version)
        await peer.reply(HeartbeatResponse())

    async with scripted(then) as (server, made):
        server.versions[12] = (0, 3)
        await made.ask(HeartbeatRequest("g", 1, "m"))
        await made.ask(HeartbeatRequest("g", 1, "m"), newest=1)
    assert seen == [3, 1]


@pytest.mark.parametrize(
    "request_",
    [HeartbeatRequest("\ud800", 1, "m"), HeartbeatRequest("g", 2**31, "m"), HeartbeatRequest("g", 1, 5)],  # type: ignore[arg-type]
)
async def test_what_cannot_be_encoded_fails_its_own_request_and_no_other(request_):
    async with scripted(echo) as (_, made):
        before, bad, after = (made.begin(r) for r in (HeartbeatRequest("g"), request_, HeartbeatRequest("g")))
        assert isinstance(await before, HeartbeatResponse)
        message = failed(await bad, FailureKind.UNENCODABLE)
        assert "a value in HeartbeatRequest cannot be sent" in message
        assert isinstance(Failure(FailureKind.UNENCODABLE, message).error(), IllegalArgumentError)
        assert isinstance(await after, HeartbeatResponse)
        await made.know(1)
        await made.ask(HeartbeatRequest("g"), 1)
        answers = []
        send = Send(1, HeartbeatRequest, lambda _: request_, lambda reply, _: answers.append(reply))
        good = replace(send, build=lambda _: HeartbeatRequest("g"), timeout_ms=15_000)
        made.driver.dispatch([send, good])
        assert await made.loop.wait_for(lambda: len(answers) == 2, 60_000)
        assert isinstance(answers[1], HeartbeatResponse)
        assert made.loop.error is None


async def test_an_older_broker_is_spoken_to_in_its_own_version():
    """KIP-511: it answers ApiVersions in v0 with UNSUPPORTED_VERSION and what it speaks."""
    asked = []

    async def script(peer):
        peer.versions[18] = (0, 2)
        await peer.read()
        asked.append(peer.header.request_api_version)
        await peer.reply(peer.api_versions(ErrorCode.UNSUPPORTED_VERSION), version=0)
        await peer.read()
        asked.append(peer.header.request_api_version)
        await peer.reply(peer.api_versions())
        while True:
            await peer.read()
            await peer.reply(server.metadata())

    async with scripted(script=script) as (server, made):
        await made.know(1)
    assert asked == [4, 2]


async def test_the_client_says_who_it_is():
    asked = []

    async def script(peer):
        asked.append(await peer.handshake())
        await peer.reader.read()

    async with scripted(script=script) as (_, made):
        made.begin(ListGroupsRequest())
        assert await made.loop.wait_for(lambda: bool(asked), 20_000) or asked
    assert asked[0].client_software_name == "muster"


async def test_a_request_that_no_common_version_carries_is_refused_and_the_rest_goes_on():
    async with scripted(echo) as (server, made):
        del server.versions[16]
        server.versions[12] = (90, 91)
        text = failed(await made.ask(ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "does not speak ListGroupsRequest" in text
        text = failed(await made.ask(HeartbeatRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "v90" in text
        await made.know(1)


async def test_a_request_that_loses_something_in_an_old_version_is_refused():
    async with scripted() as (server, made):
        server.versions[16] = (0, 3)
        text = failed(await made.ask(ListGroupsRequest(["Stable"])), FailureKind.UNSUPPORTED_VERSION)
        assert "states_filter" in text


# --- requests and answers --------------------------------------------------------------------------------------------


async def test_requests_go_out_together_and_answers_come_in_order():
    async def then(peer):
        headers = [peer.header]
        for _ in range(9):
            await peer.read()
            headers.append(peer.header)
        for number, header in enumerate(headers):
            await peer.reply(ListGroupsResponse(error_code=number), header)

    async with scripted(then) as (_, made):
        answers = await asyncio.gather(*(made.begin(ListGroupsRequest()) for _ in range(10)))
    assert [answer.error_code for answer in answers] == list(range(10))


async def test_a_large_answer_arrives_whole():
    large = ListGroupsResponse()
    large.groups = [type_of_group(f"group-{number:05}") for number in range(20_000)]

    async def then(peer):
        await peer.reply(large)

    async with scripted(then) as (_, made):
        first, second = await asyncio.gather(made.begin(ListGroupsRequest()), made.begin(ListGroupsRequest()))
    assert first == large
    assert second == large


def type_of_group(name):
    from muster.protocol.messages import ListedGroup

    return ListedGroup(name, "consumer")


async def test_channels_have_connections_of_their_own():
    async def then(peer):
        if peer.header.request_api_key == HeartbeatRequest.API_KEY:
            await peer.reply(HeartbeatResponse())

    async with scripted(then) as (_, made):
        await made.know(1)
        parked = made.begin(ListGroupsRequest(), 1)
        await made.ask(HeartbeatRequest(), 1, channel=Channel.COORDINATOR)
        assert not parked.done()
        assert len(made.driver.connected()) == 2
        made.driver.disconnect(1, Channel.DATA)
        failed(await parked, FailureKind.DISCONNECTED)


async def test_acks_0_has_no_answer_on_the_wire():
    async def then(peer):
        if peer.header.request_api_key != ProduceRequest.API_KEY:
            await peer.reply(ListGroupsResponse())

    async with scripted(then) as (_, made):
        await made.know(1)
        answer = asyncio.get_running_loop().create_future()
        request = ProduceRequest()
        made.driver.dispatch(
            [
                Send(
                    1,
                    ProduceRequest,
                    lambda _: request,
                    lambda reply, now: answer.set_result(reply),
                    expects_reply=False,
                ),
            ]
        )
        assert not isinstance(await answer, Failure)
        assert not isinstance(await made.ask(ListGroupsRequest(), 1), Failure)


@pytest.mark.parametrize("reads", [True, False])
async def test_what_has_no_answer_is_done_when_the_broker_has_taken_it(reads):
    """More than the sockets take in between: who closes the connection before loses the rest."""
    begin = asyncio.Event()
    answers = []
    data = [TopicProduceData("t", ZERO_UUID, [PartitionProduceData(0, bytearray(16 << 20))])]
    request = ProduceRequest(acks=0, topic_data=data)

    async def script(peer):
        await peer.handshake()
        if peer.number > 1:
            await begin.wait()
        await peer.read()
        await peer.reply(server.metadata())

    async with scripted(script=script) as (server, made):
        await made.know(1)
        timeout_ms = 60_000 if reads else 300
        send = Send(1, ProduceRequest, lambda _: request, lambda answer, _: answers.append(answer), Channel.DATA)
        made.driver.dispatch([replace(send, timeout_ms=timeout_ms, expects_reply=False, newest_version=12)])
        await asyncio.sleep(0.1)
        assert not answers
        if reads:
            begin.set()
        while not answers:
            await asyncio.sleep(0.01)
        if reads:
            assert not isinstance(answers[0], Failure)
        else:
            assert "did not take ProduceRequest in time" in failed(answers[0])


async def test_throttling_holds_the_next_request_back():
    """KIP-219."""

    async def then(peer):
        await peer.reply(HeartbeatResponse(throttle_time_ms=150))

    async with scripted(then) as (_, made):
        await made.know(1)
        await made.ask(HeartbeatRequest(), 1)
        before = made.driver.now()
        # Whatever else has the driver look at its connections again is later than that.
        assert not isinstance(await made.ask(HeartbeatRequest(), 1, timeout_ms=15_000), Failure)
        assert made.driver.now() - before >= 149


async def test_more_requests_than_may_be_under_way_wait_for_answers():
    read = 0
    early: list[bytes] = []

    async def then(peer):
        nonlocal read
        read += 1
        if read <= MAX_IN_FLIGHT:
            headers.append(peer.header)
        if read == MAX_IN_FLIGHT:
            with contextlib.suppress(TimeoutError):
                early.append(await asyncio.wait_for(peer.reader.read(1), 0.05))
            for header in headers:
                await peer.reply(HeartbeatResponse(), header)
        elif read > MAX_IN_FLIGHT:
            await peer.reply(HeartbeatResponse())

    headers = []
    async with scripted(then) as (_, made):
        await made.know(1)
        many = [made.begin(HeartbeatRequest(), 1, timeout_ms=15_000) for _ in range(2 * MAX_IN_FLIGHT)]
        answers = await asyncio.gather(*many)
        assert not any(isinstance(answer, Failure) for answer in answers)
        assert early == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_no_answer_in_time_closes_the_connection():
    async def then(peer):
        if peer.header.request_api_key == ListGroupsRequest.API_KEY:
            await asyncio.Event().wait()  # never
        await peer.reply(HeartbeatResponse())

    async with scripted(then) as (server, made):
        await made.know(1)
        first = made.begin(ListGroupsRequest(), 1, timeout_ms=50)
        second = made.begin(HeartbeatRequest(), 1)
        assert "did not answer ListGroupsRequest in time" in failed(await first, FailureKind.TIMEOUT)
        failed(await second, FailureKind.DISCONNECTED)
        before = server.connections
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)
        assert server.connections > before


async def test_each_request_has_its_own_time_wherever_it_waits():
    """One timer looks at all of them: at the earliest next, whichever came first, and then at those that are left."""

    async def never(peer):
        await asyncio.Event().wait()

    async with scripted(never) as (_, made):
        await made.know(1)
        late = made.begin(HeartbeatRequest(), 1, timeout_ms=12_000)
        soon = made.begin(HeartbeatRequest(), 1, channel=Channel.COORDINATOR, timeout_ms=50)
        failed(await soon)  # whether it was sent by then is the machine's affair
        assert not late.done()


async def test_a_connection_that_is_left_alone_is_looked_at_as_long_as_something_waits_there():
    async def never(peer):
        await asyncio.Event().wait()

    async with scripted(never) as (_, made):
        await made.know(1)
        first = made.begin(HeartbeatRequest(), 1, channel=Channel.COORDINATOR, timeout_ms=50)
        second = made.begin(HeartbeatRequest(), 1, timeout_ms=500)
        failed(await first, FailureKind.TIMEOUT)
        async with asyncio.timeout(20):  # other timeouts are after half a minute
            failed(await second, FailureKind.TIMEOUT)


async def test_an_impatient_request_behind_a_patient_one_waits_for_it():
    """A heartbeat's timeout must not break the connection on which a join is parked."""
    release = asyncio.Event()

    async def then(peer):
        if peer.header.request_api_key == ListGroupsRequest.API_KEY:
            await release.wait()
            await peer.reply(ListGroupsResponse())
        else:
            await peer.reply(HeartbeatResponse())

    async with scripted(then) as (_, made):
        await made.know(1)
        patient = made.begin(ListGroupsRequest(), 1, timeout_ms=60_000)
        hasty = made.begin(HeartbeatRequest(), 1, timeout_ms=30)
        await made.ask(HeartbeatRequest(), 1, channel=Channel.COORDINATOR)
        await asyncio.sleep(0.1)
        assert not hasty.done()
        release.set()
        assert not isinstance(await patient, Failure)
        assert not isinstance(await hasty, Failure)


async def test_a_connection_that_breaks_answers_everything_on_it():
    async def then(peer):
        if peer.number <= 2:
            peer.writer.close()

    async with scripted(then) as (_, made):
        await made.know(1)
        answers = await asyncio.gather(*(made.begin(ListGroupsRequest(), 1) for _ in range(3)))
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
async def test_what_is_no_kafka_protocol_is_garbled(garbage):
    async def script(peer):
        await peer.send(garbage)
        await peer.reader.read()

    async with scripted(script=script) as (_, made):
        answer = made.begin(ListGroupsRequest())
        assert await made.loop.wait_for(lambda: made.metadata.last_error is not None, 20_000)
        assert "no answer of a Kafka broker" in str(made.metadata.last_error)
        assert isinstance(await answer, Failure)


async def test_an_answer_that_is_cut_short_is_garbled():
    async def then(peer):
        await peer.send(struct.pack(">iiB", 5, peer.header.correlation_id, 0))

    async with scripted(then) as (_, made):
        await made.know(1)
        first, second = made.begin(ListGroupsRequest(), 1), made.begin(ListGroupsRequest(), 1)
        failed(await first, FailureKind.GARBLED)
        failed(await second, FailureKind.DISCONNECTED)


async def test_a_handshake_that_is_refused_is_told():
    async def script(peer):
        await peer.read()
        await peer.reply(peer.api_versions(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    async with scripted(script=script) as (_, made):
        text = failed(await made.ask(ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "CLUSTER_AUTHORIZATION_FAILED" in text


async def test_a_broker_that_speaks_no_version_of_the_handshake_is_asked_twice_and_no_more():
    asked = 0

    async def script(peer):
        nonlocal asked
        while True:
            await peer.read()
            asked += 1
            await peer.reply(peer.api_versions(ErrorCode.UNSUPPORTED_VERSION), version=0)

    async with scripted(script=script) as (server, made):
        text = failed(await made.ask(ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "UNSUPPORTED_VERSION" in text
        assert asked == 2 * server.connections


async def test_a_broker_that_says_nothing_at_all_times_out():
    async def script(peer):
        await peer.reader.read()

    async with scripted(script=script, request_timeout_ms=50) as (_, made):
        answer = await made.ask(ListGroupsRequest(), timeout_ms=20_000)
        assert "the version handshake in time" in failed(answer, FailureKind.UNREACHABLE)


async def test_nobody_listens():
    (port,) = free_ports(1)
    async with client(f"127.0.0.1:{port}") as made:
        text = failed(await made.ask(ListGroupsRequest()), FailureKind.UNREACHABLE)
        assert text == f"no connection to 127.0.0.1:{port}: refused; is a broker listening there?"


async def test_a_name_that_nobody_knows():
    async with client("no-such-host.invalid:9092") as made:
        text = failed(await made.ask(ListGroupsRequest()), FailureKind.UNREACHABLE)
        assert "no connection to no-such-host.invalid:9092: its host name cannot be resolved" in text


def told(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def test_that_nobody_listens_is_told_once_and_so_is_that_it_has_changed(caplog):
    caplog.set_level(logging.INFO)
    (port,) = free_ports(1)
    refused = f"no connection to 127.0.0.1:{port}: refused; is a broker listening there?"
    async with client(f"127.0.0.1:{port}") as made:
        for _ in range(3):
            await made.ask(ListGroupsRequest())
        assert told(caplog, logging.WARNING) == [refused]

        async def rude(peer):
            await peer.read()

        async with ScriptedServer(rude, port=port).running():
            for _ in range(3):
                await made.ask(ListGroupsRequest())
        closed = f"no connection to 127.0.0.1:{port}: 127.0.0.1:{port} (id -2) closed the connection"
        assert told(caplog, logging.WARNING)[:2] == [refused, closed]

        server = ScriptedServer(answering(lambda: server.metadata()), port=port)
        async with server.running():
            await made.know(1)
            assert f"connected to 127.0.0.1:{port} again" in told(caplog, logging.INFO)
        for _ in range(3):
            await made.ask(ListGroupsRequest(), 1)
    warnings = told(caplog, logging.WARNING)
    assert warnings[-1] == refused
    assert all(before != after for before, after in pairwise(warnings))


def test_the_same_trouble_is_told_again_after_five_minutes(caplog):
    address = _Address(ClientConfig(), Node(1, "h", 9))
    for now in (0, 1, 299_999, 300_000, 300_001):
        address.failed("refused", now)
    assert told(caplog, logging.WARNING) == ["no connection to h:9: refused"] * 2


def test_a_consumer_without_a_broker_says_so(caplog):
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            consumer.poll(50)
        for _ in range(10):
            consumer.poll(50)
        consumer.close(timeout_ms=100)
    [text] = told(caplog, logging.WARNING)
    assert text == "no connection to 127.0.0.1:1: refused; is a broker listening there?"


async def test_a_broker_that_the_metadata_does_not_know():
    async with scripted() as (_, made):
        assert "broker 77 is not known" in failed(await made.ask(ListGroupsRequest(), 77), FailureKind.UNREACHABLE)


# --- which broker ----------------------------------------------------------------------------------------------------


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
        assert [node.node_id for node in made.driver.connected()] == [1]


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
        assert [node.port for node in made.driver.connected()] == [second.port]


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
    async with scripted(echo, connections_max_idle_ms=50, request_timeout_ms=60) as (_, made):
        await made.know(1)
        await made.ask(HeartbeatRequest(), 1)
        await asyncio.sleep(0.3)
        assert made.driver.connected() == []
        assert not isinstance(await made.ask(HeartbeatRequest(), 1), Failure)


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_close_answers_what_is_under_way():
    asked = asyncio.Event()

    async def never(peer):
        asked.set()

    async with scripted(never) as (_, made):
        await made.know(1)
        parked = made.begin(ListGroupsRequest(), 1)
        waiting = asyncio.ensure_future(made.loop.wait_for(lambda: False))
        await asked.wait()
        await made.loop.close()
        assert failed(await parked, FailureKind.DISCONNECTED) == "the client was closed"
        assert failed(await made.ask(ListGroupsRequest(), 1), FailureKind.UNREACHABLE) == "the client is closed"
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await made.loop.wait_for(lambda: False)
        with pytest.raises(ClosedError):
            await made.driver.start()


async def test_a_defect_in_a_core_is_raised_where_somebody_waits():
    class Broken:
        def poll(self, now):
            raise ZeroDivisionError("a defect")

        def next_deadline(self, now):
            return None

    async with scripted() as (_, made):
        loop = CoreLoop(made.driver, [Broken()])
        await loop.start()
        for _ in range(2):
            with pytest.raises(MusterError, match="has to be made anew: ZeroDivisionError") as caught:
                await loop.wait_for(lambda: False)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_question_that_raises_is_its_askers_affair():
    """A position is waited for; the partition is given up meanwhile, so that it cannot be asked for any more."""
    async with scripted() as (_, made):
        answers = [False]
        with pytest.raises(IndexError):
            await made.loop.wait_for(lambda: answers.pop())
        assert await made.loop.wait_for(lambda: made.metadata.version > 0)


async def test_waiting_ends_in_time():
    async with scripted() as (_, made):
        assert not await made.loop.wait_for(lambda: False, 20)


async def test_whoever_waits_is_told_once_though_the_cores_turn_again_before_it_runs():
    turned = []

    async with scripted(echo) as (_, made):

        def on_turn(now):
            turned.append(now)
            if len(turned) == 1:
                made.loop.wakeup()

        made.loop._on_turn = on_turn
        assert await made.loop.wait_for(lambda: bool(turned))
        assert await made.loop.wait_for(lambda: len(turned) > 1)
        assert made.loop.error is None


async def test_an_answer_to_another_request_than_the_next_is_garbled():
    async def then(peer):
        other = copy.copy(peer.header)
        other.correlation_id += 1
        await peer.reply(HeartbeatResponse(), other)

    async with scripted(then) as (_, made):
        await made.know(1)
        assert "is next" in failed(await made.ask(HeartbeatRequest(), 1), FailureKind.GARBLED)


async def test_nothing_overtakes_what_could_not_be_sent_in_time():
    async def script(peer):
        await peer.reader.read()

    async with scripted(script=script) as (_, made):
        first = made.begin(ListGroupsRequest(), timeout_ms=20)
        second = made.begin(ListGroupsRequest(), timeout_ms=60_000)
        for answer in await asyncio.gather(first, second):
            assert "could not be sent" in failed(answer, FailureKind.UNREACHABLE)


async def test_a_request_behind_a_patient_one_has_its_time_once_that_is_answered():
    """Though one in front of both was hasty: the deadline is that of the request right before."""
    release = asyncio.Event()

    async def then(peer):
        if peer.header.request_api_key == ListGroupsRequest.API_KEY:
            await release.wait()
            await peer.reply(ListGroupsResponse())
        else:
            await peer.reply(HeartbeatResponse())

    async with scripted(then) as (_, made):
        await made.know(1)
        await made.ask(HeartbeatRequest(), 1)
        first = made.begin(HeartbeatRequest(), 1, timeout_ms=20_000)
        patient = made.begin(ListGroupsRequest(), 1, timeout_ms=120_000)
        made.begin(HeartbeatRequest(), 1, timeout_ms=20_000)
        assert not isinstance(await first, Failure)
        (link,) = [link for link in made.driver._connections.values() if link.node.node_id == 1]
        assert [waiting.deadline > made.driver.now() + 60_000 for waiting in link._in_flight] == [True, True]
        release.set()
        await patient


class Counting:
    """A core that counts its turns, and wants one at a time."""

    def __init__(self, due=None):
        self.turns = 0
        self.due = due

    def poll(self, now):
        self.turns += 1
        if self.due is not None and now >= self.due:
            self.due = None
        return []

    def next_deadline(self, now):
        return self.due


@contextlib.asynccontextmanager
async def turning(*cores, on_turn=None):
    config = ClientConfig()
    loop = CoreLoop(Driver(config, ClusterMetadata(config)), cores, on_turn)
    await loop.start()
    try:
        yield loop
    finally:
        await loop.close()


async def test_what_a_turn_tells_is_seen_by_those_who_wait_in_the_same_turn():
    told: list[int] = []
    async with turning(on_turn=told.append) as loop:
        async with asyncio.timeout(20):  # nothing else brings another turn about
            assert await loop.wait_for(lambda: bool(told))


async def test_what_holds_when_the_time_is_over_holds():
    answers = [False, False, True]
    async with turning() as loop:
        assert await loop.wait_for(lambda: answers.pop(0), 20)


async def test_who_has_waited_is_not_kept():
    async with turning() as loop:
        assert not await loop.wait_for(lambda: False, 1)
        assert not loop._waiters


async def test_what_holds_already_is_no_matter_for_a_client_that_is_closed():
    async with turning() as loop:
        pass
    assert await loop.wait_for(lambda: True)


async def test_a_closed_client_turns_no_more():
    core = Counting()
    async with turning(core) as loop:
        await loop.wait_for(lambda: core.turns > 0)
        turns = core.turns
        loop.wakeup()
    await asyncio.sleep(0)
    assert core.turns == turns


async def test_a_client_that_failed_turns_no_more(caplog):
    class Broken(Counting):
        def poll(self, now):
            self.turns += 1
            raise ZeroDivisionError("a defect")

    core = Broken()
    async with turning(core) as loop:
        with pytest.raises(MusterError):
            await loop.wait_for(lambda: False)
        loop.wakeup()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert core.turns == 1


async def test_the_earliest_deadline_of_all_cores_is_kept():
    async with turning() as loop:
        now = loop.driver.now()
        soon, late = Counting(now + 20), Counting(now + 3_600_000)
        loop.cores = [late, soon]
        loop.wakeup()
        async with asyncio.timeout(20):
            while soon.due is not None:
                await asyncio.sleep(0.01)
