"""Everything that reports the lag of a group agrees: all of them use one cluster, and Kafka's own tool."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as OutsideProducer

from muster import Admin, Consumer
from muster.client.config import ClientConfig
from muster.client.core.admin.admin import NewTopic
from muster.client.plain.cluster import disconnect
from muster.client.plain.fetch import FetchSettings
from muster.history.lag.groups import families
from muster.history.lag.rows import Committed, ExpiryState
from muster.history.model import GroupKind, Lag, Limits
from muster.history.rows import from_table
from muster.history.sources.cluster_lag import LagWatch
from muster.history.sources.live import ReaderConfig
from muster.history.tables import LAG
from muster.metrics.families import Distribution
from muster.model import OffsetAndMetadata, TopicPartition
from muster.spark.history import lags
from muster.spark.history.buckets import GroupStatus
from muster.spark.progress.reports import report
from tests.support.faces import PATIENCE_S, Cluster
from tests.support.peers import run_kafka_class
from tests.support.queries import Query

pytestmark = pytest.mark.slow

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

Reported = dict[tuple[str, int], int | None]
"""The lag of each listed partition; None if it is listed without one."""


def command(bootstrap: str, *words: str) -> Any:
    """The output of a command with --json."""
    done = subprocess.run(
        [sys.executable, "-m", "muster", *words, "--bootstrap", bootstrap, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def by_kafkas_tool(bootstrap: str, group: str) -> Reported:
    patient = ["--timeout", str(int(PATIENCE_S * 1000))]  # its default is 5 s
    done = run_kafka_class(TOOL, "--bootstrap-server", bootstrap, "--describe", "--group", group, *patient)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(group)]
    return {(row[1], int(row[2])): None if row[5] == "-" else int(row[5]) for row in rows}


def by_groups_describe(bootstrap: str, group: str) -> Reported:
    rows = command(bootstrap, "groups", "describe", group)[group]["offsets"]
    return {(row["topic"], row["partition"]): row["lag"] for row in rows}


def by_muster_lag(bootstrap: str, group: str) -> Reported:
    (found,) = command(bootstrap, "lag", "--group", group)["groups"]
    return {(row["topic"], row["partition"]): row["lag"] for row in found["partitions"]}


def by_metrics(bootstrap: str, group: str) -> Reported:
    """Only partitions with a lag are listed."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        pages = {family.name: family for family in families(LagWatch(admin, [group]).poll())}
    return {
        (labels["topic"], int(labels["partition"])): int(value)
        for labels, value in pages["kafka_consumergroup_lag"].samples
        if not isinstance(value, Distribution)
    }


def by_the_doctor(bootstrap: str, group: str) -> Reported:
    rows = command(bootstrap, "doctor", "--group", group, "--engine", "small")["lag"]
    return {(row["topic"], row["partition"]): row["lag_records"] for row in rows}


def by_spark_s_tasks(bootstrap: str, group: str) -> Reported:
    with Admin(bootstrap_servers=bootstrap) as admin:
        found = admin.list_consumer_group_offsets(group)
    committed = {
        (place.topic, place.partition): Committed(at.offset, 0)
        for place, at in found.items()
        if isinstance(at, OffsetAndMetadata)
    }
    settings = FetchSettings(ReaderConfig(bootstrap_servers=(bootstrap,)).narrowed(ClientConfig))
    stands = pickle.dumps([GroupStatus(group, committed, ExpiryState(), GroupKind.CLASSIC)])
    batch = pa.RecordBatch.from_pydict({"data": [stands]})
    reported = lags.count(settings, 400)(lags.behind(settings, Limits(), 5, None)(iter([batch])))
    rows = from_table(Lag, pa.Table.from_batches(reported, LAG))
    disconnect()
    return {(row.topic, row.partition): row.lag_records for row in rows}


WAYS: Mapping[str, Callable[[str, str], Reported]] = {
    "Kafka's tool": by_kafkas_tool,
    "muster groups describe": by_groups_describe,
    "muster lag": by_muster_lag,
    "its metrics": by_metrics,
    "muster doctor": by_the_doctor,
    "the history in Spark": by_spark_s_tasks,
}
NAMES_ALL = ("Kafka's tool", "muster groups describe", "muster lag")
"""These list partitions without a lag too."""


