"""The main job on clusters that exist: one of Apache Kafka, and a Spark standalone cluster with two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.alive import processes_of
from tests.support.peers import KafkaBroker, find_java, require
from tests.support.spark_cluster import SparkCluster

LIMIT_S = 1800  # against hanging only


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.platform != "linux", reason="a task finds its executor in /proc")
def test_the_demo_runs_on_a_kafka_cluster_and_a_spark_cluster(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    """The executor that a task kills is a JVM of the cluster, which starts another."""
    require("Java 17 or newer", find_java(), "Spark runs on it")
    with SparkCluster(tmp_path / "cluster") as cluster:
        command = [sys.executable, "-m", "muster", "demo", "--quick", "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [*command, "--bootstrap", kafka_broker.bootstrap, "--master", cluster.url],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        exits = [path for path in (tmp_path / "cluster").glob("worker-*.log") if "exitStatus 137" in path.read_text()]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert figures["flights"] == figures["sent"]["count"] == figures["shared_group"]["distinct"] == 30_000
    assert figures["table"] == figures["topic"] == {"count": 1_104, "wrong": 0, "repeated": 0}
    assert figures["joined"] == {"count": 29_837, "wrong": 0, "repeated": 0}
    assert figures["outages"] == ["the pipeline's driver killed and started again"]
    assert {each["step"] for each in figures["causes_found"] if each["found"]} == {"join", "kill", "driver", "leave"}
    assert exits, "no executor was killed"
    assert not processes_of(tmp_path)
