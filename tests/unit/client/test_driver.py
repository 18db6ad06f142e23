"""The driver against a scripted broker: the handshake, and requests with their answers."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from muster.client.core.sends import Channel, Failure, FailureKind, Send
from muster.client.net.connection import MAX_IN_FLIGHT
from muster.errors import ErrorCode, IllegalArgumentError
from muster.protocol import messages as m
from muster.protocol.primitives import ZERO_UUID
from tests.support.driver_client import connected, echo, failed, scripted

pytestmark = pytest.mark.any_loop

# --- handshake -------------------------------------------------------------------------------------------------------


async def test_the_newest_common_version_is_used():
    seen = []

    async def then(peer):
        seen.append(peer.header.request_api_version)
        await peer.reply(m.HeartbeatResponse())

    async with scripted(then) as (server, made):
        server.versions[12] = (0, 3)
        await made.ask(m.HeartbeatRequest("g", 1, "m"))
        await made.ask(m.HeartbeatRequest("g", 1, "m"), newest=1)
    assert seen == [3, 1]


@pytest.mark.parametrize(
    "request_",
    [m.HeartbeatRequest("\ud800", 1, "m"), m.HeartbeatRequest("g", 2**31, "m"), m.HeartbeatRequest("g", 1, 5)],  # type: ignore[arg-type]
)
async def test_what_cannot_be_encoded_fails_its_own_request_and_no_other(request_, one_look):
    async with scripted(echo) as (_, made):
        before, bad, after = (made.begin(r) for r in (m.HeartbeatRequest("g"), request_, m.HeartbeatRequest("g")))
        assert isinstance(await before, m.HeartbeatResponse)
        message = failed(await bad, FailureKind.UNENCODABLE)
        assert "a value in HeartbeatRequest cannot be sent" in message
        assert isinstance(Failure(FailureKind.UNENCODABLE, message).error(), IllegalArgumentError)
        assert isinstance(await after, m.HeartbeatResponse)
        await made.know(1)
        await made.ask(m.HeartbeatRequest("g"), 1)
        answers = []
        send = Send(1, m.HeartbeatRequest, lambda _: request_, lambda reply, _: answers.append(reply))
        good = replace(send, build=lambda _: m.HeartbeatRequest("g"), timeout_ms=15_000)
        made.driver.dispatch([send, good])
        assert await made.loop.wait_for(lambda: len(answers) == 2, 60_000)
        assert isinstance(answers[1], m.HeartbeatResponse)
        assert made.loop.error is None


async def test_an_older_broker_is_spoken_to_in_its_own_version():
    """KIP-511: it answers ApiVersions in v0 with UNSUPPORTED_VERSION and the versions that it supports."""
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
        made.begin(m.ListGroupsRequest())
        assert await made.loop.wait_for(lambda: bool(asked), 20_000) or asked
    assert asked[0].client_software_name == "muster"


async def test_a_request_that_no_common_version_carries_is_refused_and_the_rest_continues():
    async with scripted(echo) as (server, made):
        del server.versions[16]
        server.versions[12] = (90, 91)
        text = failed(await made.ask(m.ListGroupsRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "does not support ListGroupsRequest" in text
        text = failed(await made.ask(m.HeartbeatRequest()), FailureKind.UNSUPPORTED_VERSION)
        assert "v90" in text
        await made.know(1)


async def test_a_request_that_loses_something_in_an_old_version_is_refused():
    async with scripted() as (server, made):
        server.versions[16] = (0, 3)
        text = failed(await made.ask(m.ListGroupsRequest(["Stable"])), FailureKind.UNSUPPORTED_VERSION)
        assert "states_filter" in text


# --- requests and answers --------------------------------------------------------------------------------------------


async def test_requests_go_out_together_and_answers_come_in_order():
    async def then(peer):
        headers = [peer.header]
        for _ in range(9):
            await peer.read()
            headers.append(peer.header)
        for number, header in enumerate(headers):
            await peer.reply(m.ListGroupsResponse(error_code=number), header)

    async with scripted(then) as (_, made):
        answers = await asyncio.gather(*(made.begin(m.ListGroupsRequest()) for _ in range(10)))
    assert [answer.error_code for answer in answers] == list(range(10))


async def test_a_large_answer_arrives_whole():
    large = m.ListGroupsResponse()
    large.groups = [type_of_group(f"group-{number:05}") for number in range(20_000)]

    async def then(peer):
        await peer.reply(large)

    async with scripted(then) as (_, made):
        first, second = await asyncio.gather(made.begin(m.ListGroupsRequest()), made.begin(m.ListGroupsRequest()))
    assert first == large
    assert second == large


def type_of_group(name):
    from muster.protocol.messages import ListedGroup

    return ListedGroup(name, "consumer")


async def test_channels_have_connections_of_their_own():
    async def then(peer):
        if peer.header.request_api_key == m.HeartbeatRequest.API_KEY:
            await peer.reply(m.HeartbeatResponse())

    async with scripted(then, known=1) as (_, made):
        parked = made.begin(m.ListGroupsRequest(), 1)
        await made.ask(m.HeartbeatRequest(), 1, channel=Channel.COORDINATOR)
        assert not parked.done()
        assert len(connected(made.driver)) == 2
        made.driver.disconnect(1, Channel.DATA)
        failed(await parked, FailureKind.DISCONNECTED)


async def test_acks_0_has_no_answer_on_the_wire():
    async def then(peer):
        if peer.header.request_api_key != m.ProduceRequest.API_KEY:
            await peer.reply(m.ListGroupsResponse())

    async with scripted(then, known=1) as (_, made):
        answer = asyncio.get_running_loop().create_future()
        request = m.ProduceRequest()
        made.driver.dispatch(
            [
                Send(
                    1,
                    m.ProduceRequest,
                    lambda _: request,
                    lambda reply, now: answer.set_result(reply),
                    expects_reply=False,
                ),
            ]
        )
        assert not isinstance(await answer, Failure)
        assert not isinstance(await made.ask(m.ListGroupsRequest(), 1), Failure)


@pytest.mark.parametrize("reads", [True, False])
async def test_what_has_no_answer_is_done_when_the_broker_has_taken_it(reads):
    """More than the sockets buffer: a client that closes the connection earlier loses the rest."""
    begin = asyncio.Event()
    answers = []
    data = [m.TopicProduceData("t", ZERO_UUID, [m.PartitionProduceData(0, bytearray(16 << 20))])]
    request = m.ProduceRequest(acks=0, topic_data=data)

    async def script(peer):
        await peer.handshake()
        if peer.number > 1:
            await begin.wait()
        while True:
            if isinstance(await peer.read(), m.MetadataRequest):
                await peer.reply(server.metadata())

    async with scripted(script=script) as (server, made):
        await made.know(1)
        send = Send(1, m.ProduceRequest, lambda _: request, lambda answer, _: answers.append(answer), Channel.DATA)
        send = replace(send, expects_reply=False, newest_version=12)
        small = replace(send, build=lambda _: m.ProduceRequest(acks=0), timeout_ms=60_000)
        made.driver.dispatch([small])
        while not answers:  # connected: the timeout is for the large one alone
            await asyncio.sleep(0.01)
        answers.clear()
        made.driver.dispatch([replace(send, timeout_ms=60_000 if reads else 300)])
        if reads:
            await asyncio.sleep(0.1)
            assert not answers
            begin.set()
        while not answers:
            await asyncio.sleep(0.01)
        if reads:
            assert not isinstance(answers[0], Failure)
        else:
            assert "did not take ProduceRequest in time" in failed(answers[0])


async def test_throttling_holds_the_next_request_back(one_look):
    """KIP-219."""

    async def then(peer):
        await peer.reply(m.HeartbeatResponse(throttle_time_ms=150))

    async with scripted(then, known=1) as (_, made):
        before = made.driver.now()
        await made.ask(m.HeartbeatRequest(), 1)
        (quiet_until,) = [link._muted_until for link in made.driver._connections.values() if link.node.node_id == 1]
        assert quiet_until >= before + 150
        # Everything else that makes the driver check its connections again happens later than that.
        assert not isinstance(await made.ask(m.HeartbeatRequest(), 1, timeout_ms=15_000), Failure)
        assert made.driver.now() >= quiet_until


async def test_more_requests_than_may_be_under_way_wait_for_answers(one_look):
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
                await peer.reply(m.HeartbeatResponse(), header)
        elif read > MAX_IN_FLIGHT:
            await peer.reply(m.HeartbeatResponse())

    headers = []
    async with scripted(then, known=1) as (_, made):
        many = [made.begin(m.HeartbeatRequest(), 1, timeout_ms=15_000) for _ in range(2 * MAX_IN_FLIGHT)]
        answers = await asyncio.gather(*many)
        assert not any(isinstance(answer, Failure) for answer in answers)
        assert early == []
