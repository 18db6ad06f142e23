"""What the tests of brokers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.broker.cluster import follower, slot_coordination
from tests.support.faulty_disk import FaultyDisk
from tests.support.sim_cluster import SimCluster


@pytest.fixture
def disk() -> FaultyDisk:
    """A disk that can be made to fail."""
    return FaultyDisk()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimCluster:
    """A ZooKeeper in memory, and brokers that do not wait between two attempts."""
    monkeypatch.setattr(follower, "PAUSE_S", 0.001)
    monkeypatch.setattr(slot_coordination, "PAUSE_S", 0.001)
    return SimCluster(tmp_path)
