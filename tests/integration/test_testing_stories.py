"""What a broker must do under a test's control: the stories of kfake's control functions (franz-go), with muster's
faults.

The cases about the wire use bare connections, which show what answers which request: a
heartbeat of a group that does not exist is answered with UNKNOWN_MEMBER_ID by the broker itself.

| story | test |
|---|---|
| a controlled request is one request: the next is the broker's own | `test_it_strikes_as_often_as_it_says[1]` |
| kept for n requests | `test_it_strikes_as_often_as_it_says[3]` |
| kept until it is dropped | `test_it_strikes_as_often_as_it_says[None]` |
| dropped before it did anything | `test_one_that_is_removed_before_a_request_has_done_nothing` |
| observed, not intercepted | `test_requests_are_observed_without_being_touched` |
| several for one key act one after another | `test_several_strike_in_the_order_of_their_adding` |
| one that does not handle a request passes it on | `test_one_that_is_about_another_group_passes_a_request_on` |
| one key is intercepted, the others are answered | `test_other_requests_on_the_same_connection_are_answered` |
| one sleeps, other connections proceed | `test_others_proceed_while_one_is_held` |
| requests on one connection are answered in order | `test_a_held_request_holds_those_after_it_on_its_connection` |
| two of one key sleep at the same time | `test_two_are_held_and_released_together` |
| one sleeps until another request is there | `test_a_fetch_sleeps_until_records_are_written` |
| a control is added while another one acts | `test_a_fault_is_added_while_another_holds_a_request` |
| the broker ends while one sleeps | `test_a_broker_stops_with_a_request_held` |
| neither an answer nor an error: the client's timeout | `test_a_request_without_an_answer_keeps_its_connection` |
| an error: the connection is closed, nothing was done | `test_what_was_done_when_a_connection_closes[lose_request]` |
| handled, then the connection is closed | `test_what_was_done_when_a_connection_closes[lose_answer]` |
| coordinators move: clients look them up again | `test_a_coordinator_that_has_moved_is_looked_up` |
| the first Metadata has errors in its partitions | `test_a_topic_without_leaders_at_first_is_written_to` |
| offsets are not stable at first | `test_offsets_that_are_unstable_are_asked_for_again` |
| a commit says that the membership is over: the member rejoins | `test_a_member_whose_commit_is_refused_rejoins` |
| the same, where it is over | `test_a_member_that_was_removed_learns_it_when_it_commits` |
| an idempotent producer is fenced | `test_a_fenced_producer_writes_on`, `test_librdkafka_is_fenced` |
| leaders move, in a cluster | `test_leaders_move_in_a_cluster` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

import muster.testing
from muster import CommitFailedError, Consumer, KafkaError, MusterError, Producer, TopicPartition
from muster.errors import ErrorCode
from muster.protocol.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
)
from muster.testing import Kafka
from muster.testing.kit import STORY_LINES
from tests.support.brokers import RawClient
from tests.support.peers import find_java, require

OWN = ErrorCode.UNKNOWN_MEMBER_ID
"""The broker's own answer to `heartbeat`."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Kafka]:
    with muster.testing.kafka(in_process=True) as kafka:
        yield kafka


@pytest.fixture
def kafka(shared: Kafka) -> Iterator[Kafka]:
    shared.begin()
    yield shared
    shared.reset()


@pytest.fixture
def raw(kafka: Kafka) -> Iterator[RawClient]:
    client = RawClient(kafka.bootstrap)
    with closing(client.socket):
        yield client


def heartbeat(group: str = "g") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id="m")


def beat(client: RawClient, group: str = "g") -> ErrorCode:
    return ErrorCode(client.ask(heartbeat(group), 3).error_code)


def beats(client: RawClient, count: int) -> list[ErrorCode]:
    return [beat(client) for _ in range(count)]


# ------------------------------------------------------------------------------------------------------ on the wire


@pytest.mark.parametrize("times", [1, 3, None])
def test_it_strikes_as_often_as_it_says(kafka: Kafka, raw: RawClient, times: int | None) -> None:
    fault = kafka.fail("Heartbeat", "COORDINATOR_LOAD_IN_PROGRESS", times=times)
    struck = 5 if times is None else times
    expected = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * struck + [OWN] * (5 - struck)
    assert beats(raw, 5) == expected
    assert (fault.seen, fault.struck) == (5, struck)
    fault.remove()
    assert beat(raw) is OWN


