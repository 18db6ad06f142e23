"""A partition whose only broker is away, on several real brokers."""

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from muster.client.plain.cluster import disconnect
from muster.model import TopicPartition
from muster.spark.offsets import Claim
from tests.support.faces import PATIENCE_S, Cluster, until, until_known
from tests.support.peers import KafkaCluster
from tests.support.queries import Query, audit, grid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_partition_without_a_leader_holds_up_itself_only_and_is_read_on(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "muster.spark")
    # Longer than a broker that lives takes to answer on a busy machine: it would be told of as held up.
    monkeypatch.setattr("muster.spark.bounds.HELD_UP_WARNING_MS", 4_000)
    monkeypatch.setattr("muster.spark.bounds.HELD_UP_MS", 2_000)

    def told(what):
        return sum(what in record.getMessage() for record in caplog.records if record.name == "muster.spark")

    with KafkaCluster(tmp_path / "cluster", size=2) as brokers:
        cluster = Cluster(brokers.bootstrap)
        topic = "one-replica-each"
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        new = NewTopic(topic, 2, replica_assignment=[[1], [2]], config={"retention.ms": "-1"})
        for future in admin.create_topics([new]).values():
            future.result(PATIENCE_S)
        until_known(brokers.bootstrap, topic, 2)
        cluster.produce(topic, 40, partitions=2)
        query = Query(cluster, topic, tmp_path / "q", kafka_metadata_max_age_ms=500, maxOffsetsPerTrigger=30)
        try:
            until(lambda: len(query.sink()) == 40, query.run)
            cluster.produce(topic, 40, partitions=2, start=40)
            before = told("What it holds waits")
            brokers.node(2).kill()
            until(lambda: told("What it holds waits") == before + 1, query.run)
            until(lambda: sum(partition == 0 for partition, _ in query.sink()) == 40, query.run)
            for _ in range(5):
                query.run()
            assert told("What it holds waits") == before + 1
            assert sum(partition == 1 for partition, _ in query.sink()) <= 40
            brokers.node(2).start()
            until(lambda: len(query.sink()) == 80, query.run)
            assert told("can be read again") == told("What it holds waits")

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
