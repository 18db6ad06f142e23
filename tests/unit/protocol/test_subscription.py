"""Subscriptions and assignments of classic members, as stored in a group's record: every version, and user data."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors.previous import encode_previous_assignment
from muster.errors import ProtocolError
from muster.model import TopicPartition
from muster.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    owned_before,
)

OWNED = [TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 1)]
PREVIOUS = encode_previous_assignment(OWNED, 7)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_is_read(version: int) -> None:
    said = Subscription(["t", "u"], OWNED, 7, "rack", b"data")
    expected = Subscription(
        ["t", "u"], OWNED if version else [], 7 if version > 1 else -1, "rack" if version > 2 else None, b"data"
    )
    assert decode_subscription(encode_subscription(said, version)) == expected
    assert decode_assignment(encode_assignment(OWNED, b"x", version)) == Assignment(OWNED, b"x")


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    with suppress(ProtocolError):
        owned_before(decode_subscription(b"\0" + data))
    owned_before(Subscription(["t"], user_data=data))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Subscription(["t"], OWNED, 7), (OWNED, 7)),  # version 2 and later
        (Subscription(["t"], OWNED, 7, user_data=pack(">i", 6)), (OWNED, 7)),
        (Subscription(["t"], OWNED, user_data=pack(">i", 7)), (OWNED, 7)),  # Java's cooperative-sticky, version 1
        (Subscription(["t"], user_data=PREVIOUS), (OWNED, 7)),  # sticky
        (Subscription(["t"], user_data=PREVIOUS[:-4]), (OWNED, -1)),  # sticky as it was before Kafka 2.3
        (Subscription(["t"], OWNED[:1], user_data=PREVIOUS), (OWNED[:1], 7)),  # librdkafka's cooperative-sticky
        (Subscription(["t"], OWNED[:1]), (OWNED[:1], -1)),
        (Subscription(["t"], user_data=b"rack=a"), ([], -1)),  # a user's own assignor
        (Subscription(["t"], user_data=PREVIOUS[:-1]), ([], -1)),
        (Subscription(["t"], user_data=PREVIOUS + b"\0"), ([], -1)),
        (Subscription(["t"], user_data=pack(">ii", -1, 7)), ([], -1)),
        (Subscription(["t"], user_data=pack(">ihhi", 1, 0, 0, 0) + b"\x7f\xff\xff\xff"), ([], -1)),
    ],
)
def test_what_a_member_owned_before(said: Subscription, expected: tuple[list[TopicPartition], int]) -> None:
    assert owned_before(said) == expected
