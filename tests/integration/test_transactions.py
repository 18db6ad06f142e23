"""Transactions as others' producers use them, and what is left of them after a crash of the broker."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

from muster.protocol import messages as m
from muster.protocol import transaction_messages as t
from muster.protocol.api import READ_COMMITTED
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.peers import PEERS, KafkaBroker, java_command, kafka_classpath, run_kafka_class
from tests.support.same_answers import ready_group
from tests.support.transaction_sides import TransactionSide

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[1] / "oracle" / "java" / "TransactionStory.java"
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
LATEST_S = 240.0
"""Only in case of a hang."""


def reported_by_kafka(bootstrap: str, java: str) -> list[str]:
    """See `told_by_java`. On a busy machine Kafka 4.2 once refused a transaction of this story with INVALID_TXN_STATE,
    which ends the producer: then there is nothing to compare with, and the story is run again."""
    for _ in range(2):
        try:
            return reported_by_java(bootstrap, java)
        except AssertionError as error:
            if "InvalidTxnStateException" not in str(error):
                raise
    return reported_by_java(bootstrap, java)


def reported_by_java(bootstrap: str, java: str) -> list[str]:
    options = [f"-Dlog4j2.configurationFile={PEERS / 'kafka' / 'log4j2.xml'}", "-cp", kafka_classpath()]
    command = [*java_command(options), str(STORY), bootstrap, f"story-{os.getpid()}-{uuid.uuid4().hex[:6]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", [2, 0])
def test_javas_producer_sees_what_it_sees_with_kafka(
    tmp_path: Path, transactional_kafka: KafkaBroker, java: str, version: int
) -> None:
    """With `transaction.version` 0 Java's producer uses the older protocol."""
    with BrokerProcess(tmp_path / "data", {**QUICK, "transaction.version": version}) as broker:
        ours = reported_by_java(broker.bootstrap, java)
        listed = run_kafka_class(
            "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, "list"
        )
        hanging = run_kafka_class(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", broker.bootstrap, "find-hanging", "--broker-id", "1"),
        )
    # A client of version 2 mistakes the abort for that of its own transaction: its epoch is the previous one.
    refusal = "InvalidTxnStateException" if version == 2 else "ProducerFencedException"
    assert ours == [*EXPECTED, f"the slow one commits: {refusal}"]
    assert listed.stdout.count("Complete") == 2, listed.stdout
    assert len(hanging.stdout.strip().splitlines()) == 1, hanging.stdout
    if version == 2:
        theirs = reported_by_kafka(transactional_kafka.bootstrap, java)
        assert ours == theirs


EXPECTED = [
    "read: " + str(sorted(f"committed {i}{j}" for i in (0, 2, 4) for j in range(4))).replace("'", ""),
    "committed offsets: [0: 18, 1: 18]",
    "committed offsets: [0: 18, 1: 18]",
    "committed offsets: [0: 17, 1: 17]",
    "a zombie sends: InvalidProducerEpochException",
    "a zombie commits: InvalidProducerEpochException",
    "read: [of its successor]",
    "read: 50",
    "read after the timeout: [behind it]",
]


def test_librdkafka_reads_processes_and_writes(shared_muster: BrokerProcess) -> None:
    name = f"ck-{uuid.uuid4().hex[:8]}"
    producer = ConfluentProducer({"bootstrap.servers": shared_muster.bootstrap, "transactional.id": name})
    producer.init_transactions(LATEST_S)
    for number in range(4):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(name, value=f"{number}-{each}")
        producer.flush(LATEST_S)
        (producer.commit_transaction if number % 2 == 0 else producer.abort_transaction)(LATEST_S)
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": shared_muster.bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    read: list[str] = []
    until = time.monotonic() + LATEST_S
    while len(read) < 6 and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.append(message.value().decode())
    assert read == [f"{number}-{each}" for number in (0, 2) for each in range(3)]
    for commit, offset in ((True, 7), (False, 3)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [TopicPartition(name, 0, offset)], consumer.consumer_group_metadata(), LATEST_S
        )
        (producer.commit_transaction if commit else producer.abort_transaction)(LATEST_S)
        assert [each.offset for each in consumer.committed([TopicPartition(name, 0)], LATEST_S)] == [7]
    zombie = producer
    successor = ConfluentProducer({"bootstrap.servers": shared_muster.bootstrap, "transactional.id": name})
    zombie.begin_transaction()
    successor.init_transactions(LATEST_S)
    zombie.produce(name, value="of a zombie")
    with pytest.raises(KafkaException):
        zombie.commit_transaction(LATEST_S)
    consumer.close()


