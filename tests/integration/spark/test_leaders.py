"""Several real brokers: a partition whose only broker is down, leaders that move during a query."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from muster.client.plain.cluster import disconnect
from muster.model import TopicPartition
from muster.spark.offsets import Claim
from tests.support.faces import PATIENCE_S, Cluster, rest, until, until_known
from tests.support.peers import KafkaCluster, run_kafka_class
from tests.support.queries import Query, audit, grid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def create(cluster: Cluster, replicas: list[list[int]]) -> str:
    """A topic whose partitions are on these brokers."""
    topic = f"on-{cluster.group}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, len(replicas), replica_assignment=replicas, config={"retention.ms": "-1"})
    for future in admin.create_topics([new]).values():
        future.result(PATIENCE_S)
    until_known(cluster.bootstrap, topic, len(replicas))
    return topic


def move(cluster: Cluster, topic: str, replicas: list[list[int]], folder: Path) -> None:
    """Copy the partitions to these brokers, which alone lead and keep them."""
    where = [{"topic": topic, "partition": number, "replicas": ids} for number, ids in enumerate(replicas)]
    wish = folder / "wish.json"
    wish.write_text(json.dumps({"version": 1, "partitions": where}))
    done = run_kafka_class(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(wish), "--execute"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def moved() -> bool:
        found = admin.list_topics(topic, PATIENCE_S).topics[topic].partitions
        return (
            [found[number].replicas for number in range(len(replicas))]
            == replicas
            == [[found[number].leader] for number in range(len(replicas))]
        )

    until(moved, rest)


def test_leaders_that_move_in_a_batch_and_between_batches_cost_waiting_only(kafka_cluster, tmp_path, monkeypatch):
    cluster = Cluster(kafka_cluster.bootstrap)
    topic = create(cluster, [[1], [2], [3]])
    cluster.produce(topic, 60, partitions=3)
    query = Query(cluster, topic, tmp_path / "q", maxOffsetsPerTrigger=30)
    try:
        until(lambda: len(query.sink()) == 60, query.run)
        cluster.produce(topic, 60, partitions=3, start=60)
        read, moves = query.read, iter([True])

        def read_while_they_move(partition: TopicPartition, claim: Claim, topic_id: bytes) -> list[int]:
            if next(moves, False):
                move(cluster, topic, [[2], [3], [1]], tmp_path)
            return read(partition, claim, topic_id)

        monkeypatch.setattr(query, "read", read_while_they_move)
        until(lambda: len(query.sink()) == 120, query.run)
        assert not next(moves, False)
        move(cluster, topic, [[3], [1], [2]], tmp_path)
        cluster.produce(topic, 60, partitions=3, start=120)
        until(lambda: len(query.sink()) == 180, query.run)
        assert audit(grid(180, 3), query.sink()) == (set(), {})
    finally:
        query.stop()
        disconnect()


def test_a_partition_without_a_leader_holds_up_itself_only_and_is_read_on(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "muster.spark")
    # A live broker may take longer to answer on a busy machine, and would be reported as held up, too.
    monkeypatch.setattr("muster.spark.source.bounds.HELD_UP_WARNING_MS", 4_000)
    monkeypatch.setattr("muster.spark.source.bounds.HELD_UP_MS", 2_000)

    def reported(what):
        """How often this is logged about the partition that only the killed broker has."""
        said = [record.getMessage() for record in caplog.records if record.name == "muster.spark"]
        return sum(what in text and f"{topic}-1" in text for text in said)

    with KafkaCluster(tmp_path / "cluster", size=2) as brokers:
        cluster = Cluster(brokers.bootstrap)
        topic = create(cluster, [[1], [2]])
        cluster.produce(topic, 40, partitions=2)
        patient = {"kafkaConsumer_pollTimeoutMs": 600_000}
        query = Query(cluster, topic, tmp_path / "q", kafka_metadata_max_age_ms=500, maxOffsetsPerTrigger=30, **patient)
        try:
            until(lambda: len(query.sink()) == 40, query.run)
            cluster.produce(topic, 40, partitions=2, start=40)
            before = reported("Its records wait")
            brokers.node(2).kill()
            until(lambda: reported("Its records wait") == before + 1, query.run)
            until(lambda: sum(partition == 0 for partition, _ in query.sink()) == 40, query.run)
            for _ in range(5):
                query.run()
            assert reported("Its records wait") == before + 1
            assert sum(partition == 1 for partition, _ in query.sink()) <= 40
            brokers.node(2).start()
            until(lambda: len(query.sink()) == 80, query.run)
            assert reported("can be read again") == reported("Its records wait")

            # And in the middle of a batch: its task waits for the broker.
            cluster.produce(topic, 20, partitions=2, start=80)
            read, kills = query.read, iter([True])

            def read_while_it_dies(partition: TopicPartition, claim: Claim, topic_id: bytes) -> list[int]:
                if partition.partition == 1 and next(kills, False):
                    brokers.node(2).kill()
                    threading.Timer(5, brokers.node(2).start).start()
                return read(partition, claim, topic_id)

            monkeypatch.setattr(query, "read", read_while_it_dies)
            until(lambda: len(query.sink()) == 100, query.run)
            assert not next(kills, False)
            assert audit(grid(100, 2), query.sink()) == (set(), {})
        finally:
            query.stop()
            disconnect()
