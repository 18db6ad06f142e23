"""The real peers that other tests rely on: started, shared, killed and brought back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.peers import KafkaBroker, run_kafka_class, shared_kafka

pytestmark = pytest.mark.slow

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"


def topics(broker: KafkaBroker) -> set[str]:
    listed = run_kafka_class(TOPIC_COMMAND, "--bootstrap-server", broker.bootstrap, "--list")
    assert listed.returncode == 0, listed.stderr
    return set(listed.stdout.split())


def create(broker: KafkaBroker, topic: str) -> None:
    command = ["--bootstrap-server", broker.bootstrap, "--create", "--topic", topic, "--partitions", "2"]
    created = run_kafka_class(TOPIC_COMMAND, *command)
    assert created.returncode == 0, created.stdout + created.stderr


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
        assert "kept" in topics(broker)
    assert broker.pid is None