def fill(cluster: Cluster, topic: str, counts: Mapping[int, int]) -> None:
    producer = OutsideProducer({"bootstrap.servers": cluster.bootstrap})
    for partition, count in counts.items():
        for number in range(count):
            producer.produce(topic, b"%d" % number, key=b"same", partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def leave_a_marker(cluster: Cluster, topic: str, partition: int) -> None:
    """Write two records in a transaction: its marker takes an offset, too."""
    producer = OutsideProducer({"bootstrap.servers": cluster.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for _ in range(2):
        producer.produce(topic, b"value", partition=partition)
    producer.commit_transaction(PATIENCE_S)


def member_of(cluster: Cluster, *topics: str) -> Iterator[Consumer]:
    settings = {"bootstrap_servers": cluster.bootstrap, "group_id": cluster.group, "enable_auto_commit": False}
    with Consumer(
        settings, auto_offset_reset="latest", metadata_max_age_ms=1_000, allow_auto_create_topics=False
    ) as consumer:
        consumer.subscribe(topics)
        while {place.topic for place in consumer.assignment()} != set(topics):
            consumer.poll(100)
        yield consumer


def test_all_tell_the_same_lag(request: pytest.FixtureRequest, cluster: Cluster) -> None:
    topic, compacted, deleted = cluster.topic(6), f"compacted-{uuid.uuid4().hex[:8]}", cluster.topic(1)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(compacted, num_partitions=1, configs={"cleanup.policy": "compact"})])
    fill(cluster, topic, {0: 8, 1: 8, 2: 8, 3: 8, 4: 8})
    fill(cluster, compacted, {0: 9})
    fill(cluster, deleted, {0: 3})
    markers = 0
    if "kafka" in request.node.name:  # muster has no transactions
        leave_a_marker(cluster, topic, 5)
        markers = 3
    expected: Reported = {
        (topic, 0): 5,
        (topic, 1): None,  # owned, and nothing is committed
        (topic, 2): 6,  # the log begins at 5
        (topic, 3): -4,  # committed beyond the end
        (topic, 4): 0,
        (topic, 5): markers,
        (compacted, 0): 7,
    }
    for consumer in member_of(cluster, topic, compacted, deleted):
        offsets = {(topic, 0): 3, (topic, 2): 2, (topic, 3): 12, (topic, 4): 8, (topic, 5): 0, (compacted, 0): 2}
        consumer.commit({TopicPartition(*name): at for name, at in {**offsets, (deleted, 0): 1}.items()})
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_records({TopicPartition(topic, 2): 5})
        cluster.delete(deleted)
        while any(place.topic == deleted for place in consumer.assignment()):
            consumer.poll(100)
        reported = {way: ask(cluster.bootstrap, cluster.group) for way, ask in WAYS.items()}
    lag = {name: behind for name, behind in expected.items() if behind is not None}
    for way, found in reported.items():
        of_the_deleted = found.pop((deleted, 0), None)  # a group's offsets are deleted with their topic, a moment later
        assert of_the_deleted is None, way
        assert found == (expected if way in NAMES_ALL else lag), way


def test_a_spark_query_tells_the_lag_of_what_it_has_committed(cluster: Cluster, tmp_path: Any) -> None:
    topic = cluster.topic(2)
    fill(cluster, topic, {0: 8, 1: 3})
    query = Query(cluster, topic, tmp_path, maxOffsetsPerTrigger=5)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not query.trigger():
            assert time.monotonic() < deadline
        end = query.offset(0)
        query.finish()
        query.member.finished(end)
        reported = report(query.member.unread(), {})
        assert reported["totalLag"] == 11 - 5
        found = {(topic, int(number)): behind for number, behind in reported["lag"][topic].items()}
        for way in ("Kafka's tool", "muster lag"):
            assert WAYS[way](cluster.bootstrap, cluster.group) == found, way
    finally:
        query.stop()
        disconnect()
