"""The testing kit's faults, waits and clock, with real clients; on a broker in a thread and on one in a process."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

import muster.testing
from muster import (
    Admin,
    CommitFailedError,
    Consumer,
    CorruptRecordError,
    KafkaError,
    MusterError,
    Producer,
    TopicPartition,
)
from muster.testing import Kafka, WaitTimeoutError
from muster.testing.backends import BrokerAwayError, TestBroker
from muster.testing.control_port import ControlPort
from tests.support.alive import processes_of
from tests.support.peers import find_java, require

PATIENCE_MS = 240_000
"""Only in case of a hang."""


@pytest.fixture(scope="module", params=["thread", "process"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    with muster.testing.kafka(in_process=request.param == "thread") as kafka:
        yield kafka


@contextmanager
def member(kafka: Kafka, topic: str, group: str, client_id: str, **settings: Any) -> Iterator[list[bytes | None]]:
    """A member of a group that reads and commits in its own thread, and the values that it has read."""
    handled: list[bytes | None] = []
    ending = threading.Event()
    consumer = Consumer(
        bootstrap_servers=kafka.bootstrap,
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        **settings,
    )

    def read() -> None:
        with consumer:
            consumer.subscribe([topic])
            while not ending.is_set():
                batches = consumer.poll(50)
                handled.extend(record.value for batch in batches.values() for record in batch)
                if batches:
                    with suppress(CommitFailedError):  # the group has rebalanced: it reads them again
                        consumer.commit()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield handled
    finally:
        ending.set()
        thread.join()


LOST = ["lose_request", "lose_answer", "cut", "hang"]
MORE: dict[str, dict[str, Any]] = {
    "error": {"error": "NOT_LEADER_OR_FOLLOWER"},
    "delay": {"delay_ms": 50},
    "throttle": {"throttle_ms": 50},
}


@pytest.mark.parametrize("do", [*LOST, *MORE])
def test_a_producer_lives_through_a_fault_and_writes_once(kafka: Kafka, do: str) -> None:
    topic = kafka.topic()
    # The others close the connection: they need no timeout, and on a busy machine a short one would pass at once.
    timeout_ms = 6_000 if do == "hang" else 120_000
    settings = {"bootstrap_servers": kafka.bootstrap, "client_id": f"producer-{do}", "request_timeout_ms": timeout_ms}
    with Producer(settings) as producer, kafka.fault(do, "Produce", client="producer-*", **MORE.get(do, {})) as fault:
        producer.send(topic, b"one").result()
        fault.wait_struck()
        assert fault.seen == (1 if do in ("delay", "throttle") else 2)
    assert [record.value for record in kafka.records(topic)] == [b"one"]


@pytest.mark.parametrize("do", [*LOST, *MORE, "damage"])
def test_a_reader_lives_through_a_fault_and_reads_all(kafka: Kafka, do: str) -> None:
    topic = kafka.topic(records=[b"a", b"b"])
    settings = {"bootstrap_servers": kafka.bootstrap, "client_id": f"reader-{do}", "request_timeout_ms": 1_000}
    with kafka.fault(do, "Fetch", topic=topic, **MORE.get(do, {})) as fault, Consumer(settings) as consumer:
        partition = muster.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        while len(found) < 2:
            try:
                found += [record.value for batch in consumer.poll(1_000).values() for record in batch]
            except CorruptRecordError:  # as in Java's consumer: raised until the application seeks
                consumer.seek(partition, 0)
        assert found == [b"a", b"b"]
        assert fault.struck == 1


def test_a_large_fetch_is_damaged_too(kafka: Kafka) -> None:
    """The broker's answer names the range of the file that holds the records."""
    topic = kafka.topic(records=[b"x" * 300_000])
    with kafka.fault("damage", "Fetch", topic=topic), Consumer(bootstrap_servers=kafka.bootstrap) as consumer:
        partition = muster.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning()
        with pytest.raises(CorruptRecordError):
            consumer.poll(PATIENCE_MS)
        consumer.seek(partition, 0)
        assert [record.value for record in consumer.poll(PATIENCE_MS)[partition]] == [b"x" * 300_000]


