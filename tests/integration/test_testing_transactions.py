"""The testing kit's faults on requests of transactions, with librdkafka's producer and muster's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import muster
import muster.testing
from muster import KafkaError
from muster.testing import Kafka
from muster.testing.kit import When

pytestmark = pytest.mark.slow

PATIENCE_S = 240.0
"""Only in case of a hang."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with muster.testing.kafka(strict=True) as kafka:
        yield kafka


def started(kafka: Kafka, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    return producer


def names(kafka: Kafka) -> tuple[str, str]:
    """A topic, and a transactional id."""
    return kafka.topic(), f"billing-{uuid.uuid4().hex[:6]}"


def committed(kafka: Kafka, topic: str) -> list[bytes]:
    """What readers of committed records see, once all markers are written: the end of a transaction is answered before
    that."""
    place = muster.TopicPartition(topic, 0)

    def ends() -> list[object]:
        return [kafka.admin.list_offsets({place: -1}, isolation_level=f"read_{of}committed") for of in ("", "un")]

    kafka.until(lambda: ends()[0] == ends()[1], "all markers to be written", PATIENCE_S)
    reader = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while (message := reader.poll(PATIENCE_S)) is not None and message.error() is None:
        found.append(message.value() or b"")
    reader.close()
    return found


@pytest.mark.parametrize(
    "api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
def test_a_coordinator_that_moves_is_looked_up_again(kafka: Kafka, api: str) -> None:
    topic, name = names(kafka)
    group = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
    with kafka.fail(api, "NOT_COORDINATOR", times=2, transactional_id=name) as fault:
        producer = started(kafka, name)
        producer.begin_transaction()
        producer.produce(topic, b"bill")
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group.consumer_group_metadata(), PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)
        assert fault.struck == 2
    assert committed(kafka, topic) == [b"bill"]
    group.close()


def test_the_answer_to_the_end_of_a_transaction_is_lost(kafka: Kafka) -> None:
    topic, name = names(kafka)
    producer = started(kafka, name)
    producer.begin_transaction()
    producer.produce(topic, b"bill")
    with kafka.lose_answer("EndTxn", transactional_id=name):
        producer.commit_transaction(PATIENCE_S)
    assert committed(kafka, topic) == [b"bill"]


def test_a_producer_is_fenced(kafka: Kafka) -> None:
    topic, name = names(kafka)
    producer = started(kafka, name)
    producer.begin_transaction()
    producer.produce(topic, b"of a zombie")
    producer.flush(PATIENCE_S)
    kafka.fence_producer(name)
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    successor = started(kafka, name)
    successor.begin_transaction()
    successor.produce(topic, b"of its successor")
    successor.commit_transaction(PATIENCE_S)
    assert committed(kafka, topic) == [b"of its successor"]


@pytest.fixture
def own(kafka: Kafka) -> Iterator[tuple[muster.Producer, str, str]]:
    """muster's producer, with a topic and its transactional id."""
    topic, name = names(kafka)
    with muster.Producer(bootstrap_servers=kafka.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        yield producer, topic, name


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
@pytest.mark.parametrize("effect", ["lose_request", "lose_answer", "error"])
def test_a_transaction_of_muster_s_own_is_committed_once(
    kafka: Kafka, own: tuple[muster.Producer, str, str], api: str, effect: str
) -> None:
    producer, topic, name = own
    when: When = {"transactional_id": name}
    error = "NOT_COORDINATOR" if api == "EndTxn" else "NOT_LEADER_OR_FOLLOWER"
    fault = kafka.fail(api, error, **when) if effect == "error" else kafka.fault(effect, api, **when)
    with fault:
        with producer.transaction():
            producer.send(topic, b"bill")
        assert fault.struck == 1
    assert committed(kafka, topic) == [b"bill"]


def test_muster_s_own_producer_is_fenced(kafka: Kafka, own: tuple[muster.Producer, str, str]) -> None:
    producer, topic, name = own
    producer.begin_transaction()
    producer.send(topic, b"of a zombie").result()
    kafka.fence_producer(name)
    with pytest.raises(KafkaError) as raised:
        producer.commit_transaction()
    assert raised.value.fatal
    assert committed(kafka, topic) == []
