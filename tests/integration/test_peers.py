"""The real peers on which other tests rely: started, shared, killed and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faces import rest, until, until_known
from tests.support.peers import KafkaBroker, KafkaCluster, run_kafka_class, shared_kafka, shared_kafka_cluster

pytestmark = pytest.mark.slow

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"


def topics(broker: KafkaBroker | KafkaCluster) -> set[str]:
    listed = run_kafka_class(TOPIC_COMMAND, "--bootstrap-server", broker.bootstrap, "--list")
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.split())


def create(broker: KafkaBroker | KafkaCluster, topic: str) -> None:
    """Create a topic that is then known to every running broker."""
    command = ["--bootstrap-server", broker.bootstrap, "--create", "--topic", topic, "--partitions", "2"]
    created = run_kafka_class(TOPIC_COMMAND, *command)
    assert created.returncode == 0, created.stdout + created.stderr
    until_known(broker.bootstrap, topic, 2)


def test_the_run_shares_one_kafka(kafka_broker: KafkaBroker, run_folder: Path) -> None:
    create(kafka_broker, "peers-shared")
    with shared_kafka(run_folder / "kafka") as same:
        assert (same.port, same.pid) == (kafka_broker.port, kafka_broker.pid)
    assert kafka_broker.pid is not None
    assert "peers-shared" in topics(kafka_broker)


def test_a_killed_kafka_comes_back_on_its_data_and_ends_with_its_user(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", {"num.partitions": "3"}) as broker:
        create(broker, "kept")
        first = broker.pid
        broker.kill()
        assert broker.pid is None
        broker.start()
        assert broker.pid != first
        until(lambda: "kept" in topics(broker), rest)
    assert broker.pid is None


def test_the_run_shares_one_cluster_of_three(kafka_cluster: KafkaCluster, run_folder: Path) -> None:
    create(kafka_cluster, "peers-cluster")
    with shared_kafka_cluster(run_folder / "kafka-cluster") as same:
        assert same.bootstrap == kafka_cluster.bootstrap
    # Only this topic: describing all fails if another test deletes one at that moment.
    where = ["--bootstrap-server", kafka_cluster.bootstrap, "--topic", "peers-cluster"]
    described = run_kafka_class(TOPIC_COMMAND, *where, "--describe")
    assert "ReplicationFactor: 3" in described.stdout


def test_a_node_of_a_cluster_is_killed_and_comes_back(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "cluster", size=2) as cluster:
        create(cluster, "kept")
        cluster.node(2).kill()
        assert cluster.node(1).pid is not None
        cluster.node(2).start()
        until(lambda: "kept" in topics(cluster.node(2)), rest)
    assert cluster.node(1).pid is None
