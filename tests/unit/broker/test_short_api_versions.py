"""The fast path of ApiVersions answers, byte for byte, like the general path."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.broker.handlers.api_versions import api_versions, fast_api_versions, spoken
from muster.broker.net.calls import Api, Call, encode_answer
from muster.errors import ErrorCode, ProtocolError
from muster.protocol import codec
from muster.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.primitives import uvarint

SPOKEN = spoken()
API = Api(ApiVersionsRequest, 0, 4, partial(api_versions, SPOKEN))
SHORT = fast_api_versions(SPOKEN)
NAMES = st.one_of(
    st.sampled_from(["muster", "apache-kafka-java", "-bad-", "bad-", "", "a", "a\n"]), st.text(max_size=20)
)


def general(request: ApiVersionsRequest, version: int, correlation_id: int) -> bytes:
    call = Call(cast(Any, None), API, version, correlation_id, "c")
    return b"".join(encode_answer(api_versions(SPOKEN, request, call), call))


@given(NAMES, NAMES, st.integers(0, 4), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20))
@example("muster", "1", 4, 7, b"")
@example("-bad-", "1", 4, 7, b"")
@example("-bad-", "1", 2, 7, b"")
def test_the_short_way_says_what_the_general_way_says(
    name: str, software_version: str, version: int, correlation_id: int, before: bytes
) -> None:
    request = ApiVersionsRequest(name, software_version)
    frame = before + codec.encode(
        ApiVersionsRequest(name, software_version) if version >= 3 else ApiVersionsRequest(), version
    )
    assert SHORT(frame, len(before), version, correlation_id) == general(request, version, correlation_id)


@pytest.mark.parametrize(("tags", "is_short"), [(0, True), (2_000, True), (2_001, False)])
def test_a_request_of_very_many_tags_is_left_to_the_general_way(tags: int, is_short: bool) -> None:
    frame = codec.encode(ApiVersionsRequest("a", "1"), 4)[:-1] + uvarint(tags) + b"\1\0" * tags
    assert (SHORT(frame, 0, 4, 1) is not None) is is_short


def test_what_is_not_a_request_is_refused() -> None:
    with pytest.raises(ProtocolError):
        SHORT(b"\7", 0, 4, 1)


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [("muster", 4, ErrorCode.NONE), ("-bad-", 4, ErrorCode.INVALID_REQUEST), ("", 3, ErrorCode.INVALID_REQUEST)],
)
def test_a_client_must_say_its_name_as_kafka_wants_it(name: str, version: int, error: ErrorCode) -> None:
    frame = SHORT(codec.encode(ApiVersionsRequest(name, "1"), version), 0, version, 1)
    assert frame is not None
    found = codec.decode(ApiVersionsResponse, version, frame, 8)
    assert (found.error_code, bool(found.api_keys)) == (error, not error)
