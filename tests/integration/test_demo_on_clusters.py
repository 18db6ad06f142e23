"""On existing clusters, one of Apache Kafka and a Spark standalone cluster with two workers: the main job, and an
example by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.client.admin.admin import Admin
from muster.client.consumer.consumer import Consumer
from muster.client.core.admin.admin import NewTopic
from muster.client.producer.producer import Producer
from muster.model import TopicPartition
from tests.support.alive import wait_until_none_of
from tests.support.peers import KafkaBroker, find_java, require
from tests.support.spark_cluster import SparkCluster

LIMIT_S = 1800  # only in case of a hang


pytestmark = pytest.mark.slow(250)

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    require("Java 17 or newer", find_java(), "Spark runs on it")
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster") as cluster:
        yield cluster


@pytest.mark.timeout(LIMIT_S)
def test_an_example_runs_by_spark_submit(tmp_path: Path, kafka_broker: KafkaBroker, cluster: SparkCluster) -> None:
    given, large = (f"submitted-{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "large-orders"))
    text = (ROOT / "examples" / "pipelines" / "topic_to_topic.py").read_text()
    script = tmp_path / "topic_to_topic.py"
    for old, new in (("localhost:9092", kafka_broker.bootstrap), ("large-orders", large), ('"orders"', f'"{given}"')):
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    with Admin(bootstrap_servers=kafka_broker.bootstrap) as admin:
        admin.create_topics([NewTopic(given, 2, 1), NewTopic(large, 2, 1)])
    with Producer(bootstrap_servers=kafka_broker.bootstrap) as producer:
        for number, amount in enumerate((120, 30, 100)):
            producer.send(given, value=json.dumps({"order_id": f"o{number}", "amount": amount}).encode())
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", cluster.url, str(script)]
    done = subprocess.run(
        submit, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with Consumer(bootstrap_servers=kafka_broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(large, number) for number in range(2)])
        found: list[str] = []
        while len(found) < 2:
            batches = consumer.poll(timeout_ms=LIMIT_S * 1_000)
            found += [json.loads(record.value or b"")["order_id"] for batch in batches.values() for record in batch]
    assert sorted(found) == ["o0", "o2"]


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.platform != "linux", reason="a task finds its executor in /proc")
def test_the_demo_runs_on_both(tmp_path: Path, kafka_broker: KafkaBroker, cluster: SparkCluster) -> None:
    """The executor that a task kills is a JVM of the cluster, which starts another."""
    command = [sys.executable, "-m", "muster", "demo", "--quick", "--out", str(tmp_path / "out")]
    command += ["--bootstrap", kafka_broker.bootstrap, "--master", cluster.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=ENVIRONMENT)
    exits = [path for path in cluster.folder.glob("worker-*.log") if "exitStatus 137" in path.read_text()]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["flights"] == figures["sent"]["count"] == figures["shared_group"]["distinct"] == 30_000
    assert figures["table"] == figures["topic"] == {"count": 1_104, "wrong": 0, "repeated": 0}
    assert figures["joined"] == {"count": 29_837, "wrong": 0, "repeated": 0}
    assert figures["outages"] == ["the pipeline's driver killed and started again"]
    assert {each["step"] for each in figures["causes_found"] if each["found"]} == {"join", "kill", "driver", "leave"}
    assert exits, "no executor was killed"
    wait_until_none_of(tmp_path)
