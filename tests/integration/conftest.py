"""Fixtures that several files here share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import BrokerProcess
from tests.support.faces import Cluster
from tests.support.peers import KafkaBroker
from tests.support.same_answers import World, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["muster", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A broker of each kind, shared by the whole run; or the broker whose fixture an indirect parameter names."""
    fixture = {"muster": "shared_muster", "kafka": "kafka_broker"}.get(request.param, request.param)
    return Cluster(request.getfixturevalue(fixture).bootstrap)


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that the tests of this worker share: name topics, groups and queries for the test alone, and restore
    the settings that you change. A task has four attempts. Spark's own events are in the folder
    `spark.eventLog.dir`."""
    from muster.spark import session
    from tests.support.spark_query import QUIET

    events = {"enabled": "true", "dir": str(tmp_path_factory.mktemp("events")), "compress": "false"}
    found = session("muster tests", "local[2,4]", **QUIET, **{f"spark.eventLog.{key}": events[key] for key in events})
    yield found
    found.stop()


@pytest.fixture
def worlds(shared_muster: BrokerProcess, kafka_broker: KafkaBroker) -> Iterator[tuple[World, World]]:
    """muster's broker and Kafka's, each with a topic and names that only this test uses."""
    prefix = f"match-{uuid.uuid4().hex[:8]}"
    ours, theirs = connect(shared_muster.bootstrap, prefix), connect(kafka_broker.bootstrap, prefix)
    yield ours, theirs
    ours.client.close()
    theirs.client.close()
