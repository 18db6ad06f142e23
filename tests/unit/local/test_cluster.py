"""The properties of a cluster on this machine, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.local.cluster import LocalCluster
from muster.log.store import LogStore


def test_each_run_in_a_folder_has_users_of_its_own(tmp_path: Path):
    """The sequence: a cluster is killed, and another is started in its folder before the keepers of the first have
    checked. They must not mistake the second's lock for that of their own starter, or the first's servers would keep
    running."""
    first, second = (LocalCluster(tmp_path, brokers=2, zookeeper_servers=3) for _ in range(2))
    assert len({server.users for server in first.servers}) == 1
    assert len({server.users for server in (*first.servers, *second.servers)}) == 2


def test_ports_follow_the_first(tmp_path: Path):
    cluster = LocalCluster(tmp_path, brokers=2, zookeeper_servers=3, port_base=9092)
    assert cluster.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    assert cluster.zookeeper == "127.0.0.1:9094,127.0.0.1:9095,127.0.0.1:9096"


def test_a_folder_has_one_cluster_at_a_time(tmp_path: Path):
    with LocalCluster(tmp_path)._alone(), pytest.raises(ConfigError, match=f"another cluster runs in {tmp_path}"):
        LocalCluster(tmp_path).__enter__()


def test_a_broker_that_did_not_end_properly_was_killed(tmp_path: Path):
    broker = LocalCluster(tmp_path).brokers[1]
    found = [broker.was_killed]
    store = LogStore.open(broker.data_dir, now=0)
    found.append(broker.was_killed)
    store.close()
    found.append(broker.was_killed)
    assert found == [False, True, False]
