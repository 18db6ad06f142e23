"""Kafka's znodes as real ones contain them, and how data that no Kafka writes is handled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.model import Node
from muster.zookeeper.base import znodes
from muster.zookeeper.base.znode_json import Unreadable
from muster.zookeeper.base.znodes import (
    BrokerEndpoint,
    BrokerRegistration,
    Controller,
    GroupPaths,
    LeaderAndIsr,
    MemberRegistration,
    SubscriptionPattern,
    TopicRegistration,
)

PLAIN = BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9809)

# What Kafka 0.8.2.2, 0.9, 0.10.2 and 3.9.1 wrote into a real ZooKeeper.
BROKERS = [
    (
        BrokerRegistration(0, (PLAIN._replace(port=9808),), 1795229764885, 1),
        b'{"jmx_port":-1,"timestamp":"1795229764885","host":"127.0.0.1","version":1,"port":9808}',
    ),
    (
        BrokerRegistration(0, (PLAIN,), 1795229764885, 2),
        b'{"jmx_port":-1,"timestamp":"1795229764885","endpoints":["PLAINTEXT://127.0.0.1:9809"],'
        b'"host":"127.0.0.1","version":2,"port":9809}',
    ),
    (
        BrokerRegistration(0, (PLAIN._replace(port=9789),), 1795229764885, 4),
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:9789"],'
        b'"jmx_port":-1,"host":"127.0.0.1","timestamp":"1795229764885","port":9789,"version":4}',
    ),
    (
        BrokerRegistration(0, (PLAIN._replace(port=9839),), 1795229764885, 5),
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:9839"],"jmx_port":-1,"port":9839,"host":"127.0.0.1","version":5,'
        b'"timestamp":"1795229764885"}',
    ),
]


@pytest.mark.parametrize(("value", "data"), BROKERS, ids=[f"version {value.version}" for value, _ in BROKERS])
def test_a_broker_is_written_and_read_as_kafka_does(value: BrokerRegistration, data: bytes) -> None:
    assert value.encode() == data
    assert znodes.read_broker("0", data) == value


def test_a_broker_of_version_3_has_a_rack() -> None:
    """0.10.0 added it, and no other key."""
    data = (
        b'{"jmx_port":9999,"timestamp":"2233345666","endpoints":["PLAINTEXT://host1:9092","SSL://host1:9093"],'
        b'"host":"localhost","version":3,"port":9092,"rack":"dc1"}'
    )
    found = znodes.read_broker("7", data)
    assert isinstance(found, BrokerRegistration)
    assert found.node == Node(7, "host1", 9092, "dc1")
    assert [endpoint.security_protocol for endpoint in found.endpoints] == ["PLAINTEXT", "SSL"]
    written = BrokerRegistration(7, found.endpoints, 2233345666, 3, "dc1", 9999).encode()
    assert json.loads(written) == {**json.loads(data), "host": "host1"}


def test_a_broker_may_name_its_listeners_and_have_none_that_is_plain() -> None:
    data = (
        b'{"listener_security_protocol_map":{"INSIDE":"SSL","OUTSIDE":"PLAINTEXT"},'
        b'"endpoints":["INSIDE://a:1","OUTSIDE://[::1]:2"],"jmx_port":-1,"host":"::1","timestamp":"3","port":2,"version":4}'
    )
    found = znodes.read_broker("1", data)
    assert isinstance(found, BrokerRegistration)
    assert found.node == Node(1, "::1", 2)
    assert found.encode() == data
    hidden = found._replace(endpoints=found.endpoints[:1])
    assert hidden.node is None
    assert json.loads(hidden.encode())["host"] is None
    assert json.loads(hidden.encode())["port"] == -1


def test_a_broker_says_which_partitions_it_cannot_open() -> None:
    """muster's own key, which Kafka ignores, and which exists only if there are such partitions."""
    value, data = BROKERS[-1]
    named = value._replace(offline=frozenset({("id-b", 0), ("id-a", 12), ("id-a", 3)}))
    found = json.loads(named.encode())
    assert found.pop("offline_partitions") == {"id-a": [3, 12], "id-b": [0]}
    assert found == json.loads(data)
    assert znodes.read_broker("0", named.encode()) == named


