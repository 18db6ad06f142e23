"""The query's member on muster and on Apache Kafka, called as Spark calls it: who reads what, and how often."""

from __future__ import annotations

import threading

import pytest

from muster.errors import KafkaTimeoutError
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.progress.batch_done import notify
from tests.support.faces import flat, rest, until
from tests.support.queries import audit, committed, grid

pytestmark = pytest.mark.slow


class Other:
    """Another member of the group: reads, records what it read, then commits."""

    def __init__(self, cluster, topic):
        self.read = []
        self.owned = 0
        self._stop = threading.Event()
        self._cluster, self._topic = cluster, topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        how = {"enable_auto_commit": False, "partition_assignment_strategy": ("cooperative-sticky",)}
        with self._cluster.consumer("sync", **how) as consumer:
            consumer.subscribe([self._topic])
            while not self._stop.is_set():
                records = flat(consumer.poll(100))
                self.owned = len(consumer.assignment())
                if records:
                    self.read += [(record.partition, record.offset) for record in records]
                    consumer.commit()

    def leave(self):
        self._stop.set()
        self._thread.join()


@pytest.fixture
def others(cluster):
    started = []

    def start(topic):
        started.append(Other(cluster, topic))
        return started[-1]

    yield start
    for other in started:
        other.leave()


def test_a_query_reads_everything_once_and_continues_after_a_restart(cluster, queries):
    topic = cluster.written(300, partitions=3)
    query = queries(topic, maxOffsetsPerTrigger=70)
    query.member.prepare_available_now()
    assert query.run() == 5
    assert audit(grid(300, 3), query.sink()) == (set(), {})
    query.stop()
    assert committed(cluster, topic, 3) == {0: 100, 1: 100, 2: 100}
    cluster.produce(topic, 30, partitions=3, start=300)
    again = queries(topic, maxOffsetsPerTrigger=70)
    again.member.prepare_available_now()
    cluster.produce(topic, 30, partitions=3, start=330)
    assert again.run() == 1
    assert audit(grid(330, 3), again.sink()) == (set(), {})


def test_another_member_joins_and_leaves_properly(cluster, queries, others):
    topic = cluster.topic(4)
    query = queries(topic, maxOffsetsPerTrigger=50)
    cluster.produce(topic, 400)
    until(lambda: len(query.sink()) >= 400, query.run)
    other = others(topic)
    until(lambda: other.owned == 2 and len(query.owned) == 2, query.run)
    cluster.produce(topic, 400, start=400)
    until(lambda: len(query.sink()) + len(other.read) >= 800, query.run)
    assert other.read
    other.leave()
    cluster.produce(topic, 400, start=800)
    until(lambda: len(query.sink()) + len(other.read) >= 1200, query.run)
    assert len(query.owned) == 4
    assert audit(grid(1200, 4), query.sink(), other.read) == (set(), {})


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_running_batch_is_finished_before_its_partitions_are_given_up(cluster, queries, assignor):
    topic = cluster.written(100, partitions=2)
    query = queries(topic, assignor=assignor)
    until(lambda: query.running is not None, query.trigger)
    how = {"enable_auto_commit": False, "partition_assignment_strategy": (assignor,)}
    with cluster.consumer("sync", **how) as other:
        other.subscribe([topic])
        until(lambda: query.member._claims.draining, lambda: other.poll(50))
        assert other.assignment() == set()
        assert not query.member._core.settled
        query.finish()
        read: list[tuple[int, int]] = []

        def step():
            read.extend((record.partition, record.offset) for record in flat(other.poll(50)))
            query.run()

        until(lambda: len(other.assignment()) == 1, step)
        cluster.produce(topic, 100, partitions=2, start=100)
        until(lambda: len(read) + len(query.sink()) >= 200, step)
        assert audit(grid(200, 2), query.sink(), read) == (set(), {})


def test_the_commit_log_ends_a_drain_before_spark_asks_again(cluster, queries, others):
    topic = cluster.written(20, partitions=2)
    query = queries(topic)
    until(lambda: query.running is not None, query.trigger)
    other = others(topic)
    until(lambda: query.member._claims.draining, rest)
    query.finish()  # and Spark does not call: its trigger interval is long
    until(lambda: other.owned == 1, rest)
    cluster.produce(topic, 20, partitions=2, start=20)
    until(lambda: len(query.sink()) + len(other.read) == 40, query.run)
    assert audit(grid(40, 2), query.sink(), other.read) == (set(), {})


def test_a_batch_that_the_commit_log_knows_is_committed_at_the_end(cluster, queries):
    topic = cluster.written(10, partitions=1)
    first = queries(topic)
    until(lambda: first.running is not None, first.trigger)
    first.finish()
    second = queries(topic, "second")
    second.trigger()
    first.stop()  # it knows from the commit log that the batch is done
    cluster.produce(topic, 5, partitions=1, start=10)
    until(lambda: len(second.sink()) == 5, second.run)
    assert audit(grid(15, 1), first.sink(), second.sink()) == (set(), {})


def test_the_word_of_another_batch_commits_nothing(cluster, queries):
    topic = cluster.written(20, partitions=1)
    query = queries(topic, maxOffsetsPerTrigger=10)
    until(lambda: query.running is not None, query.trigger)
    query.finish()
    assert notify(query.offset(0))
    until(lambda: committed(cluster, topic, 1) == {0: 10}, rest)
    assert query.trigger()
    assert notify(query.offset(0))
    query.stop()
    assert committed(cluster, topic, 1) == {0: 10}


