"""Frames on a connection: the limit on their length, and the header before the body."""

import pytest

from muster.errors import ProtocolError
from muster.protocol.framing import check_length, encode_request, skip_tags
from muster.protocol.messages import HeartbeatRequest
from tests.support.scripted_server import decode_request_header


@pytest.mark.parametrize(
    ("length", "says"),
    [(101, "limit of 100"), (2**31 - 1, "limit"), (-1, "frame length -1"), (-(2**31), "frame length")],
)
def test_a_length_outside_the_bound_is_refused(length, says):
    with pytest.raises(ProtocolError, match=says):
        check_length(length, 100)


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_length_up_to_the_bound_is_taken(length):
    check_length(length, 100)


@pytest.mark.parametrize("client_id", [None, "", "x", "é" * 100])
@pytest.mark.parametrize(
    ("request_", "version"), [(HeartbeatRequest("g", 1, "m"), 3), (HeartbeatRequest("g", 1, "m"), 4)]
)
def test_a_header_is_read_as_it_was_written(client_id, request_, version):
    frame = b"".join(encode_request(request_, version, 7, client_id))[4:]
    header, position = decode_request_header(frame)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (12, version, 7)
    assert header.client_id == client_id
    assert position == 10 + len((client_id or "").encode()) + (version == 4)


def test_a_header_s_tagged_fields_are_skipped():
    assert skip_tags(b"x" + b"\x02\x00\x03abc\x05\x00" + b"rest", 1) == 9


def test_more_tagged_fields_than_any_header_has_are_refused():
    assert skip_tags(b"\xe8\x07" + bytes(2_000), 0) == 2_002
    with pytest.raises(ProtocolError, match="1001 tagged fields"):
        skip_tags(b"\xe9\x07" + bytes(2_002), 0)
