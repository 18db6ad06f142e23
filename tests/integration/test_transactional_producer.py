"""Transactional producers on muster, with both protocols, and on Apache Kafka: what readers of committed records see.

The readers are librdkafka's, with `read_committed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import uvloop
from confluent_kafka import Consumer as Confluent
from confluent_kafka import TopicPartition as Place

from muster import (
    Admin,
    AsyncProducer,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    GroupMetadata,
    IllegalArgumentError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MusterError,
    Producer,
    ProducerFencedError,
    ProducerState,
    TopicPartition,
    TransactionAbortedError,
    exactly_once,
)
from muster.client.config import ProducerConfig
from muster.client.core.produce.accumulator import OutgoingBatch
from muster.client.producer.batch_producer import BatchProducer
from muster.errors import ErrorCode
from muster.protocol import transaction_messages as t
from muster.protocol.records.record_batch import BatchBuilder
from tests.support.brokers import BrokerProcess, RawClient
from tests.support.faces import PATIENCE_S, new_topic
from tests.support.growing import until_said
from tests.support.peers import KafkaCluster

pytestmark = pytest.mark.slow(110)

QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200, "num.partitions": 3}
KILLS = int(os.environ.get("MUSTER_KILLS", "3"))


@pytest.fixture(scope="module")
def muster_v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("v2") / "data", QUICK) as broker:
        yield broker


@pytest.fixture(scope="module")
def muster_v1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("v1") / "data", {**QUICK, "transaction.version": 0}) as broker:
        yield broker


@pytest.fixture(params=["muster_v2", "muster_v1", "transactional_kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param).bootstrap
    return found


def named(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def committed_values(bootstrap: str, topic: str, partitions: int = 3) -> list[bytes]:
    """The committed records that librdkafka reads up to the current ends."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Confluent(settings)
    consumer.assign([Place(topic, number, 0) for number in range(partitions)])
    found: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, "no end of the partitions"
        for message in consumer.consume(1000, 0.2):
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append(message.value())
    consumer.close()
    return found


def eventually(bootstrap: str, topic: str, expected: list[bytes], is_over: Callable[[], bool] = lambda: False) -> None:
    """Readers see this soon, or the test fails: EndTxn is answered before the markers are written."""
    deadline = time.monotonic() + PATIENCE_S
    while sorted(found := committed_values(bootstrap, topic)) != sorted(expected) and not is_over():
        assert time.monotonic() < deadline, (len(found), len(expected), sorted(set(found) ^ set(expected))[:5])


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(bootstrap: str) -> None:
    name = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=named("id")) as producer:
        producer.init_transactions()
        for number in range(5):
            with producer.transaction():
                for each in range(10):
                    producer.send(name, b"%d-%d" % (number, each), key=b"%d" % each)
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                producer.send(name, b"aborted").result()
                unsent = producer.send(name, b"aborted too", partition=0)
                raise ZeroDivisionError
            assert isinstance(unsent.exception(), TransactionAbortedError | None)
        producer.begin_transaction()
        producer.send(name, b"left open")
    eventually(bootstrap, name, [b"%d-%d" % (number, each) for number in range(5) for each in range(10)])


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_same_with_asyncio(bootstrap: str, runner: object) -> None:
    name = new_topic(bootstrap)

    async def produce() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap, transactional_id=named("id")) as producer:
            await producer.init_transactions()
            for number in range(5):
                async with producer.transaction():
                    for each in range(10):
                        await producer.send(name, b"%d-%d" % (number, each))
                with contextlib.suppress(asyncio.CancelledError):
                    async with producer.transaction():
                        await producer.send(name, b"aborted")
                        raise asyncio.CancelledError

    runner(produce())  # type: ignore[operator]
    eventually(bootstrap, name, [b"%d-%d" % (number, each) for number in range(5) for each in range(10)])


