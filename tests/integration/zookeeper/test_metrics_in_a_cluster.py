"""`--metrics-port` of processes that coordinate groups through ZooKeeper: what they count, and that they report when it
is down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from tests.support.zookeepers import ZooKeeperServer, operator

pytestmark = pytest.mark.slow

PATIENCE_S = 120
SESSION = ("-o", "zookeeper.session.timeout.ms=4000")


@contextmanager
def running(*words: str) -> Iterator[str]:
    """A process of muster; returns the address of its pages."""
    command = [sys.executable, "-m", "muster", *words, "--port", "0", "--metrics-port", "0", *SESSION]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"metrics on (\S+)\)$", line)
        assert found is not None, line
        yield f"http://{found[1]}"
    finally:
        process.kill()
        process.communicate()


def health(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def wait_for(url: str, wanted: tuple[int, str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := health(url)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def begin_kafka(client: KazooClient) -> None:
    """Like Kafka when it starts for the first time."""
    for path in "/brokers/ids", "/brokers/topics", "/cluster", "/config/topics", "/admin/delete_topics":
        client.ensure_path(path)
    client.create("/cluster/id", json.dumps({"version": "1", "id": "J28i5pjmSkGnk1t5tzXkjw"}).encode())
    client.create("/controller_epoch", b"1")


def test_health_tells_of_a_zookeeper_that_is_away(tmp_path: Path, own_zookeeper: ZooKeeperServer) -> None:
    beside = f"{own_zookeeper.address}/kafka"
    with operator(own_zookeeper.address) as client:
        client.ensure_path("/kafka")
    with operator(beside) as client:
        begin_kafka(client)
    broker = ["serve", "--zookeeper", f"{own_zookeeper.address}/muster", "--broker-id", "1"]
    coordinator = ["coordinator", "--zookeeper", beside, "--coordinator-id", "101", "--draft-listener", "127.0.0.1:0"]
    with running(*broker, "--data-dir", str(tmp_path / "data")) as one, running(*coordinator) as other:
        for url in one, other:
            wait_for(url, (200, "serving\n"))
            with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                values = {sample.name: sample.value for family in families for sample in family.samples}
            assert values["kafka_server_kafkaserver_brokerstate"] == 3
            assert values["kafka_coordinator_group_groupmetadatamanager_numgroups"] == 0
        own_zookeeper.freeze()
        for url in one, other:
            wait_for(url, (503, "ZooKeeper does not answer: groups are waiting for it\n"))
        own_zookeeper.thaw()
        for url in one, other:
            wait_for(url, (200, "serving\n"))