def test_one_that_is_removed_before_a_request_has_done_nothing(kafka: Kafka, raw: RawClient) -> None:
    fault = kafka.fail("Heartbeat", "NOT_COORDINATOR", nth=2)
    assert beat(raw) is OWN
    assert (fault.seen, fault.struck) == (1, 0)
    fault.remove()
    assert beats(raw, 2) == [OWN, OWN]
    assert "fault-" not in kafka.story()


def test_requests_are_observed_without_being_touched(kafka: Kafka, raw: RawClient) -> None:
    assert beats(raw, 3) == [OWN] * 3
    raw.send(heartbeat(), 3, "")
    raw.receive(HeartbeatRequest, 3)
    assert kafka.requests("Heartbeat", client="raw") == 3
    assert kafka.requests("Heartbeat", client="another") == 0
    assert kafka.story().endswith("Requests: (no client id): Heartbeat 1, raw: Heartbeat 3")


def test_a_long_story_has_its_last_lines(kafka: Kafka) -> None:
    for number in range(STORY_LINES + 5):
        kafka.disconnect(f"nobody-{number}")
    first, *lines, requests = kafka.story().splitlines()
    assert (first, lines[0], requests) == ("What happened:", "  … 5 earlier lines", "Requests: none")
    assert [int(re.findall(r"nobody-(\d+)", line)[0]) for line in lines[1:]] == list(range(5, STORY_LINES + 5))


def test_several_strike_in_the_order_of_their_adding(kafka: Kafka, raw: RawClient) -> None:
    kafka.fail("Heartbeat", "NOT_COORDINATOR", times=2)
    kafka.fail("Heartbeat", "REBALANCE_IN_PROGRESS")
    later = [ErrorCode.REBALANCE_IN_PROGRESS, OWN]
    assert beats(raw, 4) == [ErrorCode.NOT_COORDINATOR] * 2 + later


def test_one_that_is_about_another_group_passes_a_request_on(kafka: Kafka, raw: RawClient) -> None:
    kafka.fail("Heartbeat", "NOT_COORDINATOR", group="another-*", times=None)
    kafka.fail("Heartbeat", "ILLEGAL_GENERATION", group="g", times=None)
    assert beat(raw, "another-1") is ErrorCode.NOT_COORDINATOR
    assert beat(raw, "g") is ErrorCode.ILLEGAL_GENERATION
    assert beat(raw, "third") is OWN


def test_other_requests_on_the_same_connection_are_answered(kafka: Kafka, raw: RawClient) -> None:
    kafka.fail("Heartbeat", "NOT_COORDINATOR", times=None)
    found = raw.ask(FindCoordinatorRequest(key="g", key_type=0), 2)
    assert (found.error_code, found.port) == (ErrorCode.NONE, int(kafka.bootstrap.rpartition(":")[2]))
    assert beat(raw) is ErrorCode.NOT_COORDINATOR


def test_others_proceed_while_one_is_held(kafka: Kafka, raw: RawClient) -> None:
    second = RawClient(kafka.bootstrap)
    with closing(second.socket), kafka.hold("Heartbeat", client="held") as fault:
        raw.send(heartbeat(), 3, "held")
        fault.wait_struck()
        assert beats(second, 2) == [OWN, OWN]
        assert fault.held == 1
        fault.release()
        assert raw.receive(HeartbeatRequest, 3).error_code == OWN


def test_a_held_request_holds_those_after_it_on_its_connection(kafka: Kafka, raw: RawClient) -> None:
    with kafka.hold("Heartbeat") as fault:
        first = raw.send(heartbeat(), 3)
        second = raw.send(FindCoordinatorRequest(key="g", key_type=0), 2)
        fault.wait_struck()
        raw.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            raw.receive_frame()
        raw.socket.settimeout(240)
        assert kafka.requests("FindCoordinator", client="raw") == 0  # nor is it handled before that
        fault.release()
        frames = [raw.receive_frame(), raw.receive_frame()]
    assert [int.from_bytes(frame[:4], "big") for frame in frames] == [first, second]


def test_two_are_held_and_released_together(kafka: Kafka, raw: RawClient) -> None:
    second = RawClient(kafka.bootstrap)
    with closing(second.socket), kafka.hold("Heartbeat", times=2) as fault:
        for client in (raw, second):
            client.send(heartbeat(), 3)
        fault.wait_struck(2)
        assert fault.release() == 2
        assert {client.receive(HeartbeatRequest, 3).error_code for client in (raw, second)} == {OWN}


def test_a_fault_is_added_while_another_holds_a_request(kafka: Kafka, raw: RawClient) -> None:
    second = RawClient(kafka.bootstrap)
    with closing(second.socket), kafka.hold("Heartbeat") as fault:
        raw.send(heartbeat(), 3)
        fault.wait_struck()
        kafka.fail("Heartbeat", "NOT_COORDINATOR")
        assert beats(second, 2) == [ErrorCode.NOT_COORDINATOR, OWN]
    assert raw.receive(HeartbeatRequest, 3).error_code == OWN  # this was the first fault's, which is removed


