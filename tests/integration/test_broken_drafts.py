"""Whatever bytes arrive at the draft listener, the broker continues; what it cannot read ends the connection."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ErrorCode
from muster.protocol import codec
from muster.protocol import messages as m
from muster.protocol.draft_api import DRAFT_REQUESTS, DRAFT_VERSIONS
from muster.protocol.draft_messages import DraftJoinGroupRequest
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.outsiders import until
from tests.support.peers import free_ports
from tests.support.scale import examples

GROUP = "assigned"


class Listener:
    """A broker with both listeners."""

    def __init__(self, folder: Path) -> None:
        [port] = free_ports(1)
        self.drafts = f"127.0.0.1:{port}"
        settings = {"draft.listener": self.drafts, "server.assigned.groups": GROUP}
        self.broker = BrokerProcess(folder / "data", settings)

    def still_serves(self) -> None:
        with RawClient(self.drafts) as client:
            found = client.ask(m.FindCoordinatorRequest(GROUP), 0)
        assert f"{found.host}:{found.port}" == self.drafts
        with RawClient(self.broker.bootstrap) as client:
            assert client.ask(m.MetadataRequest(), 12).brokers


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    found = Listener(tmp_path_factory.mktemp("drafts"))
    with found.broker:
        yield found
        assert "Traceback" not in found.broker.log()


def poke(address: str, data: bytes) -> bytes:
    with RawClient(address) as client:
        return client.poke(data)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(key: int, version: int = 0) -> bytes:
    return struct.pack(">hhih", key, version, 1, 0)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A valid header, and a body with bytes removed or inserted."""
    key = draw(st.sampled_from(sorted(DRAFT_REQUESTS)))
    version = DRAFT_VERSIONS[key][1]
    whole = codec.encode(DRAFT_REQUESTS[key](), version)
    cut = draw(st.integers(0, len(whole)))
    body = whole[:cut] + draw(st.binary(max_size=12)) + whole[draw(st.integers(cut, len(whole))) :]
    return framed(header(key, version) + body)


@given(st.one_of(st.binary(max_size=100), st.binary(max_size=100).map(framed), requests()))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes(listener: Listener, data: bytes) -> None:
    poke(listener.drafts, data)
    listener.still_serves()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (framed(header(18)), "unsupported request: key 18, version 0"),
        (framed(header(3)), "unsupported request: key 3, version 0"),
        (framed(header(11, 1)), "unsupported request: key 11, version 1"),
        (framed(header(14)), "unsupported request: key 14, version 0"),
        (framed(header(11) + b"\0\1g\0\0\x27\x10\x7f\xff\xff\xff"), "topics declares more elements"),
        (framed(header(11) + b"\0\1g\0\0\x27\x10\0\0\0\0\xff\xff\0\0"), "consumer_id"),
        (framed(header(10)), "FindCoordinatorRequest v0"),
    ],
)
def test_what_the_drafts_did_not_have_ends_the_connection_in_one_line(
    listener: Listener, data: bytes, line: str
) -> None:
    before = listener.broker.log().count(line)
    assert poke(listener.drafts, data) == b""
    until(lambda: listener.broker.log().count(line) == before + 1, lambda: f"one line has {line!r}")
    listener.still_serves()


@pytest.mark.parametrize(
    ("join", "code"),
    [
        (DraftJoinGroupRequest("", 10_000, ["t"], "", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (DraftJoinGroupRequest(GROUP, 10_000, ["t"], "unknown", "range"), ErrorCode.UNKNOWN_MEMBER_ID),
        (DraftJoinGroupRequest(GROUP, -1, ["t"], "", "range"), ErrorCode.INVALID_SESSION_TIMEOUT),
        (DraftJoinGroupRequest(GROUP, 10_000, ["t"], "", ""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (DraftJoinGroupRequest(GROUP, 10_000, ["t"], "", "\0"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (DraftJoinGroupRequest("another", 10_000, ["t"], "", "range"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_make_no_sense_are_refused(listener: Listener, join: DraftJoinGroupRequest, code: ErrorCode) -> None:
    with RawClient(listener.drafts) as client:
        answer = client.ask(join, 0)
    assert (answer.error_code, answer.group_generation_id, answer.assigned_partitions) == (code, -1, [])
    assert answer.consumer_id == join.consumer_id


def test_names_that_are_no_topics_are_assigned_to_no_member(listener: Listener) -> None:
    with RawClient(listener.drafts) as client:
        answer = client.ask(DraftJoinGroupRequest(GROUP, 300_000, ["", "\0", "../..", "t" * 999], "", "range"), 0)
        assert (answer.error_code, answer.assigned_partitions) == (0, [])
        member_id, generation = answer.consumer_id, answer.group_generation_id
        beat = m.HeartbeatRequest(GROUP, generation, member_id)
        assert client.ask(beat, 0).error_code == 0
        stale = m.HeartbeatRequest(GROUP, generation - 1, member_id)
        assert client.ask(stale, 0).error_code == ErrorCode.ILLEGAL_GENERATION
        assert client.ask(m.LeaveGroupRequest(GROUP, member_id), 0).error_code == 0
        assert client.ask(m.LeaveGroupRequest(GROUP, member_id), 0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert client.ask(beat, 0).error_code == ErrorCode.UNKNOWN_MEMBER_ID
