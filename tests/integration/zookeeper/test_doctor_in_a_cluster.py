"""The doctor in a cluster that stores its groups in ZooKeeper: no log has them, so the brokers' events are read."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.history.doctor import Selection, read_cluster, read_folder
from muster.history.model import Cause
from muster.history.report import Report
from muster.history.sources.live import ReaderConfig
from muster.spark import history
from tests.support.muster_cluster import LONG, Cluster, eventually
from tests.support.outsiders import Member
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow(70)

GROUP, TOPIC = "billing", "flights"


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper.chroot(), LONG).running() as made:
        yield made


class WatchingError(Exception):
    """The doctor would watch the groups: there are no events about them."""


@pytest.fixture
def begin(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[str], Member]]:
    """Starts a member of the group; none outlives the test."""
    members: list[Member] = []

    def begun(client: str) -> Member:
        members.append(Member(client, cluster.bootstrap, GROUP, TOPIC, tmp_path))
        return members[-1]

    yield begun
    for member in members:
        member.destroy()


def look(cluster: Cluster) -> Report:
    config = ReaderConfig(bootstrap_servers=tuple(cluster.bootstrap.split(",")))

    def tell(sentence: str) -> None:
        raise WatchingError(sentence)

    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return read_cluster(admin, config, Selection(), None, tell).report()


def is_reported(cluster: Cluster) -> bool:
    """Whether the first event has been written."""
    try:
        return bool(look(cluster).rebalances)
    except WatchingError:
        return False


def causes(report: Report) -> list[Cause]:
    return [row.cause for row in report.rebalances]


def test_a_crash_and_a_freeze_are_named_live_and_from_the_folders(
    cluster: Cluster, begin: Callable[[str], Member]
) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 3)])
    clients = ("with-muster", "with-confluent", "with-kafka-python")
    first = begin(clients[0])
    eventually(lambda: is_reported(cluster))

    def reported(*after: Cause) -> bool:
        return tuple(causes(look(cluster))[-len(after) :]) == after

    frozen = begin(clients[1])
    eventually(lambda: reported(Cause.STARTED, Cause.JOINED))
    killed = begin(clients[2])
    eventually(lambda: reported(Cause.JOINED, Cause.JOINED))
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition in range(3):
            producer.send(TOPIC, value=b"1", partition=partition)
    eventually(lambda: len(look(cluster).lag) == 3)
    killed.crash()
    eventually(lambda: reported(Cause.SESSION_EXPIRED))
    frozen.process.send_signal(signal.SIGSTOP)
    eventually(lambda: reported(Cause.SESSION_EXPIRED, Cause.SESSION_EXPIRED))
    frozen.process.send_signal(signal.SIGCONT)
    eventually(lambda: reported(Cause.SESSION_EXPIRED, Cause.SESSION_EXPIRED, Cause.JOINED))
    live = look(cluster)
    for member in (frozen, first):
        member.leave()
    crash, freeze = [row for row in live.rebalances if row.cause is Cause.SESSION_EXPIRED]
    assert [(row.members_before, row.members_after) for row in (crash, freeze)] == [(3, 2), (2, 1)]
    assert [[one.client_id for one in row.left] for row in (crash, freeze)] == [[clients[2]], [clients[1]]]
    assert {(row.source, row.confidence, row.duration_is) for row in (crash, freeze)} == {("events", 1.0, "exact")}
    (finding,) = [each for each in live.findings if each.rule == "session_expired"]
    assert "with-kafka-python" in finding.sentence
    assert "12.0 s" in finding.sentence
    assert {(row.partition, row.committed_offset, row.lag_records, row.is_exact) for row in live.lag} == {
        (partition, 1, 0, True) for partition in range(3)
    }
    for broker in cluster.brokers.values():
        broker.stop()
    filed = read_folder([broker.folder for broker in cluster.brokers.values()], Selection()).report()
    assert [row for row in filed.rebalances if row.at_ms <= live.until_ms] == live.rebalances
    assert causes(filed)[-1] is Cause.LEFT


def test_the_job_writes_the_brokers_events_and_each_row_once(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1)])

    def visit(client_id: str) -> None:
        with Consumer(bootstrap_servers=cluster.bootstrap, group_id=GROUP, client_id=client_id) as member:
            member.subscribe([TOPIC])
            eventually(lambda: member.poll(100) is not None and member.assignment())

    def by_command() -> None:
        """Spark in its own processes continues where the shared session stopped."""
        command = [sys.executable, "-m", "muster", "history", "--bootstrap", cluster.bootstrap, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    out = tmp_path / "history"
    found: list[list[str]] = []
    ways = (lambda: history.follow(spark, cluster.bootstrap, str(out), once=True).awaitTermination(600), by_command)
    for client_id, write in zip(("first", "second"), ways, strict=True):
        visit(client_id)
        visits = len(found) + 1
        eventually(lambda: is_reported(cluster) and causes(look(cluster)) == [Cause.STARTED, Cause.LEFT] * visits)  # noqa: B023
        write()
        rows = ds.dataset(out / "open" / "rebalances", format="parquet").to_table().to_pylist()
        assert {row["source"] for row in rows} == {"events"}
        found.append([row["cause"] for row in sorted(rows, key=lambda row: row["generation"])])
    assert found == [["started", "left"], ["started", "left"] * 2]
