"""What the tests of the Spark source share: clusters to read from, and queries that are stopped with their test."""

from __future__ import annotations

import pytest

from muster.client.plain.cluster import disconnect
from tests.support.queries import Query


@pytest.fixture
def queries(cluster, tmp_path):
    """Starts queries, and stops them at the end however the test ends."""
    started = []

    def start(topic, name="q", **options):
        query = Query(cluster, topic, tmp_path / name, **options)
        started.append(query)
        return query

    yield start
    for query in started:
        query.stop()
    disconnect()
