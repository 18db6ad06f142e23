"""What the tests of the Spark source share: a world in virtual time."""

from __future__ import annotations

import pytest

from tests.support.spark_world import SparkWorld


@pytest.fixture
def worlds(tmp_path, monkeypatch):
    """Creates worlds, and ends their queries however the test ends."""
    made: list[SparkWorld] = []

    def make(partitions=1, nodes=1, versions=None, records=0, **topics):
        folder = tmp_path / f"world{len(made)}"
        made.append(SparkWorld(folder, monkeypatch, topics or {"t": partitions}, nodes, versions or {}))
        made[-1].produce(records, partitions=range(partitions if records else 0))
        return made[-1]

    yield make
    for world in made:
        world.close()
