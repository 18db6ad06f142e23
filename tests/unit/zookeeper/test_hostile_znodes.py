"""What other programs may have written: no member stops because of it, and each reports what it has skipped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.client.security.secret import Secret
from muster.model import TopicPartition
from muster.zookeeper.base import znodes
from muster.zookeeper.base.operations import Create, SetData
from muster.zookeeper.consumers.server_assigned_config import ServerAssignedConfig
from muster.zookeeper.consumers.watcher_config import WatcherConfig
from muster.zookeeper.watchers import topic_expression
from muster.zookeeper.watchers.asks import Level
from muster.zookeeper.watchers.states import WatcherState
from muster.zookeeper.watchers.subscription import WatcherSubscription
from tests.support.watcher_world import World, reported


def register(world: World, name: str, subscription: dict[str, int], pattern: str = "white_list") -> None:
    """Another program's member."""
    data = json.dumps({"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1"}).encode()
    world.do(Create(f"/consumers/g/ids/{name}", data, ephemeral=True))


def test_an_expression_that_would_take_forever_is_matched_all_the_same() -> None:
    world = World()
    world.write({"a" * 60: 2})
    watcher = world.at_rest("m", WatcherSubscription.to_list("a+"))
    register(world, "g_z", {"(a+)+b": 1})
    register(world, "g_y", {"(a|a)*": 1})
    world.rest(watcher, after_ms=1_000)
    assert reported(watcher) == []
    assert watcher.reads == {TopicPartition("a" * 60, 0)}, "the other one belongs to g_y, whose list has the topic"


def test_an_expression_that_takes_too_long_is_reported_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_expression, "MOST_STEPS", 2_000)
    world = World()
    world.write({"a" * 200: 1})
    watcher = world.at_rest("m", WatcherSubscription.to_list("a+|t"))
    register(world, "g_a", {"(.*a.*)*(.*a.*)*x": 1})
    world.rest(watcher, after_ms=1_000)
    assert len(watcher.reads) == 5
    (message,) = reported(watcher)
    assert message.startswith("skipped: /consumers/g/ids/g_a cannot be read: ")
    assert "takes too long to match" in message


def test_ones_own_expression_that_takes_too_long_is_reported_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_expression, "MOST_STEPS", 2_000)
    world = World()
    world.write({"a" * 200: 1})
    watcher = world.join("m", WatcherSubscription.to_list("(.*a.*)*(.*a.*)*x|t"), rebalance_backoff_ms=10)
    assert world.clock.run_until(lambda: bool(watcher.errors()), 10_000)
    assert "can't rebalance" in watcher.errors()[0]
    assert "takes too long to match" in reported(watcher)[0]
    world.write({"other": 1})
    world.clock.advance(1_000)
    assert watcher.reads == set()
    assert not watcher.is_at_rest, "it keeps trying"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_thousands_of_topics_times_thousands_of_streams_do_not_fill_memory(strategy: str) -> None:
    """Ten thousand streams for each of three thousand topics: thirty million threads, if each had its own."""
    world = World()
    world.write({f"x{number}": 1 for number in range(3_000)})
    watcher = world.at_rest("m", WatcherSubscription.to_list("x.*"), partition_assignment_strategy=strategy)
    assert len(watcher.reads) == 3_000
    register(world, "g_z", {"x.*": 10_000})
    world.rest(watcher, after_ms=60_000)
    # The member's own thread is the first of 10,001. With one partition, range assigns it to the first.
    assert len(watcher.reads) == (3_000 if strategy == "range" else 1)


BAD_BROKERS: dict[str, Any] = {
    "7": b"",
    "8": b"\xff",
    "x": {"version": 1, "host": "h", "port": 1, "jmx_port": -1},
    "0x": {"version": 1, "host": "h", "port": 1},
    "00": {"version": 1, "host": "h", "port": 1},
    "9999999999": {"version": 1, "host": "h", "port": 1},
    "9": {"version": 1, "host": "", "port": 1},
    "10": {"version": 1, "host": "a b/c\n", "port": 1},
    "11": {"version": 1, "host": "h", "port": 0},
    "12": {"version": 1, "host": "h", "port": 65_536},
    "13": {"version": 4, "endpoints": ["PLAINTEXT://h:99999"]},
    "14": {"version": 4, "endpoints": ["PLAINTEXT://:1"]},
    "15": {"version": 4, "endpoints": ["PLAINTEXT://h:-1"]},
    "16": {"version": 4, "endpoints": ["SSL://h:9092"]},
    "17": {"version": 5, "endpoints": ["X://h:9092"], "listener_security_protocol_map": {"X": 3}},
    "18": {"version": 5, "endpoints": []},
    "19": {"version": 1, "host": ["h"], "port": 1},
}


def write_brokers(world: World) -> None:
    for name, value in BAD_BROKERS.items():
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        world.do(Create(f"/brokers/ids/{name}", data))