@pytest.mark.parametrize("said", [[], "id-a", {"id-a": 3}, {"id-a": ["3"]}, {"id-a": None}])
def test_partitions_that_cannot_be_opened_are_read_without_trust(said: object) -> None:
    registration = {**json.loads(BROKERS[-1][1]), "offline_partitions": said}
    assert isinstance(znodes.read_broker("0", json.dumps(registration).encode()), Unreadable)


TOPICS = [
    (
        TopicRegistration({0: [0], 1: [0], 2: [0], 3: [0]}, None, 1),
        b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}',
    ),
    (
        TopicRegistration({0: [0]}, "J28iabcdefghijklmnopqr", 3),
        b'{"partitions":{"0":[0]},"topic_id":"J28iabcdefghijklmnopqr","adding_replicas":{},"removing_replicas":{},'
        b'"version":3}',
    ),
]


@pytest.mark.parametrize(("value", "data"), TOPICS, ids=["0.8", "3.9"])
def test_a_topic_is_written_and_read_as_kafka_does(value: TopicRegistration, data: bytes) -> None:
    assert value.encode() == data
    assert znodes.read_topic("t1", data) == value


def test_the_partitions_of_a_topic_are_read_in_their_order_whatever_that_of_the_keys() -> None:
    found = znodes.read_topic("t1", b'{"version":1,"partitions":{"2":[0],"1":[1,0],"10":[0],"0":[0]}}')
    assert isinstance(found, TopicRegistration)
    assert list(found.partitions) == [0, 1, 2, 10]
    assert found.partitions[1] == [1, 0]


def test_the_state_of_a_partition_is_as_kafka_writes_it() -> None:
    data = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
    assert LeaderAndIsr(0, 0, [0], 1).encode() == data
    assert znodes.read_partition_state("t1", 0, data) == LeaderAndIsr(0, 0, [0], 1)


def test_the_controller_is_as_kafka_writes_it() -> None:
    data = b'{"version":1,"brokerid":0,"timestamp":"1795229764885"}'
    assert Controller(0, 1795229764885).encode() == data
    assert znodes.read_controller(data) == Controller(0, 1795229764885)
    newer = b'{"version":2,"brokerid":0,"timestamp":"1795229764885","kraftControllerEpoch":-1}'
    assert Controller(0, 1795229764885, 2).encode() == newer
    assert znodes.read_controller(newer) == Controller(0, 1795229764885, 2)
    assert znodes.read_controller_epoch(b"1") == 1


def test_the_settings_of_a_topic_are_as_kafka_writes_them() -> None:
    assert znodes.topic_config_data({}) == b'{"version":1,"config":{}}'
    data = znodes.topic_config_data({"cleanup.policy": "compact"})
    assert znodes.read_topic_config("t1", data) == {"cleanup.policy": "compact"}


MEMBERS = [
    (
        MemberRegistration(SubscriptionPattern.WHITE_LIST, {"t1": 1}, 1795229792532),
        b'{"version":1,"subscription":{"t1":1},"pattern":"white_list","timestamp":"1795229792532"}',
    ),
    (
        MemberRegistration(SubscriptionPattern.STATIC, {"t1": 2, "t2": 1}, 1795229792532),
        b'{"version":1,"subscription":{"t1":2,"t2":1},"pattern":"static","timestamp":"1795229792532"}',
    ),
    (
        MemberRegistration(SubscriptionPattern.BLACK_LIST, {'a\\.b|"/\x7f': 3}, 1),
        b'{"version":1,"subscription":{"a\\\\.b|\\"\\/\\u007f":3},"pattern":"black_list","timestamp":"1"}',
    ),
]