def test_a_transaction_may_have_thousands_of_partitions(muster_v2: BrokerProcess) -> None:
    """Here the partitions are those of a topic that does not exist. The only limit is the size of a request, beyond
    which the connection is closed."""
    many, unknown = list(range(9_000)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    offsets = [t.TxnOffsetCommitRequestTopic("none", [t.TxnOffsetCommitRequestPartition(each, 1) for each in many])]
    marker = t.WritableTxnMarker(7, 0, True, [t.WritableTxnMarkerTopic("none", many)], 0, 2)
    with RawClient(muster_v2.bootstrap) as client:
        asked = t.AddPartitionsToTxnRequest([], "id", 7, 0, [t.AddPartitionsToTxnTopic("none", many)])
        (added,) = client.ask(asked, 3).results_by_topic_v3_and_below
        assert [each.partition_error_code for each in added.results_by_partition] == [unknown] * len(many)
        (taken,) = client.ask(t.TxnOffsetCommitRequest("id", "g", 7, 0, topics=offsets), 5).topics
        assert len(taken.partitions) == len(many)
        (marked,) = client.ask(t.WriteTxnMarkersRequest([marker]), 2).markers
        assert [each.error_code for each in marked.topics[0].partitions] == [unknown] * len(many)
        ids = [f"id-{each}" for each in many]
        described = client.ask(t.DescribeTransactionsRequest(ids), 0).transaction_states
        assert [each.transactional_id for each in described] == ids


def test_a_refusal_says_what_is_wrong(bootstrap: str) -> None:
    name, id = new_topic(bootstrap), named("id")
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=id, transaction_timeout_ms=10**7) as long,
        pytest.raises(KafkaError, match=r"10000000, more than the broker's transaction\.max\.timeout\.ms allows"),
    ):
        long.init_transactions()
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=id) as first,
        Producer(bootstrap_servers=bootstrap, transactional_id=id) as second,
    ):
        first.init_transactions()
        first.begin_transaction()
        for nothing in (None, [TopicPartition(name, 0)]):
            with pytest.raises(IllegalArgumentError, match="must be a mapping"):
                first.send_offsets_to_transaction(nothing, GroupMetadata("g"))  # type: ignore[arg-type]
        first.send(name, b"v", partition=0).result()
        second.init_transactions()
        sent = first.send(name, b"v", partition=0)
        assert "another producer with the same transactional_id was started" in str(sent.exception())


def test_a_second_producer_fences_the_first_and_aborts_what_it_has_begun(bootstrap: str) -> None:
    name, own = new_topic(bootstrap), named("id")
    first = Producer(bootstrap_servers=bootstrap, transactional_id=own)
    first.init_transactions()
    first.begin_transaction()
    first.send(name, b"of the first").result()
    with Producer(bootstrap_servers=bootstrap, transactional_id=own) as second:
        second.init_transactions()
        with pytest.raises(ProducerFencedError, match="another producer") as fenced:
            first.commit_transaction()
        assert fenced.value.fatal
        with pytest.raises(ProducerFencedError):
            first.begin_transaction()
        first.close()
        with second.transaction():
            second.send(name, b"of the second")
    eventually(bootstrap, name, [b"of the second"])


def test_a_transaction_that_takes_too_long_is_aborted(bootstrap: str) -> None:
    name = new_topic(bootstrap)
    settings = {"bootstrap_servers": bootstrap, "transactional_id": named("id")}
    # Longer than a busy machine needs from the beginning of the transaction until the record is written.
    with Producer(settings, transaction_timeout_ms=5_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"slow").result()
        eventually(bootstrap, name, [])
        deadline = time.monotonic() + PATIENCE_S
        with Admin(bootstrap_servers=bootstrap) as admin:
            while any(state.transaction_start_offset is not None for state in states(admin, name)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with pytest.raises(MusterError) as reported:
            producer.commit_transaction()
        assert reported.value.fatal


def states(admin: Admin, name: str) -> list[ProducerState]:
    described = admin.describe_producers([TopicPartition(name, number) for number in range(3)])
    return [state for found in described.values() for state in found]


def test_a_call_that_times_out_continues_and_can_be_repeated(bootstrap: str) -> None:
    name = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=named("id"), linger_ms=1_000) as producer:
        with contextlib.suppress(KafkaTimeoutError):
            producer.init_transactions(timeout_ms=0)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"a")
        with pytest.raises(KafkaTimeoutError, match="call it again"):
            producer.commit_transaction(timeout_ms=0)
        with pytest.raises(IllegalStateError):
            producer.abort_transaction()
        producer.commit_transaction()
        with producer.transaction():
            producer.send(name, b"b")
    eventually(bootstrap, name, [b"a", b"b"])