def test_damage_does_not_strike_the_empty_answer_to_a_poll_at_the_end(kafka: Kafka) -> None:
    partition = muster.TopicPartition(kafka.topic(), 0)
    settings = {"bootstrap_servers": kafka.bootstrap, "fetch_max_wait_ms": 50}
    with kafka.fault("damage", "Fetch", topic=partition.topic) as fault, Consumer(settings) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        assert consumer.poll(300) == {}
        assert (fault.seen, fault.struck) == (0, 0)
        with Producer(bootstrap_servers=kafka.bootstrap) as producer:
            producer.send(partition.topic, b"x").result()
        with pytest.raises(CorruptRecordError):
            consumer.poll(10_000)
        assert (fault.seen, fault.struck) == (1, 1)


def test_damage_leaves_other_topics_in_the_same_answer_alone(kafka: Kafka) -> None:
    meant, other = (muster.TopicPartition(kafka.topic(records=[b"x"]), 0) for _ in range(2))
    settings = {"bootstrap_servers": kafka.bootstrap, "auto_offset_reset": "earliest"}
    with kafka.fault("damage", "Fetch", topic=meant.topic, times=None), Consumer(settings) as consumer:
        consumer.assign([other, meant])
        assert set(consumer.poll(10_000)) == {other}
        with pytest.raises(CorruptRecordError):
            consumer.poll(10_000)


def test_a_fault_of_one_topic_leaves_the_others_alone(kafka: Kafka) -> None:
    meant, other = kafka.topic(), kafka.topic()
    refused = kafka.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic=meant, times=None)
    with refused, Producer(bootstrap_servers=kafka.bootstrap) as producer:
        assert producer.send(other, b"x").result().offset == 0
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.send(meant, b"x").result()
    assert kafka.records(meant) == []


def test_a_held_request_is_handled_when_it_is_released(kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = Producer(bootstrap_servers=kafka.bootstrap, client_id=f"held-{topic}")
    with producer, kafka.hold("Produce", topic=topic) as fault:
        sent = producer.send(topic, b"x")
        kafka.until(lambda: fault.held == 1, "a held request")
        assert kafka.records(topic) == []
        assert fault.release() == 1
        assert sent.result().offset == 0
        with kafka.hold("Produce", topic=topic) as second:
            later = producer.send(topic, b"y")
            kafka.until(lambda: second.held == 1, "a held request")
        assert later.result().offset == 1  # removed with its block
        assert (second.seen, second.struck, second.held) == (1, 1, 0)
        assert kafka.requests("Produce", client=f"held-{topic}") == 2  # none was sent again after its timeout


def test_librdkafka_meets_them_too(kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "client.id": "rd", "enable.idempotence": True})
    with kafka.lose_answer("Produce", client="rd") as fault:
        producer.produce(topic, b"once")
        assert producer.flush(240) == 0
        assert fault.struck == 1
    assert [record.value for record in kafka.records(topic)] == [b"once"]
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": f"rd-{topic}", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer(settings)
    try:
        consumer.subscribe([topic])
        with kafka.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", group=f"rd-{topic}", times=2) as join:
            message = consumer.poll(240)
            assert message is not None
            assert message.value() == b"once"
            assert join.struck == 2
        kafka.until_assigned(f"rd-{topic}", members=1, topics=[topic])
    finally:
        consumer.close()
    kafka.until_empty(f"rd-{topic}")


def test_a_lost_commit_is_sent_again(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2, records=[b"a", b"b"])
    group = f"commits-{topic}"
    with kafka.lose_answer("OffsetCommit", group=group) as fault, member(kafka, topic, group, "m1") as handled:
        fault.wait_struck()
        kafka.until_lag_zero(group, topic)
        kafka.until_committed(group, topic, 2)
    muster.testing.assert_handled_once(handled, [b"a", b"b"])