def test_brokers_to_which_one_cannot_connect_are_reported_and_skipped() -> None:
    world = World()
    write_brokers(world)
    watcher = world.at_rest()
    assert len(watcher.reads) == 4
    assert [broker.broker_id for broker in watcher.brokers] == [0]
    messages = reported(watcher)
    for name in BAD_BROKERS:
        assert sum(f" /brokers/ids/{name} " in message for message in messages) == 1, name


LISTENERS = {"INSIDE": "SASL_SSL", "OUTSIDE": "SSL", "PLAINTEXT": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("protocol", "port"), [("SASL_SSL", 1), ("SSL", 2), ("PLAINTEXT", 3), ("SASL_PLAINTEXT", None)]
)
def test_a_broker_is_read_from_by_its_listener_for_the_consumers_protocol(protocol: str, port: int | None) -> None:
    world = World(brokers=0)
    endpoints = [f"{name}://h:{number}" for number, name in enumerate(LISTENERS, 1)]
    registration = {"version": 5, "endpoints": endpoints, "listener_security_protocol_map": LISTENERS, "timestamp": "1"}
    world.do(Create("/brokers/ids/0", json.dumps(registration).encode()))
    login: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": Secret("b")}
    config = WatcherConfig(group_id="g", security_protocol=protocol, **login)
    watcher = world.join(security_protocol=config.settings("x").security_protocol)
    if port is None:
        assert world.clock.run_until(lambda: watcher.member.state is WatcherState.WITHOUT_BROKERS, 60_000)
        assert any("no listener for this consumer, whose security_protocol is" in one for one in reported(watcher))
    else:
        world.rest(watcher)
        assert config.addresses_of(watcher.brokers) == [f"h:{port}"]


def test_a_coordinator_learns_no_secret() -> None:
    config = ServerAssignedConfig(
        group_id="g",
        coordinator_servers=("h:1",),
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="a",
        sasl_password=Secret("b"),
        request_timeout_ms=1_234,
    )
    plain = ServerAssignedConfig(group_id="g", coordinator_servers=("h:1",), request_timeout_ms=1_234)
    assert config.of_member() == plain
    assert config.of_reader()["sasl_password"] == Secret("b")


def test_where_no_broker_can_be_read_from_it_waits_for_one() -> None:
    world = World(brokers=0)
    write_brokers(world)
    watcher = world.join()
    assert world.clock.run_until(lambda: watcher.member.state is WatcherState.WITHOUT_BROKERS, 60_000)
    assert not world.owners()
    world.write({}, brokers=1)
    world.rest(watcher)
    assert len(watcher.reads) == 4


@pytest.mark.parametrize("name", ["00", "0x", "01", "0٣", "-1", "", "2147483648", "1.0", "0_1"])
def test_a_partition_with_a_name_that_is_not_a_number_makes_the_topic_unreadable(name: str) -> None:
    world = World()
    watcher = world.at_rest()
    assert len(watcher.reads) == 4
    world.do(SetData("/brokers/topics/t", json.dumps({"version": 1, "partitions": {"1": [0], name: [0]}}).encode()))
    world.rest(watcher, after_ms=1_000)
    assert watcher.reads == set()
    assert "/brokers/topics/t" in reported(watcher)[0]


@pytest.mark.parametrize("data", [b"", b"x", b"1.5", b"1e3", b"\xff", b"9" * 5_000, b"-", " 7".encode("utf-16")])
def test_an_offset_that_is_none_is_reported_as_an_error(data: bytes) -> None:
    world = World(partitions=1)
    first = world.at_rest("a")
    world.clock.advance(60_000)
    world.do(SetData("/consumers/g/offsets/t/0", data))
    first.crash()
    world.clock.advance(20_000)
    watcher = world.at_rest("b")
    assert any("/consumers/g/offsets/t/0" in message for message in reported(watcher, Level.ERROR))
    assert len(watcher.reads) == 1


def test_a_partition_of_the_highest_number_is_read() -> None:
    world = World()
    data = znodes.TopicRegistration({0: [0], (1 << 31) - 1: [0]}, version=1).encode()
    world.do(SetData("/brokers/topics/t", data))
    watcher = world.at_rest()
    assert watcher.reads == {TopicPartition("t", 0), TopicPartition("t", (1 << 31) - 1)}


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_topic_of_a_name_that_no_broker_takes_is_claimed_as_others_expect_but_not_read(strategy: str) -> None:
    """A request that names it would be refused, and whoever wrote the znode could end a loop over records."""
    world = World()
    names = ["a b", "ü", "a:b", "%", "x" * 256]
    world.write(dict.fromkeys(names, 1))
    subscription = WatcherSubscription.to_list(".*")
    watchers = [world.join(name, subscription, partition_assignment_strategy=strategy) for name in "ab"]
    world.rest(*watchers)
    assert {partition for watcher in watchers for partition in watcher.reads} == {
        TopicPartition("t", number) for number in range(4)
    }
    assert all(set(world.owners(name)) == {0} for name in names)
    messages = {message for watcher in watchers for message in reported(watcher)}
    assert {
        f"skipped: /brokers/topics/{name} cannot be read: Kafka allows no topic with such a name" for name in names
    } <= (messages)