def test_offsets_are_committed_with_the_records_or_not_at_all(bootstrap: str) -> None:
    source, target, group = new_topic(bootstrap), new_topic(bootstrap), named("g")
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(30):
            producer.send(source, b"%d" % number, partition=number % 3)
    settings = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
    places = [TopicPartition(source, number) for number in range(3)]
    with (
        Consumer(settings, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=named("id")) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])
        seen: list[ConsumerRecord] = []
        while len(seen) < 30:
            seen += [record for records in consumer.poll(1_000).values() for record in records]
        ends = {place: consumer.position(place) for place in places}
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            raise ZeroDivisionError
        assert set(consumer.committed(places).values()) == {None}
        with producer.transaction():
            for record in seen:
                producer.send(target, record.value)
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        found = consumer.committed(places)
        assert {place: offset.offset for place, offset in found.items() if offset} == ends
        stranger = GroupMetadata(group, 1, "nobody")
        producer.begin_transaction()
        producer.send(target, b"of a stranger")
        with pytest.raises(CommitFailedError) as refused:
            producer.send_offsets_to_transaction(ends, stranger)
        assert refused.value.abortable
        producer.abort_transaction()
        with producer.transaction():
            producer.send(target, b"last")
    eventually(bootstrap, target, [b"last", *(b"%d" % number for number in range(30))])


def test_offsets_of_a_topic_that_is_not_there_are_tried_again_and_say_so(bootstrap: str) -> None:
    """Like Java's client, which repeats the request until `max.block.ms` is over: the topic may be new."""
    missing = named("missing")
    with Producer(bootstrap_servers=bootstrap, transactional_id=named("id")) as producer:
        producer.init_transactions()

        def attempt(limit_ms: int) -> str:
            producer.begin_transaction()
            with pytest.raises(KafkaTimeoutError) as late:
                producer.send_offsets_to_transaction(
                    {TopicPartition(missing, 0): 5}, GroupMetadata("g"), timeout_ms=limit_ms
                )
            producer.abort_transaction()
            return str(late.value).replace(f"within {limit_ms} ms", "in time")

        refused = f"the offset of {missing}-0 was refused with UNKNOWN_TOPIC_OR_PARTITION (does the topic exist?)"
        said = until_said("was refused with", attempt)
        assert said.endswith(f"did not end in time: {refused}; abort to give up")


@pytest.mark.parametrize("kind", ["sync", "async", "arrow"])
def test_a_copy_job_that_is_killed_again_and_again_copies_each_record_once(bootstrap: str, kind: str) -> None:
    copied(bootstrap, kind, KILLS)


def test_a_killed_copy_job_on_three_brokers_of_kafka(kafka_cluster: KafkaCluster) -> None:
    """On a busy machine Kafka once answered CONCURRENT_TRANSACTIONS for a minute, which ends a job."""
    copied(kafka_cluster.bootstrap, "sync", KILLS, restarts=2)


@contextlib.contextmanager
def running(command: list[str], errors: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A copy job that is ready; it is killed at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0) as job:
        try:
            assert line_of(job) == b"ready\n"
            yield job
        finally:
            job.kill()


def line_of(job: subprocess.Popen[bytes]) -> bytes:
    """The next line that it prints; empty once it has ended."""
    assert job.stdout is not None
    assert select.select([job.stdout], [], [], PATIENCE_S)[0], "the job is stuck"
    return job.stdout.readline()


@contextlib.contextmanager
def feeding(bootstrap: str, name: str, sent: list[bytes]) -> Iterator[None]:
    """Records are written to all partitions of a topic until the end of the block."""
    over = threading.Event()

    def feed() -> None:
        with Producer(bootstrap_servers=bootstrap) as producer:
            while not over.is_set():
                for partition in range(3):
                    sent.append(b"%d" % len(sent))
                    producer.send(name, sent[-1], partition=partition)
                over.wait(0.005)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def copied(bootstrap: str, kind: str, kills: int, *, restarts: int = 0) -> None:
    """Each job is killed soon after one of its first commits, so at any point of the following round. The last one may
    end on its own, and is restarted up to `restarts` times."""
    source, target, group, own = new_topic(bootstrap), new_topic(bootstrap), named("g"), named("id")
    expected: list[bytes] = []
    command = [sys.executable, "-m", "tests.support.copying", bootstrap, source, target, group, own, kind]
    rng = random.Random(own)
    with feeding(bootstrap, source, expected):
        for _ in range(kills):
            with running(command) as job:
                for _ in range(rng.randrange(1, 6)):
                    assert line_of(job) == b"copied\n"
                time.sleep(rng.random() * 0.02)
    for left in range(restarts, -1, -1):
        with tempfile.TemporaryFile() as errors, running(command, errors) as job:
            eventually(bootstrap, target, expected, lambda: job.poll() is not None)
            if job.poll() is None:
                break
            errors.seek(0)
            said = errors.read().decode()
        assert left, f"the job ended by itself: {said}"
        assert "refused with CONCURRENT_TRANSACTIONS" in said
    assert sorted(committed_values(bootstrap, target)) == sorted(expected)


