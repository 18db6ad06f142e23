"""What a query does if topics, partitions, offsets or brokers are not as it left them: on muster and on Kafka."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from muster.client.plain.fetch import DataLossError
from muster.errors import ConfigError, KafkaConnectionError, KafkaError
from muster.model import OffsetAndMetadata, TopicPartition
from tests.support.faces import rest, until
from tests.support.growing import until_said
from tests.support.queries import audit, grid

pytestmark = pytest.mark.slow

only_kafka = pytest.mark.parametrize("cluster", ["kafka"], indirect=True)
"""For tests of features that muster's broker does not have."""

SOON = {"kafka_metadata_max_age_ms": 300}


@pytest.fixture
def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def committed(cluster, topic):
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        found = consumer.committed([TopicPartition(topic, 0)])
        return {place.partition: offset and offset.offset for place, offset in found.items()}[0]


def commit(cluster, topic, offset):
    with cluster.consumer("sync", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset)})


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def refuses(query, error, match):
    """The first trigger fails, and with it the query, which Spark then ends."""
    with pytest.raises(error, match=match):
        query.trigger()
    query.stop()


def read_all(query, count):
    until(lambda: len(query.sink()) >= count, query.run)


# --- topics that are created again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("new", [30, 150])
def test_a_topic_created_again_while_the_query_was_stopped(cluster, queries, group, new, caplog):
    topic = cluster.written(100, partitions=1)
    how = {} if group else {"mode": "assign", "groupId": None}
    first = queries(topic, **how)
    read_all(first, 100)
    first.stop()
    cluster.recreate(topic)
    cluster.produce(topic, new, partitions=1)
    for available_now in (False, True):  # and it stays so until somebody decides
        query = queries(topic, **how)
        if available_now:
            query.member.prepare_available_now()
        refuses(query, DataLossError, rf"topic {topic} was deleted and recreated.*failOnDataLoss")
    again = queries(topic, failOnDataLoss="false", **how)
    read_all(again, 100 + new)
    assert sorted(again.sink()[100:]) == sorted(grid(new, 1))
    assert any("was deleted and recreated" in reported for reported in warnings(caplog))
    again.stop()
    assert queries(topic, **how).run() == 0


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_created_again_while_the_query_runs(cluster, queries, fail):
    topic = cluster.written(100, partitions=1)
    query = queries(topic, failOnDataLoss=fail, **SOON)
    read_all(query, 100)
    cluster.recreate(topic)
    cluster.produce(topic, 160, partitions=1)
    if fail == "true":
        with pytest.raises(DataLossError, match="was deleted and recreated"):
            until(lambda: False, query.run)
        return
    until(lambda: set(query.sink()[100:]) >= grid(160, 1), query.run)
    assert query.sink()[:100] == sorted(grid(100, 1))


def test_a_batch_of_the_former_topic_reads_nothing_of_the_new_one(cluster, queries):
    topic = cluster.written(100, partitions=1)
    query = queries(topic)
    read_all(query, 100)
    cluster.produce(topic, 50, partitions=1, start=100)
    until(lambda: query.running is not None, query.trigger)
    query.stop()
    cluster.recreate(topic)
    cluster.produce(topic, 300, partitions=1)
    with pytest.raises(DataLossError, match=r"offsets 100 to 149 are gone with it"):
        queries(topic).recover()


# --- positions that mean nothing --------------------------------------------------------------------------------------


def test_a_commit_beyond_the_end_of_the_log(cluster, queries, caplog):
    topic = cluster.written(30, partitions=1)
    commit(cluster, topic, 100)
    refuses(queries(topic), DataLossError, rf"{topic}-0 ends at offset 30, but reading is at 100")
    query = queries(topic, "other", failOnDataLoss="false")
    query.member.prepare_available_now()
    query.run()
    assert audit(grid(30, 1), query.sink()) == (set(), {})
    assert any("ends at offset 30" in reported for reported in warnings(caplog))
    assert committed(cluster, topic) == 30


@only_kafka
def test_records_that_retention_took_before_the_query_came(cluster, queries, admin):
    topic = cluster.written(100, partitions=1)
    first = queries(topic, maxOffsetsPerTrigger=10)
    until(lambda: first.trigger(), rest)
    first.finish()
    first.trigger()
    first.stop()
    for future in admin.delete_records([Place(topic, 0, 40)]).values():
        future.result(300)
    commit(cluster, topic, 10)
    refuses(queries(topic, "other"), DataLossError, r"offsets 10 to 39 .* are gone: its log begins at 40")
    again = queries(topic, "third", failOnDataLoss="false")
    read_all(again, 60)
    assert again.sink() == [(0, offset) for offset in range(40, 100)]


# --- topics and partitions that are not there -------------------------------------------------------------------------