def test_time_passes_at_once_for_those_that_are_silent(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    group = f"clock-{topic}"
    session: dict[str, Any] = {"session_timeout_ms": 300_000}
    with member(kafka, topic, group, "m1", **session), member(kafka, topic, group, "m2", **session):
        generation = kafka.until_assigned(group, members=2)["generation"]
        with kafka.assert_no_rebalance(group):
            kafka.clock.advance(200)  # enough time is left for their next heartbeats
            kafka.clock.advance(600, silent="nobody-*")
        kafka.clock.advance(400, silent="m1")
        view = kafka.until_assigned(group, members=2)
        kafka.until_stable(group, generation=generation + 1)
        story = kafka.story(group)
        assert "m1" in next(line for line in story.splitlines() if "was removed: no heartbeat" in line)
        assert "test: the clock is advanced by 600000 ms, nobody-* is silent (no member matches)\n" in story
        assert "test: the clock is advanced by 400000 ms, m1 is silent\n" in story
        assert view["generation"] >= generation


def test_members_are_expired_fenced_and_sent_back_to_join(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    name = f"groups-{topic}"
    group = kafka.group(name)
    with member(kafka, topic, name, "m1"), member(kafka, topic, name, "m2", group_instance_id="two"):
        generation = kafka.until_assigned(name, members=2)["generation"]
        group.rebalance()
        generation = kafka.until_stable(name, generation=generation + 1)["generation"]
        group.expire("m3")
        assert "expire m3 (no member matches)\n" in kafka.story()
        group.expire("m1")
        generation = kafka.until_stable(name, generation=generation + 1)["generation"]
        group.reload()
        assert kafka.until_stable(name)["generation"] >= generation
        before = {each["instance_id"]: each["member_id"] for each in group.now()["members"]}
        with pytest.raises(MusterError, match="no static member 'three'"):
            group.fence("three")
        kafka.until_assigned(name, members=2)
        assert before["two"]


def test_a_fenced_member_learns_of_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    name = f"fenced-{topic}"
    settings = {"bootstrap_servers": kafka.bootstrap, "group_id": name, "group_instance_id": "one"}
    with Consumer(settings, heartbeat_interval_ms=100) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(50)
        kafka.group(name).fence("one")

        def poll_on() -> None:
            while True:
                consumer.poll(50)

        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            poll_on()


def test_a_wait_that_fails_says_what_was_missing_and_what_happened(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    group = f"waits-{topic}"
    with member(kafka, topic, group, "m1"):
        kafka.until_assigned(group, members=1)
        with pytest.raises(WaitTimeoutError) as caught:
            kafka.until_assigned(group, members=2, timeout_s=0.3)
    text = str(caught.value)
    assert "1 member(s), not 2" in text
    assert f"m1 ({'m1'}-" in text
    assert f"{topic} [0, 1]" in text
    assert "rebalance done" in text
    assert "m1: JoinGroup" in text
    with pytest.raises(WaitTimeoutError, match=r"5 record\(s\) in .*: there are 0"):
        kafka.until_records(topic, 5, timeout_s=0.1)
    with pytest.raises(AssertionError, match="rebalanced"), kafka.assert_no_rebalance(group):
        pass  # it no longer has members


def test_connections_are_cut(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Producer(bootstrap_servers=kafka.bootstrap, client_id="to-be-cut") as producer:
        producer.send(topic, b"a").result()
        assert kafka.disconnect("to-be-cut") == 1
        assert producer.send(topic, b"b").result().offset == 1


def test_connections_are_refused_for_a_while(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Producer(bootstrap_servers=kafka.bootstrap, client_id="away") as producer:
        producer.send(topic, b"a").result()
        with kafka.refuse_connections("away"):
            sent = producer.send(topic, b"b")
            host, _, port = kafka.bootstrap.rpartition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), timeout=5)
            assert not sent.done()
        assert sent.result().offset == 1


def test_a_full_disk_refuses_records_until_there_is_room(kafka: Kafka) -> None:
    topic = kafka.topic()
    settings = {"bootstrap_servers": kafka.bootstrap, "delivery_timeout_ms": 700, "request_timeout_ms": 300}
    with Producer(settings, linger_ms=0) as producer:
        kafka.disk(full=True)
        try:
            with pytest.raises(KafkaError):
                producer.send(topic, b"a").result()
        finally:
            for _ in range(3):  # by now, what was sent last has been read and also finds no room
                kafka.requests("Produce")
            kafka.disk(full=False)
    kafka.produce(topic, [b"b"])
    assert [(record.offset, record.value) for record in kafka.records(topic)] == [(0, b"b")]


def test_records_go_and_topics_come_back(kafka: Kafka) -> None:
    topic = kafka.topic(records=[b"a", (b"key", b"b"), (b"key", None)])
    kafka.delete_records(topic, before=2)
    assert [(record.offset, record.key, record.value) for record in kafka.records(topic)] == [(2, b"key", None)]
    kafka.recreate(topic)
    assert kafka.records(topic) == []


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"do": "hang", "apis": ("Fetsh",)}, "Fetsh is not a request"),
        ({"do": "explode", "apis": ("Fetch",)}, "'explode' is not an effect"),
        ({"do": "hang", "apis": ("Fetch",), "topics": "a"}, "'topics' is not a field of a fault"),
    ],
)
def test_a_typing_error_is_an_error(kafka: Kafka, fault: dict[str, Any], error: str) -> None:
    when = {name: value for name, value in fault.items() if name not in ("do", "apis")}
    with pytest.raises(MusterError, match=error):
        kafka.fault(fault["do"], *fault["apis"], **when)
    assert kafka.requests(api="Fetsh") == 0