@pytest.mark.parametrize(
    ("bootstrap", "assignor"),
    [("muster_v2", "cooperative-sticky"), ("muster_v1", "range"), ("transactional_kafka", "cooperative-sticky")],
    indirect=["bootstrap"],
)
def test_two_copying_members_share_the_work_through_rebalances(bootstrap: str, assignor: str) -> None:
    """A second member copies for some rounds, twice: it leaves, and it is killed. Both neither lose nor double
    records."""
    source, target, group = new_topic(bootstrap), new_topic(bootstrap), named("g")
    expected: list[bytes] = []
    command = [sys.executable, "-m", "tests.support.copying", bootstrap, source, target, group]
    with running([*command, named("id"), "sync", assignor]) as first:
        with feeding(bootstrap, source, expected):
            assert line_of(first) == b"copied\n"
            for end in (signal.SIGINT, signal.SIGKILL):
                with running([*command, named("id"), "sync", assignor]) as second:
                    for _ in range(3):
                        assert line_of(second) == b"copied\n"
                    second.send_signal(end)
                    second.wait(PATIENCE_S)
        eventually(bootstrap, target, expected)
        assert first.poll() is None, "the first ended by itself"


def test_encoded_batches_in_transactions(bootstrap: str) -> None:
    """`BatchProducer`, which writes Spark's tables, and a failure that does not affect the next transaction."""
    name = new_topic(bootstrap)

    def batch(*values: bytes, size: int = 0) -> OutgoingBatch:
        builder = BatchBuilder()
        for value in values:
            builder.append(0, None, value + bytes(size))
        return OutgoingBatch(name, 0, builder, 0, None)

    config = ProducerConfig(bootstrap_servers=(bootstrap,), transactional_id=named("id"), max_request_size=4_000_000)
    producer = BatchProducer(config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.put([batch(b"a", b"b"), batch(b"c")])
    producer.commit_transaction()
    producer.begin_transaction()
    producer.put([batch(b"aborted")])
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.put([batch(b"too large", size=2_000_000)])
    with pytest.raises(MusterError) as refused:
        producer.commit_transaction()
    assert refused.value.abortable
    producer.abort_transaction()
    producer.begin_transaction()
    producer.put([batch(b"d")])
    producer.commit_transaction()
    producer.close()
    eventually(bootstrap, name, [b"a", b"b", b"c", b"d"])


def test_the_handlers_own_error_is_raised_and_its_round_is_read_again(bootstrap: str) -> None:
    source, target = new_topic(bootstrap), new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            producer.send(source, b"%d" % number, partition=0)
    settings = {"bootstrap_servers": bootstrap, "group_id": named("g"), "enable_auto_commit": False}
    settings |= {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with (
        Consumer(settings, max_poll_records=4) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=named("id")) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([source])
        done: list[int] = []
        fails = [True, False]

        def handle(batch: dict[TopicPartition, list[ConsumerRecord]]) -> None:
            for records in batch.values():
                for record in records:
                    producer.send(target, record.value)
                    if record.value == b"5" and fails.pop(0):
                        raise ZeroDivisionError

        def over(count: int) -> bool:
            done.append(count)
            return sum(done) == 10

        with pytest.raises(ZeroDivisionError):
            exactly_once(consumer, producer, handle, until=over)
        exactly_once(consumer, producer, handle, until=over)
    eventually(bootstrap, target, [b"%d" % number for number in range(10)])


@pytest.mark.parametrize("version", [2, 0])
def test_a_broker_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, version: int) -> None:
    with BrokerProcess(tmp_path / "data", {**QUICK, "transaction.version": version}) as broker:
        name = new_topic(broker.bootstrap)
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id="mine") as producer:
            producer.init_transactions()
            for number in range(6):
                with producer.transaction():
                    for each in range(20):
                        producer.send(name, b"%d-%d" % (number, each))
                    if number % 2:
                        broker.kill()
                        broker.start()
        eventually(broker.bootstrap, name, [b"%d-%d" % (number, each) for number in range(6) for each in range(20)])
