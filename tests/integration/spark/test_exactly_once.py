"""The sink that writes each row once: tasks as Spark runs them, on both brokers, and queries in a real Spark that are
killed. The tests count what a reader of committed records sees."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from muster.client.admin.admin import Admin
from muster.client.plain.cluster import connect, disconnect
from muster.model import TopicPartition
from muster.protocol.api import READ_COMMITTED, READ_UNCOMMITTED
from muster.spark import sink as module
from muster.spark.exactly_once import BATCH_ID, QUERY_ID, SinkError
from muster.spark.sink import StreamWriter, Written, write
from muster.spark.sink_options import parse_sink_options
from tests.support.faces import PATIENCE_S, Cluster, rest, until

pytestmark = [pytest.mark.slow(75), pytest.mark.timeout(1200)]


@pytest.fixture(params=["muster", "kafka"])
def cluster(request):
    fixture = "shared_muster" if request.param == "muster" else "transactional_kafka"
    return Cluster(request.getfixturevalue(fixture).bootstrap)


@pytest.fixture
def at_once(monkeypatch):
    """A task writes each batch of rows as it comes."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)


def read(cluster, topic, partitions, isolation="read_committed"):
    """How often a reader sees each value, up to the last offset that it may read."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "isolation.level": isolation}
        | {"enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([Place(topic, number, 0) for number in range(partitions)])
    found: Counter[int] = Counter()
    ends: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(ends) < partitions:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                ends.add(message.partition())
            else:
                found[int(message.value())] += 1
    finally:
        consumer.close()
    return found


class Sink:
    """Tasks of one query, whose rows are numbers."""

    def __init__(self, cluster, partitions=3, **options):
        self.cluster, self.partitions = cluster, partitions
        self.topic = cluster.topic(partitions)
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": self.topic, "exactlyOnce": "true"}
        given["kafka.transactional.id"] = f"{self.topic}-once"
        given |= {name.replace("_", "."): str(value) for name, value in options.items()}
        self.options = parse_sink_options(given, StructType([StructField("value", BinaryType())]))
        self.query = uuid.uuid4().hex

    def task(self, batch, number, rows, query=None):
        """One attempt of a task, in this thread."""
        properties = {BATCH_ID: str(batch), QUERY_ID: query or self.query}
        TaskContext._setTaskContext(TaskContext(partitionId=number, localProperties=properties))
        try:
            return write(self.options, iter(rows) if isinstance(rows, Rows) else rows_of(rows))
        finally:
            TaskContext._setTaskContext(None)
            disconnect()

    def commit(self, batch, messages):
        try:
            StreamWriter(self.options).commit(messages, batch)
        finally:
            disconnect()

    def ends(self, isolation):
        """Where the partitions end for a reader."""
        cluster = connect(self.options.config)
        places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        try:
            return [offset for _, offset in sorted(cluster.list_offsets(dict.fromkeys(places, -1), isolation).items())]
        finally:
            disconnect()

    def seen(self, isolation="read_committed"):
        """What readers see, once all markers are written: the end of a transaction is answered before that."""
        until(lambda: self.ends(READ_COMMITTED) == self.ends(READ_UNCOMMITTED), rest)
        return read(self.cluster, self.topic, self.partitions, isolation)


class Rows:
    """Rows that are produced on demand, with other actions between them."""

    def __init__(self, *steps):
        self.steps = steps

    def __iter__(self):
        for step in self.steps:
            if callable(step):
                step()
            else:
                yield from rows_of(step)


def rows_of(numbers):
    table = pa.table({"value": pa.array([b"%d" % number for number in numbers], pa.binary())})
    return iter(table.to_batches(100))


def describe(cluster, transactional_id):
    """The state of a transaction, as its coordinator reports it."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return admin.describe_transactions([transactional_id])[transactional_id].state


def until_complete(cluster, *transactional_ids):
    """Wait until every marker of their last transactions is written; the answer to EndTxn comes before that."""
    states = "CompleteCommit", "CompleteAbort"
    until(lambda: all(describe(cluster, name) in states for name in transactional_ids), rest)


