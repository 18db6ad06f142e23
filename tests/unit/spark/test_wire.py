"""The blocking connection of executors: its handshake with brokers of any age."""

from __future__ import annotations

import socket
import threading

import pytest

from muster.client.config import ClientConfig
from muster.client.net.access import Access
from muster.client.plain.wire import PlainConnection
from muster.errors import ErrorCode, ProtocolError
from muster.protocol.framing import encode_response
from muster.protocol.messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from tests.support.scripted_server import decode_request_header

KEY = ApiVersionsRequest.API_KEY
CONFIG = ClientConfig(client_id="test", receive_buffer_bytes=4096)
SPOKEN = [ApiVersion(MetadataRequest.API_KEY, 0, 4)]


def answers(listener: socket.socket, reported: list[tuple[ErrorCode, list[ApiVersion]]], asked: list[int]) -> None:
    """Answer one request after the other like a broker that supports at most ApiVersions v1."""
    link, _ = listener.accept()
    with link, link.makefile("rb") as stream:
        for code, spoken in reported:
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
            header, _ = decode_request_header(frame)
            asked.append(header.request_api_version)
            version = 0 if code is ErrorCode.UNSUPPORTED_VERSION else header.request_api_version
            parts = encode_response(
                ApiVersionsResponse(int(code), spoken), ApiVersionsRequest, version, header.correlation_id
            )
            link.sendall(b"".join(parts))


@pytest.mark.parametrize(
    ("reported", "asked"),
    [
        ([(ErrorCode.NONE, SPOKEN)], [2]),
        ([(ErrorCode.UNSUPPORTED_VERSION, [ApiVersion(KEY, 0, 1)]), (ErrorCode.NONE, SPOKEN)], [2, 1]),
        ([(ErrorCode.UNSUPPORTED_VERSION, []), (ErrorCode.NONE, SPOKEN)], [2, 0]),
        ([(ErrorCode.UNSUPPORTED_VERSION, [])] * 2, [2, 0]),
        ([(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])], [2]),
    ],
)
def test_a_connection_asks_again_in_a_version_that_the_broker_has_named(
    reported: list[tuple[ErrorCode, list[ApiVersion]]], asked: list[int]
) -> None:
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = threading.Thread(target=answers, args=(listener, reported, seen))
        broker.start()
        try:
            if reported[-1][0] is ErrorCode.NONE:
                connection = PlainConnection("127.0.0.1", listener.getsockname()[1], CONFIG, Access(CONFIG))
                assert connection.idle
                buffer = connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                assert 4096 <= buffer <= 2 * 4096  # Linux doubles it
                connection.close()
            else:
                with pytest.raises(ProtocolError, match=reported[-1][0].name):
                    PlainConnection("127.0.0.1", listener.getsockname()[1], CONFIG, Access(CONFIG))
        finally:
            broker.join(20)
    assert seen == asked