def test_a_broker_stops_with_a_request_held() -> None:
    with muster.testing.kafka(in_process=True) as kafka:
        client = RawClient(kafka.bootstrap)
        fault = kafka.hold("Heartbeat")
        client.send(heartbeat(), 3)
        fault.wait_struck()
    with closing(client.socket):  # the fault was removed at the end, so the request was handled
        assert client.receive(HeartbeatRequest, 3).error_code == OWN


def test_a_request_without_an_answer_keeps_its_connection(kafka: Kafka, raw: RawClient) -> None:
    with kafka.fault("hang", "Heartbeat") as fault:
        raw.send(heartbeat(), 3)
        fault.wait_struck()
        raw.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            raw.receive_frame()
        raw.socket.settimeout(240)
    with pytest.raises((EOFError, ConnectionResetError)):  # its time is over when the fault's is
        raw.receive_frame()


@pytest.mark.parametrize("do", ["lose_request", "lose_answer"])
def test_what_was_done_when_a_connection_closes(kafka: Kafka, raw: RawClient, do: str) -> None:
    topic = CreatableTopic(name=f"made-by-{do}", num_partitions=1, replication_factor=1)
    with kafka.fault(do, "CreateTopics"), pytest.raises((EOFError, ConnectionResetError)):
        raw.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
    assert (topic.name in {each.name for each in kafka.admin.list_topics()}) is (do == "lose_answer")


# --------------------------------------------------------------------------------------------------------- clients


def consumer_of(kafka: Kafka, topic: str, **more: Any) -> Consumer:
    settings = {"group_id": f"of-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False, **more}
    consumer = Consumer({"bootstrap_servers": kafka.bootstrap, "client_id": "reader", **settings})
    consumer.subscribe([topic])
    return consumer


def test_a_fetch_sleeps_until_records_are_written(kafka: Kafka) -> None:
    topic = kafka.topic()
    with consumer_of(kafka, topic) as consumer, kafka.hold("Fetch", topic=topic) as fault:
        while not fault.held:
            consumer.poll(20)
        kafka.produce(topic, [b"late"])
        assert not consumer.poll(0)
        fault.release()
        assert next(consumer).value == b"late"


def test_a_coordinator_that_has_moved_is_looked_up(kafka: Kafka) -> None:
    topic = kafka.topic(records=[b"a"])
    with consumer_of(kafka, topic) as consumer:
        next(consumer)
        before = kafka.requests("FindCoordinator", "reader")
        with kafka.fail("OffsetCommit", "NOT_COORDINATOR", group=f"of-{topic}", times=2):
            consumer.commit()
        assert kafka.requests("FindCoordinator", "reader") == before + 2
        kafka.until_lag_zero(f"of-{topic}", topic)
        assert kafka.requests("JoinGroup", "reader") == 2  # its membership has survived it


def test_a_topic_without_leaders_at_first_is_written_to(kafka: Kafka) -> None:
    topic = kafka.topic()
    with kafka.fail("Metadata", "LEADER_NOT_AVAILABLE", topic=topic, client="writer", times=2) as fault:
        with Producer(bootstrap_servers=kafka.bootstrap, client_id="writer") as producer:
            assert producer.send(topic, b"a").result().offset == 0
        assert fault.struck == 2


def test_offsets_that_are_unstable_are_asked_for_again(kafka: Kafka) -> None:
    topic = kafka.topic(records=[b"a", b"b"])
    with consumer_of(kafka, topic) as consumer:
        next(consumer)
        consumer.commit()
    with kafka.fail("OffsetFetch", "UNSTABLE_OFFSET_COMMIT", times=3) as fault, consumer_of(kafka, topic) as consumer:
        assert next(consumer).value == b"b"
        assert fault.struck == 3


@pytest.mark.parametrize("error", ["ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"])
def test_a_member_whose_commit_is_refused_rejoins(kafka: Kafka, error: str) -> None:
    topic = kafka.topic(records=[b"a"])
    with consumer_of(kafka, topic) as consumer:
        next(consumer)
        joins = kafka.requests("JoinGroup", "reader")
        with kafka.fail("OffsetCommit", error), pytest.raises(CommitFailedError):
            consumer.commit()
        assert next(consumer).value == b"a"  # nothing was committed: it reads it again
        assert kafka.requests("JoinGroup", "reader") > joins
        consumer.commit()
        kafka.until_lag_zero(f"of-{topic}", topic)


def test_a_member_that_was_removed_learns_it_when_it_commits(kafka: Kafka) -> None:
    topic = kafka.topic(records=[b"a"])
    with consumer_of(kafka, topic) as consumer:
        next(consumer)
        kafka.group(f"of-{topic}").expire("reader")
        with pytest.raises(CommitFailedError):
            consumer.commit()
        assert next(consumer).value == b"a"


def test_a_fenced_producer_writes_on(kafka: Kafka) -> None:
    """Like Java's: it moves to the next epoch on its own (KIP-360)."""
    topic = kafka.topic()
    with Producer(bootstrap_servers=kafka.bootstrap, client_id="fenced") as producer:
        producer.send(topic, b"a").result()
        with kafka.fail("Produce", "INVALID_PRODUCER_EPOCH"), pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
            producer.send(topic, b"b").result()
        producer.send(topic, b"c").result()
    assert [record.value for record in kafka.records(topic)] == [b"a", b"c"]
    assert kafka.requests("InitProducerId", "fenced") == 1
    place = TopicPartition(topic, 0)
    assert [each.producer_epoch for each in kafka.admin.describe_producers([place])[place]] == [1]


def test_librdkafka_is_fenced(kafka: Kafka) -> None:
    topic = kafka.topic()
    outcomes: list[object] = []
    producer = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "client.id": "rd", "enable.idempotence": True})
    with kafka.fail("Produce", "INVALID_PRODUCER_EPOCH", client="rd"):
        for value in (b"a", b"b"):
            producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error and error.name()))
            assert producer.flush(240) == 0
    assert outcomes == ["INVALID_PRODUCER_EPOCH", None]
    assert [record.value for record in kafka.records(topic)] == [b"b"]


