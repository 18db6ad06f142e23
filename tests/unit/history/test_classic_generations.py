"""Generations of classic groups from bytes: the fast path returns what the codec returns, or leaves it to the codec."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import ProtocolError, UnsupportedVersionError
from muster.history.model import Generation, Place
from muster.history.rules import classic_generations as own
from muster.model import TopicPartition
from muster.protocol import codec
from muster.protocol.messages import GroupMetadataValue, MemberMetadata
from muster.protocol.subscription import Subscription, encode_assignment, encode_subscription
from tests.support.scale import examples

AT = Place(7, 11, 1_700_000_000_000, 3)
TEXT = st.text(max_size=6)
PLACES = st.lists(st.tuples(st.sampled_from(["t", "ü"]), st.integers(0, 9)).map(lambda each: TopicPartition(*each)))
SAID = st.builds(lambda topics, owned: encode_subscription(Subscription(topics, owned)), st.lists(TEXT), PLACES)
MEMBERS = st.builds(
    MemberMetadata,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout=st.integers(-1, 2**31 - 1),
    session_timeout=st.integers(0, 2**31 - 1),
    subscription=SAID | st.binary(max_size=9),
    assignment=PLACES.map(encode_assignment) | st.binary(max_size=9),
)
VALUES = st.builds(
    GroupMetadataValue,
    protocol_type=st.sampled_from(["consumer", "consumer", "connect", ""]),
    generation=st.integers(-1, 2**31 - 1),
    protocol=st.none() | TEXT,
    leader=st.none() | TEXT,
    current_state_timestamp=st.integers(-1, 2**62),
    members=st.lists(MEMBERS, max_size=4),
)


def encoded(value: GroupMetadataValue, version: int = 3) -> bytes:
    return version.to_bytes(2, "big") + codec.encode(value, version)


def by_codec(data: bytes) -> Generation | None:
    try:
        version = int.from_bytes(data[:2], "big", signed=True)
        return own.classic_generation("g", codec.decode(GroupMetadataValue, version, data, 2), AT)
    except (ProtocolError, UnsupportedVersionError):
        return None


@settings(max_examples=examples(150), deadline=None)
@given(VALUES)
def test_the_short_way_reads_what_was_written(value):
    found = own.usual_generation("g", encoded(value), AT)
    assert found is not None
    assert found == by_codec(encoded(value))


@settings(max_examples=examples(300), deadline=None)
@given(VALUES, st.data())
def test_the_short_way_reads_nothing_that_the_codec_refuses(value, data):
    whole = bytearray(encoded(value, data.draw(st.sampled_from([3, 3, 3, 2, 4]))))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.sampled_from([0, 1, 255, 128, 12]))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))]) + data.draw(st.binary(max_size=3))
    found = own.usual_generation("g", cut, AT)
    assert found is None or found == by_codec(cut)


def test_a_member_whose_bytes_came_before_is_the_same_object():
    member = MemberMetadata("m", None, "c", "/h", 1, 2, encode_subscription(Subscription(["t"])), b"")
    first, second = (
        own.usual_generation("g", encoded(GroupMetadataValue("consumer", number, members=[member])), AT)
        for number in (1, 2)
    )
    assert first is not None
    assert second is not None
    assert first.members[0] is second.members[0]


@pytest.mark.interpreted
def test_what_is_kept_of_bytes_is_bounded_by_their_size(monkeypatch):
    monkeypatch.setattr(own._Recent, "MOST_BYTES", 1_000)
    kept = own._Recent(len)
    assert [kept[bytes([number]) * 100] for number in range(50)] == [100] * 50
    assert sum(map(len, kept)) <= 1_000
