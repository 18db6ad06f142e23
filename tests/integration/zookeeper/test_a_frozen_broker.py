"""Operators' commands in a cluster with a broker that is frozen and still registered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.admin.admin import Admin
from muster.client.core.admin.admin import NewTopic
from muster.model import TopicPartition
from tests.support.muster_cluster import Cluster
from tests.support.zookeepers import ZooKeeperServer

pytestmark = pytest.mark.slow(40)

NAMES = [f"name-{number}" for number in range(12)]
LIMIT_MS = 4_000


@pytest.fixture
def cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    """Sessions outlast the test: the broker stays registered."""
    settings = {"zookeeper.session.timeout.ms": 300_000}
    with Cluster(tmp_path, zookeeper.chroot(), settings).running() as made:
        yield made


def run(cluster: Cluster, *words: str) -> tuple[int, str, str, float]:
    """A command's exit code, its output, its errors and the seconds that it took."""
    command = [sys.executable, "-m", "muster", *words, "--bootstrap", cluster.bootstrap, "--timeout-ms", str(LIMIT_MS)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def test_commands_show_what_the_others_have_and_name_it(cluster: Cluster) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1)])
        for name in NAMES:
            admin.fence_producers([name])
            admin.alter_consumer_group_offsets(name, {TopicPartition("t", 0): 0})
        ids = {each.transactional_id: each.coordinator_id for each in admin.list_transactions()}
        groups = {name: found.coordinator.node_id for name, found in admin.describe_consumer_groups(NAMES).items()}
    frozen = next(number for number in cluster.brokers if number in groups.values() and number in ids.values())
    os.kill(cluster.brokers[frozen].pid, signal.SIGSTOP)
    try:
        listed = run(cluster, "transactions", "list")
        lag = run(cluster, "lag")
    finally:
        os.kill(cluster.brokers[frozen].pid, signal.SIGCONT)
    for (code, out, err, took), coordinators in ((listed, ids), (lag, groups)):
        shown = {line.split()[0] for line in out.splitlines()[1:]}
        assert shown == {name for name, number in coordinators.items() if number != frozen}
        assert (code, f"broker {frozen} (127.0.0.1:" in err) == (1, True), err
        assert took < 60
    code, out, err, _ = run(cluster, "transactions", "list")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(ids)