@pytest.mark.parametrize("group", [True, False])
def test_a_deleted_topic_holds_up_itself_only(cluster, queries, group, monkeypatch, caplog):
    monkeypatch.setattr("muster.spark.source.bounds.HELD_UP_WARNING_MS", 500)
    monkeypatch.setattr("muster.spark.source.bounds.HELD_UP_MS", 300)
    kept, gone = cluster.topic(1), cluster.topic(1)
    for topic in (kept, gone):
        cluster.produce(topic, 50, partitions=1)
    how = {} if group else {"mode": "assign"}
    query = queries(f"{kept},{gone}", **how, **SOON)
    read_all(query, 100)
    cluster.delete(gone)
    cluster.produce(kept, 50, partitions=1, start=50)
    read_all(query, 150)
    until(lambda: any(f"{gone}" in reported and "not exist" in reported for reported in warnings(caplog)), query.run)
    cluster.produce(kept, 50, partitions=1, start=100)
    read_all(query, 200)
    until(lambda: query.member._core.all_committed, query.run)
    assert committed(cluster, kept) == 150


def test_a_missing_topic_is_said_early_and_ends_the_query(cluster, queries, monkeypatch, caplog):
    monkeypatch.setattr("muster.spark.source.query_core.MISSING_TOPIC_MS", 700)
    there = cluster.topic(1)
    query = queries(f"{there},not-to-be-found")
    refuses(query, KafkaError, "topic not-to-be-found does not exist: create it, or remove it")
    assert any("not-to-be-found does not exist" in reported for reported in warnings(caplog))
    query = queries(there, "p", subscribe=None, groupId=None, assign=f'{{"{there}":[0,7]}}')
    refuses(query, ConfigError, f"assign names {there}-7, which does not exist")


def test_a_topic_that_is_created_soon_is_waited_for(cluster, queries):
    query = queries("soon-" + cluster.group, **SOON)
    query.member._run(query.member._begin())
    until(lambda: bool(query.member._core._missing), rest)
    cluster.topic(1, "soon-" + cluster.group)
    cluster.produce("soon-" + cluster.group, 10, partitions=1)
    read_all(query, 10)


def test_no_broker_is_a_sentence(cluster, queries, monkeypatch, caplog):
    monkeypatch.setattr("muster.spark.source.query_core.NO_BROKER_WARNING_MS", 100)

    def attempt(limit_ms):
        query = queries("t", f"within-{limit_ms}", join_timeout=f"{limit_ms}ms", kafka_bootstrap_servers="127.0.0.1:1")
        with pytest.raises(KafkaConnectionError) as refused:
            query.trigger()
        query.stop()
        return str(refused.value)

    assert until_said(r"no broker at 127.0.0.1:1 has answered yet: .*refused", attempt, 700)
    assert any("no broker at 127.0.0.1:1 has answered yet" in reported for reported in warnings(caplog))


# --- where reading begins ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1000, None])
def test_the_first_trigger_reads(cluster, queries, limit):
    topic = cluster.written(20, partitions=2)
    query = queries(topic)
    end = query.member.latest(query.offset(-1), limit)
    assert end["claims"] == {topic: {"0": [0, 10], "1": [0, 10]}}


@only_kafka
@pytest.mark.parametrize("group", [True, False])
def test_a_partition_added_later_is_read_from_its_start(cluster, queries, group):
    topic = cluster.written(10, partitions=1)
    how = {"startingOffsets": None} | ({} if group else {"mode": "assign", "groupId": None})
    query = queries(topic, **how)
    until(lambda: query.member._core.settled, query.run)
    query.run()
    query.stop()
    cluster.grow(topic, 3)
    cluster.produce(topic, 30, partitions=3)
    again = queries(topic, **how)
    read_all(again, 30)
    assert sorted(again.sink()) == sorted((n % 3, n // 3 + (10 if n % 3 == 0 else 0)) for n in range(30))


# --- commits ----------------------------------------------------------------------------------------------------------


def test_commits_that_fail_are_said_and_hold_up_nobody(cluster, queries, caplog, monkeypatch):
    # A query that waited would not finish in time.
    monkeypatch.setattr("muster.spark.source.member.COMMIT_WAIT_MS", 3_600_000)
    topic = cluster.topic(1)
    with cluster.consumer("sync") as member:
        member.subscribe([topic])
        until(lambda: bool(member.assignment()), lambda: member.poll(50))
        # Reading without joining a group that is in use: its coordinator refuses commits of a non-member.
        query = queries(topic, mode="assign", maxOffsetsPerTrigger=1)
        cluster.produce(topic, 30, partitions=1)
        read_all(query, 30)
        (reported,) = [reported for reported in warnings(caplog) if "could not commit offsets" in reported]
        assert "only the checkpoint has" in reported


def test_reading_the_commits_of_all_groups_ends(cluster, queries, caplog):
    topic = cluster.topic(1)
    commit(cluster, topic, 0)
    query = queries("__consumer_offsets", mode="assign")
    idle: list[bool] = []

    def step():  # one batch at a time: other tests of the run commit, too
        if query.trigger():
            query.finish()
        else:
            idle.append(len(query.sink()) > 0)

    until(lambda: any(idle), step)
    assert any("it commits nothing" in reported for reported in warnings(caplog))
