"""What the record of a classic group has of its members: subscriptions and assignments, of consumers and of others."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors.previous import encode_previous_assignment
from muster.model import TopicPartition
from muster.protocol.subscription import (
    Assignment,
    Subscription,
    assignment_of,
    encode_assignment,
    encode_subscription,
    owned_before,
    subscription_of,
)

OWNED = [TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 1)]
PREVIOUS = encode_previous_assignment(OWNED, 7)
CONNECT = bytes.fromhex("0001") + b"\0\x15http://127.0.0.1:8083/" + bytes(9)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_is_read(version: int) -> None:
    said = Subscription(["t", "u"], OWNED, 7, "rack", b"data")
    expected = Subscription(
        ["t", "u"], OWNED if version else [], 7 if version > 1 else -1, "rack" if version > 2 else None, b"data"
    )
    assert subscription_of("consumer", encode_subscription(said, version)) == expected
    assert assignment_of("consumer", encode_assignment(OWNED, b"x", version)) == Assignment(OWNED, b"x")


def test_a_member_without_an_assignment() -> None:
    assert assignment_of("consumer", b"") == Assignment()


@pytest.mark.parametrize("data", [b"", b"\0", CONNECT, b"\xff\xff", encode_subscription(Subscription(["t"]))[:-1]])
@pytest.mark.parametrize("protocol_type", ["connect", "", "sr", "consumer"])
def test_bytes_of_others_and_broken_ones_are_no_error(protocol_type: str, data: bytes) -> None:
    assert subscription_of(protocol_type, data) is None
    if protocol_type != "consumer":
        assert assignment_of(protocol_type, encode_assignment(OWNED)) is None
        assert subscription_of(protocol_type, encode_subscription(Subscription(["t"]))) is None
    elif data:
        assert assignment_of(protocol_type, b"\0\0\0\0\0\1\0\5") is None


@given(st.binary(max_size=80), st.sampled_from(["consumer", "connect"]))
def test_any_bytes(data: bytes, protocol_type: str) -> None:
    said = subscription_of(protocol_type, b"\0" + data)
    if said is not None:
        owned_before(said)
    owned_before(Subscription(["t"], user_data=data))
    assignment_of(protocol_type, b"\0" + data)


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
        (Subscription(["t"], user_data=b"rack=a"), ([], -1)),  # an assignor of somebody's own
        (Subscription(["t"], user_data=PREVIOUS[:-1]), ([], -1)),
        (Subscription(["t"], user_data=PREVIOUS + b"\0"), ([], -1)),
        (Subscription(["t"], user_data=pack(">ii", -1, 7)), ([], -1)),
        (Subscription(["t"], user_data=pack(">ihhi", 1, 0, 0, 0) + b"\x7f\xff\xff\xff"), ([], -1)),
    ],
)
def test_what_a_member_owned_before(said: Subscription, expected: tuple[list[TopicPartition], int]) -> None:
    assert owned_before(said) == expected