@pytest.mark.parametrize(
    ("do", "error"),
    [
        (lambda kafka: kafka.until(lambda: True, "it", "1"), "timeout_s='1': it must be a number of seconds"),
        (lambda kafka: kafka.until_empty("billing", timeout_s="1"), "timeout_s='1': it must be a number of seconds"),
        (lambda kafka: kafka.clock.advance("1"), "seconds='1': it must be a number of seconds"),
        (lambda kafka: kafka.clock.advance(1, silent=5), "silent=5: it must be a pattern, as text"),
        (lambda kafka: kafka.topic("not-made", records=["text"]), r"records has \(None, 'text'\): .* encode text"),
        (
            lambda kafka: kafka.produce("not-made", [(b"key",)]),
            r"records has \(b'key',\): keys and values must be bytes",
        ),
        (lambda kafka: kafka.topic("not-made", records=b"text"), "records=b'text': it must be a list"),
        (lambda kafka: kafka.group("billing").fence(5), "instance=5: it must be a group.instance.id, as text"),
        (lambda kafka: kafka.replay("none", pace="1").__enter__(), "pace='1': it must be a factor for recorded times"),
        (lambda kafka: kafka.replay("none", patience_s="1").__enter__(), "patience_s='1': it must be a number"),
        (lambda kafka: kafka.disconnect(5), "client=5: it must be a pattern, as text"),
        (lambda kafka: kafka.refuse_connections(5).__enter__(), "client=5: it must be a pattern, as text"),
        (lambda kafka: kafka.hold("Fetch", topic=b"x"), "b'x'.* text"),
        (lambda kafka: kafka.recreate("not-made"), "UNKNOWN_TOPIC_OR_PARTITION: topic not-made"),
    ],
)
def test_a_wrong_argument_is_an_error_and_nothing_else(kafka: Kafka, do: Callable[[Kafka], object], error: str) -> None:
    with pytest.raises(MusterError, match=error):
        do(kafka)
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:  # a new connection is accepted
        assert "not-made" not in {topic.name for topic in admin.list_topics()}