def test_leaders_move_in_a_cluster() -> None:
    """A broker that says that it no longer leads a partition is asked again after a metadata request."""
    require("Java 17 or newer", find_java(), "ZooKeeper runs on it")
    with muster.testing.kafka(brokers=2) as kafka:
        topic = kafka.topic(partitions=2)
        writes = kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2)
        reads = kafka.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2)
        confluent = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "client.id": "rd-writer"})
        with Producer(bootstrap_servers=kafka.bootstrap, client_id="writer") as producer:
            for partition in (0, 1):
                producer.send(topic, b"muster", partition=partition).result()
                confluent.produce(topic, b"librdkafka", partition=partition)
        assert confluent.flush(240) == 0
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "rd", "auto.offset.reset": "earliest"}
        consumer = ConfluentConsumer(settings)
        consumer.subscribe([topic])
        with closing(consumer), consumer_of(kafka, topic) as own:
            assert sorted(next(own).value or b"" for _ in range(4)) == [b"librdkafka"] * 2 + [b"muster"] * 2
            assert len(consumer.consume(4, 240)) == 4
        assert 2 <= writes.struck <= 4
        assert 2 <= reads.struck <= 4
        assert f"Produce of writer about {topic}" in kafka.story()
        assert f"Fetch of reader about {topic}" in kafka.story() or f"Fetch of rdkafka about {topic}" in kafka.story()


def test_what_a_user_gets_wrong_is_said_in_a_sentence() -> None:
    with muster.testing.kafka(in_process=True) as kafka:
        wrong: list[tuple[Callable[[], object], str]] = [
            (lambda: kafka.__enter__(), "these brokers are running already: create another Kafka"),
            (lambda: kafka.topic(records=b"abc"), "records=b'abc': it must be a list"),  # type: ignore[arg-type]
            (lambda: kafka.record("r", topics="orders").__enter__(), "topics='orders': it must be a list"),
            (lambda: kafka.clock.advance("1"), "seconds='1': it must be a number"),  # type: ignore[arg-type]
            (lambda: kafka.until_committed("g", "t", "3"), "offsets='3': it must be"),  # type: ignore[arg-type]
            (lambda: kafka.disk(ful=True), "ful is not a disk failure: choose from full, sync"),  # type: ignore[call-arg]
            (lambda: kafka.fault("hold"), "a fault needs a request: choose from Produce"),
            (
                lambda: muster.testing.kafka().topic(),
                "these brokers are not running: use them in a `with` block",
            ),
            (
                lambda: kafka.fail("OffsetComit", "NOT_COORDINATOR"),
                "OffsetComit is not a request that a fault can match: choose from",
            ),
        ]
        for act, says in wrong:
            with pytest.raises(MusterError, match=re.escape(says)):
                act()
        assert kafka.records(kafka.topic(records=[b"x"]))[0].value == b"x"  # it runs as before
