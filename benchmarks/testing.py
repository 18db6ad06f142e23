"""How long tests wait for a broker: muster's testing kit compared with librdkafka's mock, Apache Kafka and kfake.

Each broker in turn, several rounds: the time until a client has an answer from a broker that was just started, and the
time of one test, which writes ten records to a new topic and reads and commits them as the only member of a new group.
The client is confluent-kafka for all, so the difference is the broker's. `--kfake` is a program that serves kfake on
`-port`; without it that row is left out.

Then a whole suite: pytest with the kit's fixtures and 100 such tests, with muster's clients and with confluent-kafka:
how long two processes of pytest-xdist take for it, and how long one test takes in one process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import muster.testing
from benchmarks import report
from muster.local.ports import free_ports
from tests.support import peers

RECORDS = 10
_NUMBERS = itertools.count()

SUITE = """
import pytest
from confluent_kafka import Consumer, Producer

VALUES = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("number", range(100))
def test_with_muster(muster_topic, muster_producer, muster_consumer, number):
    topic, producer = muster_topic(), muster_producer()
    for value in VALUES:
        producer.send(topic, value)
    producer.flush()
    consumer = muster_consumer(topic, enable_auto_commit=False)
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.commit()


@pytest.mark.parametrize("number", range(100))
def test_with_confluent_kafka(muster_broker, muster_topic, number):
    topic, producer = muster_topic(), Producer({"bootstrap.servers": muster_broker.bootstrap})
    for value in VALUES:
        producer.produce(topic, value)
    producer.flush()
    settings = {"bootstrap.servers": muster_broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    assert [consumer.poll(60).value() for _ in VALUES] == VALUES
    consumer.commit(asynchronous=False)
    consumer.close()
"""
"""Both clients with their own settings."""
ABOUT_SUITES = (
    "A suite of 100 tests with the kit's fixtures, one broker for each process of pytest-xdist. A test writes ten\n"
    "records to a new topic, reads them in a new group and commits. Both clients have their own defaults."
)
SUITES = {"muster's clients": "test_with_muster", "confluent-kafka": "test_with_confluent_kafka"}


@contextmanager
def in_thread() -> Iterator[str]:
    """muster's kit, its broker in a thread."""
    with muster.testing.kafka(in_process=True) as kafka:
        yield kafka.bootstrap


@contextmanager
def in_process() -> Iterator[str]:
    """muster's kit, its broker in a process."""
    with muster.testing.kafka() as kafka:
        yield kafka.bootstrap


@contextmanager
def librdkafka_mock() -> Iterator[str]:
    """librdkafka's mock cluster, in a thread of its client."""
    holder = Producer({"test.mock.num.brokers": 1})
    brokers = holder.list_topics(timeout=30).brokers
    yield ",".join(f"{each.host}:{each.port}" for each in brokers.values())
    holder.flush()


@contextmanager
def apache_kafka() -> Iterator[str]:
    """Apache Kafka 4.2 in KRaft mode."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"group.initial.rebalance.delay.ms": "0"}
        with peers.KafkaBroker(Path(folder) / "kafka", settings=settings) as broker:
            yield broker.bootstrap


@contextmanager
def kfake(program: str) -> Iterator[str]:
    """franz-go's kfake, from a program that serves it."""
    (port,) = free_ports(1)
    process = subprocess.Popen([program, "-port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answers(bootstrap: str) -> None:
    """Return when a client has an answer."""
    AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.ms": 10}).list_topics(timeout=60)


def one_test(bootstrap: str) -> None:
    """Write, read in a group, commit."""
    topic = f"bench-{next(_NUMBERS)}"  # the first write creates it, the only way with librdkafka's mock
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode())
    producer.flush()
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 50})
    consumer.subscribe([topic])
    read = 0
    while read < RECORDS:
        read += len(consumer.consume(RECORDS, timeout=0.05))
    consumer.commit(asynchronous=False)
    consumer.close()


