"""How long tests wait for a broker: muster's testing kit beside librdkafka's mock, Apache Kafka and kfake.

Each broker in turn, several rounds: the time until a client has an answer from a broker that was just started, and the
time of one test, which writes ten records to a new topic and reads and commits them as the only member of a new group.
The client is confluent-kafka for all, so the difference is the broker's. `--kfake` is a program that serves kfake on
`-port`; without it that row is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
import time
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
    topic = f"bench-{next(_NUMBERS)}"  # the first write creates it: librdkafka's mock knows no other way
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


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=10, help="tests on each broker, the first of which is not counted")
    parser.add_argument("--kfake", help="a program that serves kfake")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reference/performance.md")
    arguments = parser.parse_args()
    brokers: dict[str, Callable[[], object]] = {
        "muster, in a thread": in_thread,
        "muster, in a process": in_process,
        "librdkafka's mock": librdkafka_mock,
        "Apache Kafka 4.2": apache_kafka,
    }
    if arguments.kfake:
        brokers["kfake"] = lambda: kfake(arguments.kfake)
    found: dict[str, dict[str, list[float]]] = {name: {"up_s": [], "test_s": [], "down_s": []} for name in brokers}
    for _ in range(arguments.rounds):
        for name, begin in brokers.items():
            measure(begin, arguments.tests, found[name])
    medians = {name: {what: median(times) for what, times in of.items()} for name, of in found.items()}
    head = ("", "up", "one test", "down")
    rows = [(name, *(f"{1000 * seconds:.0f} ms" for seconds in of.values())) for name, of in medians.items()]
    print(report.plain_table(head, rows, (0,)))
    print(json.dumps(medians))
    path = report.save_as("testing", {"rounds": arguments.rounds, "tests": arguments.tests, "brokers": found})
    print(f"{report.machine()}; all figures: {path}")
    if arguments.write_docs:
        note = f"Medians of {arguments.rounds} rounds, {arguments.tests} tests each, on {report.machine()}."
        report.put_on_page("testing", f"{note}\n\n{report.markdown_table(head, rows, (0,))}")
    return 0


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