@pytest.mark.parametrize("name", ["orders/eu", "two words", "50%2F?a=b#c", "grün"])
def test_groups_and_faults_may_have_any_name(kafka: Kafka, name: str) -> None:
    topic = kafka.topic(records=[b"a"])
    with member(kafka, topic, name, "m1") as handled, kafka.delay("Heartbeat", 1, name=name) as fault:
        kafka.until_lag_zero(name, topic)
        assert handled == [b"a"]
        assert [each["client_id"] for each in kafka.group(name).now()["members"]] == ["m1"]
        generation = kafka.until_stable(name)["generation"]
        kafka.group(name).rebalance()
        kafka.until_stable(name, generation=generation + 1)
        assert fault.held == 0
        assert f"Group {name}: " in kafka.account()


def test_a_strict_kit_wants_each_fault_to_strike() -> None:
    strict = muster.testing.kafka(in_process=True, strict=True)
    with pytest.raises(AssertionError, match="never struck: idle"), strict as kafka:
        kafka.fail("Heartbeat", "NOT_COORDINATOR", name="idle")
    with pytest.raises(AssertionError, match="never struck: too-late"), strict as kafka:
        _ = kafka.fail("CreateTopics", "NOT_CONTROLLER", nth=2, name="too-late"), kafka.topic()
    with muster.testing.kafka(in_process=True, strict=True) as kafka, kafka.delay("CreateTopics", 1):
        kafka.topic()


def test_a_killed_broker_comes_back_with_its_data_and_its_faults() -> None:
    with muster.testing.kafka() as kafka:
        topic = kafka.topic(records=[b"a"])
        with kafka.delay("Produce", 5) as fault, kafka.fail("Heartbeat", "NOT_COORDINATOR") as idle:
            kafka.kill()
            kafka.start()
            kafka.produce(topic, [b"b"])
            struck = fault.struck
            assert struck >= 1
            kafka.kill()
            assert (fault.struck, idle.struck) == (struck, 0)
            kafka.start()
        assert (fault.struck, fault.seen, fault.held, fault.release()) == (struck, struck, 0, 0)
        with pytest.raises(MusterError, match="broker=1: brokers are numbered from 0 to 0"):
            kafka.kill(1)
        kafka.freeze()
        thawed = threading.Timer(0.2, kafka.thaw)
        thawed.start()
        assert [record.value for record in kafka.records(topic)] == [b"a", b"b"]
        thawed.join()
    with muster.testing.kafka(in_process=True) as kafka, pytest.raises(MusterError, match="in_process"):
        kafka.kill()


def test_a_wait_outlasts_a_restart_in_another_thread() -> None:
    with muster.testing.kafka() as kafka:
        topic = kafka.topic(records=[b"a"])
        with member(kafka, topic, "patient", "m1") as handled:
            for wait in (
                lambda: kafka.until_lag_zero("patient", topic),
                lambda: kafka.until(lambda: kafka.group("patient").now()["members"], "a member"),
            ):
                kafka.until_lag_zero("patient", topic)
                kafka.kill()
                starting = threading.Thread(target=kafka.start)
                starting.start()
                wait()
                starting.join()
        assert handled == [b"a"]
        kafka.kill()
        with pytest.raises(MusterError, match="does not answer on its control port"):
            kafka.until_empty("patient", timeout_s=0.1)