def suite(folder: Path, test: str, processes: int) -> tuple[float, float]:
    """Run the suite's tests of one client: the seconds that pytest takes, and those of a test (the median)."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", test, "-n", str(processes), "--junitxml=report.xml"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    plugins = ["-p", "muster.testing.pytest_plugin", "-p", "xdist", "-p", "no:cacheprovider", "-c", os.devnull]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    began = time.perf_counter()
    subprocess.run([*command, *plugins, "--rootdir", "."], cwd=folder, env=environment, check=True, capture_output=True)
    took = time.perf_counter() - began
    cases = xml.etree.ElementTree.parse(folder / "report.xml").iter("testcase")
    return took, median(float(case.attrib["time"]) for case in cases)


def suites(rounds: int) -> dict[str, dict[str, list[float]]]:
    """The figures of each suite."""
    found: dict[str, dict[str, list[float]]] = {name: {"two_processes_s": [], "test_s": []} for name in SUITES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_suite.py").write_text(SUITE)
        for _ in range(rounds):
            for name, test in SUITES.items():
                found[name]["two_processes_s"].append(suite(Path(folder), test, 2)[0])
                found[name]["test_s"].append(suite(Path(folder), test, 0)[1])
    return found


def main() -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=10, help="tests on each broker, the first of which is not counted")
    parser.add_argument("--kfake", help="a program that serves kfake")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    of_brokers = brokers(arguments)
    of_suites = suites(arguments.rounds)
    head = ("", "up", "one test", "down")
    rows = [(name, *(f"{1000 * median(times):.0f} ms" for times in of.values())) for name, of in of_brokers.items()]
    suite_head = ("100 tests", "in two processes", "one test, in one process")
    suite_rows = [
        (name, f"{median(of['two_processes_s']):.1f} s", f"{1000 * median(of['test_s']):.0f} ms")
        for name, of in of_suites.items()
    ]
    print(report.plain_table(head, rows, (0,)), report.plain_table(suite_head, suite_rows, (0,)), sep="\n\n")
    figures = {"rounds": arguments.rounds, "tests": arguments.tests, "brokers": of_brokers, "suites": of_suites}
    print(f"{report.machine()}; all figures: {report.save_as('testing', figures)}")
    if arguments.write_docs:
        note = f"Medians of {arguments.rounds} rounds, {arguments.tests} tests each, on {report.machine()}."
        parts = (note, report.markdown_table(head, rows, (0,)), ABOUT_SUITES)
        report.put_on_page("testing", "\n\n".join((*parts, report.markdown_table(suite_head, suite_rows, (0,)))))
    return 0


def brokers(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """The figures of each broker."""
    starts: dict[str, Callable[[], object]] = {
        "muster, in a thread": in_thread,
        "muster, in a process": in_process,
        "librdkafka's mock": librdkafka_mock,
        "Apache Kafka 4.2": apache_kafka,
    }
    if arguments.kfake:
        starts["kfake"] = lambda: kfake(arguments.kfake)
    found: dict[str, dict[str, list[float]]] = {name: {"up_s": [], "test_s": [], "down_s": []} for name in starts}
    for _ in range(arguments.rounds):
        for name, begin in starts.items():
            measure(begin, arguments.tests, found[name])
    return found


def measure(begin: Callable[[], object], tests: int, into: dict[str, list[float]]) -> None:
    """Start a broker, run the tests on it, stop it."""
    started = time.perf_counter()
    broker = begin()
    bootstrap = broker.__enter__()  # type: ignore[attr-defined]
    try:
        answers(bootstrap)
        into["up_s"].append(time.perf_counter() - started)
        for number in range(tests):
            began = time.perf_counter()
            one_test(bootstrap)
            if number:
                into["test_s"].append(time.perf_counter() - began)
        began = time.perf_counter()
    finally:
        broker.__exit__(None, None, None)  # type: ignore[attr-defined]
    into["down_s"].append(time.perf_counter() - began)


if __name__ == "__main__":
    raise SystemExit(main())