@pytest.mark.parametrize(("value", "data"), MEMBERS, ids=["white list", "static", "black list"])
def test_a_member_is_written_and_read_as_kafka_does(value: MemberRegistration, data: bytes) -> None:
    assert value.encode() == data
    assert znodes.read_member("/i", data) == value


def test_a_member_that_would_stop_every_java_consumer_is_recognized() -> None:
    """0.8 reads each number with `toInt`: a timestamp that is a number ends its rebalance."""
    poison = b'{"version":1,"subscription":{"t1":1},"pattern":"static","timestamp":1795229792532}'
    found = znodes.read_member("/i", poison)
    assert isinstance(found, MemberRegistration)
    assert found.poison == "'1795229792532' is beyond Java's int"
    for number, is_beyond in ((2147483647, False), (2147483648, True), (-2147483648, False), (-2147483649, True)):
        found = znodes.read_member("/i", poison.replace(b"1795229792532", b"%d" % number))
        assert isinstance(found, MemberRegistration)
        assert (found.poison is not None) is is_beyond
    fraction = znodes.read_member("/i", b'{"version":1.0,"subscription":{"t1":1},"pattern":"static","timestamp":"1"}')
    assert isinstance(fraction, MemberRegistration)
    assert fraction.poison == "'1.0' is not an integer"
    assert fraction.timestamp_ms == 1
    extra = b'{"version":1,"subscription":{"t1":1},"pattern":"static","timestamp":"1","more":{"deep":[1]}}'
    read = znodes.read_member("/i", extra)
    assert isinstance(read, MemberRegistration)
    assert read.poison is None


@given(st.integers(0, 1 << 40), st.dictionaries(st.text("ab.-_9", min_size=1), st.integers(1, 9), max_size=5))
def test_what_a_member_writes_no_java_consumer_chokes_on(now: int, topics: dict[str, int]) -> None:
    value = MemberRegistration(SubscriptionPattern.STATIC, topics, now)
    assert znodes.read_member("/i", value.encode()) == value


def test_the_paths_are_kafkas() -> None:
    paths = GroupPaths("g1")
    assert paths.member("g1_vm-1795229792484-bffbbfb2") == "/consumers/g1/ids/g1_vm-1795229792484-bffbbfb2"
    assert paths.owner("t1", 0) == "/consumers/g1/owners/t1/0"
    assert paths.offset("t1", 3) == "/consumers/g1/offsets/t1/3"
    assert znodes.broker_path(0) == "/brokers/ids/0"
    assert znodes.topic_path("t1") == "/brokers/topics/t1"
    assert znodes.partition_state_path("t1", 0) == "/brokers/topics/t1/partitions/0/state"
    assert znodes.topic_config_path("t1") == "/config/topics/t1"


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a b", "ä", "a\x00", "a\n", "/"])
def test_a_name_that_would_lead_to_another_place_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="group_id"):
        GroupPaths(name)


@pytest.mark.parametrize("name", ["g", "...", ".a", "a.b-c_d", "-", "0"])
def test_a_name_of_kafkas_characters_needs_no_escaping(name: str) -> None:
    assert GroupPaths(name).ids == f"/consumers/{name}/ids"


def test_offsets_are_plain_text() -> None:
    assert znodes.read_offset("/o", b"100") == 100
    assert znodes.read_offset("/o", b"-1") == -1