# ---------------------------------------------------------------------------------------------------- after a kill -9


class Killed:
    """A broker that is killed, with one transactional id and a topic."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.client = RawClient(broker.bootstrap)
        self.client.ask(m.CreateTopicsRequest([m.CreatableTopic("t", 2, 1)], 20_000), 7)
        ready_group(self.client.ask, "g", "t")
        self.side = TransactionSide(self.client, "t", "x", "g").begin()

    def kill(self) -> None:
        self.client.close()
        self.broker.kill()

    def start(self) -> None:
        self.broker.start()
        self.side.client = self.client = RawClient(self.broker.bootstrap)
        ready_group(self.client.ask, "g", "t")

    def end_of(self, isolation_level: int, partition: int = 0) -> int:
        asked = [m.ListOffsetsTopic("t", [m.ListOffsetsPartition(partition, -1, -1)])]
        answer = self.client.ask(m.ListOffsetsRequest(-1, isolation_level, asked), 7)
        return int(answer.topics[0].partitions[0].offset)

    def until_stable(self) -> None:
        """Wait until readers of committed records reach the end."""
        until = time.monotonic() + LATEST_S
        while self.end_of(READ_COMMITTED) < self.end_of(0):
            assert time.monotonic() < until, "the transaction stays open"
            time.sleep(0.01)

    def committed(self) -> Any:
        (partition,) = self.side.offsets(True).groups[0].topics[0].partitions
        return partition.committed_offset, partition.error_code


@pytest.fixture(params=["interval", "always"])
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killed]:
    with BrokerProcess(tmp_path / "data", QUICK, fsync=request.param) as broker:
        killed = Killed(broker)
        yield killed
        killed.client.close()


@pytest.mark.parametrize("tv2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_outlives_the_broker(killed: Killed, commit: bool, tv2: bool) -> None:
    side = killed.side
    if not tv2:
        side.add(3)
        side.add_offsets()
    side.produce(12 if tv2 else 9)
    side.commit_offsets(5 if tv2 else 3, offset=7)
    killed.kill()
    killed.start()
    assert side.describe().transaction_state == "Ongoing"
    assert killed.end_of(READ_COMMITTED) == 0
    assert killed.committed() == (-1, 88)
    assert side.end(commit, 5 if tv2 else 3).error_code == 0
    side.until_complete()
    killed.until_stable()
    assert killed.end_of(0) == 2
    assert killed.committed() == (7 if commit else -1, 0)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_was_decided_is_done_after_a_kill(killed: Killed, commit: bool) -> None:
    side = killed.side
    side.produce(12)
    side.produce(12, partition=1)
    side.commit_offsets(5, offset=7)
    assert side.end(commit, 5).error_code == 0
    killed.kill()
    killed.start()
    side.until_complete()
    assert side.describe().transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    killed.until_stable()
    assert killed.committed() == (7 if commit else -1, 0)
    again = side.end(commit, 5)
    assert (again.error_code, again.producer_epoch) == (0, side.epoch + 1)


def test_a_transaction_that_no_id_has_is_aborted_at_the_start(killed: Killed) -> None:
    """As after a power failure that lost the coordinator's records."""
    side = killed.side
    side.produce(12)
    side.commit_offsets(5)
    killed.kill()
    for folder in killed.broker.folder.glob("__transaction_state-*"):
        for file in folder.glob("*"):
            file.unlink()
    killed.start()
    killed.until_stable()
    assert killed.end_of(0) == 2
    until = time.monotonic() + LATEST_S
    while killed.committed() != (-1, 0):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "no transactional id has it" in killed.broker.log()


def test_ids_are_kept_and_expire(tmp_path: Path) -> None:
    settings = {
        "transactional.id.expiration.ms": 300,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    }
    with BrokerProcess(tmp_path / "data", settings) as broker:
        killed = Killed(broker)
        until = time.monotonic() + LATEST_S
        while killed.client.ask(t.ListTransactionsRequest(), 0).transaction_states:
            assert time.monotonic() < until
            time.sleep(0.02)
        killed.kill()
        killed.start()
        assert not killed.client.ask(t.ListTransactionsRequest(), 0).transaction_states
        killed.client.close()