def test_past_the_drain_deadline_a_batch_is_an_orphan_and_only_it_is_read_again(cluster, queries, others):
    topic = cluster.written(100, partitions=2)
    query = queries(topic, drain_timeout="300ms")
    until(lambda: query.running is not None, query.trigger)
    other = others(topic)
    until(lambda: len(other.read) == 50, rest)
    lost = other.read[0][0]
    query.finish()
    until(lambda: committed(cluster, topic, 2)[1 - lost] == 50, query.run)
    missing, twice = audit(grid(100, 2), query.sink(), other.read)
    assert missing == set()
    assert twice == {(lost, offset): 2 for offset in range(50)}


def test_a_crash_with_a_batch_under_way_replays_exactly_that_batch(cluster, queries):
    topic = cluster.written(100, partitions=2)
    query = queries(topic, maxOffsetsPerTrigger=40, group_instance_id="static")
    until(lambda: query.running is not None, query.trigger)
    first = query.claims(0)
    query.finish()
    assert query.trigger()
    before = query.sink()
    query.crash()
    cluster.produce(topic, 100, partitions=2, start=100)
    again = queries(topic, maxOffsetsPerTrigger=40, group_instance_id="static")
    assert again.recover()
    assert again.sink() == before
    assert again.claims(0) == first
    again.finish()
    until(lambda: len(again.sink()) >= 200, again.run)
    assert audit(grid(200, 2), again.sink()) == (set(), {})


def test_a_crash_before_the_commit_reads_nothing_twice(cluster, queries):
    topic = cluster.written(100, partitions=1)
    query = queries(topic, group_instance_id="static", maxOffsetsPerTrigger=60)
    until(lambda: query.running is not None, query.trigger)
    query.finish()
    query.crash()
    assert committed(cluster, topic, 1)[0] == 0
    again = queries(topic, group_instance_id="static")
    assert not again.recover()
    until(lambda: len(again.sink()) >= 100, again.run)
    assert audit(grid(100, 1), again.sink()) == (set(), {})


def set_back(cluster, topic, offset):
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset)})


@pytest.mark.parametrize(("offset", "resume", "read_again"), [(10, "max", 90), (60, "max", 40), (60, "checkpoint", 0)])
def test_a_group_that_was_set_back_is_obeyed(cluster, queries, offset, resume, read_again):
    topic = cluster.written(100, partitions=1)
    query = queries(topic, maxOffsetsPerTrigger=50)
    query.member.prepare_available_now()
    assert query.run() == 2
    query.stop()
    set_back(cluster, topic, offset)
    again = queries(topic, resume=resume)
    again.member.prepare_available_now()
    again.run()
    missing, twice = audit(grid(100, 1), again.sink())
    assert (missing, len(twice)) == (set(), read_again)


def test_a_member_without_partitions_is_idle_and_takes_over(cluster, queries, others):
    topic = cluster.topic(1)
    other = others(topic)
    until(lambda: other.owned == 1, rest)
    query = queries(topic)
    assert not query.trigger()
    until(lambda: query.member._core.settled, lambda: query.trigger())
    assert query.owned == []
    cluster.produce(topic, 10, partitions=1)
    until(lambda: len(other.read) == 10, query.run)
    other.leave()
    cluster.produce(topic, 10, partitions=1, start=10)
    until(lambda: len(query.sink()) == 10, query.run)
    assert audit(grid(20, 1), query.sink(), other.read) == (set(), {})


def test_latest_is_recorded_before_anything_is_read(cluster, queries):
    topic = cluster.written(10, partitions=1)
    query = queries(topic, startingOffsets="latest")
    until(lambda: query.member._core.settled and query.member._core.all_committed, query.trigger)
    query.stop()
    cluster.produce(topic, 5, partitions=1, start=10)
    again = queries(topic, startingOffsets="latest")
    until(lambda: len(again.sink()) >= 5, again.run)
    assert again.sink() == [(0, offset) for offset in range(10, 15)]


@pytest.mark.parametrize("group", [True, False])
def test_a_query_that_reads_alone_takes_all_partitions_and_new_ones(cluster, queries, group):
    topic = cluster.written(20, partitions=2)
    how = {"mode": "assign", "startingOffsets": "latest", "kafka_metadata_max_age_ms": 200, "subscribe": None}
    how |= {"subscribePattern": f"{topic}.*"} | ({} if group else {"groupId": None})
    query = queries(topic, **how)
    until(lambda: len(query.member._claims.positions()) == 2, query.run)
    query.run()  # without a group, the query's first offset says where "latest" was
    query.stop()
    cluster.produce(topic, 10, partitions=2, start=20)
    again = queries(topic, **how)
    until(lambda: len(again.sink()) == 10, again.run)
    late = cluster.topic(1, f"{topic}-late")
    cluster.produce(late, 7, partitions=1)
    until(lambda: len(again.sink()) == 17, again.run)
    assert TopicPartition(late, 0) in again.owned


def test_a_query_that_cannot_join_says_so(cluster, queries):
    query = queries("no-such-topic-here", join_timeout="1s", mode="assign")
    query.member._targets = {}
    with pytest.raises(KafkaTimeoutError, match=r"join\.timeout"):
        query.trigger()


def test_a_replay_can_be_trimmed_to_what_is_owned_and_not_committed(cluster, queries, others):
    topic = cluster.written(100, partitions=2)
    query = queries(topic)
    until(lambda: query.running is not None, query.trigger)
    query.stop()  # in the middle of the batch: it is not committed
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(30)})
    again = queries(topic, replay="trim")
    assert again.recover()
    assert sorted(again.sink()) == [(0, offset) for offset in range(30, 50)] + [(1, offset) for offset in range(50)]
    again.finish()
    again.run()
    assert again.member._core.all_committed
    again.stop()
    assert committed(cluster, topic, 2) == {0: 50, 1: 50}
