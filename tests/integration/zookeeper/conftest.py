"""Fixtures of the tests with a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.brokers import BrokerProcess
from tests.support.watcher_cluster import Cluster, watched_cluster
from tests.support.zookeepers import ZooKeeperServer, operator


@pytest.fixture
async def cluster(zookeeper: ZooKeeperServer, shared_muster: BrokerProcess) -> AsyncIterator[Cluster]:
    """muster's broker, registered in a ZooKeeper chroot that only this test uses."""
    async with watched_cluster(zookeeper, shared_muster) as found:
        yield found


@pytest.fixture
def znodes(cluster: Any) -> Iterator[KazooClient]:
    """The znodes of a test's cluster, whichever kind of cluster the test has."""
    with operator(cluster.address) as client:
        yield client
