"""`muster lag` on muster and on Apache Kafka 4.2, compared with Kafka's own tool; its port, even while the cluster is
down."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster import Admin, Consumer, Producer
from muster.client.core.admin.admin import NewTopic
from muster.history.sources.cluster_lag import LagWatch
from muster.model import OffsetAndMetadata, TopicPartition
from tests.support.brokers import BrokerProcess, beside
from tests.support.peers import KafkaBroker, run_kafka_class
from tests.support.secure_kafka import PASSWORDS, SCRAM, SecureKafka, login

pytestmark = pytest.mark.slow

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
MUSTER = [sys.executable, "-m", "muster"]
PATIENCE_S = 300

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def lag(bootstrap: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*MUSTER, "lag", "--bootstrap", bootstrap, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@contextmanager
def exporting(bootstrap: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*MUSTER, "lag", "--bootstrap", bootstrap, "--metrics-port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"serving the lag of groups at \S+ on (http://\S+)\n", process.stdout.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def samples(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def until(url: str, seen: Callable[[Samples], bool]) -> Samples:
    deadline = time.monotonic() + PATIENCE_S
    while not seen(found := samples(url)):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def is_up(value: int) -> Callable[[Samples], bool]:
    return lambda found: found["muster_lag_up", frozenset()] == value


def fill(bootstrap: str, topic: str, counts: dict[int, int]) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition, count in counts.items():
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=partition)


@contextmanager
def some_group(bootstrap: str) -> Iterator[tuple[str, str]]:
    """A topic, and a group that lags by 7, 0 and 20 in its partitions, and never committed in the fourth."""
    topic = group = f"lag-{uuid4().hex[:8]}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=4)])
        fill(bootstrap, topic, {0: 10, 1: 5, 2: 20, 3: 4})
        settings = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
        with Consumer(settings, client_id="reader") as consumer:
            consumer.subscribe([topic])
            while len(consumer.assignment()) < 4:
                consumer.poll(200)
            consumer.commit({TopicPartition(topic, number): offset for number, offset in ((0, 3), (1, 5), (2, 0))})
            yield topic, group


@pytest.fixture(params=["muster", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka_broker")
        yield kafka.bootstrap
    else:
        with beside(tmp_path) as address:
            yield address


def kafkas_word(bootstrap: str, group: str) -> dict[int, tuple[str, str, str]]:
    """Offset, end and lag of each partition, according to Kafka's tool."""
    done = run_kafka_class(TOOL, "--timeout", "300000", "--bootstrap-server", bootstrap, "--describe", "--group", group)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(group)]
    return {int(row[2]): (row[3], row[4], row[5]) for row in rows}


def test_the_lag_is_that_of_kafkas_tool(bootstrap: str) -> None:
    with some_group(bootstrap) as (topic, group):
        reported = lag(bootstrap, "--group", group, "--json")
        assert (reported.returncode, reported.stderr) == (0, "")
        (found,) = json.loads(reported.stdout)["groups"]
        ours = {
            part["partition"]: tuple(
                "-" if part[name] is None else str(part[name]) for name in ("committed_offset", "log_end_offset", "lag")
            )
            for part in found["partitions"]
        }
        assert ours == kafkas_word(bootstrap, group)
        assert ours == {0: ("3", "10", "7"), 1: ("5", "5", "0"), 2: ("0", "20", "20"), 3: ("-", "4", "-")}
        assert (found["state"], found["members"]) == ("Stable", 1)
        ages = {part["partition"]: part["seconds"] for part in found["partitions"]}
        assert ages[1] == 0
        assert ages[3] is None
        assert 0 < ages[0] < PATIENCE_S, "the record at offset 3 says when it was written"
        assert {part["client_id"] for part in found["partitions"]} == {"reader"}
        with exporting(bootstrap, "--group", group, "--interval", "500ms") as (process, url):
            until(url, is_up(1))
            fill(bootstrap, topic, {1: 6})
            place = {("consumergroup", group), ("topic", topic)}
            seconds = "kafka_consumergroup_lag_seconds", frozenset({*place, ("partition", "1")})
            lag_sum = "kafka_consumergroup_lag_sum", frozenset(place)
            # The first sample with the new records may be taken while they are being written.
            seen = until(url, lambda found: found.get(seconds, 0) > 0 and found.get(lag_sum, 0) >= 7 + 6 + 20)
            assert seen[seconds] < PATIENCE_S
            assert seen["kafka_consumergroup_lag", frozenset({*place, ("partition", "0")})] == 7
            assert seen[lag_sum] == 7 + 6 + 20
            assert seen["kafka_consumergroup_members", frozenset({("consumergroup", group)})] == 1
            assert seen["kafka_brokers", frozenset()] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


