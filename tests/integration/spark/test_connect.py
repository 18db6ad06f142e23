"""The source through Spark Connect: the session is a client, and all of the source runs in its server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.faces import rest, until

pytestmark = [pytest.mark.slow(85), pytest.mark.timeout(1800), pytest.mark.usefixtures("java")]


@pytest.mark.parametrize("cluster", ["muster"], indirect=True)
def test_batches_and_a_query_in_a_group(cluster, tmp_path):
    from muster.model import TopicPartition

    topic = cluster.topic(2)
    cluster.topic(2, f"{topic}-copy")
    cluster.produce(topic, 100, partitions=2)
    arguments = {"bootstrap": cluster.bootstrap, "topic": topic, "group": cluster.group, "folder": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.spark_connect", json.dumps(arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = json.loads(next(line for line in process.stdout if line.startswith("{")))
        assert found.pop("history") == [True] * 4
        assert found == {"session": "pyspark.sql.connect.session", "batch": 100, "stream": 100, "written": 100}
        partitions = [TopicPartition(topic, number) for number in range(2)]
        with cluster.consumer("sync", enable_auto_commit=False) as consumer:
            # The next trigger is an hour away: the session's listener has reported the batch.
            until(lambda: all(at and at.offset == 50 for at in consumer.committed(partitions).values()), rest)
        process.stdin.write("\n")
        process.stdin.close()
        for _ in process.stdout:
            pass
    assert process.returncode == 0
