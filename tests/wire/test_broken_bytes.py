"""Bytes that are cut short, changed or random cause a ProtocolError, whatever message they are decoded as."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError
from muster.protocol import codec
from muster.protocol.api import REQUESTS
from muster.protocol.primitives import Message
from tests.support.message_strategies import message
from tests.support.scale import examples

_NEWEST: list[tuple[type[Message], int]] = [
    (cls, version)
    for request in REQUESTS.values()
    for cls in (request, request.RESPONSE)
    for version in {cls.MIN_VERSION, cls.MAX_VERSION}
]
_each = pytest.mark.parametrize(("cls", "version"), _NEWEST, ids=[f"{c.__name__}-v{v}" for c, v in _NEWEST])


def _some(number: int) -> settings:
    return settings(max_examples=examples(number, quick=2), deadline=None, suppress_health_check=list(HealthCheck))


@_each
@_some(3)
@given(data=st.data())
def test_a_message_that_is_cut_short_is_refused(cls: type[Message], version: int, data: Any) -> None:
    encoded = codec.encode(data.draw(message(cls.__name__, version)), version)
    for cut in range(len(encoded)):
        with pytest.raises(ProtocolError):
            codec.decode(cls, version, encoded[:cut])


@_each
@_some(3)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_a_changed_byte_is_read_or_refused(cls: type[Message], version: int, data: Any, seed: int) -> None:
    encoded = codec.encode(data.draw(message(cls.__name__, version)), version)
    random = Random(seed)
    for place in range(len(encoded)):
        changed = bytearray(encoded)
        changed[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        with contextlib.suppress(ProtocolError):
            assert isinstance(codec.decode(cls, version, changed), cls)


@_each
@_some(10)
@given(noise=st.binary(max_size=300))
def test_noise_is_read_or_refused(cls: type[Message], version: int, noise: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(codec.decode(cls, version, memoryview(noise)), cls)


def test_an_array_that_claims_more_than_the_message_holds_is_refused_before_it_is_built() -> None:
    metadata = REQUESTS[3]
    with pytest.raises(ProtocolError, match="more elements"):
        codec.decode(metadata, 1, b"\x7f\xff\xff\xff")