def test_a_cluster_that_wants_tls_and_a_password(tmp_path: Path, secure_kafka: SecureKafka) -> None:
    """It works as with any other cluster, and no output contains the password."""
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secure_kafka.certificates.path('ca')}\n"
        f"sasl.jaas.config={login(SCRAM, username='bob', password=PASSWORDS['bob'])}\n"
    )
    words = ["--command-config", str(properties), "--log-level", "debug", "--interval", "200ms"]
    with (
        some_group(secure_kafka.address("PLAINTEXT")) as (topic, group),
        exporting(secure_kafka.address("BOTH"), *words) as (process, url),
    ):
        place = {("consumergroup", group), ("topic", topic)}
        seen = until(url, is_up(1))
        assert seen["kafka_consumergroup_lag_sum", frozenset(place)] == 7 + 20
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            reported = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        reported += "".join(process.communicate(timeout=PATIENCE_S))
        assert process.returncode == 0
    assert group in reported
    assert PASSWORDS["bob"] not in reported


def test_a_cluster_that_goes_is_down_and_comes_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        words = ("--interval", "300ms", "--timeout-ms", "5000")
        with some_group(broker.bootstrap) as (topic, group):
            pass
        with exporting(broker.bootstrap, *words) as (process, url):
            until(url, is_up(1))
            broker.kill()
            found = until(url, is_up(0))
            assert not [name for name, _ in found if name.startswith("kafka_")]
            until(url, lambda found: found["muster_lag_failed_looks", frozenset()] >= 2)
            broker.start()
            found = until(url, is_up(1))
            place = {("consumergroup", group), ("topic", topic), ("partition", "2")}
            assert found["kafka_consumergroup_lag", frozenset(place)] == 20
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            lines = process.stderr.read().splitlines()
    # Reported once for the whole outage. On a busy machine a sample may also take too long before or after it.
    said = ["reading the lag of groups again" in line for line in lines if "the lag of groups" in line]
    assert said[:2] == [False, True]
    assert said == [number % 2 == 1 for number in range(len(said))]
    assert len([line for line in lines if "cannot read the lag of groups" in line]) == said.count(False)
    assert not [line for line in lines if "Traceback" in line]


def test_following_ends_by_ctrl_c(tmp_path: Path) -> None:
    with beside(tmp_path) as bootstrap, some_group(bootstrap):
        command = [*MUSTER, "lag", "--bootstrap", bootstrap, "--follow", "--interval", "100ms", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "")
    assert [one["at_ms"] for one in looks] == sorted({one["at_ms"] for one in looks})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--metrics-port", "1", "--json"),
            "muster: lag: --metrics-port prints nothing: omit --follow and --json",
        ),
        (("--metrics-port", "99999"), "muster: --metrics-port must be 0 to 65535, not 99999"),
        (("--timeout-ms", "300"), "(tried to connect to 127.0.0.1:9; choose another cluster with --bootstrap)"),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = lag("127.0.0.1:9", *words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in done.stderr


def test_a_group_that_is_not_there(tmp_path: Path) -> None:
    with beside(tmp_path) as bootstrap:
        done = lag(bootstrap, "--group", "none")
        assert (done.returncode, done.stderr) == (1, "muster: group none does not exist\n")


def test_groups_of_the_spark_sink_are_left_out_unless_they_are_named(shared_muster: BrokerProcess) -> None:
    topic, name = f"sink-{uuid4().hex[:8]}", f"out-{uuid4().hex[:8]}"
    with Admin(bootstrap_servers=shared_muster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
        place = TopicPartition(topic, 0)
        for group, metadata in ((f"{name}-0", "muster-sink:7"), (f"{name}-1", "")):
            admin.alter_consumer_group_offsets(group, {place: OffsetAndMetadata(0, metadata=metadata)})
        every = {each.group for each in LagWatch(admin).poll().groups}
        assert f"{name}-1" in every
        assert f"{name}-0" not in every
        assert [each.group for each in LagWatch(admin, [f"{name}-0"]).poll().groups] == [f"{name}-0"]