def test_a_control_port_that_ends_in_the_middle_of_an_answer_is_a_broker_that_is_away(tmp_path: Path) -> None:
    broker = TestBroker(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as port:
        broker.log_file.write_text(f"control on 127.0.0.1:{port.getsockname()[1]}, token abc\n")

        def answer() -> None:
            connection, _ = port.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        with ThreadPoolExecutor(1) as beside:
            beside.submit(answer)
            with pytest.raises(BrokerAwayError, match="does not answer on its control port"):
                broker.ask("GET", "groups", None)


def test_several_brokers_share_groups_and_faults(tmp_path: Any) -> None:
    require("Java 17 or newer", find_java(), "ZooKeeper runs on it")
    with muster.testing.kafka(folder=tmp_path, brokers=2) as kafka:
        topic = kafka.topic(partitions=4, records=[(b"%d" % number,) * 2 for number in range(40)])
        places = [TopicPartition(topic, index) for index in range(4)]
        with Consumer(bootstrap_servers=kafka.bootstrap, group_id="by hand") as consumer:
            consumer.commit(dict.fromkeys(places, 0))
            for place, end in consumer.end_offsets(places).items():  # led by either broker
                with pytest.raises(WaitTimeoutError, match=rf"{topic} {place.partition}: 0 of {end}"):
                    kafka.until_lag_zero("by hand", topic, timeout_s=0.1)
                consumer.commit({place: end})
            kafka.until_lag_zero("by hand", topic)
        fault = kafka.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=1)
        with member(kafka, topic, "both", "m1") as first, member(kafka, topic, "both", "m2") as second:
            kafka.until_assigned("both", members=2)
            kafka.until_lag_zero("both", topic)
            assert 1 <= fault.struck <= 2  # once at each broker
            kafka.kill(1)
            kafka.start(1)
            kafka.produce(topic, [b"last"])
            kafka.until(lambda: b"last" in first + second, "the last record")
        assert {*first, *second} == {b"%d" % number for number in range(40)} | {b"last"}
    assert not processes_of(tmp_path)


async def test_a_client_of_the_control_port_that_goes_away_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Like Go's http client on a connection that it has kept open."""

    async def ask(method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        return 200, {}

    port = ControlPort(ask)
    port.start()
    with socket.create_connection(("127.0.0.1", port.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed with a reset
        client.sendall(b"GET /groups HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 401")
    await asyncio.to_thread(port.stop)
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while any("process_request" in each.name for each in threading.enumerate()):
            await asyncio.sleep(0.005)
    assert capsys.readouterr().err == ""


def test_the_control_port_serves_other_languages() -> None:
    """As shown in docs/reference/test-broker.md with curl: the line that names the port, and a fault."""
    with muster.testing.kafka() as kafka:
        address, token = kafka.brokers[0].control()  # type: ignore[attr-defined]
        url = f"http://{address}/faults"
        body = json.dumps({"do": "error", "apis": ["CreateTopics"], "error": "NOT_CONTROLLER"})
        curl = ["curl", "-s", "-w", " %{http_code}"]
        refused = subprocess.run([*curl, url], capture_output=True, text=True, check=True)
        assert refused.stdout.endswith(" 401")
        curl += ["-H", f"Authorization: Bearer {token}"]
        added = subprocess.run([*curl, "-d", body, url], capture_output=True, text=True, check=True)
        assert json.loads(added.stdout.removesuffix(" 200"))["name"] == "fault-1"
        wrong = subprocess.run([*curl, "-d", "{", url], capture_output=True, text=True, check=True)
        assert wrong.stdout.endswith(" 400")
        unknown = subprocess.run([*curl, f"{url}/nothing"], capture_output=True, text=True, check=True)
        assert unknown.stdout.endswith(" 404")
        began = time.monotonic()
        wait = json.dumps({"until": "empty", "group": "none", "timeout_ms": 120_000})
        held = subprocess.run([*curl, "-d", wait, f"http://{address}/wait"], capture_output=True, text=True, check=True)
        assert held.stdout.endswith(" 200")
        assert time.monotonic() - began < 120


def test_librdkafka_waits_as_long_as_a_throttled_answer_says(kafka: Kafka) -> None:
    topic = kafka.topic()
    reported: list[float] = []
    settings = {"bootstrap.servers": kafka.bootstrap, "client.id": "slowed", "throttle_cb": reported.append}
    producer = ConfluentProducer(settings)
    with kafka.fault("throttle", "Produce", client="slowed", throttle_ms=300):
        producer.produce(topic, b"x")
        assert producer.flush(240) == 0
        kafka.until(lambda: [producer.poll(0.05), reported][1], "the client to hear that it is throttled")
    assert [event.throttle_time for event in reported] == [0.3]  # type: ignore[attr-defined]
