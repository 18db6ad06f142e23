"""Transactions over all partitions of a topic, with offsets, while the brokers under them are killed and frozen.

One thread writes a number into every partition and commits it as a group's offset, in one transaction, and commits or
aborts that. The client's answers decide what must be there in the end: a number is in all partitions or in none, and
the group's offset is that of the last committed transaction.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from muster import Admin, NewTopic
from muster.protocol import messages as m
from muster.protocol.api import READ_COMMITTED
from tests.support.cluster_chaos import Facts, Worker
from tests.support.muster_cluster import PATIENCE_S, Cluster, eventually

PARTITIONS = 4
TIMEOUT_MS = 8_000
STEP_S = 20.0
"""How long one step of a transaction may take before its client starts again."""
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
"""A setting with which brokers soon abort transactions that time out."""


@dataclass
class Reported:
    """What the client learned about its transactions, by number, and what exists at the end."""

    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """Neither: the client got no answer."""
    read: dict[int, list[int]] = field(default_factory=dict)
    """The numbers in each partition, as a `read_committed` consumer finds them."""
    offset: int = -1


def judge_transactions(reported: Reported) -> Iterator[str]:
    """What is wrong; nothing if everything is fine."""
    where: dict[int, set[int]] = {}
    for partition, numbers in reported.read.items():
        for number in numbers:
            where.setdefault(number, set()).add(partition)
        if len(numbers) != len(set(numbers)):
            yield f"partition {partition} has a transaction twice"
    whole = set(reported.read)
    for number, partitions in sorted(where.items()):
        if partitions != whole:
            yield f"transaction {number} is only in partitions {sorted(partitions)}"
    yield from (
        f"transaction {number} was committed and is lost" for number in reported.committed if number not in where
    )
    yield from (f"transaction {number} was aborted and is there" for number in reported.aborted if number in where)
    last = max(where, default=-1)
    if reported.offset != last:
        yield f"the group's offset is that of transaction {reported.offset}, the last one there is {last}"


class Transactions(Worker):
    """A producer with one transactional id, which is created again when it cannot continue."""

    def __init__(self, facts: Facts, cluster: Cluster, seed: int) -> None:
        self.reported = Reported()
        self.topic = self.group = self.transactional_id = f"transactions-{uuid.uuid4().hex[:6]}"
        self.troubles: list[str] = []
        self._cluster = cluster
        self._random = Random(seed)
        self._number = 0
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, PARTITIONS, configs={"retention.ms": "-1"})])
        eventually(lambda: all(len(cluster.leaders(self.topic, n)) == PARTITIONS for n in cluster.brokers))
        super().__init__(facts, "transactions")

    def work(self) -> None:
        metadata = self._consumer().consumer_group_metadata()
        while not self.stopped.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self._cluster.bootstrap,
                    "transactional.id": self.transactional_id,
                    "transaction.timeout.ms": TIMEOUT_MS,
                    "message.timeout.ms": TIMEOUT_MS,
                    "socket.timeout.ms": 3_000,
                    # librdkafka 2.16 waits indefinitely for the coordinator of a group whose connection was lost, until
                    # the state of some connection changes.
                    "connections.max.idle.ms": 5_000,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(STEP_S)
                while not self.stopped.wait(0.02):
                    self._one(producer, metadata)
            except KafkaException as error:
                self.troubles.append(f"{self._number}: {error}")
                time.sleep(0.1)
            finally:
                producer.purge()

    def _one(self, producer: Producer, metadata: object) -> None:
        """One transaction, to its end or as far as possible. Raises KafkaException if the producer cannot continue."""
        self._number += 1
        number, commits = self._number, self._random.random() < 0.7
        ends = False
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                producer.produce(self.topic, value=str(number), partition=partition)
            offsets = [TopicPartition(self.topic, 0, number)]
            producer.send_offsets_to_transaction(offsets, metadata, STEP_S)
            if self._random.random() < 0.3:
                producer.flush(STEP_S)
            if commits:
                ends = True
                producer.commit_transaction(STEP_S)
                self.reported.committed.append(number)
                return
        except KafkaException as error:
            found: KafkaError = error.args[0]
            self.troubles.append(f"{number}: {found}")
            if ends and not found.txn_requires_abort():
                # It may have been committed anyway: only an error that requires an abort says that it was not.
                self.reported.unknown.append(number)
                raise
            if not found.txn_requires_abort() and not found.retriable():
                self.reported.unknown.append(number)
                raise
        self._abort(producer, number)

    def _abort(self, producer: Producer, number: int) -> None:
        try:
            producer.abort_transaction(STEP_S)
        except KafkaException:
            self.reported.unknown.append(number)
            raise
        self.reported.aborted.append(number)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "group.id": self.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    def more(self) -> None:
        """Wait until some more transactions have been committed."""
        before = len(self.reported.committed)
        deadline = time.monotonic() + PATIENCE_S
        while len(self.reported.committed) < before + 3:
            assert time.monotonic() < deadline, (self.facts.errors, self.reported, self.troubles[-20:])
            time.sleep(0.05)

    def wrong(self) -> list[str]:
        """What is wrong at the end; nothing if everything is fine."""
        eventually(self._is_stable)
        consumer = self._consumer()
        ends = self._ends(READ_COMMITTED)
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in ends])
        self.reported.read = {partition: [] for partition in ends}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and any(
            position.offset < ends[position.partition]
            for position in consumer.position([TopicPartition(self.topic, partition) for partition in ends])
        ):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.reported.read[message.partition()].append(int(message.value()))
        [offset] = consumer.committed([TopicPartition(self.topic, 0)], 60)
        consumer.close()
        self.reported.offset = max(offset.offset, -1)
        return list(judge_transactions(self.reported))

    def _is_stable(self) -> bool:
        """Whether no transaction is open in any partition."""
        try:
            found, stable = self._ends(0), self._ends(READ_COMMITTED)
        except (OSError, EOFError, KeyError):
            return False
        return found == stable

    def _ends(self, isolation: int) -> Mapping[int, int]:
        ends = {}
        for partition, (_, leader, _) in self._cluster.leaders(self.topic, 1).items():
            asked = [m.ListOffsetsTopic(self.topic, [m.ListOffsetsPartition(partition, -1, -1)])]
            answer = self._cluster.ask(leader, m.ListOffsetsRequest(-1, isolation, asked), 7)
            found = answer.topics[0].partitions[0]
            if found.error_code:
                raise KeyError(found.error_code)
            ends[partition] = int(found.offset)
        return ends