def once(*numbers):
    return dict.fromkeys(numbers, 1)


def test_a_task_that_runs_again_writes_nothing(cluster):
    sink = Sink(cluster)
    for _ in range(2):
        messages = [sink.task(0, number, range(number * 200, number * 200 + 200)) for number in (0, 1)]
        assert all(isinstance(message, Written) for message in messages)
        sink.commit(0, messages)
    assert sink.seen() == once(*range(400))
    sink.commit(1, [sink.task(1, number, range(400 + number, 402)) for number in (0, 1)])
    sink.task(1, 0, [401, 400])  # a shuffle may return its rows in a different order
    assert sink.seen() == once(*range(400)) | {400: 1, 401: 2}
    assert sink.seen("read_uncommitted") == sink.seen(), "nothing was written in vain"


def test_a_task_without_rows_is_marked_too(cluster):
    sink = Sink(cluster)
    sink.commit(0, [sink.task(0, 0, []), sink.task(0, 1, [5])])
    with pytest.raises(SinkError, match="task 0 of batch 0 was written with 0 rows, and runs again with 1: "):
        sink.task(0, 0, [6])
    assert sink.seen() == once(5)


@pytest.mark.usefixtures("at_once")
def test_an_attempt_that_was_thought_to_be_dead_writes_nothing(cluster):
    """A slow attempt, as with speculation: it has written half of its rows when the other attempt begins and ends."""
    sink = Sink(cluster)
    half, ended = threading.Event(), threading.Event()

    def pause():
        half.set()
        assert ended.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as other:
        slow = other.submit(sink.task, 0, 0, Rows(range(300), pause, range(300, 600)))
        assert half.wait(PATIENCE_S)
        sink.task(0, 0, range(600))
        ended.set()
        with pytest.raises(SinkError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH|taken"):
            slow.result()
    assert sink.seen() == once(*range(600))


@pytest.mark.usefixtures("at_once")
def test_a_task_that_fails_leaves_nothing_to_readers(cluster):
    sink = Sink(cluster)

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink.task(0, 0, Rows(range(300), fail))
    assert sink.seen() == {}
    until(lambda: sink.ends(READ_COMMITTED) == sink.ends(READ_UNCOMMITTED) != [0, 0, 0], rest)
    sink.task(0, 0, range(600))
    assert sink.seen() == once(*range(600))


def test_another_number_of_tasks_is_refused(cluster):
    """Two of four tasks were written when the driver died. With two or eight tasks, the rows are distributed
    differently."""
    sink = Sink(cluster)
    for number in (0, 1):
        sink.task(0, number, range(number, 40, 4))
    for tasks, rows in ((2, 20), (8, 5)):
        with pytest.raises(
            SinkError, match=f"task 0 of batch 0 was written with 10 rows, and runs again with {rows}: "
        ):
            sink.task(0, 0, range(0, 40, tasks))
    assert sink.seen() == once(*range(0, 40, 4), *range(1, 40, 4))
    sink.commit(0, [sink.task(0, number, range(number, 40, 4)) for number in range(4)])
    assert sink.seen() == once(*range(40))


def test_fewer_tasks_than_the_one_that_was_written_are_noticed_at_the_end_of_the_batch(cluster):
    sink = Sink(cluster)
    sink.task(0, 3, range(3, 40, 4))
    messages = [sink.task(0, number, range(number, 40, 2)) for number in (0, 1)]
    with pytest.raises(SinkError, match="batch 0 was written in part by task 3, and runs again with 2 tasks"):
        sink.commit(0, messages)


def test_a_name_belongs_to_one_query_and_goes_forward(cluster):
    sink = Sink(cluster)
    for batch in (0, 1):
        sink.task(batch, 0, [batch])
    with pytest.raises(SinkError, match=r"was used by query .* needs its own kafka.transactional.id"):
        sink.task(2, 0, [2], query="another")
    with pytest.raises(SinkError, match="comes after batch 1 was written: the checkpoint is older"):
        sink.task(0, 0, [0])
    assert sink.seen() == once(0, 1)


def test_a_group_of_another_kind_is_not_written_over(cluster):
    sink = Sink(cluster)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{sink.topic}-once-0"})
    consumer.commit(offsets=[Place(sink.topic, 0, 7)], asynchronous=False)
    consumer.close()
    with pytest.raises(SinkError, match=r"group .*-once-0 has an offset that this sink did not commit"):
        sink.task(0, 0, [0])


def test_a_batch_whose_marker_has_expired_is_written_twice(cluster):
    """The limit of the guarantee: brokers remove the offsets of an unused group (offsets.retention.minutes)."""
    sink = Sink(cluster)
    sink.task(0, 0, range(10))
    until_complete(cluster, f"{sink.topic}-once-0")  # otherwise the offset would count after the group is deleted
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.delete_consumer_groups([f"{sink.topic}-once-0"]).values():
        future.result(PATIENCE_S)
    sink.task(0, 0, range(10))
    assert sink.seen() == dict.fromkeys(range(10), 2)


@pytest.mark.usefixtures("at_once")
def test_a_task_that_takes_longer_than_its_transaction_may_fails_and_is_written_once_by_the_next(cluster):
    """Brokers check every ten seconds for transactions that have timed out."""
    sink = Sink(cluster, kafka_transaction_timeout_ms=1_000)

    def wait_for_abort():  # first for its beginning: rows are sent in the background
        until(lambda: describe(sink.cluster, f"{sink.topic}-once-0") == "CompleteAbort", rest)

    with pytest.raises(SinkError):
        sink.task(0, 0, Rows(range(300), wait_for_abort, range(300, 600)))
    assert sink.seen() == {}
    sink.task(0, 0, range(600))
    assert sink.seen() == once(*range(600))


@pytest.mark.usefixtures("at_once")
def test_a_broker_is_killed_while_a_task_writes(muster_process):
    sink = Sink(Cluster(muster_process.bootstrap), kafka_batch_size=2_048, kafka_buffer_memory=65_536)

    def kill():
        muster_process.kill()
        muster_process.start()

    steps = [step for number in range(0, 20_000, 5_000) for step in (range(number, number + 5_000), kill)]
    sink.task(0, 0, Rows(*steps))
    sink.task(0, 0, range(20_000))
    assert sink.seen() == once(*range(20_000))


# ------------------------------------------------------------------------------------------------------ a real Spark


def run(cluster, source, target, checkpoint, rows, tasks, kill):
    arguments = (cluster.bootstrap, source, target, checkpoint, rows, tasks, kill)
    command = [sys.executable, "-m", "tests.support.once_query", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, start_new_session=True)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
def test_a_driver_that_is_killed_in_batches_and_between_them(cluster, tmp_path):
    """Killed when one task of two has committed in the first batch; refused when it is started with four tasks; killed
    when both have committed in the second; then it runs to completion."""
    source, target = cluster.topic(4), cluster.topic(3)
    cluster.produce(source, 6_000)
    arguments = (cluster, source, target, tmp_path / "checkpoint", 2_000)
    done = run(*arguments, 2, "1:0")
    assert done.returncode == -9, done.stderr
    until_complete(cluster, f"{target}-once-0")
    before = read(cluster, target, 3)
    done = run(*arguments, 4, "never")
    assert done.returncode != 0
    assert "task 0 of batch 0 was written with 1000 rows, and runs again with 500: " in done.stderr
    assert read(cluster, target, 3) == before
    done = run(*arguments, 2, "2:1")
    assert done.returncode == -9, done.stderr
    done = run(*arguments, 2, "never")
    assert done.returncode == 0, done.stderr
    until_complete(cluster, *(f"{target}-once-{number}" for number in range(2)))
    assert read(cluster, target, 3) == once(*range(6_000))
