"""The consumer protocol's blobs against bytes of Apache Kafka 4.2 (tests/oracle/make_assignor_cases.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.assignors import MemberAssignment, get_assignor
from muster.errors import ProtocolError
from muster.model import TopicPartition
from muster.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.support.groups import previous

FACTS = json.loads((Path(__file__).parent / "consumer_protocol.json").read_text())["facts"]
NEWEST = 3


def _facts(kind: str) -> list[Any]:
    return [pytest.param(fact, id=f"v{fact.get('version', 0)}") for fact in FACTS if fact["ask"] == kind]


def _owned(fact: dict[str, Any]) -> list[TopicPartition]:
    return [TopicPartition(*pair) for pair in fact.get("owned", [])]


def _user_data(fact: dict[str, Any]) -> bytes:
    return bytes.fromhex(fact.get("user_data", ""))


def _subscription(fact: dict[str, Any]) -> Subscription:
    rack, generation = fact.get("rack"), fact.get("generation", -1)
    return Subscription(fact["topics"], _owned(fact), generation, rack, _user_data(fact))


@pytest.mark.parametrize("fact", _facts("subscription"))
def test_subscription_is_written_as_kafka_writes_it(fact):
    assert encode_subscription(_subscription(fact), fact["version"]).hex() == fact["hex"]


@pytest.mark.parametrize("fact", _facts("subscription"))
def test_subscription_is_read_with_what_its_version_holds(fact):
    whole, version = _subscription(fact), fact["version"]
    assert decode_subscription(bytes.fromhex(fact["hex"])) == Subscription(
        topics=sorted(whole.topics),
        owned_partitions=sorted(whole.owned_partitions) if version >= 1 else [],
        generation_id=whole.generation_id if version >= 2 else -1,
        rack_id=whole.rack_id if version >= 3 else None,
        user_data=whole.user_data,
    )


@pytest.mark.parametrize("fact", _facts("assignment"))
def test_assignment_is_written_and_read_as_kafka_does(fact):
    data = bytes.fromhex(fact["hex"])
    assert encode_assignment(_owned(fact), _user_data(fact), fact["version"]) == data
    grouped = sorted(_owned(fact), key=lambda row: row.topic, reverse=True)  # a topic's partitions are adjacent
    assert decode_assignment(data) == Assignment(grouped, _user_data(fact))


@pytest.mark.parametrize("fact", [fact for fact in FACTS if fact["ask"] == "user data"], ids=str)
def test_sticky_user_data_is_that_of_kafkas_assignors(fact):
    data = bytes.fromhex(fact["hex"])
    assignor = get_assignor(fact["assignor"])
    assignor.on_assignment(MemberAssignment(sorted(_owned(fact), reverse=True)), fact["generation"])
    written = assignor.subscription_user_data([])
    if fact["assignor"] == "sticky":
        assert len(written) == len(data)
        topics = {topic for topic, _ in fact["owned"]}
        for generation_id, claimed in previous(written, data, topics=topics):
            assert (generation_id, sorted(claimed)) == (fact["generation"], sorted(_owned(fact)))
    else:
        assert written == data


FULL = Subscription(["a", "b"], [TopicPartition("a", 0), TopicPartition("b", 1)], 7, "r", b"u")


def test_a_newer_version_is_read_as_the_newest_known():
    data = bytearray(encode_subscription(FULL) + b"fields to come")
    data[:2] = (9).to_bytes(2, "big")
    assert decode_subscription(bytes(data)) == FULL
    data = bytearray(encode_assignment(FULL.owned_partitions, b"u") + b"fields to come")
    data[:2] = (9).to_bytes(2, "big")
    assert decode_assignment(bytes(data)) == Assignment(FULL.owned_partitions, b"u")


def test_no_rack_and_an_empty_one_are_the_same():
    assert decode_subscription(encode_subscription(Subscription(["t"], rack_id=""))).rack_id is None


def test_no_bytes_are_an_assignment_without_partitions():
    assert decode_assignment(b"") == Assignment()


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_cut_short_is_an_error(version):
    for decode, data in (
        (decode_subscription, encode_subscription(FULL, version)),
        (decode_assignment, encode_assignment(FULL.owned_partitions, b"u", version)),
    ):
        for length in range(1, len(data)):
            with pytest.raises(ProtocolError):
                decode(data[:length])


def test_a_negative_version_is_an_error():
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(ProtocolError, match="no version -1"):
            decode(b"\xff\xff" + encode_assignment([])[2:])


@given(data=st.binary(min_size=1, max_size=80))
def test_garbage_is_read_or_refused_and_nothing_else(data):
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue


rows = st.lists(st.builds(TopicPartition, st.sampled_from(["a", "b.c", "é"]), st.integers(0, 2**31 - 1)), unique=True)


@given(
    topics=st.lists(st.text(max_size=20), unique=True),
    owned=rows,
    generation=st.integers(-1, 2**31 - 1),
    rack=st.none() | st.text(min_size=1, max_size=5),
    user_data=st.binary(max_size=20),
)
def test_subscriptions_come_back_as_they_were(topics, owned, generation, rack, user_data):
    found = decode_subscription(encode_subscription(Subscription(topics, owned, generation, rack, user_data)))
    assert found == Subscription(sorted(topics), sorted(owned), generation, rack, user_data)


@given(owned=rows, user_data=st.binary(max_size=20))
def test_assignments_come_back_as_they_were(owned, user_data):
    found = decode_assignment(encode_assignment(owned, user_data))
    assert (sorted(found.partitions), found.user_data) == (sorted(owned), user_data)
