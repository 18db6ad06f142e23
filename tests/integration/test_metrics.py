"""`--metrics-port` of real processes, read as Prometheus reads it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster import Consumer, Producer
from tests.support.peers import free_ports

pytestmark = pytest.mark.slow


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`muster serve`, its address, and the address of its metrics."""
    command = [sys.executable, "-m", "muster", "serve", "--port", "0", "--data-dir", str(folder), *options]
    command += ["-o", "group.initial.rebalance.delay.ms=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r" ready on (\S+) \(cluster .*, metrics on (\S+)\)$", line)
        assert found is not None, line
        yield process, found[1], found[2]
    finally:
        process.kill()
        process.communicate()


def samples(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_broker_that_works_is_seen_working(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--metrics-port", "0") as (process, bootstrap, metrics):
        with urllib.request.urlopen(f"http://{metrics}/healthz", timeout=60) as answer:
            assert answer.read() == b"serving\n"
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(500):
                producer.send("t", b"%d" % number)
        with Consumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            read = 0
            while read < 500:
                read += sum(map(len, consumer.poll(1_000).values()))
            consumer.commit()
            found = samples(metrics)
        topic = frozenset({("topic", "t")})
        assert found["kafka_server_brokertopicmetrics_messagesin_total", topic] == 500
        assert found["kafka_server_brokertopicmetrics_bytesout_total", topic] > 0
        stable = frozenset({("state", "Stable")})
        assert found["kafka_server_group_coordinator_metrics_classic_group_count", stable] == 1
        assert found["kafka_server_group_coordinator_metrics_group_completed_rebalance_count", frozenset()] == 1
        assert found["kafka_network_requestmetrics_totaltimems_count", frozenset({("request", "JoinGroup")})] == 2
        assert found["kafka_server_socket_server_metrics_connection_count", frozenset()] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--metrics-port", "TAKEN"), "muster: cannot serve metrics on 127.0.0.1:TAKEN: Address already in use"),
        (("--metrics-port", "70000"), "muster: --metrics-port must be 0 to 65535, not 70000"),
        (("--metrics-host", "::1"), "muster: --metrics-host needs --metrics-port"),
    ],
)
def test_what_cannot_be_served_is_reported_in_a_sentence(
    tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        words = [word.replace("TAKEN", port) for word in options]
        command = [sys.executable, "-m", "muster", "serve", "--port", str(free_ports(1)[0])]
        command += ["--data-dir", str(tmp_path / "data"), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, sentence.replace("TAKEN", port))
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