Reader = Callable[[bytes | None], Any]
READERS: dict[str, Reader] = {
    "broker": lambda data: znodes.read_broker("0", data),
    "topic": lambda data: znodes.read_topic("t", data),
    "state": lambda data: znodes.read_partition_state("t", 0, data),
    "config": lambda data: znodes.read_topic_config("t", data),
    "controller": znodes.read_controller,
    "epoch": znodes.read_controller_epoch,
    "member": lambda data: znodes.read_member("/i", data),
    "offset": lambda data: znodes.read_offset("/o", data),
}
BAD: list[bytes | None] = [None, b"", b"\xff\xfe"]
BAD_JSON: list[bytes | None] = [
    *BAD,
    b"{}",
    b"[]",
    b"null",
    b"1.5",
    b"{",
    b'"text"',
    b"[" * 100_000,
    b'{"version":' + b"9" * 10_000 + b"}",
    b'{"version":NaN}',
    b'{"version":"1"}',
    b'{"version":true,"leader":true,"brokerid":true,"partitions":[],"config":[],"pattern":1,"subscription":[]}',
]
MORE_BAD = [
    ("broker", b'{"version":0,"host":"h","port":1}', "its version is below 1"),
    ("broker", b'{"version":1,"host":null,"port":1}', "host is not text"),
    ("broker", b'{"version":1,"host":"h","port":65536}', "port is not a valid port"),
    ("broker", b'{"version":2,"endpoints":["h:1"]}', "'h:1' is not a listener"),
    ("broker", b'{"version":4,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":1}}', "is not text"),
    ("broker", b'{"version":4,"endpoints":["PLAINTEXT://h:1"],"rack":"\\ud800"}', "rack is not text"),
    ("broker", b'{"version":4,"endpoints":["PLAINTEXT://h:1"],"rack":"%s"}' % (b"r" * 40_000), "rack is not text"),
    ("broker", b'{"version":4,"endpoints":["PLAINTEXT://%s:1"]}' % (b"h" * 40_000), "is not a listener"),
    ("broker", b'{"version":1,"host":"%s","port":1}' % (b"h" * 9_000), "is not a host name"),
    ("topic", b'{"version":1,"partitions":{"-1":[0]}}', "'-1' is not a partition number"),
    ("topic", b'{"version":1,"partitions":{"2147483648":[0]}}', "is not a partition number"),
    ("topic", b'{"version":1,"partitions":{"0":0}}', "replicas is not a list"),
    ("topic", b'{"version":1,"partitions":{"0":[4294967296]}}', "32-bit integer"),
    ("config", b'{"version":1,"config":{"a":1}}', "a setting is not text"),
    ("config", b'{"version":1,"config":{"\\udfff":"x"}}', "a setting is not text"),
    ("config", b'{"version":1,"config":{"a":"\\ud83d"}}', "a setting is not text"),
    ("member", b'{"version":1,"subscription":{"t1":0},"pattern":"static"}', "at least 1"),
    ("member", b'{"version":1,"subscription":{"t1":true},"pattern":"static"}', "at least 1"),
    ("member", b'{"version":1,"subscription":{"t1":1.0},"pattern":"static"}', "at least 1"),
    ("member", b'{"version":1,"subscription":{"t1":2147483647},"pattern":"static"}', "more than 10000 streams"),
    ("member", b'{"version":1,"subscription":{"t1":1}}', "pattern is not text"),
    ("member", b'{"version":1,"pattern":"static"}', "subscription is not a JSON object"),
    ("offset", b"1 ", "not a 64-bit integer"),
    ("offset", b"9223372036854775808", "not a 64-bit integer"),
    ("epoch", "١".encode(), "not a 64-bit integer"),
]


@pytest.mark.parametrize("kind", READERS)
def test_what_is_malformed_is_a_value_that_says_so(kind: str) -> None:
    for data in BAD if kind == "owner" else BAD_JSON:
        found = READERS[kind](data)
        assert isinstance(found, Unreadable), data
        assert found.reason in str(found)


@pytest.mark.parametrize(("kind", "data", "reason"), MORE_BAD)
def test_the_reason_is_reported(kind: str, data: bytes, reason: str) -> None:
    found = READERS[kind](data)
    assert isinstance(found, Unreadable)
    assert reason in found.reason


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["version", "host", "port", "endpoints", "partitions", "subscription", "pattern", "isr"]
                )
                | st.text(max_size=3),
                inner,
            )
        ),
        max_leaves=10,
    )
)
def test_no_reader_raises(value: object) -> None:
    data = json.dumps(value).encode()
    for read in READERS.values():
        read(data)
